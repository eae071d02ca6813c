/* mqa_logits by wgmma, of q and k in e4m3. Thread blocks stay, one to a multiprocessor. A tile is 256 rows of q: the heads of 4 queries, or of 8 with up to 32 heads; an item a tile and a chunk of keys.
 *
 *   warp 8          empty -> TMA  q [256,width] of the item -> full            2 stages, smem
 *                   empty -> TMA  k [64,width] -> full                         16 stages, smem
 *   warp 9          empty -> factors of keys [64] fp32 -> full                 beside k
 *   warp 10         empty -> weights [256] fp32, ranges of queries -> full     beside q
 *   warp 11         -inf where no key of the chunk is seen -> gmem
 *   warpgroups 0, 1 blocks of keys in turns: scores [64,256] = k q^T in registers; relu, times weights, summed over heads; times the key's factor -> gmem
 *
 * While one warpgroup weighs its scores the other one's products run: 512 cycles of tensor cores for a block at width 128, beside 2 instructions for each of 128 scores a thread. relu is max(x, 0) for a fourth of the
 * scores and x + |x| for the others, whose weights are halved: maxima go at half the rate of sums. Keys are rows of
 * the products, so that a head's sum is within a thread and its three neighbours, which trade sums until each has other ones: 6 shuffles for 8 sums. Weights stay in registers.
 * A factor that is below 0 or no finite number multiplies scores, in front of relu and in a branch of its own; else factors multiply sums.
 * Registers: 40 (loads) and 232. Shared memory: 170 KB at width 128. Speed on an H100 (2026-11-28): 829 to 1084 TFLOP/s at width 128, 570 to
 * 653 at 64; README.md has the floor by count. */
#include "kernels/gpu/ptx/wgmma.cuh"
#include "kernels/mqa_logits/roles.cuh"

enum { LOAD_WARP = 8, FACTOR_WARP, TELL_WARP, SUMS = 16 };

static_assert(MQA_WGMMA_STAGES % 2 == 0, "two warpgroups take stages in turns");

/* ---- products and sums: a warpgroup ---- */

/* Of a descriptor's operand whose rows are 64 bytes, swizzled by 64: 512 bytes from 8 rows to the next 8. */
INLINE uint64_t descriptor_of(const mqa_shape s, uint32_t address) {
    return s.width == 128 ? wgmma_descriptor(address) : (uint64_t)2 << 62 | (uint64_t)32 << 32 | (uint64_t)1 << 16 | (address & 0x3ffff) >> 4;
}

INLINE void multiply(const mqa_shape s, float *scores, uint32_t k, uint32_t q) {
    const uint64_t a = descriptor_of(s, k), b = descriptor_of(s, q);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < s.width / 32; i++) wgmma_n256_e4m3(scores, a + 2 * i, b + 2 * i, i > 0);
    wgmma_commit();
}

INLINE void load_weights(uint32_t from, float *weights) {
#pragma unroll
    for (int j = 0; j < MQA_ROWS / 8; j++) {
        const float2 two = ld_shared_f32x2(from + 4 * (8 * j + (int)threadIdx.x % 4 * 2));
        weights[2 * j] = two.x, weights[2 * j + 1] = two.y;
    }
}

/* Sums over the thread's heads: sums[2 u + r] of query u, row r of two. */
INLINE void weigh(const mqa_shape s, const float *scores, const float *weights, float *sums) {
#pragma unroll
    for (int i = 0; i < 2 * queries_of(s); i++) sums[i] = 0;
#pragma unroll
    for (int j = 0; j < MQA_ROWS / 8; j++) {
        float *to = sums + 2 * (j * 8 / s.heads);
#pragma unroll
        for (int i = 0; i < 4; i++) to[i / 2] = fmaf(positive(s, scores[4 * j + i], 8 * j), weights[2 * j + i % 2], to[i / 2]);
    }
}

