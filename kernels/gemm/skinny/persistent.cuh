/* The products of vector.cuh where b has more rows than all blocks that run at a time hold: blocks are persistent, and a warp's loads run ahead of its products, so that memory never waits for the
 * end of a row or the start of a block.
 *
 *   b    two rows to a warp at a time, in chunks of four units a lane of each: gmem -> reg, two chunks, of which one is multiplied while the other is on its way; the first ones before the
 *        launches in front have ended, where no launch of the run writes b
 *   a    gmem -> smem [k], once a block, normalised (vector_norm.cuh) if there is a norm
 *   sums in reg, fp32, in the order of vector.cuh (but where loads of 32 bytes are there and a lane has 5 or 7 units, which lie otherwise) -> lanes by shuffles -> epilogue -> gmem
 *
 * Resources: two blocks a multiprocessor by registers. Speed: bench/results/h200/skinny.md. */
#ifndef KERNELS_GEMM_SKINNY_PERSISTENT_CUH
#define KERNELS_GEMM_SKINNY_PERSISTENT_CUH

enum { PERSISTENT_ROWS = 2, CHUNK_UNITS = 4 };

/* A pair of b's rows, as a warp of vector.cuh has it, from its chunk on; beyond the last one there is nothing. */
INLINE vector_place place_of_pair(const skinny_arguments *g, int pair, int chunk) {
    vector_place p = {.team = 0, .part = 0, .first = chunk * CHUNK_UNITS * 32 + (int)threadIdx.x % 32, .units = (g->k + 7) / 8};
#pragma unroll
    for (int r = 0; r < PERSISTENT_ROWS; r++) p.row[r] = vector_row(g, PERSISTENT_ROWS, pair, r, &p.is_there[r]);
    p.own = vector_row(g, PERSISTENT_ROWS, pair, (int)threadIdx.x % PERSISTENT_ROWS, &p.has_own);
    return p;
}

INLINE void load_chunk(const skinny_arguments *g, int pair, int chunk, uint64_t policy, uint4 b[][SKINNY_VECTOR_UNITS(2)]) {
    const vector_place p = place_of_pair(g, pair, chunk);
#pragma unroll
    for (int r = 0; r < PERSISTENT_ROWS; r++) load_row(g, CHUNK_UNITS, &p, r, policy, b[r]);
}

INLINE void multiply_chunk(const skinny_arguments *g, const skinny_shape s, int chunk, const uint4 b[][SKINNY_VECTOR_UNITS(2)], float *sums) {
    const vector_place p = place_of_pair(g, 0, chunk);
#pragma unroll
    for (int u = 0; u < CHUNK_UNITS; u++)
        if (has_unit(g, &p, u)) multiply_unit(s, PERSISTENT_ROWS, u, ld_shared_u32x4(normed_row(g) + unit_at(g, &p, u) * 16), b, sums);
}

/* a into shared memory, as it comes. */
INLINE void bring_vector(const skinny_arguments *g) {
    const int unit = threadIdx.x;
    const uint8_t *row = (const uint8_t *)g->a.data;
    if (unit * 8 < g->k) st_shared_u32x4(normed_row(g) + unit * 16, has_whole_units(g, &g->a) ? raw_unit(16, row + unit * 16) : gather_unit(16, row, unit * 8, min(8, g->k - unit * 8)));
}

INLINE void matmul_persistent(const skinny_arguments *g, const skinny_shape s) {
    const int chunks = g->span > CHUNK_UNITS ? 2 : 1, stride = (int)gridDim.x * SKINNY_VECTOR_WARPS, pairs = g->epilogue.halving >= 0 ? g->epilogue.half : (g->n + 1) / 2;
    const int step = chunks == 2 ? stride : 2 * stride;       /* pairs that both chunks in registers are further on */
    const uint64_t policy = policy_first();
    int pair = (int)blockIdx.x * SKINNY_VECTOR_WARPS + threadIdx.x / 32;
    uint4 b[2][PERSISTENT_ROWS][SKINNY_VECTOR_UNITS(2)];
    float sums[VECTOR_ROWS_MOST] = {0, 0, 0, 0};
    norm_pieces columns;
    vector_place p;
    vector_early early;
    grid_release();
    if (!g->b_is_constant) grid_wait();
    load_chunk(g, pair, 0, policy, b[0]);
    load_chunk(g, chunks == 2 ? pair : pair + stride, chunks - 1, policy, b[1]);
    if (has_norm(g)) columns = load_columns(g);
    if (g->b_is_constant) grid_wait();
    if (has_norm(g)) normalise_row(g, &columns);
    else bring_vector(g);
    __syncthreads();
#pragma unroll 1
    for (; pair < pairs; pair += step) {
#pragma unroll
        for (int i = 0; i < 2; i++) {         /* a chunk of a pair, or a pair */
            const int own = chunks == 2 ? pair : pair + i * stride, chunk = chunks == 2 ? i : 0;
            if (own >= pairs) break;
            if (chunk == 0) {
                p = place_of_pair(g, own, 0);
                early = load_early(g, &p, PERSISTENT_ROWS);
            }
            multiply_chunk(g, s, chunk, b[i], sums);
            load_chunk(g, own + step, chunk, policy, b[i]);
            if (chunk != chunks - 1) continue;
            end_vector(g, &p, PERSISTENT_ROWS, &early, add_parts(g, &p, PERSISTENT_ROWS, sums));
            sums[0] = sums[1] = 0;
        }
    }
}

#define SKINNY_PERSISTENT_ENTRY(name, weights)                                                                                            \
    extern "C" __global__ void __launch_bounds__(SKINNY_VECTOR_WARPS * 32, 2) name(const __grid_constant__ skinny_arguments arguments) { \
        const skinny_shape shape = {weights, 1, 0, 0, 0};                                                                                 \
        matmul_persistent(&arguments, shape);                                                                                             \
    }

#endif
