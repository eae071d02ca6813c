/* Compiled packages run as what they were made from, bit for bit; and broken ones are refused with file, place and cause. */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "deepwell/tensors.h"
#include "support/session.h"

static const char CARRIED[] = TEST_SOURCE_DIR "/models/kjv.pt2";

static char *path_of(const char *name) {
    static char paths[4][512];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/tests/package-%ld-%s", TEST_BUILD_DIR, (long)getpid(), name);
    return path;
}

static uint8_t *read_all(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *length = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(*length + 1);
    assert_int_equal(fread(bytes, 1, *length, file), *length);
    fclose(file);
    return bytes;
}

static void write_all(const char *path, const uint8_t *bytes, size_t length) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    fclose(file);
}

/* ---- the same bits ---- */

enum { ROWS = 2, LENGTH = 19, VOCABULARY = 256, NEW = 8 };
typedef struct results { float logits[ROWS * LENGTH * VOCABULARY]; int64_t ids[NEW]; } results;

static void use(dw_context *context, const dw_model *model, results *results) {
    int64_t ids[ROWS * LENGTH], made;
    dw_named_tensor in = {.name = dw_model_input(model, 0, NULL)}, out = {.name = dw_model_output(model, 0, NULL)};
    dw_session *session;
    for (int i = 0; i < ROWS * LENGTH; i++) ids[i] = "And God said, Let there be light: and "[i % 38];
    assert_true(op_tensor_init(&in.tensor, DW_FORMAT_i64, DW_SCALE_plain, 2, (int64_t[]){ROWS, LENGTH}, ids));
    assert_true(op_tensor_init(&out.tensor, DW_FORMAT_f32, DW_SCALE_plain, 3, (int64_t[]){ROWS, LENGTH, VOCABULARY}, results->logits));
    assert_ok(context, dw_session_create(context, model, &(dw_session_options){.dims = "b=2,s=19", .max_tokens = 40}, &session));
    assert_ok(context, dw_session_run(session, 1, &in, 1, &out));
    assert_ok(context, dw_session_generate(session, LENGTH, ids, &(dw_generate_options){.tokens = NEW}, results->ids, &made, NULL));
    assert_int_equal(made, NEW);
    dw_session_destroy(session);
}

static void a_package_runs_as_its_archive_in_every_precision(void **state) {
    static const char *const precisions[] = {NULL, "fp32", "bf16", "fp8", "mxfp8", "mxfp4", "nvfp4", "mxfp8-weights", "nvfp4-weights"};
    static results expected, found;
    dw_context *context = *state, *other;
    const char *path = path_of("same.dw");
    for (size_t i = 0; i < COUNT_OF(precisions); i++) {
        dw_model *model;
        assert_ok(context, dw_model_open(context, CARRIED, &(dw_model_options){.precision = precisions[i], .flags = DW_MODEL_GENERATE}, &model));
        use(context, model, &expected);
        assert_ok(context, dw_model_save(model, path));
        uint64_t bytes = dw_model_weight_bytes(model);
        dw_model_destroy(model);
        assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &other), DW_OK);   /* more or fewer threads matter not */
        assert_ok(other, dw_model_open(other, path, &(dw_model_options){.flags = DW_MODEL_GENERATE}, &model));
        use(other, model, &found);
        if (memcmp(&expected, &found, sizeof found) != 0) fail_msg("in %s the package gives other bits", precisions[i] ? precisions[i] : "the exported precision");
        assert_int_equal(dw_model_weight_bytes(model), bytes);
        assert_string_equal(dw_model_note(model, "tokenizer"), "bytes");
        dw_model_destroy(model);
        dw_context_destroy(other);
    }
    unlink(path);
}

/* Weights are used where the file is mapped: what is allocated to open, make a session and run is the session's workspace and a fixed amount, less than any
 * copy of the weights would be. (On GPT-2 of 124 million parameters it is 2 MB beside 130 to 490 MB of weights.) */
