/* Results of the tiles by wgmma: a tile's sums through factors and post list (epilogue.cuh), over staging in shared memory to TMA, or element by element where
 * no tensor map describes them, or into blocks (kernels/quantize/blocks_wgmma.cuh). */
#ifndef KERNELS_GEMM_WGMMA_STORE_CUH
#define KERNELS_GEMM_WGMMA_STORE_CUH

#include "kernels/gemm/wgmma/tile.cuh"
#include "kernels/quantize/blocks_wgmma.cuh"

INLINE uint32_t pack_pair(int format, float low, float high) { return format == MATMUL_bf16 ? cvt_bf16x2(low, high) : cvt_f16x2(low, high); }

/* A team's rows (see team_rows) by 32 columns, half of a box of 16-bit results or a box of 32-bit ones, swizzled as the map of out is. thread: of the team. */
INLINE void stage_part(int format, uint32_t staging, int part, const float *values, int thread) {
    int first = thread / 32 * 16, lane = thread % 32;
    if (format == MATMUL_f32) {
#pragma unroll
        for (int i = 0; i < PART_VALUES / 2; i++) {
            int row = first + lane / 4 + i % 2 * 8, chunk = i / 2 * 2 + lane % 4 / 2;
            st_shared_f32x2(staging + part * MATMUL_BOX_BYTES + row * ROW_BYTES + ((chunk ^ row % 8) << 4) + lane % 2 * 8, values[2 * i], values[2 * i + 1]);
        }
        return;
    }
    int row = first + lane % 16;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float *v = values + 8 * i;
        stmatrix_x4(staging + row * ROW_BYTES + (((4 * part + 2 * i + lane / 16) ^ (row % 8)) << 4), pack_pair(format, v[0], v[1]),
                    pack_pair(format, v[2], v[3]), pack_pair(format, v[4], v[5]), pack_pair(format, v[6], v[7]));
    }
}

/* Stores of single elements, for results that no tensor map describes. */
INLINE void store_values(const matmul_epilogue *e, const int count, const float *values, int row, int col, int rows, int end) {
#pragma unroll
    for (int i = 0; i < count; i++) {
        int r = row + (i & 2) * 4, c = col + i / 4 * 8 + (i & 1);
        if (r >= rows || c >= end) continue;
        int64_t at = r * e->out_row_stride + c;
        if (e->out_format == MATMUL_f32) ((float *)e->out)[at] = values[i];
        else ((uint16_t *)e->out)[at] = (uint16_t)pack_pair(e->out_format, values[i], 0);
    }
}

/* The same, two neighbours at a time where rows are whole pairs. */
INLINE void store_pairs(const matmul_epilogue *e, const int count, const float *values, int row, int col, int rows, int end) {
    if (e->out_row_stride % 2 != 0 || e->out % 8 != 0 || end % 2 != 0) {
        store_values(e, count, values, row, col, rows, end);
        return;
    }
#pragma unroll
    for (int i = 0; i < count; i += 2) {
        int r = row + (i & 2) * 4, c = col + i / 4 * 8;
        if (r >= rows || c >= end) continue;
        int64_t at = r * e->out_row_stride + c;
        if (e->out_format == MATMUL_f32) *(float2 *)((float *)e->out + at) = make_float2(values[i], values[i + 1]);
        else *(uint32_t *)((uint16_t *)e->out + at) = pack_pair(e->out_format, values[i], values[i + 1]);
    }
}

/* The first things done to sums, which every path shares: factors, and a bias where it is the first step. What belongs to columns is loaded when a tile
 * begins, one column a thread, and lies in smem when it ends: factors [tile_n], bias [tile_n]. */
typedef struct tma_head {
    bool by_column;
    int steps;                    /* done by it: 0 or 1 */
    float all;                    /* of all */
    float factor, bias;           /* of this thread's column */
} tma_head;

/* The column that this thread loads for all that store the tile: both warpgroups, or the one whose turn it is. */
INLINE int head_column(const tma_shape s) { return s.turns ? threadIdx.x % 128 : threadIdx.x - 128; }
INLINE void head_sync(const tma_shape s) {
    if (s.turns) barrier_sync(HEAD_BARRIER + threadIdx.x / 128, 128);
    else barrier_sync(HEAD_BARRIER, 256);
}

