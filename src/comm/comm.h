/* Communicators: ranks meet, tell each other what they are at, and read each other's operands.
 *
 * Every meeting begins with a note of each rank that takes part: what it is at, and whether it has failed. A rank compares the notes of all, and all come to the same end: the collective is
 * done, or every one of them has an error and none is left waiting. A rank that fails between two collectives goes on to its next one along each axis (comm_tell), where its note says so; hence
 * after a failed run all are in step again, and may run once more. Only where a rank never comes, or its engine fails, is the communicator broken for good.
 *
 * The order of collectives is that of the plan, of which all ranks have the same text: comm_agree compares its hash when a model is made. */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include "deepwell/comm.h"
#include "kernel/kernel.h"

/* A hash that all ranks have to have in common, and what it is of: "graph". */
typedef struct comm_fact { const char *name; uint64_t hash; } comm_fact;
enum { COMM_FACTS = 6 };

const op_mesh *comm_mesh(const dw_comm *comm);
kernel_comm *comm_kernels(dw_comm *comm);      /* for kernel_run.comm */

/* All ranks come, with facts in the same order, or with the status of why they cannot (its words are those of the context's error). OK: all of them came with OK and the same facts.
 * MISMATCH names the first rank and fact; else the status is that of the first rank that has failed. */
dw_status comm_agree(dw_comm *comm, dw_context *context, const char *what, dw_status status, int count, const comm_fact *facts);

/* A run begins: nobody has said of it that it failed. */
void comm_begin(dw_comm *comm);
/* This rank has failed in a run (status; its words are the context's error) and a collective over that axis would still come: the ranks along it are told where they meet, unless some rank has told
 * them, or this one, before. The context's error stays as it is. */
void comm_tell(dw_comm *comm, dw_context *context, const char *over, uint32_t step, dw_status status);

#endif
