/* Attention of a token alone past a cache on simulated GPUs. It asks for keys before the launches in front of it have ended, so by a row, a position and a table that nobody has complained of yet. What is wrong with
 * one of them is the error that it is elsewhere. Nothing is read or written for it in the meantime, which the simulator would find, and the next run is right again. */
#include "support/support.h"

#include <math.h>
#include <string.h>

#include "support/session.h"

enum { ROWS = 2, HEADS = 8, SHARED = 2, WIDTH = 64, SLOTS = 320, PAGE = 16, PAGES = 40, OF_ROW = SLOTS / PAGE, LAST = 47 };

/* Keys and queries are the caller's, or made by the run: then attention writes its token itself, and it is attention that tells what is wrong with its place. */
#define PAGES_OF(make, q, y) "graph g\n  input q bf16[1,8,1,64]\n  input y bf16[1,2,1,64]\n  input r i64[1]\n  input p i64[1]\n  input t i32[2,20]\n  state k bf16[40,2,16,64]\n  state v bf16[40,2,16,64]\n" make \
    "  %1 = cache_write k, " y ", r, p, t\n  %2 = cache_write v, " y ", r, p, t\n  %3 = attention " q ", %1, %2, -, -, -, r, p, t {scale=0.125,causal=true}\n  next k %1\n  next v %2\n  output z %3\n"
#define ROWS_OF(make, q, y) "graph g\n  input q bf16[1,8,1,64]\n  input y bf16[1,2,1,64]\n  input r i64[1]\n  input p i64[1]\n  state k bf16[2,2,320,64]\n  state v bf16[2,2,320,64]\n" make \
    "  %1 = cache_write k, " y ", r, p\n  %2 = cache_write v, " y ", r, p\n  %3 = attention " q ", %1, %2, -, -, -, r, p {scale=0.125,causal=true}\n  next k %1\n  next v %2\n  output z %3\n"
#define MADE "  %10 = abs q\n  %11 = abs y\n"
static const struct { const char *in_pages, *in_rows, *step; } graphs[] = {
    {PAGES_OF("", "q", "y"), ROWS_OF("", "q", "y"), "cache_update"},
    {PAGES_OF(MADE, "%10", "%11"), ROWS_OF(MADE, "%10", "%11"), "attention"},
};

/* A session, and what a run reads and gives. */
typedef struct token {
    dw_context *context;
    dw_model *model;
    dw_session *session;
    bool has_table;
    uint16_t q[HEADS * WIDTH], y[SHARED * WIDTH], z[HEADS * WIDTH];
    int64_t row[1], position[1];
    int32_t table[ROWS * OF_ROW];
} token;

static uint16_t bf16_of(float x) { return (uint16_t)num_encode(DW_FORMAT_bf16, x, false); }
static double from_bf16(uint16_t bits) { return num_decode(DW_FORMAT_bf16, bits); }

static dw_status run(token *t) {
    const dw_named_tensor inputs[] = {{"q", {.format = DW_FORMAT_bf16, .rank = 4, .dims = {1, HEADS, 1, WIDTH}, .strides = {HEADS * WIDTH, WIDTH, WIDTH, 1}, .data = t->q}},
                                      {"y", {.format = DW_FORMAT_bf16, .rank = 4, .dims = {1, SHARED, 1, WIDTH}, .strides = {SHARED * WIDTH, WIDTH, WIDTH, 1}, .data = t->y}},
                                      {"r", {.format = DW_FORMAT_i64, .rank = 1, .dims = {1}, .strides = {1}, .data = t->row}},
                                      {"p", {.format = DW_FORMAT_i64, .rank = 1, .dims = {1}, .strides = {1}, .data = t->position}},
                                      {"t", {.format = DW_FORMAT_i32, .rank = 2, .dims = {ROWS, OF_ROW}, .strides = {OF_ROW, 1}, .data = t->table}}};
    const dw_named_tensor output = {"z", {.format = DW_FORMAT_bf16, .rank = 4, .dims = {1, HEADS, 1, WIDTH}, .strides = {HEADS * WIDTH, WIDTH, WIDTH, 1}, .data = t->z}};
    return dw_session_run(t->session, t->has_table ? 5 : 4, inputs, 1, &output);
}

/* A token whose key and value are all `value`. */
static dw_status run_at(token *t, int64_t row, int64_t position, float value) {
    t->row[0] = row, t->position[0] = position;
    for (int i = 0; i < HEADS * WIDTH; i++) t->q[i] = 0;
    for (int i = 0; i < SHARED * WIDTH; i++) t->y[i] = bf16_of(value);
    return run(t);
}

/* Weights are alike, as q is 0: what is expected is a mean of values. */
static void assert_mean(const token *t, double mean) {
    for (int i = 0; i < HEADS * WIDTH; i++) assert_true(fabs(from_bf16(t->z[i]) - mean) <= 0.01 * fabs(mean));
}

