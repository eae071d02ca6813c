/* Archives and programs that are damaged, lie, or ask for what there is not: an error that names the file, the place and the cause, and
 * nothing worse. The whole one is tests/capture/cases/small.pt2 (export_small.py). */
#include "support/support.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capture/capture.h"
#include "capture/place.h"
#include "capture/zip.h"
#include "support/archives.h"

static const char small_path[] = TEST_SOURCE_DIR "/tests/capture/cases/small.pt2";

typedef struct fixture { test_memory memory; dw_context *context; file_map file; } fixture;

static int open_small(void **state) {
    static fixture f;
    f = (fixture){.file = {.length = 0}};
    f.context = test_context_create(&f.memory, 1);
    *state = &f;
    return file_map_open(f.context, small_path, &f.file) == DW_OK ? 0 : -1;
}

static int close_small(void **state) {
    fixture *f = *state;
    file_map_close(&f->file);
    dw_context_destroy(f->context);
    return f->memory.live_count == 0 ? 0 : -1;
}

static dw_status check_weights(dw_context *context, ir_weights *weights) {
    pool *pool;
    TRY(base_pool(context, &pool));
    return ir_weights_check(weights, pool);
}

/* What capture makes of bytes, and of the weights that it finds; a graph that it makes is whole. */
static dw_status read_bytes(dw_context *context, const void *bytes, size_t length) {
    ir_weights weights;
    ir_graph *graph;
    ir_weights_init(&weights, context);
    dw_status status = capture_pt2_read(context, "some.pt2", bytes, length, NULL, &weights, &graph);
    if (status == DW_OK) assert_int_equal(ir_check(graph), DW_OK);
    else assert_null(graph);
    if (status == DW_OK) status = check_weights(context, &weights);
    assert_int_not_equal(status, DW_INTERNAL);
    ir_graph_destroy(graph);
    ir_weights_free(&weights);
    return status;
}

static dw_status read_changed(fixture *f, archive_change change) {
    text made;
    text_init(&made, f->context);
    archive_rebuild(f->context, f->file.bytes, f->file.length, 1, &change, &made);
    dw_status status = read_bytes(f->context, made.bytes, made.length);
    text_free(&made);
    return status;
}

static void fails(fixture *f, archive_change change, dw_status expected, const char *part) {
    dw_status status = read_changed(f, change);
    test_assert_fails(f->context, status, expected, part);
    assert_non_null(strstr(dw_context_error(f->context), "some.pt2"));
}

/* One replacement in the program. */
static archive_change program(const char *find, const char *put) { return (archive_change){.name = "models/model.json", .find = find, .put = put}; }
static archive_change weights(const char *find, const char *put) {
    return (archive_change){.name = "data/weights/model_weights_config.json", .find = find, .put = put};
}

/* ---- the archive ---- */

static void the_whole_archive_is_captured(void **state) {
    fixture *f = *state;
    assert_int_equal(read_bytes(f->context, f->file.bytes, f->file.length), DW_OK);
    assert_int_equal(read_changed(f, (archive_change){.name = ""}), DW_OK);
}

static void an_archive_truncated_anywhere_is_an_error(void **state) {
    fixture *f = *state;
    for (size_t length = 0; length < f->file.length; length += length < 200 || length + 2000 > f->file.length ? 1 : 37) {
        dw_status status = read_bytes(f->context, f->file.bytes, length);
        assert_int_equal(status, DW_CORRUPT);
    }
}

static void flipped_bits_are_errors_or_another_program(void **state) {
    fixture *f = *state;
    uint8_t *copy = malloc(f->file.length);
    uint64_t random = 1;
    assert_non_null(copy);
    for (int i = 0; i < 1500; i++) {
        memcpy(copy, f->file.bytes, f->file.length);
        for (int flips = 0; flips < 1 + i % 3; flips++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            copy[(random >> 20) % f->file.length] ^= (uint8_t)(1u << (random >> 60));
        }
        read_bytes(f->context, copy, f->file.length);
    }
    free(copy);
}

