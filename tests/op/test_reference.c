/* What the text cases cannot say: the quantiser bit for bit, FLOPs and bytes, the strides of views, tensors of every format. */
#include "support/support.h"

#include "op/op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct fixture {
    test_memory memory;
    dw_context *context;
    dim_table *dims;
} fixture;

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    if (f == NULL) return -1;
    f->context = test_context_create(&f->memory, 1);
    if (dim_table_create(f->context, &f->dims) != DW_OK) return -1;
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    dim_table_destroy(f->dims);
    dw_context_destroy(f->context);
    int live = (int)f->memory.live_count;
    free(f);
    return live;
}

/* ---- quantize ---- */

enum { BATCHES = 2, ROWS = 130, COLS = 200, COUNT = BATCHES * ROWS * COLS };

/* Normal numbers of very different rows, with zeros, a NaN and an infinity in the first matrix when special. */
static void fill_samples(float *x, bool special) {
    for (int64_t i = 0; i < COUNT; i++) x[i] = num_random_normal(7, (uint64_t)i) * ldexpf(1.0f, (int)(i / COLS % 9) - 4);
    for (int64_t i = 0; i < COLS; i++) x[3 * COLS + i] = 0;
    if (!special) return;
    x[5 * COLS + 17] = NAN;
    x[6 * COLS + 100] = INFINITY;
}

/* The same values in bf16 and in f32 whose last axis is not contiguous go the way of blocks, plain f32 that of num: all bits must agree. */
static void quantize_every_way(fixture *f, dw_format format, dw_scale_layout layout, bool floor, const float *calibrated, bool special) {
    const int64_t dims[] = {BATCHES, ROWS, COLS};
    num_parts parts;
    if (!num_layout(format, layout, 3, dims, &parts)) return;
    float *x = malloc(COUNT * sizeof *x), *spread = malloc(2 * COUNT * sizeof *spread);
    uint16_t *rounded = malloc(COUNT * sizeof *rounded);
    uint8_t *codes[3];
    fill_samples(x, special);
    for (int64_t i = 0; i < COUNT; i++) {
        rounded[i] = num_f32_to_bf16(x[i]);
        x[i] = spread[2 * i] = num_bf16_to_f32(rounded[i]);
        spread[2 * i + 1] = 1e30f;
    }
    dw_tensor in[3], out, second;
    assert_true(op_tensor_init(&in[0], DW_FORMAT_f32, DW_SCALE_plain, 3, dims, x));
    assert_true(op_tensor_init(&in[1], DW_FORMAT_bf16, DW_SCALE_plain, 3, dims, rounded));
    assert_true(op_tensor_init(&in[2], DW_FORMAT_f32, DW_SCALE_plain, 3, dims, spread));
    for (int i = 0; i < 3; i++) in[2].strides[i] *= 2;
    float second_value = calibrated != NULL ? *calibrated : 0;
    assert_true(op_tensor_init(&second, DW_FORMAT_f32, DW_SCALE_plain, 0, NULL, &second_value));
    const op_attr attrs[] = {op_set_format(OP_ATTR_to, format), op_set_bool(OP_ATTR_floor, floor)};
    op_attrs list = {2, attrs};
    for (int i = 0; i < 3; i++) {
        codes[i] = malloc(parts.total_bytes);
        memset(codes[i], 0, parts.total_bytes);
        assert_true(op_tensor_init(&out, format, layout, 3, dims, codes[i]));
        const dw_tensor *operands[] = {&in[i], &second}, *results[] = {&out};
        op_call call = {.context = f->context, .op = op_get(OP_quantize), .attrs = &list, .n_in = calibrated != NULL ? 2 : 1, .in = operands, .n_out = 1, .out = results};
        assert_int_equal(op_get(OP_quantize)->reference(&call), DW_OK);
        if (memcmp(codes[0], codes[i], parts.total_bytes) != 0)
            fail_msg("%s, layout %d, floor %d: operand %d gives other bits", dw_format_name(format), (int)layout, floor, i);
    }
    for (int i = 0; i < 3; i++) free(codes[i]);
    free(x);
    free(spread);
    free(rounded);
}

