/* Ranks that are threads of one process. They meet in a room, which dw_comm_id makes and whose address the id holds: each rank has a place there, where it leaves its note and the shape and address
 * of its operand, and counts its meetings. A meeting is complete for a rank when all counts have come as far as its own. There are two notes of each line, written in turn: a rank that is ahead by
 * one does not write over what a slower one still reads, and none gets further ahead. Ranks read each other's operands where these lie, so nothing is copied. One that gives up takes its
 * operand away, though another may come yet, or be reading: who reads says so first, and then looks whether anybody has given up; who gives up says so first, and then waits for who reads.
 * A rank that waits spins briefly, then sleeps. */
#include "comm/internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { RANKS_MAX = 64, SPINS = 2000, CACHE_LINE = 64 };
#define LOOK_S 0.02    /* how often one that sleeps looks at the clock, and whether its caller wants to stop */
#define ID_MAGIC UINT64_C(0x6c6c657764656570)

typedef struct left_note { comm_note note; dw_tensor operand; } left_note;

typedef struct place {
    _Alignas(CACHE_LINE) _Atomic uint64_t come[COMM_LINES], gone[COMM_LINES];   /* how many meetings it has come to, and left */
    _Atomic bool taken, closed;                                                  /* a rank has it, or has had it */
    _Atomic bool reads;                                                          /* other ranks' operands */
    left_note notes[COMM_LINES][2];
} place;

typedef struct room {
    base_kept kept;                /* first: by the context that made the id */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    _Atomic int sleepers, world;   /* world 0: nobody has come */
    place places[RANKS_MAX];
} room;

/* What travels as an id. */
typedef struct id_bytes { uint64_t magic, process, room, check; } id_bytes;

typedef struct member { room *room; place *own; uint64_t meetings[COMM_LINES]; } member;

/* ---- rooms ---- */

static void close_room(dw_context *context, base_kept *kept) {
    room *r = (room *)(void *)kept;
    pthread_cond_destroy(&r->wake);
    pthread_mutex_destroy(&r->mutex);
    base_release(context, r, sizeof *r, CACHE_LINE);
}

static uint64_t check_of(const id_bytes *id) { return base_hash(id, offsetof(id_bytes, check), ID_MAGIC); }

dw_status dw_comm_id(dw_context *context, const char *device, void *id, size_t *bytes) {
    void *memory;
    pthread_condattr_t attributes;
    if (device != NULL && strcmp(device, "cpu") != 0 && strncmp(device, "cpu:", 4) != 0)
        return base_fail(context, DW_UNSUPPORTED, "device %s: collectives of GPUs call NCCL, which no row of this build does yet; ranks run on the cpu", device);
    if (*bytes < DW_COMM_ID_BYTES) return base_fail(context, DW_LIMIT, "an id has %d bytes, and there is room for %zu", DW_COMM_ID_BYTES, *bytes);
    TRY(base_alloc(context, sizeof(room), CACHE_LINE, &memory));
    memset(memory, 0, sizeof(room));
    room *r = memory;
    r->kept.close = close_room;
    pthread_mutex_init(&r->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&r->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    base_keep(context, &r->kept);
    id_bytes made = {.magic = ID_MAGIC, .process = (uint64_t)getpid(), .room = (uint64_t)(uintptr_t)r};
    made.check = check_of(&made);
    memset(id, 0, DW_COMM_ID_BYTES);
    memcpy(id, &made, sizeof made);
    *bytes = DW_COMM_ID_BYTES;
    return DW_OK;
}

static dw_status find_room(const dw_comm *comm, const void *id, size_t bytes, room **r) {
    id_bytes given;
    if (bytes != DW_COMM_ID_BYTES) return base_fail(comm->context, DW_INVALID, "an id has %d bytes, and this one %zu; give what dw_comm_id gave", DW_COMM_ID_BYTES, bytes);
    memcpy(&given, id, sizeof given);
    if (given.magic != ID_MAGIC || given.check != check_of(&given)) return base_fail(comm->context, DW_INVALID, "the id is none that dw_comm_id gave");
    if (given.process != (uint64_t)getpid())
        return base_fail(comm->context, DW_INVALID, "the id is of another process (%llu): ranks of several processes meet by an engine (dw_comm_options.engine)", (unsigned long long)given.process);
    *r = (room *)(uintptr_t)given.room;
    return DW_OK;
}

/* ---- waiting ---- */

static void wake_all(room *r) {
    if (atomic_load(&r->sleepers) == 0) return;
    pthread_mutex_lock(&r->mutex);
    pthread_cond_broadcast(&r->wake);
    pthread_mutex_unlock(&r->mutex);
}

static const _Atomic uint64_t *count_of(const room *r, int rank, int line, bool leaves) { return leaves ? &r->places[rank].gone[line] : &r->places[rank].come[line]; }

/* The first on the line that has not got as far, or -1. */
static int find_late(const dw_comm *comm, const room *r, int line, bool leaves, uint64_t meeting) {
    for (int i = 0; i < comm_count(comm, line); i++) {
        const int rank = comm_member(comm, line, i);
        if (atomic_load(count_of(r, rank, line, leaves)) < meeting) return rank;
    }
    return -1;
}

/* Does anybody that is late never come? */
static int find_closed(const dw_comm *comm, const room *r, int line, bool leaves, uint64_t meeting) {
    for (int i = 0; i < comm_count(comm, line); i++) {
        const int rank = comm_member(comm, line, i);
        const bool closed = atomic_load(&r->places[rank].closed);   /* in front of the count: it may have come, and then left */
        if (closed && atomic_load(count_of(r, rank, line, leaves)) < meeting) return rank;
    }
    return -1;
}

static dw_status fail_left(dw_context *context, int rank) { return base_fail(context, DW_LOST, "rank %d has left: its communicator was destroyed, or has given up", rank); }

static void sleep_a_little(room *r) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(LOOK_S * 1e9);
    if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
    pthread_cond_timedwait(&r->wake, &r->mutex, &until);
}

