/* Products of a warpgroup: what isa/wgmma.c notes when one is issued, and wgmma_product.c computes from. */
#ifndef SIM_ISA_WGMMA_H
#define SIM_ISA_WGMMA_H

#include "decode.h"
#include "sim/machine/order.h"

enum { WARPGROUP = 4, WGMMA_MAX_N = 256 };

typedef struct product_op {
    uint32_t a_registers[4];       /* or SIM_NO_ROW */
    uint32_t a_descriptor, b_descriptor, scale_d;
    uint32_t metadata;             /* of a sparse A; else SIM_NO_ROW */
    int selector;                  /* which lanes of four have the metadata */
    uint32_t *d;                   /* count rows */
    int *d_watch, a_watch[4];      /* their numbers among the watched; -1: none */
    int count;                     /* of d */
    ptx_type result;
    int code_bytes, k;             /* of an element, and how many a line has; single bits come 32 to a code of four bytes */
    bool single_bits;
    bool negate_a, negate_b, transposed_a, transposed_b;
} product_op;

/* Issued, with what was in the descriptors. */
struct sim_product {
    const sim_op *op;
    sim_frame *frame;
    uint8_t *registers, *constants;
    uint64_t a, b;
    bool accumulate;
    uint32_t group;
    uint64_t number;               /* of the warp's products; it has the same in the other warps of the warpgroup */
    bool computed;                 /* another warp has waited for it */
    uint32_t clock[ORDER_CLOCKS]; /* what came before its issue: in this warp, in all four once they have issued it, and in whoever has computed it (order.h) */
    uint32_t metadata[LANES];      /* of a sparse A */
};

/* The warpgroup's product of that number in one of its warps: all have issued it, or another has not, and this one not waited for it. */
static inline struct sim_product *wgmma_same_product(const sim_warp *w, uint64_t number) { return &w->products[number - w->products[0].number]; }
/* All rows of an issued product, for the first warp that waits for it; and the other warps, whose results may be touched behind their own waits, know that this one has
 * waited. false: a finding. */
bool wgmma_compute(sim_warp *w, const struct sim_product *issued);

#endif
