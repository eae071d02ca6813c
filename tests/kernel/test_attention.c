/* What lines of conformance cannot say of attention: that a row has the same bits whatever else is in the call, and what hidden keys may hold. */
#include "support/support.h"

#include <math.h>
#include <string.h>

#include "device/device.h"

enum { HEADS = 4, GROUPS = 2, KEYS = 150, WIDTH = 40, FLOATS = HEADS * KEYS * WIDTH };

typedef struct fixture {
    dw_context *context;
    device *device;
    float q[FLOATS], k[FLOATS], v[FLOATS];
} fixture;

static int setup(void **state) {
    static fixture f;
    assert_int_equal(dw_context_create(NULL, &f.context), DW_OK);
    assert_int_equal(device_open(f.context, "cpu", &f.device), DW_OK);
    for (int i = 0; i < FLOATS; i++) {
        f.q[i] = num_random_normal(1, (uint64_t)i);
        f.k[i] = num_random_normal(2, (uint64_t)i);
        f.v[i] = num_random_normal(3, (uint64_t)i);
    }
    *state = &f;
    return 0;
}

static int teardown(void **state) {
    fixture *f = *state;
    device_close(f->device);
    dw_context_destroy(f->context);
    return 0;
}

static dw_tensor tensor_of(dw_format format, int rank, const int64_t *dims, const void *data) {
    dw_tensor tensor;
    assert_true(op_tensor_init(&tensor, format, DW_SCALE_plain, rank, dims, (void *)(uintptr_t)data));
    return tensor;
}

/* Queries [first, first + count) of all heads over all keys, causal, on a row of kernel.def; mask [KEYS] or NULL. */
static void attend(const fixture *f, const kernel_row *row, int first, int count, const uint8_t *mask, float *result) {
    const int64_t q_dims[] = {1, HEADS, count, WIDTH}, k_dims[] = {1, GROUPS, KEYS, WIDTH}, mask_dims[] = {KEYS};
    dw_tensor q = tensor_of(DW_FORMAT_f32, 4, q_dims, f->q + first * WIDTH), k = tensor_of(DW_FORMAT_f32, 4, k_dims, f->k);
    dw_tensor v = tensor_of(DW_FORMAT_f32, 4, k_dims, f->v), out = tensor_of(DW_FORMAT_f32, 4, q_dims, result), hides = tensor_of(DW_FORMAT_bool, 1, mask_dims, mask);
    q.strides[1] = KEYS * WIDTH;
    dim_table *dims;
    assert_int_equal(dim_table_create(f->context, &dims), DW_OK);
    const op_attr items[] = {op_set_bool(OP_ATTR_causal, true), op_set_dim(OP_ATTR_offset, dim_constant(dims, first)), op_set_real(OP_ATTR_scale, 0.2)};
    const op_attrs attrs = {COUNT_OF(items), items};
    const dw_tensor *in[] = {&q, &k, &v, &hides}, *results[] = {&out};
    kernel_run run = {.call = {f->context, op_get(OP_attention), &attrs, NULL, mask != NULL ? 4 : 3, in, 1, results, 0}, .pool = f->device->pool, .chip = &f->device->caps};
    assert_int_equal(row->run(&run), DW_OK);
    dim_table_destroy(dims);
}

static const kernel_row *next_row(const fixture *f, int *index) {
    while (*index < kernel_count()) {
        const kernel_row *row = kernel_at((*index)++);
        if (row->op == OP_attention && row->device == CHIP_CPU && !row->reference && (row->needs & ~f->device->caps.features) == 0) return row;
    }
    return NULL;
}

static void a_row_has_the_same_bits_alone_and_among_others(void **state) {
    const fixture *f = *state;
    static float all[FLOATS], some[FLOATS];
    const kernel_row *row;
    for (int index = 0; (row = next_row(f, &index)) != NULL;) {
        attend(f, row, 0, KEYS, NULL, all);
        for (int count = 1; count <= 7; count += 3) {
            for (int first = 0; first + count <= KEYS; first += 29) {
                attend(f, row, first, count, NULL, some);
                for (int head = 0; head < HEADS; head++) {
                    assert_memory_equal(some + head * count * WIDTH, all + (head * KEYS + first) * WIDTH, (size_t)(count * WIDTH) * sizeof(float));
                }
            }
        }
    }
}

/* A key that is not seen does not reach the result, even as infinity or NaN; one that is seen does. */
static void hidden_keys_may_hold_anything(void **state) {
    static fixture f;
    f = *(const fixture *)*state;
    static float clean[FLOATS], dirty[FLOATS];
    uint8_t mask[KEYS];
    memset(mask, 1, sizeof mask);
    mask[3] = mask[100] = 0;
    const kernel_row *row;
    for (int index = 0; (row = next_row(&f, &index)) != NULL;) {
        attend(&f, row, 0, KEYS, mask, clean);
        for (int i = 0; i < WIDTH; i++) {
            f.k[3 * WIDTH + i] = NAN;
            f.v[3 * WIDTH + i] = NAN;
            f.v[100 * WIDTH + i] = INFINITY;
        }
        attend(&f, row, 0, KEYS, mask, dirty);
        for (int i = 0; i < FLOATS; i++) assert_true(fabsf(clean[i] - dirty[i]) <= 2e-6f);
        attend(&f, row, 0, KEYS, NULL, dirty);
        for (int query = 0; query < KEYS; query++) {
            assert_int_equal(isnan(dirty[query * WIDTH]), query >= 3);                                                 /* heads of the first group */
            assert_false(isnan(dirty[(HEADS / GROUPS * KEYS + query) * WIDTH]));                                       /* and of the second */
        }
        f = *(const fixture *)*state;
    }
}

/* Values of another key than the first seen one: a causal query must not see later infinities. */
static void later_values_do_not_reach_earlier_queries(void **state) {
    static fixture f;
    f = *(const fixture *)*state;
    static float result[FLOATS];
    for (int i = 0; i < WIDTH; i++) f.v[40 * WIDTH + i] = INFINITY;
    const kernel_row *row;
    for (int index = 0; (row = next_row(&f, &index)) != NULL;) {
        attend(&f, row, 0, KEYS, NULL, result);
        for (int query = 0; query < KEYS; query++) assert_int_equal(isfinite(result[query * WIDTH]), query < 40);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_has_the_same_bits_alone_and_among_others),
        cmocka_unit_test(hidden_keys_may_hold_anything),
        cmocka_unit_test(later_values_do_not_reach_earlier_queries),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
