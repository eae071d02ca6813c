/* mqa_logits by tcgen05, of q and k in e4m3, or both in mxfp4 or nvfp4: tiles, items and chunks as those of wgmma.cu. Thread blocks stay, one to a multiprocessor.
 *
 *   warp 0          empty -> TMA  q [256,width] of the item -> full                                 2 stages, smem
 *                   empty -> TMA  k [128,width] -> full                                             8 stages, smem
 *   warp 1          full, sums empty -> scores [128,256] = k q^T -> sums full, k empty              tmem, columns 0 and 256 in turns; behind an item's last block: q empty
 *   warp 2          empty -> weights [256] fp32, ranges of queries -> full                          beside q
 *   warp 3          -inf where no key of the chunk is seen -> gmem
 *   warps 4 to 7    sums 0 full -> 32 columns at a time tmem -> registers; relu, times weights, summed over heads, times the key's factor -> gmem; sums empty behind the last load
 *   warps 8 to 11   the same of sums 1
 *   warp 12         empty -> factors of keys [128] fp32, of 4 bits their scales -> full            beside k
 *
 * Keys are rows of the products, so a thread has a key and all heads of all queries: no sum goes over threads, and a warp stores 32 neighbours of a query. Weights come from smem, four to an
 * instruction, the same for all lanes. A factor that is below 0 or no finite number multiplies scores, in front of relu and in a branch of its own; else factors multiply sums.
 * Of 4 bits a tile has 192 rows of q, the heads of 3 queries or of 6, which leaves tensor memory room for scales. Warp 2 brings those of q, with the weights; warp 1 copies them in front of the products that read them:
 * of q with an item's first block. Rows fill up 128 bytes. The second levels of nvfp4 are one factor of all.
 * Shared memory: 202 KB at width 128, up to 195 of 4 bits; tensor memory: all of it. Speed: not measured, as no Blackwell
 * was there; README.md has what is predicted. */
#include "kernels/gpu/ptx/tcgen05.cuh"
#include "kernels/mqa_logits/roles.cuh"

enum { LOAD_WARP, MULTIPLY_WARP, TELL_WARP, CLEAN_WARP, FIRST_SUM_WARP, SUM_WARPS = 8, FACTOR_WARP = FIRST_SUM_WARP + SUM_WARPS, TMEM_COLUMNS = 512, PART = 32 };

typedef struct sums_place { ring_barriers ring; uint32_t tmem; } sums_place;

/* Columns of tensor memory: sums of two blocks [2][rows], and behind them scales of a block's keys [scales][4] and of q [scales][2][4]. */
INLINE constexpr uint32_t key_scales_at(const mqa_shape s) { return (uint32_t)(2 * s.rows); }
INLINE constexpr uint32_t q_scales_at(const mqa_shape s) { return (uint32_t)(2 * s.rows + 4 * s.scales); }

/* ---- products: a warp, of which one thread issues ---- */

/* "Shared memory descriptor": rows of 64 bytes are swizzled by 64, 512 bytes from 8 rows to the next 8. */
INLINE uint64_t descriptor_of(const mqa_shape s, uint32_t address) {
    return s.row_bytes == 128 ? tcgen05_descriptor(address) : (uint64_t)4 << 61 | (uint64_t)1 << 46 | (uint64_t)32 << 32 | (address & 0x3ffff) >> 4;
}

/* "Instruction descriptor": fp32 sums, M 128, N the rows; of e4m3, or of e2m1 with scales in e8m0 or e4m3, of which a step reads 2 or 4 of a row's word from number `scale` on. */
INLINE constexpr uint32_t formats_of(const mqa_shape s, const int scale) {
    const uint32_t size = (uint32_t)(s.rows / 8) << 17;
    return s.scales == 0 ? size | 1u << 4 | (uint32_t)(MQA_TCGEN05_BLOCK / 16) << 24
                         : size | 1u << 7 | 1u << 10 | (uint32_t)(s.scale_block == 32) << 23 | (uint32_t)(MQA_TCGEN05_BLOCK / 128) << 27 | (uint32_t)scale << 4 | (uint32_t)scale << 29;
}

