/* mqa_logits by wgmma, of q and k in e4m3. Thread blocks stay, one to a multiprocessor. A tile is 256 rows of q: the heads of 4 queries, or of 8 with up to 32 heads; an item a tile and a chunk of keys.
 *
 *   warp 16             empty -> TMA  q [256,width] of the item -> full            2 stages, smem
 *                       empty -> TMA  k [256,width] -> full                        4 stages, smem
 *   warp 17             empty -> factors of keys [256] fp32, pages -> full         beside k
 *   warp 18             empty -> weights [256] fp32, ranges of queries -> full     beside q
 *   warp 19             -inf where no key of the chunk is seen -> gmem
 *   warpgroups 0 to 3   two of the four boxes of 64 keys of each stage, half of the tile's rows: scores [64,128] = k q^T in registers; relu, times weights, summed over heads; times the key's factor -> gmem
 *
 * While one warpgroup weighs its scores the others' products run. relu is max(x, 0) for half of the scores and x + |x| for the others, whose weights are halved, as maxima go at half the rate of sums. Keys are rows of
 * the products, so that a head's sum is within a thread and its three neighbours, which trade sums until each has other ones. Weights stay in registers.
 * A factor that is below 0 or no finite number multiplies scores, in front of relu and in a branch of its own; else factors multiply sums.
 * Registers: 32 (loads) and 112. Shared memory: 199 KB at width 128. Speed on an H200 (2026-11-29): 575 to 734 TFLOP/s at width 64, 922 to 1070 at 128; README.md has what bought it. */
#include "kernels/gpu/ptx/wgmma.cuh"
#include "kernels/mqa_logits/roles.cuh"

/* PART: rows of q of a warpgroup. MAXIMA: see takes_max. */
enum { LOAD_WARP = 16, FACTOR_WARP, TELL_WARP, PART = MQA_ROWS / 2, SUMS = 8, MAXIMA = 2, BOXES = MQA_WGMMA_BLOCK / MQA_BOX };

static_assert(BOXES % 2 == 0, "warpgroups take boxes of a stage in turns");

/* Queries of a warpgroup's part of a tile. */
INLINE constexpr int part_queries(const mqa_shape s) { return queries_of(s) / 2; }

/* ---- products and sums: a warpgroup ---- */

/* Of an operand whose rows are 64 bytes, swizzled by 64: 512 bytes from 8 rows to the next 8. */
INLINE uint64_t descriptor_of(const mqa_shape s, uint32_t address) {
    return s.width == 128 ? wgmma_descriptor(address) : (uint64_t)2 << 62 | (uint64_t)32 << 32 | (uint64_t)1 << 16 | (address & 0x3ffff) >> 4;
}

INLINE void multiply(const mqa_shape s, float *scores, uint64_t k, uint64_t q) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < s.width / 32; i++) wgmma_n128_e4m3(scores, k + 2 * i, q + 2 * i, i > 0);
    wgmma_commit();
}

INLINE void load_weights(uint32_t from, float *weights) {
#pragma unroll
    for (int j = 0; j < PART / 8; j++) {
        const float2 two = ld_shared_f32x2(from + 4 * (8 * j + (int)threadIdx.x % 4 * 2));
        weights[2 * j] = two.x, weights[2 * j + 1] = two.y;
    }
}

/* Sums over the thread's heads: sums[2 u + r] of query u, row r of two. */
INLINE void weigh(const mqa_shape s, const float *scores, const float *weights, float *sums) {
#pragma unroll
    for (int i = 0; i < 2 * part_queries(s); i++) sums[i] = 0;
#pragma unroll
    for (int j = 0; j < PART / 8; j++) {
        float *to = sums + 2 * (j * 8 / s.heads);
#pragma unroll
        for (int i = 0; i < 4; i++) to[i / 2] = fmaf(positive(s, scores[4 * j + i], 8 * j), weights[2 * j + i % 2], to[i / 2]);
    }
}

