/* An exported program in memory over tensors in memory is the graph of the archive that holds both. */
#include "support/support.h"

#include <string.h>

#include "capture/capture.h"
#include "capture/zip.h"
#include "deepwell/deepwell.h"

enum { MOST = 64 };

static const char small_path[] = TEST_SOURCE_DIR "/tests/capture/cases/small.pt2";

/* The archive taken apart: its program and its tensors. */
typedef struct fixture {
    test_memory memory;
    dw_context *context;
    arena arena;
    file_map file;
    ir_weights weights;
    ir_graph *graph;
    const zip_entry *program;
    dw_named_tensor tensors[MOST];
    int count;
} fixture;

static int take_apart(void **state) {
    static fixture f;
    zip_archive zip;
    f = (fixture){.count = 0};
    f.context = test_context_create(&f.memory, 1);
    arena_init(&f.arena, f.context);
    ir_weights_init(&f.weights, f.context);
    *state = &f;
    if (file_map_open(f.context, small_path, &f.file) != DW_OK) return -1;
    if (zip_open(f.context, small_path, f.file.bytes, f.file.length, &f.arena, &zip) != DW_OK) return -1;
    for (size_t i = 0; i < zip.count; i++)
        if (strstr(zip.entries[i].name, "/models/") != NULL) f.program = &zip.entries[i];
    if (f.program == NULL || capture_pt2(f.context, small_path, NULL, &f.weights, &f.graph) != DW_OK || f.weights.by_name.count > MOST) return -1;
    for (size_t i = 0; i < f.weights.by_name.count; i++) {
        const ir_weight *weight = f.weights.by_name.entries[i].value;
        f.tensors[f.count++] = (dw_named_tensor){weight->name, weight->tensor};
    }
    return f.count > 1 ? 0 : -1;
}

static int put_away(void **state) {
    fixture *f = *state;
    ir_graph_destroy(f->graph);
    ir_weights_free(&f->weights);
    file_map_close(&f->file);
    arena_free(&f->arena);
    dw_context_destroy(f->context);
    return f->memory.live_count == 0 ? 0 : -1;
}

static dw_status make(fixture *f, int count, dw_graph **graph) {
    return dw_graph_program(f->context, "a module", (const char *)f->program->bytes, f->program->length, count, f->tensors, NULL, graph);
}

static void gather(void *user, const char *piece, size_t length) { text_add_n(user, piece, length); }

static void is_the_same_as(fixture *f, const dw_graph *graph) {
    text expected, made;
    text_init(&expected, f->context);
    text_init(&made, f->context);
    assert_int_equal(dw_graph_print(f->graph, gather, &expected), DW_OK);
    assert_int_equal(dw_graph_print(graph, gather, &made), DW_OK);
    assert_true(expected.length > 100);
    assert_string_equal(text_string(&made), text_string(&expected));
    text_free(&made);
    text_free(&expected);
}

static void a_program_in_memory_is_the_archives_graph(void **state) {
    fixture *f = *state;
    dw_graph *graph;
    assert_int_equal(make(f, f->count, &graph), DW_OK);
    is_the_same_as(f, graph);
    for (size_t i = 0; i < graph->param_count; i++)
        assert_ptr_equal(graph->params[i]->weight->tensor.data, ir_weights_find(&f->weights, graph->params[i]->weight->name)->tensor.data);
    dw_graph_destroy(graph);
}

static void a_file_is_opened_with_its_weights(void **state) {
    fixture *f = *state;
    dw_graph *graph;
    assert_int_equal(dw_graph_open(f->context, small_path, &graph), DW_OK);
    is_the_same_as(f, graph);
    dw_graph_destroy(graph);
    test_assert_fails(f->context, dw_graph_open(f->context, "/nowhere/x.pt2", &graph), DW_NOT_FOUND, "/nowhere/x.pt2");
    assert_null(graph);
}

static void a_model_of_a_program_keeps_the_graphs_weights(void **state) {
    fixture *f = *state;
    dw_graph *graph;
    dw_model *model;
    dw_session *session;
    assert_int_equal(make(f, f->count, &graph), DW_OK);
    assert_int_equal(dw_model_create(f->context, graph, NULL, &model), DW_OK);
    assert_int_equal(dw_session_create(f->context, model, NULL, &session), DW_OK);
    dw_session_destroy(session);
    dw_model_destroy(model);
}