static void quantize_gives_the_same_bits_for_every_operand(void **state) {
    const float calibrated = 0.01f;
    for (int format = 0; format < DW_FORMAT_COUNT; format++) {
        if (!dw_format_is_block((dw_format)format)) continue;
        for (int layout = 0; layout < DW_SCALE_LAYOUT_COUNT; layout++) {
            for (int special = 0; special < 2; special++) {
                quantize_every_way(*state, (dw_format)format, (dw_scale_layout)layout, false, NULL, special);
                quantize_every_way(*state, (dw_format)format, (dw_scale_layout)layout, true, NULL, special);
            }
        }
    }
    quantize_every_way(*state, DW_FORMAT_nvfp4, DW_SCALE_plain, false, &calibrated, false);
}

/* What quantize writes into tiles is what tile_scales makes of what it writes plainly, or into tiles. */
static void tile_scales_is_what_quantize_writes_into_tiles(void **state) {
    const fixture *f = *state;
    const int64_t dims[] = {BATCHES, ROWS, COLS};
    float *samples = malloc(COUNT * sizeof *samples);
    fill_samples(samples, true);
    for (int format = 0; format < DW_FORMAT_COUNT; format++) {
        if (!dw_format_is_block((dw_format)format) || !num_has_layout((dw_format)format, DW_SCALE_tile128x4)) continue;
        const op_attr to = op_set_format(OP_ATTR_to, (dw_format)format);
        const op_attrs quantised = {1, &to}, none = {0, NULL};
        dw_tensor x, made[2], tiled[2];
        uint8_t *bytes[4];
        num_parts parts;
        assert_true(num_layout((dw_format)format, DW_SCALE_tile128x4, 3, dims, &parts));
        for (int i = 0; i < 4; i++) {
            bytes[i] = malloc(parts.total_bytes);
            memset(bytes[i], i < 2 ? 0 : 0xff, parts.total_bytes);
        }
        assert_true(op_tensor_init(&x, DW_FORMAT_f32, DW_SCALE_plain, 3, dims, samples));
        for (int i = 0; i < 2; i++) {
            const dw_tensor *operands[] = {&x}, *results[] = {&made[i]};
            assert_true(op_tensor_init(&made[i], (dw_format)format, (dw_scale_layout)i, 3, dims, bytes[i]));
            op_call call = {.context = f->context, .op = op_get(OP_quantize), .attrs = &quantised, .n_in = 1, .in = operands, .n_out = 1, .out = results};
            assert_int_equal(call.op->reference(&call), DW_OK);
        }
        for (int i = 0; i < 2; i++) {
            const dw_tensor *operands[] = {&made[i]}, *results[] = {&tiled[i]};
            assert_true(op_tensor_init(&tiled[i], (dw_format)format, DW_SCALE_tile128x4, 3, dims, bytes[2 + i]));
            op_call call = {.context = f->context, .op = op_get(OP_tile_scales), .attrs = &none, .n_in = 1, .in = operands, .n_out = 1, .out = results};
            assert_int_equal(call.op->reference(&call), DW_OK);
            assert_memory_equal(tiled[i].data, made[1].data, parts.data_bytes);
            assert_memory_equal(tiled[i].scales, made[1].scales, parts.scale_bytes);
            if (parts.second_bytes > 0) assert_memory_equal(tiled[i].second, made[1].second, parts.second_bytes);
        }
        for (int i = 0; i < 4; i++) free(bytes[i]);
    }
    free(samples);
}

/* ---- tensors ---- */

