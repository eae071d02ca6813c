/* out [m,n] = epilogue(a [m,k] b [n,k]^T) for few rows of a, bound by reading b once. The body of the entries of stream_*_sm90.cu, which give it its constants.
 *
 *   a block: 8 warps, across of them side by side along n with 16 rows of b each, the others share k; the blocks of a cluster share k, too
 *   b [16, 128 B] of a step  gmem -> ring in smem, steps and tiles ahead -> reg -> decoded to bf16 pairs -> mma.sync, b's rows being the 16 and a's the 8 of its shape
 *   a [m, k of a slab]       gmem -> reg -> bf16 in smem, in the order in which fragments want it
 *   sums                     reg -> smem of the block -> smem of the cluster -> epilogue -> gmem, added in the order of warps and blocks
 *
 * Persistent: a block takes tiles until there are none. What a thread reads from the ring it has put there itself, so no barrier stands between loads and products.
 *
 * A thread's 16 bytes of a row of b are its pairs of k, whatever their numbers: k is permuted alike in a and b. An element times its block scale is exact in bf16;
 * an element of a in f16 or f32 is a sum of two or three bf16 numbers, which are rows of a of their own (planes). NVFP4's products carry 2^-16, which alpha gives back.
 * Of rows in groups all of a lies in the slab: a tile of a group's columns is multiplied by all rows, and the group's own are stored. Tiles are counted over the groups
 * that have rows, whose list each block makes from the offsets.
 * A step that halves: the warp's upper eight rows are the second half's. Resources: a slab of a and the sums in smem. Speed: README.md. */
#ifndef KERNELS_MATMUL_STREAM_SM90_CUH
#define KERNELS_MATMUL_STREAM_SM90_CUH

#include "kernels/common/cuda/ptx_cluster.cuh"
#include "kernels/common/cuda/ptx_mma.cuh"
#include "kernels/matmul/groups.cuh"
#include "kernels/matmul/rows.cuh"
#include "kernels/matmul/stream_sm90.h"

enum { STREAM_BF16, STREAM_F16, STREAM_E4M3, STREAM_E4M3_BLOCK, STREAM_MXFP8, STREAM_MXFP8_E5M2, STREAM_MXFP4, STREAM_NVFP4 };

/* The constants of an entry. tiles: of 8 rows of a; groups: 1: rows come in groups. */
typedef struct stream_shape { int weights, tiles, groups; } stream_shape;

INLINE int bits_of(const stream_shape s) { return s.weights <= STREAM_F16 ? 16 : s.weights <= STREAM_MXFP8_E5M2 ? 8 : 4; }
INLINE int step_depth(const stream_shape s) { return STREAM_STEP_BYTES * 8 / bits_of(s); }
/* Units of 8 k in 16 bytes. */
INLINE int chunk_units(const stream_shape s) { return 16 / bits_of(s); }

/* ---- rows in groups ---- */

typedef struct stream_group { int group, begin, end; } stream_group;

/* The groups that have rows, in order, into [STREAM_GROUP_ROWS] places of 16 bytes, and their number behind them: first each at the place of its first row. */
INLINE int list_groups(const stream_arguments *g, uint32_t list) {
    int lane = threadIdx.x % 32;
    if (threadIdx.x < STREAM_GROUP_ROWS) st_shared_u32x4(list + threadIdx.x * 16, make_uint4(0, 0, 0, 0));
    __syncthreads();
    for (int group = threadIdx.x; group < g->groups.end; group += STREAM_THREADS) {
        int begin, end;
        if (rows_of_group(&g->groups, group, g->m, &begin, &end) && begin < end) st_shared_u32x4(list + begin * 16, make_uint4(group, begin, end, 0));
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        uint4 mine = make_uint4(0, 0, 0, 0);
        if (lane < STREAM_GROUP_ROWS) mine = ld_shared_u32x4(list + lane * 16);
        uint32_t all = __ballot_sync(0xffffffff, mine.z > 0);
        if (mine.z > 0) st_shared_u32x4(list + __popc(all & ((1u << lane) - 1)) * 16, mine);
        if (lane == 0) st_shared_u32(list + STREAM_GROUP_ROWS * 16, __popc(all));
    }
    __syncthreads();
    return (int)ld_shared_u32(list + STREAM_GROUP_ROWS * 16);
}