static void inputs_and_outputs_are_told(void **state) {
    fixture *f = *state;
    const char *name, *expected;
    char type[64];
    dw_model *model;
    assert_int_equal(dw_model_open(f->context, small_path, NULL, &model), DW_OK);
    assert_int_equal(dw_graph_input_count(f->graph), dw_model_input_count(model));
    assert_int_equal(dw_graph_output_count(f->graph), dw_model_output_count(model));
    assert_int_equal(dw_graph_input_at(f->graph, 0, &name, type, sizeof type), DW_OK);
    assert_string_equal(name, dw_model_input(model, 0, &expected));
    assert_string_equal(type, expected);
    assert_int_equal(dw_graph_output_at(f->graph, 0, &name, type, sizeof type), DW_OK);
    assert_string_equal(name, dw_model_output(model, 0, &expected));
    test_assert_fails(f->context, dw_graph_input_at(f->graph, 0, &name, type, 3), DW_LIMIT, "there are 3");
    test_assert_fails(f->context, dw_graph_input_at(f->graph, -1, &name, type, sizeof type), DW_INVALID, "none of index -1");
    test_assert_fails(f->context, dw_graph_output_at(f->graph, 99, &name, type, sizeof type), DW_INVALID, "none of index 99");
    dw_model_destroy(model);
}

static void what_does_not_fit_the_program_is_refused(void **state) {
    fixture *f = *state;
    dw_graph *graph;
    dw_named_tensor kept = f->tensors[0];
    f->tensors[0].tensor.dims[0] += 1;
    test_assert_fails(f->context, make(f, f->count, &graph), DW_CORRUPT, kept.name);
    assert_null(graph);
    f->tensors[0] = kept;
    f->tensors[0].tensor.strides[0] = -1;
    test_assert_fails(f->context, make(f, f->count, &graph), DW_INVALID, "negative");
    f->tensors[0] = kept;
    f->tensors[0].tensor.data = NULL;
    test_assert_fails(f->context, make(f, f->count, &graph), DW_INVALID, "no memory");
    f->tensors[0] = kept;
    f->tensors[0].tensor.rank = DW_MAX_RANK + 1;
    test_assert_fails(f->context, make(f, f->count, &graph), DW_INVALID, "rank 9");
    f->tensors[0] = f->tensors[1];
    test_assert_fails(f->context, make(f, f->count, &graph), DW_INVALID, "already");
    f->tensors[0] = kept;
    test_assert_fails(f->context, make(f, 0, &graph), DW_NOT_FOUND, "weight");
    test_assert_fails(f->context, dw_graph_program(f->context, "a module", "[]", 2, 0, NULL, NULL, &graph), DW_CORRUPT, "a module");
}

static dw_status make_again(dw_context *context, void *argument) {
    fixture *f = argument;
    dw_graph *graph;
    TRY(dw_graph_program(context, "a module", (const char *)f->program->bytes, f->program->length, f->count, f->tensors, NULL, &graph));
    dw_graph_destroy(graph);
    return DW_OK;
}

static void every_allocation_may_fail(void **state) { test_every_allocation(make_again, *state); }

