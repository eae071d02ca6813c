/* The products of vector.cuh for weights whose rows are whole units of 16 bytes, aligned: b is on its way in shared memory and not in registers, and is multiplied by mma.sync.
 *
 *   b    gmem -> a ring in smem of each warp, by bulk copies: a stage is a row, or a piece of up to 4 KiB of one. As many as there are stages before the launches in front have ended, where no launch
 *        of the run writes b; each of the others when its stage has been read
 *   a    gmem -> smem [k], once a block, normalised (vector_norm.cuh) if there is a norm -> reg, a piece at a time
 *   sums by mma.sync: eight parts of a piece are rows of a's fragment and columns of b's, so that those of the same k meet on the diagonal of the result, and the rest of it is not read ->
 *        lanes by shuffles -> lane i of a warp has its row i -> epilogue -> gmem
 *
 * One block a multiprocessor, whose warps have up to 32 rows of b each, taken in pairs so that a piece of a is read once for two; where a step halves, a pair is a column and the one half of them
 * further on. No barrier of the block stands behind a's arrival. Resources: half of a multiprocessor's shared memory, 110 registers. Speed: bench/results/h200/skinny.md. */
#ifndef KERNELS_GEMM_SKINNY_RING_CUH
#define KERNELS_GEMM_SKINNY_RING_CUH

#include "kernels/gpu/pipe/ring.cuh"
#include "kernels/gpu/ptx/bulk.cuh"
#include "kernels/gemm/skinny/ring.h"
#include "kernels/gemm/skinny/skinny.cuh"

/* This warp's: its first column, how many rows of b it has, its ring. */
typedef struct ring_place { int first, rows; uint32_t data, full; } ring_place;

INLINE ring_place ring_place_of(const ring_arguments *r) {
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ uint64_t full[SKINNY_VECTOR_WARPS][RING_STAGES];
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0), at = warp * (int)gridDim.x + (int)blockIdx.x, cols = r->each + (at < r->rest);
    const ring_place p = {at * r->each + min(at, r->rest), r->product.epilogue.halving >= 0 ? 2 * cols : cols, shared_address(shared) + warp * r->stages * r->chunk_bytes, shared_address(full[warp])};
    return p;
}

/* The warp's barriers, by the lane that starts its copies. */
INLINE void ring_open(const ring_arguments *r, const ring_place *p) {
    if (threadIdx.x % 32 != 0) return;
#pragma unroll 1
    for (int i = 0; i < r->stages; i++) mbarrier_init(p->full + i * BARRIER_BYTES, 1);
    fence_mbarrier_init();
}

/* Row number i of the warp's as a row of b, which is also its column in front of a step that halves. */
INLINE int ring_row(const ring_arguments *r, const ring_place *p, int i) {
    if (r->product.epilogue.halving < 0) return p->first + i;
    return p->first + i / 2 + i % 2 * r->product.epilogue.half;
}

/* ---- the ring ---- */

/* A piece of one of the warp's rows, and where it lies: of a pair of rows come the first pieces, then the second ones, and so on. further: from one row of a pair to the other. */
typedef struct ring_cursor { int row, chunk; uint64_t from; int64_t further; } ring_cursor;

INLINE ring_cursor ring_begin(const ring_arguments *r, const ring_place *p) {
    const skinny_arguments *g = &r->product;
    const ring_cursor c = {0, 0, g->b.data + p->first * g->b.row_bytes, g->epilogue.halving >= 0 ? g->epilogue.half * g->b.row_bytes : g->b.row_bytes};
    return c;
}

INLINE void ring_next_piece(const ring_arguments *r, const ring_place *p, ring_cursor *c) {
    if (c->row % 2 == 0 && c->row + 1 < p->rows) {
        c->row++;
        c->from += c->further;
        return;
    }
    if (c->row % 2 == 1) c->from -= c->further;
    c->row &= ~1;
    c->from += r->chunk_bytes;
    if (++c->chunk < r->chunks) return;
    c->chunk = 0;
    c->row += 2;
    c->from += (r->product.epilogue.halving >= 0 ? 1 : 2) * r->product.b.row_bytes - r->chunks * r->chunk_bytes;
}

/* Bytes of a row from piece chunk on, up to the piece's end. */
INLINE int piece_bytes(const ring_arguments *r, int chunk) { return min(r->chunk_bytes, r->product.k * 2 - chunk * r->chunk_bytes); }

