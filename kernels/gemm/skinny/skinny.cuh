/* out [m,n] = epilogue(a [m,k] b [n,k]^T) for few rows of a, bound by reading b once. The body of the entries of skinny.cu, which gives it its constants.
 *
 *   a block: 16 warps (8 for more than 16 rows; half as many in small entries), width of them side by side along n with 16 rows of b each, the others share k; so do the blocks of a cluster
 *   b [16, 128 B] of a step  gmem -> ring in smem of each warp, steps and tiles ahead -> reg -> dequantised to pairs -> mma.sync, b's rows being the 16 and a's the 8 of its shape
 *   a [m, k of a slab]       gmem -> reg -> bf16 or f16 in smem, in the order in which fragments want it
 *   sums                     reg -> smem of the block -> smem of the cluster -> epilogue -> gmem, added in the order of warps and blocks
 *
 * Persistent: a block takes tiles until there are none. What a warp reads from the ring its own lanes have put there, so no barrier of the block stands between loads
 * and products. The ring is filled in front of a: where no launch of the run writes b, also before the launches in front of this one have ended. b is read once and gives way in
 * the second-level cache.
 *
 * Products in bf16: a thread's 16 bytes of a row of b are its pairs of k, whatever their numbers: k is permuted alike in a and b. An element times its block scale is
 * exact in bf16; an element of a in f16 or f32 is a sum of two or three bf16 numbers, which are rows of a of their own (planes). NVFP4's products carry 2^-16, which
 * alpha gives back. Products in f16, of weights of 8 and 4 bits past few rows: narrow.cuh.
 * Of rows in groups all of a lies in the slab: a tile of a group's columns is multiplied by all rows, and the group's own are stored. Tiles are counted over the groups
 * that have rows, whose list each block makes from the offsets.
 * A step that halves: the warp's upper eight rows are the second half's. Resources: a slab of a and the sums in smem. Speed: README.md. */
#ifndef KERNELS_GEMM_SKINNY_SKINNY_CUH
#define KERNELS_GEMM_SKINNY_SKINNY_CUH

#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/decode.cuh"
#include "kernels/gpu/ptx/half.cuh"
#include "kernels/gpu/ptx/mma.cuh"
#include "kernels/gpu/ptx/warp.cuh"
#include "kernels/gemm/group_rows.cuh"
#include "kernels/gemm/rows.cuh"
#include "kernels/gemm/skinny/skinny.h"

enum { SKINNY_BF16, SKINNY_F16, SKINNY_E4M3, SKINNY_E4M3_BLOCK, SKINNY_MXFP8, SKINNY_MXFP8_E5M2, SKINNY_MXFP4, SKINNY_NVFP4 };

/* The constants of an entry. tiles: of 8 rows of a; groups: 1: rows come in groups; narrow: 1: products in f16 (narrow.cuh); small: 1: for chips with little shared memory. */
typedef struct skinny_shape { int weights, tiles, groups, narrow, small; } skinny_shape;

INLINE constexpr int warp_count(const skinny_shape s) { return SKINNY_WARPS(s.tiles, s.small); }
INLINE constexpr int stage_count(const skinny_shape s) { return SKINNY_STAGES(s.tiles, s.small); }
INLINE constexpr int thread_count(const skinny_shape s) { return warp_count(s) * 32; }

INLINE int bits_of(const skinny_shape s) { return s.weights <= SKINNY_F16 ? 16 : s.weights <= SKINNY_MXFP8_E5M2 ? 8 : 4; }
INLINE int step_depth(const skinny_shape s) { return SKINNY_STEP_BYTES * 8 / bits_of(s); }
/* Units of 8 k in 16 bytes. */
INLINE int chunk_units(const skinny_shape s) { return 16 / bits_of(s); }

/* ---- rows in groups ---- */

typedef struct skinny_group { int group, begin, end; } skinny_group;