static void loads_agree_with_num_dequantize(void **state) {
    (void)state;
    const int64_t dims[] = {BATCHES, ROWS, COLS};
    float *x = malloc(COUNT * sizeof *x), *back = malloc(COUNT * sizeof *back);
    fill_samples(x, false);
    for (int format = 0; format < DW_FORMAT_COUNT; format++) {
        for (int layout = 0; layout < DW_SCALE_LAYOUT_COUNT; layout++) {
            num_parts parts;
            if (!dw_format_is_block((dw_format)format) || !num_layout((dw_format)format, (dw_scale_layout)layout, 3, dims, &parts)) continue;
            uint8_t *memory = calloc(1, parts.total_bytes);
            dw_tensor tensor;
            assert_true(op_tensor_init(&tensor, (dw_format)format, (dw_scale_layout)layout, 3, dims, memory));
            num_matrix matrix = {tensor.format, tensor.scale_layout, ROWS, COLS, tensor.data, tensor.scales, tensor.second, BATCHES};
            num_quantize(x, COLS, NUM_ROUND_UP, false, &matrix);
            num_dequantize(&matrix, back, COLS);
            for (int64_t i = 0; i < COUNT; i += 7) {
                const int64_t index[] = {i / (ROWS * COLS), i / COLS % ROWS, i % COLS};
                if ((float)op_tensor_load(&tensor, index) != back[i]) fail_msg("%s: element %lld", dw_format_name(tensor.format), (long long)i);
            }
            free(memory);
        }
    }
    free(x);
    free(back);
}

static void stores_round_to_the_format(void **state) {
    (void)state;
    const int64_t dims[] = {2, 3}, index[] = {1, 2};
    for (int format = 0; format < DW_FORMAT_COUNT; format++) {
        if (dw_format_is_block((dw_format)format) || format == DW_FORMAT_e8m0) continue;
        uint8_t memory[64] = {0};
        dw_tensor tensor;
        assert_true(op_tensor_init(&tensor, (dw_format)format, DW_SCALE_plain, 2, dims, memory));
        op_tensor_store(&tensor, index, 1.0);
        assert_true(op_tensor_load(&tensor, index) == 1.0);
        op_tensor_store_int(&tensor, index, 1);
        assert_int_equal(op_tensor_load_int(&tensor, index), 1);
        const int64_t before[] = {1, 1};
        assert_true(op_tensor_load(&tensor, before) == 0.0);
    }
}

/* Doubles near the ties of 16-bit formats, where rounding to float first would go wrong. */
static void sixteen_bit_stores_round_once(void **state) {
    (void)state;
    const int64_t one[] = {1}, first[] = {0};
    static const dw_format formats[] = {DW_FORMAT_bf16, DW_FORMAT_f16};
    for (size_t f = 0; f < COUNT_OF(formats); f++) {
        uint16_t code;
        dw_tensor tensor;
        assert_true(op_tensor_init(&tensor, formats[f], DW_SCALE_plain, 1, one, &code));
        for (uint64_t i = 0; i < 400000; i++) {
            double value = num_decode(formats[f], num_random(3, i) & 0xffff), next = num_decode(formats[f], (num_random(3, i) & 0xffff) + 1);
            double tie = (value + next) / 2, away = ldexp((double)num_random_uniform(4, i) - 0.5, (int)(i % 40) - 45);
            double stored = i % 3 == 0 ? tie : tie * (1 + away);
            if (isnan(stored)) continue;
            op_tensor_store(&tensor, first, stored);
            uint64_t expected = num_encode(formats[f], stored, false);
            if (code != expected) fail_msg("%s: %a is stored as %04x, expected %04x", dw_format_name(formats[f]), stored, code, (unsigned)expected);
        }
        for (size_t i = 0; i < 4; i++) {
            static const double edges[] = {1e300, -1e300, 1e-300, -1e-300};
            op_tensor_store(&tensor, first, edges[i]);
            assert_int_equal(code, num_encode(formats[f], edges[i], false));
        }
    }
}

