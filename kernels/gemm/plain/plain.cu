/* The plain matmul: any formats, strides and sizes. Operands are decoded to fp32 exactly (block scales applied, the second level on the sum), products are
 * fused multiply-adds in fp32. Tiles of 64 x 64 by 256 threads of 4 x 4 each, 16 of k at a time through shared memory:
 *     a [64,16] gmem -> smem [16,64]    b [64,16] gmem -> smem [16,64]    (a step that halves: b's second half, too)    sums in registers
 * matmul_few: up to 8 rows, a block for each column, threads along k. matmul_double: one thread an element. matmul_groups: tiles of a group's rows. matmul_outer: tiles of a group's matrix, k being its rows.
 * Resources: 12 KiB of shared memory. Speed: bench/results/h200/matmul_fp32.md. */
#include "kernels/gpu/epilogue/post.cuh"
#include "kernels/gemm/plain/plain.h"

enum { PAD = 1, SUMS = 4 };

/* Where the operands of one batch begin. */
typedef struct matmul_place {
    int64_t out, a, b, k, post[CUDA_POST_OPERANDS];
    int64_t a_row, b_row;         /* of packed formats: rows in front */
} matmul_place;

DEVICE matmul_place place_of(const matmul_arguments *p, int64_t batch) {
    int64_t at[3 + CUDA_POST_OPERANDS];
    matmul_place place;
    nest_offsets(&p->batch, batch, 3 + CUDA_POST_OPERANDS, at);
    place.out = at[0];
    place.a = at[1];
    place.b = at[2];
    place.k = p->k;
    for (int i = 0; i < CUDA_POST_OPERANDS; i++) place.post[i] = at[3 + i];
    place.a_row = p->a.row_stride > 0 ? place.a / p->a.row_stride : 0;
    place.b_row = p->b.row_stride > 0 ? place.b / p->b.row_stride : 0;
    return place;
}

/* 64 rows from first on, 16 of k from begin on, into smem [16][64]; zeros outside. Neighbouring threads read neighbouring elements. */
DEVICE void load_tile(const cuda_rows *rows, int64_t at, int64_t at_row, int64_t first, int64_t end, int64_t begin, int64_t k, float tile[MATMUL_DEPTH][MATMUL_TILE + PAD]) {
    int by_k = rows->k_stride == 1;
    for (int i = (int)threadIdx.x; i < MATMUL_TILE * MATMUL_DEPTH; i += CUDA_THREADS) {
        int r = by_k ? i / MATMUL_DEPTH : i % MATMUL_TILE, l = by_k ? i % MATMUL_DEPTH : i / MATMUL_TILE;
        tile[l][r] = first + r < end && begin + l < k ? rows_load(rows, at, at_row, first + r, begin + l) : 0;
    }
}

DEVICE void store_result(const matmul_arguments *p, const matmul_place *place, int64_t row, int64_t group, int64_t col, float y, float u) {
    float second = rows_second(&p->a, place->a_row + row);
    y *= second * rows_second(&p->b, place->b_row + col);
    if (p->post.half > 0) u *= second * rows_second(&p->b, place->b_row + col + p->post.half);
    store_float(&p->out, place->out + row * p->out_row + col * p->out_col, post_apply(&p->post, place->post, row, group, col, y, u));
}