/* The groups that have rows, in order, into [SKINNY_GROUP_ROWS] places of 16 bytes, and their number behind them: first each at the place of its first row. */
INLINE int list_groups(const skinny_arguments *g, const skinny_shape s, uint32_t list) {
    int lane = threadIdx.x % 32;
    if (threadIdx.x < SKINNY_GROUP_ROWS) st_shared_u32x4(list + threadIdx.x * 16, make_uint4(0, 0, 0, 0));
    __syncthreads();
    for (int group = threadIdx.x; group < g->groups.end; group += thread_count(s)) {
        int begin, end;
        if (rows_of_group(&g->groups, group, g->m, &begin, &end) && begin < end) st_shared_u32x4(list + begin * 16, make_uint4(group, begin, end, 0));
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        uint4 mine = make_uint4(0, 0, 0, 0);
        if (lane < SKINNY_GROUP_ROWS) mine = ld_shared_u32x4(list + lane * 16);
        uint32_t all = __ballot_sync(0xffffffff, mine.z > 0);
        if (mine.z > 0) st_shared_u32x4(list + __popc(all & ((1u << lane) - 1)) * 16, mine);
        if (lane == 0) st_shared_u32(list + SKINNY_GROUP_ROWS * 16, __popc(all));
    }
    __syncthreads();
    return (int)ld_shared_u32(list + SKINNY_GROUP_ROWS * 16);
}

/* The group of a tile, which becomes the number of one of its own; without groups all rows are one. */
INLINE skinny_group take_group(const skinny_arguments *g, const skinny_shape s, uint32_t list, int *tile) {
    skinny_group one = {0, 0, g->m};
    if (!s.groups) return one;
    uint4 found = ld_shared_u32x4(list + *tile / g->tiles * 16);
    *tile %= g->tiles;
    one.group = (int)found.x, one.begin = (int)found.y, one.end = (int)found.z;
    return one;
}

/* ---- b: loads ---- */

/* A step of this thread's two rows, chunk by chunk, with the words that hold its scales. */
typedef struct skinny_part { uint4 rows[2][2]; uint32_t scales[2][2]; } skinny_part;

/* Which step of which tile a warp loads next: this thread's 16 bytes of it in the first row of either half and how far it is to the row four further, and the words
 * of its scales; how many bytes of a row and blocks of its scales are left from there on (less than 1: none). */
typedef struct skinny_cursor {
    int tile, step, bytes_left, blocks_left;
    const uint8_t *rows[2], *scales[2];
    int further[2];
} skinny_cursor;

/* How many words of scales a thread needs of each row and step. */
INLINE int scale_words(const skinny_shape s) { return s.weights < SKINNY_E4M3_BLOCK ? 0 : bits_of(s) == 4 ? 2 : 1; }

static __device__ __noinline__ void copy_bytes(uint32_t to, const uint8_t *from, int count) {
    for (int i = 0; i < 16; i += 4) {
        uint32_t word = 0;
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (i + j < count) word |= (uint32_t)from[i + j] << (j * 8);
        st_shared_u32(to + i, word);
    }
}

/* Four scales of one byte, of which count are there. */
static __device__ __noinline__ void copy_scales(uint32_t to, const uint8_t *from, int count) {
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (j < count) word |= (uint32_t)from[j] << (j * 8);
    st_shared_u32(to, word);
}

/* Bytes of a ring's stage: the warps' steps, [row][128 bytes] with a row's 16 bytes u at u ^ swizzle(row), and words of scales [row][word][thread]. */
INLINE int stage_bytes(const skinny_shape s) { return thread_count(s) * (64 + 8 * scale_words(s)); }

/* Blocks of scales in a step, and the first of them in word word of this thread; words are quads of blocks, or one block's fp32 scale. */
INLINE int step_blocks(const skinny_shape s) { return s.weights == SKINNY_NVFP4 ? 16 : s.weights == SKINNY_MXFP4 ? 8 : s.weights == SKINNY_E4M3_BLOCK ? 1 : 4; }
INLINE int word_block(const skinny_shape s, const int word) { return s.weights == SKINNY_NVFP4 ? word * 8 : word * 4; }

/* Words that a thread brings of row row. Narrow: a quad's lanes share those of both rows, lane t brings the row's quad t (NVFP4), quad t % 2 of row t / 2 (MXFP4),
 * or row t's, the other two lanes none. */
INLINE int own_words(const skinny_shape s, const int row) {
    if (!s.narrow || scale_words(s) == 0) return scale_words(s);
    return s.weights == SKINNY_NVFP4 || row == 0;
}

/* Do rows of b (bit 0) and of its scales (bit 1) lie as their copies' widths want it? */
INLINE int alignment_of(const skinny_arguments *g, const skinny_shape s) {
    const bool scales = s.weights == SKINNY_E4M3_BLOCK || g->b.scales.tiled || g->b.scales.row_step % 4 == 0;
    return (((g->b.data | (uint64_t)g->b.row_bytes) & 15) == 0) | scales << 1;
}