/* The group of a tile, which becomes the number of one of its own; without groups all rows are one. */
INLINE stream_group take_group(const stream_arguments *g, const stream_shape s, uint32_t list, int *tile) {
    stream_group one = {0, 0, g->m};
    if (!s.groups) return one;
    uint4 found = ld_shared_u32x4(list + *tile / g->tiles * 16);
    *tile %= g->tiles;
    one.group = (int)found.x, one.begin = (int)found.y, one.end = (int)found.z;
    return one;
}

/* ---- b: loads ---- */

/* A step of this thread's two rows, chunk by chunk, with the words that hold its scales. */
typedef struct stream_part { uint4 rows[2][2]; uint32_t scales[2][2]; } stream_part;

/* Which step of which tile a warp loads next, and the places of its two rows. */
typedef struct stream_cursor {
    int tile, step;
    const uint8_t *rows[2];
    int64_t scales[2];
} stream_cursor;

/* How many words of scales a thread needs of each row and step. */
INLINE int scale_words(const stream_shape s) { return s.weights < STREAM_E4M3_BLOCK ? 0 : bits_of(s) == 4 ? 2 : 1; }

static __device__ __noinline__ void copy_bytes(uint32_t to, const uint8_t *from, int count) {
    for (int i = 0; i < 16; i += 4) {
        uint32_t word = 0;
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (i + j < count) word |= (uint32_t)from[i + j] << (j * 8);
        st_shared_u32(to + i, word);
    }
}

/* Four scales of one byte from block 4 quad on, of which some may not be there. */
static __device__ __noinline__ void copy_scales(uint32_t to, const matmul_scales *x, int64_t row, int quad) {
    const uint8_t *codes = (const uint8_t *)x->data;
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) word |= (uint32_t)codes[scale_index(x, row, quad * 4 + j)] << (j * 8);
    st_shared_u32(to, word);
}

/* Bytes of a ring's stage: chunks [row][chunk][thread] of 16 bytes, words of scales [row][word][thread]. */
INLINE int stage_bytes(const stream_shape s) { return STREAM_THREADS * (64 + 8 * scale_words(s)); }

INLINE void load_scales(const stream_arguments *g, const stream_shape s, const stream_cursor *c, int row, bool aligned, uint32_t to) {
    const matmul_scales *x = &g->b.scales;
    int t = threadIdx.x % 4;
    if (s.weights == STREAM_E4M3_BLOCK) {
        cp_async(to, (const float *)x->data + scale_index(x, c->scales[row], c->step), 4, 4);
        return;
    }
#pragma unroll
    for (int word = 0; word < scale_words(s); word++) {
        int quad = s.weights == STREAM_NVFP4 ? c->step * 4 + word * 2 + t / 2 : c->step * scale_words(s) + word;
        quad = min(quad, (x->cols - 1) / 4);
        if (aligned) cp_async(to, (const uint8_t *)x->data + c->scales[row] + quad * x->quad_step, 4, 4);
        else copy_scales(to, x, c->scales[row], quad);
        to += STREAM_THREADS * 4;
    }
}

/* aligned: bit 0, rows of b; bit 1, rows of scales. */
INLINE void load_stage(const stream_arguments *g, const stream_shape s, const stream_cursor *c, int aligned, uint32_t stage) {
    uint32_t to = stage + threadIdx.x * 16, scales = stage + STREAM_THREADS * 64 + threadIdx.x * 4;
    int row_bytes = (int)g->b.row_bytes;
#pragma unroll
    for (int row = 0; row < 2; row++) {
#pragma unroll
        for (int chunk = 0; chunk < 2; chunk++) {
            int at = c->step * STREAM_STEP_BYTES + chunk * 64 + threadIdx.x % 4 * 16;
            if (aligned & 1) cp_async_stream(to, c->rows[row] + min(at, row_bytes - 16), at < row_bytes ? 16 : 0);
            else copy_bytes(to, c->rows[row] + at, row_bytes - at);
            to += STREAM_THREADS * 16;
        }
        if (scale_words(s) > 0) load_scales(g, s, c, row, aligned & 2, scales + row * scale_words(s) * STREAM_THREADS * 4);
    }
}