static void tensors_too_large_are_refused(void **state) {
    (void)state;
    dw_tensor tensor;
    const int64_t huge[] = {INT64_C(1) << 40, INT64_C(1) << 40}, negative[] = {-1};
    assert_false(op_tensor_init(&tensor, DW_FORMAT_f32, DW_SCALE_plain, 2, huge, NULL));
    assert_false(op_tensor_init(&tensor, DW_FORMAT_f32, DW_SCALE_plain, 1, negative, NULL));
    assert_false(op_tensor_init(&tensor, DW_FORMAT_f32, DW_SCALE_plain, DW_MAX_RANK + 1, huge, NULL));
}

static void binding_a_negative_size_is_an_error(void **state) {
    fixture *f = *state;
    dim s = dim_symbol(f->dims, "s", 0, 10);
    const int64_t symbols[] = {2};
    op_type type = {.format = DW_FORMAT_f32, .rank = 1, .dims = {dim_sub(f->dims, s, dim_constant(f->dims, 3))}};
    dw_tensor tensor;
    test_assert_fails(f->context, op_tensor_bind(f->context, &type, symbols, NULL, &tensor), DW_INVALID, "axis 0 of a tensor comes out as -1");
}

/* ---- views ---- */

static void a_reshape_that_crosses_a_gap_has_no_view(void **state) {
    fixture *f = *state;
    const int64_t from[] = {4, 6}, merged[] = {24}, split[] = {2, 2, 3, 2};
    float memory[64];
    dw_tensor x, out, view;
    op_attr attr = op_set_dims(OP_ATTR_shape, 0, NULL);
    op_attrs attrs = {1, &attr};
    const dw_tensor *in[] = {&x}, *results[] = {&out};
    op_call call = {.context = f->context, .op = op_get(OP_reshape), .attrs = &attrs, .n_in = 1, .in = in, .n_out = 1, .out = results};
    assert_true(op_tensor_init(&x, DW_FORMAT_f32, DW_SCALE_plain, 2, from, memory));
    x.strides[0] = 8;
    assert_false(op_tensor_is_contiguous(&x));
    assert_true(op_tensor_init(&out, DW_FORMAT_f32, DW_SCALE_plain, 1, merged, NULL));
    assert_false(op_tensor_view(&call, &view));
    assert_true(op_tensor_init(&out, DW_FORMAT_f32, DW_SCALE_plain, 4, split, NULL));
    assert_true(op_tensor_view(&call, &view));
    const int64_t strides[] = {16, 8, 2, 1};
    assert_memory_equal(view.strides, strides, sizeof strides);
    assert_ptr_equal(view.data, memory);
}

/* Steps round towards 0, so a start behind the end is a case of its own. */
static void a_slice_that_begins_behind_the_end_has_no_view(void **state) {
    fixture *f = *state;
    const int64_t sizes[] = {1, 4}, one[] = {1, 4}, none[] = {0, 4};
    float memory[4] = {0};
    dw_tensor x, out, view;
    const op_attr items[] = {op_set_int(OP_ATTR_axis, 0), op_set_dim(OP_ATTR_start, dim_constant(f->dims, 1)), op_set_int(OP_ATTR_step, 3)};
    op_attrs attrs = {COUNT_OF(items), items};
    const dw_tensor *in[] = {&x}, *results[] = {&out};
    op_call call = {.context = f->context, .op = op_get(OP_slice), .attrs = &attrs, .n_in = 1, .in = in, .n_out = 1, .out = results};
    assert_true(op_tensor_init(&x, DW_FORMAT_f32, DW_SCALE_plain, 2, sizes, memory));
    assert_true(op_tensor_init(&out, DW_FORMAT_f32, DW_SCALE_plain, 2, one, NULL));
    assert_false(op_tensor_view(&call, &view));
    test_assert_fails(f->context, call.op->reference(&call), DW_INVALID, "start or end lies outside the axis, which has size 1");
    assert_true(op_tensor_init(&out, DW_FORMAT_f32, DW_SCALE_plain, 2, none, NULL));
    assert_true(op_tensor_view(&call, &view));
}