/* Eight rows' 16 bytes u lie in different banks, and so do two rows' 16 bytes 4 i to 4 i + 3. */
INLINE uint32_t swizzle(uint32_t row) { return (row & 1) << 2 | (row >> 1 & 3); }

/* A warp's copies are of whole lines: lane l brings 16 bytes l % 8 of rows l / 8, and 4, 8, 12 further. */
INLINE void load_stage(const skinny_arguments *g, const skinny_shape s, const skinny_cursor *c, int aligned, uint64_t policy, uint32_t stage) {
    const uint32_t lane = threadIdx.x % 32, to = stage + threadIdx.x / 32 * (16 * SKINNY_STEP_BYTES) + lane / 8 * SKINNY_STEP_BYTES + (lane % 8 ^ swizzle(lane / 8)) * 16;
    const uint32_t scales = stage + thread_count(s) * 64 + threadIdx.x * 4;
#pragma unroll
    for (int way = 0; way < 2; way++) {        /* all copies of an ordinary step behind one branch */
        if ((aligned == 3) != (way == 0)) continue;
#pragma unroll
        for (int row = 0; row < 2; row++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t place = (half == 0 ? to : to ^ 32) + (row * 8 + half * 4) * SKINNY_STEP_BYTES;
                const uint8_t *from = c->rows[row] + (half == 0 ? 0 : c->further[row]);
                if (way == 0 || (aligned & 1)) cp_async_policy(place, from, c->bytes_left > 0 ? 16 : 0, policy);
                else copy_bytes(place, from, c->bytes_left);
            }
#pragma unroll
            for (int word = 0; word < own_words(s, row); word++) {
                const uint32_t place = scales + (row * own_words(s, 0) + word) * thread_count(s) * 4;
                const uint8_t *from = c->scales[row] + (word_block(s, word) >> 2) * g->b.scales.quad_step;
                const int left = c->blocks_left - word_block(s, word);
                if (way == 0 || (aligned & 2)) cp_async(place, from, 4, left > 0 ? 4 : 0);
                else copy_scales(place, from, left);
            }
        }
    }
}

/* This lane's rows l / 4 and 8 further: 16 bytes l % 4 of either half of a row. */
INLINE void read_stage(const skinny_shape s, uint32_t stage, skinny_part *part) {
    const uint32_t lane = threadIdx.x % 32, row = lane / 4;
    const uint32_t from = stage + threadIdx.x / 32 * (16 * SKINNY_STEP_BYTES) + row * SKINNY_STEP_BYTES + (lane % 4 ^ swizzle(row)) * 16, scales = stage + thread_count(s) * 64 + threadIdx.x * 4;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            part->rows[half][i] = ld_shared_u32x4((i == 0 ? from : from ^ 64) + half * 8 * SKINNY_STEP_BYTES);
            if (i < scale_words(s)) part->scales[half][i] = ld_shared_u32(scales + (half * scale_words(s) + i) * thread_count(s) * 4);
        }
}

/* The codes of a chunk's scales among its words. */
INLINE uint32_t scale_codes(const skinny_shape s, const uint32_t *words, const int chunk) {
    int t = threadIdx.x % 4;
    if (s.weights == SKINNY_NVFP4) return words[chunk] >> (t % 2 * 16) & 0xffff;
    if (s.weights == SKINNY_MXFP4) return words[chunk] >> (t * 8) & 0xff;
    return words[0] >> (chunk * 16 + t / 2 * 8) & 0xff;
}

/* ---- dequantising ---- */

INLINE uint32_t pair_of(float x) { return cvt_bf16x2(x, x); }

/* What a chunk's elements are multiplied by, of each 16 of them when they are NVFP4. */
INLINE void factors_of(const skinny_shape s, uint32_t scales, uint32_t factors[2]) {
    factors[0] = factors[1] = 0;
    if (s.weights == SKINNY_NVFP4) {
        uint32_t both = cvt_f16x2_e4m3x2((uint16_t)scales);
        factors[0] = pair_of(cvt_f32_f16((uint16_t)both) * 0x1p110f);
        factors[1] = pair_of(cvt_f32_f16((uint16_t)(both >> 16)) * 0x1p110f);
    } else if (s.weights >= SKINNY_MXFP8) {
        factors[0] = pair_of_e8m0(scales);
    }
}

