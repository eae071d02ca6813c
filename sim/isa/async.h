/* A copy under way, and what those who issue copies share. */
#ifndef SIM_ISA_ASYNC_H
#define SIM_ISA_ASYNC_H

#include "decode.h"
#include "sim/machine/tensor_map.h"

/* Of a tensor: map and coordinates; of bytes: address and count; between CTAs, or of registers: see below. */
struct sim_async {
    sim_warp *warp;
    const sim_op *op;
    int lane;
    bool store, tensor;
    bool early;                    /* it was issued before griddepcontrol.wait (early.c) */
    bool arrival;                  /* no copy of its own: cp.async of the lane, before serial, arrive at mbarrier */
    uint64_t serial;
    bool commit;                   /* no copy at all: a tcgen05.commit arrives at mbarrier */
    uint32_t *since;               /* what came before that (order.h), its own; else NULL */
    bool response;                 /* of registers: the words, to shared memory */
    bool of_launch;                /* the words say what cluster launch control has done */
    uint32_t words[4];
    sim_cta *from;                 /* of another place in the cluster's shared memory: whose, and source the offset there; NULL: of global memory */
    uint64_t source;
    bool reduces;                  /* it combines with what is there, as the op's modifier says */
    uint32_t bytes_masked;         /* of 16 bytes those whose bit is set keep what is there; 0: all are copied */
    uint8_t *read;                 /* of a store: what was read of the source, when the target is not written yet; else NULL */
    sim_tensor_map map;
    int32_t at[5];
    uint16_t offsets[3];           /* of im2col: from positions in the bounding box to pixels */
    bool four_rows;                /* of a tensor of two dimensions: the column, and the rows of four boxes */
    uint64_t global;
    size_t bytes;                  /* in shared memory */
    size_t arriving;               /* bytes that the mbarrier counts: of a tensor without what pads its elements */
    bool pair;                     /* .cta_group::2: each target's mbarrier is in its pair, in the CTA with the parity of the mbarrier's own */
    sim_cta *cta;                  /* of the source, or of the first target */
    uint64_t shared;               /* offset there, and in each CTA of the mask */
    uint64_t mbarrier;
    sim_cta *mbarrier_cta;
    uint32_t multicast;            /* mask of CTAs; 0: none */
    uint32_t group;
    int delay;                     /* steps until it is done */
};

/* ---- what a copy does (async_copy.c) ---- */

/* How elements of a tensor are copied: so many at a time, from and to so many bytes. Small ones lie side by side in global memory (PTX ISA 5.5.1.1). */
typedef struct async_grain { uint8_t elements, from, to; } async_grain;
/* By the driver's number of the type; NULL: there is none. */
const async_grain *async_grain_of(uint32_t type);
size_t async_box_grains(const sim_tensor_map *m);
/* Of an im2col map: where its bounding box ends along a dimension. */
int64_t async_end_of_box(const sim_tensor_map *m, int dimension);
/* Has the operation a meaning for elements of that type (PTX ISA 9.7.9.25.6.1)? */
bool async_can_combine(const sim_op *op, int type);
/* Of the bytes from an offset on in a CTA's shared memory: bits of their shadows. */
void async_set_flags(sim_cta *cta, uint64_t offset, size_t bytes, uint8_t clear, uint8_t set);
/* Does it, for one CTA. false: a finding was made. */
bool async_copy(struct sim_async *a, sim_cta *cta);

/* ---- issuing one (async.c) ---- */

/* The CTA that an address in shared memory belongs to, and the offset in it; NULL: a finding was made. */
sim_cta *async_shared_side(sim_warp *w, const sim_op *op, int lane, uint64_t address, uint64_t *offset);
/* Checks the shared sides, notes that they are in use, and has the copy done some time later. false: a finding was made. */
bool async_begin(struct sim_async *a, size_t align);
/* Notes it as it is, to be done some time later. false: no memory. */
bool async_add(sim_cluster *cluster, const struct sim_async *a);
/* Finishes those that are due; all: every one of them. true: something was finished. */
bool async_finish_some(sim_cluster *cluster, bool all);

#endif