/* Starts the copy of a piece, if there is one, by one lane. */
INLINE void bring_piece(const ring_arguments *r, const ring_place *p, int stage, uint64_t policy, ring_cursor *c) {
    if (c->row >= p->rows) return;
    if (threadIdx.x % 32 == 0) {
        const uint32_t bytes = piece_bytes(r, c->chunk), full = p->full + stage * BARRIER_BYTES;
        mbarrier_arrive_expect(full, bytes);
        bulk_load_policy(p->data + stage * r->chunk_bytes, c->from, bytes, full, policy);
    }
    ring_next_piece(r, p, c);
}

INLINE void fill_ring(const ring_arguments *r, const ring_place *p, uint64_t policy, ring_cursor *ahead) {
#pragma unroll 1
    for (int i = 0; i < r->stages; i++) bring_piece(r, p, i, policy, ahead);
}

/* ---- products ---- */

/* A piece of `units` units as fragments: four matrices of eight units each at a time, of which lane l names unit `at` and gets word l % 4 of unit l / 4 of each. nothing: the address of a unit of zeros. */
INLINE void read_units(uint32_t from, int at, int units, uint32_t nothing, uint4 x[RING_UNITS]) {
#pragma unroll
    for (int u = 0; u < RING_UNITS; u++) x[u] = ldmatrix_x4(at + u * 32 < units ? from + (at + u * 32) * 16 : nothing);
}

/* What this lane has of a piece's sum. Of b the matrices are 0 to 3, of a 0, 2, 1, 3: the first two meet in row lane / 4 of the result, the others in the row 8 further, both in column lane / 4. */
INLINE float multiply_piece(const int weights, int span, const uint4 a[RING_UNITS], const uint4 b[RING_UNITS]) {
    float d[4][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}};
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int u = 0; u < RING_UNITS; u++) {
        if (u >= span) break;
        if (weights == SKINNY_F16) {
            mma_f16(d[u % 2 * 2], a[u].x, a[u].y, a[u].z, a[u].w, b[u].x, b[u].y);
            mma_f16(d[u % 2 * 2 + 1], a[u].x, a[u].y, a[u].z, a[u].w, b[u].z, b[u].w);
        } else {
            mma_bf16(d[u % 2 * 2], a[u].x, a[u].y, a[u].z, a[u].w, b[u].x, b[u].y);
            mma_bf16(d[u % 2 * 2 + 1], a[u].x, a[u].y, a[u].z, a[u].w, b[u].z, b[u].w);
        }
    }
    const float even = d[0][0] + d[2][0] + (d[1][2] + d[3][2]), odd = d[0][1] + d[2][1] + (d[1][3] + d[3][3]);
    if (lane % 4 != lane / 8) return 0;
    return lane / 4 % 2 == 0 ? even : odd;
}

/* ---- the end of rows ---- */

/* Steps whose operands are asked for before the products. */
enum { RING_EARLY = 2 };

/* What the end of this lane's row reads besides the sum. factors: of a and of b, which are kept apart, as their product may be no number of fp32 where the result is one. */
typedef struct ring_early { float operands[RING_EARLY], factors[2]; } ring_early;

/* Of row number i of the warp's. */
INLINE ring_early ring_load_early(const ring_arguments *r, const ring_place *p, int i) {
    const matmul_epilogue *e = &r->product.epilogue;
    ring_early early = {{0, 0}, {e->alpha, 1}};
    if (i >= p->rows) return early;
    const int col = ring_row(r, p, i);
#pragma unroll
    for (int s = 0; s < RING_EARLY; s++)
        if (s < e->count && e->steps[s].data != 0 && (e->halving < 0 || s < e->halving || i % 2 == 0)) early.operands[s] = load_operand(&e->steps[s], col * e->steps[s].col_stride);
    for (int s = 0; s < 2; s++)
        if (e->alpha_at[s] != 0) early.factors[s] *= *(const float *)e->alpha_at[s];
    early.factors[0] *= factor_at(e->row_factors, 0, e->row_factors != 0);
    early.factors[1] *= factor_at(e->col_factors, col, e->col_factors != 0);
    return early;
}

INLINE float ring_apply(const matmul_epilogue *e, const ring_early *early, int s, float y, int col, bool is_there) {
    float x = s == 0 ? early->operands[0] : early->operands[1];
    if (s >= RING_EARLY && is_there && e->steps[s].data != 0) x = load_operand(&e->steps[s], col * e->steps[s].col_stride);
    return apply_step_to(e->steps[s].step, y, x);
}

