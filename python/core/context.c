/* A context of the extension's: taken by one thread at a time, without the GIL inside; signals and exceptions of callbacks come out of it. */
#include "core.h"

#include <errno.h>
#include <time.h>

enum { POLL_MS = 50, ROOT_COUNT = 16 };   /* POLL_MS lie between looks at signals, which need the GIL */

static _Thread_local core_context *current;

core_context *core_current(void) { return current; }

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int is_cancelled(void *user) {
    core_context *own = user;
    double time = now();
    if (own->thread == NULL || time - own->polled_at < POLL_MS * 1e-3) return own->type != NULL;
    own->polled_at = time;
    core_hold(own);
    if (own->type == NULL && PyErr_CheckSignals() != 0) core_keep_error(own);
    core_drop(own);
    return own->type != NULL;
}

/* Warnings of the library become Python's. */
static void log_line(void *user, dw_log_level level, const char *text) {
    core_context *own = user;
    if (level != DW_LOG_WARNING || own->thread == NULL) return;
    core_hold(own);
    if (own->type == NULL && !core_warn(text)) core_keep_error(own);
    core_drop(own);
}

/* The context whose threads all contexts with that number share: a hundred models need no hundred pools. Kept until the process ends. */
static dw_context *root_of(int threads) {
    static struct { int threads; dw_context *context; } roots[ROOT_COUNT];
    for (int i = 0; i < ROOT_COUNT; i++) {
        if (roots[i].context != NULL && roots[i].threads != threads) continue;
        if (roots[i].context == NULL) {
            dw_status status = dw_context_create(&(dw_context_options){.threads = threads}, &roots[i].context);
            roots[i].threads = threads;
            if (status == DW_INVALID) core_fail(status, "threads is %d; at most 4096, 0 for all CPUs that the process may use", threads);
            else if (status != DW_OK) core_raise(status, NULL);
        }
        return roots[i].context;
    }
    core_fail(DW_LIMIT, "models with %d different numbers of threads are there already; take one of theirs", ROOT_COUNT);
    return NULL;
}

int core_context_open(core_context *own, int threads) {
    dw_context *root = root_of(threads);
    if (root == NULL) return 0;
    dw_context_options options = {.threads_of = root, .log = log_line, .log_user = own, .cancelled = is_cancelled, .cancelled_user = own};
    dw_status status = dw_context_create(&options, &own->context);
    if (status != DW_OK) {
        core_raise(status, dw_context_error(root));
        return 0;
    }
    pthread_mutex_init(&own->mutex, NULL);
    own->made = 1;
    return 1;
}

void core_context_close(core_context *own) {
    Py_CLEAR(own->type);
    Py_CLEAR(own->value);
    Py_CLEAR(own->traceback);
    dw_context_destroy(own->context);
    if (own->made) pthread_mutex_destroy(&own->mutex);
    own->context = NULL;
    own->made = 0;
}

/* Waits without the GIL; false: a signal's handler raised. */
static int wait_for(core_context *own) {
    for (;;) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += POLL_MS * 1000000L;
        if (until.tv_nsec >= 1000000000L) until.tv_sec++, until.tv_nsec -= 1000000000L;
        PyThreadState *thread = PyEval_SaveThread();
        int error = pthread_mutex_timedlock(&own->mutex, &until);
        PyEval_RestoreThread(thread);
        if (error == 0) return 1;
        if (PyErr_CheckSignals() != 0) return 0;
    }
}

int core_begin(core_context *own) {
    unsigned long self = PyThread_get_thread_ident();
    if (pthread_mutex_trylock(&own->mutex) != 0) {
        if (__atomic_load_n(&own->owner, __ATOMIC_RELAXED) == self) {
            core_fail(DW_INVALID, "a kernel or callback calls the object that is calling it; make another Session of the model for that");
            return 0;
        }
        if (!wait_for(own)) return 0;
    }
    __atomic_store_n(&own->owner, self, __ATOMIC_RELAXED);
    own->polled_at = now();
    own->outer = current;
    current = own;
    own->thread = PyEval_SaveThread();
    return 1;
}

int core_end(core_context *own, dw_status status) {
    PyEval_RestoreThread(own->thread);
    own->thread = NULL;
    current = own->outer;
    if (own->type != NULL) {
        PyErr_Restore(own->type, own->value, own->traceback);
        own->type = own->value = own->traceback = NULL;
        if (status == DW_OK) status = DW_CANCELLED;
    } else if (status != DW_OK) {
        core_raise(status, dw_context_error(own->context));
    }
    __atomic_store_n(&own->owner, 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&own->mutex);
    return status == DW_OK;
}

void core_hold(core_context *own) { PyEval_RestoreThread(own->thread); }
void core_drop(core_context *own) { own->thread = PyEval_SaveThread(); }

void core_keep_error(core_context *own) {
    if (own->type != NULL) PyErr_Clear();
    else PyErr_Fetch(&own->type, &own->value, &own->traceback);
}
