/* layer_norm and rms_norm of the one row of vector.cuh and codes.cuh, bit for bit as kernels/norm/norm_rows.cu has them: its threads, with a piece of 8 elements each, are the block's, and those
 * that it would not have hold zeros. Each block does it for itself, behind the wait, and a launch is saved.
 *
 *   weight, bias   gmem -> reg, a thread's piece of each, before the launches in front have ended
 *   a              gmem -> reg -> sums by shuffles, and over warps by smem -> normalised, rounded to a's format -> smem [k] */
#ifndef KERNELS_GEMM_SKINNY_VECTOR_NORM_CUH
#define KERNELS_GEMM_SKINNY_VECTOR_NORM_CUH

static_assert(SKINNY_VECTOR_WARPS == 8, "sums of warps are added four at a time, as norm_rows.cu adds them");

INLINE bool has_norm(const skinny_arguments *g) { return g->norm.group != 0; }

/* Where the row lies in shared memory. */
INLINE uint32_t normed_row(const skinny_arguments *g) {
    extern __shared__ __align__(1024) uint8_t shared[];
    return shared_address(shared) + g->norm.at;
}

/* Eight numbers of weight or bias as they lie: f32 takes both. */
typedef struct norm_piece { uint4 low, high; } norm_piece;
typedef struct norm_pieces { norm_piece weight, bias; } norm_pieces;

INLINE uint4 column_unit(const uint8_t *from) { return ((uint64_t)from & 15) == 0 ? *(const uint4 *)from : gather_unit(16, from, 0, 8); }

INLINE norm_piece load_piece(const skinny_arguments *g, uint64_t column) {
    norm_piece piece = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
    const bool wide = g->norm.columns == MATMUL_f32;
    const uint8_t *from = (const uint8_t *)column + threadIdx.x * (wide ? 32 : 16);
    if (column == 0 || (int)threadIdx.x * 8 >= g->k) return piece;
    piece.low = column_unit(from);
    if (wide) piece.high = column_unit(from + 16);
    return piece;
}

INLINE norm_pieces load_columns(const skinny_arguments *g) {
    norm_pieces pieces = {load_piece(g, g->norm.weight), load_piece(g, g->norm.bias)};
    return pieces;
}

INLINE void floats_of_piece(const skinny_arguments *g, const norm_piece *piece, float y[8]) {
    if (g->norm.columns != MATMUL_f32) {
        floats_of_unit(g->norm.columns, piece->low, y);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        y[i] = __uint_as_float(word_of(piece->low, i));
        y[4 + i] = __uint_as_float(word_of(piece->high, i));
    }
}

/* Sums of two numbers over the block; every thread gets them. A room is for one call. */
typedef struct norm_room { float4 of_warps[2][SKINNY_VECTOR_WARPS / 4]; } norm_room;

INLINE float2 sum_of_block(float x, float y, norm_room *room) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        x += __shfl_xor_sync(~0u, x, step);
        y += __shfl_xor_sync(~0u, y, step);
    }
    if (threadIdx.x % 32 == 0) {
        ((float *)room->of_warps[0])[threadIdx.x / 32] = x;
        ((float *)room->of_warps[1])[threadIdx.x / 32] = y;
    }
    __syncthreads();
    float2 all = {0, 0};
#pragma unroll
    for (int i = 0; i < SKINNY_VECTOR_WARPS / 4; i++) {
        const float4 a = room->of_warps[0][i], b = room->of_warps[1][i];
        all.x += a.x + a.y + (a.z + a.w);
        all.y += b.x + b.y + (b.z + b.w);
    }
    return all;
}

INLINE float sum_of_eight(const float x[8]) {
    float sum = x[0];
#pragma unroll
    for (int i = 1; i < 8; i++) sum += x[i];
    return sum;
}
INLINE float squares_of_eight(const float x[8]) {
    float sum = x[0] * x[0];
#pragma unroll
    for (int i = 1; i < 8; i++) sum = fmaf(x[i], x[i], sum);
    return sum;
}

/* All threads of the block. A thread reads its own piece at once, others behind a barrier. */
INLINE void normalise_row(const skinny_arguments *g, const norm_pieces *columns) {
    __shared__ norm_room rooms[2];
    const bool has_piece = (int)threadIdx.x * 8 < g->k;
    float x[8] = {0, 0, 0, 0, 0, 0, 0, 0}, y[8], low = 0, sum = 0;
    if (has_piece) floats_of_unit(g->a.format, column_unit((const uint8_t *)g->a.data + threadIdx.x * 16), x);
    if (g->norm.centred) {
        const float mean = sum_of_block(sum_of_eight(x), 0, &rooms[0]).x * g->norm.by_count;
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = has_piece ? x[i] - mean : 0;
        sum = sum_of_eight(x);
    }
    const float2 sums = sum_of_block(squares_of_eight(x), sum, &rooms[1]);
    if (g->norm.centred) low = sums.y * g->norm.by_count;
    const float variance = sums.x * g->norm.by_count - low * low, scale = rsqrtf((variance < 0 ? 0 : variance) + g->norm.eps), shift = -low * scale;
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = fmaf(x[i], scale, shift);
    if (g->norm.weight != 0) {
        floats_of_piece(g, &columns->weight, y);
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] *= y[i];
    }
    if (g->norm.bias != 0) {
        floats_of_piece(g, &columns->bias, y);
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] += y[i];
    }
    if (has_piece) st_shared_u32x4(normed_row(g) + threadIdx.x * 16, halves_of_unit(g->a.format, x));
}

#endif
