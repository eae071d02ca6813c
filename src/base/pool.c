/* The thread pool: one job at a time, whose tasks the caller and the workers claim in order from one atomic ticket. Workers spin
 * briefly for the next job, then sleep. Does not split work: callers do, in a way that no thread count changes. */
#include "base/base.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define SPINS 2000              /* some tens of microseconds: longer than the gap between two steps of a model */
#define ROUND_MAX INT32_MAX     /* tasks that one ticket can count */
#define CACHE_LINE 64

typedef struct worker_start { pool *pool; int worker; } worker_start;

/* The ticket is (job number << 32) | next task. A claim is a compare-and-swap, so a late worker that still looks at an old job
 * fails to claim; and a claimed task keeps its job, and so the job's fields, alive until it is counted as done. Before the fields
 * change, the old job's ticket is closed: else a late worker could hold its last ticket against the next job's larger count. */
struct pool {
    _Alignas(CACHE_LINE) _Atomic uint64_t ticket;
    _Alignas(CACHE_LINE) _Atomic int64_t pending;    /* tasks of the job that are not done */
    _Alignas(CACHE_LINE) _Atomic(pool_task) task;    /* the job; atomic, as late workers may read while the next is written */
    _Atomic(void *) argument;
    _Atomic int64_t first, count;                    /* tasks first .. first + count - 1 */
    _Atomic int sleepers;                            /* workers in wait_for_job's sleep */
    _Atomic bool caller_sleeps, stopping;
    dw_context *context;
    int threads, started;                            /* started: worker threads that exist, threads - 1 or fewer after a fork */
    pid_t process;                                   /* that the threads live in: a fork has none of them */
    _Atomic bool running;
    pthread_mutex_t mutex;
    pthread_cond_t wake, done;
    pthread_t *handles;                              /* [threads - 1] */
    worker_start *starts;                            /* [threads - 1] */
};

static void relax(void) {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

static uint32_t job_of(uint64_t ticket) { return (uint32_t)(ticket >> 32); }

/* Runs tasks of the given job until none is left to claim. */
static void work(pool *pool, uint32_t job, int worker) {
    int64_t done = 0;
    uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    for (;;) {
        pool_task task = atomic_load_explicit(&pool->task, memory_order_acquire);
        void *argument = atomic_load_explicit(&pool->argument, memory_order_acquire);
        int64_t first = atomic_load_explicit(&pool->first, memory_order_acquire);
        int64_t count = atomic_load_explicit(&pool->count, memory_order_acquire);
        int64_t next = (int64_t)(uint32_t)ticket;
        if (job_of(ticket) != job || next >= count) break;
        if (!atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket + 1, memory_order_acq_rel, memory_order_acquire)) {
            continue;
        }
        ticket++;
        task(argument, first + next, worker);
        done++;
        ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    }
    if (done == 0 || atomic_fetch_sub(&pool->pending, done) != done) return;
    if (atomic_load(&pool->caller_sleeps)) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_signal(&pool->done);
        pthread_mutex_unlock(&pool->mutex);
    }
}

