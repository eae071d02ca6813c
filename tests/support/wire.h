/* A caller's engine (dw_collectives) between threads of this program, as MPI is one between processes: ranks copy their parts to a table, wait for each other, and read. */
#ifndef SUPPORT_WIRE_H
#define SUPPORT_WIRE_H

#include "op/op.h"
#include "support/ranks.h"

typedef struct wire wire;

/* Engines of all ranks of that mesh, engines[0 .. world). The call number fail_at of rank fail_rank (from 1; 0: none) fails with status instead, and all later ones of any rank that wait for it. */
wire *wire_create(const char *mesh, int fail_rank, int fail_at, dw_status status, dw_collectives *engines);
void wire_destroy(wire *wire);

#endif