static void a_text_takes_tensors_by_name(void **state) {
    fixture *f = *state;
    static const char words[] = "graph t\n  input x f32[2]\n  param w f32[2]\n  state n f32[2]\n  %1 = add x, w\n  %2 = add n, %1\n  next n %2\n  output y %2\n";
    float w[] = {10, 20}, n[] = {1, 2}, x[] = {0.5f, 0.25f}, y[2];
    dw_tensor two = {.format = DW_FORMAT_f32, .rank = 1, .dims = {2}, .strides = {1}};
    dw_named_tensor given[] = {{"w", two}, {"n", two}}, in = {"x", two}, out = {"y", two}, wrong = {"x", two};
    dw_graph *graph;
    dw_model *model;
    dw_session *session;
    given[0].tensor.data = w;
    given[1].tensor.data = n;
    in.tensor.data = x;
    out.tensor.data = y;
    assert_int_equal(dw_graph_parse(f->context, "t", words, strlen(words), &graph), DW_OK);
    test_assert_fails(f->context, dw_graph_bind(graph, 1, &wrong), DW_NOT_FOUND, "no param or state named 'x'");
    given[0].tensor.format = DW_FORMAT_bf16;
    test_assert_fails(f->context, dw_graph_bind(graph, 1, given), DW_MISMATCH, "'w'");
    given[0].tensor.format = DW_FORMAT_f32;
    assert_int_equal(dw_graph_bind(graph, 2, given), DW_OK);
    assert_int_equal(dw_model_create(f->context, graph, NULL, &model), DW_OK);
    assert_int_equal(dw_session_create(f->context, model, NULL, &session), DW_OK);
    assert_int_equal(dw_session_run(session, 1, &in, 1, &out), DW_OK);
    assert_true(y[0] == 11.5f && y[1] == 22.25f);
    dw_session_destroy(session);
    dw_model_destroy(model);
}

/* Caches as inputs: attention(q [2,4,1,8], k [2,4,<keys>,8], v [2,4,<values>,8]). */
static dw_status attend(fixture *f, const char *keys, const char *values, dw_graph **graph) {
    text words;
    text_init(&words, f->context);
    static const char *const names[] = {"q", "k", "v", "y"};
    const char *const lengths[] = {"{\"as_int\":1}", keys, values, "{\"as_int\":1}"};
    text_add(&words, "{\"schema_version\":{\"major\":8,\"minor\":17},\"range_constraints\":{},\"guards_code\":[],\"graph_module\":{\"graph\":{\"tensor_values\":{");
    for (int i = 0; i < 4; i++)
        text_printf(&words, "%s\"%s\":{\"dtype\":7,\"sizes\":[{\"as_int\":2},{\"as_int\":4},%s,{\"as_int\":8}]}", i ? "," : "", names[i], lengths[i]);
    text_add(&words, "},\"nodes\":[{\"target\":\"torch.ops.aten.scaled_dot_product_attention.default\",\"inputs\":["
                     "{\"name\":\"query\",\"arg\":{\"as_tensor\":{\"name\":\"q\"}}},{\"name\":\"key\",\"arg\":{\"as_tensor\":{\"name\":\"k\"}}},"
                     "{\"name\":\"value\",\"arg\":{\"as_tensor\":{\"name\":\"v\"}}}],\"outputs\":[{\"as_tensor\":{\"name\":\"y\"}}],\"metadata\":{}}]},"
                     "\"signature\":{\"input_specs\":[");
    for (int i = 0; i < 3; i++) text_printf(&words, "%s{\"user_input\":{\"arg\":{\"as_tensor\":{\"name\":\"%s\"}}}}", i ? "," : "", names[i]);
    text_add(&words, "],\"output_specs\":[{\"user_output\":{\"arg\":{\"as_tensor\":{\"name\":\"y\"}}}}]}}}");
    assert_int_equal(text_status(&words), DW_OK);
    dw_status status = dw_graph_program(f->context, "caches", text_string(&words), words.length, 0, NULL, NULL, graph);
    text_free(&words);
    return status;
}

#define SYMBOL(name) "Symbol('" name "', integer=True, positive=True)"
#define SIZE(expression) "{\"as_expr\":{\"expr_str\":\"" expression "\"}}"

static void lengths_of_keys_and_values_are_one(void **state) {
    fixture *f = *state;
    dw_graph *graph;
    char keys[64], values[64];
    assert_int_equal(attend(f, SIZE(SYMBOL("s1")), SIZE(SYMBOL("s2")), &graph), DW_OK);
    assert_int_equal(dw_graph_input_at(graph, 1, &(const char *){NULL}, keys, sizeof keys), DW_OK);
    assert_int_equal(dw_graph_input_at(graph, 2, &(const char *){NULL}, values, sizeof values), DW_OK);
    assert_string_equal(keys, values);
    dw_graph_destroy(graph);
    /* Sums of the same symbols, one by another in its place. */
    assert_int_equal(attend(f, SIZE("Add(" SYMBOL("s1") ", " SYMBOL("s3") ")"), SIZE("Add(" SYMBOL("s0") ", " SYMBOL("s3") ")"), &graph), DW_OK);
    dw_graph_destroy(graph);
    /* A length and twice another are told apart by nothing here: that is an error, not a guess. */
    test_assert_fails(f->context, attend(f, SIZE("Mul(Integer(2), " SYMBOL("s1") ")"), SIZE(SYMBOL("s2")), &graph), DW_MISMATCH, "attention");
    test_assert_fails(f->context, attend(f, SIZE(SYMBOL("s1")), "{\"as_int\":7}", &graph), DW_MISMATCH, "attention");
}

