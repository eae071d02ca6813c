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

/* Cycles of a thread for an element, by the plain rule and where scales are searched for: one thread of a Zen 4 EPYC at 3.7 GHz by AVX-512, 2026-11-28; by AVX2 a tenth more, by portable loops 1.2 to 2 times as many. */
static const struct { dw_format format; double plain, search; } cycles[] = {
    {DW_FORMAT_nvfp4, 2.2, 7.9},        {DW_FORMAT_nvfp4_row, 2.2, 7.9},  {DW_FORMAT_mxfp4, 1.5, 4.1},       {DW_FORMAT_mxfp8, 1.4, 1.4},     {DW_FORMAT_mxfp8_e5m2, 1.4, 1.4}, {DW_FORMAT_mxfp6_e3m2, 11.4, 11.4},
    {DW_FORMAT_mxfp6_e2m3, 11.4, 11.4}, {DW_FORMAT_fp8_1x128, 1.2, 1.2}, {DW_FORMAT_fp8_128x128, 4.2, 4.2}, {DW_FORMAT_fp8_row, 1.6, 1.6}, {DW_FORMAT_fp8_tensor, 4.2, 4.2},
};

static double element_cycles(dw_format format, bool searches) {
    for (size_t i = 0; i < COUNT_OF(cycles); i++)
        if (cycles[i].format == format) return searches ? cycles[i].search : cycles[i].plain;
    return 4.2;
}

double quantize_rows_seconds(const chip_caps *chip, dw_format to, num_round round, int64_t elements) {
    return (double)elements * element_cycles(to, round == NUM_ROUND_SEARCH) / (chip->clock_hz * chip->units);
}