/* 8 k of a chunk as four pairs, in the order in which a's units lie: of e2m1 pairs are elements j and j + 4, else neighbours. */
INLINE void dequantise_unit(const skinny_shape s, const uint4 chunk, const int unit, const uint32_t factors[2], uint32_t pairs[4]) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (bits_of(s) == 16) pairs[j] = word_of(chunk, j);
        if (bits_of(s) == 8) {
            uint32_t codes = word_of(chunk, 2 * unit + j / 2) >> (j % 2 * 16);
            pairs[j] = s.weights == SKINNY_MXFP8_E5M2 ? pair_of_e5m2(codes) : pair_of_e4m3(codes);
            if (s.weights >= SKINNY_MXFP8) pairs[j] = mul_bf16x2(pairs[j], factors[0]);
        }
        if (bits_of(s) == 4) {
            pairs[j] = pair_of_e2m1(word_of(chunk, unit), j);
            if (s.weights == SKINNY_MXFP4) pairs[j] = mul_bf16x2(mul_bf16x2(pairs[j], 0x7e807e80), factors[0]);
            else pairs[j] = mul_bf16x2(pairs[j], factors[unit / 2]);
        }
    }
}

/* ---- a ---- */

/* The next of the bf16 numbers that x is a sum of: its first 8 bits. What is not finite is all in the first. */
INLINE float take_plane(float *x) {
    uint32_t bits = __float_as_uint(*x);
    bool finite = (bits & 0x7f800000) != 0x7f800000;
    float plane = __uint_as_float(finite || (bits & 0x7fffff) == 0 ? bits & 0xffff0000 : 0x7fff0000);
    *x = finite ? *x - plane : 0;
    return plane;
}

INLINE uint4 pack_unit(const skinny_shape s, const float *x) {
    if (bits_of(s) == 4) return make_uint4(cvt_bf16x2(x[0], x[4]), cvt_bf16x2(x[1], x[5]), cvt_bf16x2(x[2], x[6]), cvt_bf16x2(x[3], x[7]));
    if (s.weights == SKINNY_F16) return make_uint4(cvt_f16x2(x[0], x[1]), cvt_f16x2(x[2], x[3]), cvt_f16x2(x[4], x[5]), cvt_f16x2(x[6], x[7]));
    return make_uint4(cvt_bf16x2(x[0], x[1]), cvt_bf16x2(x[2], x[3]), cvt_bf16x2(x[4], x[5]), cvt_bf16x2(x[6], x[7]));
}

/* Unit of 8 k number unit of a slab, row row: 16 bytes. */
INLINE uint32_t unit_place(const skinny_shape s, int unit, int row, int rows) {
    const int per_chunk = chunk_units(s);
    int quad = unit / (4 * per_chunk), t = unit / per_chunk % 4, inner = unit % per_chunk;
    return (((quad * per_chunk + inner) * rows + row) * 4 + t) * 16;
}

/* Neighbours' pairs in the order of dequantise_unit. */
INLINE uint4 ordered_pairs(const skinny_shape s, const uint4 x) {
    if (bits_of(s) > 4) return x;
    return make_uint4(prmt(x.x, x.z, 0x5410), prmt(x.x, x.z, 0x7632), prmt(x.y, x.w, 0x5410), prmt(x.y, x.w, 0x7632));
}

INLINE uint4 raw_unit(int bits, const uint8_t *from) {
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (bits == 16) return *(const uint4 *)from;
    if (bits == 8) raw.x = ((const uint2 *)from)->x, raw.y = ((const uint2 *)from)->y;
    else raw.x = *(const uint32_t *)from;
    return raw;
}

enum { SKINNY_TOGETHER = 4 };

/* Units of a that a thread has on their way at a time: numbers i, i + threads, .. of all rows' units of a slab. */
typedef struct skinny_batch { uint4 raw[SKINNY_TOGETHER]; float scales[SKINNY_TOGETHER]; } skinny_batch;

/* The row of unit number i, which becomes its number in the row. */
INLINE int row_of_unit(int units, int *i) {
    const int row = (int)((uint32_t)*i / (uint32_t)units);
    *i -= row * units;
    return row;
}

/* May an entry normalise a? */
INLINE bool may_normalise(const skinny_shape s) { return s.tiles <= 2 && !s.groups; }
INLINE bool normalises(const skinny_arguments *g, const skinny_shape s) { return may_normalise(s) && g->norm.at != 0; }

/* Rows of a that are normalised lie in smem by then. */
INLINE const uint8_t *rows_of_a(const skinny_arguments *g, const skinny_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    return normalises(g, s) ? shared + g->norm.at : (const uint8_t *)g->a.data;
}

