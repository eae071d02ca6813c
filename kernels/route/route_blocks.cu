/* dispatch and combine on Hopper and later.
 *
 *     dispatch: chunks of 4096 ids, a block each; of a chunk each of 16 warps has 256 ids, in eight rounds of 32
 *         lanes with the same expert find each other, so each id knows how many of its expert lie in front of it in the warp's share; the warp's counts are in smem [16][experts + 1]
 *         ids of more than one chunk: route_count leaves each chunk's counts in the workspace, [chunks][experts + 1], before route_place
 *         route_place: starts of experts by a scan over their totals, then places = start + earlier chunks + earlier warps + in front within the warp
 *     combine: eight columns of a token a thread, in fp32, in the order of the choices; four rows at a time on their way
 *
 * Order is kept, so results are the same bits as one pass over the ids gives. Resources: 17 (experts + 1) words of shared memory. Speed: README.md. */
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/rows/vectors.cuh"
#include "kernels/route/route_cuda.h"

/* ---- dispatch ---- */

enum { WARPS = DISPATCH_THREADS / 32, ROUNDS = DISPATCH_CHUNK / DISPATCH_THREADS };
#define NO_ID 0xffffffffu

/* Number within all ids of the thread's id in a round. */
INLINE uint32_t id_number(int round) {
    return blockIdx.x * DISPATCH_CHUNK + threadIdx.x / 32 * (ROUNDS * 32) + round * 32 + threadIdx.x % 32;
}

/* Whose id number i is; the number of experts: nobody's. */
INLINE uint32_t expert_of(const dispatch_arguments *a, uint32_t i) {
    const uint32_t choices = (uint32_t)a->choices, token = i / choices;
    const int64_t id = load_int(&a->ids, token * a->ids_token + (i - token * choices) * a->ids_choice);
    return id < 0 || id >= a->experts ? (uint32_t)a->experts : (uint32_t)id;
}

/* The experts of the thread's ids, and how many of the same lie in front of each in the warp's share. of_warp [experts + 1]: zeros, which become the share's counts. */
INLINE void count_share(const dispatch_arguments *a, uint32_t *of_warp, uint32_t *expert, uint32_t *in_front) {
    const uint32_t count = (uint32_t)(a->tokens * a->choices), lanes_in_front = (1u << threadIdx.x % 32) - 1;
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) expert[round] = id_number(round) < count ? expert_of(a, id_number(round)) : NO_ID;
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        const uint32_t same = __match_any_sync(~0u, expert[round]);
        in_front[round] = expert[round] != NO_ID ? of_warp[expert[round]] + __popc(same & lanes_in_front) : 0;
        __syncwarp();
        if (expert[round] != NO_ID && (same & lanes_in_front) == 0) of_warp[expert[round]] = in_front[round] + __popc(same);
        __syncwarp();
    }
}

/* counts [WARPS][experts + 1] of the chunk; all threads meet. */
INLINE void count_chunk(const dispatch_arguments *a, uint32_t *counts, uint32_t *expert, uint32_t *in_front) {
    const int buckets = (int)a->experts + 1;
    for (int i = threadIdx.x; i < WARPS * buckets; i += DISPATCH_THREADS) counts[i] = 0;
    __syncthreads();
    count_share(a, counts + threadIdx.x / 32 * buckets, expert, in_front);
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(DISPATCH_THREADS) route_count(const __grid_constant__ dispatch_arguments arguments) {
    extern __shared__ uint32_t counts[];
    const dispatch_arguments *a = &arguments;
    const int buckets = (int)a->experts + 1;
    uint32_t expert[ROUNDS], in_front[ROUNDS];
    grid_release();
    grid_wait();
    count_chunk(a, counts, expert, in_front);
    for (int bucket = threadIdx.x; bucket < buckets; bucket += DISPATCH_THREADS) {
        uint32_t sum = 0;
        for (int warp = 0; warp < WARPS; warp++) sum += counts[warp * buckets + bucket];
        ((uint32_t *)a->counts)[(int64_t)blockIdx.x * buckets + bucket] = sum;
    }
}

/* Counts of warps become the ids of the same expert in front of each warp, earlier chunks' with them; totals those of all chunks. */
INLINE void add_in_front(const dispatch_arguments *a, uint32_t *counts, uint32_t *totals) {
    const int buckets = (int)a->experts + 1;
    for (int bucket = threadIdx.x; bucket < buckets; bucket += DISPATCH_THREADS) {
        uint32_t earlier = 0, later = 0;
        for (int chunk = 0; a->counts != 0 && chunk < (int)gridDim.x; chunk++) {
            const uint32_t of_chunk = ((const uint32_t *)a->counts)[(int64_t)chunk * buckets + bucket];
            if (chunk < (int)blockIdx.x) earlier += of_chunk;
            else if (chunk > (int)blockIdx.x) later += of_chunk;
        }
        for (int warp = 0; warp < WARPS; warp++) {
            const uint32_t of_warp = counts[warp * buckets + bucket];
            counts[warp * buckets + bucket] = earlier;
            earlier += of_warp;
        }
        totals[bucket] = earlier + later;
    }
}

/* Totals become starts; by one warp. The first block also writes where each expert's rows end. */
INLINE void scan_totals(const dispatch_arguments *a, uint32_t *totals) {
    const int lane = threadIdx.x % 32, buckets = (int)a->experts + 1;
    uint32_t sum = 0;
    for (int first = 0; first < buckets; first += 32) {
        const int bucket = first + lane;
        const uint32_t own = bucket < buckets ? totals[bucket] : 0;
        uint32_t up_to = own;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const uint32_t other = __shfl_up_sync(~0u, up_to, step);
            if (lane >= step) up_to += other;
        }
        up_to += sum;
        if (bucket < buckets) totals[bucket] = up_to - own;
        if (bucket < (int)a->experts && blockIdx.x == 0) ((int32_t *)a->offsets.data)[bucket * a->offsets_step] = (int32_t)up_to;
        sum = __shfl_sync(~0u, up_to, 31);
    }
}

