/* The arguments of attention by tcgen05, and the places in shared and tensor memory that its two halves agree on. Plain C that nvcc takes, too. */
#ifndef KERNELS_ATTENTION_TCGEN05_TCGEN05_H
#define KERNELS_ATTENTION_TCGEN05_TCGEN05_H

#include "kernels/attention/arguments.h"

/* A unit is two tiles of 128 queries of a head, of wide heads one; a block is 128 keys. Operands lie in columns of 64 elements, 128 bytes of each row. There are two places for scores: of two tiles each has
 * one, of one tile the blocks take turns. Blocks of heads more than 128 wide come in pieces of 16 KB: of keys 64 columns each, of values as many rows. */
enum { ATTEND_ROWS = 128, ATTEND_TILES = 2, ATTEND_KEYS = 128, ATTEND_COLUMN = 64, ATTEND_COLUMN_BYTES = ATTEND_ROWS * 128 };
/* Warps: four for the softmax of each tile, four that correct sums, and one each that multiplies, loads, stores and says which units. */
enum { ATTEND_THREADS = 512, ATTEND_SHARED_BYTES = 227 * 1024, ATTEND_MOST_STAGES = 8, ATTEND_UNITS = 3 };
/* Scales of mxfp8: elements of one, bytes of those of 128 rows. */
enum { ATTEND_SCALED = 32, ATTEND_SCALE_TILE = 512 };

/* Formulas, of numbers that device code knows when it is compiled. */
#ifdef __CUDACC__
#define ATTEND_FORMULA static constexpr __host__ __device__ __forceinline__
#else
#define ATTEND_FORMULA static inline
#endif

/* What q and k are: 16 bits as values are; e4m3, of q each row with an fp32 scale, of k 128 of them; e4m3 with a scale to 32 elements, which the matrix instructions apply. Codes are of heads up to 128 wide. */
enum { ATTEND_HALVES, ATTEND_E4M3, ATTEND_MXFP8 };

/* A row of tiles.def or codes.def. emulated: of 8 pairs of a row's powers of 2 so many are made by multiplying and adding; blocks: 1: results are in blocks. */
typedef struct attend_sizes { int width, value_width, emulated, scores, texts, codes, blocks; } attend_sizes;

/* ---- shared memory: q [2][128, width], of wide heads [128, width]; k and v in turn, stages of [128, the wider of both], or of a piece; results [2 or, of pieces, 1][128, half of value_width], which is a column at least; all
 * in columns of 64, swizzled by 128 bytes. Codes take one column, whatever their width. With mxfp8 scales of q [2], and of the keys of each stage, as tiles of 128 rows x 4. Results in blocks are staged whole ---- */