/* Can a's units be read whole? */
INLINE bool is_whole(const skinny_arguments *g, const skinny_shape s) {
    return (normalises(g, s) || is_aligned(&g->a)) && g->k % 8 == 0 && format_bits(g->a.format) <= 16 && format_bits(g->a.format) != 6;
}

/* From step first on; units: of a row. */
INLINE void fetch_units(const skinny_arguments *g, const skinny_shape s, int first, int units, int i, skinny_batch *batch) {
    const int bits = format_bits(g->a.format);
    const bool scaled = g->a.scale == MATMUL_e8m0 || g->a.scale == MATMUL_e4m3, whole = is_whole(g, s);
#pragma unroll
    for (int j = 0; j < SKINNY_TOGETHER; j++) {
        int unit = i + j * thread_count(s);
        const int row = row_of_unit(units, &unit), element = first * step_depth(s) + unit * 8;
        const bool is_there = row < g->m && element < g->k;
        batch->raw[j] = is_there && whole ? raw_unit(bits, rows_of_a(g, s) + row * g->a.row_bytes + (int64_t)element * bits / 8) : make_uint4(0, 0, 0, 0);
        batch->scales[j] = is_there && scaled ? block_scale(&g->a, scales_of_row(&g->a.scales, row), element) : 1;
    }
}

/* Of operands whose units are whole and one plane: bf16 pairs, or the f16 pairs of f16 weights. */
INLINE void fill_plain(const skinny_arguments *g, const skinny_shape s, uint32_t slab, int first, int units, const skinny_batch *fetched) {
    skinny_batch batch = *fetched;
    for (int i = threadIdx.x;;) {
#pragma unroll
        for (int j = 0; j < SKINNY_TOGETHER; j++) {
            int unit = i + j * thread_count(s);
            const int row = row_of_unit(units, &unit);
            if (row >= g->m) continue;
            if (format_bits(g->a.format) < 16) {
                float x[8];
                read_unit(g->a.format, (const uint8_t *)&batch.raw[j], 0, x);
                for (int e = 0; e < 8; e++) x[e] *= batch.scales[j];
                batch.raw[j] = make_uint4(cvt_bf16x2(x[0], x[1]), cvt_bf16x2(x[2], x[3]), cvt_bf16x2(x[4], x[5]), cvt_bf16x2(x[6], x[7]));
            }
            st_shared_u32x4(slab + unit_place(s, unit, row, g->m), ordered_pairs(s, batch.raw[j]));
        }
        i += SKINNY_TOGETHER * thread_count(s);
        if (i >= g->m * units) break;
        fetch_units(g, s, first, units, i, &batch);
    }
}

/* The part of a that belongs to steps [first, first + steps): units, and behind them the fp32 scales of blocks of 128, [steps][m]. */
INLINE void fill_slab(const skinny_arguments *g, const skinny_shape s, uint32_t slab, uint32_t slab_scales, int first, int steps, const skinny_batch *fetched) {
    const int depth = step_depth(s);
    int units = steps * (depth / 8), rows = g->m * g->planes;
    bool aligned = is_aligned(&g->a);
    const bool plain = g->planes == 1 && is_whole(g, s);
    if (plain) fill_plain(g, s, slab, first, units, fetched);
#pragma unroll 1
    for (int i = threadIdx.x; !plain && i < g->m * units; i += thread_count(s)) {
        int row = i / units, unit = i - row * units, at = first * depth + unit * 8;
        float x[8];
        load_unit(&g->a, row, g->a.scale == MATMUL_FORMAT_COUNT ? 0 : scales_of_row(&g->a.scales, row), aligned, at, g->k, x);
#pragma unroll 1
        for (int plane = 0; plane < g->planes; plane++) {
            float y[8];
#pragma unroll
            for (int j = 0; j < 8; j++) y[j] = g->planes > 1 ? take_plane(&x[j]) : x[j];
            st_shared_u32x4(slab + unit_place(s, unit, plane * g->m + row, rows), pack_unit(s, y));
        }
    }
    if (s.weights != SKINNY_E4M3_BLOCK) return;
    for (int i = threadIdx.x; i < steps * rows; i += thread_count(s)) {
        int step = i / rows, row = i % rows % g->m;
        float scale = g->a.scale == MATMUL_f32 ? ((const float *)g->a.scales.data)[scale_index(&g->a.scales, scales_of_row(&g->a.scales, row), first + step)] : 1;
        st_shared_f32(slab_scales + i * 4, scale);
    }
}