/* A tensor of that shape in memory of the C library, full of normal numbers, quantised. */
static dw_tensor quantised(fixture *f, dw_format format, const int64_t *dims) {
    dw_tensor x, y;
    num_parts parts;
    const dw_tensor *in[] = {&x}, *results[] = {&y};
    const op_attr to = op_set_format(OP_ATTR_to, format);
    assert_true(num_layout(format, DW_SCALE_plain, 3, dims, &parts));
    assert_true(op_tensor_init(&x, DW_FORMAT_f32, DW_SCALE_plain, 3, dims, malloc((size_t)(dims[0] * dims[1] * dims[2]) * sizeof(float))));
    assert_true(op_tensor_init(&y, format, DW_SCALE_plain, 3, dims, malloc(parts.total_bytes)));
    for (int64_t i = 0; i < dims[0] * dims[1] * dims[2]; i++) ((float *)x.data)[i] = num_random_normal(1, (uint64_t)i) * (float)(1 + i % 7);
    const op_call call = {.context = f->context, .op = op_get(OP_quantize), .attrs = &(op_attrs){1, &to}, .n_in = 1, .in = in, .n_out = 1, .out = results};
    assert_int_equal(call.op->reference(&call), DW_OK);
    free(x.data);
    return y;
}

/* Codes and scales of the blocks that it takes, so each number is what it was. */
static void a_slice_of_blocks_has_their_numbers(void **state) {
    static const struct { int64_t axis, start, end; } cuts[] = {{0, 1, 3}, {1, 128, 256}, {1, 0, 128}, {2, 128, 300}, {2, 0, 128}, {2, 256, 300}, {0, 0, 0}};
    const int64_t dims[] = {3, 300, 300};
    fixture *f = *state;
    for (int format = 0; format < DW_FORMAT_COUNT; format++) {
        if (!dw_format_is_block((dw_format)format)) continue;
        dw_tensor x = quantised(f, (dw_format)format, dims);
        for (size_t i = 0; i < COUNT_OF(cuts); i++) {
            int64_t sizes[] = {3, 300, 300};
            dw_tensor y;
            num_parts parts;
            const dw_tensor *in[] = {&x}, *results[] = {&y};
            const op_attr attrs[] = {op_set_int(OP_ATTR_axis, cuts[i].axis), op_set_dim(OP_ATTR_start, dim_constant(f->dims, cuts[i].start)), op_set_dim(OP_ATTR_end, dim_constant(f->dims, cuts[i].end)), op_set_int(OP_ATTR_step, 1)};
            sizes[cuts[i].axis] = cuts[i].end - cuts[i].start;
            assert_true(num_layout(x.format, DW_SCALE_plain, 3, sizes, &parts));
            assert_true(op_tensor_init(&y, x.format, DW_SCALE_plain, 3, sizes, malloc(parts.total_bytes + 1)));
            const op_call call = {.context = f->context, .op = op_get(OP_slice), .attrs = &(op_attrs){COUNT_OF(attrs), attrs}, .n_in = 1, .in = in, .n_out = 1, .out = results};
            if (call.op->reference(&call) != DW_OK) fail_msg("%s: %s", dw_format_name(x.format), dw_context_error(f->context));
            int64_t at[3] = {0};
            for (int64_t k = 0; k < op_tensor_count(&y); k++, op_tensor_next(&y, at)) {
                int64_t there[] = {at[0], at[1], at[2]};
                there[cuts[i].axis] += cuts[i].start;
                if (op_tensor_load(&y, at) != op_tensor_load(&x, there)) fail_msg("%s, axis %d from %d: another number at %d", dw_format_name(x.format), (int)cuts[i].axis, (int)cuts[i].start, (int)k);
            }
            free(y.data);
        }
        free(x.data);
    }
}

/* ---- work ---- */

static op_work work_of(fixture *f, op_id id, const op_attrs *attrs, int n_in, const dw_tensor *const *in, const dw_tensor *out) {
    op_work work;
    const dw_tensor *results[] = {out};
    op_call call = {.context = f->context, .op = op_get(id), .attrs = attrs, .n_in = n_in, .in = in, .n_out = 1, .out = results};
    op_get(id)->work(&call, &work);
    return work;
}