static dw_status wait_asleep(const dw_comm *comm, dw_context *context, room *r, int line, bool leaves, uint64_t meeting) {
    const double begin = base_now();
    int late;
    dw_status status = DW_OK;
    pthread_mutex_lock(&r->mutex);
    atomic_fetch_add(&r->sleepers, 1);
    while (status == DW_OK && (late = find_late(comm, r, line, leaves, meeting)) >= 0) {
        const int closed = find_closed(comm, r, line, leaves, meeting);
        if (closed >= 0) status = fail_left(context, closed);
        else if (base_now() - begin > comm->timeout_s) status = base_fail(context, DW_LOST, "rank %d did not come within %g s", late, comm->timeout_s);
        else if (context != NULL) status = base_poll(context);
        if (status == DW_OK) sleep_a_little(r);
    }
    atomic_fetch_sub(&r->sleepers, 1);
    pthread_mutex_unlock(&r->mutex);
    return status;
}

/* Until all on the line have got so far. */
static dw_status await(const dw_comm *comm, dw_context *context, room *r, int line, bool leaves, uint64_t meeting) {
    for (int spin = 0; spin < SPINS; spin++) {
        if (find_late(comm, r, line, leaves, meeting) < 0) return DW_OK;
#if defined(__x86_64__)
        _mm_pause();
#endif
    }
    return wait_asleep(comm, context, r, line, leaves, meeting);
}

/* ---- the engine ---- */

static bool has_reader(const dw_comm *comm, const room *r, int line) {
    for (int i = 0; i < comm_count(comm, line); i++)
        if (atomic_load(&r->places[comm_member(comm, line, i)].reads)) return true;
    return false;
}

/* One that gives up comes to no further meeting. Its operand is the caller's again behind this: whoever comes later does not read it, and whoever reads it is waited for, since reading ends by itself. */
static dw_status give_up(const dw_comm *comm, int line, dw_status status) {
    const member *m = comm->own;
    room *r = m->room;
    if (status == DW_OK) return DW_OK;
    atomic_store(&m->own->reads, false);
    atomic_store(&m->own->closed, true);
    wake_all(r);
    pthread_mutex_lock(&r->mutex);
    atomic_fetch_add(&r->sleepers, 1);
    while (has_reader(comm, r, line)) sleep_a_little(r);
    atomic_fetch_sub(&r->sleepers, 1);
    pthread_mutex_unlock(&r->mutex);
    return status;
}

/* Says that this rank reads what the others left, until it comes to the next meeting or leaves. LOST: one of them has taken it away since. */
static dw_status begin_reading(const dw_comm *comm, dw_context *context, int line) {
    const member *m = comm->own;
    atomic_store(&m->own->reads, true);
    for (int i = 0; i < comm_count(comm, line); i++) {
        const int rank = comm_member(comm, line, i);
        if (atomic_load(&m->room->places[rank].closed)) return give_up(comm, line, fail_left(context, rank));
    }
    return DW_OK;
}

