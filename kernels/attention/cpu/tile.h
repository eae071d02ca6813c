/* A tile of attention on the CPU: query rows that share a kv head, and what a task works in (tile.c). */
#ifndef KERNELS_ATTENTION_CPU_TILE_H
#define KERNELS_ATTENTION_CPU_TILE_H

#include "kernels/attention/cpu/blocks.h"

enum {
    TILE_ROWS = 48,       /* rows of a task: enough to make up for transposing k */
    WIDTH = 256,          /* of q and k that are multiplied in one go */
    SCALED = 128,         /* the same where scales are factors: those of one block */
    OUT_WIDTH = 512,      /* columns of v that one pass over the keys gives */
    COLUMNS = 32          /* what rows of sums are filled up to */
};

/* A call, from its operands alone. */
typedef struct attention {
    const flash_isa *isa;
    const dw_tensor *q, *k, *v, *sink, *out, *lse;
    dw_tensor blocks[3];                          /* q, k and v where they are in blocks */
    bool has_factors, has_value_factors;          /* the scales of k, and of q, are factors of scores, those of v of weights */
    float second_v;                               /* what results are to be multiplied with */
    op_attention_view view;
    int64_t shared, rows, d, e, keys;             /* shared: heads of q for each of k; rows: shared * s; keys: what a row of the cache has room for */
    int64_t tiles, tile_rows;                     /* tiles of one kv head */
    int64_t tiles_per_task, tile_count;           /* of all heads */
    bool heads_inside;                            /* few rows: tiles of the same rows follow each other, head by head */
    float scale, softcap, product_scale;          /* product_scale: of sums of products, in which a second level is left out */
} attention;

/* Keys of a block from its key `key` on in slots that follow each other. row OP_NOWHERE: their page is not there. */
typedef struct stretch { int64_t row, slot; int key, count; } stretch;

/* Rows of a tile that read one row of the cache. */
typedef struct part {
    int64_t batch, cache, group, first, end;      /* of q and out; of k, v, mask and bias; first row; the end of what any row sees */
    int rows;
    op_attention_span seen;                       /* by any row */
} part;

/* FLASH_KEYS positions from first on, as far as there are keys. there: 0 where a page is not, which gaps says of some. */
typedef struct block {
    int64_t first, group;
    int keys, count;              /* count: of stretches */
    bool gaps;
    uint8_t there[FLASH_KEYS];
    stretch stretches[FLASH_KEYS];
} block;

/* What a task works in. */
typedef struct tile {
    const attention *call;
    part at;
    int64_t column, columns, out_stride;          /* of v, in this pass */
    op_attention_span spans[TILE_ROWS];
    flash_row state[TILE_ROWS];
    float factors[TILE_ROWS], ones[TILE_ROWS];
    union { float floats[TILE_ROWS * WIDTH]; uint32_t pairs[TILE_ROWS * WIDTH / 2]; uint16_t codes[TILE_ROWS * WIDTH]; } q;
    union { float floats[WIDTH * FLASH_KEYS]; uint32_t pairs[WIDTH / 2 * FLASH_KEYS]; } keys;
    union { float floats[FLASH_TURN * WIDTH]; uint16_t codes[FLASH_TURN * WIDTH]; } loaded;
    union { float floats[FLASH_KEYS * FLASH_COLUMNS]; uint16_t codes[FLASH_KEYS * FLASH_COLUMNS]; } v;
    uint32_t weights[TILE_ROWS * FLASH_PAIRS];    /* of pairs of keys, rounded */
    float scores[TILE_ROWS * FLASH_KEYS], out[TILE_ROWS * OUT_WIDTH];
    float products[TILE_ROWS * FLASH_KEYS], scales[FLASH_KEYS];   /* where scales are factors: products of one block, or weights times scales; scales of keys */
    block blocks[2], behind;                      /* that which is worked on, and the next; the first one of the next part, with no keys where there is none */
} tile;

/* The block of keys that begins at position first, for the rows of the part. */
void attention_find_block(const attention *call, const part *at, int64_t first, block *b);
/* All columns of v for the rows of the part that t->at is. */
void attention_run_part(tile *t);

#endif
