/* What the files of src/comm share: notes, and the engines that carry them. Not for other layers. */
#ifndef COMM_INTERNAL_H
#define COMM_INTERNAL_H

#include "comm/comm.h"

/* Who meets: the ranks along an axis of the mesh, by its number, or all. */
enum { COMM_ALL = OP_MESH_AXES, COMM_LINES = OP_MESH_AXES + 1 };
enum { COMM_WORDS = 192 };

/* What a rank says of itself at a meeting. Plain bytes, with nothing between the members: engines carry them as they are. */
typedef struct comm_note {
    uint64_t facts[COMM_FACTS];    /* of comm_agree; else 0 */
    uint64_t bytes;                /* of its operand */
    uint32_t op, step, status, unused;
    char words[COMM_WORDS];        /* of its failure */
} comm_note;

/* Carries notes and operands. count ranks meet on line; place: this one's among them. Failures are LOST, CANCELLED or the engine's own, and break the communicator. */
typedef struct comm_engine {
    /* Gives note to all, and mine with it (NULL: there is none); waits for all. notes[i] is borrowed until the next meeting on this line. */
    dw_status (*meet)(dw_comm *comm, dw_context *context, int line, const comm_note *note, const dw_tensor *mine, const comm_note **notes);
    /* What all gave at that meeting, in full. memory: room bytes */
    dw_status (*bring)(dw_comm *comm, dw_context *context, int line, const dw_tensor *mine, void *memory, dw_tensor *theirs);
    /* The parts that are this rank's. theirs: their shapes, to be given data */
    dw_status (*bring_parts)(dw_comm *comm, dw_context *context, int line, const dw_tensor *mine, void *memory, dw_tensor *theirs);
    dw_status (*leave)(dw_comm *comm, dw_context *context, int line);
    size_t (*room)(int count, const dw_tensor *mine);
    void (*close)(dw_comm *comm);
} comm_engine;

struct dw_comm {
    kernel_comm kernels;           /* first: kernels have it by this */
    dw_context *context;
    op_mesh mesh;
    char mesh_words[OP_MESH_AXES * (OP_MESH_NAME + 8)];
    int rank, world;
    double timeout_s;
    const comm_engine *engine;     /* NULL: there is one rank */
    void *own;                     /* the engine's */
    size_t own_bytes;
    const comm_note **notes;       /* [world]: of the last meeting */
    unsigned told;                 /* by line: a rank has failed in this run, and all on the line know */
    bool broken;                   /* nobody knows any more what the others are at */
    char broken_words[COMM_WORDS];
};

/* line.c: of the ranks on a line: how many, which of all ranks they are, and this one's place among them. */
int comm_count(const dw_comm *comm, int line);
int comm_member(const dw_comm *comm, int line, int place);
int comm_place(const dw_comm *comm, int line);
const char *comm_line_name(const dw_comm *comm, int line);   /* "tp", "all ranks" */

/* threads.c: ranks of one process. id: of dw_comm_id */
dw_status comm_open_threads(dw_comm *comm, const void *id, size_t bytes);
/* carried.c: by the caller's engine, which is copied. */
dw_status comm_open_carried(dw_comm *comm, const dw_collectives *engine);

#endif
