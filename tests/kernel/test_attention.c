/* What lines of conformance cannot say of attention: that a row has the same bits whatever else is in the call, and what hidden keys may hold. */
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"

enum { HEADS = 4, GROUPS = 2, KEYS = 150, WIDTH = 64, FLOATS = HEADS * KEYS * WIDTH };

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

/* ---- calls of a row ---- */

/* Attention of operands and a result in the format, as the row is asked about it. */
static bool takes(const fixture *f, const kernel_row *row, dw_format format) {
    dim_table *dims;
    assert_int_equal(dim_table_create(f->context, &dims), DW_OK);
    op_type type = {.format = format, .rank = 4};
    for (int i = 0; i < 4; i++) type.dims[i] = dim_constant(dims, 16);
    const op_attr items[] = {op_set_real(OP_ATTR_scale, 0.2)};
    const op_attrs attrs = {COUNT_OF(items), items};
    const op_type *in[] = {&type, &type, &type}, *out[] = {&type};
    const kernel_problem problem = {.context = f->context, .chip = &f->device->caps, .op = op_get(OP_attention), .attrs = &attrs, .dims = dims, .n_in = 3, .in = in, .n_out = 1, .out = out};
    text why;
    text_init(&why, f->context);
    const bool taken = row->reject(&problem, &why) == NULL;
    text_free(&why);
    dim_table_destroy(dims);
    return taken;
}

/* What a call's operands and result are: fp32, or bf16 of rows that multiply nothing else. */
static dw_format format_of(const fixture *f, const kernel_row *row) { return takes(f, row, DW_FORMAT_f32) ? DW_FORMAT_f32 : DW_FORMAT_bf16; }

/* A tensor of a format over memory for it, with these numbers where there are any. */
static dw_tensor stored(dw_format format, int rank, const int64_t *dims, const float *numbers, void *memory) {
    const dw_tensor tensor = tensor_of(format, rank, dims, memory);
    for (int64_t i = 0; numbers != NULL && i < op_tensor_count(&tensor); i++) num_store(format, memory, i, (double)numbers[i], isfinite(numbers[i]) != 0);
    return tensor;
}

static void widen(const dw_tensor *tensor, float *numbers) {
    int64_t index[DW_MAX_RANK] = {0};
    for (int64_t i = 0; i < op_tensor_count(tensor); i++, op_tensor_next(tensor, index)) numbers[i] = (float)op_tensor_load(tensor, index);
}

/* Queries [first, first + count) of all heads, `width` wide, over all keys, causal, on a row of kernel.def; mask [KEYS] or NULL. */
static void attend(const fixture *f, const kernel_row *row, int width, int first, int count, const uint8_t *mask, float *result) {
    static float memory[4][FLOATS];
    const dw_format format = format_of(f, row);
    const int64_t all_dims[] = {1, HEADS, KEYS, width}, q_dims[] = {1, HEADS, count, width}, k_dims[] = {1, GROUPS, KEYS, width}, mask_dims[] = {KEYS};
    dw_tensor q = stored(format, 4, all_dims, f->q, memory[0]), k = stored(format, 4, k_dims, f->k, memory[1]);
    dw_tensor v = stored(format, 4, k_dims, f->v, memory[2]), out = stored(format, 4, q_dims, NULL, memory[3]), hides = tensor_of(DW_FORMAT_bool, 1, mask_dims, mask);
    q.data = (uint8_t *)q.data + first * width * dw_format_bits(format) / 8;
    q.dims[2] = count;
    dim_table *dims;
    assert_int_equal(dim_table_create(f->context, &dims), DW_OK);
    const op_attr items[] = {op_set_bool(OP_ATTR_causal, true), op_set_dim(OP_ATTR_offset, dim_constant(dims, first)), op_set_real(OP_ATTR_scale, 0.2)};
    const op_attrs attrs = {COUNT_OF(items), items};
    const dw_tensor *in[] = {&q, &k, &v, &hides}, *results[] = {&out};
    kernel_run run = {.call = {f->context, op_get(OP_attention), &attrs, NULL, mask != NULL ? 4 : 3, in, 1, results, 0, NULL}, .pool = f->device->pool, .chip = &f->device->caps};
    assert_int_equal(row->run(&run), DW_OK);
    widen(&out, result);
    dim_table_destroy(dims);
}

static const kernel_row *next_row(const fixture *f, int *index) {
    while (*index < kernel_count()) {
        const kernel_row *row = kernel_at((*index)++);
        if (row->op == OP_attention && row->device == CHIP_CPU && !row->reference && (row->needs & ~f->device->caps.features) == 0) return row;
    }
    return NULL;
}

