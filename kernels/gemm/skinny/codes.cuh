/* The products of vector.cuh where b is codes of e4m3 with scales by block, and a codes with scales for each 128, or what those are quantised from.
 *
 *   b    two rows to a team of warps, or four where there are many: a unit is 16 codes, of which a lane has up to four, or two; its scale, which 128 rows share, beside it
 *   a    gmem -> reg, each lane the units that it has of b's rows; where it comes in bf16 or f16: normalised (vector_norm.cuh) if there is a norm, quantised by all threads together, bit for bit as quantize does it, -> smem -> reg
 *   sums of a unit in fp32, times both scales, in the order of units
 *
 * Resources: two blocks a multiprocessor by registers. Speed: bench/results/h200/skinny.md. */
#ifndef KERNELS_GEMM_SKINNY_CODES_CUH
#define KERNELS_GEMM_SKINNY_CODES_CUH

enum { CODES_DEPTH = 16, CODES_LANES = 128 / CODES_DEPTH, CODES_BLOCK = 128 / 8, CODES_SCALES = 2 };

/* Units of a row that a lane has at most. */
INLINE constexpr int units_of(const int rows) { return SKINNY_CODES_UNITS(rows); }

/* A lane's units of a row, and the scale of each. */
typedef struct code_units { uint4 codes[SKINNY_CODES_UNITS(2)]; float scales[SKINNY_CODES_UNITS(2)]; } code_units;

INLINE bool has_whole_codes(const skinny_arguments *g, const matmul_rows *x) { return ((x->data | (uint64_t)x->row_bytes) & 15) == 0 && g->k % CODES_DEPTH == 0; }

INLINE float scale_of_unit(const matmul_rows *x, int64_t scales, int unit) { return ((const float *)x->scales.data)[scale_index(&x->scales, scales, unit / CODES_LANES)]; }

/* Unit u of this lane, of a row of codes. is_b: it is read once. */
INLINE uint4 load_code(const skinny_arguments *g, const bool is_b, const vector_place *p, const int u, const uint8_t *codes, bool is_there, bool whole, uint64_t policy) {
    const int at = unit_at(g, p, u) * CODES_DEPTH;
    if (!is_there || !has_unit(g, p, u)) return make_uint4(0, 0, 0, 0);
    if (!whole) return gather_unit(8, codes, at, min(CODES_DEPTH, g->k - at));
    return is_b ? ld_global_policy(codes + at, policy) : *(const uint4 *)(codes + at);
}

/* This lane's part of it. */
INLINE void load_codes(const skinny_arguments *g, const bool is_b, const int units, const vector_place *p, int row, bool is_there, uint64_t policy, uint4 *to) {
    const matmul_rows *x = is_b ? &g->b : &g->a;
    const uint8_t *codes = (const uint8_t *)x->data + row * x->row_bytes;
    const bool whole = has_whole_codes(g, x);
#pragma unroll
    for (int u = 0; u < units; u += 2) {
        if (is_b && is_there && whole && has_two_units(g, p, u, codes)) {
            load_two_units(g, p, u, codes, policy, &to[u], &to[u + 1]);
        } else {
            to[u] = load_code(g, is_b, p, u, codes, is_there, whole, policy);
            to[u + 1] = load_code(g, is_b, p, u + 1, codes, is_there, whole, policy);
        }
    }
}

INLINE void load_scales(const skinny_arguments *g, const matmul_rows *x, const int units, const vector_place *p, int row, float *to) {
    const int64_t scales = scales_of_row(&x->scales, row);
#pragma unroll
    for (int u = 0; u < units; u++) to[u] = has_unit(g, p, u) ? scale_of_unit(x, scales, unit_at(g, p, u)) : 0;
}

/* The whole of a, from bf16 or f16 or from what a norm has left, as a quantiser in front of the product would have left it, into shared memory: codes, [k] rounded up to 128, and the scales of blocks behind them. A thread has eight elements at a
 * time, so that sixteen lanes hold a block. All threads, and a barrier at the end. */
