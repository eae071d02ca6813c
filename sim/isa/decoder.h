/* The decoder of one function, shared by decode.c, decode_operands.c and rows.c and by nobody else. Instructions' families see decode.h.
 * The code of a function that is called is decoded where the call is, so these call each other: decode.c (functions), match.c (the row and family of an instruction),
 * rows.c (which registers share a row), decode/flow.c (calls). */
#ifndef SIM_ISA_DECODER_H
#define SIM_ISA_DECODER_H

#include "decode.h"

typedef struct constant { uint64_t low; uint8_t bytes; uint32_t row; } constant;

typedef struct sim_decoder {
    dw_context *context;
    ptx_module *module;
    ptx_function *function;
    sim_code *code;
    arena *arena;
    uint32_t *rows;                    /* of the function's registers */
    size_t op_capacity;
    constant *constants;
    size_t constant_count, constant_capacity, constant_room;
    size_t given_capacity;
    uint32_t carry;                    /* SIM_NO_ROW: not used */
    sim_use *touched;                   /* which registers instructions use */
    size_t touched_count, touched_capacity;
    size_t watched_capacity;
    size_t *first_op;                  /* of each instruction: index of the first op it became */
    size_t formal_bytes;               /* rows of formals, in front of all others */
    int depth;
} sim_decoder;

sim_op *decoder_add_op(sim_decoding *d);                               /* NULL: no memory */
uint32_t decoder_new_row(sim_decoder *k, ptx_type type);
dw_status decoder_read_operands(sim_decoding *d);                      /* the operands of an instruction that was matched, as its row says */
/* Gives the function's registers their rows, once it was decoded with a row for each: formals keep theirs. decode/rows.c says who shares one. */
dw_status decoder_share_rows(sim_decoder *k);
/* Sorts the watched rows, each once, so that sim_watched finds them. */
void decoder_sort_watched(sim_code *code);

#endif
