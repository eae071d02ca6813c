/* The products of skinny.cuh for one row of a, where a and b are both bf16 or both f16, and what those of codes of fp8 (codes.cuh) share with them: what a launch takes behind the one in front of
 * it is nearly all latency, so that nothing stands between a's arrival and the sums.
 *
 *   b    two rows to a team of warps, or four where there are many, each of which has a part of k: gmem -> reg, all of it at once, where no launch of the run writes b before the launches in front have
 *        ended
 *   a    gmem -> reg: each lane the units that it has of b's rows; behind a norm (vector_norm.cuh) from smem
 *   sums in reg, fp32 -> lanes by shuffles -> a team's warps in their order by smem -> epilogue, a lane for each of the rows -> gmem
 *
 * A block has few registers and hardly any shared memory, so the next launch's blocks come to lie beside it and load their rows of b while they wait. Blocks are not persistent: each has its
 * teams' rows alone. The rows are neighbours; where a step halves, one half of them are columns c, c + 1, .., the other one those half further on. Resources: two blocks a multiprocessor by registers. Speed: bench/results/h200/skinny.md. */
#ifndef KERNELS_GEMM_SKINNY_VECTOR_CUH
#define KERNELS_GEMM_SKINNY_VECTOR_CUH

/* Rows of b that a warp has at most. */
enum { VECTOR_ROWS_MOST = 4 };

/* Which rows of b a warp multiplies, and of their units of 16 bytes this lane's first; units: of a row. own: the row that is this lane's at the end, number lane % rows of the warp's. */
typedef struct vector_place { int row[VECTOR_ROWS_MOST], team, part, first, units, own; bool is_there[VECTOR_ROWS_MOST], has_own; } vector_place;

/* Row r of number at of a warp's rows; one that is not there is the last one. */
INLINE int vector_row(const skinny_arguments *g, const int rows, int at, int r, bool *is_there) {
    const bool halves = g->epilogue.halving >= 0;
    const int own = rows / 2, col = halves ? at * own + r % own : at * rows + r;
    *is_there = col < (halves ? g->epilogue.half : g->n);
    return min(halves ? col + r / own * g->epilogue.half : col, g->n - 1);
}

/* depth: of k, a unit. */
INLINE vector_place vector_place_of(const skinny_arguments *g, const int rows, const int depth) {
    const int warp = threadIdx.x / 32, teams = SKINNY_VECTOR_WARPS / g->parts, team = warp / g->parts, at = blockIdx.x * teams + team;
    vector_place p = {.team = team, .part = warp % g->parts, .first = warp % g->parts * g->span * 32 + (int)threadIdx.x % 32, .units = (g->k + depth - 1) / depth};
#pragma unroll
    for (int r = 0; r < rows; r++) p.row[r] = vector_row(g, rows, at, r, &p.is_there[r]);
    p.own = vector_row(g, rows, at, (int)threadIdx.x % rows, &p.has_own);
    return p;
}

/* ---- loads ---- */

/* Are a row's units whole, each at a multiple of 16 bytes? */
INLINE bool has_whole_units(const skinny_arguments *g, const matmul_rows *x) { return is_aligned(x) && g->k % 8 == 0; }

/* Where unit number u of this lane lies in a row. A warp's lanes have neighbours; where loads of 32 bytes are there, each lane has two of them side by side, but for the last one of an odd number. */
INLINE int unit_at(const skinny_arguments *g, const vector_place *p, const int u) {
#if defined(PTX_HAS_DECODE)
    if ((u | 1) < g->span) return p->first + (u & ~1) * 32 + (int)threadIdx.x % 32 + u % 2;
#endif
    return p->first + u * 32;
}

/* Is it one of the row's? */
INLINE bool has_unit(const skinny_arguments *g, const vector_place *p, const int u) { return u < g->span && unit_at(g, p, u) < p->units; }

/* Of a row of whole units: are u and u + 1 both there, side by side at a multiple of 32 bytes, where a load brings so many? */
INLINE bool has_two_units(const skinny_arguments *g, const vector_place *p, const int u, const uint8_t *row) {
#if defined(PTX_HAS_DECODE)
    return has_unit(g, p, u + 1) && ((uint64_t)row & 31) == 0;
#else
    return false;
#endif
}