static dw_tensor shaped(dw_format format, int rank, const int64_t *dims) {
    dw_tensor tensor;
    assert_true(op_tensor_init(&tensor, format, DW_SCALE_plain, rank, dims, NULL));
    return tensor;
}

static void a_matmul_costs_two_m_n_k(void **state) {
    const op_attr attrs[] = {op_set_bool(OP_ATTR_bt, true), op_set_text(OP_ATTR_post, "swiglu")};
    dw_tensor a = shaped(DW_FORMAT_f32, 3, (const int64_t[]){2, 3, 64}), b = shaped(DW_FORMAT_mxfp8, 2, (const int64_t[]){10, 64});
    dw_tensor out = shaped(DW_FORMAT_f32, 3, (const int64_t[]){2, 3, 5});
    op_work work = work_of(*state, OP_matmul, &(op_attrs){2, attrs}, 2, (const dw_tensor *const[]){&a, &b}, &out);
    assert_true(work.flops == 2.0 * 6 * 10 * 64);
    assert_true(work.bytes_read == 6 * 64 * 4 + 10 * 64 + 10 * 2);   /* an 8-bit scale for each 32 elements */
    assert_true(work.bytes_written == 6 * 5 * 4);
}

static void causal_attention_counts_the_pairs_it_sees(void **state) {
    const op_attr causal[] = {op_set_bool(OP_ATTR_causal, true)}, windowed[] = {op_set_bool(OP_ATTR_causal, true), op_set_int(OP_ATTR_window, 2)};
    dw_tensor q = shaped(DW_FORMAT_f32, 4, (const int64_t[]){2, 4, 6, 8}), k = shaped(DW_FORMAT_f32, 4, (const int64_t[]){2, 2, 6, 8});
    const dw_tensor *in[] = {&q, &k, &k};
    op_attrs none = {0, NULL};
    assert_true(work_of(*state, OP_attention, &none, 3, in, &q).flops == 2.0 * 16 * 36 * 8);
    assert_true(work_of(*state, OP_attention, &(op_attrs){1, causal}, 3, in, &q).flops == 2.0 * 16 * 21 * 8);
    assert_true(work_of(*state, OP_attention, &(op_attrs){2, windowed}, 3, in, &q).flops == 2.0 * 16 * 11 * 8);
}

/* Beside a count query by query; then of sizes that no count would come to the end of. */
static void pairs_are_counted_at_any_size(void **state) {
    fixture *f = *state;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        int64_t r[8];
        for (uint64_t i = 0; i < COUNT_OF(r); i++) r[i] = (int64_t)(num_random(seed, i) >> 33);
        const int64_t queries = r[0] % 24, keys = r[1] % 24, offset = r[2] % 60 - 30;
        const op_attr items[] = {op_set_bool(OP_ATTR_causal, r[3] % 2 == 0), op_set_int(OP_ATTR_window, r[4] % 2 * (r[5] % 20)), op_set_int(OP_ATTR_ahead, r[6] % 2 * (r[7] % 20)), op_set_dim(OP_ATTR_offset, dim_constant(f->dims, offset))};
        const op_attrs attrs = {COUNT_OF(items), items};
        dw_tensor q = shaped(DW_FORMAT_f32, 4, (const int64_t[]){2, 4, queries, 8}), k = shaped(DW_FORMAT_f32, 4, (const int64_t[]){2, 2, keys, 8});
        const dw_tensor v = k, *in[] = {&q, &k, &v};
        const op_call call = {.context = f->context, .op = op_get(OP_attention), .attrs = &attrs, .n_in = 3, .in = in};
        op_attention_view view;
        double pairs = 0;
        int64_t first = INT64_MAX, end = 0;
        assert_int_equal(op_attention_view_of(&call, &view), DW_OK);
        for (int64_t i = 0; i < queries; i++) {
            const op_attention_span seen = op_attention_seen(&view, i);
            pairs += (double)(seen.end - seen.begin);
            if (seen.end > seen.begin && seen.begin < first) first = seen.begin;
            if (seen.end > seen.begin && seen.end > end) end = seen.end;
        }
        const op_work work = work_of(f, OP_attention, &attrs, 3, in, &q);
        const double read = end > first ? (double)(end - first) : 0;
        if (work.flops != 2.0 * 16 * 8 * pairs) fail_msg("seed %d: %g FLOPs for %g pairs", (int)seed, work.flops, 8 * pairs);
        if (fabs(work.bytes_read - (8.0 * (double)queries * 32 + 2 * 4 * 32 * read)) > 1e-6) fail_msg("seed %d: %g bytes for %d queries and %g keys of %d", (int)seed, work.bytes_read, (int)queries, read, (int)keys);
    }
    const int64_t tokens = INT64_C(1) << 50;
    const op_attr causal[] = {op_set_bool(OP_ATTR_causal, true), op_set_int(OP_ATTR_window, INT64_MAX)};
    dw_tensor q = shaped(DW_FORMAT_f32, 4, (const int64_t[]){1, 1, tokens, 8});
    const dw_tensor *in[] = {&q, &q, &q};
    const double expected = 2.0 * 16 * ((double)tokens / 2) * ((double)tokens + 1);
    assert_true(fabs(work_of(f, OP_attention, &(op_attrs){2, causal}, 3, in, &q).flops - expected) < 1e-12 * expected);
}

