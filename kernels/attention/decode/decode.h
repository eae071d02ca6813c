/* The arguments of the decoding attention kernel: read by its host half, which fills them in, and by the device half. Plain C that nvcc takes, too. */
#ifndef KERNELS_ATTENTION_DECODE_DECODE_H
#define KERNELS_ATTENTION_DECODE_DECODE_H

#include "kernels/attention/arguments.h"
#include "kernels/attention/in_blocks.h"
#include "kernels/cache/cache_cuda.h"

/* Of a block: warps, rows (queries x heads), keys of a warp at a time; blocks that share a tile's keys at most. */
enum { DECODE_WARPS = 4, DECODE_ROWS = 16, DECODE_KEYS = 16, DECODE_SPLITS = 16 };
/* Of so many queries at most keys are asked for before the launches in front have ended: two of a lane. */
enum { DECODE_EARLY = 64 };
/* Rows of sums in shared memory are that many floats longer than values are wide, so that lanes write to different banks. */
enum { DECODE_PAD = 4 };
/* Shared memory for the key and the value of a token that the kernel writes itself, half of it each. */
enum { DECODE_OWN_BYTES = 2 * 256 * 2 };
/* Shared memory besides the ring: barriers; of each warp the largest scores and sums of weights. */
enum { DECODE_STATE_BYTES = 8 * DECODE_ROWS * DECODE_WARPS, DECODE_BARRIER_BYTES = 8 * DECODE_WARPS * 8 };

/* What keys and values are in: numbers of 16 bits, or blocks. */
enum { DECODE_PLAIN, DECODE_E4M3, DECODE_MXFP8, DECODE_NVFP4 };
/* Of blocks: bytes of a row of codes in shared memory, which narrower heads leave empty at its end, of those of a byte and of any; of the scales of a key; of those of a stage, a box of them for keys and one for
 * values. */
enum { DECODE_CODES = 128, DECODE_SCALES = 128, DECODE_SCALE_BYTES = 2 * DECODE_SCALES };
#define DECODE_ROW_BYTES(codes) ((codes) == DECODE_NVFP4 ? DECODE_CODES / 2 : DECODE_CODES)
#define DECODE_SCALE_ROW_BYTES(codes, width) ((codes) == DECODE_E4M3 ? 4 : (width) / ((codes) == DECODE_MXFP8 ? 32 : 16))

/* Maps: axes width, sequence, heads, batches; boxes of 64 columns by DECODE_KEYS. Of keys and values in blocks boxes of DECODE_ROW_BYTES by DECODE_KEYS, and maps of scales in bytes: axes scales of a
 * head, heads, batches, boxes of those of DECODE_KEYS. */
typedef struct attention_decode_arguments {
    ATTENTION_ALIGNED(128) uint64_t map_k[16];
    uint64_t map_v[16], map_k_scales[16], map_v_scales[16];
    attention_arguments call;
    attention_blocks blocks;
    int32_t splits;               /* blocks of a cluster */
    int32_t parts;                /* blocks, by heads, of the heads that share k and v */
    int32_t bunches;              /* of queries of a batch that are taken together */
    int32_t queries;              /* taken together, with all heads that share k and v; 1 where queries have rows or positions */
    int32_t turns_queries;        /* of a token that the kernel writes, on the device alone: its queries are a part of it, else operand q */
    int32_t early;                /* rows and positions, in i64, and the table are there before the launches in front have ended, which write the slots of these queries at most of the caches */
} attention_decode_arguments;

/* What each block of an entry that writes its token reads, side by side in the order in which it is wanted: each line of arguments that is read first is a miss, which a token alone has nothing to hide behind. The
 * same as in decode and token of attention_token_arguments, where what only some calls want is read. */
typedef struct attention_token_row { uint64_t from; int64_t from_head; cuda_array weight, bias; float eps, by_count; int32_t is_normed, centred, turned, unused; } attention_token_row;
typedef struct attention_token_cache { uint64_t to; int64_t to_row, to_head, to_token; } attention_token_cache;
typedef struct attention_token_first {
    uint64_t row, position;
    cuda_array table;
    int64_t table_strides[2], keys, cache_rows, window, ahead;
    int32_t page, pages, causal, shared_heads, splits, turns_queries, width, value_width;
    float scale;
    int32_t angle_width, interleaved, has_sink;
    cuda_array cosine, sine;
    attention_token_row queries, key;
    uint64_t value;
    int64_t value_head, out_head, out_col;
    cuda_array out;
    attention_token_cache caches[2];
} attention_token_first;

/* Of an entry that writes the token itself. */
typedef struct attention_token_arguments { attention_token_first first; attention_decode_arguments decode; cache_arguments token; } attention_token_arguments;

#endif
