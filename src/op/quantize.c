/* quantize and dequantize: between element formats and block formats. The rules of scales and elements are num's; this file brings any tensor to them,
 * and what other ops compute element by element, without memory of its own: a block at a time, preceded by what the scales above the block depend on. */
#include "op/family.h"

#include <math.h>
#include <string.h>

enum { BLOCK_ROWS = 128, BLOCK_COLS = 128 };   /* the largest block of any format */

/* ---- inference ---- */

bool op_has_level(const op_attrs *attrs) { return op_attrs_get(attrs, OP_ATTR_level) != NULL; }
float op_level(const op_attrs *attrs) { return (float)op_attr_real(attrs, OP_ATTR_level); }

static dw_status check_level(op_infer *infer, dw_format to) {
    if (!op_has_level(infer->attrs)) return DW_OK;
    const float level = op_level(infer->attrs);
    if (to == DW_FORMAT_COUNT || !op_is_block(to) || num_info(to)->second != 1)
        return base_fail(infer->context, DW_INVALID, "%s: %s has no second level of the whole tensor; leave level out", infer->op->name, to == DW_FORMAT_COUNT ? "the result" : dw_format_name(to));
    if (level > 0 && isfinite(level)) return DW_OK;
    return base_fail(infer->context, DW_INVALID, "%s: level is %g; it must be a positive number", infer->op->name, (double)level);
}

static dw_status infer_quantize(op_infer *infer) {
    const op_type *x = infer->in[0];
    dw_format to = op_attr_format(infer->attrs, OP_ATTR_to);
    TRY(op_check_number(infer, "x", x));
    TRY(op_check_float(infer, "x", x));
    TRY(op_check_rank(infer, "x", x, 1, DW_MAX_RANK));
    if (!op_is_block(to))
        return base_fail(infer->context, DW_INVALID, "quantize: to is %s, which is no block format; use cast", dw_format_name(to));
    bool searches = op_attr_bool(infer->attrs, OP_ATTR_search);
    if (searches && !num_can_search(to))
        return base_fail(infer->context, DW_INVALID, "quantize: scales of %s cannot be searched for, only those over e2m1 elements; leave search out", dw_format_name(to));
    if (searches && op_attr_bool(infer->attrs, OP_ATTR_floor))
        return base_fail(infer->context, DW_INVALID, "quantize: floor and search are two rules for the same scales; give one");
    TRY(check_level(infer, to));
    if (infer->n_in == 2 && infer->in[1] != NULL) {
        if (op_has_level(infer->attrs)) return base_fail(infer->context, DW_INVALID, "quantize: the second-level scale is operand 1, and level is given, too; leave one out");
        if (num_info(to)->second != 1)
            return base_fail(infer->context, DW_INVALID, "quantize: %s has no second-level scale of the whole tensor; leave operand 1 out", dw_format_name(to));
        TRY(op_check_rank(infer, "the second-level scale", infer->in[1], 0, 0));
        if (infer->in[1]->format != DW_FORMAT_f32)
            return base_fail(infer->context, DW_MISMATCH, "quantize: the second-level scale is %s, it must be f32", dw_format_name(infer->in[1]->format));
    }
    *infer->out = *x;
    infer->out->format = to;
    return DW_OK;
}

static dw_status infer_tile_scales(op_infer *infer) {
    const op_type *x = infer->in[0];
    TRY(op_check_rank(infer, "x", x, 1, DW_MAX_RANK));
    if (!op_is_block(x->format) || !num_has_layout(x->format, DW_SCALE_tile128x4))
        return base_fail(infer->context, DW_MISMATCH, "tile_scales: x is %s, which has no block scales of one byte", dw_format_name(x->format));
    *infer->out = *x;
    infer->out->scale_layout = DW_SCALE_tile128x4;
    return DW_OK;
}