/* A step is 32 bytes of a row. tmem: where scales lie behind the sums of both blocks. */
INLINE void multiply(const mqa_shape s, uint32_t sums, uint32_t k, uint32_t q, uint32_t tmem) {
    const uint64_t a = descriptor_of(s, k), b = descriptor_of(s, q);
#pragma unroll
    for (int i = 0; i < s.width / 32 && s.scales == 0; i++) tcgen05_mma_f8(sums, a + 2 * i, b + 2 * i, formats_of(s, 0), i > 0);
#pragma unroll
    for (int i = 0; i < s.width / 64 && s.scales > 0; i++) {
        const int first = i * 64 / s.scale_block, tile = first / 4;
        const uint32_t of_k = tmem + key_scales_at(s) + 4 * tile, of_q = tmem + q_scales_at(s) + 8 * tile;
        if (s.scale_block == 32) tcgen05_mma_mxf4(sums, a + 2 * i, b + 2 * i, formats_of(s, first % 4), of_k, of_q, i > 0);
        else tcgen05_mma_nvf4(sums, a + 2 * i, b + 2 * i, formats_of(s, first % 4), of_k, of_q, i > 0);
    }
}

/* Scales of a block, and with its item's first those of q. */
INLINE void copy_scales(const mqa_shape s, mqa_smem m, uint32_t tmem, int k_stage, int q_stage, bool of_q) {
#pragma unroll
    for (int tile = 0; tile < s.scales; tile++) tcgen05_copy_scales(tmem + key_scales_at(s) + 4 * tile, tcgen05_rows_descriptor(m.k_scales + (k_stage * s.scales + tile) * MQA_SCALE_TILE));
    if (!of_q) return;
#pragma unroll
    for (int tile = 0; tile < 2 * s.scales; tile++) tcgen05_copy_scales(tmem + q_scales_at(s) + 4 * tile, tcgen05_rows_descriptor(m.q_scales + (q_stage * s.scales * 2 + tile) * MQA_SCALE_TILE));
}

INLINE void multiply_items(const mqa_shape s, mqa_smem m, sums_place sums) {
    const bool issues = elect_one();
    ring_turn turn = ring_reader(), last = turn;
    uint32_t number = 0;
#pragma unroll 1
    while (true) {
        mqa_item item;
        ring_wait_full(m.q_ring, turn);
        const int count = load_work(m, turn.stage, &item).count;
        if (agreed(count == 0)) break;
#pragma unroll 1
        for (int i = 0; i < count; i++, number++) {
            const ring_turn of_k = ring_reader_turn(number, s.stages), of_sums = ring_writer_turn(number, 2);
            ring_wait_empty(sums.ring, of_sums);
            tcgen05_fence_after();
            ring_wait_full(m.k_ring, of_k);
            if (!issues) continue;
            copy_scales(s, m, sums.tmem, of_k.stage, turn.stage, i == 0);
            multiply(s, sums.tmem + of_sums.stage * s.rows, m.k + of_k.stage * s.block * s.row_bytes, m.q + turn.stage * s.rows * s.row_bytes, sums.tmem);
            tcgen05_commit(ring_empty(m.k_ring, of_k.stage));
            tcgen05_commit(ring_full(sums.ring, of_sums.stage));
        }
        __syncwarp();
        if (issues) tcgen05_commit(ring_empty(m.q_ring, turn.stage));
        last = turn;
        ring_next(&turn, MQA_Q_STAGES);
    }
    if (number > 0) ring_wait_empty(m.q_ring, last);   /* the last commit has come, and all sums have been loaded: tensor memory may go */
    tcgen05_fence_after();
}

/* ---- sums: four warps for each half of tensor memory ---- */

INLINE void load_part(uint32_t *to, uint32_t from) {
    tmem_load_x16(to, from);
    tmem_load_x16(to + 16, from + 16);
}

INLINE float2 pair_of(uint32_t x, uint32_t y) { return make_float2(__uint_as_float(x), __uint_as_float(y)); }

