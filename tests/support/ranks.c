/* Ranks of one process; see ranks.h. */
#include "support/ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct one {
    const ranks *all;
    ranks_body body;
    int rank;
    uint8_t id[DW_COMM_ID_BYTES];
} one;

void rank_check(bool holds, dw_context *context, const char *what, const char *file, int line) {
    if (holds) return;
    fprintf(stderr, "%s:%d: %s does not hold%s%s\n", file, line, what, context != NULL ? ": " : "", context != NULL ? dw_context_error(context) : "");
    abort();
}

static void *run_one(void *argument) {
    const one *o = argument;
    dw_context *context = NULL;
    dw_comm *comm;
    const dw_comm_options options = {.rank = o->rank, .world = o->all->world, .mesh = o->all->mesh, .id = o->all->engines != NULL ? NULL : o->id, .id_bytes = sizeof o->id,
                                     .engine = o->all->engines != NULL ? &o->all->engines[o->rank] : NULL, .timeout_s = o->all->timeout_s > 0 ? o->all->timeout_s : 20};
    rank_assert(NULL, dw_context_create(&(dw_context_options){.threads = o->all->threads > 0 ? o->all->threads : 1}, &context) == DW_OK);
    rank_ok(context, dw_comm_create(context, "cpu", &options, &comm));
    o->body(o->rank, context, comm, o->all->user);
    dw_comm_destroy(comm);
    dw_context_destroy(context);
    return NULL;
}

void ranks_run(const ranks *all, ranks_body body) {
    pthread_t handles[RANKS_MOST];
    one each[RANKS_MOST];
    dw_context *context = NULL;
    uint8_t id[DW_COMM_ID_BYTES];
    size_t bytes = sizeof id;
    rank_assert(NULL, all->world <= RANKS_MOST && dw_context_create(&(dw_context_options){.threads = 1}, &context) == DW_OK);
    rank_ok(context, dw_comm_id(context, "cpu", id, &bytes));
    for (int i = 0; i < all->world; i++) {
        each[i] = (one){.all = all, .body = body, .rank = i};
        memcpy(each[i].id, id, sizeof id);
        rank_assert(NULL, pthread_create(&handles[i], NULL, run_one, &each[i]) == 0);
    }
    for (int i = 0; i < all->world; i++) pthread_join(handles[i], NULL);
    dw_context_destroy(context);
}