extern "C" __global__ void __launch_bounds__(DISPATCH_THREADS) route_place(const __grid_constant__ dispatch_arguments arguments) {
    extern __shared__ uint32_t counts[];
    const dispatch_arguments *a = &arguments;
    const int buckets = (int)a->experts + 1;
    uint32_t *const totals = counts + WARPS * buckets;
    uint32_t expert[ROUNDS], in_front[ROUNDS];
    grid_release();
    grid_wait();
    count_chunk(a, counts, expert, in_front);
    add_in_front(a, counts, totals);
    __syncthreads();
    if (threadIdx.x < 32) scan_totals(a, totals);
    __syncthreads();
    const uint32_t *const of_warp = counts + threadIdx.x / 32 * buckets, choices = (uint32_t)a->choices;
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        if (expert[round] == NO_ID) continue;
        const uint32_t token = id_number(round) / choices, choice = id_number(round) - token * choices;
        const int64_t at = totals[expert[round]] + of_warp[expert[round]] + in_front[round];
        ((int64_t *)a->rows.data)[at * a->rows_step] = token;
        ((int64_t *)a->place.data)[token * a->place_token + choice * a->place_choice] = at;
    }
}

/* ---- combine ---- */

enum { ROWS_AT_ONCE = 4 };

/* The row of a choice; -1, and a fault: there is none. */
INLINE int64_t row_of(const combine_arguments *a, int64_t token, int64_t choice) {
    const int64_t row = load_int(&a->place, token * a->place_token + choice * a->place_choice);
    if (row >= 0 && row < a->y_rows) return row;
    fault_raise(&a->fault, CUDA_FAULT_INDEX, row, a->y_rows);
    return -1;
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) route_combine_vectors(const __grid_constant__ combine_arguments arguments) {
    const combine_arguments *a = &arguments;
    const int64_t vectors = a->cols / PIECE;
    grid_release();
    grid_wait();
    for (int64_t i = item_first(); i < a->tokens * vectors; i += item_step()) {
        const int64_t token = i / vectors, col = i % vectors * PIECE;
        float sum[PIECE] = {0};
        for (int64_t first = 0; first < a->choices; first += ROWS_AT_ONCE) {
            int64_t row[ROWS_AT_ONCE];
            float weight[ROWS_AT_ONCE], x[ROWS_AT_ONCE][PIECE];
#pragma unroll
            for (int k = 0; k < ROWS_AT_ONCE; k++) {
                row[k] = first + k < a->choices ? row_of(a, token, first + k) : -1;
                weight[k] = row[k] < 0 ? 0 : load_float(&a->weights, token * a->weights_token + (first + k) * a->weights_choice);
            }
#pragma unroll
            for (int k = 0; k < ROWS_AT_ONCE; k++)
                if (row[k] >= 0) load_vector(&a->y, row[k] * a->y_row + col, 1, x[k]);
#pragma unroll
            for (int k = 0; k < ROWS_AT_ONCE; k++)
                if (row[k] >= 0) EACH_OF_PIECE(e) sum[e] = fmaf(weight[k], x[k][e], sum[e]);
        }
        store_vector(&a->out, token * a->out_token + col, sum);
    }
}
