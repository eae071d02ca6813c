/* What the families of instructions may ask of the decoder while one of their forms is being decoded. */
#ifndef SIM_ISA_DECODE_H
#define SIM_ISA_DECODE_H

#include "sim/machine/machine.h"

/* The families' functions that rows of ptx.def name: the handler for what was matched; NULL, with d->why, for a combination that does not exist. */
#define PTX(pattern, types, operands, family, evidence, section, meaning) sim_handler select_##family(sim_decoding *d);
#include "ptx.def"
#undef PTX

/* The next row behind after (NULL: the first of all) that describes the decoded instruction's opcode; *matched and d hold its types, modifiers and shape. */
const sim_form *sim_match(sim_decoding *d, const sim_form *after, sim_op *matched);
/* Row of an operand that is read, as a value of that type; its register has the type's size. */
dw_status sim_decode_source(sim_decoding *d, const ptx_operand *operand, ptx_type type, uint32_t *row);
/* Row that is written; of "_" one that nobody reads. */
dw_status sim_decode_target(sim_decoding *d, const ptx_operand *operand, ptx_type type, uint32_t *row);
/* The operand's type by its register; PTX_NO_TYPE of others. */
ptx_type sim_decode_register_type(const sim_decoding *d, const ptx_operand *operand);
dw_status sim_decode_fail(const sim_decoding *d, dw_status status, const char *format, ...) BASE_PRINTF(3, 4);
/* Puts another instruction before (call it first) the one that is decoded: returns it, zeroed, or NULL. d->op moves. */
sim_op *sim_decode_before(sim_decoding *d);
void *sim_decode_new(sim_decoding *d, size_t bytes);
/* [base + offset], an instruction's only address: sets the op's offset, space and address_wide, and *row to the base. */
dw_status sim_decode_address(sim_decoding *d, const ptx_operand *operand, uint32_t *row);
/* One of several addresses of an instruction; extra items in its brackets are the family's. */
typedef struct sim_address { uint32_t row; int64_t offset; bool wide, of_cluster; uint8_t space; } sim_address;
dw_status sim_decode_place(sim_decoding *d, const ptx_operand *operand, ptx_space space, sim_address *address);
static inline uint64_t sim_address_of(sim_warp *w, const sim_address *a, int lane) {
    if (a->wide) return ((const uint64_t *)sim_row(w, a->row))[lane] + (uint64_t)a->offset;
    return (uint32_t)(((const uint32_t *)sim_row(w, a->row))[lane] + (uint32_t)a->offset);
}
/* Sets op->small to the modifier that says how red and its like combine; false, with d->why: the type has no such operation. */
bool sim_decode_combination(sim_decoding *d);
/* The code of a function that is called. */
dw_status sim_decode_function(sim_decoding *d, ptx_function *function, sim_code **code);
/* The row is used by asynchronous products: other instructions that touch it are checked. */
dw_status sim_decode_watch(sim_decoding *d, uint32_t row);
/* Its number among the watched, once the function is decoded; -1: none. */
int sim_watched(const sim_code *code, uint32_t row);
/* Of wgmma: what checks such instructions, and what gives products the numbers of their registers. */
void sim_number_products(sim_code *code);
sim_flow sim_touch(sim_warp *w, const sim_op *op, uint32_t mask);
uint32_t sim_decode_carry(sim_decoding *d);   /* the row of the condition code's carry */

#endif