INLINE void read_stage(const stream_shape s, uint32_t stage, stream_part *part) {
    uint32_t from = stage + threadIdx.x * 16, scales = stage + STREAM_THREADS * 64 + threadIdx.x * 4;
#pragma unroll
    for (int row = 0; row < 2; row++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            part->rows[row][i] = ld_shared_u32x4(from + (row * 2 + i) * STREAM_THREADS * 16);
            if (i < scale_words(s)) part->scales[row][i] = ld_shared_u32(scales + (row * scale_words(s) + i) * STREAM_THREADS * 4);
        }
}

/* The codes of a chunk's scales among its words. */
INLINE uint32_t scale_codes(const stream_shape s, const uint32_t *words, const int chunk) {
    int t = threadIdx.x % 4;
    if (s.weights == STREAM_NVFP4) return words[chunk] >> (t % 2 * 16) & 0xffff;
    if (s.weights == STREAM_MXFP4) return words[chunk] >> (t * 8) & 0xff;
    return words[0] >> (chunk * 16 + t / 2 * 8) & 0xff;
}

/* ---- decoding ---- */

INLINE uint32_t pair_of(float x) { return cvt_bf16x2(x, x); }

/* What a chunk's elements are multiplied by, of each 16 of them when they are NVFP4. */
INLINE void factors_of(const stream_shape s, uint32_t scales, uint32_t factors[2]) {
    factors[0] = factors[1] = 0;
    if (s.weights == STREAM_NVFP4) {
        uint32_t both = cvt_f16x2_e4m3x2((uint16_t)scales);
        factors[0] = pair_of(cvt_f32_f16((uint16_t)both) * 0x1p110f);
        factors[1] = pair_of(cvt_f32_f16((uint16_t)(both >> 16)) * 0x1p110f);
    } else if (s.weights >= STREAM_MXFP8) {
        factors[0] = pair_of_e8m0(scales);
    }
}

