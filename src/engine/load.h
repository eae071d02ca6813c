/* The load of one plan: what its runs read of weights, and of what is computed from them. Steps run on the host (load.c), or on the device where its result has the
 * host's bits (load_device.c). What depends on states that a session trains is loaded by itself, whenever they have changed, all of it where runs are. */
#ifndef ENGINE_LOAD_H
#define ENGINE_LOAD_H

#include "engine/engine.h"

/* Memory of a session's workspace, which no run uses meanwhile: what a load makes and does not keep lies there where it finds place. */
typedef struct load_room {
    uint8_t *memory;           /* NULL: there is none */
    size_t bytes, used;
    int count;                 /* that lie there */
} load_room;

/* Arrays are by value index, unless said. */
typedef struct loading {
    engine_constants *constants;
    engine_program *program;
    pool *pool;
    chip_caps chip;            /* the host's */
    arena arena;
    dw_session *trains;        /* the load is of what depends on its trained states; NULL: of what is known without them */
    bool stopped;              /* whoever watches has seen enough */
    bool *wanted;              /* must be there or be computed */
    dw_tensor *tensors;        /* in the host's memory; data NULL: on the device alone */
    void **owned;
    size_t *owned_bytes;
    int *last_read;            /* of values with memory of their own: order of the last node of the load that reads them, or behind which they are packed; LOAD_NEVER_DONE: runs do */
    int *packed_by;            /* the first step that packs it, and by step index the next one, each + 1; 0: there is none */
    int *packed_next;
    map packed;                /* keys of what this load has packed */
    int64_t *symbols;
    size_t held, limit;        /* bytes of constants at a time, and how many a model with these weights may have */
    load_room room;
    bool *roomed;              /* owned is of the room */
    /* On a device; NULL without one. */
    const kernel_row **rows;   /* by step index: runs it on the device; NULL: the host does */
    uint32_t *ways;            /* by step index, of a row with ways */
    dw_tensor *there;          /* in the device's memory; data NULL: not brought, or not made yet */
    void **there_owned;        /* memory there that is not a constant of the model, or not yet */
    size_t *there_bytes;
    bool *there_roomed;        /* there_owned is of the room */
} loading;

enum { LOAD_NEVER_DONE = INT32_MAX };

/* ---- load_state.c ---- */

/* Is the value what this load is of? */
bool load_is_of(const loading *load, const plan_value *v);
/* Is it among the constants, of the host or of the device, and need not be made anew? */
bool load_has(const loading *load, const plan_value *v);
/* The steps that a load may run: [load_first, load_end). */
int load_first(const loading *load);
int load_end(const loading *load);
/* Memory for bytes; NULL: there is no room. And it is used no more. */
void *load_take_room(load_room *room, size_t bytes);
void load_leave_room(load_room *room);
/* Must the node of the load be computed, or seen through, now? */
bool load_must_run(const loading *load, const ir_node *node);
/* Adds bytes to what is held. LIMIT: more than a model with these weights may have. */
dw_status load_hold(loading *load, const plan_value *v, size_t bytes);
/* The view v of base, wherever that lies. */
dw_status load_view(const loading *load, const plan_value *v, const dw_tensor *base, dw_tensor *view);

/* ---- load_device.c: nothing where runs are on the host ---- */

/* Does the weight, which is in the memory of a device, lie in that of the load's? */
bool load_reaches(const loading *load, const ir_weight *weight);
/* Decides which of the steps that are wanted run on the device: those whose result has the host's bits there, and that no step of the host reads. */
dw_status load_place(loading *load);
bool load_is_there(const loading *load, const plan_step *step);
/* Starts the step there: brings its operands, makes room for its results. */
dw_status load_run_there(loading *load, const plan_step *step);
/* A constant that another plan of the model has there already. */
void load_see_there(loading *load, const plan_value *v, const dw_tensor *tensor);
/* Releases what a value, whose last reader was started, holds there besides constants of the model. */
dw_status load_release_there(loading *load, int root);
/* Results of the device that runs read become constants of the model; then all else that runs read is brought. */
dw_status load_keep_there(loading *load);
/* Releases what is left over. */
void load_free_there(loading *load);

#endif