/* The tile of rows [top, end_row) and columns from left on. */
DEVICE void multiply_tile(const matmul_arguments *p, const matmul_place *place, int64_t top, int64_t end_row, int64_t left, int64_t group) {
    __shared__ float tile_a[MATMUL_DEPTH][MATMUL_TILE + PAD], tile_b[MATMUL_DEPTH][MATMUL_TILE + PAD], tile_u[MATMUL_DEPTH][MATMUL_TILE + PAD];
    float y[SUMS][SUMS], u[SUMS][SUMS];
    int row = (int)threadIdx.x / 16, col = (int)threadIdx.x % 16, halves = p->post.half > 0;
    for (int i = 0; i < SUMS; i++)
        for (int j = 0; j < SUMS; j++) y[i][j] = u[i][j] = 0;
    for (int64_t begin = 0; begin < place->k; begin += MATMUL_DEPTH) {
        __syncthreads();
        load_tile(&p->a, place->a, place->a_row, top, end_row, begin, place->k, tile_a);
        load_tile(&p->b, place->b, place->b_row, left, p->n, begin, place->k, tile_b);
        if (halves) load_tile(&p->b, place->b, place->b_row, left + p->post.half, p->n + p->post.half, begin, place->k, tile_u);
        __syncthreads();
        for (int l = 0; l < MATMUL_DEPTH; l++)
            for (int i = 0; i < SUMS; i++) {
                float a = tile_a[l][row + 16 * i];
                for (int j = 0; j < SUMS; j++) y[i][j] = fmaf(a, tile_b[l][col + 16 * j], y[i][j]);
                if (halves)
                    for (int j = 0; j < SUMS; j++) u[i][j] = fmaf(a, tile_u[l][col + 16 * j], u[i][j]);
            }
    }
    for (int i = 0; i < SUMS; i++)
        for (int j = 0; j < SUMS; j++) {
            int64_t r = top + row + 16 * i, c = left + col + 16 * j;
            if (r < end_row && c < p->n) store_result(p, place, r, group, c, y[i][j], u[i][j]);
        }
}

KERNEL(matmul_tiles, matmul_arguments) {
    int64_t across = (arguments.n + MATMUL_TILE - 1) / MATMUL_TILE, down = (arguments.m + MATMUL_TILE - 1) / MATMUL_TILE;
    for (int64_t item = blockIdx.x; item < arguments.batch.count * across * down; item += gridDim.x) {
        matmul_place place = place_of(&arguments, item / (across * down));
        multiply_tile(&arguments, &place, item / across % down * MATMUL_TILE, arguments.m, item % across * MATMUL_TILE, 0);
    }
}

KERNEL(matmul_few, matmul_arguments) {
    __shared__ float sums[CUDA_THREADS];
    int thread = (int)threadIdx.x, halves = arguments.post.half > 0;
    for (int64_t item = blockIdx.x; item < arguments.batch.count * arguments.n; item += gridDim.x) {
        matmul_place place = place_of(&arguments, item / arguments.n);
        int64_t col = item % arguments.n;
        float y[MATMUL_FEW], u[MATMUL_FEW];
        for (int r = 0; r < MATMUL_FEW; r++) y[r] = u[r] = 0;
        for (int64_t l = thread; l < arguments.k; l += CUDA_THREADS) {
            float b = rows_load(&arguments.b, place.b, place.b_row, col, l), b_u = 0;
            if (halves) b_u = rows_load(&arguments.b, place.b, place.b_row, col + arguments.post.half, l);
            for (int r = 0; r < MATMUL_FEW; r++) {
                if (r >= arguments.m) continue;
                float a = rows_load(&arguments.a, place.a, place.a_row, r, l);
                y[r] = fmaf(a, b, y[r]);
                u[r] = fmaf(a, b_u, u[r]);
            }
        }
        for (int r = 0; r < MATMUL_FEW; r++) {
            float both[2];
            if (r >= arguments.m) continue;
            for (int part = 0; part < 2; part++) {
                if (part == 1 && !halves) continue;
                __syncthreads();
                sums[thread] = part == 0 ? y[r] : u[r];
                __syncthreads();
                for (int half = CUDA_THREADS / 2; half > 0; half /= 2) {
                    if (thread < half) sums[thread] += sums[thread + half];
                    __syncthreads();
                }
                both[part] = sums[0];
            }
            if (thread == 0) store_result(&arguments, &place, r, 0, col, both[0], halves ? both[1] : 0);
        }
    }
}