/* Weighs PART columns of scores, from column first on, into four sums, two at a time. weights: smem. */
INLINE void weigh_part(const mqa_shape s, const uint32_t *scores, int first, uint32_t weights, float2 *sums) {
#pragma unroll
    for (int i = 0; i < PART; i += 4) {
        const uint4 weight = ld_shared_u32x4(weights + 4 * (first + i));
        float x[4];
#pragma unroll
        for (int j = 0; j < 4; j++) x[j] = positive(s, __uint_as_float(scores[i + j]), first + i);
        sums[0] = __ffma2_rn(make_float2(x[0], x[1]), pair_of(weight.x, weight.y), sums[0]);
        sums[1] = __ffma2_rn(make_float2(x[2], x[3]), pair_of(weight.z, weight.w), sums[1]);
    }
}

INLINE void scale_part(float factor, uint32_t *scores) {
#pragma unroll
    for (int i = 0; i < PART; i++) scores[i] = __float_as_uint(max_nan(__uint_as_float(scores[i]) * factor, 0));
}

/* What a thread knows of its key in a block. */
typedef struct key_place { int64_t at; int key; bool is_there, inner; float factor; } key_place;

INLINE void store_query(const mqa_arguments *p, mqa_item item, uint32_t ranges, int query, const key_place *k, float value) {
    if (!k->inner) {
        const int begin = (int)ld_shared_u32(ranges + query * MQA_RANGE_BYTES), end = (int)ld_shared_u32(ranges + query * MQA_RANGE_BYTES + 4);
        if (!k->is_there || k->key < begin || k->key >= end) value = -INFINITE;
    }
    if (k->key >= item.end || item.first + query >= (int)p->queries) return;
    const int64_t at = k->at + query * p->out_strides[1];
    if (p->out.format == CUDA_f32) ((float *)p->out.data)[at] = value;
    else store_float(&p->out, at, value);
}

/* A block's scores, by parts: the next one is loaded while one is weighed. release: the barrier that says that all are loaded. */
INLINE void sum_block(const mqa_arguments *p, const mqa_shape s, mqa_item item, uint32_t tmem, uint32_t weights, uint32_t ranges, uint32_t release, key_place k) {
    const bool scales = agreed(!(k.factor >= 0 && k.factor < INFINITE));
    const float factor = scales ? 1 : k.factor;
    uint32_t scores[2][PART];
    float2 sums[2];
    load_part(scores[0], tmem);
#pragma unroll
    for (int part = 0; part < s.rows / PART; part++) {
        uint32_t *here = scores[part % 2];
        tmem_wait_load();
        if (part + 1 < s.rows / PART) load_part(scores[(part + 1) % 2], tmem + (part + 1) * PART);
        if (part + 1 == s.rows / PART) {
            tcgen05_fence_before();
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(release);
        }
        if (scales) scale_part(k.factor, here);
        if (part * PART % s.heads == 0) sums[0] = sums[1] = make_float2(0, 0);
        weigh_part(s, here, part * PART, weights, sums);
        if ((part + 1) * PART % s.heads == 0) store_query(p, item, ranges, part * PART / s.heads, &k, ((sums[0].x + sums[0].y) + (sums[1].x + sums[1].y)) * factor);
    }
}

/* With the second levels of nvfp4. */
INLINE float scale_of_all(const mqa_tiles_arguments *g, const mqa_shape s) {
    float scale = g->call.scale;
    if (s.scales > 0 && g->q.second_kind != 0) scale *= __ldg((const float *)g->q.second) * __ldg((const float *)g->k.second);
    return scale;
}