#include "kernels/gemm/skinny/narrow.cuh"
#include "kernels/gemm/skinny/norm.cuh"

/* ---- products ---- */

/* places: of this lane's row of each tile in a unit. */
INLINE void multiply_part(const skinny_shape s, const skinny_part *part, uint32_t units, int rows, const uint32_t *places, float sums[][4]) {
    const int per_chunk = chunk_units(s);
#pragma unroll
    for (int chunk = 0; chunk < 2; chunk++) {
        uint32_t factors[2][2];
        factors_of(s, scale_codes(s, part->scales[0], chunk), factors[0]);
        factors_of(s, scale_codes(s, part->scales[1], chunk), factors[1]);
#pragma unroll
        for (int unit = 0; unit < per_chunk; unit++) {
            uint32_t low[4], high[4];
            dequantise_unit(s, part->rows[0][chunk], unit, factors[0], low);
            dequantise_unit(s, part->rows[1][chunk], unit, factors[1], high);
#pragma unroll
            for (int tile = 0; tile < s.tiles; tile++) {
                uint4 a = ld_shared_u32x4(units + places[tile]);
                if (s.weights == SKINNY_F16) {
                    mma_f16(sums[tile], low[0], high[0], low[1], high[1], a.x, a.y);
                    mma_f16(sums[tile], low[2], high[2], low[3], high[3], a.z, a.w);
                } else {
                    mma_bf16(sums[tile], low[0], high[0], low[1], high[1], a.x, a.y);
                    mma_bf16(sums[tile], low[2], high[2], low[3], high[3], a.z, a.w);
                }
            }
            units += rows * 64;
        }
    }
}

/* One block of 128 of k on its own, then times both scales. scales: of a, of this step's rows. */
INLINE void multiply_block(const skinny_arguments *g, const skinny_shape s, const skinny_part *part, uint32_t units, int rows, const uint32_t *places, uint32_t scales,
                           float sums[][4]) {
    float block[8][4];
    int t = threadIdx.x % 4;
#pragma unroll
    for (int tile = 0; tile < s.tiles; tile++)
#pragma unroll
        for (int i = 0; i < 4; i++) block[tile][i] = 0;
    multiply_part(s, part, units, rows, places, block);
#pragma unroll
    for (int tile = 0; tile < s.tiles; tile++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float scale = ld_shared_f32(scales + min(tile * 8 + 2 * t + i, rows - 1) * 4);
            sums[tile][i] = fmaf(block[tile][i], scale * __uint_as_float(part->scales[0][0]), sums[tile][i]);
            sums[tile][i + 2] = fmaf(block[tile][i + 2], scale * __uint_as_float(part->scales[1][0]), sums[tile][i + 2]);
        }
}

#include "kernels/gemm/skinny/results.cuh"
#include "kernels/gemm/skinny/vector_norm.cuh"
#include "kernels/gemm/skinny/vector.cuh"
#include "kernels/gemm/skinny/persistent.cuh"
#include "kernels/gemm/skinny/codes.cuh"

/* ---- all of it ---- */

/* The places of this thread in the cursor's tile and step. */
INLINE void find_rows(const skinny_arguments *g, const skinny_shape s, uint32_t list, skinny_cursor *c) {
    bool halves = g->epilogue.halving >= 0;
    int tile = c->tile, before = take_group(g, s, list, &tile).group * g->n, t = threadIdx.x % 4;
    const int lane = threadIdx.x % 32, left = (tile * g->width + (threadIdx.x / 32 & (g->across - 1))) * (halves ? 8 : 16);
    int at = c->step * SKINNY_STEP_BYTES + lane % 8 * 16, block = c->step * step_blocks(s);
    if (s.weights == SKINNY_NVFP4) block += s.narrow ? t * 4 : t / 2 * 4;
    if (s.weights == SKINNY_MXFP4 && s.narrow) block += t % 2 * 4;
    c->bytes_left = (int)g->b.row_bytes - at;
    c->blocks_left = s.narrow && step_blocks(s) <= 4 && t > 1 ? INT32_MIN / 2 : g->b.scales.cols - block;
    for (int i = 0; i < 2; i++) {
        const int begin = halves && i == 1 ? g->epilogue.half : 0, last = halves && i == 0 ? g->epilogue.half - 1 : g->n - 1, offset = begin + left + (halves ? 0 : 8 * i);
        const int row = min(offset + lane / 8, last);
        c->rows[i] = (const uint8_t *)g->b.data + (row + before) * g->b.row_bytes + at;
        c->further[i] = row + 4 <= last ? 4 * (int)g->b.row_bytes : 0;
        if (scale_words(s) == 0 || (s.narrow && s.weights != SKINNY_NVFP4 && i != (s.weights == SKINNY_MXFP4 ? t / 2 : t % 2))) continue;
        int64_t scale = scales_of_row(&g->b.scales, min(offset + lane / 4, last) + before);
        c->scales[own_words(s, 1) == 0 ? 0 : i] = (const uint8_t *)g->b.scales.data + (s.weights == SKINNY_E4M3_BLOCK ? (scale + block) * 4 : scale + (block >> 2) * g->b.scales.quad_step);
    }
}