INLINE void load_two_units(const skinny_arguments *g, const vector_place *p, const int u, const uint8_t *row, uint64_t policy, uint4 *first, uint4 *second) {
#if defined(PTX_HAS_DECODE)
    const global_wide two = ld_global_policy_wide(row + unit_at(g, p, u) * 16, policy);
    *first = two.low, *second = two.high;
#endif
}

INLINE uint4 load_unit(const skinny_arguments *g, const vector_place *p, const int u, const uint8_t *row, bool is_there, bool whole, uint64_t policy) {
    const int unit = unit_at(g, p, u);
    if (!is_there || !has_unit(g, p, u)) return make_uint4(0, 0, 0, 0);
    return whole ? ld_global_policy(row + unit * 16, policy) : gather_unit(16, row, unit * 8, min(8, g->k - unit * 8));
}

/* This lane's part of row r of b. */
INLINE void load_row(const skinny_arguments *g, const int units, const vector_place *p, const int r, uint64_t policy, uint4 b[SKINNY_VECTOR_UNITS(2)]) {
    const uint8_t *row = (const uint8_t *)g->b.data + p->row[r] * g->b.row_bytes;
    const bool whole = has_whole_units(g, &g->b), is_there = p->is_there[r];
#pragma unroll
    for (int u = 0; u < units; u += 2) {
        if (is_there && whole && has_two_units(g, p, u, row)) {
            load_two_units(g, p, u, row, policy, &b[u], &b[u + 1]);
        } else {
            b[u] = load_unit(g, p, u, row, is_there, whole, policy);
            b[u + 1] = load_unit(g, p, u + 1, row, is_there, whole, policy);
        }
    }
}

INLINE void load_vector(const skinny_arguments *g, const int units, const vector_place *p, uint4 a[SKINNY_VECTOR_UNITS(2)]) {
    const uint8_t *row = (const uint8_t *)g->a.data;
    const bool whole = has_whole_units(g, &g->a);
#pragma unroll
    for (int u = 0; u < units; u++) {
        const int unit = unit_at(g, p, u);
        a[u] = make_uint4(0, 0, 0, 0);
        if (!has_unit(g, p, u)) continue;
        a[u] = whole ? raw_unit(16, row + unit * 16) : gather_unit(16, row, unit * 8, min(8, g->k - unit * 8));
    }
}

/* The same behind a norm. */
INLINE void read_vector(const skinny_arguments *g, const int units, const vector_place *p, uint4 a[SKINNY_VECTOR_UNITS(2)]) {
#pragma unroll
    for (int u = 0; u < units; u++) {
        a[u] = make_uint4(0, 0, 0, 0);
        if (has_unit(g, p, u)) a[u] = ld_shared_u32x4(normed_row(g) + unit_at(g, p, u) * 16);
    }
}

/* What the end of a product reads besides sums, loaded before them: lane rows * i + r has the operand of step i for row r of b, each lane its row's factors. */
typedef struct vector_early { float operand, of_col, of_row, all; } vector_early;
static_assert(VECTOR_ROWS_MOST * MATMUL_STEPS <= 32, "each step has a lane for each row");

INLINE vector_early load_early(const skinny_arguments *g, const vector_place *p, const int rows) {
    const matmul_epilogue *e = &g->epilogue;
    const int lane = threadIdx.x % 32, i = lane / rows, col = p->own;
    vector_early early = {0, 1, 1, e->alpha};
    if (p->part != 0 || !p->has_own) return early;
    if (i < e->count && e->steps[i].data != 0 && (e->halving < 0 || i < e->halving || lane % rows < rows / 2)) early.operand = load_operand(&e->steps[i], col * e->steps[i].col_stride);
    early.of_col = factor_at(e->col_factors, col, e->col_factors != 0);
    early.of_row = factor_at(e->row_factors, 0, e->row_factors != 0);
    for (int k = 0; k < 2; k++)
        if (e->alpha_at[k] != 0) early.all *= *(const float *)e->alpha_at[k];
    return early;
}

/* ---- products ---- */

/* Two elements of a word. */
INLINE float2 floats_of_pair(const skinny_shape s, uint32_t pair) { return pair_of(s.weights == SKINNY_F16 ? MATMUL_f16 : MATMUL_bf16, pair); }