static void entries_that_cannot_be_mapped_are_refused(void **state) {
    fixture *f = *state;
    fails(f, (archive_change){.name = "data/weights/weight_0", .method = 8}, DW_UNSUPPORTED, "compressed");
    fails(f, (archive_change){.name = "data/weights/weight_0", .claim = 1 << 20}, DW_CORRUPT, "claims bytes");
    fails(f, (archive_change){.name = "models/model.json", .claim = -100}, DW_CORRUPT, "checksum");
    fails(f, (archive_change){.name = "data/weights/weight_1", .move = 1}, DW_CORRUPT, "has no header");
    fails(f, (archive_change){.name = "data/weights/weight_1", .move = -30000}, DW_CORRUPT, "data/weights/weight_1");
    fails(f, (archive_change){.name = "data/weights/weight_1", .rename = "data/weights/weight_0"}, DW_CORRUPT, "two entries");
    fails(f, (archive_change){.name = "data/weights/weight_0", .claim = 200}, DW_CORRUPT, "overlap");
}

/* Texts are held to their checksums when they are read, weights before they are computed with. */
static void checksums_are_compared(void **state) {
    fixture *f = *state;
    fails(f, (archive_change){.name = "models/model.json", .checksum = 1}, DW_CORRUPT, "checksum");
    fails(f, (archive_change){.name = "data/weights/model_weights_config.json", .checksum = 0x80000000}, DW_CORRUPT, "checksum");
    fails(f, (archive_change){.name = "data/weights/weight_0", .checksum = 1}, DW_CORRUPT, "data/weights/weight_0' are not those that were written");
}

static void other_archives_are_told_apart(void **state) {
    fixture *f = *state;
    fails(f, (archive_change){.name = "archive_version", .contents = "1"}, DW_UNSUPPORTED, "archive_version is '1'");
    fails(f, (archive_change){.name = "byteorder", .contents = "big"}, DW_UNSUPPORTED, "byteorder is 'big'");
    fails(f, (archive_change){.name = "archive_format", .contents = "zip"}, DW_CORRUPT, "archive_format");
    fails(f, (archive_change){.name = "archive_format", .remove = true}, DW_CORRUPT, "archive_format");
    fails(f, (archive_change){.name = "models/model.json", .rename = "serialized_exported_program.json"}, DW_UNSUPPORTED, "re-save it with torch >= 2.9");
    fails(f, (archive_change){.name = "models/model.json", .rename = "data.pkl"}, DW_UNSUPPORTED, "torch.export");
    fails(f, (archive_change){.name = "models/model.json", .remove = true}, DW_NOT_FOUND, "no model");
    fails(f, (archive_change){.name = "data/weights/model_weights_config.json", .rename = "data/weights/model.pt"}, DW_UNSUPPORTED, "is a pickle");
    fails(f, (archive_change){.name = "data/constants/model_constants_config.json", .remove = true}, DW_CORRUPT, "missing");
    test_assert_fails(f->context, read_bytes(f->context, "graph g\n", 8), DW_CORRUPT, "some.pt2");
    test_assert_fails(f->context, read_bytes(f->context, "a text that is longer than any end record", 41), DW_CORRUPT, "not a zip archive");
}

/* ---- weights ---- */