dw_status quantize_infer(op_infer *infer) {
    if (infer->op->id == OP_quantize) return infer_quantize(infer);
    if (infer->op->id == OP_tile_scales) return infer_tile_scales(infer);
    const op_type *x = infer->in[0];
    if (!op_is_block(x->format))
        return base_fail(infer->context, DW_MISMATCH, "dequantize: x is %s, which is no block format; use cast", dw_format_name(x->format));
    *infer->out = *x;
    infer->out->format = op_attr_format(infer->attrs, OP_ATTR_to);
    infer->out->scale_layout = DW_SCALE_plain;
    TRY(op_check_number(infer, "the result", infer->out));
    return op_check_float(infer, "the result", infer->out);
}

/* ---- quantize ---- */

/* Elements as matrices of rows; lines are the rows of all matrices, counted through. */
typedef struct source {
    op_element element;
    void *argument;
    int64_t matrices, rows, cols;
    num_round round;
    bool has_second;
    num_matrix out;
    const num_format *info;
    int64_t scale_rows, scale_cols;
} source;

static int64_t line_offset(const dw_tensor *x, int64_t line) {
    int64_t offset = 0;
    for (int axis = x->rank - 2; axis >= 0; axis--) {
        offset += line % x->dims[axis] * x->strides[axis];
        line /= x->dims[axis];
    }
    return offset;
}

static float tensor_element(void *argument, int64_t line, int64_t col) {
    const dw_tensor *x = argument;
    return (float)op_load_at(x, line_offset(x, line) + col * x->strides[x->rank - 1]);
}

/* The largest magnitude of lines [begin, end); NaN if any is NaN and keeps_nan. */
static float lines_amax(const source *s, int64_t begin, int64_t end, bool keeps_nan) {
    float amax = 0;
    for (int64_t line = begin; line < end; line++) {
        for (int64_t col = 0; col < s->cols; col++) {
            float value = fabsf(s->element(s->argument, line, col));
            if (isnan(value) && keeps_nan) return value;
            if (value > amax) amax = value;
        }
    }
    return amax;
}

/* The block of rows x cols elements from (row, col) of a matrix on. lead: elements put before it, the first of which is amax; they take part in the scales
 * (and, when they fill a block of their own, only in the level above) and are dropped. */
typedef struct block { int64_t matrix, row, col, rows, cols, lead; float amax; } block;

static void quantize_block(const source *s, const block *b) {
    float values[BLOCK_ROWS * BLOCK_COLS];
    uint8_t codes[BLOCK_ROWS * BLOCK_COLS], scales[4 * sizeof(float)];
    float second[1] = {s->has_second ? s->out.second[0] : 0};
    int64_t width = b->lead + b->cols;
    for (int64_t row = 0; row < b->rows; row++) {
        int64_t line = b->matrix * s->rows + b->row + row;
        for (int64_t col = 0; col < b->lead; col++) values[row * width + col] = col == 0 ? b->amax : 0;
        for (int64_t col = 0; col < b->cols; col++) values[row * width + b->lead + col] = s->element(s->argument, line, b->col + col);
    }
    num_matrix part = {.format = s->out.format, .layout = DW_SCALE_plain, .rows = b->rows, .cols = width, .data = codes, .scales = scales,
                       .second = s->info->second > 0 ? second : NULL, .batches = 1};
    num_quantize(values, width, s->round, s->has_second, &part);

    size_t row_bytes = num_row_bytes(part.format, width), lead_bytes = num_row_bytes(part.format, b->lead), out_bytes = num_row_bytes(part.format, s->cols);
    for (int64_t row = 0; row < b->rows; row++) {
        uint8_t *to = s->out.data + (size_t)(b->matrix * s->rows + b->row + row) * out_bytes + num_row_bytes(part.format, b->col);
        memcpy(to, codes + (size_t)row * row_bytes + lead_bytes, row_bytes - lead_bytes);
    }
    size_t scale_bytes = (size_t)num_info(s->info->scale)->bits / 8, from = b->lead > 0 && s->info->cols > 0 ? 1 : 0;
    int64_t row_block = s->info->rows > 0 ? b->row / s->info->rows : 0, col_block = s->info->cols > 0 ? b->col / s->info->cols : 0;
    size_t to = num_scale_index(s->out.layout, row_block, col_block, s->scale_cols);
    if (s->info->rows > 0) to += (size_t)(b->matrix * s->scale_rows * s->scale_cols);
    memcpy((uint8_t *)s->out.scales + to * scale_bytes, scales + from * scale_bytes, scale_bytes);
    if (s->info->second > 0 && !s->has_second) s->out.second[s->info->second == 1 ? 0 : b->matrix * s->rows + b->row] = second[0];
}

