/* The arguments of attention by tcgen05, and the places in shared and tensor memory that its two halves agree on. Plain C that nvcc takes, too. */
#ifndef KERNELS_ATTENTION_TCGEN05_TCGEN05_H
#define KERNELS_ATTENTION_TCGEN05_TCGEN05_H

#include "kernels/attention/arguments.h"

/* A unit is two tiles of 128 queries of a head; a block is 128 keys. Operands lie in columns of 64 elements, 128 bytes of each row. */
enum { ATTEND_ROWS = 128, ATTEND_TILES = 2, ATTEND_KEYS = 128, ATTEND_COLUMN = 64, ATTEND_COLUMN_BYTES = ATTEND_ROWS * 128 };
/* Warps: four for the softmax of each tile, four that correct sums, and one each that multiplies, loads, stores and says which units. */
enum { ATTEND_THREADS = 512, ATTEND_SHARED_BYTES = 227 * 1024, ATTEND_MOST_STAGES = 8, ATTEND_UNITS = 3 };

/* Formulas, of numbers that device code knows when it is compiled. */
#ifdef __CUDACC__
#define ATTEND_FORMULA static constexpr __host__ __device__ __forceinline__
#else
#define ATTEND_FORMULA static inline
#endif

/* A row of tiles.def. emulated: of 8 pairs of a row's powers of 2 so many are made by multiplying and adding. */
typedef struct attend_sizes { int width, value_width, emulated, scores, texts; } attend_sizes;

/* ---- shared memory: q [2][128, width]; k and v in turn, stages of [128, the wider of both]; results [2 or, where else no three stages fit, 1][128, value_width]; all in columns of 64, swizzled by
 * 128 bytes ---- */

ATTEND_FORMULA int attend_columns(int width) { return (width + ATTEND_COLUMN - 1) / ATTEND_COLUMN; }
ATTEND_FORMULA int attend_q_bytes(const attend_sizes s) { return attend_columns(s.width) * ATTEND_COLUMN_BYTES; }
ATTEND_FORMULA int attend_out_bytes(const attend_sizes s) { return attend_columns(s.value_width) * ATTEND_COLUMN_BYTES; }
ATTEND_FORMULA int attend_stage_bytes(const attend_sizes s) { return attend_columns(s.width > s.value_width ? s.width : s.value_width) * ATTEND_COLUMN_BYTES; }
/* Behind them: what softmax says to corrections, 8 bytes a row; published units, 32 bytes and two barriers each; barriers: two a stage, 16 of each tile; the address of tensor memory. */
ATTEND_FORMULA int attend_word_bytes(int stages) { return ATTEND_TILES * ATTEND_ROWS * 8 + ATTEND_UNITS * 48 + stages * 16 + ATTEND_TILES * 16 * 8 + 16; }
ATTEND_FORMULA int attend_room(const attend_sizes s, int outs) { return ATTEND_SHARED_BYTES - ATTEND_TILES * attend_q_bytes(s) - outs * attend_out_bytes(s) - attend_word_bytes(ATTEND_MOST_STAGES); }
ATTEND_FORMULA int attend_outs(const attend_sizes s) { return attend_room(s, ATTEND_TILES) >= 3 * attend_stage_bytes(s) ? ATTEND_TILES : 1; }
ATTEND_FORMULA int attend_stages(const attend_sizes s) {
    const int fit = attend_room(s, attend_outs(s)) / attend_stage_bytes(s);
    return fit < ATTEND_MOST_STAGES ? fit : ATTEND_MOST_STAGES;
}
ATTEND_FORMULA int attend_shared_bytes(const attend_sizes s) {
    return ATTEND_TILES * attend_q_bytes(s) + attend_outs(s) * attend_out_bytes(s) + attend_stages(s) * attend_stage_bytes(s) + attend_word_bytes(attend_stages(s));
}

/* ---- columns of tensor memory ----
 *
 *   [scores 0: 128][scores 1: 128][sums 0: value_width][sums 1: value_width]
 *
 * A tile's weights, two of 16 bits to a column, lie in the first half of its scores, which are in registers by then. */
enum { ATTEND_TMEM = 512, ATTEND_SUMS = ATTEND_TILES * ATTEND_KEYS, ATTEND_SUMS_STEP = 128 };

/* Maps: axes width, sequence, heads, batches; boxes of 64 columns by 128 rows, of k and v in pages by those of a page where it has fewer. */
typedef struct attention_tcgen05_arguments {
    ATTENTION_ALIGNED(128) uint64_t map_q[16];
    uint64_t map_k[16], map_v[16], map_out[16];
    attention_arguments call;
    int32_t units;                /* of the queries of one head */
    int32_t heads_together;       /* heads, of all batches, whose units are in flight at a time, so that many read the same k and v */
    int32_t begin_shift, end_shift;   /* without rows and positions query i sees keys from i + begin_shift up to i + end_shift, of those that there are */
    uint32_t formats;             /* the instruction descriptor's types of the operands */
    cuda_array lse;               /* [b,h,s], where has_lse */
    int64_t lse_strides[3];
    int32_t has_lse;
} attention_tcgen05_arguments;

#endif