static void weights_that_lie_are_refused(void **state) {
    fixture *f = *state;
    const char *spaced = "\"sizes\": [{\"as_int\": 24}, {\"as_int\": 8}]";
    fails(f, weights(spaced, "\"sizes\": [{\"as_int\": 2400}, {\"as_int\": 8}]"), DW_CORRUPT, "reaches beyond its record");
    fails(f, weights(spaced, "\"sizes\": [{\"as_int\": -24}, {\"as_int\": 8}]"), DW_CORRUPT, "reaches beyond its record");
    fails(f, weights(spaced, "\"sizes\": [{\"as_int\": 4611686018427387904}, {\"as_int\": 8}]"), DW_CORRUPT, "reaches beyond its record");
    fails(f, weights(spaced, "\"sizes\": [{\"as_int\": 9223372036854775808}, {\"as_int\": 8}]"), DW_CORRUPT, "payload configuration");
    fails(f, weights(spaced, "\"sizes\": [{\"as_int\": 8}, {\"as_int\": 8}]"), DW_CORRUPT, "another dtype or shape");
    fails(f, weights(spaced, "\"sizes\": 3"), DW_CORRUPT, "has no sizes");
    fails(f, weights("\"storage_offset\": {\"as_int\": 0}", "\"storage_offset\": {\"as_int\": 1}"), DW_CORRUPT, "reaches beyond its record");
    fails(f, weights("\"storage_offset\": {\"as_int\": 0}", "\"storage_offset\": {\"as_int\": -1}"), DW_CORRUPT, "reaches beyond its record");
    fails(f, weights("\"strides\": [{\"as_int\": 8}, {\"as_int\": 1}]", "\"strides\": [{\"as_int\": 4611686018427387904}, {\"as_int\": 1}]"), DW_CORRUPT,
          "reaches beyond its record");
    fails(f, weights("\"use_pickle\": false", "\"use_pickle\": true"), DW_UNSUPPORTED, "pickled tensor subclass");
    fails(f, weights("\"path_name\": \"weight_1\"", "\"path_name\": \"weight_99\""), DW_CORRUPT, "which the archive lacks");
    fails(f, weights("\"dtype\": 7, \"sizes\": [{\"as_int\": 24}, ", "\"dtype\": 11, \"sizes\": [{\"as_int\": 24}, "), DW_NOT_FOUND, "does not hold");
    fails(f, weights("\"qkv.bias\"", "\"norm.bias\""), DW_CORRUPT, "payload configuration");
    fails(f, (archive_change){.name = "data/weights/weight_1", .contents = ""}, DW_CORRUPT, "reaches beyond its record");
}

/* A buffer that is written in the memory of one that is read: each would be right alone. */
static void written_buffers_that_share_memory_are_refused(void **state) {
    fixture *f = *state;
    fails(f, weights("\"runs\": {\"path_name\": \"weight_5\"", "\"runs\": {\"path_name\": \"weight_3\""), DW_UNSUPPORTED, "'runs' is written and shares its memory with 'qkv.weight'");
}

static bool overlap(dw_format format, int64_t length, int64_t a, int64_t a_stride, int64_t b, int64_t b_stride) {
    static float memory[64];
    const dw_tensor first = {.format = format, .rank = 1, .dims = {length}, .strides = {a_stride}, .data = memory + a};
    const dw_tensor second = {.format = DW_FORMAT_f32, .rank = 1, .dims = {length}, .strides = {b_stride}, .data = memory + b};
    assert_int_equal(place_overlaps(&first, &second), place_overlaps(&second, &first));
    return place_overlaps(&first, &second);
}

static void overlap_is_of_elements(void **state) {
    (void)state;
    assert_true(overlap(DW_FORMAT_f32, 4, 0, 1, 0, 1));
    assert_true(overlap(DW_FORMAT_f32, 4, 0, 1, 3, 1));
    assert_false(overlap(DW_FORMAT_f32, 4, 0, 1, 4, 1));
    assert_false(overlap(DW_FORMAT_f32, 4, 0, 2, 1, 2));   /* the two halves of complex numbers */
    assert_true(overlap(DW_FORMAT_f32, 4, 0, 2, 2, 2));
    assert_true(overlap(DW_FORMAT_f32, 4, 1, 4, 3, 2));
    assert_false(overlap(DW_FORMAT_f32, 4, 0, 4, 1, 2));
    assert_true(overlap(DW_FORMAT_i64, 4, 0, 2, 1, 2));    /* eight bytes reach into the next four */
    assert_true(overlap(DW_FORMAT_f32, 1, 5, 0, 5, 0));
    assert_false(overlap(DW_FORMAT_f32, 0, 5, 1, 5, 1));
}

/* ---- the program ---- */

