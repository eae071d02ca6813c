/* The end of a tile of skinny.cuh: sums of warps and of a cluster's blocks are added in their order, go through the epilogue one at a time, and are stored. */
#ifndef KERNELS_GEMM_SKINNY_RESULTS_CUH
#define KERNELS_GEMM_SKINNY_RESULTS_CUH

/* x: the step's operand. */
INLINE float apply_step_to(int step, float y, float x) {
    switch (step) {
    case MATMUL_POST_bias:
    case MATMUL_POST_add: return y + x;
    case MATMUL_POST_mul: return y * x;
    case MATMUL_POST_relu: return relu(y);
    case MATMUL_POST_silu:
    case MATMUL_POST_quick_gelu: return swish(y, swish_factor(step == MATMUL_POST_quick_gelu));
    case MATMUL_POST_gelu: return gelu(y);
    case MATMUL_POST_gelu_tanh: return gelu_tanh(y);
    case MATMUL_POST_tanh: return tanh_exp(y);
    default: return sigmoid(y);
    }
}

/* group: the row of a bias. */
INLINE float apply_one(const matmul_step *step, float y, int group, int row, int col) {
    float x = 0;
    if (step->data != 0) x = load_operand(step, (step->step == MATMUL_POST_bias ? group : row) * step->row_stride + col * step->col_stride);
    return apply_step_to(step->step, y, x);
}

/* alpha and its addresses are done. of_row: the row's factor, where this kernel has made it; col: of b's rows, of all groups. */
INLINE float with_factors(const matmul_epilogue *e, float y, float of_row, int row, int col) {
    y *= of_row;
    y *= factor_at(e->row_factors, row, e->row_factors != 0);
    return y * factor_at(e->col_factors, col, e->col_factors != 0);
}

/* y: the sum of column col, u: of column col + half where a step halves. before: rows of b in front of the group's. */
INLINE float finish(const matmul_epilogue *e, float y, float u, float of_row, int group, int before, int row, int col) {
    bool halves = e->halving >= 0;
    int first = halves ? e->halving : e->count;
    y = with_factors(e, y, of_row, row, before + col);
    if (halves) u = with_factors(e, u, of_row, row, before + col + e->half);
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
INLINE float add_warps(const skinny_arguments *g, const skinny_shape s, uint32_t sums, int row, int col) {
    float y = 0;
    for (int plane = g->planes - 1; plane >= 0; plane--)
        for (int warp = col / 16; warp < warp_count(s); warp += g->across)
            y += ld_shared_f32(sums + ((warp * s.tiles * 8 + plane * g->m + row) * SKINNY_SUM_PITCH + col % 16) * 4);
    return y;
}

INLINE float add_blocks(uint32_t place, int blocks) {
    float y = 0;
    for (int rank = 0; rank < blocks; rank++) y += ld_cluster_f32(cluster_map(place, rank));
    return y;
}

/* first: this thread's number among the threads that share the tile, threads of them. blocks 1: sums are the warps'; else the blocks', [m][16 across]. list: of groups; else
 * find_row_amax's. */
INLINE void store_tile(const skinny_arguments *g, const skinny_shape s, uint32_t list, int tile, int first, int threads, int blocks, float all, uint32_t sums) {
    const matmul_epilogue *e = &g->epilogue;
    skinny_group own = take_group(g, s, list, &tile);
    bool halves = e->halving >= 0;
    int each = halves ? 8 : 16, wide = each * g->width, end = halves ? e->half : g->n;
    for (int i = first; i < wide * (own.end - own.begin); i += threads) {
        int at = i % wide, row = own.begin + i / wide, col = tile * wide + at, place = at / each * 16 + at % each;
        if (col >= end) continue;
        float y, u = 0;
        if (blocks == 1) {
            y = add_warps(g, s, sums, row, place);
            if (halves) u = add_warps(g, s, sums, row, place + 8);
        } else {
            y = add_blocks(sums + (row * 16 * g->width + place) * 4, blocks);
            if (halves) u = add_blocks(sums + (row * 16 * g->width + place + 8) * 4, blocks);
        }
        const float of_row = s.narrow && has_row_scales(g->quantised) ? row_scale(g->quantised, row_amax(g, s, list, row)) : 1;
        store_result(e, finish(e, all * y, all * u, of_row, s.groups ? own.group : row, own.group * g->n, row, col), row, col);
    }
}

/* A tile's sums out of registers and to results. */
INLINE void end_tile(const skinny_arguments *g, const skinny_shape s, uint32_t list, int tile, int rank, int blocks, float all, uint32_t of_warps, float sums[][4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t of_block = of_warps + thread_count(s) / 32 * s.tiles * 8 * SKINNY_SUM_PITCH * 4;
#pragma unroll
    for (int i = 0; i < s.tiles; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            st_shared_f32(of_warps + ((warp * s.tiles * 8 + i * 8 + lane % 4 * 2 + j % 2) * SKINNY_SUM_PITCH + lane / 4 + j / 2 * 8) * 4, sums[i][j]);
            sums[i][j] = 0;
        }
    __syncthreads();
    if (blocks == 1) {
        store_tile(g, s, list, tile, threadIdx.x, thread_count(s), 1, all, of_warps);
        __syncthreads();          /* before the next tile's sums take their place */
        return;
    }
    for (int i = threadIdx.x; i < 16 * g->width * g->m; i += thread_count(s)) st_shared_f32(of_block + i * 4, add_warps(g, s, of_warps, i / (16 * g->width), i % (16 * g->width)));
    cluster_arrive();
    cluster_wait();
    store_tile(g, s, list, tile, rank * thread_count(s) + threadIdx.x, thread_count(s) * blocks, blocks, all, of_block);
    cluster_arrive();
    cluster_wait();
}

#endif
