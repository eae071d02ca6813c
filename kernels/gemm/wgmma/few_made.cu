/* In front of a product of few rows by weights of 4 bits: its rows from what they are quantised from, bf16 or f16, and where a norm stands in front of that, from what it normalises, bit for bit as the
 * launches of the norm and the quantiser make them, and in the product's order. So these launches are saved. Several blocks share a row, of which each finds the row's statistics for itself: what takes time
 * is the search for scales, of which a thread has half a block of 16, or a quarter of 32, with all candidates side by side.
 *
 *   all threads   gmem -> its largest magnitude; with a norm: gmem -> smem -> its sums -> normalised, smem
 *   each thread   8 elements -> their scale -> codes -> pairs -> gmem
 *
 * Speed: README.md. */
#include "kernels/gpu/ptx/warp.cuh"
#include "kernels/gemm/skinny/norm_sums.cuh"
#include "kernels/gemm/skinny/quantised_codes.cuh"
#include "kernels/gemm/wgmma/decoded_bits.cuh"

/* The constants of an entry: the codes, e2m1 with scales of 16 in e4m3 and a second level of rows, or of 32 in e8m0; whether a norm stands in front. */
typedef struct made_shape { codes_shape codes; bool normed; } made_shape;

/* The row of this block and its units of 8 elements. In smem, from data on: with a norm the row, and where they lie at multiples of 16 bytes weight and bias; behind them the norm's sums. */
typedef struct made_row { const uint8_t *from; uint32_t data; int row, units; bool is_aligned; } made_row;

INLINE uint4 unit_of_row(const made_row *r, int i) {
    if (r->is_aligned) return *(const uint4 *)(r->from + (int64_t)i * 16);
    const uint16_t *x = (const uint16_t *)r->from + (int64_t)i * 8;
    return make_uint4(join(x[0], x[1]), join(x[2], x[3]), join(x[4], x[5]), join(x[6], x[7]));
}

/* ---- the norm ---- */

INLINE int column_bytes(const few_made_arguments *g) { return g->k * (g->norm.columns == MATMUL_f32 ? 4 : 2); }
INLINE uint32_t column_at(const few_made_arguments *g, const made_row *r, const int which) { return r->data + g->k * 2 + which * column_bytes(g); }

/* Weight and bias on their way, which no launch of the run writes. */
INLINE void fetch_columns(const few_made_arguments *g, const made_row *r) {
#pragma unroll 1
    for (int which = 0; which < 2; which++) {
        const uint64_t column = which == 0 ? g->norm.weight : g->norm.bias;
        if (column == 0 || column % 16 != 0) continue;
        for (int at = threadIdx.x * 16; at < column_bytes(g); at += FEW_MADE_THREADS * 16) cp_async(column_at(g, r, which) + at, (const uint8_t *)column + at, 16, 16);
    }
    cp_async_commit();
}

INLINE void load_column(const few_made_arguments *g, const made_row *r, const int which, uint64_t column, int i, float y[8]) {
    if (column % 16 != 0) {
#pragma unroll
        for (int e = 0; e < 8; e++) y[e] = element_of_row(g->norm.columns, (const uint8_t *)column, i * 8 + e);
    } else if (g->norm.columns == MATMUL_f32) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint4 four = ld_shared_u32x4(column_at(g, r, which) + i * 32 + half * 16);
#pragma unroll
            for (int j = 0; j < 4; j++) y[half * 4 + j] = __uint_as_float(word_of(four, j));
        }
    } else {
        floats_of_halves_unit(g->norm.columns, ld_shared_u32x4(column_at(g, r, which) + i * 16), y);
    }
}

/* What the row is multiplied by, less the mean, and what is added then. */
typedef struct made_moments { float mean, scale, shift; } made_moments;

INLINE made_moments moments_of(const few_made_arguments *g, const made_row *r) {
    const norm_part p = {r->data, (int)threadIdx.x & ~31, FEW_MADE_THREADS, r->units};
    const uint32_t sums = r->data + FEW_NORM_BYTES(g->k, g->norm.columns == MATMUL_f32 ? 4 : 2) - 3 * SKINNY_NORM_PARTS * 4, squares = sums + SKINNY_NORM_PARTS * 4, rest = squares + SKINNY_NORM_PARTS * 4;
    float mean = 0, low = 0;
    if (g->norm.centred) {
        store_sums(&g->norm, g->a.format, &p, false, 0, sums);
        __syncthreads();
        mean = add_sums(&g->norm, sums) * g->norm.by_count;
        store_sums(&g->norm, g->a.format, &p, false, mean, rest);
    }
    store_sums(&g->norm, g->a.format, &p, true, mean, squares);
    __syncthreads();
    if (g->norm.centred) low = add_sums(&g->norm, rest) * g->norm.by_count;
    const float variance = add_sums(&g->norm, squares) * g->norm.by_count - low * low, scale = rsqrtf((variance < 0 ? 0 : variance) + g->norm.eps);
    return (made_moments){mean, scale, -low * scale};
}