/* Four neighbours, who have parts of the same sums, trade until each has the whole of a fourth of them: number 4 i + lane % 4 is in sums[i]. */
INLINE void trade(const mqa_shape s, float *sums) {
    const bool odd = (threadIdx.x & 1) != 0, high = (threadIdx.x & 2) != 0;
#pragma unroll
    for (int i = 0; i < part_queries(s); i++) {
        const float kept = odd ? sums[2 * i + 1] : sums[2 * i], given = odd ? sums[2 * i] : sums[2 * i + 1];
        sums[i] = kept + __shfl_xor_sync(0xffffffff, given, 1);
    }
#pragma unroll
    for (int i = 0; i < part_queries(s) / 2; i++) {
        const float kept = high ? sums[2 * i + 1] : sums[2 * i], given = high ? sums[2 * i] : sums[2 * i + 1];
        sums[i] = kept + __shfl_xor_sync(0xffffffff, given, 2);
    }
}

/* Scores times their rows' factors, of which the thread has one and its neighbour the other, with relu: sums of infinities would be none. */
INLINE void scale_scores(float factor, float *scores) {
    const int lane = (int)threadIdx.x % 32;
    const float first = __shfl_sync(0xffffffff, factor, lane & ~1), second = __shfl_sync(0xffffffff, factor, lane | 1);
#pragma unroll
    for (int i = 0; i < PART / 2; i++) scores[i] = max_nan(scores[i] * ((i & 2) == 0 ? first : second), 0);
}

/* ---- results ---- */

/* A thread's key in its box, and the first of its part's queries, of the sums that it has after trading: it has every second one. */
INLINE int own_key(void) { return (int)threadIdx.x % 128 / 32 * 16 + (int)threadIdx.x % 32 / 4 + 8 * ((int)threadIdx.x & 1); }
INLINE int own_query(void) { return (int)threadIdx.x >> 1 & 1; }

/* Where a thread's sums go in boxes that begin within [low, low + span] of the chunk: all queries see all of their keys, and results are fp32 side by side. */
typedef struct mqa_plain { uint64_t to; int low; uint32_t span; } mqa_plain;

INLINE mqa_plain plain_of(const mqa_arguments *p, const mqa_shape s, mqa_item item, mqa_work work, int part) {
    const int first = item.first + part * part_queries(s) + own_query(), last = min(work.high, item.end) - MQA_BOX;
    const bool is_plain = p->out.format == CUDA_f32 && p->out_strides[2] == 1 && item.first + queries_of(s) <= (int)p->queries && last >= work.low;
    const int64_t row = item.batch * p->out_strides[0] + first * p->out_strides[1];
    const mqa_plain plain = {p->out.data + 4 * (row + own_key()), is_plain ? work.low : INT32_MAX, is_plain ? (uint32_t)(last - work.low) : 0};
    return plain;
}

INLINE void store_plain(const mqa_arguments *p, const mqa_shape s, uint64_t to, float factor, const float *sums) {
#pragma unroll
    for (int i = 0; i < part_queries(s) / 2; i++, to += 8 * p->out_strides[1]) st_global_f32(to, sums[i] * factor);
}

/* The same in all other boxes, of the item of a stage of q. */
INLINE void store_sums(const mqa_arguments *p, const mqa_shape s, mqa_smem m, int stage, int part, bool is_there, int box, float factor, const float *sums) {
    const int own = part * part_queries(s) + own_query(), key = box + own_key();
    mqa_item item;
    load_work(m, stage, &item);
    if (key >= item.end) return;
#pragma unroll
    for (int i = 0; i < part_queries(s) / 2; i++) {
        const int query = own + 2 * i;
        const uint32_t range = ranges_at(m, stage) + query * MQA_RANGE_BYTES;
        const bool sees = is_there && key >= (int)ld_shared_u32(range) && key < (int)ld_shared_u32(range + 4);
        if (item.first + query >= (int)p->queries) return;
        store_float(&p->out, item.batch * p->out_strides[0] + (item.first + query) * p->out_strides[1] + key * p->out_strides[2], sees ? sums[i] * factor : -INFINITE);
    }
}