INLINE void multiply_unit(const skinny_shape s, const int rows, const int u, const uint4 a, const uint4 b[][SKINNY_VECTOR_UNITS(2)], float *sums) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 x = floats_of_pair(s, word_of(a, i));
#pragma unroll
        for (int r = 0; r < rows; r++) {
            const float2 w = floats_of_pair(s, word_of(b[r][u], i));
            sums[r] = fmaf(x.y, w.y, fmaf(x.x, w.x, sums[r]));
        }
    }
}

/* Over a warp's lanes, and over a team's warps by smem; lane r of its first warp gets row r's. */
INLINE float add_parts(const skinny_arguments *g, const vector_place *p, const int rows, float *sums) {
    __shared__ float of_warps[SKINNY_VECTOR_WARPS][VECTOR_ROWS_MOST];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
#pragma unroll
        for (int r = 0; r < rows; r++) sums[r] += __shfl_xor_sync(~0u, sums[r], step);
    float own = sums[0];
#pragma unroll
    for (int r = 1; r < rows; r++) own = lane % rows == r ? sums[r] : own;
    if (g->parts == 1) return own;
    if (lane < rows) of_warps[warp][lane] = own;
    barrier_sync(1 + p->team, g->parts * 32);
    float y = 0;
    for (int i = 0; i < g->parts; i++) y += of_warps[p->team * g->parts + i][lane % rows];
    return y;
}

/* Lane r of a team's first warp has the sum y of row r. */
INLINE void end_vector(const skinny_arguments *g, const vector_place *p, const int rows, const vector_early *early, float y) {
    const matmul_epilogue *e = &g->epilogue;
    const int lane = threadIdx.x % 32, r = lane % rows, first = e->halving >= 0 ? e->halving : e->count, stored = e->halving >= 0 ? rows / 2 : rows;
    y = early->all * y * early->of_row * early->of_col;
#pragma unroll 1
    for (int i = 0; i < first; i++) y = apply_step_to(e->steps[i].step, y, __shfl_sync(~0u, early->operand, i * rows + r));
    if (e->halving >= 0) {
        const float up = __shfl_down_sync(~0u, y, rows / 2);
        apply_halving(e->steps[first].step, 1, &y, &up);
#pragma unroll 1
        for (int i = first + 1; i < e->count; i++) y = apply_step_to(e->steps[i].step, y, __shfl_sync(~0u, early->operand, i * rows + r % (rows / 2)));
    }
    if (lane < stored && p->has_own) store_result(e, y, 0, p->own);
}

/* ---- all of it ---- */

INLINE void matmul_vector(const skinny_arguments *g, const skinny_shape s, const int rows) {
    const int units = SKINNY_VECTOR_UNITS(rows);
    const vector_place p = vector_place_of(g, rows, 8);
    const uint64_t policy = policy_first();
    uint4 a[SKINNY_VECTOR_UNITS(2)], b[VECTOR_ROWS_MOST][SKINNY_VECTOR_UNITS(2)];
    float sums[VECTOR_ROWS_MOST] = {0, 0, 0, 0};
    norm_pieces columns;
    grid_release();
    if (!g->b_is_constant) grid_wait();
#pragma unroll
    for (int r = 0; r < rows; r++) load_row(g, units, &p, r, policy, b[r]);
    if (has_norm(g)) columns = load_columns(g);
    if (g->b_is_constant) grid_wait();
    const vector_early early = load_early(g, &p, rows);
    if (has_norm(g)) {
        normalise_row(g, &columns);
        __syncthreads();
        read_vector(g, units, &p, a);
    } else load_vector(g, units, &p, a);
#pragma unroll
    for (int u = 0; u < units; u++)
        if (has_unit(g, &p, u)) multiply_unit(s, rows, u, a[u], b, sums);
    const float y = add_parts(g, &p, rows, sums);
    if (p.part == 0) end_vector(g, &p, rows, &early, y);
}

#define SKINNY_VECTOR_ENTRY(name, weights, rows)                                                                                          \
    extern "C" __global__ void __launch_bounds__(SKINNY_VECTOR_WARPS * 32, 2) name(const __grid_constant__ skinny_arguments arguments) { \
        const skinny_shape shape = {weights, 1, 0, 0, 0};                                                                                 \
        matmul_vector(&arguments, shape, rows);                                                                                           \
    }

#endif