/* Four neighbours, who have parts of the same sums, trade until each has the whole of a fourth of them: number 4 i + lane % 4 is in sums[i]. */
INLINE void trade(const mqa_shape s, float *sums) {
    const bool odd = (threadIdx.x & 1) != 0, high = (threadIdx.x & 2) != 0;
#pragma unroll
    for (int i = 0; i < queries_of(s); i++) {
        const float kept = odd ? sums[2 * i + 1] : sums[2 * i], given = odd ? sums[2 * i] : sums[2 * i + 1];
        sums[i] = kept + __shfl_xor_sync(0xffffffff, given, 1);
    }
#pragma unroll
    for (int i = 0; i < queries_of(s) / 2; i++) {
        const float kept = high ? sums[2 * i + 1] : sums[2 * i], given = high ? sums[2 * i] : sums[2 * i + 1];
        sums[i] = kept + __shfl_xor_sync(0xffffffff, given, 2);
    }
}

/* Scores times their rows' factors, of which the thread has one and its neighbour the other, with relu: sums of infinities would be none. */
INLINE void scale_scores(float factor, float *scores) {
    const int lane = (int)threadIdx.x % 32;
    const float first = __shfl_sync(0xffffffff, factor, lane & ~1), second = __shfl_sync(0xffffffff, factor, lane | 1);
#pragma unroll
    for (int i = 0; i < MQA_ROWS / 2; i++) scores[i] = max_nan(scores[i] * ((i & 2) == 0 ? first : second), 0);
}

/* ---- results ---- */

/* A thread's key in the block, and the first of its queries, of the sums that it has after trading: it has every second one. */
INLINE int own_key(void) { return (int)threadIdx.x % 128 / 32 * 16 + (int)threadIdx.x % 32 / 4 + 8 * ((int)threadIdx.x & 1); }
INLINE int own_query(void) { return (int)threadIdx.x >> 1 & 1; }

/* What a thread knows of an item. */
typedef struct mqa_own {
    int64_t row;                  /* of its first query, in elements of the result */
    int left;                     /* queries of the item from that one on that there are */
    uint32_t range;               /* smem, of that query */
} mqa_own;

/* A thread's sums of a block. key: its place in the chunk; inner: all queries see all keys of the block. */
INLINE void store_sums(const mqa_arguments *p, const mqa_shape s, mqa_own own, bool is_there, bool inner, int key, float factor, float *sums) {
    const int64_t step = 2 * p->out_strides[1], at = own.row + key * p->out_strides[2];
#pragma unroll
    for (int i = 0; i < queries_of(s) / 2; i++) sums[i] *= factor;
    if (!inner) {
#pragma unroll
        for (int i = 0; i < queries_of(s) / 2; i++) {
            const int begin = (int)ld_shared_u32(own.range + 2 * i * MQA_RANGE_BYTES), end = (int)ld_shared_u32(own.range + 2 * i * MQA_RANGE_BYTES + 4);
            if (!is_there || key < begin || key >= end) sums[i] = -INFINITE;
        }
    }
    if (p->out.format == CUDA_f32) {
        float *to = (float *)p->out.data + at;
#pragma unroll
        for (int i = 0; i < queries_of(s) / 2; i++, to += step)
            if (2 * i < own.left) *to = sums[i];
    } else {
#pragma unroll
        for (int i = 0; i < queries_of(s) / 2; i++)
            if (2 * i < own.left) store_float(&p->out, at + i * step, sums[i]);
    }
}

