/* Eight elements of a row in bf16 or f16 as a quantiser in front of a product would have made them, bit for bit. Blocks of 16, 32 and 128 lie in neighbouring lanes. Read by products that quantise their
 * operand themselves (quantise.cuh), and by what does it for a product (kernels/gemm/wgmma/few_made.cu). */
#ifndef KERNELS_GEMM_SKINNY_QUANTISE_UNIT_CUH
#define KERNELS_GEMM_SKINNY_QUANTISE_UNIT_CUH

#include "kernels/gemm/rows.cuh"
#include "kernels/quantize/blocks.cuh"

/* Eight elements of one of the formats that come here. */
INLINE void floats_of_unit(int format, const uint4 raw, float x[8]) {
    if (format == MATMUL_bf16) {
#pragma unroll
        for (int j = 0; j < 4; j++) x[2 * j] = __uint_as_float(word_of(raw, j) << 16), x[2 * j + 1] = __uint_as_float(word_of(raw, j) & 0xffff0000);
    } else if (format == MATMUL_f16) {
#pragma unroll
        for (int j = 0; j < 4; j++) floats_of_halves(word_of(raw, j), x + 2 * j);
    } else {
        read_unit(format == MATMUL_e2m1 ? MATMUL_e2m1 : format == MATMUL_e5m2 ? MATMUL_e5m2 : MATMUL_e4m3, (const uint8_t *)&raw, 0, x);
    }
}

INLINE bool has_row_scales(int format) { return format == MATMUL_fp8_row || format == MATMUL_nvfp4_row; }

/* The bits of a magnitude, which order as magnitudes do, a NaN above all. */
INLINE uint32_t largest_of_unit(const float x[8]) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) most = max(most, __float_as_uint(x[i]) & 0x7fffffff);
    return most;
}

/* NaN count for FP8 alone. */
INLINE uint32_t largest_for_row(int format, const float x[8]) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t bits = __float_as_uint(x[i]) & 0x7fffffff;
        most = max(most, format == MATMUL_nvfp4_row && bits > 0x7f800000 ? 0 : bits);
    }
    return most;
}

/* What the quantiser would have left as the scale of a row. */
INLINE float row_scale(int format, float most) { return format == MATMUL_fp8_row ? fp8_scale(most) : 1.0f / rules_nv_encode(most); }

/* The code of the scale near first under which the block's codes have the least squared error, and what elements under it are multiplied by; all lanes of the warp. e2m1 alone. */
INLINE int32_t search_code(const bool is_nv, float most, int32_t first, second_level second, const float x[8], float *inverse) {
    const int last = is_nv ? 0x7e : 0xfd;
    const float unit = is_nv ? second.encode : *inverse;
    const bool is_searched = most < INFINITE && first > 0;
    int32_t best = first;
    float least = INFINITE;
#pragma unroll 1
    for (int k = 0; k < (is_nv ? (int)(sizeof nv_steps / sizeof *nv_steps) : 2); k++) {
        const int32_t near = first + (is_nv ? nv_steps[k] : -k);
        const float value = candidate_value(is_nv, near, k), by = candidate_inverse(is_nv, near, value, second);
        const float error = block_error(is_nv ? 2 : 4, x, by, unit, value);
        const bool is_taken = is_searched && near >= is_nv && near <= last && (k == 0 || error < least);
        least = is_taken ? error : least;
        best = is_taken ? near : best;
        *inverse = is_taken ? by : *inverse;
    }
    return best;
}

/* Eight elements become the numbers that their codes stand for, times the block's scale where that is a code itself. All lanes of the warp. Returns the scale of a block of 128, else 1. */
INLINE float quantise_unit(int format, bool searches, float of_row, float x[8]) {
    const bool is_nv = format == MATMUL_nvfp4_row, is_fp8 = format == MATMUL_fp8_row || format == MATMUL_fp8_1x128;
    const int element = is_fp8 || format == MATMUL_mxfp8 ? MATMUL_e4m3 : format == MATMUL_mxfp8_e5m2 ? MATMUL_e5m2 : MATMUL_e2m1;
    uint32_t bits = largest_of_unit(x);
    float inverse, scale = 1, factor = 1;
#pragma unroll 1
    for (int step = (is_nv ? 2 : is_fp8 ? 16 : 4) / 2; step > 0; step /= 2) bits = max(bits, __shfl_xor_sync(~0u, bits, step));
    const float most = __uint_as_float(bits);
    if (is_fp8) {
        inverse = fp8_inverse(format == MATMUL_fp8_row ? of_row : most);
        if (format == MATMUL_fp8_1x128) factor = fp8_scale(most);
    } else if (is_nv) {
        const float encode = rules_nv_encode(of_row);
        const second_level second = {encode, 1.0f / encode};
        int32_t code = cvt_e4m3x2(most * (encode * (1.0f / 6.0f)), 0) & 0xff;
        inverse = rules_nv_inverse(code, second.decode);
        if (searches) code = search_code(true, most, code, second, x, &inverse);
        scale = cvt_f32_f16((uint16_t)cvt_f16x2_e4m3x2((uint16_t)code));
    } else {
        const second_level none = {1, 1};
        int32_t code = rules_mx_scale(most, largest_code(element), 0);
        inverse = rules_mx_inverse(code);
        if (searches) code = search_code(false, most, code, none, x, &inverse);
        scale = float_of_e8m0((uint32_t)code);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] *= inverse;
    uint4 codes = make_uint4(0, 0, 0, 0);
    if (element == MATMUL_e2m1) {
        codes.x = codes_e2m1(x);
    } else {
        const uint2 bytes = element == MATMUL_e4m3 ? codes_e4m3(x) : codes_e5m2(x);
        codes.x = bytes.x, codes.y = bytes.y;
    }
    floats_of_unit(element, codes, x);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] *= scale;
    return factor;
}

#endif
