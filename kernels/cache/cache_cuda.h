/* The arguments of the GPU kernels that bring tokens into caches. */
#ifndef KERNELS_CACHE_CUDA_H
#define KERNELS_CACHE_CUDA_H

#include "kernels/gpu/arguments.h"

/* A norm of each head's row in front of what turns it. The data of weight or bias is 0 where it is absent. */
typedef struct cache_norm {
    cuda_array weight, bias;      /* of 16 bits or f32, side by side */
    float eps, by_count;
    int32_t is_there, centred;
} cache_norm;

/* Heads of from's tokens, each of them units of work: in vectors eight elements, with their partners where they are turned and threads go by themselves, or 16 bytes; else an element, or a pair. Strides
 * count elements; of what is moved in words, words; in vectors to a cache in blocks those of `to` count rows. lanes: so many threads share a head's row, eight elements each, a power of two up to 32: behind
 * norms and into blocks; 0: each thread goes by itself. Parts of lanes have whole warps: span counts a part's units and those behind that no head has. */
typedef struct cache_part {
    cuda_array to, from;
    cache_norm norm;
    int64_t heads, units, span, cols;
    int64_t to_row, to_head, to_token, to_step, from_head, from_token, from_step;   /* row: of a cache; token: also from slot to slot */
    int32_t lanes, cached, turned;   /* it goes to the place of its row and position; the first width elements are turned */
} cache_part;

enum { CACHE_PARTS = 3, CACHE_TOKENS = 32 };
/* Token i goes into row[i] of each cache at position[i] mod slots; with a table into page table[row[i],position[i] / slots], of the rows that caches have then. A block takes together tokens at a time, CACHE_TOKENS at most. */
typedef struct cache_arguments {
    cuda_array row, position, table, cosine, sine;
    int64_t rows, slots, tokens, row_step, position_step;
    int64_t table_rows, table_pages, table_strides[2];   /* of the table, where there is one */
    int64_t cosine_token, cosine_step, sine_token, sine_step, width;
    int64_t units;                /* of a token, in all parts */
    int32_t together, interleaved, has_table, count, angles_kept;   /* angles_kept: a block has those of its tokens in shared memory */
    int32_t slot_shift, places_given;   /* slots are 2^slot_shift, -1: no power of two; rows, positions and pages are inputs of the run, which no launch writes */
    cache_part parts[CACHE_PARTS];
    cuda_fault_place fault;
} cache_arguments;

/* Parts that go into caches in blocks. By cache_blocks.cu units are lanes, 32 for each CACHE_CHUNK columns of a head, and strides of `to` count elements of a cache that lies as a whole. In vectors a part
 * that goes elsewhere has no columns of a block. */
enum { CACHE_CHUNK = 128, CACHE_COPIES = 3 };
typedef struct cache_blocks_arguments {
    cache_arguments call;
    cuda_rows to[CACHE_PARTS];    /* of each part */
} cache_blocks_arguments;

/* A token that attention writes (attention/decode/token.cuh): its parts are these, of which queries may be missing, in lanes but for values. */
enum { CACHE_TOKEN_KEYS, CACHE_TOKEN_VALUES, CACHE_TOKEN_QUERIES };

/* Elements, scales and second levels. */
typedef struct cache_copy_arguments { uint64_t to[CACHE_COPIES], from[CACHE_COPIES]; int64_t bytes[CACHE_COPIES]; } cache_copy_arguments;

#endif