INLINE void sum_items(const mqa_tiles_arguments *g, const mqa_shape s, mqa_smem m, sums_place sums, int group) {
    const mqa_arguments *p = &g->call;
    const int row = (int)threadIdx.x % 128, box = row / MQA_BOX;
    const uint32_t tmem = sums.tmem + group * s.rows + ((uint32_t)(row / 32 * 32) << 16);
    const float scale = scale_of_all(g, s);
    ring_turn turn = ring_reader();
    uint32_t number = 0;
#pragma unroll 1
    while (true) {
        mqa_item item;
        ring_wait_full(m.q_ring, turn);
        const mqa_work work = load_work(m, turn.stage, &item);
        if (agreed(work.count == 0)) break;
#pragma unroll 1
        for (int i = (int)(number + group) & 1; agreed(i < work.count); i += 2) {
            const ring_turn of_k = ring_reader_turn(number + i, s.stages), of_sums = ring_reader_turn(number + i, 2);
            const int block = (work.first + i) * s.block;
            key_place k;
            k.key = block + row;
            ring_wait_full(m.k_ring, of_k);
            k.is_there = (int)ld_shared_u32(m.pages + 4 * (of_k.stage * boxes_of(s) + box)) >= 0;
            k.factor = factor_at(m, s, of_k.stage, row, scale);
            __syncwarp();
            if (threadIdx.x % 32 == 0) ring_arrive_empty(m.k_ring, of_k);
            k.inner = k.is_there && block >= work.low && block + s.block <= work.high;
            k.at = item.batch * p->out_strides[0] + item.first * p->out_strides[1] + k.key * p->out_strides[2];
            ring_wait_full(sums.ring, of_sums);
            tcgen05_fence_after();
            sum_block(p, s, item, tmem, work_at(m, turn.stage), ranges_at(m, turn.stage), ring_empty(sums.ring, of_sums.stage), k);
        }
        number += (uint32_t)work.count;
        __syncwarp();
        if (threadIdx.x % 32 == 0) ring_arrive_empty(m.q_ring, turn);
        ring_next(&turn, MQA_Q_STAGES);
    }
}

/* ---- a thread block ---- */

INLINE void mqa_tcgen05(const mqa_tiles_arguments *g, const mqa_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const mqa_smem m = smem_of(s, shared_address(shared));
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    sums_place sums = {ring_at(m.end, 2), 0};
    const uint32_t tmem_at = ring_end(sums.ring, 2);
    if (threadIdx.x == 0) {
        ring_init(m.q_ring, MQA_Q_STAGES, 2, 1 + SUM_WARPS);
        ring_init(m.k_ring, s.stages, loaders_of(&g->call, s), 1 + SUM_WARPS / 2);
        ring_init(sums.ring, 2, 1, SUM_WARPS / 2);
        fence_mbarrier_init();
    }
    begin_factors(&g->call, s, m, MQA_TCGEN05_THREADS);
    if (warp == MULTIPLY_WARP) tmem_alloc(tmem_at, TMEM_COLUMNS), tmem_relinquish();
    tcgen05_fence_before();
    __syncthreads();
    tcgen05_fence_after();
    sums.tmem = ld_shared_u32(tmem_at);
    grid_release();
    grid_wait();
    if (warp == MULTIPLY_WARP) {
        multiply_items(s, m, sums);
        __syncwarp();
        tmem_dealloc(sums.tmem, TMEM_COLUMNS);
    } else if (warp == LOAD_WARP) {
        load_items(g, s, m, true);
    } else if (warp == FACTOR_WARP) {
        load_items(g, s, m, false);
    } else if (warp == TELL_WARP) {
        tell_items(g, s, m);
    } else if (warp == CLEAN_WARP) {
        clean_items(g, s, (int)threadIdx.x % 32, 32);
    } else {
        sum_items(g, s, m, sums, (warp - FIRST_SUM_WARP) / 4);
    }
}

#define MQA_TILE(name, heads, width)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(MQA_TCGEN05_THREADS, 1) mqa_logits_tcgen05_##name(const __grid_constant__ mqa_tiles_arguments arguments) { \
        const mqa_shape shape = {heads, width, MQA_TCGEN05_BLOCK, MQA_TCGEN05_STAGES, 1, MQA_ROWS, width, 0, 0};                                 \
        mqa_tcgen05(&arguments, shape);                                                                                                         \
    }
#include "kernels/mqa_logits/tiles.def"

#define MQA_SCALED_TILE(name, heads, width, scale_block)                                                                                        \
    extern "C" __global__ void __launch_bounds__(MQA_TCGEN05_THREADS, 1) mqa_logits_tcgen05_##name(const __grid_constant__ mqa_tiles_arguments arguments) { \
        const mqa_shape shape = {heads, width, MQA_TCGEN05_BLOCK, MQA_TCGEN05_STAGES, 1, MQA_SCALED_ROWS, MQA_SCALED_ROW_BYTES, (width + 4 * scale_block - 1) / (4 * scale_block), scale_block}; \
        mqa_tcgen05(&arguments, shape);                                                                                                         \
    }
#include "kernels/mqa_logits/scaled_tiles.def"
