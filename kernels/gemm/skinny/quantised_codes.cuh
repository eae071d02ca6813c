/* Eight elements of a row to codes of e2m1 and their block's scale as its code, bit for bit as a quantiser makes them: by nvfp4_row, whose blocks of 16 lie in two neighbouring lanes, or mxfp4, whose blocks of 32 lie in
 * four. Where the scale is searched for, all candidates are tried side by side: a thread has one unit or a few, and nothing else to do meanwhile. What a row's elements under each of NVFP4's scales are multiplied by is a
 * division, which a block that has many units makes once for all codes (store_inverses). Read by ring_nibbles.cuh, and kernels/gemm/wgmma/few_made.cu. */
#ifndef KERNELS_GEMM_SKINNY_QUANTISED_CODES_CUH
#define KERNELS_GEMM_SKINNY_QUANTISED_CODES_CUH

#include "kernels/gemm/skinny/quantise_unit.cuh"

/* A format that is quantised to; whether its scales are searched for; whether what elements are multiplied by comes from store_inverses. */
typedef struct codes_shape { int format; bool searches, tabled; } codes_shape;
INLINE constexpr bool is_nv(const codes_shape s) { return s.format == MATMUL_nvfp4_row; }
INLINE constexpr int lanes_of(const codes_shape s) { return is_nv(s) ? 2 : 4; }

/* Eight elements of bf16 or f16. */
INLINE void floats_of_halves_unit(int format, const uint4 raw, float x[8]) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t two = word_of(raw, j);
        if (format == MATMUL_bf16) x[2 * j] = __uint_as_float(two << 16), x[2 * j + 1] = __uint_as_float(two & 0xffff0000);
        else floats_of_halves(two, x + 2 * j);
    }
}

/* The second level of a row by its largest magnitude. */
INLINE second_level second_of_row(const codes_shape s, float of_row) {
    const float encode = is_nv(s) ? rules_nv_encode(of_row) : 1;
    const second_level second = {encode, is_nv(s) ? 1.0f / encode : 1};
    return second;
}

/* For each code of e4m3 without a sign what elements under it are multiplied by: [128] floats in smem, by the first threads of a block. The caller's barrier follows. */
enum { CODES_SCALES_MOST = 128, CODES_INVERSE_BYTES = CODES_SCALES_MOST * 4 };
INLINE void store_inverses(uint32_t to, second_level second) {
    if (threadIdx.x < CODES_SCALES_MOST) st_shared_f32(to + threadIdx.x * 4, rules_nv_inverse((int32_t)threadIdx.x, second.decode));
}

/* inverses: of store_inverses. */
INLINE float inverse_of_code(const codes_shape s, int32_t near, float value, second_level second, uint32_t inverses) {
    if (s.tabled) return ld_shared_f32(inverses + (near & (CODES_SCALES_MOST - 1)) * 4);
    return candidate_inverse(is_nv(s), near, value, second);
}

/* Of the candidates for a block's scale, first and those near it, the code under which its elements have the least squared error, in the order of searched_scales (blocks.cuh); and what elements under it are multiplied by. */
INLINE int32_t searched_code(const codes_shape s, float most, int32_t first, second_level second, uint32_t inverses, const float x[8], float *inverse) {
    enum { MOST = 6 };
    static_assert(sizeof nv_steps / sizeof *nv_steps <= MOST, "room for all candidates");
    const int count = is_nv(s) ? (int)(sizeof nv_steps / sizeof *nv_steps) : 2, last = is_nv(s) ? 0x7e : 0xfd;
    const float unit = is_nv(s) ? second.encode : *inverse;
    const bool is_searched = most < INFINITE && first > 0;
    float errors[MOST], by[MOST], least = INFINITE;
    int32_t near[MOST], best = first;
#pragma unroll
    for (int k = 0; k < count; k++) {
        near[k] = first + (is_nv(s) ? nv_steps[k] : -k);
        const float value = candidate_value(is_nv(s), near[k], k);
        by[k] = inverse_of_code(s, near[k], value, second, inverses);
        errors[k] = block_error(lanes_of(s), x, by[k], unit, value);
    }
#pragma unroll
    for (int k = 0; k < count; k++) {
        const bool is_taken = is_searched && near[k] >= is_nv(s) && near[k] <= last && (k == 0 || errors[k] < least);
        least = is_taken ? errors[k] : least;
        best = is_taken ? near[k] : best;
        *inverse = is_taken ? by[k] : *inverse;
    }
    return best;
}

/* Eight elements to a word of codes; returns their scale's code. second: the row's; inverses: where they are in smem, if they are. All lanes of the warp. */
INLINE uint32_t quantised_unit(const codes_shape s, second_level second, uint32_t inverses, float x[8], uint32_t *word) {
    uint32_t bits = largest_of_unit(x);
#pragma unroll
    for (int step = lanes_of(s) / 2; step > 0; step /= 2) bits = max(bits, __shfl_xor_sync(~0u, bits, step));
    const float most = __uint_as_float(bits);
    int32_t code = is_nv(s) ? cvt_e4m3x2(most * (second.encode * (1.0f / 6.0f)), 0) & 0xff : rules_mx_scale(most, largest_code(MATMUL_e2m1), 0);
    float inverse = !is_nv(s) ? rules_mx_inverse(code) : s.tabled ? ld_shared_f32(inverses + code * 4) : rules_nv_inverse(code, second.decode);
    if (s.searches) code = searched_code(s, most, code, second, inverses, x, &inverse);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] *= inverse;
    *word = codes_e2m1(x);
    return (uint32_t)code;
}

#endif