/* Waits until a job other than seen is up, or the pool stops. */
static uint32_t wait_for_job(pool *pool, uint32_t seen) {
    for (int spin = 0; spin < SPINS; spin++) {
        uint32_t job = job_of(atomic_load_explicit(&pool->ticket, memory_order_acquire));
        if (job != seen || atomic_load_explicit(&pool->stopping, memory_order_relaxed)) return job;
        relax();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (job_of(atomic_load(&pool->ticket)) == seen && !atomic_load(&pool->stopping)) {
        pthread_cond_wait(&pool->wake, &pool->mutex);
    }
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
    return job_of(atomic_load(&pool->ticket));
}

static void *worker_main(void *argument) {
    const worker_start *start = argument;
    uint32_t seen = 0;
    while (!atomic_load(&start->pool->stopping)) {
        seen = wait_for_job(start->pool, seen);
        work(start->pool, seen, start->worker);
    }
    return NULL;
}

/* Starts workers until threads - 1 run; returns the error number of the one that could not start, or 0. */
static int start_workers(pool *pool) {
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    atomic_store(&pool->sleepers, 0);
    pool->process = getpid();
    pool->started = 0;

    sigset_t all, before;   /* signals are for the caller's threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    while (pool->started < pool->threads - 1 && error == 0) {
        int index = pool->started;
        pool->starts[index] = (worker_start){pool, index + 1};
        error = pthread_create(&pool->handles[index], NULL, worker_main, &pool->starts[index]);
        if (error == 0) pool->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static void wait_until_done(pool *pool) {
    for (int spin = 0; spin < SPINS; spin++) {
        if (atomic_load_explicit(&pool->pending, memory_order_acquire) == 0) return;
        relax();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->caller_sleeps, true);
    while (atomic_load(&pool->pending) != 0) pthread_cond_wait(&pool->done, &pool->mutex);
    atomic_store(&pool->caller_sleeps, false);
    pthread_mutex_unlock(&pool->mutex);
}

/* At most ROUND_MAX tasks. */
static void run_round(pool *pool, int64_t first, int64_t count, pool_task task, void *argument) {
    uint32_t job = job_of(atomic_load_explicit(&pool->ticket, memory_order_relaxed)) + 1;
    atomic_store_explicit(&pool->ticket, (uint64_t)(job - 1) << 32 | UINT32_MAX, memory_order_release);   /* closed: beyond any count */
    /* released behind the closing, so that whoever sees a new field cannot claim by the old ticket */
    atomic_store_explicit(&pool->task, task, memory_order_release);
    atomic_store_explicit(&pool->argument, argument, memory_order_release);
    atomic_store_explicit(&pool->first, first, memory_order_release);
    atomic_store_explicit(&pool->count, count, memory_order_release);
    atomic_store_explicit(&pool->pending, count, memory_order_relaxed);
    atomic_store(&pool->ticket, (uint64_t)job << 32);
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
    }
    work(pool, job, 0);
    wait_until_done(pool);
}

static void run_alone(int64_t count, pool_task task, void *argument) {
    for (int64_t i = 0; i < count; i++) task(argument, i, 0);
}

void pool_run(pool *pool, int64_t count, pool_task task, void *argument) {
    if (pool->threads == 1 || count <= 1) {
        run_alone(count, task, argument);
        return;
    }
    if (atomic_exchange_explicit(&pool->running, true, memory_order_acquire)) {   /* another thread has the workers */
        run_alone(count, task, argument);
        return;
    }
    if (pool->process != getpid()) start_workers(pool);   /* a fork: should some not start, the others do their tasks */
    for (int64_t first = 0; first < count; first += ROUND_MAX) {
        run_round(pool, first, count - first < ROUND_MAX ? count - first : ROUND_MAX, task, argument);
    }
    atomic_store_explicit(&pool->running, false, memory_order_release);
}

int pool_threads(const pool *pool) { return pool->threads; }

/* The pool with its arrays behind it in one allocation. */
static size_t pool_bytes(int threads) {
    size_t workers = (size_t)threads - 1;
    return sizeof(pool) + workers * (sizeof(pthread_t) + sizeof(worker_start));
}

dw_status pool_create(dw_context *context, int threads, pool **result) {
    *result = NULL;
    if (threads < 1) return base_fail(context, DW_INVALID, "pool: %d threads asked for; ask for at least 1", threads);
    void *memory;
    TRY(base_alloc(context, pool_bytes(threads), _Alignof(pool), &memory));
    memset(memory, 0, pool_bytes(threads));
    pool *pool = memory;
    pool->context = context;
    pool->threads = threads;
    pool->starts = (worker_start *)(pool + 1);
    pool->handles = (pthread_t *)(pool->starts + (threads - 1));
    int error = start_workers(pool);
    if (error != 0) {
        base_fail(context, DW_LIMIT, "pool: thread %d of %d could not be started: %s; ask for fewer threads", pool->started + 2,
                  threads, strerror(error));
        pool_destroy(pool);
        return DW_LIMIT;
    }
    *result = pool;
    return DW_OK;
}

void pool_destroy(pool *pool) {
    if (pool == NULL) return;
    if (pool->process == getpid()) {
        pthread_mutex_lock(&pool->mutex);
        atomic_store(&pool->stopping, true);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
        for (int i = 0; i < pool->started; i++) pthread_join(pool->handles[i], NULL);
        pthread_cond_destroy(&pool->wake);
        pthread_cond_destroy(&pool->done);
        pthread_mutex_destroy(&pool->mutex);
    }
    base_release(pool->context, pool, pool_bytes(pool->threads), _Alignof(struct pool));
}