INLINE tma_head begin_head(const matmul_wgmma_arguments *g, const tma_shape s, const tma_tile *tile) {
    const matmul_epilogue *e = &g->epilogue;
    tma_head head = {false, 0, e->alpha, 1, 0};
    int column = head_column(s), at = column < s.tile_n / 2 ? tile->col + column : tile->up + column - s.tile_n / 2;
    for (int i = 0; i < 2; i++)
        if (e->alpha_at[i] != 0) head.all *= *(const float *)e->alpha_at[i];
    head.steps = e->count > 0 && e->steps[0].step == MATMUL_POST_bias;
    head.by_column = head.steps > 0 || e->col_factors != 0;
    if (!head.by_column || column >= s.tile_n || at >= g->n) return head;
    if (e->col_factors != 0) head.factor = ((const float *)e->col_factors)[rows_before(g, s, tile) + at];
    if (head.steps > 0) head.bias = load_operand(&e->steps[0], (s.groups ? tile->group * e->steps[0].row_stride : 0) + at * e->steps[0].col_stride);
    return head;
}

/* Of this thread's two rows. */
INLINE void row_factors(const matmul_wgmma_arguments *g, const tma_head *head, int row, int rows, float *factors) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int r = row + i * 8;
        factors[i] = g->epilogue.row_factors != 0 ? head->all * factor_at(g->epilogue.row_factors, r, r < rows) : head->all;
    }
}

INLINE void share_head(const tma_shape s, const tma_head *head, uint32_t columns) {
    int column = head_column(s);
    if (!head->by_column) return;
    head_sync(s);
    if (column < s.tile_n) {
        st_shared_f32(columns + column * 4, head->factor);
        st_shared_f32(columns + MATMUL_COLUMN_BYTES / 2 + column * 4, head->bias);
    }
    head_sync(s);
}

/* Of one part: 32 columns of the tile, of which this thread's first is number column. */
INLINE void apply_head(const tma_shape s, const tma_head *head, const float *factors, uint32_t columns, float *values, int column) {
    if (s.blocks && s.parts > 0) {   /* scales by block leave no factors */
        if (!head->by_column) return;
#pragma unroll
        for (int i = 0; i < PART_VALUES / 4; i++) {
            float2 bias = ld_shared_f32x2(columns + MATMUL_COLUMN_BYTES / 2 + (column + 8 * i) * 4);
            values[4 * i] += bias.x, values[4 * i + 1] += bias.y, values[4 * i + 2] += bias.x, values[4 * i + 3] += bias.y;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < PART_VALUES; i++) values[i] *= factors[i >> 1 & 1];
    if (!head->by_column) return;
#pragma unroll
    for (int i = 0; i < PART_VALUES / 4; i++) {
        float2 factor = ld_shared_f32x2(columns + (column + 8 * i) * 4), bias = ld_shared_f32x2(columns + MATMUL_COLUMN_BYTES / 2 + (column + 8 * i) * 4);
        values[4 * i] = fmaf(values[4 * i], factor.x, bias.x);
        values[4 * i + 1] = fmaf(values[4 * i + 1], factor.y, bias.y);
        values[4 * i + 2] = fmaf(values[4 * i + 2], factor.x, bias.x);
        values[4 * i + 3] = fmaf(values[4 * i + 3], factor.y, bias.y);
    }
}

/* Rows of a box that a team, with two threads for each, stores by itself: each warp its 16, so that none waits for another; of groups the warpgroup its 64, as
 * their entries have no registers left for more. */
INLINE constexpr int team_rows(const tma_shape s) { return MATMUL_OUT_ROWS(s.groups); }

INLINE void team_sync(const tma_shape s, int group) {
    if (s.groups) barrier_sync(1 + group, 128);
    else __syncwarp();
}

/* The first of the team's rows among the warpgroup's. The thread's number is asked for again instead of kept, as registers are dear where steps are applied. */
INLINE int team_first(const tma_shape s) {
    int thread;
    if (s.groups) return 0;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread % 128 / 32 * team_rows(s);
}

/* A warpgroup's staging is a ring of boxes: one takes 64 columns of 16-bit results, the first two together those of 32-bit ones. They are taken in turn whatever the
 * number of them that a tile needs, or a box would be filled whose last store still reads it: the team's first thread issues all stores of its rows, and waits for them.
 * Gives the place of the team's rows, of which first is the first. */
INLINE uint32_t begin_box(const tma_shape s, tma_ring ring, bool wide, int *box, int thread, int group, int first) {
    if (thread == 0) {
        if (wide) tma_wait_read(0);
        else if (s.boxes == 2) tma_wait_read(1);
        else if (s.boxes == 3) tma_wait_read(2);
        else tma_wait_read(3);
    }
    team_sync(s, group);
    uint32_t place = ring.staging + (group * s.boxes + (wide ? 0 : *box)) * MATMUL_BOX_BYTES + first * ROW_BYTES;
    *box = *box + 1 < s.boxes ? *box + 1 : 0;
    return place;
}

/* Of a box of 64 rows by 128 bytes, from column col on, the rows in front of end, 16 bytes a thread. */
INLINE void copy_box(const matmul_epilogue *e, uint32_t box, int thread, int col, int cols, int row, int end) {
    const int bytes = e->out_format == MATMUL_f32 ? 4 : 2;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int r = (i * 128 + thread) / 8, chunk = thread % 8;
        if (row + r >= end || col + chunk * 16 / bytes >= cols) continue;
        *(uint4 *)(e->out + ((row + r) * e->out_row_stride + col) * bytes + chunk * 16) = ld_shared_u32x4(box + r * ROW_BYTES + ((chunk ^ r % 8) << 4));
    }
}

