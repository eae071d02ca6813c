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

/* What the first rank along an axis gives the others there: numbers, and bytes behind them. */
typedef struct comm_word { uint64_t numbers[COMM_FACTS]; void *memory; size_t bytes; bool is_failure; } comm_word;

/* The first along the axis gives its word; the others have it then, of at most room bytes in word->memory. All come with OK, or with the status of why there is nothing to go on with (its words are
 * those of the context's error): then it is carried out nowhere, and each of them has the first such status. Where the first comes with one, that is its word (is_failure): all have
 * OK, and whatever they came with is over. workspace: comm_word_room bytes. */
dw_status comm_broadcast(dw_comm *comm, dw_context *context, const char *over, dw_status status, size_t room, comm_word *word, void *workspace);
size_t comm_word_room(const dw_comm *comm, const char *over, size_t room);
/* How often a rank that has nothing to give does give something, so that those who wait for it know that it is there. */
double comm_beat_s(const dw_comm *comm);
/* May all meet again? Else the communicator is broken. */
bool comm_is_whole(const dw_comm *comm);

/* A run begins: nobody has said of it that it failed. */
void comm_begin(dw_comm *comm);
/* This rank has failed in a run (status; its words are the context's error) and a collective over that axis would still come: the ranks along it are told where they meet, unless some rank has told
 * them, or this one, before. The context's error stays as it is. */
void comm_tell(dw_comm *comm, dw_context *context, const char *over, uint32_t step, dw_status status);
/* Do the ranks along that axis know that the run failed? */
bool comm_is_told(const dw_comm *comm, const char *over);

#endif