static void a_package_runs_in_its_workspace_and_little_more(void **state) {
    static const char *const precisions[] = {"fp32", "bf16", "fp8", "mxfp8", "mxfp4", "nvfp4"};
    const uint64_t little = 1 << 20;
    static results found;
    const char *path = path_of("small.dw");
    for (size_t i = 0; i < COUNT_OF(precisions); i++) {
        dw_model *model;
        dw_session *session;
        assert_ok(*state, dw_model_open(*state, CARRIED, &(dw_model_options){.precision = precisions[i]}, &model));
        assert_ok(*state, dw_model_save(model, path));
        dw_model_destroy(model);
        test_memory memory = {0};
        dw_context *context = test_context_create(&memory, 2);
        assert_ok(context, dw_model_open(context, path, NULL, &model));
        int64_t ids[ROWS * LENGTH] = {0};
        dw_named_tensor in = {.name = dw_model_input(model, 0, NULL)}, out = {.name = dw_model_output(model, 0, NULL)};
        assert_true(op_tensor_init(&in.tensor, DW_FORMAT_i64, DW_SCALE_plain, 2, (int64_t[]){ROWS, LENGTH}, ids));
        assert_true(op_tensor_init(&out.tensor, DW_FORMAT_f32, DW_SCALE_plain, 3, (int64_t[]){ROWS, LENGTH, VOCABULARY}, found.logits));
        assert_ok(context, dw_session_create(context, model, &(dw_session_options){.dims = "b=2,s=19"}, &session));
        assert_ok(context, dw_session_run(session, 1, &in, 1, &out));
        uint64_t workspace = dw_session_workspace_bytes(session), weights = dw_model_weight_bytes(model);
        print_message("%s: %zu bytes allocated, %llu of them workspace; %llu of weights\n", precisions[i], memory.peak_bytes, (unsigned long long)workspace,
                      (unsigned long long)weights);
        assert_true(weights > little);
        assert_true(memory.peak_bytes <= workspace + little);
        dw_session_destroy(session);
        dw_model_destroy(model);
        dw_context_destroy(context);
    }
    unlink(path);
}

static void a_package_of_a_package_is_the_same_file(void **state) {
    dw_context *context = *state;
    dw_model *model;
    char *one = path_of("one.dw"), *two = path_of("two.dw");
    size_t first_length, second_length;
    const dw_model_options options = {.flags = DW_MODEL_GENERATE};
    assert_ok(context, dw_model_open(context, CARRIED, &options, &model));
    assert_ok(context, dw_model_save(model, one));
    dw_model_destroy(model);
    assert_ok(context, dw_model_open(context, one, &options, &model));
    assert_ok(context, dw_model_save(model, two));
    dw_model_destroy(model);
    uint8_t *first = read_all(one, &first_length), *second = read_all(two, &second_length);
    assert_int_equal(first_length, second_length);
    assert_memory_equal(first, second, first_length);
    free(first);
    free(second);
    unlink(one);
    unlink(two);
}

static void states_begin_in_a_package_as_in_the_model(void **state) {
    dw_context *context = *state;
    static const char text[] = "graph g\n  input x f32[2]\n  state k f32[2]\n  %1 = add k, x\n  next k %1\n  output y %1\n";
    char *graph = path_of("state.txt"), *weights = path_of("state.safetensors"), *package = path_of("state.dw");
    float begin[2] = {10, 20}, x[2] = {1, 2}, y[2];
    dw_named_tensor k = {"k", {0}}, in = {"x", {0}}, out = {"y", {0}};
    dw_named_tensor *all[] = {&k, &in, &out};
    float *memory[] = {begin, x, y};
    dw_model *model;
    for (int i = 0; i < 3; i++) assert_true(op_tensor_init(&all[i]->tensor, DW_FORMAT_f32, DW_SCALE_plain, 1, (int64_t[]){2}, memory[i]));
    write_all(graph, (const uint8_t *)text, strlen(text));
    assert_ok(context, dw_tensors_write(context, weights, 1, &k));
    assert_ok(context, dw_model_open(context, graph, &(dw_model_options){.weights = weights}, &model));
    assert_ok(context, dw_model_save(model, package));
    dw_model_destroy(model);
    unlink(weights);
    assert_ok(context, dw_model_open(context, package, NULL, &model));
    dw_session *session = session_of(context, model, NULL);
    for (int turn = 1; turn <= 2; turn++) {
        assert_ok(context, dw_session_run(session, 1, &in, 1, &out));
        assert_true(y[0] == (float)(10 + turn) && y[1] == (float)(20 + 2 * turn));
    }
    dw_session_destroy(session);
    dw_model_destroy(model);
    unlink(graph);
    unlink(package);
}

