/* Attention of a few tokens past a cache on simulated GPUs. It asks for keys before the launches in front of it have ended, but for the blocks into which these write tokens of the run: those of other texts
 * and of the same one, in pages that texts share and where a ring begins again. The simulator finds what is read too early, and a wrong mean what is read too soon or not at all. */
#include "support/support.h"

#include <math.h>
#include <string.h>

#include "support/session.h"

enum { TOKENS = 5, ROWS = 4, HEADS = 8, SHARED = 2, WIDTH = 64, SLOTS = 320, PAGE = 16, PAGES = 90, OF_ROW = SLOTS / PAGE, KEPT = 40 };

static const char in_pages[] = "graph g\n  input q bf16[1,8,5,64]\n  input y bf16[1,2,5,64]\n  input r i64[5]\n  input p i64[5]\n  input t i32[4,20]\n  state k bf16[90,2,16,64]\n  state v bf16[90,2,16,64]\n"
                               "  %1 = cache_write k, y, r, p, t\n  %2 = cache_write v, y, r, p, t\n  %3 = attention q, %1, %2, -, -, -, r, p, t {scale=0.125,causal=true}\n  next k %1\n  next v %2\n  output z %3\n";
static const char in_rows[] = "graph g\n  input q bf16[1,8,5,64]\n  input y bf16[1,2,5,64]\n  input r i64[5]\n  input p i64[5]\n  state k bf16[4,2,320,64]\n  state v bf16[4,2,320,64]\n"
                              "  %1 = cache_write k, y, r, p\n  %2 = cache_write v, y, r, p\n  %3 = attention q, %1, %2, -, -, -, r, p {scale=0.125,causal=true}\n  next k %1\n  next v %2\n  output z %3\n";

/* A session, what a run reads and gives, and what the caches are to hold: the value of each slot. */
typedef struct few {
    dw_context *context;
    dw_model *model;
    dw_session *session;
    bool has_table;
    uint16_t q[HEADS * TOKENS * WIDTH], y[SHARED * TOKENS * WIDTH], z[HEADS * TOKENS * WIDTH];
    int64_t row[TOKENS], position[TOKENS];
    int32_t table[ROWS * OF_ROW];
    double held[PAGES * PAGE];
} few;

static uint16_t bf16_of(double x) { return (uint16_t)num_encode(DW_FORMAT_bf16, x, false); }

static double *slot_of(few *t, int64_t row, int64_t position) {
    const int64_t slot = position % SLOTS;
    return &t->held[t->has_table ? t->table[row * OF_ROW + slot / PAGE] * PAGE + slot % PAGE : row * SLOTS + slot];
}

static dw_status run(few *t) {
    const dw_named_tensor inputs[] = {{"q", {.format = DW_FORMAT_bf16, .rank = 4, .dims = {1, HEADS, TOKENS, WIDTH}, .strides = {HEADS * TOKENS * WIDTH, TOKENS * WIDTH, WIDTH, 1}, .data = t->q}},
                                      {"y", {.format = DW_FORMAT_bf16, .rank = 4, .dims = {1, SHARED, TOKENS, WIDTH}, .strides = {SHARED * TOKENS * WIDTH, TOKENS * WIDTH, WIDTH, 1}, .data = t->y}},
                                      {"r", {.format = DW_FORMAT_i64, .rank = 1, .dims = {TOKENS}, .strides = {1}, .data = t->row}},
                                      {"p", {.format = DW_FORMAT_i64, .rank = 1, .dims = {TOKENS}, .strides = {1}, .data = t->position}},
                                      {"t", {.format = DW_FORMAT_i32, .rank = 2, .dims = {ROWS, OF_ROW}, .strides = {OF_ROW, 1}, .data = t->table}}};
    const dw_named_tensor output = {"z", {.format = DW_FORMAT_bf16, .rank = 4, .dims = {1, HEADS, TOKENS, WIDTH}, .strides = {HEADS * TOKENS * WIDTH, TOKENS * WIDTH, WIDTH, 1}, .data = t->z}};
    return dw_session_run(t->session, t->has_table ? 5 : 4, inputs, 1, &output);
}

/* Token i, whose key and value are all `value`. */
static void set_token(few *t, int i, int64_t row, int64_t position, double value) {
    t->row[i] = row, t->position[i] = position;
    for (int head = 0; head < SHARED; head++)
        for (int col = 0; col < WIDTH; col++) t->y[(head * TOKENS + i) * WIDTH + col] = bf16_of(value);
    if (row >= 0) *slot_of(t, row, position) = value;
}

