/* Statuses, the context that holds error texts, and the settings shared by all that is made from it.
 * Nothing here knows of models or devices. */
#ifndef DEEPWELL_STATUS_H
#define DEEPWELL_STATUS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define DW_API
#elif defined(__GNUC__)
#define DW_API __attribute__((visibility("default")))
#else
#define DW_API
#endif

#define DW_VERSION_MAJOR 0
#define DW_VERSION_MINOR 1
#define DW_VERSION_PATCH 0

typedef enum dw_status {
#define DW_STATUS(name, meaning) DW_##name,
#include "deepwell/status.def"
#undef DW_STATUS
    DW_STATUS_COUNT
} dw_status;

/* The status's name ("MISMATCH") and its meaning in words; "?" for a number that is no status. */
DW_API const char *dw_status_name(dw_status status);
DW_API const char *dw_status_meaning(dw_status status);

/* Host memory. alloc returns bytes bytes aligned to align (a power of two, at most 4096) or NULL; release gets the same bytes and align. */
typedef struct dw_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*release)(void *user, void *memory, size_t bytes, size_t align);
    void *user;
} dw_allocator;

typedef enum dw_log_level { DW_LOG_WARNING, DW_LOG_INFO, DW_LOG_DEBUG } dw_log_level;

/* Zero-initialise, then set what matters; zero always means the default. */
typedef struct dw_context_options {
    const dw_allocator *allocator;                                   /* default: the C library's; Linux is asked for large pages */
    int threads;                                                     /* of the CPU device; default: the CPUs this process may use */
    struct dw_context *threads_of;                                   /* use the threads of this context, which outlives the new one; NULL: its own. Contexts that
                                                                        share may run in several threads at a time: whoever finds the threads busy works alone,
                                                                        with the same results. Making a context that shares is a use of threads_of */
    void (*log)(void *user, dw_log_level level, const char *text);   /* default: silence; the library itself never prints */
    void *log_user;
    int (*cancelled)(void *user);                                    /* polled in long work; non-zero ends it with CANCELLED */
    void *cancelled_user;
} dw_context_options;

/* A context and all that is made from it are used by one thread at a time. Models are immutable once
 * made, so sessions of other contexts may run on them. */
typedef struct dw_context dw_context;

/* options may be NULL. On failure *context is NULL and the status alone says why. */
DW_API dw_status dw_context_create(const dw_context_options *options, dw_context **context);
/* Destroy what was made from it first. NULL is allowed. */
DW_API void dw_context_destroy(dw_context *context);
/* The text of the last failure, "" before the first: what, where, the values, what to do. Valid until the next failure. */
DW_API const char *dw_context_error(const dw_context *context);
DW_API int dw_context_threads(const dw_context *context);

/* "0.1.0" */
DW_API const char *dw_version(void);

#ifdef __cplusplus
}
#endif
#endif