/* 64: keys of few rows are multiplied where they lie; 40: they are not. */
static void a_row_has_the_same_bits_alone_and_among_others(void **state) {
    const fixture *f = *state;
    static float all[FLOATS], some[FLOATS];
    const kernel_row *row;
    for (int index = 0; (row = next_row(f, &index)) != NULL;) {
        for (int width = 40; width <= WIDTH; width += 24) {
            attend(f, row, width, 0, KEYS, NULL, all);
            for (int count = 1; count <= 7; count += 3) {
                for (int first = 0; first + count <= KEYS; first += 29) {
                    attend(f, row, width, first, count, NULL, some);
                    for (int head = 0; head < HEADS; head++) {
                        assert_memory_equal(some + head * count * width, all + (head * KEYS + first) * width, (size_t)(count * width) * sizeof(float));
                    }
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
        attend(&f, row, WIDTH, 0, KEYS, mask, clean);
        for (int i = 0; i < WIDTH; i++) {
            f.k[3 * WIDTH + i] = NAN;
            f.v[3 * WIDTH + i] = NAN;
            f.v[100 * WIDTH + i] = INFINITY;
        }
        attend(&f, row, WIDTH, 0, KEYS, mask, dirty);
        const float bound = format_of(&f, row) == DW_FORMAT_f32 ? 2e-6f : 0x1p-7f;   /* rows made again have weights that are not rounded */
        for (int i = 0; i < FLOATS; i++) assert_true(fabsf(clean[i] - dirty[i]) <= bound);
        attend(&f, row, WIDTH, 0, KEYS, NULL, dirty);
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
        attend(&f, row, WIDTH, 0, KEYS, NULL, result);
        for (int query = 0; query < KEYS; query++) assert_int_equal(isfinite(result[query * WIDTH]), query < 40);
    }
}

/* ---- pages ---- */

/* Keys and values [GROUPS,KEYS,WIDTH] in pages, which lie in a bad order with NaN where nothing belongs. */
typedef struct paged { int64_t page, count; int32_t table[KEYS]; dw_tensor k, v, entries; uint8_t *memory; } paged;

static void paged_create(const fixture *f, dw_format format, int64_t page, paged *p) {
    const int64_t used = base_ceil_div(KEYS, page), bytes = dw_format_bits(format) / 8;
    *p = (paged){.page = page, .count = used + 2};
    const int64_t dims[] = {p->count, GROUPS, page, WIDTH}, table_dims[] = {1, used};
    const size_t size = (size_t)(p->count * GROUPS * page * WIDTH * bytes);
    p->memory = malloc(2 * size);
    memset(p->memory, 0xff, 2 * size);
    p->k = tensor_of(format, 4, dims, p->memory);
    p->v = tensor_of(format, 4, dims, p->memory + size);
    for (int64_t i = 0; i < used; i++) p->table[i] = (int32_t)(i % 2 == 0 ? used - i / 2 : (i + 1) / 2);   /* used, 1, used - 1, 2, .. */
    p->entries = tensor_of(DW_FORMAT_i32, 2, table_dims, p->table);
    for (int64_t g = 0; g < GROUPS; g++)
        for (int64_t key = 0; key < KEYS; key++)
            for (int64_t c = 0; c < WIDTH; c++) {
                const int64_t at[] = {p->table[key / page], g, key % page, c};
                op_tensor_store(&p->k, at, (double)f->k[(g * KEYS + key) * WIDTH + c]);
                op_tensor_store(&p->v, at, (double)f->v[(g * KEYS + key) * WIDTH + c]);
            }
}

/* count queries from position first on of a text, which is a row of the table or of the cache. */
static dw_status attend_paged(const fixture *f, const kernel_row *row, pool *pool, const paged *p, bool has_table, int64_t first, int64_t count, int64_t text, float *result) {
    static float memory[2][FLOATS];
    const dw_format format = format_of(f, row);
    const int64_t all_dims[] = {1, HEADS, KEYS, WIDTH}, q_dims[] = {1, HEADS, count, WIDTH}, places_dims[] = {count};
    int64_t rows[KEYS], positions[KEYS];
    dw_tensor q = stored(format, 4, all_dims, f->q, memory[0]), out = stored(format, 4, q_dims, NULL, memory[1]);
    dw_tensor of_row = tensor_of(DW_FORMAT_i64, 1, places_dims, rows), of_position = tensor_of(DW_FORMAT_i64, 1, places_dims, positions);
    q.data = (uint8_t *)q.data + first * WIDTH * dw_format_bits(format) / 8;
    q.dims[2] = count;
    for (int64_t i = 0; i < count; i++) rows[i] = text, positions[i] = first + i;
    const op_attr items[] = {op_set_bool(OP_ATTR_causal, true), op_set_real(OP_ATTR_scale, 0.2)};
    const op_attrs attrs = {COUNT_OF(items), items};
    const dw_tensor *in[] = {&q, &p->k, &p->v, NULL, NULL, NULL, &of_row, &of_position, &p->entries}, *results[] = {&out};
    kernel_run run = {.call = {f->context, op_get(OP_attention), &attrs, NULL, has_table ? 9 : 8, in, 1, results, 0, NULL}, .pool = pool, .chip = &f->device->caps};
    const dw_status status = row->run(&run);
    if (status == DW_OK) widen(&out, result);
    return status;
}

/* In one page of all keys, which is a cache, and in pages of any size; at one thread and at two; in one call and query by query. */
static void pages_do_not_change_a_bit(void **state) {
    static const int64_t sizes[] = {1, 5, 16, 24, 32, 64, 100, 128};
    static const dw_format formats[] = {DW_FORMAT_f32, DW_FORMAT_bf16, DW_FORMAT_f16};
    static float whole[FLOATS], some[FLOATS];
    const fixture *f = *state;
    pool *pools[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pool_create(f->context, i + 1, &pools[i]), DW_OK);
    const kernel_row *row;
    for (int index = 0; (row = next_row(f, &index)) != NULL;) {
        for (size_t format = 0; format < COUNT_OF(formats); format++) {
            if (format_of(f, row) == DW_FORMAT_bf16 && formats[format] != DW_FORMAT_bf16) continue;
            paged all;
            paged_create(f, formats[format], KEYS, &all);
            dw_tensor *parts[] = {&all.k, &all.v};
            for (int i = 0; i < 2; i++) {              /* the page as the only row of a cache */
                parts[i]->data = (uint8_t *)parts[i]->data + all.table[0] * parts[i]->strides[0] * dw_format_bits(formats[format]) / 8;
                parts[i]->dims[0] = 1;
            }
            assert_int_equal(attend_paged(f, row, pools[0], &all, false, 0, KEYS, 0, whole), DW_OK);
            for (size_t i = 0; i < COUNT_OF(sizes); i++) {
                paged p;
                paged_create(f, formats[format], sizes[i], &p);
                assert_int_equal(attend_paged(f, row, pools[i % 2], &p, true, 0, KEYS, 0, some), DW_OK);
                assert_memory_equal(some, whole, sizeof whole);
                for (int64_t query = 3; query < KEYS; query += 49) {
                    assert_int_equal(attend_paged(f, row, pools[1], &p, true, query, 1, 0, some), DW_OK);
                    for (int head = 0; head < HEADS; head++) assert_memory_equal(some + head * WIDTH, whole + (head * KEYS + query) * WIDTH, WIDTH * sizeof(float));
                }
                free(p.memory);
            }
            free(all.memory);
        }
    }
    for (int i = 0; i < 2; i++) pool_destroy(pools[i]);
}

/* By the reference and by each kernel alike. */
static void a_page_or_row_that_is_none_is_refused(void **state) {
    const fixture *f = *state;
    static float result[FLOATS];
    for (int i = 0; i < kernel_count(); i++) {
        const kernel_row *row = kernel_at(i);
        if (row->device != CHIP_CPU || (row->needs & ~f->device->caps.features) != 0 || row->op != OP_attention) continue;
        paged p;
        paged_create(f, format_of(f, row), 16, &p);
        const int32_t third = p.table[2];
        test_assert_fails(f->context, attend_paged(f, row, f->device->pool, &p, true, 155, 6, 0, result), DW_INVALID,
                          "attention: query 5 stands at 160, table has room for 160 positions: 10 pages of 16");
        test_assert_fails(f->context, attend_paged(f, row, f->device->pool, &p, true, 0, 1, 1, result), DW_INVALID, "attention: row 1 of query 0 is outside table, which has 1; -1 stands for none");
        test_assert_fails(f->context, attend_paged(f, row, f->device->pool, &p, true, 0, 1, -2, result), DW_INVALID, "attention: row -2 of query 0 is outside table, which has 1; -1 stands for none");
        p.table[2] = 12;
        test_assert_fails(f->context, attend_paged(f, row, f->device->pool, &p, true, 40, 1, 0, result), DW_INVALID, "attention: table[0,2] is 12, k has 12 pages; -1 stands for none");
        assert_int_equal(attend_paged(f, row, f->device->pool, &p, true, 31, 1, 0, result), DW_OK);          /* it is not read */
        p.table[2] = -1;
        assert_int_equal(attend_paged(f, row, f->device->pool, &p, true, 40, 1, 0, result), DW_OK);
        p.table[2] = third;
        result[0] = 1;
        assert_int_equal(attend_paged(f, row, f->device->pool, &p, true, 40, 1, -1, result), DW_OK);
        for (int c = 0; c < HEADS * WIDTH; c++) assert_true(result[c] == 0);
        free(p.memory);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_has_the_same_bits_alone_and_among_others),
        cmocka_unit_test(hidden_keys_may_hold_anything),
        cmocka_unit_test(later_values_do_not_reach_earlier_queries),
        cmocka_unit_test(pages_do_not_change_a_bit),
        cmocka_unit_test(a_page_or_row_that_is_none_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
