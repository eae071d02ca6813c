/* A model whose weights changed runs as one that was made of the new weights, bit for bit, whatever its constants are computed from. */
#include "support/support.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/session.h"

enum { N = 96, K = 64, ROWS = 5 };

/* Two products with one of their weights merged, packed or quantised, a table computed at load, a weight as it is, and a state. */
static const char words[] = "graph g\n  symbol m 1..\n  input x f32[m,64]\n  param a f32[96,64]\n  param b f32[96,64]\n  param bias f32[96]\n  param turned f32[64,96]\n"
                            "  state seen f32[96]\n"
                            "  %1 = matmul x, a, bias {bt=true,post=\"bias\"} at \"a\" role mlp\n  %2 = matmul x, b {bt=true} at \"b\" role mlp\n"
                            "  %3 = exp bias\n  %4 = mul %2, %3\n  %5 = add %1, %4\n  %6 = matmul %5, turned {bt=true} at \"t\" role mlp\n  %7 = add seen, bias\n"
                            "  next seen %7\n  output y %5\n  output z %6\n  output s %7\n";

typedef struct weights { float a[N * K], b[N * K], bias[N], turned[N * K], seen[N]; } weights;

static void fill(float *x, int count, unsigned seed) {
    for (int i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int)(seed >> 16 & 0xff) / 64 - 2;
    }
}

static void fill_all(weights *w, unsigned seed) {
    fill(w->a, N * K, seed);
    fill(w->b, N * K, seed + 1);
    fill(w->bias, N, seed + 2);
    fill(w->turned, N * K, seed + 3);
    fill(w->seen, N, seed + 4);
}

static dw_tensor matrix(float *data, int64_t rows, int64_t cols, bool turned) {
    return (dw_tensor){.format = DW_FORMAT_f32, .rank = 2, .dims = {rows, cols}, .strides = {turned ? 1 : cols, turned ? rows : 1}, .data = data};
}

static dw_tensor vector(float *data) { return (dw_tensor){.format = DW_FORMAT_f32, .rank = 1, .dims = {N}, .strides = {1}, .data = data}; }

enum { WEIGHTS = 5 };

static void name_all(weights *w, dw_named_tensor named[WEIGHTS]) {
    named[0] = (dw_named_tensor){"a", matrix(w->a, N, K, false)};
    named[1] = (dw_named_tensor){"b", matrix(w->b, N, K, false)};
    named[2] = (dw_named_tensor){"bias", vector(w->bias)};
    named[3] = (dw_named_tensor){"turned", matrix(w->turned, K, N, true)};   /* column by column: copied at load */
    named[4] = (dw_named_tensor){"seen", vector(w->seen)};
}

static dw_model *make(dw_context *context, weights *w, const char *precision) {
    dw_named_tensor named[WEIGHTS];
    dw_graph *graph;
    dw_model *model;
    name_all(w, named);
    assert_ok(context, dw_graph_parse(context, "g", words, strlen(words), &graph));
    assert_ok(context, dw_graph_bind(graph, WEIGHTS, named));
    assert_ok(context, dw_model_create(context, graph, &(dw_model_options){.precision = precision}, &model));
    return model;
}

static void run_once(dw_context *context, dw_session *session, float y[ROWS * N], float z[ROWS * K], float s[N]) {
    static float x[ROWS * K];
    fill(x, ROWS * K, 7);
    dw_named_tensor in = {"x", matrix(x, ROWS, K, false)};
    dw_named_tensor out[] = {{"y", matrix(y, ROWS, N, false)}, {"z", matrix(z, ROWS, K, false)}, {"s", vector(s)}};
    assert_ok(context, dw_session_run(session, 1, &in, 3, out));
}

/* The session's run beside that of a model made of w anew; both from the states as they were given. */
static void assert_runs_as_made_of(dw_context *context, dw_session *session, weights *w, const char *precision) {
    static float y[2][ROWS * N], z[2][ROWS * K], s[2][N];
    dw_model *fresh = make(context, w, precision);
    dw_session *other = session_of(context, fresh, "m=5");
    assert_ok(context, dw_session_reset(session));
    run_once(context, session, y[0], z[0], s[0]);
    run_once(context, other, y[1], z[1], s[1]);
    assert_memory_equal(y[0], y[1], sizeof y[0]);
    assert_memory_equal(z[0], z[1], sizeof z[0]);
    assert_memory_equal(s[0], s[1], sizeof s[0]);
    dw_session_destroy(other);
    dw_model_destroy(fresh);
}

static void an_updated_model_runs_as_one_made_anew(void **state) {
    static const char *const precisions[] = {NULL, "fp32", "bf16", "mxfp8", "nvfp4", "mxfp4-weights"};
    static weights w, elsewhere;
    (void)state;
    for (size_t p = 0; p < COUNT_OF(precisions); p++) {
        test_memory memory = {0};
        dw_context *context = test_context_create(&memory, 2);
        dw_named_tensor named[WEIGHTS];
        static float before[ROWS * N], y[ROWS * N], z[ROWS * K], s[N];
        fill_all(&w, 1);
        dw_model *model = make(context, &w, precisions[p]);
        dw_session *session = session_of(context, model, "m=5");
        run_once(context, session, before, z, s);
        name_all(&w, named);
        size_t live = memory.live_count;
        for (unsigned turn = 1; turn < 6; turn++) {   /* one weight in place, then another, then all */
            fill_all(&elsewhere, 100 * turn);
            if (turn == 1) memcpy(w.a, elsewhere.a, sizeof w.a);
            if (turn == 2) memcpy(w.bias, elsewhere.bias, sizeof w.bias);
            if (turn == 3) memcpy(w.turned, elsewhere.turned, sizeof w.turned);
            if (turn == 4) memcpy(w.seen, elsewhere.seen, sizeof w.seen);
            if (turn == 5) w = elsewhere;
            static const int first[] = {0, 0, 2, 3, 4, 0};
            assert_ok(context, dw_model_update(model, turn == 5 ? WEIGHTS : 1, named + first[turn]));
            assert_runs_as_made_of(context, session, &w, precisions[p]);
        }
        assert_true(memory.live_count <= live);
        run_once(context, session, y, z, s);
        assert_memory_not_equal(y, before, sizeof y);
        fill_all(&elsewhere, 31);
        name_all(&elsewhere, named);
        assert_ok(context, dw_model_update(model, WEIGHTS, named));
        memset(&w, 0xff, sizeof w);   /* which nothing reads any more */
        assert_runs_as_made_of(context, session, &elsewhere, precisions[p]);
        dw_session_destroy(session);
        dw_model_destroy(model);
        dw_context_destroy(context);
        assert_int_equal(memory.live_count, 0);
    }
}