ATTEND_FORMULA int attend_is_wide(const attend_sizes s) { return s.value_width > 128; }
/* Tiles of a unit, and its queries; pieces of a block. */
ATTEND_FORMULA int attend_tiles(const attend_sizes s) { return attend_is_wide(s) ? 1 : ATTEND_TILES; }
ATTEND_FORMULA int attend_unit_rows(const attend_sizes s) { return attend_tiles(s) * ATTEND_ROWS; }
ATTEND_FORMULA int attend_columns(int width) { return (width + ATTEND_COLUMN - 1) / ATTEND_COLUMN; }
ATTEND_FORMULA int attend_in_pieces(const attend_sizes s) { return s.width > 128; }
ATTEND_FORMULA int attend_key_pieces(const attend_sizes s) { return attend_in_pieces(s) ? attend_columns(s.width) : 1; }
ATTEND_FORMULA int attend_value_pieces(const attend_sizes s) { return attend_in_pieces(s) ? attend_columns(s.value_width) : 1; }
/* Rows of a piece of values. */
ATTEND_FORMULA int attend_value_keys(const attend_sizes s) { return ATTEND_KEYS / attend_value_pieces(s); }
/* Columns of 128 bytes of q, and of k. */
ATTEND_FORMULA int attend_q_columns(const attend_sizes s) { return s.codes != ATTEND_HALVES ? 1 : attend_columns(s.width); }
ATTEND_FORMULA int attend_q_bytes(const attend_sizes s) { return attend_q_columns(s) * ATTEND_COLUMN_BYTES; }
/* Columns of results that are staged at a time: a part; parts of a tile. */
ATTEND_FORMULA int attend_out_columns(const attend_sizes s) { return s.blocks ? attend_columns(s.value_width) : (attend_columns(s.value_width) + 1) / 2; }
ATTEND_FORMULA int attend_out_parts(const attend_sizes s) { return attend_columns(s.value_width) / attend_out_columns(s); }
ATTEND_FORMULA int attend_out_bytes(const attend_sizes s) { return attend_out_columns(s) * ATTEND_COLUMN_BYTES; }
ATTEND_FORMULA int attend_stage_bytes(const attend_sizes s) {
    const int columns = attend_q_columns(s) > attend_columns(s.value_width) ? attend_q_columns(s) : attend_columns(s.value_width);
    return attend_in_pieces(s) ? ATTEND_COLUMN_BYTES : columns * ATTEND_COLUMN_BYTES;
}
ATTEND_FORMULA int attend_scale_bytes(const attend_sizes s, int stages) { return s.codes == ATTEND_MXFP8 ? (ATTEND_TILES + stages) * ATTEND_SCALE_TILE : 0; }
/* Behind them: what softmax says to corrections, 8 bytes a row; published units, 32 bytes and two barriers each; barriers: two a stage, 16 of each tile; the address of tensor memory. */
ATTEND_FORMULA int attend_word_bytes(int stages) { return ATTEND_TILES * ATTEND_ROWS * 8 + ATTEND_UNITS * 48 + stages * 16 + ATTEND_TILES * 16 * 8 + 16; }
/* Parts of results that are staged: of pieces one, as the other's room is one more piece; those in blocks are stored by who stages them. */
ATTEND_FORMULA int attend_outs(const attend_sizes s) { return s.blocks || attend_in_pieces(s) ? 1 : 2; }
ATTEND_FORMULA int attend_stages(const attend_sizes s) {
    const int besides = attend_tiles(s) * attend_q_bytes(s) + attend_outs(s) * attend_out_bytes(s) + attend_scale_bytes(s, ATTEND_MOST_STAGES) + attend_word_bytes(ATTEND_MOST_STAGES);
    const int fit = (ATTEND_SHARED_BYTES - besides) / attend_stage_bytes(s);
    return fit < ATTEND_MOST_STAGES ? fit : ATTEND_MOST_STAGES;
}
ATTEND_FORMULA int attend_shared_bytes(const attend_sizes s) {
    const int stages = attend_stages(s);
    return attend_tiles(s) * attend_q_bytes(s) + attend_outs(s) * attend_out_bytes(s) + stages * attend_stage_bytes(s) + attend_scale_bytes(s, stages) + attend_word_bytes(stages);
}

/* ---- columns of tensor memory ----
 *
 *   [scores 0: 128][scores 1: 128][sums 0: value_width][sums 1: value_width], of wide heads sums 0 alone
 *
 * A tile's weights, two of 16 bits to a column, lie in the first half of its scores, which are in registers by then. With mxfp8 the other half holds scales in the meantime: those of q and k by which
 * the other tile's next scores are multiplied. */
enum { ATTEND_TMEM = 512, ATTEND_SUMS = ATTEND_TILES * ATTEND_KEYS, ATTEND_SUMS_STEP = 128, ATTEND_SCALES_AT = ATTEND_KEYS / 2, ATTEND_SCALE_COLUMNS = 4 };

/* A result in blocks of so many columns, the heads of a query side by side: 128, fp32 scales, or 32, scales in e8m0. scales_of_row: of all heads. */
typedef struct attend_blocks {
    uint64_t scales;
    int64_t out_row_bytes, scales_of_row;
    int32_t block, unused;
} attend_blocks;

/* Maps: axes width, sequence, heads, batches; boxes of 64 columns, of codes 128, by 128 rows, of values by those of a piece, of k and v in pages by those of a page where it has fewer. */
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
    attend_blocks blocks;
    uint64_t q_scales, k_scales;  /* of codes: of e4m3 fp32, [b,h,s] and [b,h of k,(t + 127) / 128]; of mxfp8 a byte, [b,h,s or t,(width + 31) / 32] */
} attention_tcgen05_arguments;

#endif