/* 8 k of a chunk as four pairs, in the order in which a's units lie: of e2m1 pairs are elements j and j + 4, else neighbours. */
INLINE void decode_unit(const stream_shape s, const uint4 chunk, const int unit, const uint32_t factors[2], uint32_t pairs[4]) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (bits_of(s) == 16) pairs[j] = word_of(chunk, j);
        if (bits_of(s) == 8) {
            uint32_t codes = word_of(chunk, 2 * unit + j / 2) >> (j % 2 * 16);
            pairs[j] = s.weights == STREAM_MXFP8_E5M2 ? pair_of_e5m2(codes) : pair_of_e4m3(codes);
            if (s.weights >= STREAM_MXFP8) pairs[j] = mul_bf16x2(pairs[j], factors[0]);
        }
        if (bits_of(s) == 4) {
            pairs[j] = pair_of_e2m1(word_of(chunk, unit), j);
            if (s.weights == STREAM_MXFP4) pairs[j] = mul_bf16x2(mul_bf16x2(pairs[j], 0x7e807e80), factors[0]);
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

INLINE uint4 pack_unit(const stream_shape s, const float *x) {
    if (bits_of(s) == 4) return make_uint4(cvt_bf16x2(x[0], x[4]), cvt_bf16x2(x[1], x[5]), cvt_bf16x2(x[2], x[6]), cvt_bf16x2(x[3], x[7]));
    if (s.weights == STREAM_F16) return make_uint4(cvt_f16x2(x[0], x[1]), cvt_f16x2(x[2], x[3]), cvt_f16x2(x[4], x[5]), cvt_f16x2(x[6], x[7]));
    return make_uint4(cvt_bf16x2(x[0], x[1]), cvt_bf16x2(x[2], x[3]), cvt_bf16x2(x[4], x[5]), cvt_bf16x2(x[6], x[7]));
}

/* Unit of 8 k number unit of a slab, row row: 16 bytes. */
INLINE uint32_t unit_place(const stream_shape s, int unit, int row, int rows) {
    const int per_chunk = chunk_units(s);
    int quad = unit / (4 * per_chunk), t = unit / per_chunk % 4, inner = unit % per_chunk;
    return (((quad * per_chunk + inner) * rows + row) * 4 + t) * 16;
}

/* The part of a that belongs to steps [first, first + steps): units, and behind them the fp32 scales of blocks of 128, [steps][m]. */
INLINE void fill_slab(const stream_arguments *g, const stream_shape s, uint32_t slab, uint32_t slab_scales, int first, int steps) {
    const int depth = step_depth(s);
    int units = steps * (depth / 8), rows = g->m * g->planes;
    bool aligned = is_aligned(&g->a);
#pragma unroll 1
    for (int i = threadIdx.x; i < g->m * units; i += STREAM_THREADS) {
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
    if (s.weights != STREAM_E4M3_BLOCK) return;
    for (int i = threadIdx.x; i < steps * g->m; i += STREAM_THREADS) {
        int step = i / g->m, row = i % g->m;
        float scale = g->a.scale == MATMUL_f32 ? ((const float *)g->a.scales.data)[scale_index(&g->a.scales, scales_of_row(&g->a.scales, row), first + step)] : 1;
        st_shared_f32(slab_scales + i * 4, scale);
    }
}

/* ---- products ---- */

/* places: of this lane's row of each tile in a unit. */
INLINE void multiply_part(const stream_shape s, const stream_part *part, uint32_t units, int rows, const uint32_t *places, float sums[][4]) {
    const int per_chunk = chunk_units(s);
#pragma unroll
    for (int chunk = 0; chunk < 2; chunk++) {
        uint32_t factors[2][2];
        factors_of(s, scale_codes(s, part->scales[0], chunk), factors[0]);
        factors_of(s, scale_codes(s, part->scales[1], chunk), factors[1]);
#pragma unroll
        for (int unit = 0; unit < per_chunk; unit++) {
            uint32_t low[4], high[4];
            decode_unit(s, part->rows[0][chunk], unit, factors[0], low);
            decode_unit(s, part->rows[1][chunk], unit, factors[1], high);
#pragma unroll
            for (int tile = 0; tile < s.tiles; tile++) {
                uint4 a = ld_shared_u32x4(units + places[tile]);
                if (s.weights == STREAM_F16) {
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
INLINE void multiply_block(const stream_arguments *g, const stream_shape s, const stream_part *part, uint32_t units, int rows, const uint32_t *places, uint32_t scales,
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
            float scale = ld_shared_f32(scales + min(tile * 8 + 2 * t + i, rows - 1) % g->m * 4);
            sums[tile][i] = fmaf(block[tile][i], scale * __uint_as_float(part->scales[0][0]), sums[tile][i]);
            sums[tile][i + 2] = fmaf(block[tile][i + 2], scale * __uint_as_float(part->scales[1][0]), sums[tile][i + 2]);
        }
}

/* ---- results ---- */

/* group: the row of a bias. */
INLINE float apply_one(const matmul_step *step, float y, int group, int row, int col) {
    float x = 0;
    if (step->data != 0) x = load_operand(step, (step->step == MATMUL_POST_bias ? group : row) * step->row_stride + col * step->col_stride);
    switch (step->step) {
    case MATMUL_POST_bias:
    case MATMUL_POST_add: return y + x;
    case MATMUL_POST_mul: return y * x;
    case MATMUL_POST_relu: return relu(y);
    case MATMUL_POST_silu: return silu(y);
    case MATMUL_POST_gelu: return gelu(y);
    case MATMUL_POST_gelu_tanh: return gelu_tanh(y);
    case MATMUL_POST_tanh: return tanh_exp(y);
    default: return sigmoid(y);
    }
}

/* alpha and its addresses are done. col: of b's rows, of all groups. */
INLINE float with_factors(const matmul_epilogue *e, float y, int row, int col) {
    y *= factor_at(e->row_factors, row, e->row_factors != 0);
    return y * factor_at(e->col_factors, col, e->col_factors != 0);
}

/* y: the sum of column col, u: of column col + half where a step halves. before: rows of b in front of the group's. */
INLINE float finish(const matmul_epilogue *e, float y, float u, int group, int before, int row, int col) {
    bool halves = e->halving >= 0;
    int first = halves ? e->halving : e->count;
    y = with_factors(e, y, row, before + col);
    if (halves) u = with_factors(e, u, row, before + col + e->half);
#pragma unroll 1
    for (int i = 0; i < first; i++) {
        y = apply_one(&e->steps[i], y, group, row, col);
        if (halves) u = apply_one(&e->steps[i], u, group, row, col + e->half);
    }
    if (!halves) return y;
    apply_halving(e->steps[first].step, 1, &y, &u);
#pragma unroll 1
    for (int i = first + 1; i < e->count; i++) y = apply_one(&e->steps[i], y, group, row, col);
    return y;
}

INLINE void store_result(const matmul_epilogue *e, float y, int row, int col) {
    int64_t at = row * e->out_row_stride + col;
    if (e->out_format == MATMUL_f32) ((float *)e->out)[at] = y;
    else ((uint16_t *)e->out)[at] = (uint16_t)(e->out_format == MATMUL_bf16 ? cvt_bf16x2(y, 0) : cvt_f16x2(y, 0));
}

/* The sum of column col of a tile and row row of a over the block's warps, [warp][tiles * 8][pitch], and over planes: small ones first, warps in order. */
INLINE float add_warps(const stream_arguments *g, const stream_shape s, uint32_t sums, int row, int col) {
    float y = 0;
    for (int plane = g->planes - 1; plane >= 0; plane--)
        for (int warp = col / 16; warp < STREAM_WARPS; warp += g->across)
            y += ld_shared_f32(sums + ((warp * s.tiles * 8 + plane * g->m + row) * STREAM_SUM_PITCH + col % 16) * 4);
    return y;
}

INLINE float add_blocks(uint32_t place, int blocks) {
    float y = 0;
    for (int rank = 0; rank < blocks; rank++) y += ld_cluster_f32(cluster_map(place, rank));
    return y;
}

/* first: this thread's number among the threads that share the tile, threads of them. blocks 1: sums are the warps'; else the blocks', [m][16 across]. */
INLINE void store_tile(const stream_arguments *g, const stream_shape s, uint32_t list, int tile, int first, int threads, int blocks, float all, uint32_t sums) {
    const matmul_epilogue *e = &g->epilogue;
    stream_group own = take_group(g, s, list, &tile);
    bool halves = e->halving >= 0;
    int each = halves ? 8 : 16, wide = each * g->across, end = halves ? e->half : g->n;
    for (int i = first; i < wide * (own.end - own.begin); i += threads) {
        int at = i % wide, row = own.begin + i / wide, col = tile * wide + at, place = at / each * 16 + at % each;
        if (col >= end) continue;
        float y, u = 0;
        if (blocks == 1) {
            y = add_warps(g, s, sums, row, place);
            if (halves) u = add_warps(g, s, sums, row, place + 8);
        } else {
            y = add_blocks(sums + (row * 16 * g->across + place) * 4, blocks);
            if (halves) u = add_blocks(sums + (row * 16 * g->across + place + 8) * 4, blocks);
        }
        store_result(e, finish(e, all * y, all * u, s.groups ? own.group : row, own.group * g->n, row, col), row, col);
    }
}

/* A tile's sums out of registers and to results. Of two buffers tiles take turns: the next tile's barrier tells that this one's sums were read. Of many rows there
 * is one, and another barrier. */
INLINE void end_tile(const stream_arguments *g, const stream_shape s, uint32_t list, int tile, int turn, int rank, int blocks, float all, uint32_t buffers, float sums[][4]) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, block_bytes = STREAM_THREADS / 32 * s.tiles * 8 * STREAM_SUM_PITCH * 4;
    const int count = s.tiles <= 2 ? 2 : 1;
    uint32_t mine = buffers + turn % count * block_bytes, of_block = buffers + count * block_bytes + turn % count * (64 * g->across * g->m);
#pragma unroll
    for (int i = 0; i < s.tiles; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            st_shared_f32(mine + ((warp * s.tiles * 8 + i * 8 + lane % 4 * 2 + j % 2) * STREAM_SUM_PITCH + lane / 4 + j / 2 * 8) * 4, sums[i][j]);
            sums[i][j] = 0;
        }
    __syncthreads();
    int first = (threadIdx.x + turn * 32) % STREAM_THREADS;   /* the warps take turns, too */
    if (blocks == 1) {
        store_tile(g, s, list, tile, first, STREAM_THREADS, 1, all, mine);
        if (count == 1) __syncthreads();
        return;
    }
    for (int i = first; i < 16 * g->across * g->m; i += STREAM_THREADS) st_shared_f32(of_block + i * 4, add_warps(g, s, mine, i / (16 * g->across), i % (16 * g->across)));
    cluster_arrive();
    cluster_wait();
    store_tile(g, s, list, tile, rank * STREAM_THREADS + first, STREAM_THREADS * blocks, blocks, all, of_block);
    if (count > 1) return;
    cluster_arrive();
    cluster_wait();
}

/* ---- all of it ---- */

/* The rows of this thread in the cursor's tile. */
INLINE void find_rows(const stream_arguments *g, const stream_shape s, uint32_t list, stream_cursor *c) {
    bool halves = g->epilogue.halving >= 0;
    int tile = c->tile, before = take_group(g, s, list, &tile).group * g->n;
    int left = (tile * g->across + threadIdx.x / 32 % g->across) * (halves ? 8 : 16) + threadIdx.x % 32 / 4;
    for (int i = 0; i < 2; i++) {
        int row = min(halves && i == 1 ? min(left, g->epilogue.half - 1) + g->epilogue.half : left + 8 * i, g->n - 1) + before;
        c->rows[i] = (const uint8_t *)g->b.data + row * g->b.row_bytes;
        c->scales[i] = scales_of_row(&g->b.scales, row);
    }
}

INLINE void next_step(const stream_arguments *g, const stream_shape s, uint32_t list, stream_cursor *c, int first, int end, int stride, int tiles) {
    c->step += STREAM_WARPS / g->across;
    if (c->step < end) return;
    c->step = first;
    c->tile += stride;
    if (c->tile < tiles) find_rows(g, s, list, c);
}

/* A block (or cluster, whose blocks share k) takes every stride-th tile. When its whole k fits, a is brought once; else slab by slab for each tile. */
INLINE void matmul_stream(const stream_arguments *g, const stream_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    int blocks = cluster_blocks(), rank = cluster_rank(), stride = gridDim.x / blocks;
    int lane = threadIdx.x % 32, along = STREAM_WARPS / g->across, rows = g->m * g->planes;
    int first = (int)((int64_t)g->steps * rank / blocks), end = (int)((int64_t)g->steps * (rank + 1) / blocks), mine = first + threadIdx.x / 32 / g->across;
    int unit_bytes = step_depth(s) / 8 * rows * 16, slab_bytes = g->slab_steps * (unit_bytes + (s.weights == STREAM_E4M3_BLOCK ? g->m * 4 : 0));
    uint32_t ring = shared_address(shared), slab = ring + STREAM_STAGES * stage_bytes(s), slab_scales = slab + g->slab_steps * unit_bytes;
    uint32_t list = slab + (slab_bytes + 15) / 16 * 16, buffers = list + (s.groups ? STREAM_LIST_BYTES : 0);
    uint32_t places[8];
    float sums[8][4];
#pragma unroll
    for (int i = 0; i < s.tiles; i++) {
        places[i] = min(i * 8 + lane / 4, rows - 1) * 64 + lane % 4 * 16;
        sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0;
    }
    int aligned = (((g->b.data | (uint64_t)g->b.row_bytes) & 15) == 0) | (g->b.scales.tiled || g->b.scales.row_step % 4 == 0) << 1;
    stream_cursor cursor = {(int)blockIdx.x / blocks, mine};
    grid_wait();
    const int tiles = s.groups ? g->tiles * list_groups(g, list) : g->tiles;
    if (s.groups && threadIdx.x < 32) clear_rest(&g->epilogue, &g->groups, g->m);
    if (!s.groups || cursor.tile < tiles) find_rows(g, s, list, &cursor);
    if (mine >= end) cursor.tile = tiles;
    for (int i = 0; i < STREAM_STAGES - 1; i++) {
        if (cursor.tile < tiles) {
            load_stage(g, s, &cursor, aligned, ring + i * stage_bytes(s));
            next_step(g, s, list, &cursor, mine, end, stride, tiles);
        }
        cp_async_commit();
    }
    float all = g->epilogue.alpha;
    for (int i = 0; i < 2; i++)
        if (g->epilogue.alpha_at[i] != 0) all *= *(const float *)g->epilogue.alpha_at[i];
    int turn = 0, stage = 0, filled = -1;
    for (int tile = blockIdx.x / blocks; tile < tiles; tile += stride, turn++) {
        int step = mine;
        for (int begin = first; begin < end; begin += g->slab_steps) {
            int stop = min(begin + g->slab_steps, end);
            if (filled != begin) {
                if (filled >= 0) __syncthreads();
                fill_slab(g, s, slab, slab_scales, begin, stop - begin);
                __syncthreads();
                filled = begin;
            }
#pragma unroll 1
            for (; step < stop; step += along) {
                stream_part part;
                cp_async_wait(STREAM_STAGES - 2);
                read_stage(s, ring + stage * stage_bytes(s), &part);
                int free_stage = stage == 0 ? STREAM_STAGES - 1 : stage - 1;
                if (cursor.tile < tiles) {
                    load_stage(g, s, &cursor, aligned, ring + free_stage * stage_bytes(s));
                    next_step(g, s, list, &cursor, mine, end, stride, tiles);
                }
                cp_async_commit();
                stage = stage == STREAM_STAGES - 1 ? 0 : stage + 1;
                uint32_t units = slab + (step - begin) * unit_bytes;
                if (s.weights == STREAM_E4M3_BLOCK) multiply_block(g, s, &part, units, rows, places, slab_scales + (step - begin) * g->m * 4, sums);
                else multiply_part(s, &part, units, rows, places, sums);
            }
        }
        end_tile(g, s, list, tile, turn, rank, blocks, all, buffers, sums);
    }
    if (blocks > 1) {             /* nobody leaves whose sums others still read */
        cluster_arrive_relaxed();
        cluster_wait();
    }
}

#define MATMUL_STREAM(name, weights, tiles, groups)                                                                                      \
    extern "C" __global__ void __launch_bounds__(STREAM_THREADS, (tiles) <= 2 ? 2 : 1) name(const __grid_constant__ stream_arguments arguments) {              \
        const stream_shape shape = {weights, tiles, groups};                                                                             \
        matmul_stream(&arguments, shape);                                                                                                \
    }
#define MATMUL_STREAMS(name, weights)                                                                                                    \
    MATMUL_STREAM(matmul_stream_##name##_m8, weights, 1, 0)                                                                              \
    MATMUL_STREAM(matmul_stream_##name##_m16, weights, 2, 0)                                                                             \
    MATMUL_STREAM(matmul_stream_##name##_m32, weights, 4, 0)                                                                             \
    MATMUL_STREAM(matmul_stream_##name##_m64, weights, 8, 0)
#define MATMUL_STREAMS_GROUPS(name, weights)                                                                                             \
    MATMUL_STREAM(matmul_stream_##name##_m8_groups, weights, 1, 1)                                                                       \
    MATMUL_STREAM(matmul_stream_##name##_m16_groups, weights, 2, 1)

#endif
