/* Operands of wgmma as codes, line after line: from shared memory, from registers, and a sparse A laid out by its metadata. */
#ifndef SIM_ISA_WGMMA_OPERAND_H
#define SIM_ISA_WGMMA_OPERAND_H

#include "wgmma.h"

enum { ROWS = 16, MAX_K = 64 };

/* Lines along m or n, of k codes each; lost: some of the line's bytes were never written. */
typedef struct operand { uint32_t code[WGMMA_MAX_N][MAX_K]; bool lost[WGMMA_MAX_N]; uint64_t digest; } operand;

/* Which columns of a sparse row there are, as bits. */
typedef struct pattern { uint64_t row[ROWS]; } pattern;

/* rows x k codes from shared memory; false: a finding. What nobody ever wrote is NaN: kernels compute rows that they do not store, and a result that is
 * stored shows it. */
bool wgmma_read_operand(sim_warp *w, const sim_op *op, int bytes, uint64_t descriptor, bool transposed, int first, int rows, int k, operand *o);
/* A's fragment of a warp. */
void wgmma_read_registers(const product_op *p, const struct sim_product *issued, operand *o);
/* Lays the k / 2 elements of each row of a sparse A out at the places that the metadata says. false: a finding. */
bool wgmma_spread(sim_warp *w, const struct sim_product *issued, operand *a, pattern *there);

#endif