INLINE void quantise_codes(const skinny_arguments *g, uint32_t codes) {
    const uint8_t *row = (const uint8_t *)g->a.data;
    const bool whole = (g->a.data & 15) == 0 && g->k % 8 == 0;
    const int units = (g->k + 127) / 128 * CODES_BLOCK;
    for (int unit = threadIdx.x; unit / 32 * 32 < units; unit += SKINNY_VECTOR_WARPS * 32) {
        float x[8];
        uint4 raw = make_uint4(0, 0, 0, 0);
        if (has_norm(g) && unit * 8 < g->k) raw = ld_shared_u32x4(normed_row(g) + unit * 16);
        else if (unit * 8 < g->k) raw = whole ? *(const uint4 *)(row + unit * 16) : gather_unit(16, row, unit * 8, min(8, g->k - unit * 8));
        floats_of_unit(g->a.format, raw, x);
        uint32_t bits = largest_of_unit(x);
#pragma unroll
        for (int step = CODES_BLOCK / 2; step > 0; step /= 2) bits = max(bits, __shfl_xor_sync(~0u, bits, step));
        const float most = __uint_as_float(bits), inverse = fp8_inverse(most);
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] *= inverse;
        const uint2 eight = codes_e4m3(x);
        if (unit >= units) continue;
        st_shared_u32x2(codes + unit * 8, eight.x, eight.y);
        if (unit % CODES_BLOCK == 0) st_shared_f32(codes + units * 8 + unit / CODES_BLOCK * 4, fp8_scale(most));
    }
    __syncthreads();
}

/* This lane's units of it. */
INLINE void read_codes(const skinny_arguments *g, const int units, const vector_place *p, uint32_t codes, code_units *to) {
    const int all = (g->k + 127) / 128 * 128;
#pragma unroll
    for (int u = 0; u < units; u++) {
        const int unit = unit_at(g, p, u);
        to->codes[u] = make_uint4(0, 0, 0, 0);
        to->scales[u] = 0;
        if (!has_unit(g, p, u)) continue;
        to->codes[u] = ld_shared_u32x4(codes + unit * CODES_DEPTH);
        to->scales[u] = ld_shared_f32(codes + all + unit / CODES_LANES * 4);
    }
}

/* Of unit u: products of a with each row of b. scales: of the first half of the rows, and of the other one. */
INLINE void multiply_codes(const int rows, const int u, const code_units *a, const uint4 b[][SKINNY_CODES_UNITS(2)], const float scales[][SKINNY_CODES_UNITS(2)], float *sums) {
    float x[CODES_DEPTH];
#pragma unroll
    for (int i = 0; i < CODES_DEPTH / 2; i++) floats_of_halves(cvt_f16x2_e4m3x2((uint16_t)(word_of(a->codes[u], i / 2) >> i % 2 * 16)), x + 2 * i);
#pragma unroll
    for (int r = 0; r < rows; r++) {
        float even = 0, odd = 0, w[2];
#pragma unroll
        for (int i = 0; i < CODES_DEPTH / 2; i++) {
            floats_of_halves(cvt_f16x2_e4m3x2((uint16_t)(word_of(b[r][u], i / 2) >> i % 2 * 16)), w);
            even = fmaf(x[2 * i], w[0], even);
            odd = fmaf(x[2 * i + 1], w[1], odd);
        }
        sums[r] = fmaf(even + odd, a->scales[u] * scales[r / (rows / 2)][u], sums[r]);
    }
}

INLINE void matmul_codes(const skinny_arguments *g, const int rows) {
    const int units = units_of(rows);
    const vector_place p = vector_place_of(g, rows, CODES_DEPTH);
    const uint64_t policy = policy_first();
    code_units a;
    uint4 b[VECTOR_ROWS_MOST][SKINNY_CODES_UNITS(2)];
    float scales[CODES_SCALES][SKINNY_CODES_UNITS(2)], sums[VECTOR_ROWS_MOST] = {0, 0, 0, 0};
    norm_pieces columns;
    grid_release();
    if (!g->b_is_constant) grid_wait();
#pragma unroll
    for (int r = 0; r < rows; r++) load_codes(g, true, units, &p, p.row[r], p.is_there[r], policy, b[r]);
#pragma unroll
    for (int i = 0; i < CODES_SCALES; i++) load_scales(g, &g->b, units, &p, p.row[i * (rows / 2)], scales[i]);
    if (has_norm(g)) columns = load_columns(g);
    if (g->b_is_constant) grid_wait();
    const vector_early early = load_early(g, &p, rows);
    if (g->quantised != 0) {
        extern __shared__ __align__(1024) uint8_t shared[];
        if (has_norm(g)) normalise_row(g, &columns);
        quantise_codes(g, shared_address(shared));
        read_codes(g, units, &p, shared_address(shared), &a);
    } else {
        load_codes(g, false, units, &p, 0, true, 0, a.codes);
        load_scales(g, &g->a, units, &p, 0, a.scales);
    }
#pragma unroll
    for (int u = 0; u < units; u++)
        if (has_unit(g, &p, u)) multiply_codes(rows, u, &a, b, scales, sums);
    const float y = add_parts(g, &p, rows, sums);
    if (p.part == 0) end_vector(g, &p, rows, &early, y);
}

#define SKINNY_CODES_ENTRY(name, rows)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(SKINNY_VECTOR_WARPS * 32, 2) name(const __grid_constant__ skinny_arguments arguments) { \
        matmul_codes(&arguments, rows);                                                                                                   \
    }

#endif