static void quantize_blocks(const source *s) {
    bool over_tensor = s->info->rows == 0 || s->info->second == 1, over_row = s->info->cols == 0 || s->info->second == 2;
    bool needs_lead = s->info->cols == 0 || (s->info->second > 0 && !s->has_second), keeps_nan = s->info->cols == 0;
    int64_t lead = !needs_lead ? 0 : s->info->cols > 0 ? s->info->cols : 1;
    int64_t rows = s->info->rows > 0 ? s->info->rows : 1, cols = s->info->cols > 0 ? s->info->cols : BLOCK_COLS - 1;
    float amax = needs_lead && over_tensor ? lines_amax(s, 0, s->matrices * s->rows, keeps_nan) : 0;
    for (int64_t matrix = 0; matrix < s->matrices; matrix++) {
        for (int64_t row = 0; row < s->rows; row += rows) {
            int64_t line = matrix * s->rows + row;
            if (needs_lead && over_row && !over_tensor) amax = lines_amax(s, line, line + 1, keeps_nan);
            for (int64_t col = 0; col < s->cols; col += cols) {
                block b = {matrix, row, col, s->rows - row < rows ? s->rows - row : rows, s->cols - col < cols ? s->cols - col : cols, lead, amax};
                quantize_block(s, &b);
            }
        }
    }
}

/* fp32 rows at one distance, elements side by side: what num_quantize reads directly. */
static bool is_plain_rows(const dw_tensor *x, int64_t *row_stride) {
    int last = x->rank - 1;
    *row_stride = x->rank > 1 ? x->strides[last - 1] : 0;
    if (x->format != DW_FORMAT_f32 || (x->dims[last] > 1 && x->strides[last] != 1)) return false;
    for (int i = last - 2; i >= 0; i--)
        if (x->strides[i] != x->strides[i + 1] * x->dims[i + 1]) return false;
    return true;
}

num_round op_quantize_round(const op_attrs *attrs) {
    if (op_attr_bool(attrs, OP_ATTR_search)) return NUM_ROUND_SEARCH;
    return op_attr_bool(attrs, OP_ATTR_floor) ? NUM_ROUND_FLOOR : NUM_ROUND_UP;
}

static dw_status start(const op_call *call, const dw_tensor *out, op_element element, void *argument, source *s) {
    num_parts parts;
    if (!num_layout(out->format, out->scale_layout, out->rank, out->dims, &parts))
        return base_fail(call->context, DW_LIMIT, "%s: the result is too large to address", call->op->name);
    *s = (source){
        .element = element,
        .argument = argument,
        .out = op_tensor_matrix(out),
        .info = num_info(out->format),
        .scale_rows = parts.scale_rows,
        .scale_cols = parts.scale_cols,
        .round = op_quantize_round(call->attrs),
        .has_second = op_has_level(call->attrs),
    };
    if (s->has_second) out->second[0] = op_level(call->attrs);
    s->matrices = s->out.batches;
    s->rows = s->out.rows;
    s->cols = s->out.cols;
    if (parts.scale_bytes > 0) memset(out->scales, 0, parts.scale_bytes);   /* the padding of tile128x4 */
    return DW_OK;
}

static void finish(source *s) {
    const float none = 0;
    if (s->matrices == 0) return;
    if (s->rows == 0 || s->cols == 0) num_quantize(&none, 0, s->round, s->has_second, &s->out);
    else quantize_blocks(s);
}

dw_status op_check_row_blocks(op_infer *infer, dw_format to) {
    if (num_is_row_wise(to, false)) return DW_OK;
    return base_fail(infer->context, DW_INVALID, "%s: to is %s, whose scales span rows; quantize the plain result", infer->op->name, dw_format_name(to));
}