/* The blocks of an item that are this warpgroup's. number: of the item's first block, of all. A stage is always read by the same warpgroup, which so sees each of its phases. */
INLINE void make_blocks(const mqa_tiles_arguments *g, const mqa_shape s, mqa_smem m, int group, uint32_t number, mqa_item item, mqa_work work, mqa_own own, uint32_t q, const float *weights) {
    const mqa_arguments *p = &g->call;
#pragma unroll 1
    for (int i = (int)(number + group) & 1; agreed(i < work.count); i += 2) {
        const ring_turn turn = ring_reader_turn(number + i, MQA_WGMMA_STAGES);
        const int block = (work.first + i) * MQA_WGMMA_BLOCK, key = block + own_key();
        float scores[MQA_ROWS / 2], sums[SUMS];
        ring_wait_full(m.k_ring, turn);
        multiply(s, scores, m.k + turn.stage * MQA_WGMMA_BLOCK * s.width, q);
        const bool is_there = (int)ld_shared_u32(m.pages + 4 * turn.stage) >= 0;
        float factor = factor_at(p, m, s, turn.stage, own_key(), p->scale);
        wgmma_wait(0);
        __syncwarp();
        if (threadIdx.x % 32 == 0) ring_arrive_empty(m.k_ring, turn);
        if (agreed(!(factor >= 0 && factor < INFINITE))) {
            scale_scores(factor, scores);
            factor = 1;
        }
        weigh(s, scores, weights, sums);
        trade(s, sums);
        if (key < item.end) store_sums(p, s, own, is_there, is_there && block >= work.low && block + MQA_WGMMA_BLOCK <= work.high, key, factor, sums);
    }
}

INLINE void make_items(const mqa_tiles_arguments *g, const mqa_shape s, mqa_smem m, int group) {
    const mqa_arguments *p = &g->call;
    ring_turn turn = ring_reader();
    uint32_t number = 0;
#pragma unroll 1
    while (true) {
        float weights[MQA_ROWS / 4];
        mqa_item item;
        ring_wait_full(m.q_ring, turn);
        const mqa_work work = load_work(m, turn.stage, &item);
        if (agreed(work.count == 0)) break;
        const int first = item.first + own_query();
        const mqa_own own = {item.batch * p->out_strides[0] + first * p->out_strides[1], (int)p->queries - first, ranges_at(m, turn.stage) + own_query() * MQA_RANGE_BYTES};
        load_weights(work_at(m, turn.stage), weights);
        make_blocks(g, s, m, group, number, item, work, own, m.q + turn.stage * MQA_ROWS * s.width, weights);
        number += (uint32_t)work.count;
        __syncwarp();
        if (threadIdx.x % 32 == 0) ring_arrive_empty(m.q_ring, turn);
        ring_next(&turn, MQA_Q_STAGES);
    }
}

/* ---- a thread block ---- */

INLINE void mqa_wgmma(const mqa_tiles_arguments *g, const mqa_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const mqa_smem m = smem_of(s, shared_address(shared));
    const int role = __shfl_sync(0xffffffff, threadIdx.x / 128, 0), warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
        ring_init(m.q_ring, MQA_Q_STAGES, 2, 8);
        ring_init(m.k_ring, MQA_WGMMA_STAGES, loaders_of(s), 4);
        fence_mbarrier_init();
    }
    __syncthreads();
    grid_release();
    grid_wait();
    if (role == 2) {
        setmaxnreg_dec(40);
        if (warp == LOAD_WARP) load_items(g, s, m, true);
        else if (warp == FACTOR_WARP) load_items(g, s, m, false);
        else if (warp == TELL_WARP) tell_items(g, s, m);
        else clean_items(g, s, (int)threadIdx.x % 32, 32);
    } else {
        setmaxnreg_inc(232);
        make_items(g, s, m, role);
    }
}

#define MQA_TILE(name, heads, width)                                                                                                         \
    extern "C" __global__ void __launch_bounds__(MQA_WGMMA_THREADS, 1) mqa_logits_wgmma_##name(const __grid_constant__ mqa_tiles_arguments arguments) { \
        const mqa_shape shape = {heads, width, MQA_WGMMA_BLOCK, MQA_WGMMA_STAGES, 1, MQA_ROWS, width, 0, 0};                                 \
        mqa_wgmma(&arguments, shape);                                                                                                        \
    }
#include "kernels/mqa_logits/tiles.def"
