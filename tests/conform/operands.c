/* Operands of lines, with random elements of a seed, and results beside their references. */
#include "conform/conform.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

block block_create(size_t length, int fill) {
    block b = {aligned_alloc(64, base_align_up(length + GUARD, 64)), length};
    assert_non_null(b.bytes);
    memset(b.bytes, fill, length);
    memset(b.bytes + length, 0x5a, GUARD);
    return b;
}

bool block_is_whole(const block *b) {
    for (int i = 0; i < GUARD; i++) {
        if (b->bytes[b->length + (size_t)i] != 0x5a) return false;
    }
    return true;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sort(dw_tensor *t, int64_t count) {
    double *values = malloc((size_t)(count + 1) * sizeof *values);
    for (int64_t i = 0; i < count; i++) values[i] = num_load(t->format, t->data, i);
    qsort(values, (size_t)count, sizeof *values, by_value);
    for (int64_t i = 0; i < count; i++) num_store(t->format, t->data, i, values[i], isfinite(values[i]) != 0);
    free(values);
}

/* The elements that operand 0 is quantised from, as they are in the format of plain. */
static void round_to_plain(float *x, int64_t count, dw_tensor *plain) {
    for (int64_t i = 0; i < count; i++) {
        num_store(plain->format, plain->data, i, (double)x[i], isfinite(x[i]) != 0);
        x[i] = (float)num_load(plain->format, plain->data, i);
    }
}

/* plain: what it is quantised from, where that is there. */
static void fill_dense(const kernel_case *c, int index, uint64_t seed, dw_tensor *t, dw_tensor *plain) {
    int64_t count = op_tensor_count(t);
    const kernel_range *range = &c->ranges[index];
    uint64_t stream = seed * 64 + (uint64_t)index;
    if (dw_format_is_block(t->format)) {
        int64_t cols = t->dims[t->rank - 1], rows = t->rank > 1 ? t->dims[t->rank - 2] : 1;
        float *x = malloc((size_t)(count + 1) * sizeof *x);
        for (int64_t i = 0; i < count; i++) {
            x[i] = range->given ? (float)(range->low + (double)num_random_uniform(stream, (uint64_t)i) * (range->high - range->low)) : num_random_normal(stream, (uint64_t)i);
            if ((c->special >> index & 1) != 0 && i % 701 == 3) x[i] = plain->data != NULL && i % 2 == 0 && num_info(t->format)->cols == 0 ? INFINITY : NAN;
            if (plain->data != NULL && i / 128 % 5 == 4) x[i] = 0;       /* blocks of nothing else */
            double value = (double)x[i];
            kernel_case_element(c, index, seed, i, cols, &value);
            x[i] = (float)value;
        }
        if (plain->data != NULL) round_to_plain(x, count, plain);
        num_matrix m = {.format = t->format, .layout = t->scale_layout, .rows = rows, .cols = cols, .data = t->data, .scales = t->scales, .second = t->second,
                        .batches = cols * rows > 0 ? count / (cols * rows) : 1};
        num_quantize(x, cols, plain->data != NULL && c->plain_searches ? NUM_ROUND_SEARCH : NUM_ROUND_UP, false, &m);
        free(x);
        return;
    }
    num_class class = num_info(t->format)->class;
    for (int64_t i = 0; i < count; i++) {
        double low = range->given ? range->low : class == NUM_BOOL ? 0 : -3, high = range->given ? range->high : class == NUM_BOOL ? 1 : 3;
        double value = class == NUM_FLOAT && !range->given ? (double)num_random_normal(stream, (uint64_t)i)
                                                           : low + (double)num_random_uniform(stream, (uint64_t)i) * (high - low + (class == NUM_FLOAT ? 0 : 1));
        if (class != NUM_FLOAT) value = floor(value < high ? value : high);
        static const double specials[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0};
        if ((c->special >> index & 1) != 0 && class == NUM_FLOAT && i % 7 == 3) value = specials[num_random(stream, (uint64_t)i) % COUNT_OF(specials)];
        kernel_case_element(c, index, seed, i, t->rank > 0 ? t->dims[t->rank - 1] : 1, &value);
        num_store(t->format, t->data, i, value, isfinite(value) != 0);
    }
    if (c->ascending >> index & 1) sort(t, count);
}

/* The same elements with the gaps that the line asks for. */
static void make_strided(const kernel_case *c, int index, operand *o) {
    dw_tensor *t = &o->strided;
    *t = o->dense;
    const int64_t reach = kernel_case_set_apart(c, index, t);
    if (reach == 0) return;
    size_t size = (size_t)dw_format_bits(t->format) / 8;
    o->gaps = block_create((size_t)reach * size, 0xff);
    t->data = o->gaps.bytes;
    int64_t count = op_tensor_count(t);
    for (int64_t i = 0; i < count; i++) {
        int64_t left = i, offset = 0;
        for (int axis = t->rank - 1; axis >= 0; axis--) {
            offset += left % t->dims[axis] * t->strides[axis];
            left /= t->dims[axis];
        }
        memcpy(o->gaps.bytes + (size_t)offset * size, (uint8_t *)o->dense.data + (size_t)i * size, size);
    }
}

void operand_create(const kernel_case *c, int index, uint64_t seed, operand *o) {
    *o = (operand){0};
    if (c->in[index] == NULL) return;
    assert_int_equal(op_tensor_bind(NULL, c->in[index], NULL, NULL, &o->dense), DW_OK);
    num_parts parts;
    assert_true(num_layout(o->dense.format, o->dense.scale_layout, o->dense.rank, o->dense.dims, &parts));
    o->memory = block_create(parts.total_bytes, 0);
    dw_tensor shape = o->dense;
    assert_true(op_tensor_init(&o->dense, shape.format, shape.scale_layout, shape.rank, shape.dims, o->memory.bytes));
    if (index == 0 && c->plain != DW_FORMAT_COUNT) {
        o->of_plain = block_create((size_t)op_tensor_count(&shape) * (size_t)dw_format_bits(c->plain) / 8, 0);
        assert_true(op_tensor_init(&o->plain, c->plain, DW_SCALE_plain, shape.rank, shape.dims, o->of_plain.bytes));
    }
    fill_dense(c, index, seed, &o->dense, &o->plain);
    make_strided(c, index, o);
}

void operand_destroy(operand *o) {
    free(o->memory.bytes);
    free(o->gaps.bytes);
    free(o->of_plain.bytes);
}

/* ---- results ---- */

void result_create(const kernel_case *c, int index, int64_t gap, result *r) {
    dw_tensor shape;
    assert_int_equal(op_tensor_bind(NULL, c->out[index], NULL, NULL, &shape), DW_OK);
    num_parts parts;
    assert_true(num_layout(shape.format, shape.scale_layout, shape.rank, shape.dims, &parts));
    const bool padded = gap > 0 && shape.rank >= 2 && !dw_format_is_block(shape.format);
    size_t bytes = parts.total_bytes;
    if (padded) bytes = bytes / (size_t)(shape.dims[shape.rank - 1] > 0 ? shape.dims[shape.rank - 1] : 1) * (size_t)(shape.dims[shape.rank - 1] + gap);
    r->memory = block_create(bytes, 0xff);
    assert_true(op_tensor_init(&r->tensor, shape.format, shape.scale_layout, shape.rank, shape.dims, r->memory.bytes));
    if (!padded) return;
    int64_t stride = shape.dims[shape.rank - 1] + gap;
    for (int axis = shape.rank - 2; axis >= 0; axis--) {
        r->tensor.strides[axis] = stride;
        stride *= shape.dims[axis];
    }
}

/* Are the gaps of a padded result untouched? */
bool gaps_are_whole(const result *r) {
    const dw_tensor *t = &r->tensor;
    if (t->rank < 2 || op_tensor_is_contiguous(t) || dw_format_is_block(t->format)) return true;
    size_t size = (size_t)dw_format_bits(t->format) / 8, row = (size_t)t->strides[t->rank - 2] * size, used = (size_t)t->dims[t->rank - 1] * size;
    for (size_t at = 0; at + row <= r->memory.length; at += row) {
        for (size_t i = used; i < row; i++) {
            if (r->memory.bytes[at + i] != 0xff) return false;
        }
    }
    return true;
}

static void index_of(const dw_tensor *t, int64_t flat, int64_t *index) {
    for (int axis = t->rank - 1; axis >= 0; axis--) {
        index[axis] = flat % t->dims[axis];
        flat /= t->dims[axis];
    }
}

/* The first difference beyond the bound, as text; false when there is none. */
bool differs(const program *p, const kernel_case *c, const result *got, const result *reference, char *text, size_t room) {
    const dw_tensor *a = &got->tensor, *b = &reference->tensor;
    const num_format *info = num_info(a->format);
    if (info->class == NUM_BLOCK) {
        num_parts parts;
        assert_true(num_layout(a->format, a->scale_layout, a->rank, a->dims, &parts));
        size_t at = 0;
        while (at < got->memory.length && (got->memory.bytes[at] == reference->memory.bytes[at] || (options.unwritten && !num_is_part(&parts, at)))) at++;
        if (at == got->memory.length) return false;
        snprintf(text, room, "byte %zu is %02x, the reference has %02x", at, got->memory.bytes[at], reference->memory.bytes[at]);
        return true;
    }
    int64_t count = op_tensor_count(a), index[DW_MAX_RANK];
    double largest = 0;
    for (int64_t i = 0; i < count; i++) {
        index_of(b, i, index);
        double y = fabs(op_tensor_load(b, index));
        if (isfinite(y) && y > largest) largest = y;
    }
    double step = info->class == NUM_FLOAT && info->bits <= 16 ? ldexp(1.0, -info->mantissa_bits - 1) : 0;
    for (int64_t i = 0; i < count; i++) {
        index_of(b, i, index);
        double x = op_tensor_load(a, index), y = op_tensor_load(b, index);
        bool equal = x == y || (isnan(x) && isnan(y));
        if (info->class == NUM_FLOAT && isfinite(y) && isfinite(x)) equal = fabs(x - y) <= c->bound * largest + 2 * step * fabs(y) + p->lost;
        if (equal) continue;
        snprintf(text, room, "element %lld is %.9g, the reference has %.9g (largest %.3g)", (long long)i, x, y, largest);
        return true;
    }
    return false;
}