static dw_status threads_meet(dw_comm *comm, dw_context *context, int line, const comm_note *note, const dw_tensor *mine, const comm_note **notes) {
    member *m = comm->own;
    const uint64_t meeting = ++m->meetings[line];
    left_note *own = &m->own->notes[line][meeting % 2];
    atomic_store(&m->own->reads, false);
    own->note = *note;
    own->operand = mine != NULL ? *mine : (dw_tensor){0};
    atomic_store(&m->own->come[line], meeting);
    wake_all(m->room);
    TRY(give_up(comm, line, await(comm, context, m->room, line, false, meeting)));
    for (int i = 0; i < comm_count(comm, line); i++) notes[i] = &m->room->places[comm_member(comm, line, i)].notes[line][meeting % 2].note;
    return DW_OK;
}

static dw_status threads_bring(dw_comm *comm, dw_context *context, int line, const dw_tensor *mine, void *memory, dw_tensor *theirs) {
    const member *m = comm->own;
    (void)mine;
    (void)memory;
    TRY(begin_reading(comm, context, line));
    for (int i = 0; i < comm_count(comm, line); i++) theirs[i] = m->room->places[comm_member(comm, line, i)].notes[line][m->meetings[line] % 2].operand;
    return DW_OK;
}

static dw_status threads_bring_parts(dw_comm *comm, dw_context *context, int line, const dw_tensor *mine, void *memory, dw_tensor *theirs) {
    const member *m = comm->own;
    (void)mine;
    (void)memory;
    TRY(begin_reading(comm, context, line));
    for (int i = 0; i < comm_count(comm, line); i++) {
        const size_t bytes = (size_t)theirs[i].dims[0] * (size_t)dw_format_bits(theirs[i].format) / 8;
        uint8_t *whole = m->room->places[comm_member(comm, line, i)].notes[line][m->meetings[line] % 2].operand.data;
        theirs[i].data = bytes > 0 ? whole + (size_t)comm_place(comm, line) * bytes : whole;
    }
    return DW_OK;
}

static dw_status threads_leave(dw_comm *comm, dw_context *context, int line) {
    member *m = comm->own;
    const uint64_t meeting = m->meetings[line];
    atomic_store(&m->own->reads, false);
    atomic_store(&m->own->gone[line], meeting);
    wake_all(m->room);
    return give_up(comm, line, await(comm, context, m->room, line, true, meeting));
}

static size_t threads_room(int count, const dw_tensor *mine) {
    (void)count;
    (void)mine;
    return 0;
}

static void threads_close(dw_comm *comm) {
    member *m = comm->own;
    if (m->own != NULL) {
        atomic_store(&m->own->closed, true);
        wake_all(m->room);
    }
    base_release(comm->context, m, sizeof *m, _Alignof(member));
}

static const comm_engine threads = {.meet = threads_meet, .bring = threads_bring, .bring_parts = threads_bring_parts, .leave = threads_leave, .room = threads_room, .close = threads_close};

/* The first to come says how many there are. */
static dw_status take_place(dw_comm *comm, member *m) {
    int world = 0;
    if (comm->world > RANKS_MAX) return base_fail(comm->context, DW_LIMIT, "%d ranks in one process: there is room for %d", comm->world, RANKS_MAX);
    place *own = &m->room->places[comm->rank];
    if (atomic_exchange(&own->taken, true)) return base_fail(comm->context, DW_INVALID, "rank %d has come before: an id is good for one communicator of each rank", comm->rank);
    m->own = own;
    if (atomic_compare_exchange_strong(&m->room->world, &world, comm->world) || world == comm->world) return DW_OK;
    return base_fail(comm->context, DW_MISMATCH, "rank %d says that the world has %d ranks, and another rank that it has %d", comm->rank, comm->world, world);
}

dw_status comm_open_threads(dw_comm *comm, const void *id, size_t bytes) {
    room *r;
    void *memory;
    TRY(find_room(comm, id, bytes, &r));
    TRY(base_alloc(comm->context, sizeof(member), _Alignof(member), &memory));
    member *m = memory;
    *m = (member){.room = r};
    comm->own = m;
    comm->engine = &threads;
    comm->kernels.shares_memory = true;
    return take_place(comm, m);
}