/* g, of which the compiler knows nothing: what is read there it does not keep in registers for it. */
INLINE const skinny_arguments *arguments_anew(const skinny_arguments *g) {
    asm volatile("" : "+l"(g));
    return g;
}

INLINE void next_step(const skinny_arguments *g, const skinny_shape s, uint32_t list, skinny_cursor *c, int along, int first, int end, int stride, int tiles) {
    c->step += along;
    if (c->step < end) {
        int words = s.weights == SKINNY_E4M3_BLOCK ? along * 4 : along * (step_blocks(s) / 4) * g->b.scales.quad_step;
        c->bytes_left -= along * SKINNY_STEP_BYTES;
        c->blocks_left -= along * step_blocks(s);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            c->rows[i] += along * SKINNY_STEP_BYTES;
            if (own_words(s, i) > 0) c->scales[i] += words;
        }
        return;
    }
    c->step = first;
    c->tile += stride;
    if (c->tile < tiles) find_rows(arguments_anew(g), s, list, c);
}

/* What comes behind the ring of this block's first tile, into the second-level cache: g->ahead bytes of each row from step first up to step end. */
INLINE void fetch_ahead(const skinny_arguments *g, int tile, int first, int end) {
    const bool halves = g->epilogue.halving >= 0;
    const int half = halves ? threadIdx.x / 8 % 2 : 0, at = first * SKINNY_STEP_BYTES, bytes = min(min(end * SKINNY_STEP_BYTES, (int)g->b.row_bytes) - at, g->ahead);
    const int col = halves ? (tile * g->width + threadIdx.x / 16) * 8 + threadIdx.x % 8 : tile * g->width * 16 + threadIdx.x, row = half * g->epilogue.half + col;
    if (threadIdx.x < 16 * g->width && col < (halves ? g->epilogue.half : g->n) && bytes >= 16) prefetch_bytes((const uint8_t *)g->b.data + row * g->b.row_bytes + at, bytes & ~15);
}

INLINE int log2_of(int x) { return 31 - __clz(x); }

