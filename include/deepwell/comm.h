/* Ranks: threads or processes that run one model together, each a part of it. Who starts them, and how their bytes travel between processes, is an existing engine's business: MPI,
 * torch.distributed, or threads of one process. Here a rank says who it is, and how the others are reached. */
#ifndef DEEPWELL_COMM_H
#define DEEPWELL_COMM_H

#include "deepwell/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One rank's membership. It belongs to the thread of its context, and outlives the models that are made with it (dw_model_options.comm). Models and sessions of one communicator are made, run
 * and destroyed one at a time, in the same order on every rank. While a service runs (serve.h) the communicator is in use by its loop, and by nothing else. */
typedef struct dw_comm dw_comm;

/* The caller's engine, which moves bytes between ranks and computes nothing: sums are Deepwell's, in order of ranks, so that every engine gives the same bits. Called in the thread of the
 * communicator, of a service in that of its loop, with memory of the host that is there until it returns; it returns when its part is done: 0, or the dw_status of its failure.
 *   axis    which ranks take part: those that lie along this axis of the mesh (0 is the outermost) with the caller; -1: all. In order of ranks
 *   bytes   of one part, below 2^31; parts do not overlap */
typedef struct dw_collectives {
    int (*all_gather)(void *user, int axis, const void *part, void *parts, size_t bytes);     /* each rank's part, to all */
    int (*all_to_all)(void *user, int axis, const void *parts, void *received, size_t bytes); /* part j to rank j; received: what came, by rank */
    void *user;
    const char *(*words)(void *user);   /* of the failure that it returned last, for the message; NULL: there are none */
} dw_collectives;

/* Zero-initialise, then set what matters. */
typedef struct dw_comm_options {
    int rank, world;                /* which rank of how many; world 0: 1 */
    const char *mesh;               /* how ranks lie, the outermost axis first: "dp=2,tp=4"; NULL: "tp=<world>" */
    const void *id;                 /* what dw_comm_id gave one of the ranks, carried to all; not with an engine */
    size_t id_bytes;
    const dw_collectives *engine;   /* NULL: the ranks are threads of this process, each with a context of its own */
    double timeout_s;               /* how long a rank waits for another; 0: 60. Of an engine its own timeout counts */
} dw_comm_options;

enum { DW_COMM_ID_BYTES = 64 };

/* Where ranks of one process meet: one of them asks, all give it to dw_comm_create, once each. The context outlives the communicators that are made of it.
 * device: "cpu" or NULL; GPUs are UNSUPPORTED. bytes: the room at id, and then what is there. */
DW_API dw_status dw_comm_id(dw_context *context, const char *device, void *id, size_t *bytes);

/* All ranks call it; it returns when all have come. options NULL: one rank. MISMATCH, on every rank, names the first rank and fact in which they differ: world, mesh, or the build of the library. LOST: a rank did not
 * come in time. The engine's functions are copied; what user points to outlives the communicator. */
DW_API dw_status dw_comm_create(dw_context *context, const char *device, const dw_comm_options *options, dw_comm **comm);
/* Waits for nobody. A rank that waits for this one, or will, gets LOST. NULL is allowed. */
DW_API void dw_comm_destroy(dw_comm *comm);

DW_API int dw_comm_rank(const dw_comm *comm);
DW_API int dw_comm_world(const dw_comm *comm);
DW_API const char *dw_comm_mesh(const dw_comm *comm);   /* "dp=2,tp=4" */

#ifdef __cplusplus
}
#endif
#endif