dw_status op_check_via(op_infer *infer, bool *in_blocks) {
    dw_format to = op_attr_format(infer->attrs, OP_ATTR_to), via = op_attr_format(infer->attrs, OP_ATTR_via);
    *in_blocks = to != DW_FORMAT_COUNT && op_is_block(to);
    TRY(check_level(infer, to));
    if (*in_blocks && !op_has_level(infer->attrs)) TRY(op_check_row_blocks(infer, to));
    if (via == DW_FORMAT_COUNT) return DW_OK;
    if (!*in_blocks) return base_fail(infer->context, DW_INVALID, "%s: via is %s, and to is no block format; leave via out", infer->op->name, dw_format_name(via));
    if (op_is_via(via)) return DW_OK;
    return base_fail(infer->context, DW_INVALID, "%s: via is %s; it must be f32, f16 or bf16", infer->op->name, dw_format_name(via));
}

bool op_is_via(dw_format via) { return via == DW_FORMAT_f32 || via == DW_FORMAT_bf16 || via == DW_FORMAT_f16; }

dw_format op_via(const op_attrs *attrs) {
    dw_format via = op_attr_format(attrs, OP_ATTR_via);
    return via != DW_FORMAT_COUNT ? via : DW_FORMAT_f32;
}

dw_status op_quantize_elements(const op_call *call, const dw_tensor *out, op_element element, void *argument) {
    source s;
    TRY(start(call, out, element, argument, &s));
    finish(&s);
    return DW_OK;
}

static dw_status quantize_all(const op_call *call) {
    const dw_tensor *second = call->n_in > 1 ? call->in[1] : NULL, *out = call->out[0];
    dw_tensor x = *call->in[0];
    source s;
    int64_t row_stride;
    TRY(start(call, out, tensor_element, &x, &s));
    s.has_second = s.has_second || second != NULL;
    if (second != NULL) out->second[0] = (float)op_load_at(second, 0);
    if (s.matrices > 0 && is_plain_rows(&x, &row_stride)) num_quantize(x.data, row_stride, s.round, s.has_second, &s.out);
    else finish(&s);
    return DW_OK;
}

/* Each matrix's scales to their places in the result; all else as it lies. */
static dw_status tile_scales(const op_call *call) {
    const dw_tensor *x = call->in[0], *out = call->out[0];
    const num_matrix matrix = op_tensor_matrix(x);
    num_parts from, to;
    if (!num_layout(x->format, x->scale_layout, x->rank, x->dims, &from) || !num_layout(out->format, out->scale_layout, out->rank, out->dims, &to))
        return base_fail(call->context, DW_LIMIT, "tile_scales: the result is too large to address");
    const int64_t blocks = base_ceil_div(matrix.cols, num_info(x->format)->cols);
    memcpy(out->data, x->data, from.data_bytes);
    if (from.second_bytes > 0) memcpy(out->second, x->second, from.second_bytes);
    memset(out->scales, 0, to.scale_bytes);
    for (int64_t i = 0; i < matrix.batches; i++) {
        const uint8_t *scales = (const uint8_t *)x->scales + i * from.scale_rows * from.scale_cols;
        uint8_t *tiles = (uint8_t *)out->scales + i * to.scale_rows * to.scale_cols;
        for (int64_t row = 0; row < matrix.rows; row++) {
            for (int64_t block = 0; block < blocks; block++)
                tiles[num_scale_index(out->scale_layout, row, block, to.scale_cols)] = scales[num_scale_index(x->scale_layout, row, block, from.scale_cols)];
        }
    }
    return DW_OK;
}

dw_status quantize_reference(const op_call *call) {
    if (call->op->id == OP_quantize) return quantize_all(call);
    if (call->op->id == OP_tile_scales) return tile_scales(call);
    const dw_tensor *x = call->in[0], *out = call->out[0];
    walk w;
    walk_start(&w, out->rank, out->dims);
    int at_out = walk_add(&w, out), at_x = walk_add(&w, x);
    for (; w.left > 0; walk_next(&w)) op_store_at(out, w.offset[at_out], op_load_at(x, w.offset[at_x]));
    return DW_OK;
}

/* About two operations an element: the largest magnitude, and the product with the scale. */
void quantize_work(const op_call *call, op_work *work) { op_work_each(call, 2, work); }
