/* Parts of rows in blocks as numbers (blocks.h). */
#include "kernels/attention/cpu/blocks.h"

#include "kernels/cpu/math.h"

dw_tensor blocks_as_they_lie(const dw_tensor *tensor) {
    dw_tensor lies = *tensor;
    int64_t step = 1;
    for (int axis = lies.rank - 1; axis >= 0; axis--) {
        lies.strides[axis] = step;
        step *= lies.dims[axis];
    }
    return lies;
}

/* Where some elements of rows lie: bytes and scales of their first block, and how far the next row is. */
typedef struct part { const num_format *info; const uint8_t *codes, *scales; int64_t code_stride, scale_stride, col; } part;

/* The row of scales of a row of elements: of fp8_128x128 many rows have one, and a matrix begins with one of its own. */
static int64_t scale_line(const dw_tensor *tensor, const num_format *info, int64_t line) {
    const int64_t rows = tensor->dims[2];
    return info->rows == 1 ? line : line / rows * base_ceil_div(rows, info->rows) + line % rows / info->rows;
}

static part part_at(const dw_tensor *tensor, int64_t from) {
    const num_format *info = num_info(tensor->format);
    const int64_t cols = tensor->dims[3], line = from / cols, col = from % cols, blocks = base_ceil_div(cols, info->cols), bytes = num_info(info->scale)->bits / 8;
    part p = {.info = info, .code_stride = (int64_t)num_row_bytes(tensor->format, cols), .scale_stride = blocks * bytes, .col = col};
    p.codes = (const uint8_t *)tensor->data + line * p.code_stride;
    p.scales = (const uint8_t *)tensor->scales + scale_line(tensor, info, line) * p.scale_stride + col / info->cols * bytes;
    return p;
}

static float scale_at(dw_format scale, const void *scales, int64_t block) {
    if (scale == DW_FORMAT_f32) return ((const float *)scales)[block];
    const uint8_t code = ((const uint8_t *)scales)[block];
    return scale == DW_FORMAT_e8m0 ? num_e8m0_to_f32(code) : num_e4m3_to_f32(code);
}

static inline float e4m3_at(const uint8_t *row, int64_t col) {
    const int32_t magnitude = row[col] & 0x7f, normal = (magnitude << 20) + (120 << 23);
    const float size = magnitude == 0x7f ? cpu_float(0x7fffffff) : magnitude < 8 ? (float)magnitude * 0x1p-9f : cpu_float(normal);
    return row[col] & 0x80 ? -size : size;
}

/* count elements of a row from col on, times one factor. */
static void scaled_run(dw_format element, const uint8_t *row, int64_t col, int64_t count, float factor, float *to) {
    static const float e2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    switch (element) {
    case DW_FORMAT_e4m3:
        for (int64_t i = 0; i < count; i++) to[i] = e4m3_at(row, col + i) * factor;
        break;
    case DW_FORMAT_e2m1:
        for (int64_t i = 0; i < count; i++) to[i] = e2m1[row[(col + i) / 2] >> ((col + i) % 2 * 4) & 15] * factor;
        break;
    default:
        for (int64_t i = 0; i < count; i++) to[i] = (float)num_load(element, row, col + i) * factor;
    }
}

/* The elements of a row, block by block; second: what comes last, 1 where there is nothing. */
static void row_floats(const part *p, const uint8_t *codes, const uint8_t *scales, int64_t count, bool scaled, float second, float *to) {
    const int64_t cols = p->info->cols;
    for (int64_t done = 0; done < count;) {
        const int64_t at = p->col % cols + done, left = cols - at % cols, here = left < count - done ? left : count - done;
        scaled_run(p->info->element, codes, p->col + done, here, scaled ? scale_at(p->info->scale, scales, at / cols) : 1, to + done);
        done += here;
    }
    for (int64_t i = 0; i < count && second != 1; i++) to[i] *= second;
}

float blocks_second(const dw_tensor *tensor) { return tensor->second != NULL ? *tensor->second : 1; }

bool blocks_has_factors(dw_format format) { return dw_format_is_block(format) && num_info(format)->scale == DW_FORMAT_f32; }

void blocks_factors(const dw_tensor *tensor, int64_t element, int64_t rows, float *to) {
    const num_format *info = num_info(tensor->format);
    const int64_t cols = tensor->dims[3], line = element / cols, blocks = base_ceil_div(cols, info->cols);
    const float *scales = (const float *)tensor->scales + element % cols / info->cols;
    for (int64_t r = 0; r < rows; r++) to[r] = scales[scale_line(tensor, info, line + r) * blocks];
}

void blocks_floats(const dw_tensor *tensor, int64_t from, int64_t count, float *to) {
    const part p = part_at(tensor, from);
    row_floats(&p, p.codes, p.scales, count, true, blocks_second(tensor), to);
}

void blocks_codes(const flash_pairs *isa, const dw_tensor *tensor, int64_t from, int64_t rows, int64_t count, uint16_t *to, int64_t stride) {
    enum { MOST = 1024 };
    const part p = part_at(tensor, from);
    const bool scaled = p.info->scale != DW_FORMAT_f32;
    const flash_codes codes = {p.info->element, p.info->scale, p.codes + num_row_bytes(tensor->format, p.col), scaled ? p.scales : NULL, p.code_stride, p.scale_stride, p.info->cols};
    if (isa->unpack(&codes, rows, count, to, stride)) return;
    for (int64_t r = 0; r < rows && count <= MOST; r++) {
        float values[MOST];
        row_floats(&p, p.codes + r * p.code_stride, p.scales + r * p.scale_stride, count, scaled, 1, values);
        for (int64_t i = 0; i < count; i++) to[r * stride + i] = num_f32_to_bf16(values[i]);
    }
}
