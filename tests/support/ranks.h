/* Ranks of one process: a thread each, with a context and a communicator of its own. cmocka's assertions belong to the main thread: in a rank's, rank_assert. */
#ifndef SUPPORT_RANKS_H
#define SUPPORT_RANKS_H

#include "comm/comm.h"

enum { RANKS_MOST = 16 };

typedef struct ranks {
    int world;
    const char *mesh;                /* NULL: tp=world */
    int threads;                     /* of a context; 0: 1 */
    double timeout_s;                /* 0: 20 */
    const dw_collectives *engines;   /* [world]; NULL: threads of this process */
    void *user;
} ranks;

/* What a rank does. The communicator and the context are destroyed behind it. */
typedef void (*ranks_body)(int rank, dw_context *context, dw_comm *comm, void *user);

/* Runs body as each rank; returns when all have ended. */
void ranks_run(const ranks *ranks, ranks_body body);

/* Ends the program with the place, and the context's message if there is one. */
void rank_check(bool holds, dw_context *context, const char *what, const char *file, int line);
#define rank_assert(context, condition) rank_check((condition), context, #condition, __FILE__, __LINE__)
#define rank_ok(context, call) rank_check((call) == DW_OK, context, #call, __FILE__, __LINE__)

#endif