#define HINTED(expression, hint) "{\"as_expr\":{\"expr_str\":\"" expression "\",\"hint\":" hint "}}"
#define LENGTH(hint) HINTED(SYMBOL("s1"), hint)
#define EIGHTS(hint) HINTED("Mul(Integer(8), " SYMBOL("s1") ")", hint)
#define ONE_MORE(hint) HINTED("Add(" SYMBOL("s1") ", Integer(1))", hint)

/* A hint is what a file says: what is no size says nothing, and of two that differ the first counts. */
static void sizes_of_the_example_are_noted(void **state) {
    fixture *f = *state;
    static const struct { const char *keys, *values, *note; } cases[] = {
        {LENGTH("{\"as_int\":512}"), LENGTH("{\"as_int\":512}"), "h=512"},
        {LENGTH("{\"as_int\":512}"), HINTED(SYMBOL("s2"), "{\"as_int\":512}"), "h=512"},
        {LENGTH("{\"as_int\":512}"), LENGTH("{\"as_int\":700}"), "h=512"},
        {SIZE(SYMBOL("s1")), LENGTH("{\"as_int\":700}"), "h=700"},
        {EIGHTS("{\"as_int\":512}"), EIGHTS("{\"as_int\":512}"), "h=64"},
        {EIGHTS("{\"as_int\":513}"), EIGHTS("{\"as_int\":513}"), NULL},
        {ONE_MORE("{\"as_int\":513}"), ONE_MORE("{\"as_int\":513}"), NULL},
        {LENGTH("null"), LENGTH("7"), NULL},
        {LENGTH("{}"), LENGTH("[]"), NULL},
        {LENGTH("{\"as_int\":null}"), LENGTH("{\"as_int\":\"512\"}"), NULL},
        {LENGTH("{\"as_int\":0}"), LENGTH("{\"as_int\":-512}"), NULL},
        {LENGTH("{\"as_float\":512.0}"), LENGTH("{\"as_bool\":true}"), NULL},
        {LENGTH("{\"as_int\":512.0}"), LENGTH("{\"as_int\":9223372036854775807}"), NULL},
        {LENGTH("{\"as_int\":1073741824}"), LENGTH("{\"as_int\":512}"), "h=1073741824"},
        {LENGTH("{\"as_int\":1073741825}"), LENGTH("{\"as_int\":512}"), "h=512"},
        {"{\"as_int\":7,\"hint\":{\"as_int\":9}}", "{\"as_int\":7}", NULL},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        dw_graph *graph;
        assert_int_equal(attend(f, cases[i].keys, cases[i].values, &graph), DW_OK);
        const char *note = map_find(&graph->notes, IR_NOTE_EXAMPLE);
        if (cases[i].note == NULL ? note != NULL : note == NULL || strcmp(note, cases[i].note) != 0) fail_msg("%s: the note is %s", cases[i].keys, note != NULL ? note : "none");
        dw_graph_destroy(graph);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_program_in_memory_is_the_archives_graph), cmocka_unit_test(a_file_is_opened_with_its_weights),
        cmocka_unit_test(a_model_of_a_program_keeps_the_graphs_weights), cmocka_unit_test(inputs_and_outputs_are_told),
        cmocka_unit_test(what_does_not_fit_the_program_is_refused), cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_text_takes_tensors_by_name),                 cmocka_unit_test(lengths_of_keys_and_values_are_one),
        cmocka_unit_test(sizes_of_the_example_are_noted),
    };
    return cmocka_run_group_tests(tests, take_apart, put_away);
}