/* A block (or cluster, whose blocks share k) takes every stride-th tile. When its whole k fits, a is brought once; else slab by slab for each tile. */
INLINE void matmul_skinny(const skinny_arguments *g, const skinny_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int blocks = cluster_blocks(), rank = cluster_rank(), of_blocks = log2_of(blocks), of_across = log2_of(g->across), stride = gridDim.x >> of_blocks;
    int lane = threadIdx.x % 32, along = warp_count(s) >> of_across, rows = g->m * g->planes;
    int first = g->steps * rank >> of_blocks, end = g->steps * (rank + 1) >> of_blocks, mine = first + (threadIdx.x / 32 >> of_across);
    int unit_bytes = step_depth(s) / 32 * group_pitch(s, rows), slab_bytes = g->slab_steps * (unit_bytes + (s.narrow || s.weights == SKINNY_E4M3_BLOCK ? rows * 4 : 0));
    uint32_t ring = shared_address(shared), slab = ring + stage_count(s) * stage_bytes(s), slab_scales = slab + g->slab_steps * unit_bytes;
    uint32_t list = slab + (slab_bytes + 15) / 16 * 16, amax = list, sums_at = list + (s.groups ? SKINNY_LIST_BYTES : s.narrow ? SKINNY_AMAX_BYTES : 0);
    uint32_t places[8];
    float sums[8][4];
    const narrow_place place = narrow_place_of(s, sums_at);
#pragma unroll
    for (int i = 0; i < s.tiles; i++) {
        places[i] = min(i * 8 + lane / 4, rows - 1) * 64 + lane % 4 * 16;
        sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0;
    }
    const int aligned = alignment_of(g, s);
    skinny_cursor cursor = {(int)blockIdx.x >> of_blocks, mine};
    const uint64_t policy = policy_first();
    const bool early = !s.groups && g->b_is_constant;
    grid_release();
    if (!early) grid_wait();
    const int tiles = s.groups ? g->tiles * list_groups(g, s, list) : g->tiles;
    if (s.groups && threadIdx.x < 32) clear_rest(&g->epilogue, &g->groups, g->m);
    if (!s.groups || cursor.tile < tiles) find_rows(g, s, list, &cursor);
    if ((int)(threadIdx.x / 32 & (g->across - 1)) >= g->width) mine = end;
    if (mine >= end) cursor.tile = tiles;
    if (normalises(g, s)) fetch_columns(g, s);
    for (int i = 0; i < stage_count(s) - 1; i++) {
        if (cursor.tile < tiles) {
            load_stage(g, s, &cursor, aligned, policy, ring + i * stage_bytes(s));
            next_step(g, s, list, &cursor, along, mine, end, stride, tiles);
        }
        cp_async_commit();
        if (early) cp_async_wait(0);          /* one stage after the other: what small launches in front still read does not wait behind all of them */
    }
    if (early) {
        if (aligned & 1) fetch_ahead(g, (int)blockIdx.x >> of_blocks, first + along * (stage_count(s) - 1), end);
        grid_wait();
    }
    if (normalises(g, s)) normalise_rows(g, s);
    float all = g->epilogue.alpha;
    for (int i = 0; i < 2; i++)
        if (g->epilogue.alpha_at[i] != 0) all *= *(const float *)g->epilogue.alpha_at[i];
    int stage = 0, filled = -1;
    for (int tile = blockIdx.x >> of_blocks; tile < tiles; tile += stride) {
        int step = mine;
        for (int begin = first; begin < end; begin += g->slab_steps) {
            int stop = min(begin + g->slab_steps, end);
            if (filled != begin) {
                skinny_batch batch;
                narrow_batch narrow;
                narrow_spans spans;
                if (s.narrow) spans = fetch_spans(g, s, begin, stop - begin, &narrow);
                else fetch_units(g, s, begin, (stop - begin) * (step_depth(s) / 8), threadIdx.x, &batch);
                if (filled >= 0) __syncthreads();
                else if (s.narrow && has_row_scales(g->quantised)) find_row_amax(g, s, amax, &narrow, blocks == 1 && g->m == 1 && stop == end && spans.row >= 1);
                if (s.narrow) fill_narrow(g, s, slab, slab_scales, amax, begin, stop - begin, &narrow, &spans);
                else fill_slab(g, s, slab, slab_scales, begin, stop - begin, &batch);
                __syncthreads();
                filled = begin;
            }
#pragma unroll 1
            for (; step < stop; step += along) {
                skinny_part part;
                if (stage_count(s) == 3) cp_async_wait(1);
                else cp_async_wait(2);
                const uint32_t full = ring + stage * stage_bytes(s);
                __syncwarp();
                if (!s.narrow) read_stage(s, full, &part);
                int free_stage = stage == 0 ? stage_count(s) - 1 : stage - 1;
                if (cursor.tile < tiles) {
                    load_stage(g, s, &cursor, aligned, policy, ring + free_stage * stage_bytes(s));
                    next_step(g, s, list, &cursor, along, mine, end, stride, tiles);
                }
                cp_async_commit();
                stage = stage == stage_count(s) - 1 ? 0 : stage + 1;
                uint32_t units = slab + (step - begin) * unit_bytes;
                if (s.narrow) multiply_narrow(s, full, &place, units, rows, places, slab_scales + (step - begin) * rows * 4, sums);
                else if (s.weights == SKINNY_E4M3_BLOCK) multiply_block(g, s, &part, units, rows, places, slab_scales + (step - begin) * rows * 4, sums);
                else multiply_part(s, &part, units, rows, places, sums);
            }
        }
        end_tile(g, s, s.groups ? list : amax, tile, rank, blocks, all, sums_at, sums);
    }
}

#define SKINNY_ENTRY(name, weights, tiles, groups, narrow, small)                                                                               \
    extern "C" __global__ void __launch_bounds__(SKINNY_WARPS(tiles, small) * 32, 1) name(const __grid_constant__ skinny_arguments arguments) { \
        const skinny_shape shape = {weights, tiles, groups, narrow, small};                                                                     \
        matmul_skinny(&arguments, shape);                                                                                                       \
    }

#endif