/* Queries are 0, so weights are alike: what is expected is the mean of what a token sees. */
static void assert_means(few *t) {
    assert_ok(t->context, run(t));
    for (int i = 0; i < TOKENS; i++) {
        const int64_t count = t->position[i] < SLOTS ? t->position[i] + 1 : SLOTS;
        double mean = 0;
        for (int64_t k = 0; k < count && t->row[i] >= 0; k++) mean += *slot_of(t, t->row[i], t->position[i] - k) / (double)count;
        for (int head = 0; head < HEADS; head++)
            for (int col = 0; col < WIDTH; col++) {
                const double z = num_decode(DW_FORMAT_bf16, t->z[(head * TOKENS + i) * WIDTH + col]);
                if (!(fabs(z - mean) <= 0.01 * fabs(mean))) fail_msg("token %d of row %lld at %lld: %g where %g is expected", i, (long long)t->row[i], (long long)t->position[i], z, mean);
            }
    }
}

/* Each row has tokens at positions 0 to KEPT - 1. */
static void open_few(few *t, dw_context *context, const char *device, const char *text) {
    *t = (few){.context = context, .has_table = strstr(text, "input t ") != NULL};
    t->model = model_of_text(context, text, &(dw_model_options){.device = device, .kernels = "attention=cuda_attention_decode"});
    t->session = session_of(context, t->model, "");
    for (int i = 0; i < ROWS * OF_ROW; i++) t->table[i] = PAGES - 1 - i;
    for (int position = 0; position < KEPT; position++) {
        for (int row = 0; row < ROWS; row++) set_token(t, row, row, position, 1 + row);
        set_token(t, ROWS, -1, position, 1);
        if (position % 16 == 7) assert_means(t);
        else assert_ok(context, run(t));
    }
}

static void close_few(few *t) {
    dw_session_destroy(t->session);
    dw_model_destroy(t->model);
}

static void check_few(dw_context *context, const char *device, const char *text) {
    few t;
    open_few(&t, context, device, text);
    for (int i = 0; i < TOKENS; i++) set_token(&t, i, i % 2 * 3, KEPT + i / 2, 40 + i);     /* two texts, two or three tokens of each */
    assert_means(&t);
    for (int i = 0; i < TOKENS; i++) set_token(&t, i, 1, KEPT + TOKENS - 1 - i, 7 * i);     /* of one text, the last one first */
    assert_means(&t);
    for (int i = 0; i < TOKENS; i++) set_token(&t, i, i < ROWS ? i : -1, i == 2 ? 3 : KEPT + 5, 60 + i);   /* one that is written again, far in front */
    assert_means(&t);
    if (t.has_table) {
        for (int i = 0; i < 3; i++) t.table[2 * OF_ROW + i] = t.table[i];                    /* rows 0 and 2 share three pages, and row 2 writes into the second */
        for (int i = 0; i < TOKENS; i++) set_token(&t, i, i == 1 ? 2 : i == 4 ? -1 : i, i == 1 ? PAGE + 4 : KEPT + 6, i == 1 ? 500 : 3);
        assert_means(&t);
    } else {
        for (int i = 0; i < TOKENS; i++) set_token(&t, i, i % ROWS, SLOTS + (i < ROWS ? 3 : 20), 90 + i);   /* past the end of the ring */
        assert_means(&t);
    }
    set_token(&t, 0, 0, KEPT + 7, 2);
    t.row[1] = ROWS;              /* one that lies outside is an error, whichever token it is */
    assert_int_equal(run(&t), DW_INVALID);
    for (int i = 0; i < TOKENS; i++) set_token(&t, i, i < ROWS ? i : -1, KEPT + 8, 4);
    for (int i = 0; i < ROWS; i++) set_token(&t, i, i, i == 0 ? KEPT - 1 : KEPT + 8, 4);
    assert_ok(context, run(&t));
    close_few(&t);
}

static const char *const devices[] = {"sim:h200,seed=3", "sim:b200,seed=5"};

static void no_block_of_the_runs_tokens_is_read_early(void **state) {
    if (kernel_lacks_images() != NULL) skip();
    for (size_t i = 0; i < COUNT_OF(devices); i++) {
        check_few(*state, devices[i], in_pages);
        check_few(*state, devices[i], in_rows);
    }
}

static int setup(void **state) { return dw_context_create(NULL, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_block_of_the_runs_tokens_is_read_early)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