static void programs_that_do_not_hold_together_are_refused(void **state) {
    fixture *f = *state;
    fails(f, program("\"major\":8", "\"major\":9"), DW_UNSUPPORTED, "schema version 9");
    fails(f, program("\"schema_version\"", "\"schema\""), DW_CORRUPT, "schema_version");
    fails(f, program("{\"graph_module\"", "[\"graph_module\""), DW_CORRUPT, "JSON");
    fails(f, program("\"target\":\"torch.ops.aten.embedding.default\",\"inputs\":[{\"name\":\"weight\",\"arg\":{\"as_tensor\":{\"name\":\"p_head_weight\"",
                     "\"target\":\"torch.ops.aten.embedding.default\",\"inputs\":[{\"name\":\"weight\",\"arg\":{\"as_tensor\":{\"name\":\"nobody\""),
          DW_CORRUPT, "'nobody' is the name of no value");
    fails(f, program("\"outputs\":[{\"as_tensor\":{\"name\":\"layer_norm\"}}]", "\"outputs\":[{\"as_tensor\":{\"name\":\"add\"}}]"), DW_CORRUPT, "twice");
    fails(f, program("\"user_output\":{\"arg\":{\"as_tensor\":{\"name\":\"linear_1\"}", "\"user_output\":{\"arg\":{\"as_tensor\":{\"name\":\"nobody\"}"), DW_CORRUPT,
          "output 'nobody'");
    fails(f, program("\"parameter_name\":\"norm.bias\"", "\"parameter_name\":\"nobody\""), DW_NOT_FOUND, "the weight 'nobody'");
    fails(f, program("\"Symbol('s23', positive=True, integer=True)\"", "\"Symbol('s23', positive=True\""), DW_CORRUPT, "parenthesis");
    fails(f, program("\"Symbol('s23', positive=True, integer=True)\"", "\"Pow(Symbol('s23'), Integer(1000000))\""), DW_UNSUPPORTED, "a power");
    fails(f, program("\"Symbol('s23', positive=True, integer=True)\"", "\"Integer(9223372036854775808)\""), DW_CORRUPT, "64 bits");
    fails(f, program("\"min_val\":2", "\"min_val\":5,\"max_val\":3"), DW_CORRUPT, "between");
}

static void what_is_not_supported_is_listed_at_once(void **state) {
    fixture *f = *state;
    text changed;
    text_init(&changed, f->context);
    archive_change first = program("torch.ops.aten.layer_norm.default", "torch.ops.aten.nonsense.default");
    archive_rebuild(f->context, f->file.bytes, f->file.length, 1, &first, &changed);
    text both;
    text_init(&both, f->context);
    archive_change second = program("torch.ops.aten.permute.default", "torch.ops.my.thing.default");
    archive_rebuild(f->context, changed.bytes, changed.length, 1, &second, &both);
    dw_status status = read_bytes(f->context, both.bytes, both.length);
    test_assert_fails(f->context, status, DW_UNSUPPORTED, "2 operators are not supported");
    test_assert_fails(f->context, status, DW_UNSUPPORTED, "aten.nonsense.default (1 time: norm)");
    test_assert_fails(f->context, status, DW_UNSUPPORTED, "my.thing.default (1 time)");
    text_free(&changed);
    text_free(&both);
    fails(f, program("torch.ops.aten.add_.Tensor", "torch.ops.aten.nonsense_.Tensor"), DW_UNSUPPORTED, "aten.nonsense_.Tensor");
    fails(f, program("\"is_causal\",\"arg\":{\"as_bool\":true}", "\"dropout_p\",\"arg\":{\"as_float\":1.5}"), DW_INVALID, "probability of 1.5");
}

static void deep_nesting_is_an_error(void **state) {
    fixture *f = *state;
    enum { DEPTH = 100000 };
    char *deep = malloc(DEPTH + 1);
    assert_non_null(deep);
    memset(deep, '[', DEPTH);
    deep[DEPTH] = '\0';
    fails(f, (archive_change){.name = "models/model.json", .contents = deep}, DW_CORRUPT, "depth");
    free(deep);
    text expression;
    text_init(&expression, f->context);
    for (int i = 0; i < 5000; i++) text_add(&expression, "Add(");
    text_add(&expression, "\"");
    fails(f, program("Symbol('s23', positive=True, integer=True)\"", text_string(&expression)), DW_LIMIT, "64 levels");
    text_free(&expression);
}

/* What the first symbol's greatest value, and the number of symbols, are once the program has this guard; -1 when it is refused. */
static int64_t guarded(fixture *f, const char *guard, int *symbols) {
    text put, made;
    ir_weights weights;
    ir_graph *graph;
    int64_t min, max = -1;
    text_init(&put, f->context);
    text_init(&made, f->context);
    ir_weights_init(&weights, f->context);
    text_add(&put, "\"guards_code\":[");
    text_json_string(&put, guard);
    text_add(&put, "]");
    archive_change change = program("\"guards_code\":[]", text_string(&put));
    archive_rebuild(f->context, f->file.bytes, f->file.length, 1, &change, &made);
    if (capture_pt2_read(f->context, "some.pt2", made.bytes, made.length, NULL, &weights, &graph) == DW_OK) {
        dim_symbol_range(graph->dims, 0, &min, &max);
        *symbols = dim_symbol_count(graph->dims);
    }
    ir_graph_destroy(graph);
    ir_weights_free(&weights);
    text_free(&made);
    text_free(&put);
    return max;
}