/* Columns [col, col + 64) of the team's rows, from row on. Where a group ends among them, no engine stores them: it would write over the next group's. */
INLINE void end_box(const matmul_wgmma_arguments *g, const tma_shape s, const tma_tile *tile, bool wide, uint32_t buffer, int thread, int group, int col, int row) {
    const tensor_map *map = (const tensor_map *)g->map_out;
    const matmul_epilogue *e = &g->epilogue;
    if (s.groups && row + team_rows(s) > tile->end) {
        team_sync(s, group);
        copy_box(e, buffer, thread, col, (int)e->out_row_stride, row, tile->end);
        if (wide) copy_box(e, buffer + MATMUL_BOX_BYTES, thread, col + 32, (int)e->out_row_stride, row, tile->end);
        if (thread == 0) tma_commit();   /* an empty one, as begin_box counts them */
        return;
    }
    fence_proxy_async();
    team_sync(s, group);
    if (thread != 0) return;
    tma_store_2d(map, buffer, col, row);
    if (wide) tma_store_2d(map, buffer + MATMUL_BOX_BYTES, col + 32, row);
    tma_commit();
}

/* Of a tile that halves at once: as apply_steps from the step that joins columns on, without the code of steps on twice as many values. */
INLINE void apply_joined(const matmul_epilogue *e, const int count, float *values, int row, int col, int rows) {
    apply_halving(e->steps[e->halving].step, count / 2, values, values + count / 2);
#pragma unroll 1
    for (int i = e->halving + 1; i < e->count; i++) apply_step(&e->steps[i], count / 2, values, row, col, 0, rows, e->half);
}

/* Everything works on registers whose numbers are known, so each loop over parts is unrolled. box: the next one of the ring. */
INLINE void store_tile(const matmul_wgmma_arguments *g, const tma_shape s, tma_ring ring, const tma_tile *tile, int group, const tma_head *head, const float *factors,
                      float *sums, int *box) {
    const int parts = s.tile_n / 32;
    const matmul_epilogue *e = &g->epilogue;
    bool halves = e->halving >= 0, wide = e->out_format == MATMUL_f32;
    int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, end = halves ? e->half : g->n, rows = rows_end(g, s, tile);
    int first_row = tile->row + group_row(s, group), row = first_row + warp * 16 + lane / 4, col = tile->out_col + lane % 4 * 2;
#pragma unroll
    for (int part = 0; part < parts; part++) apply_head(s, head, factors, ring.columns, sums + part * PART_VALUES, part * 32 + lane % 4 * 2);
    if (waves_across(s) > 1) apply_joined(e, s.tile_n / 2, sums, row, col, rows);
    else if (e->count > head->steps) apply_steps(e, head->steps, s.tile_n / 2, sums, row, col, tile->up - tile->col - s.tile_n / 2, rows, g->n);
    if (s.blocks) {
        const block_results to = {e->out, e->scales, e->out_row_stride, e->scale_row_stride, e->out_format == MATMUL_bf16 ? CUDA_bf16 : e->out_format == MATMUL_f16 ? CUDA_f16 : CUDA_f32,
                                  e->block};
        store_blocks(&to, sums, row, tile->out_col, rows, e->halving >= 0 ? min(end, tile->out_col + s.tile_n / 2) : end);
        return;
    }
    if (s.tile_n < BOX_COLS) {
        store_pairs(e, halves ? PART_VALUES / 2 : PART_VALUES, sums, row, col, rows, end);
        return;
    }
    const int stored = halves ? parts / 2 : parts;
    if (!e->by_tma) {
#pragma unroll
        for (int part = 0; part < parts && part < stored; part++) store_values(e, PART_VALUES, sums + part * PART_VALUES, row, col + part * 32, rows, end);
        return;
    }
    int thread = threadIdx.x % (2 * team_rows(s)), first = team_first(s);
#pragma unroll
    for (int part = 0; part < parts && part < stored; part += 2) {
        uint32_t buffer = begin_box(s, ring, wide, box, thread, group, first);
#pragma unroll
        for (int half = 0; half < 2; half++) stage_part(e->out_format, buffer, half, sums + (part + half) * PART_VALUES, thread);
        end_box(g, s, tile, wide, buffer, thread, group, tile->out_col + part * 32, first_row + first);
    }
}