/* ---- broken files ---- */

static const char SMALL[] =
    "graph small\n  symbol s 1..8\n  input x f32[s,4]\n  const w f32[8,4] = 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16\n"
    "  const c f32[8] = 1,2,3,4,5,6,7,8\n  state k f32[2,8]\n  %1 = matmul x, w {bt=true}\n  %2 = exp c\n  %3 = add %1, %2\n  %4 = slice %3 {axis=0,start=0,end=1,step=1}\n"
    "  %5 = slice_scatter k, %4 {axis=0,start=1,step=1}\n  %6 = transpose %3 {order=[1,0]}\n  %7 = softmax %6 {axis=1}\n  next k %5\n  output y %7\n  output z %5\n";

/* The package of a small graph with all kinds of constants, in memory. */
static uint8_t *small_package(dw_context *context, size_t *length) {
    char *path = path_of("small.dw");
    dw_model *model = model_of_text(context, SMALL, NULL);
    assert_ok(context, dw_model_save(model, path));
    dw_model_destroy(model);
    uint8_t *bytes = read_all(path, length);
    unlink(path);
    return bytes;
}

/* Opens it and, when that works, runs it: whatever a file says, nothing is read or written outside of what is ours. */
static dw_status try_package(dw_context *context, const char *path) {
    dw_model *model;
    dw_status status = dw_model_open(context, path, &(dw_model_options){.flags = DW_MODEL_GENERATE}, &model);
    if (status != DW_OK) {
        assert_null(model);
        assert_non_null(strstr(dw_context_error(context), path));
        return status;
    }
    dw_session *session;
    if (dw_session_create(context, model, &(dw_session_options){.dims = NULL}, &session) == DW_OK) {
        const ir_graph *graph = model->full.plan->graph;
        int64_t symbols[8];
        assert_true(dim_symbol_count(graph->dims) <= 8);
        for (int i = 0; i < dim_symbol_count(graph->dims); i++) symbols[i] = model->full.plan->typical[i];
        run_io io;
        run_io_create(&io, graph, symbols, RUN_SMALL_INTEGERS, 1);
        run_io_add_outputs(&io, session);
        dw_status ran = dw_session_run(session, io.input_count, io.inputs, io.output_count, io.outputs);
        (void)ran;   /* a plan that was tampered with may refuse */
        run_io_free(&io);
        dw_session_destroy(session);
    }
    dw_model_destroy(model);
    return DW_OK;
}

static void a_truncated_package_is_refused(void **state) {
    dw_context *context = *state;
    size_t length;
    uint8_t *bytes = small_package(context, &length);
    char *path = path_of("cut.dw");
    for (size_t cut = 8; cut < length; cut += cut < 400 || cut + 200 > length ? 1 : 37) {
        write_all(path, bytes, cut);
        dw_status status = try_package(context, path);
        if (status != DW_CORRUPT) fail_msg("cut at %zu of %zu: %s: %s", cut, length, dw_status_name(status), dw_context_error(context));
    }
    bytes = realloc(bytes, length + 3);
    write_all(path, bytes, length + 3);
    test_assert_fails(context, try_package(context, path), DW_CORRUPT, "the sums of constants, with which it ends");
    unlink(path);
    free(bytes);
}

static void a_changed_header_is_refused(void **state) {
    dw_context *context = *state;
    size_t length;
    uint8_t *bytes = small_package(context, &length);
    char *path = path_of("changed.dw");
    for (size_t at = 8; at < 600; at += at < 40 ? 1 : 7) {
        if (at >= 12 && at < 16) continue;   /* reserved */
        bytes[at] ^= (uint8_t)(1 << at % 8);
        write_all(path, bytes, length);
        dw_status status = try_package(context, path);
        if (status != DW_CORRUPT && status != DW_MISMATCH) fail_msg("byte %zu changed: %s: %s", at, dw_status_name(status), dw_context_error(context));
        bytes[at] ^= (uint8_t)(1 << at % 8);
    }
    bytes[8] = 9;
    write_all(path, bytes, length);
    test_assert_fails(context, try_package(context, path), DW_MISMATCH, "version 9 of the package format");
    unlink(path);
    free(bytes);
}

