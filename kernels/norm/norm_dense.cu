/* layer_norm and rms_norm, with what quantises the result, of dense rows: 16-bit elements side by side, every row and every result in words of 16 bytes (norm_rows.c says
 * which). As many blocks as are resident make one row after the other: weight and bias lie in shared memory as fp32, places are found once, and the next row is on
 * its way while this one is worked on.
 *
 *     registers: row n in fp32 (4 pieces of 8), row n + 1 as it is in memory (16 words) | shared: weight, bias, 32 fp32 a thread
 *
 * Rows of bf16 whose fourth pieces would all lie behind their end have 3.
 * The bits are those of norm_rows.cu. Registers and speed: README.md. */
#include "kernels/norm/moments.cuh"
#include "kernels/quantize/blocks.cuh"

/* This thread's first piece of the row in operand k of the nest, which begins at data. */
INLINE uint4 *dense_row(uint64_t data, const norm_rows_arguments *a, const row_place *p, const int k) {
    return (uint4 *)data + p->row * (a->division.nest.strides[k][0] / PIECE) + p->first / PIECE;
}

INLINE void add_dense_residual(const int pieces, const int format, const norm_rows_arguments *a, const row_place *p, float x[][PIECE]) {
    uint4 r[PIECES_MOST];
    load_words(pieces, dense_row(a->residual.data, a, p, 3), p, r);
    EACH_PIECE(c) {
        float y[PIECE];
        unpack_halves(format, r[c], y);
        EACH_OF_PIECE(i) x[c][i] += y[i];
        r[c] = pack_halves(format, x[c]);
        unpack_halves(format, r[c], x[c]);
    }
    store_words(pieces, dense_row(a->sum.data, a, p, 2), p, r);
}

/* weight and bias in shared memory, as fp32: each thread keeps what belongs to its own columns, 16 bytes beside those of its neighbours, so nobody waits. */
INLINE void keep_columns(const int pieces, const cuda_array *columns, const row_place *p, float4 *kept) {
    float y[PIECES_MOST][PIECE];
    switch (columns->format) {
    case CUDA_f32: load_pieces(pieces, CUDA_f32, columns->data, 1, p, y); break;
    case CUDA_bf16: load_pieces(pieces, CUDA_bf16, columns->data, 1, p, y); break;
    default: load_pieces(pieces, CUDA_f16, columns->data, 1, p, y);
    }
    EACH_PIECE(c) {
        kept[2 * c * blockDim.x] = make_float4(y[c][0], y[c][1], y[c][2], y[c][3]);
        kept[(2 * c + 1) * blockDim.x] = make_float4(y[c][4], y[c][5], y[c][6], y[c][7]);
    }
}
INLINE void use_columns(const int pieces, const bool multiplies, const float4 *kept, float x[][PIECE]) {
    EACH_PIECE(c) {
        float4 low = kept[2 * c * blockDim.x], high = kept[(2 * c + 1) * blockDim.x];
        float y[PIECE] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        EACH_OF_PIECE(i) x[c][i] = multiplies ? x[c][i] * y[i] : x[c][i] + y[i];
    }
}

/* The formats of blocks that entries of three pieces have code for. */
INLINE void store_usual(const int pieces, const int format, const row_target *t, const row_place *p, const row_values *values) {
    const second_level none = {1, 1};
    if (t->format == CUDA_mxfp8) store_blocks(pieces, CUDA_e4m3, CUDA_e8m0, 4, format, false, true, t, p, values, none, NULL);
    else store_blocks(pieces, CUDA_e4m3, CUDA_f32, 16, format, false, true, t, p, values, none, NULL);   /* fp8_1x128 */
}

/* rooms: of even and odd rows, as there may be but one barrier in a row. */
INLINE void norm_dense(const int pieces, const int format, const bool centred, const bool has_residual, const norm_rows_arguments *a, float4 *kept, row_room (*rooms)[4]) {
    const row_division *d = &a->division;
    const int sweep = (int)gridDim.x * d->parts_of_block;
    const second_level none = {1, 1};
    row_place at = place_part(d);
    float4 *weight = kept + threadIdx.x, *bias = weight + (a->has_weight ? 2 * pieces * blockDim.x : 0);
    const uint4 *from = dense_row(a->x.data, a, &at, 1);
    const int64_t step = sweep * (d->nest.strides[1][0] / PIECE);
    uint4 next[PIECES_MOST];
    grid_release();
    grid_wait();
    load_words(pieces, from, &at, next);
    if (a->has_weight) keep_columns(pieces, &a->weight, &at, weight);
    if (a->has_bias) keep_columns(pieces, &a->bias, &at, bias);
#pragma unroll 1
    for (int first = (int)first_part(d), odd = 0; first < d->rows; first += sweep, at.row += sweep, odd ^= 1) {
        float x[PIECES_MOST][PIECE];
        row_values values;
        if (at.row >= d->rows) at.cols = 0;   /* short rows of the last sweep */
        row_place p = at;
        p.first = anew(at.first);
        EACH_PIECE(c) unpack_halves(format, next[c], x[c]);
        EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] = held(x[c][i]);
        from += step;
        row_place ahead = p;
        if (p.row + sweep >= d->rows) ahead.cols = 0;
        load_words(pieces, from, &ahead, next);
        if (has_residual) add_dense_residual(pieces, format, a, &p, x);
        moments m = row_moments(pieces, centred, a, &p, x, rooms[odd]);
        EACH_PIECE(c) EACH_OF_PIECE(i) x[c][i] = fmaf(x[c][i], m.scale, m.low * m.scale);
        if (a->has_weight) use_columns(pieces, true, weight, x);
        if (a->has_bias) use_columns(pieces, false, bias, x);
        zero_tail(pieces, &p, x);
        round_values(pieces, format, x, &values);
        if (a->out.rows.scale_format == CUDA_FORMAT_COUNT) store_words(pieces, dense_row(a->out.rows.data, a, &p, 0), &p, values.words);
        else if (pieces == PIECES_MOST) store_quantized(pieces, format, false, true, &a->out, &p, &values, none, &rooms[odd][3]);
        else store_usual(pieces, format, &a->out, &p, &values);
    }
}

/* The registers leave a multiprocessor room for NORM_DENSE_THREADS (norm_rows.h): with rows of 4096 they have 40 KiB of loads on their way all the time. */
#define DENSE(name, format, centred, has_residual, pieces)                                                                      \
    extern "C" __global__ void __maxnreg__(NORM_DENSE_REGISTERS(pieces, has_residual)) name(const __grid_constant__ norm_rows_arguments arguments) { \
        __shared__ row_room rooms[2][4];                                                                                        \
        extern __shared__ float4 kept[];                                                                                        \
        norm_dense(pieces, format, centred, has_residual, &arguments, kept, rooms);                                             \
    }
#define DENSE_ENTRIES(format, of_pieces, pieces)                                              \
    DENSE(norm_dense_##format##_rms##of_pieces, CUDA_##format, false, false, pieces)          \
    DENSE(norm_dense_##format##_rms_sum##of_pieces, CUDA_##format, false, true, pieces)       \
    DENSE(norm_dense_##format##_layer##of_pieces, CUDA_##format, true, false, pieces)         \
    DENSE(norm_dense_##format##_layer_sum##of_pieces, CUDA_##format, true, true, pieces)

DENSE_ENTRIES(bf16, , 4)
DENSE_ENTRIES(f16, , 4)
DENSE_ENTRIES(bf16, _3, 3)
