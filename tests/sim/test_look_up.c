/* Indices outside their axis, given to kernels of index_vectors.cu on simulated GPUs: the error names index, axis and step, nothing is read for them, which the simulator would find, and the next run is right again. */
#include "support/support.h"

#include <string.h>

#include "support/session.h"

enum { MOST_IDS = 8, MOST = 64 };

/* A graph with input x, of 1, 2, 3 .., and indices i and, of some, j. places: where in x elements of the result lie when all indices are those that are right. */
typedef struct look_up {
    const char *text, *step;
    int x_rank, j_count, out_rank;
    int64_t x_dims[3], out_dims[3], i[MOST_IDS], j[MOST_IDS];
    int places[MOST];
} look_up;

static const look_up take_of_columns = {.text = "graph g\n  input x f32[3,5]\n  input i i64[8]\n  %1 = take x, i {axis=1}\n  output y %1\n", .step = "(step 1, %1 cuda_take)",
                                        .x_rank = 2, .out_rank = 2, .x_dims = {3, 5}, .out_dims = {3, 8}, .i = {4, 0, -5, -1, 2, 2, 3, 1},
                                        .places = {4, 0, 0, 4, 2, 2, 3, 1, 9, 5, 5, 9, 7, 7, 8, 6, 14, 10, 10, 14, 12, 12, 13, 11}};
/* i differs from element to element, j is one for all eight and differs from row to row. */
static const look_up of_two = {.text = "graph g\n  input x f32[3,2]\n  input i i64[8]\n  input j i64[2,1]\n  %1 = index x, i, j {axis=0}\n  output y %1\n", .step = "(step 1, %1 cuda_index)",
                               .x_rank = 2, .j_count = 2, .out_rank = 2, .x_dims = {3, 2}, .out_dims = {2, 8}, .i = {2, 0, -3, -1, 1, 1, 0, 2}, .j = {1, -2},
                               .places = {5, 1, 1, 5, 3, 3, 1, 5, 4, 0, 0, 4, 2, 2, 0, 4}};
/* Rows of three elements, in words of 4 bytes. */
static const look_up narrow_rows = {.text = "graph g\n  input x f32[5,3]\n  input i i64[8]\n  %1 = take x, i {axis=0}\n  output y %1\n", .step = "(step 1, %1 cuda_take)",
                                    .x_rank = 2, .out_rank = 2, .x_dims = {5, 3}, .out_dims = {8, 3}, .i = {4, 0, -5, -1, 2, 2, 3, 1},
                                    .places = {12, 13, 14, 0, 1, 2, 0, 1, 2, 12, 13, 14, 6, 7, 8, 6, 7, 8, 9, 10, 11, 3, 4, 5}};

static dw_named_tensor tensor_of(const char *name, dw_format format, int rank, const int64_t *dims, void *data) {
    dw_named_tensor named = {.name = name};
    assert_true(op_tensor_init(&named.tensor, format, DW_SCALE_plain, rank, dims, data));
    return named;
}

static dw_status run(const look_up *l, dw_session *session, int64_t *i, int64_t *j, float *y) {
    float x[MOST];
    for (int k = 0; k < MOST; k++) x[k] = (float)(k + 1);
    const dw_named_tensor inputs[] = {tensor_of("x", DW_FORMAT_f32, l->x_rank, l->x_dims, x), tensor_of("i", DW_FORMAT_i64, 1, (const int64_t[]){MOST_IDS}, i),
                                      tensor_of("j", DW_FORMAT_i64, 2, (const int64_t[]){l->j_count, 1}, j)};
    const dw_named_tensor output = tensor_of("y", DW_FORMAT_f32, l->out_rank, l->out_dims, y);
    return dw_session_run(session, l->j_count > 0 ? 3 : 2, inputs, 1, &output);
}

static void assert_right(const look_up *l, dw_context *context, dw_session *session) {
    int64_t i[MOST_IDS], j[MOST_IDS];
    float y[MOST] = {0};
    memcpy(i, l->i, sizeof i);
    memcpy(j, l->j, sizeof j);
    assert_ok(context, run(l, session, i, j, y));
    for (int k = 0; k < l->out_dims[0] * l->out_dims[1]; k++) assert_true(y[k] == (float)(l->places[k] + 1));
}

static void assert_fault(const look_up *l, dw_context *context, dw_session *session, int64_t *i, int64_t *j, int64_t wrong, int64_t size) {
    char words[120];
    float y[MOST];
    snprintf(words, sizeof words, "index %lld is outside its axis, which has size %lld %s", (long long)wrong, (long long)size, l->step);
    test_assert_fails(context, run(l, session, i, j, y), DW_INVALID, words);
    assert_right(l, context, session);
}

static void check(dw_context *context, const char *device, const look_up *l, int64_t i_size, int64_t j_size) {
    dw_model *model = model_of_text(context, l->text, &(dw_model_options){.device = device});
    dw_session *session = session_of(context, model, "");
    assert_right(l, context, session);
    for (int k = 0; k < MOST_IDS + l->j_count; k++) {
        const int64_t size = k < MOST_IDS ? i_size : j_size, wrong[] = {size, -size - 1, (int64_t)1 << 40};
        for (size_t w = 0; w < COUNT_OF(wrong); w++) {
            int64_t i[MOST_IDS], j[MOST_IDS];
            memcpy(i, l->i, sizeof i);
            memcpy(j, l->j, sizeof j);
            *(k < MOST_IDS ? &i[k] : &j[k - MOST_IDS]) = wrong[w];
            assert_fault(l, context, session, i, j, wrong[w], size);
        }
    }
    dw_session_destroy(session);
    dw_model_destroy(model);
}

static const char *const devices[] = {"sim:h200", "sim:b200,seed=5"};

static void elements_named_one_by_one(void **state) {
    if (kernel_lacks_images() != NULL) skip();
    for (size_t d = 0; d < COUNT_OF(devices); d++) check(*state, devices[d], &take_of_columns, 5, 0);
}

static void by_two_tensors_of_which_one_is_for_all_eight(void **state) {
    if (kernel_lacks_images() != NULL) skip();
    for (size_t d = 0; d < COUNT_OF(devices); d++) check(*state, devices[d], &of_two, 3, 2);
}

static void rows_in_narrow_words(void **state) {
    if (kernel_lacks_images() != NULL) skip();
    for (size_t d = 0; d < COUNT_OF(devices); d++) check(*state, devices[d], &narrow_rows, 5, 0);
}

static int setup(void **state) { return dw_context_create(NULL, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_named_one_by_one),
        cmocka_unit_test(by_two_tensors_of_which_one_is_for_all_eight),
        cmocka_unit_test(rows_in_narrow_words),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