INLINE uint4 normalised_unit(const few_made_arguments *g, const made_row *r, const made_moments *m, int i) {
    float x[8], y[8];
    floats_of_halves_unit(g->a.format, ld_shared_u32x4(r->data + i * 16), x);
#pragma unroll
    for (int e = 0; e < 8; e++) x[e] = fmaf(g->norm.centred ? x[e] - m->mean : x[e], m->scale, m->shift);
    if (g->norm.weight != 0) {
        load_column(g, r, 0, g->norm.weight, i, y);
#pragma unroll
        for (int e = 0; e < 8; e++) x[e] *= y[e];
    }
    if (g->norm.bias != 0) {
        load_column(g, r, 1, g->norm.bias, i, y);
#pragma unroll
        for (int e = 0; e < 8; e++) x[e] += y[e];
    }
    return halves_of_unit(g->a.format, x);
}

/* ---- the row ---- */

/* The largest magnitude among a unit's and those before, by its bits; NaN do not count. */
INLINE uint32_t with_largest(int format, const uint4 raw, uint32_t most) {
    float x[8];
    floats_of_halves_unit(format, raw, x);
    return max(most, largest_for_row(MATMUL_nvfp4_row, x));
}

/* The unit of this thread as it is quantised. *most: the largest magnitude of the row, of all threads. */
INLINE uint4 find_unit(const few_made_arguments *g, const made_shape s, const made_row *r, int unit, float *most) {
    enum { TOGETHER = 4 };
    __shared__ uint32_t of_warp[FEW_MADE_THREADS / 32];
    uint4 own = make_uint4(0, 0, 0, 0), raw[TOGETHER];
    uint32_t bits = 0;
    if (!s.normed && unit < r->units) own = unit_of_row(r, unit);
    if (!s.normed && !is_nv(s.codes)) return own;
#pragma unroll 1
    for (int i = threadIdx.x; i < r->units; i += TOGETHER * FEW_MADE_THREADS) {
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) raw[j] = i + j * FEW_MADE_THREADS < r->units ? unit_of_row(r, i + j * FEW_MADE_THREADS) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            if (!s.normed) bits = with_largest(g->a.format, raw[j], bits);
            else if (i + j * FEW_MADE_THREADS < r->units) st_shared_u32x4(r->data + (i + j * FEW_MADE_THREADS) * 16, raw[j]);
        }
    }
    if (s.normed) {
        cp_async_wait(0);
        __syncthreads();
        const made_moments m = moments_of(g, r);
        for (int i = threadIdx.x; i < r->units && is_nv(s.codes); i += FEW_MADE_THREADS) bits = with_largest(g->a.format, normalised_unit(g, r, &m, i), bits);
        if (unit < r->units) own = normalised_unit(g, r, &m, unit);
    }
    if (is_nv(s.codes)) {
        bits = redux_max(bits);
        if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = bits;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < FEW_MADE_THREADS / 32; i++) bits = max(bits, of_warp[i]);
    }
    *most = __uint_as_float(bits);
    return own;
}

/* ---- all of it ---- */

INLINE void make_rows(const few_made_arguments *g, const made_shape s) {
    extern __shared__ __align__(16) uint8_t shared[];
    made_row r = {0, shared_address(shared), (int)blockIdx.x / g->parts, g->k / 8, is_aligned(&g->a)};
    const int unit = ((int)blockIdx.x - r.row * g->parts) * FEW_MADE_THREADS + threadIdx.x;
    float x[8], of_row = 0;
    uint32_t word;
    r.from = (const uint8_t *)g->a.data + r.row * g->a.row_bytes;
    grid_release();
    if (s.normed) fetch_columns(g, &r);
    grid_wait();
    floats_of_halves_unit(g->a.format, find_unit(g, s, &r, unit, &of_row), x);
    const uint32_t code = quantised_unit(s.codes, second_of_row(s.codes, of_row), 0, x, &word);
    if (unit == 0 && is_nv(s.codes)) ((float *)g->factors)[r.row] = row_scale(MATMUL_nvfp4_row, of_row);
    if (unit >= r.units) return;
    uint32_t *to = (uint32_t *)g->to + ((int64_t)r.row * (g->k / 32) + unit / 4) * 16 + unit % 4;
    const uint32_t factor = g->halves ? halves_of_scale(code) : is_nv(s.codes) ? pair_of_e4m3_scale(code) : pair_of_e8m0(code);
#pragma unroll
    for (int i = 0; i < 4; i++) to[i * 4] = g->halves ? mul_f16x2(halves_of_e2m1(word, i / 2, i % 2), factor) : mul_bf16x2(mul_bf16x2(pair_of_e2m1(word, i), 0x7e807e80), factor);   /* 2^126 */
}

#define ENTRY(name, format, searches, normed)                                                                                      \
    extern "C" __global__ void __launch_bounds__(FEW_MADE_THREADS) matmul_few_made_##name(const __grid_constant__ few_made_arguments arguments) { \
        const made_shape shape = {{format, searches, false}, normed};                                                                      \
        make_rows(&arguments, shape);                                                                                              \
    }
ENTRY(nvfp4, MATMUL_nvfp4_row, false, false)
ENTRY(nvfp4_search, MATMUL_nvfp4_row, true, false)
ENTRY(nvfp4_norm, MATMUL_nvfp4_row, false, true)
ENTRY(nvfp4_search_norm, MATMUL_nvfp4_row, true, true)
ENTRY(mxfp4, MATMUL_mxfp4, false, false)
ENTRY(mxfp4_search, MATMUL_mxfp4, true, false)
ENTRY(mxfp4_norm, MATMUL_mxfp4, false, true)
ENTRY(mxfp4_search_norm, MATMUL_mxfp4, true, true)