typedef struct span { size_t begin, end; } span;

/* Where constants' bytes lie, by the header's lines. */
static int spans_of(const uint8_t *bytes, size_t header, span *spans, int most) {
    char *text = calloc(1, header + 1);
    const size_t data = (32 + header + 63) / 64 * 64;
    int count = 0;
    memcpy(text, bytes + 32, header);
    for (const char *line = text; (line = strstr(line, "\nconstant \"")) != NULL && count < most; line++) {
        size_t begin, length;
        const char *rest = strstr(line + 11, "\" p");      /* plain, packed */
        assert_non_null(rest);
        assert_int_equal(sscanf(rest + 2, "%*s all %zu %zu", &begin, &length), 2);
        spans[count++] = (span){data + begin, data + begin + length};
    }
    free(text);
    return count;
}

/* Bits of constants and of the sums; what pads between them is nobody's. Who plans alone reads no constant. */
static void a_changed_constant_is_refused(void **state) {
    dw_context *context = *state;
    span spans[16];
    size_t length, header = 0, tried = 0;
    uint8_t *bytes = small_package(context, &length);
    for (int i = 0; i < 4; i++) header |= (size_t)bytes[16 + i] << 8 * i;
    int count = spans_of(bytes, header, spans, 15);
    assert_true(count > 1);
    spans[count] = (span){length - 8 * (size_t)(count + 1), length};      /* the sums */
    char *path = path_of("bits.dw");
    for (int i = 0; i <= count; i++)
        for (size_t at = spans[i].begin; at < spans[i].end; at += 5, tried++) {
            dw_model *model;
            bytes[at] ^= (uint8_t)(1 << at % 8);
            write_all(path, bytes, length);
            test_assert_fails(context, try_package(context, path), DW_CORRUPT, "not those that were written");
            if (i < count) {
                assert_ok(context, dw_model_open(context, path, &(dw_model_options){.flags = DW_MODEL_PLAN_ONLY}, &model));
                dw_model_destroy(model);
            }
            bytes[at] ^= (uint8_t)(1 << at % 8);
        }
    assert_true(tried > 100);
    unlink(path);
    free(bytes);
}

/* Writes the package with its header changed and its checksum made good again. */
static dw_status try_header(dw_context *context, const uint8_t *bytes, size_t length) {
    enum { HEAD = 32 };
    uint8_t *changed = malloc(length);
    char *path = path_of("forged.dw");
    memcpy(changed, bytes, length);
    uint64_t header = 0, hash;
    for (int i = 0; i < 8; i++) header |= (uint64_t)bytes[16 + i] << 8 * i;
    hash = base_hash(changed + HEAD, (size_t)header, 0);
    for (int i = 0; i < 8; i++) changed[24 + i] = (uint8_t)(hash >> 8 * i);
    write_all(path, changed, length);
    dw_status status = try_package(context, path);
    unlink(path);
    free(changed);
    return status;
}

static void a_forged_header_breaks_nothing(void **state) {
    dw_context *context = *state;
    static const char digits[] = "0123456789xyz[]\"\n -,=";
    size_t length;
    int refused = 0, tried = 0;
    uint8_t *bytes = small_package(context, &length);
    size_t header = 0;
    for (int i = 0; i < 4; i++) header |= (size_t)bytes[16 + i] << 8 * i;
    for (uint64_t i = 0; i < 1000; i++) {
        size_t at = 32 + num_random(5, i) % header;
        uint8_t kept = bytes[at];
        bytes[at] = (uint8_t)digits[num_random(6, i) % (sizeof digits - 1)];
        if (bytes[at] != kept) {
            tried++;
            refused += try_header(context, bytes, length) != DW_OK;
        }
        bytes[at] = kept;
    }
    assert_true(refused > tried / 2);
    free(bytes);
}

typedef struct forgery { const char *from, *to, *message; dw_status status; } forgery;