/* f64: as it is spelled. Its post list computes in fp32's functions no more than in its operands' precision, so it has none. */
KERNEL(matmul_double, matmul_arguments) {
    int64_t area = arguments.m * arguments.n;
    for (int64_t item = item_first(); item < arguments.batch.count * area; item += item_step()) {
        matmul_place place = place_of(&arguments, item / area);
        int64_t row = item % area / arguments.n, col = item % arguments.n;
        cuda_array a = {arguments.a.data, arguments.a.format, 8}, b = {arguments.b.data, arguments.b.format, 8};
        double sum = 0;
        for (int64_t l = 0; l < arguments.k; l++)
            sum += load_double(&a, place.a + row * arguments.a.row_stride + l * arguments.a.k_stride) * load_double(&b, place.b + col * arguments.b.row_stride + l * arguments.b.k_stride);
        store_double(&arguments.out, place.out + row * arguments.out_row + col * arguments.out_col, sum);
    }
}

DEVICE void clear_tile(const matmul_arguments *p, const matmul_place *place, int64_t top, int64_t end, int64_t left) {
    for (int i = (int)threadIdx.x; i < MATMUL_TILE * MATMUL_TILE; i += CUDA_THREADS) {
        int64_t r = top + i / MATMUL_TILE, c = left + i % MATMUL_TILE;
        if (r < end && c < p->n) store_float(&p->out, place->out + r * p->out_row + c * p->out_col, 0);
    }
}

/* Block x: a tile of columns; y: a tile of rows of a; z: a group, or, behind the last, the rows behind them. Rows that belong to no group become zeros: those, and what is left of padded groups. */
KERNEL(matmul_groups, matmul_arguments) {
    const int64_t group = blockIdx.z, left = (int64_t)blockIdx.x * MATMUL_TILE, step = (int64_t)gridDim.y * MATMUL_TILE, apart = arguments.apart;
    const int is_behind = group == arguments.groups;
    const int64_t begin = apart > 0 ? group * apart : group == 0 ? 0 : load_int(&arguments.offsets, (group - 1) * arguments.offsets_step);
    const int64_t own = is_behind ? begin : load_int(&arguments.offsets, group * arguments.offsets_step), end = apart > 0 && !is_behind ? begin + own : own;
    const int64_t most = apart > 0 && !is_behind ? begin + apart : arguments.m;
    if (begin < 0 || end < begin || end > most) {
        fault_raise(&arguments.fault, CUDA_FAULT_OFFSETS, own, apart > 0 ? apart : arguments.m);
        return;
    }
    matmul_place place = place_of(&arguments, 0);
    place.b += group * arguments.b_group;
    place.b_row = arguments.b.row_stride > 0 ? place.b / arguments.b.row_stride : 0;
    for (int64_t top = begin + (int64_t)blockIdx.y * MATMUL_TILE; top < end; top += step) multiply_tile(&arguments, &place, top, end, left, group);
    if (apart == 0 && !is_behind) return;
    for (int64_t top = end + (int64_t)blockIdx.y * MATMUL_TILE; top < most; top += step) clear_tile(&arguments, &place, top, most, left);
}

/* Block x: a tile of columns; y: a tile of rows; z: a group. Rows of the operands, [begin, end) of a group, are its k. */
KERNEL(matmul_outer, matmul_arguments) {
    const int64_t left = (int64_t)blockIdx.x * MATMUL_TILE;
    for (int64_t group = blockIdx.z; group < arguments.groups; group += gridDim.z) {
        const int64_t begin = group == 0 ? 0 : load_int(&arguments.offsets, (group - 1) * arguments.offsets_step), end = load_int(&arguments.offsets, group * arguments.offsets_step);
        matmul_place place = place_of(&arguments, 0);
        if (begin < 0 || end < begin || end > arguments.k) {
            fault_raise(&arguments.fault, CUDA_FAULT_OFFSETS, end, arguments.k);
            return;
        }
        place.a = begin * arguments.a.k_stride;
        place.b = begin * arguments.b.k_stride;
        place.out = group * arguments.b_group;
        place.k = end - begin;
        for (int64_t top = (int64_t)blockIdx.y * MATMUL_TILE; top < arguments.m; top += (int64_t)gridDim.y * MATMUL_TILE) multiply_tile(&arguments, &place, top, arguments.m, left, group);
    }
}