/* y: of row number i of the warp's. */
INLINE void ring_end_rows(const ring_arguments *r, const ring_place *p, const ring_early *early, int i, float y) {
    const matmul_epilogue *e = &r->product.epilogue;
    const bool halves = e->halving >= 0, is_there = i < p->rows;
    const int first = halves ? e->halving : e->count, col = ring_row(r, p, i);
    const float of_a = early->factors[0], of_b = early->factors[1];
    y = fabsf(of_a) < fabsf(of_b) ? y * of_a * of_b : y * of_b * of_a;      /* the less first: it ends beyond fp32 only where the result does */
#pragma unroll 1
    for (int s = 0; s < first; s++) y = ring_apply(e, early, s, y, col, is_there);
    if (halves) {
        const float up = __shfl_down_sync(~0u, y, 1);
        apply_halving(e->steps[first].step, 1, &y, &up);
#pragma unroll 1
        for (int s = first + 1; s < e->count; s++) y = ring_apply(e, early, s, y, col, is_there && i % 2 == 0);
    }
    if (is_there && (!halves || i % 2 == 0)) store_result(e, y, 0, col);
}

/* ---- all of it ---- */

/* a into shared memory, as it comes. */
INLINE void ring_bring_vector(const ring_arguments *r) {
    const skinny_arguments *g = &r->product;
#pragma unroll 4
    for (int unit = threadIdx.x; unit * 8 < g->k; unit += SKINNY_VECTOR_WARPS * 32) st_shared_u32x4(normed_row(g) + unit * 16, ((const uint4 *)g->a.data)[unit]);
}

INLINE void matmul_ring(const ring_arguments *r, const int weights) {
    __shared__ uint4 zeros;
    const skinny_arguments *g = &r->product;
    const ring_place p = ring_place_of(r);
    const int lane = threadIdx.x % 32, turned = (lane & 7) | (lane & 8) << 1 | (lane & 16) >> 1;      /* matrices 1 and 2 change places */
    const uint32_t nothing = shared_address(&zeros);
    const uint64_t policy = policy_first();
    ring_cursor ahead = ring_begin(r, &p);
    norm_pieces columns;
    grid_release();
    if (threadIdx.x == 0) zeros = make_uint4(0, 0, 0, 0);
    ring_open(r, &p);
    if (g->b_is_constant) fill_ring(r, &p, policy, &ahead);
    if (has_norm(g)) columns = load_columns(g);
    grid_wait();
    if (!g->b_is_constant) fill_ring(r, &p, policy, &ahead);
    if (has_norm(g)) normalise_row(g, &columns);
    else ring_bring_vector(r);
    const ring_early early = ring_load_early(r, &p, lane);
    __syncthreads();
    ring_turn turn = ring_reader();
    uint4 a[RING_UNITS], b[RING_UNITS];
    float own = 0;
#pragma unroll 1
    for (int pair = 0; pair < p.rows; pair += 2) {
        float sums[2] = {0, 0};
#pragma unroll 1
        for (int chunk = 0; chunk < r->chunks; chunk++) {
            const int units = piece_bytes(r, chunk) / 16, span = (units + 31) / 32;
            if (pair == 0 || r->chunks > 1) read_units(normed_row(g) + chunk * r->chunk_bytes, turned, units, nothing, a);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (pair + i >= p.rows) break;
                mbarrier_wait(p.full + turn.stage * BARRIER_BYTES, turn.phase);
                read_units(p.data + turn.stage * r->chunk_bytes, lane, units, nothing, b);
                __syncwarp();
                bring_piece(r, &p, turn.stage, policy, &ahead);
                ring_next(&turn, r->stages);
                sums[i] += multiply_piece(weights, span, a, b);
            }
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
#pragma unroll
            for (int i = 0; i < 2; i++) sums[i] += __shfl_xor_sync(~0u, sums[i], step);
        own = lane == pair ? sums[0] : lane == pair + 1 ? sums[1] : own;
    }
    ring_end_rows(r, &p, &early, lane, own);
}

#define RING_ENTRY(name, weights)                                                                                                                \
    extern "C" __global__ void __launch_bounds__(SKINNY_VECTOR_WARPS * 32, 2) name(const __grid_constant__ ring_arguments arguments) { \
        matmul_ring(&arguments, weights);                                                                                                      \
    }

#endif