static void what_does_not_fit_is_refused_and_nothing_changes(void **state) {
    static weights w;
    (void)state;
    test_memory memory = {0};
    dw_context *context = test_context_create(&memory, 1);
    fill_all(&w, 3);
    dw_model *model = make(context, &w, "mxfp8");
    dw_session *session = session_of(context, model, "m=5");
    dw_named_tensor named[WEIGHTS];
    name_all(&w, named);
    dw_named_tensor unknown[] = {named[0], {"x", named[1].tensor}};
    test_assert_fails(context, dw_model_update(model, 2, unknown), DW_NOT_FOUND, "no weight named 'x'");
    named[1].tensor.dims[0] = N - 1;
    test_assert_fails(context, dw_model_update(model, 2, named), DW_MISMATCH, "'b'");
    assert_runs_as_made_of(context, session, &w, "mxfp8");
    assert_ok(context, dw_model_update(model, 0, NULL));
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_context_destroy(context);
}

/* The factor in erf makes the whole one GELU, so the plan holds for this value alone. */
static void values_that_decided_the_plan_cannot_change(void **state) {
    static const char gelu[] = "graph g\n  input x f32[8]\n  param c f32[]\n  param w f32[8]\n  const one f32[] = 1\n  const half f32[] = 0.5\n  %1 = mul x, c\n  %2 = erf %1\n"
                               "  %3 = add %2, one\n  %4 = mul x, half\n  %5 = mul %4, %3\n  %6 = mul %5, w\n  output y %6\n";
    (void)state;
    dw_context *context;
    dw_graph *graph;
    dw_model *model;
    float c = 0.70710678f, w[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    dw_named_tensor named[] = {{"c", {.format = DW_FORMAT_f32, .data = &c}}, {"w", {.format = DW_FORMAT_f32, .rank = 1, .dims = {8}, .strides = {1}, .data = w}}};
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    assert_ok(context, dw_graph_parse(context, "g", gelu, strlen(gelu), &graph));
    assert_ok(context, dw_graph_bind(graph, 2, named));
    assert_ok(context, dw_model_create(context, graph, NULL, &model));
    assert_ok(context, dw_model_update(model, 1, &named[1]));
    test_assert_fails(context, dw_model_update(model, 2, named), DW_MISMATCH, "'c' decided how g was compiled");
    dw_model_destroy(model);
    dw_context_destroy(context);
}

static void compiled_files_have_no_weights_to_update(void **state) {
    static const char source[] = TEST_SOURCE_DIR "/models/kjv.pt2";
    char path[] = "/tmp/deepwell-update-XXXXXX";
    (void)state;
    dw_context *context;
    dw_model *model;
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    assert_ok(context, dw_model_open(context, source, &(dw_model_options){.precision = "mxfp8"}, &model));
    assert_ok(context, dw_model_save(model, path));
    dw_model_destroy(model);
    assert_ok(context, dw_model_open(context, path, NULL, &model));
    test_assert_fails(context, dw_model_update(model, 0, NULL), DW_UNSUPPORTED, "holds its weights");
    dw_model_destroy(model);
    dw_context_destroy(context);
    unlink(path);
}

/* Every allocation of an update fails once; each time the model is as it was. */
static void a_failed_update_changes_nothing(void **state) {
    static weights w, other;
    (void)state;
    test_memory memory = {0};
    dw_context *context = test_context_create(&memory, 1);
    fill_all(&w, 5);
    fill_all(&other, 6);
    dw_model *model = make(context, &w, "mxfp8");
    dw_session *session = session_of(context, model, "m=5");
    dw_named_tensor named[WEIGHTS];
    name_all(&other, named);
    int failures = 0;
    for (size_t at = 1;; at++, failures++) {
        memory.fail_at = memory.calls + at;
        dw_status status = dw_model_update(model, WEIGHTS, named);
        memory.fail_at = 0;
        if (status == DW_OK) break;
        assert_int_equal(status, DW_NO_MEMORY);
        if (at % 4 == 0) assert_runs_as_made_of(context, session, &w, "mxfp8");
    }
    assert_in_range(failures, 5, 1000);
    assert_runs_as_made_of(context, session, &other, "mxfp8");
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_context_destroy(context);
    assert_int_equal(memory.live_count, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_updated_model_runs_as_one_made_anew),    cmocka_unit_test(what_does_not_fit_is_refused_and_nothing_changes),
        cmocka_unit_test(values_that_decided_the_plan_cannot_change), cmocka_unit_test(compiled_files_have_no_weights_to_update),
        cmocka_unit_test(a_failed_update_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