/* Results in blocks of a warpgroup's waves of rows, one below the other. Their code is there once, and sums are moved, as it is long. */
INLINE void store_waves_in_blocks(const matmul_wgmma_arguments *g, const tma_shape s, tma_ring ring, tma_tile *tile, int group, int row_in_tile, const tma_head *head, float *sums, int *box) {
    const int values = s.tile_n / 2, waves = waves_down(s);
#pragma unroll 1
    for (int wave = 0; wave < waves; wave++) {
        float factors[2];
        row_factors(g, head, tile->row + row_in_tile, rows_end(g, s, tile), factors);
        store_tile(g, s, ring, tile, group, head, factors, sums, box);
        tile->row += wave_rows(s);
#pragma unroll
        for (int i = 0; i < values && waves == 2; i++) sums[i] = sums[values + i];
    }
}

/* Where warpgroups share rows: the first one gets the sums of both, by way of the second one's staging, which no store reads, [values / 4][128] x 4. */
INLINE void join_sums(const tma_shape s, tma_ring ring, int group, float *sums) {
    const int values = s.tile_n / 2;
    uint32_t place = ring.staging + s.boxes * MATMUL_BOX_BYTES + threadIdx.x % 128 * 16;
    if (group == 1) {
#pragma unroll
        for (int i = 0; i < values; i += 4) st_shared_f32x4(place + i * 512, sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
    }
    barrier_sync(1, 256);
    if (group == 0) {
#pragma unroll
        for (int i = 0; i < values; i += 4) {
            uint4 other = ld_shared_u32x4(place + i * 512);
            sums[i] += __uint_as_float(other.x), sums[i + 1] += __uint_as_float(other.y), sums[i + 2] += __uint_as_float(other.z), sums[i + 3] += __uint_as_float(other.w);
        }
    }
    barrier_sync(1, 256);   /* before those of the next tile are written */
}

/* Sums of the blocks of a cluster: each leaves its own in its smem, [values / 4][128] x 4 for each warpgroup, and finishes its share of the columns. */
INLINE void store_split_tile(const matmul_wgmma_arguments *g, const tma_shape s, tma_ring ring, const tma_tile *tile, int group, int rank, const float *sums) {
    const int values = s.tile_n / 2, quads = values / 4, share = quads / s.splits > 0 ? quads / s.splits : 1;
    const matmul_epilogue *e = &g->epilogue;
    bool halves = e->halving >= 0;
    int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32, end = halves ? e->half : g->n;
    uint32_t place = ring.data + group * (values * 512) + thread * 16;
#pragma unroll
    for (int i = 0; i < quads; i++) st_shared_f32x4(place + i * 2048, sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
    cluster_arrive();
    cluster_wait();
    int row = tile->row + group * 64 + warp * 16 + lane / 4;
#pragma unroll 1
    for (int i = rank * share / 2; i < (rank + 1) * share / 2; i++) {   /* two quads: neighbours, or those that a step joins */
        int quad = halves ? i : 2 * i, other = halves ? i + quads / 2 : 2 * i + 1, col = tile->out_col + quad * 8 + lane % 4 * 2, jump = halves ? e->half - 8 : 0;
        float total[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
        for (int from = 0; from < s.splits; from++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float4 part = ld_cluster_f32x4(cluster_map(place + (j == 0 ? quad : other) * 2048, from));
                total[4 * j] += part.x, total[4 * j + 1] += part.y, total[4 * j + 2] += part.z, total[4 * j + 3] += part.w;
            }
        apply_factors(e, 8, total, row, col, jump, g->m, g->n);
        apply_steps(e, 0, 8, total, row, col, jump, g->m, g->n);
        store_values(e, 4, total, row, col, g->m, end);
        if (!halves) store_values(e, 4, total + 4, row, col + 8, g->m, end);
    }
}

#endif
