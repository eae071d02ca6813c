/* How the rows of a call of few queries become tiles of so many rows at most: what the host halves of this folder share. */
#ifndef KERNELS_ATTENTION_DECODE_DIVIDE_H
#define KERNELS_ATTENTION_DECODE_DIVIDE_H

#include "kernel/kernel.h"

/* together: queries of a tile; parts: tiles of the heads of one group; bunches: tiles of the queries of a batch; rows: of a tile; tiles: of all. */
typedef struct decode_division { int64_t together, parts, bunches, rows, tiles; } decode_division;

static inline decode_division decode_divide(const op_call *call, int64_t most_rows) {
    const dw_tensor *q = call->in[ATTENTION_Q], *k = call->in[ATTENTION_K];
    const int64_t shared = k->dims[1] > 0 && q->dims[1] > k->dims[1] ? q->dims[1] / k->dims[1] : 1;
    bool alone = shared > most_rows;
    for (int i = ATTENTION_ROW; i <= ATTENTION_POSITION; i++) alone = alone || (i < call->n_in && call->in[i] != NULL);
    decode_division d = {.together = alone ? 1 : most_rows / shared, .parts = base_ceil_div(shared, most_rows)};
    d.rows = (shared < most_rows ? shared : most_rows) * (d.together < q->dims[2] ? d.together : q->dims[2]);
    d.bunches = base_ceil_div(q->dims[2], d.together);
    d.tiles = q->dims[0] * d.bunches * k->dims[1] * d.parts;
    return d;
}

#endif