/* Text of the header, of equal length, changed to something that is well formed and wrong. */
static void forged_headers_are_refused_with_their_cause(void **state) {
    dw_context *context = *state;
    static const forgery forgeries[] = {
        {" all 0 ", " any 0 ", "a constant is neither all ranks' nor each one's", DW_CORRUPT},
        {"ranks 1", "ranks 7", "is compiled for 7 ranks (tp=7), and there is 1", DW_MISMATCH},
        {"ranks 1", "ranks 0", "it is for no rank", DW_CORRUPT},
        {" all 0 ", " all 9 ", "does not begin where the one before it ends", DW_CORRUPT},
        {" f32 0 1 8\n", " f32 0 1 7\n", "a constant's bytes do not fit its type", DW_CORRUPT},
        {" f32 0 1 8\n", " i64 0 1 4\n", "a constant has another shape than the plan says", DW_CORRUPT},
        {"\"exp:", "\"exq:", "a constant that the plan reads is missing", DW_CORRUPT},
        {"full ", "foll ", "expected 'full'", DW_SYNTAX},
        {"cpu", "gpu", "is no graph", DW_OK},   /* the name of the chip is for people */
        {"steps\n", "stops\n", "expected", DW_SYNTAX},
        {"softmax", "sofimax", "sofimax", DW_SYNTAX},
    };
    size_t length;
    uint8_t *bytes = small_package(context, &length);
    for (size_t i = 0; i < COUNT_OF(forgeries); i++) {
        const forgery *f = &forgeries[i];
        size_t size = strlen(f->from), at = 32;
        assert_int_equal(size, strlen(f->to));
        while (at + size < length && memcmp(bytes + at, f->from, size) != 0) at++;
        if (at + size >= length) fail_msg("'%s' is not in the header", f->from);
        memcpy(bytes + at, f->to, size);
        dw_status status = try_header(context, bytes, length);
        if (f->status != DW_OK) test_assert_fails(context, status, f->status, f->message);
        else assert_ok(context, status);
        memcpy(bytes + at, f->from, size);
    }
    free(bytes);
}

/* ---- what a package cannot do ---- */

static void a_package_refuses_what_it_has_settled(void **state) {
    dw_context *context = *state;
    char *path = path_of("settled.dw");
    dw_model *model = model_of_text(context, SMALL, NULL), *none;
    assert_ok(context, dw_model_save(model, path));
    dw_model_destroy(model);
    test_assert_fails(context, dw_model_open(context, path, &(dw_model_options){.precision = "nvfp4"}, &none), DW_INVALID, "its precision is settled");
    test_assert_fails(context, dw_model_open(context, path, &(dw_model_options){.kernels = "matmul=reference_matmul"}, &none), DW_INVALID, "its kernels");
    test_assert_fails(context, dw_model_open(context, path, &(dw_model_options){.device = "cpu:portable"}, &none), DW_MISMATCH, "compile it again");
    unlink(path);
}

static void a_failed_save_leaves_no_file(void **state) {
    dw_context *context = *state;
    dw_model *model = model_of_text(context, SMALL, NULL), *planned;
    test_assert_fails(context, dw_model_save(model, TEST_BUILD_DIR "/no/such/folder/x.dw"), DW_NOT_FOUND, "/no/such/folder/x.dw: cannot create");
    assert_int_not_equal(dw_model_save(model, TEST_BUILD_DIR), DW_OK);
    dw_model_destroy(model);
    char *path = path_of("planned.dw");
    assert_ok(context, dw_model_open(context, CARRIED, &(dw_model_options){.flags = DW_MODEL_PLAN_ONLY}, &planned));
    test_assert_fails(context, dw_model_save(planned, path), DW_INVALID, "planning only");
    assert_int_not_equal(access(path, F_OK), 0);
    dw_model_destroy(planned);
}

static int setup(void **state) { return dw_context_create(&(dw_context_options){.threads = 2}, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_package_runs_as_its_archive_in_every_precision, setup, teardown),
        cmocka_unit_test_setup_teardown(a_package_runs_in_its_workspace_and_little_more, setup, teardown),
        cmocka_unit_test_setup_teardown(a_package_of_a_package_is_the_same_file, setup, teardown),
        cmocka_unit_test_setup_teardown(states_begin_in_a_package_as_in_the_model, setup, teardown),
        cmocka_unit_test_setup_teardown(a_truncated_package_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_changed_header_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_changed_constant_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_forged_header_breaks_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(forged_headers_are_refused_with_their_cause, setup, teardown),
        cmocka_unit_test_setup_teardown(a_package_refuses_what_it_has_settled, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failed_save_leaves_no_file, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