/* A warpgroup's boxes of an item's blocks: every second one. number: of the item's first block, of all. */
INLINE void make_boxes(const mqa_arguments *p, const mqa_shape s, mqa_smem m, int part, int group, uint32_t number, mqa_work work, int q_stage, const mqa_plain plain, const float *weights) {
    const uint64_t upper = descriptor_of(s, 0);
    uint32_t q = (uint32_t)descriptor_of(s, m.q + (q_stage * MQA_ROWS + part * PART) * s.width), k = (uint32_t)descriptor_of(s, m.k);
    asm volatile("" : "+r"(q), "+r"(k));   /* else they are made anew in front of each product */
#pragma unroll 1
    for (int i = 0; agreed(i < BOXES / 2 * work.count); i++) {
        const ring_turn turn = ring_reader_turn(number + i / (BOXES / 2), MQA_WGMMA_STAGES);
        const bool is_first = i % (BOXES / 2) == 0, is_last = (i + 1) % (BOXES / 2) == 0;
        const int place = turn.stage * BOXES + i % (BOXES / 2) * 2 + group, box = work.first * MQA_WGMMA_BLOCK + (2 * i + group) * MQA_BOX;
        float scores[PART / 2], sums[SUMS];
        if (is_first) ring_wait_full(m.k_ring, turn);
        multiply(s, scores, upper | (k + place * (MQA_BOX * s.width / 16)), upper | q);
        float factor = factor_at(m, s, 0, place * MQA_BOX + own_key(), p->scale);
        const int page = (int)ld_shared_u32(m.pages + 4 * place);
        wgmma_wait(0);
        asm volatile("" : "+f"(factor));   /* else all threads' factors are asked for between the steps of the product */
        const bool is_odd = agreed(__float_as_uint(factor) >= __float_as_uint(INFINITE));
        __syncwarp();
        if (is_last && threadIdx.x % 32 == 0) ring_arrive_empty(m.k_ring, turn);
        if (is_odd) {
            scale_scores(factor, scores);
            factor = 1;
        }
        weigh(s, scores, weights, sums);
        trade(s, sums);
        if (agreed(page >= 0) && (uint32_t)(box - plain.low) <= plain.span) store_plain(p, s, plain.to + 4 * (int64_t)box, factor, sums);
        else store_sums(p, s, m, q_stage, part, page >= 0, box, factor, sums);
    }
}

INLINE void make_items(const mqa_arguments *p, const mqa_shape s, mqa_smem m, int part, int group) {
    ring_turn turn = ring_reader();
    uint32_t number = 0;
#pragma unroll 1
    while (true) {
        float weights[PART / 4];
        mqa_item item;
        ring_wait_full(m.q_ring, turn);
        const mqa_work work = load_work(m, turn.stage, &item);
        if (agreed(work.count == 0)) break;
        load_weights(work_at(m, turn.stage) + 4 * PART * part, weights);
        make_boxes(p, s, m, part, group, number, work, turn.stage, plain_of(p, s, item, work, part), weights);
        number += (uint32_t)work.count;
        __syncwarp();
        if (threadIdx.x % 32 == 0) ring_arrive_empty(m.q_ring, turn);
        ring_next(&turn, MQA_Q_STAGES);
    }
}

/* ---- a thread block ---- */

INLINE void mqa_wgmma(const mqa_tiles_arguments *g, const mqa_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    uint32_t base = shared_address(shared);
    asm volatile("" : "+r"(base));    /* else it is read anew where it is used */
    const mqa_smem m = smem_of(s, base);
    const int role = __shfl_sync(0xffffffff, threadIdx.x / 128, 0), warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
        ring_init(m.q_ring, MQA_Q_STAGES, 2, 16);
        ring_init(m.k_ring, MQA_WGMMA_STAGES, loaders_of(&g->call, s), 16);
        fence_mbarrier_init();
    }
    begin_factors(&g->call, s, m, MQA_WGMMA_THREADS);
    __syncthreads();
    grid_release();
    grid_wait();
    if (role == 4) {
        setmaxnreg_dec(32);
        if (warp == LOAD_WARP) load_items(g, s, m, true);
        else if (warp == FACTOR_WARP) load_items(g, s, m, false);
        else if (warp == TELL_WARP) tell_items(g, s, m);
        else clean_items(g, s, (int)threadIdx.x % 32, 32);
    } else {
        setmaxnreg_inc(112);
        make_items(&g->call, s, m, role / 2, role % 2);
    }
}

#define MQA_TILE(name, heads, width)                                                                                                         \
    extern "C" __global__ void __launch_bounds__(MQA_WGMMA_THREADS, 1) mqa_logits_wgmma_##name(const __grid_constant__ mqa_tiles_arguments arguments) { \
        const mqa_shape shape = {heads, width, MQA_WGMMA_BLOCK, MQA_WGMMA_STAGES, MAXIMA, MQA_ROWS, width, 0, 0};                            \
        mqa_wgmma(&arguments, shape);                                                                                                        \
    }
#include "kernels/mqa_logits/tiles.def"
