/* One row of a block format by the loops of rows_loops.h where they decide it, else by num. */
#include "kernels/quantize/rows.h"

#include <string.h>

quantize_row_function quantize_row_of(const chip_caps *chip) {
#if defined(__x86_64__)
    if (chip_has(chip, CHIP_avx512)) return quantize_row_avx512;
    if (chip_has(chip, CHIP_avx2)) return quantize_row_avx2;
#else
    (void)chip;
#endif
    return quantize_row_portable;
}

/* Rows of the plain layout whose blocks are whole, if nothing in them is special. */
static bool run_fast(quantize_row_function fast, const float *x, const num_scaling *scaling, const num_matrix *out, int64_t row) {
    const num_format *info = num_info(out->format);
    if (out->layout != DW_SCALE_plain) return false;
    const int64_t blocks = info->cols == 0 ? 1 : base_ceil_div(out->cols, info->cols);
    quantize_row problem = {
        .format = out->format,
        .x = x,
        .cols = out->cols,
        .scaling = *scaling,
        .data = out->data + (size_t)row * num_row_bytes(out->format, out->cols),
        .scales = (uint8_t *)out->scales + (size_t)(row * blocks) * ((size_t)num_info(info->scale)->bits / 8),
        .second = info->second == 2 ? out->second + row : out->second,
    };
    return fast(&problem);
}

void quantize_clear_tiles(const dw_tensor *out) {
    num_parts parts;
    if (out->scale_layout == DW_SCALE_plain || !num_layout(out->format, out->scale_layout, out->rank, out->dims, &parts)) return;
    memset(out->scales, 0, parts.scale_bytes);
}

void quantize_one_row(quantize_row_function fast, const float *x, const num_scaling *scaling, const num_matrix *out, int64_t row) {
    num_matrix matrix = *out;
    if (!run_fast(fast, x, scaling, out, row)) num_quantize_rows(x, 0, scaling, &matrix, row, row + 1);
}