/* Both rows have tokens at positions 0 to LAST, of value 1 and 2. */
static void open_token(token *t, dw_context *context, const char *device, const char *text) {
    *t = (token){.context = context, .has_table = strstr(text, "input t ") != NULL};
    t->model = model_of_text(context, text, &(dw_model_options){.device = device});
    t->session = session_of(context, t->model, "");
    for (int i = 0; i < ROWS * OF_ROW; i++) t->table[i] = PAGES - 1 - i;
    for (int position = 0; position <= LAST; position++) {
        for (int row = 0; row < ROWS; row++) {
            assert_ok(context, run_at(t, row, position, (float)(1 + row)));
            assert_mean(t, 1 + row);
        }
    }
}

static void close_token(token *t) {
    dw_session_destroy(t->session);
    dw_model_destroy(t->model);
}

static void assert_fault(token *t, int64_t row, int64_t position, const char *words, const char *step) {
    const dw_status status = run_at(t, row, position, 1);
    const char *said = dw_context_error(t->context);
    if (status != DW_INVALID || strstr(said, words) == NULL || strstr(said, step) == NULL) fail_msg("row %lld, position %lld: status %d, %s", (long long)row, (long long)position, status, said);
}

static void check_pages(dw_context *context, const char *device, const char *graph, const char *step) {
    token t;
    open_token(&t, context, device, graph);
    const int32_t page = t.table[1], second = t.table[OF_ROW + 1];
    static const struct { int64_t row, position; const char *words; } cases[] = {
        {ROWS, LAST, "index 2 is outside its axis, which has size 2"}, {1000000, LAST, "index 1000000 is outside its axis, which has size 2"}, {-2, LAST, "index -2 is outside its axis, which has size 2"},
        {0, SLOTS, "index 320 is outside its axis, which has size 320"}, {1, INT64_MAX, "is outside its axis, which has size 320"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_fault(&t, cases[i].row, cases[i].position, cases[i].words, step);
        assert_ok(context, run_at(&t, 1, LAST, 2));
        assert_mean(&t, 2);
    }
    static const int32_t none[] = {PAGES, INT32_MAX, -2, INT32_MIN};
    for (size_t i = 0; i < COUNT_OF(none); i++) {   /* of a page that the token sees and does not write to: attention alone complains */
        char words[80];
        snprintf(words, sizeof words, "index %d is outside its axis, which has size %d", none[i], PAGES);
        t.table[1] = none[i];
        assert_fault(&t, 0, LAST, words, "attention");
        assert_ok(context, run_at(&t, 1, LAST, 2));   /* the other row does not read it */
        assert_mean(&t, 2);
        t.table[1] = page;
    }
    t.table[1] = -1;
    assert_ok(context, run_at(&t, 0, LAST, 5));      /* 16 of its keys are not there, and its own is another */
    assert_mean(&t, (31 + 5) / 32.0);
    t.table[1] = page;
    t.table[OF_ROW + 1] = PAGES;
    assert_ok(context, run_at(&t, 1, PAGE - 1, 2));   /* nor are pages read that it does not see */
    assert_mean(&t, 2);
    t.table[OF_ROW + 1] = second;
    assert_ok(context, run_at(&t, -1, SLOTS, 9));     /* of no text: it sees nothing, wherever it is */
    assert_mean(&t, 0);
    assert_ok(context, run_at(&t, 0, LAST, 1));
    assert_mean(&t, 1);
    close_token(&t);
}

/* A ring: a position past its slots is one of them. */
static void check_rows(dw_context *context, const char *device, const char *graph, const char *step) {
    token t;
    open_token(&t, context, device, graph);
    static const struct { int64_t row, position; const char *words; } cases[] = {
        {ROWS, LAST, "index 2 is outside its axis, which has size 2"}, {INT64_MAX, LAST, "is outside its axis, which has size 2"}, {-2, LAST, "index -2 is outside its axis, which has size 2"},
        {0, -1, "index -1 is outside its axis, which has size 320"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_fault(&t, cases[i].row, cases[i].position, cases[i].words, step);
        assert_ok(context, run_at(&t, 1, LAST, 2));
        assert_mean(&t, 2);
    }
    assert_ok(context, run_at(&t, 0, SLOTS + 5, 33));   /* 47 keys of 1, its own in place of another one, and zeros */
    assert_mean(&t, (47 + 33) / 320.0);
    close_token(&t);
}

static const char *const devices[] = {"sim:h200", "sim:h200,seed=3", "sim:b200,seed=5"};

static void what_lies_outside_of_pages_is_an_error(void **state) {
    if (kernel_lacks_images() != NULL) skip();
    for (size_t i = 0; i < COUNT_OF(devices) * COUNT_OF(graphs); i++) check_pages(*state, devices[i / COUNT_OF(graphs)], graphs[i % COUNT_OF(graphs)].in_pages, graphs[i % COUNT_OF(graphs)].step);
}

static void what_lies_outside_of_rows_is_an_error(void **state) {
    if (kernel_lacks_images() != NULL) skip();
    for (size_t i = 0; i < COUNT_OF(devices) * COUNT_OF(graphs); i++) check_rows(*state, devices[i / COUNT_OF(graphs)], graphs[i % COUNT_OF(graphs)].in_rows, graphs[i % COUNT_OF(graphs)].step);
}

static int setup(void **state) { return dw_context_create(NULL, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_lies_outside_of_pages_is_an_error), cmocka_unit_test(what_lies_outside_of_rows_is_an_error)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
