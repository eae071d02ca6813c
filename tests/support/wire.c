/* A caller's engine between threads; see wire.h. */
#include "support/wire.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct end { wire *wire; int rank, calls; uint64_t posted[OP_MESH_AXES + 1], read[OP_MESH_AXES + 1]; const void *parts[OP_MESH_AXES + 1]; } end;

struct wire {
    op_mesh mesh;
    int world, fail_rank, fail_at;
    dw_status status;
    bool broken;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    end ends[RANKS_MOST];
};

static int count_of(const wire *w, int axis) { return axis < 0 ? w->world : w->mesh.axes[axis].size; }

static end *end_of(wire *w, int rank, int axis, int place) {
    return &w->ends[axis < 0 ? place : rank + (place - op_mesh_place(&w->mesh, rank, axis)) * op_mesh_stride(&w->mesh, axis)];
}

/* With the mutex. false: the engine broke. */
static bool await(wire *w, const end *own, int axis, bool reads, uint64_t number) {
    const int line = axis < 0 ? OP_MESH_AXES : axis;
    for (int i = 0; i < count_of(w, axis); i++) {
        const end *other = end_of(w, own->rank, axis, i);
        while ((reads ? other->read[line] : other->posted[line]) < number) {
            if (w->broken) return false;
            pthread_cond_wait(&w->changed, &w->mutex);
        }
    }
    return true;
}

static int exchange(void *user, int axis, const void *mine, void *received, size_t bytes, bool parts) {
    end *own = user;
    wire *w = own->wire;
    const int line = axis < 0 ? OP_MESH_AXES : axis, place = axis < 0 ? own->rank : op_mesh_place(&w->mesh, own->rank, axis);
    pthread_mutex_lock(&w->mutex);
    if (++own->calls == w->fail_at && own->rank == w->fail_rank) w->broken = true;
    const bool cut = w->broken;
    own->parts[line] = mine;
    const uint64_t number = cut ? own->posted[line] : ++own->posted[line];
    pthread_cond_broadcast(&w->changed);
    bool good = !cut && await(w, own, axis, false, number);
    for (int i = 0; good && i < count_of(w, axis); i++)
        memcpy((uint8_t *)received + (size_t)i * bytes, (const uint8_t *)end_of(w, own->rank, axis, i)->parts[line] + (parts ? (size_t)place * bytes : 0), bytes);
    if (good) own->read[line] = number;
    pthread_cond_broadcast(&w->changed);
    good = good && await(w, own, axis, true, number);
    pthread_mutex_unlock(&w->mutex);
    return good ? 0 : (int)w->status;
}

static int gather(void *user, int axis, const void *part, void *parts, size_t bytes) { return exchange(user, axis, part, parts, bytes, false); }
static int to_all(void *user, int axis, const void *parts, void *received, size_t bytes) { return exchange(user, axis, parts, received, bytes, true); }

static const char *words_of(void *user) { return ((end *)user)->wire->broken ? "the wire is cut" : "nothing"; }

wire *wire_create(const char *mesh, int fail_rank, int fail_at, dw_status status, dw_collectives *engines) {
    wire *w = calloc(1, sizeof *w);
    rank_assert(NULL, w != NULL && op_mesh_parse(NULL, mesh, &w->mesh) == DW_OK);
    w->world = op_mesh_world(&w->mesh);
    w->fail_rank = fail_rank;
    w->fail_at = fail_at;
    w->status = status;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, NULL);
    for (int i = 0; i < w->world; i++) {
        w->ends[i] = (end){.wire = w, .rank = i};
        engines[i] = (dw_collectives){gather, to_all, &w->ends[i], words_of};
    }
    return w;
}

void wire_destroy(wire *w) {
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    free(w);
}