static void guards_bound_and_unite_sizes_and_hurt_nothing(void **state) {
    static const struct { const char *guard; int64_t max; int symbols; } rows[] = {
        {"L['ids'].size()[0] == (64 + ((-1)*max(0, 64 + ((-1)*L['ids'].size()[0]))))", 64, 2},
        {"(4*L['ids'].size()[0]*L['ids'].size()[1]) == (4*L['ids'].size()[0]*L['ids'].size()[0])", DIM_UNBOUNDED, 1},
        {"L['ids'].size()[0] == L['ids'].size()[1]", DIM_UNBOUNDED, 1},
        {"L['ids'].size()[0] == min(8, L['ids'].size()[1])", 8, 2},
        {"L['ids'].size()[0] != min(8, L['ids'].size()[1])", DIM_UNBOUNDED, 2},
        {"L['ids'].size()[0] == 8 or L['ids'].size()[1] == 8", DIM_UNBOUNDED, 2},
        {"L['ids'].size()[0] == L['ids'].size()[1] + 1", DIM_UNBOUNDED, 2},
        {"L['ids'].size()[0] == 1 // 0", DIM_UNBOUNDED, 2},
        {"L['ids'].size()[0] == 1 % 0", DIM_UNBOUNDED, 2},
        {"L['ids'].size()[0] == 99999999999999999999999", DIM_UNBOUNDED, 2},
        {"L['ids'].size()[0] == -5", DIM_UNBOUNDED, 2},
        {"L['ids'].size()[99999999999999999999] == 2", DIM_UNBOUNDED, 2},
        {"L['ids'].size()[7] == L['nobody'].size()[0]", DIM_UNBOUNDED, 2},
        {"L['ids", DIM_UNBOUNDED, 2},
        {"== ==", DIM_UNBOUNDED, 2},
        {"", DIM_UNBOUNDED, 2},
    };
    fixture *f = *state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        int symbols = 0;
        int64_t max = guarded(f, rows[i].guard, &symbols);
        if (max != rows[i].max || symbols != rows[i].symbols) fail_msg("%s: at most %lld, %d symbols", rows[i].guard, (long long)max, symbols);
    }
    text deep;
    text_init(&deep, f->context);
    for (int i = 0; i < 1900; i++) text_add(&deep, "(");
    text_add(&deep, "1 == 1");
    int symbols = 0;
    assert_int_equal(guarded(f, text_string(&deep), &symbols), DIM_UNBOUNDED);
    text_free(&deep);
}

/* ---- damage at random places of the program ---- */

static uint64_t next(uint64_t *random) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return *random >> 33;
}

static json_t *odd_value(uint64_t *random) {
    static const char *const texts[] = {"", "x", "Symbol('s27', positive=True, integer=True)", "torch.ops.aten.view.default", "add", "Infinity"};
    static const json_int_t integers[] = {0, 1, -1, 2, 7, 8, 12, 1000, 4611686018427387904, INT64_MAX, INT64_MIN};
    switch (next(random) % 7) {
    case 0: return json_null();
    case 1: return json_object();
    case 2: return json_array();
    case 3: return json_real(1e300);
    case 4: return json_boolean(next(random) % 2);
    case 5: return json_string(texts[next(random) % COUNT_OF(texts)]);
    default: return json_integer(integers[next(random) % COUNT_OF(integers)]);
    }
}

