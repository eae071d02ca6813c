/* Parts of rows in blocks as numbers (blocks.h). */
#include "kernels/attention/cpu/blocks.h"

enum { MOST = 256, SCALES = MOST / 16 + 1 };     /* elements at a time, and their blocks */

dw_tensor blocks_as_they_lie(const dw_tensor *tensor) {
    dw_tensor lies = *tensor;
    int64_t step = 1;
    for (int axis = lies.rank - 1; axis >= 0; axis--) {
        lies.strides[axis] = step;
        step *= lies.dims[axis];
    }
    return lies;
}

/* Some elements of one row. */
typedef struct part { const uint8_t *row; const void *scales; int64_t col; } part;

static part part_at(const dw_tensor *tensor, int64_t from) {
    const num_format *info = num_info(tensor->format);
    const int64_t cols = tensor->dims[3], line = from / cols;
    return (part){(const uint8_t *)tensor->data + (size_t)line * num_row_bytes(tensor->format, cols),
                  (const uint8_t *)tensor->scales + (size_t)(line * base_ceil_div(cols, info->cols)) * ((size_t)num_info(info->scale)->bits / 8), from % cols};
}

static float scale_at(dw_format scale, const void *scales, int64_t block) {
    if (scale == DW_FORMAT_f32) return ((const float *)scales)[block];
    const uint8_t code = ((const uint8_t *)scales)[block];
    return scale == DW_FORMAT_e8m0 ? num_e8m0_to_f32(code) : num_e4m3_to_f32(code);
}

static float element_at(dw_format element, const uint8_t *row, int64_t col) {
    switch (element) {
    case DW_FORMAT_e4m3: return num_e4m3_to_f32(row[col]);
    case DW_FORMAT_e5m2: return num_e5m2_to_f32(row[col]);
    case DW_FORMAT_e2m1: return num_e2m1_to_f32(row[col / 2] >> (col % 2 * 4) & 15);
    default: return (float)num_load(element, row, col);
    }
}

float blocks_second(const dw_tensor *tensor) { return tensor->second != NULL ? *tensor->second : 1; }

bool blocks_has_factors(dw_format format) { return dw_format_is_block(format) && num_info(format)->scale == DW_FORMAT_f32; }

float blocks_factor(const dw_tensor *tensor, int64_t element) {
    const part at = part_at(tensor, element);
    return ((const float *)at.scales)[at.col / num_info(tensor->format)->cols];
}

const char *blocks_bytes(const dw_tensor *tensor, int64_t element) {
    const part at = part_at(tensor, element);
    return (const char *)at.row + num_row_bytes(tensor->format, at.col);
}

void blocks_floats(const dw_tensor *tensor, int64_t from, int64_t count, float *to) {
    const num_format *info = num_info(tensor->format);
    const part at = part_at(tensor, from);
    const float second = blocks_second(tensor);
    const bool has_second = info->second != 0;
    int64_t block = -1;
    float scale = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t col = at.col + i;
        if (col / info->cols != block) scale = scale_at(info->scale, at.scales, block = col / info->cols);
        to[i] = element_at(info->element, at.row, col) * scale;
        if (has_second) to[i] *= second;
    }
}

void blocks_codes(const flash_pairs *isa, const dw_tensor *tensor, int64_t from, int64_t count, uint16_t *to) {
    const num_format *info = num_info(tensor->format);
    const part at = part_at(tensor, from);
    const bool scaled = info->scale != DW_FORMAT_f32;
    for (int64_t done = 0; done < count; done += MOST) {
        const int64_t here = count - done < MOST ? count - done : MOST, first = at.col + done;
        float scales[SCALES];
        for (int64_t i = 0; scaled && i < base_ceil_div(here, info->cols); i++) scales[i] = scale_at(info->scale, at.scales, first / info->cols + i);
        if (isa->unpack(info->element, at.row + num_row_bytes(tensor->format, first), scaled ? scales : NULL, info->cols, here, to + done)) continue;
        for (int64_t i = 0; i < here; i++) to[done + i] = num_f32_to_bf16(element_at(info->element, at.row, first + i) * (scaled ? scales[i / info->cols] : 1));
    }
}