static void take_reads_only_what_it_takes(void **state) {
    const op_attr attrs[] = {op_set_int(OP_ATTR_axis, 0)};
    dw_tensor x = shaped(DW_FORMAT_bf16, 2, (const int64_t[]){1000, 16}), i = shaped(DW_FORMAT_i64, 1, (const int64_t[]){3});
    dw_tensor out = shaped(DW_FORMAT_bf16, 2, (const int64_t[]){3, 16});
    op_work work = work_of(*state, OP_take, &(op_attrs){1, attrs}, 2, (const dw_tensor *const[]){&x, &i}, &out);
    assert_true(work.flops == 0 && work.bytes_read == 3 * 8 + 3 * 32 && work.bytes_written == 3 * 32);
}

static void a_conv_costs_two_for_each_tap(void **state) {
    op_attrs none = {0, NULL};
    dw_tensor x = shaped(DW_FORMAT_f32, 3, (const int64_t[]){1, 4, 10}), w = shaped(DW_FORMAT_f32, 3, (const int64_t[]){6, 4, 3});
    dw_tensor out = shaped(DW_FORMAT_f32, 3, (const int64_t[]){1, 6, 8});
    assert_true(work_of(*state, OP_conv, &none, 2, (const dw_tensor *const[]){&x, &w}, &out).flops == 2.0 * 6 * 8 * 4 * 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(quantize_gives_the_same_bits_for_every_operand, set_up, tear_down),
        cmocka_unit_test_setup_teardown(tile_scales_is_what_quantize_writes_into_tiles, set_up, tear_down),
        cmocka_unit_test(loads_agree_with_num_dequantize),
        cmocka_unit_test(stores_round_to_the_format),
        cmocka_unit_test(sixteen_bit_stores_round_once),
        cmocka_unit_test(tensors_too_large_are_refused),
        cmocka_unit_test_setup_teardown(binding_a_negative_size_is_an_error, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_reshape_that_crosses_a_gap_has_no_view, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_slice_that_begins_behind_the_end_has_no_view, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_slice_of_blocks_has_their_numbers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_matmul_costs_two_m_n_k, set_up, tear_down),
        cmocka_unit_test_setup_teardown(causal_attention_counts_the_pairs_it_sees, set_up, tear_down),
        cmocka_unit_test_setup_teardown(pairs_are_counted_at_any_size, set_up, tear_down),
        cmocka_unit_test_setup_teardown(take_reads_only_what_it_takes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_conv_costs_two_for_each_tap, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