/* Walks down at random and changes one member there: removed, replaced by something odd, or by a neighbour. */
static void damage(json_t *at, uint64_t *random) {
    for (;;) {
        size_t size = json_is_object(at) ? json_object_size(at) : json_array_size(at);
        if (size == 0) return;
        size_t index = next(random) % size;
        void *iterator = json_object_iter(at);
        for (size_t i = 0; i < index && iterator != NULL; i++) iterator = json_object_iter_next(at, iterator);
        json_t *child = json_is_object(at) ? json_object_iter_value(iterator) : json_array_get(at, index);
        bool inner = json_is_object(child) || json_is_array(child);
        if (inner && next(random) % 16 != 0) {
            at = child;
            continue;
        }
        char key[128];
        snprintf(key, sizeof key, "%s", json_is_object(at) ? json_object_iter_key(iterator) : "");
        uint64_t kind = next(random) % 4;
        json_t *value = kind == 0 ? NULL : kind == 1 && json_is_array(at) ? json_incref(json_array_get(at, next(random) % size)) : odd_value(random);
        if (json_is_array(at) && value == NULL) json_array_remove(at, index);
        else if (json_is_array(at)) json_array_set_new(at, index, value);
        else if (value == NULL) json_object_del(at, key);
        else json_object_set_new(at, key, value);
        return;
    }
}

static void programs_damaged_anywhere_are_errors_or_other_programs(void **state) {
    fixture *f = *state;
    arena arena;
    zip_archive archive;
    arena_init(&arena, f->context);
    assert_int_equal(zip_open(f->context, "small", f->file.bytes, f->file.length, &arena, &archive), DW_OK);
    const zip_entry *entry = zip_find(&archive, "small/models/model.json");
    assert_non_null(entry);
    json_t *whole = json_loadb((const char *)entry->bytes, entry->length, 0, NULL);
    assert_non_null(whole);
    uint64_t random = 7;
    int captured = 0;
    for (int i = 0; i < 1500; i++) {
        json_t *copy = json_deep_copy(whole);
        /* mostly in the graph: elsewhere little is read */
        json_t *graph = json_object_get(json_object_get(copy, "graph_module"), "graph");
        for (int times = 0; times < 1 + i % 3; times++) damage(i % 8 == 0 ? copy : graph, &random);
        char *printed = json_dumps(copy, JSON_COMPACT);
        text made;
        text_init(&made, f->context);
        archive_change change = {.name = "models/model.json", .contents = printed};
        archive_rebuild(f->context, f->file.bytes, f->file.length, 1, &change, &made);
        captured += read_bytes(f->context, made.bytes, made.length) == DW_OK;
        text_free(&made);
        free(printed);
        json_decref(copy);
    }
    assert_in_range(captured, 50, 1450);    /* both kinds occur, or nothing was tested */
    json_decref(whole);
    arena_free(&arena);
}

/* ---- memory ---- */

static dw_status capture_small(dw_context *context, void *argument) {
    (void)argument;
    ir_weights weights;
    ir_graph *graph;
    ir_weights_init(&weights, context);
    dw_status status = capture_pt2(context, small_path, NULL, &weights, &graph);
    ir_graph_destroy(graph);
    ir_weights_free(&weights);
    return status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    test_every_allocation(capture_small, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_whole_archive_is_captured, open_small, close_small),
        cmocka_unit_test_setup_teardown(an_archive_truncated_anywhere_is_an_error, open_small, close_small),
        cmocka_unit_test_setup_teardown(flipped_bits_are_errors_or_another_program, open_small, close_small),
        cmocka_unit_test_setup_teardown(entries_that_cannot_be_mapped_are_refused, open_small, close_small),
        cmocka_unit_test_setup_teardown(checksums_are_compared, open_small, close_small),
        cmocka_unit_test_setup_teardown(other_archives_are_told_apart, open_small, close_small),
        cmocka_unit_test_setup_teardown(weights_that_lie_are_refused, open_small, close_small),
        cmocka_unit_test_setup_teardown(written_buffers_that_share_memory_are_refused, open_small, close_small),
        cmocka_unit_test(overlap_is_of_elements),
        cmocka_unit_test_setup_teardown(programs_that_do_not_hold_together_are_refused, open_small, close_small),
        cmocka_unit_test_setup_teardown(what_is_not_supported_is_listed_at_once, open_small, close_small),
        cmocka_unit_test_setup_teardown(deep_nesting_is_an_error, open_small, close_small),
        cmocka_unit_test_setup_teardown(guards_bound_and_unite_sizes_and_hurt_nothing, open_small, close_small),
        cmocka_unit_test_setup_teardown(programs_damaged_anywhere_are_errors_or_other_programs, open_small, close_small),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
