/* The context: the last error's text, the allocator, the log, cancellation, and the pool of threads made at first use.
 * Holds nothing of models or devices. */
#include "base/base.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define ERROR_BYTES 4096   /* a message always has its room, so that none is lost for lack of memory */
#define THREADS_MAX 4096

struct dw_context {
    dw_allocator allocator;
    int threads;
    void (*log)(void *user, dw_log_level level, const char *text);
    void *log_user;
    int (*cancelled)(void *user);
    void *cancelled_user;
    pool *pool;                 /* NULL until base_pool */
    bool shares_pool;           /* it is another context's */
    size_t failed_allocations;
    dw_status status;           /* of error */
    char error[ERROR_BYTES];
};

static const char *const status_names[] = {
#define DW_STATUS(name, meaning) #name,
#include "deepwell/status.def"
#undef DW_STATUS
};

static const char *const status_meanings[] = {
#define DW_STATUS(name, meaning) meaning,
#include "deepwell/status.def"
#undef DW_STATUS
};

static void *default_alloc(void *user, size_t bytes, size_t align) {
    (void)user;
    if (align <= _Alignof(max_align_t)) return malloc(bytes);
    size_t rounded = base_align_up(bytes, align);   /* as aligned_alloc asks */
    return rounded < bytes ? NULL : aligned_alloc(align, rounded);
}

static void default_release(void *user, void *memory, size_t bytes, size_t align) {
    (void)user, (void)bytes, (void)align;
    free(memory);
}

/* The CPUs in this process's affinity mask; 1 when the system does not tell. */
static int usable_cpus(void) {
    cpu_set_t sets[64];   /* the kernel refuses a mask smaller than its own: this one has 65536 CPUs */
    int count = sched_getaffinity(0, sizeof sets, sets) == 0 ? CPU_COUNT_S(sizeof sets, sets) : 0;
    return count > 0 ? count : 1;
}

/* vsnprintf into room bytes; a text that does not fit ends in "...". */
static void print_clipped(char *at, size_t room, const char *format, va_list arguments) {
    int length = vsnprintf(at, room, format, arguments);
    if (length < 0) {
        snprintf(at, room, "(a message that could not be formatted: %s)", format);
    } else if ((size_t)length >= room && room > 4) {
        memcpy(at + room - 4, "...", 4);
    }
}

dw_status base_fail(dw_context *context, dw_status status, const char *format, ...) {
    if (context == NULL) return status;
    char message[ERROR_BYTES];   /* not in place: an argument may be the last message */
    int prefix = snprintf(message, sizeof message, "%s: ", dw_status_name(status));
    va_list arguments;
    va_start(arguments, format);
    print_clipped(message + prefix, sizeof message - (size_t)prefix, format, arguments);
    va_end(arguments);
    memcpy(context->error, message, strlen(message) + 1);
    context->status = status;
    return status;
}

dw_status base_fail_at(dw_context *context, dw_status status, const char *format, ...) {
    if (context == NULL) return status;
    char place[ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    print_clipped(place, sizeof place, format, arguments);
    va_end(arguments);
    size_t length = strlen(context->error);
    size_t room = sizeof context->error - length;
    if ((size_t)snprintf(context->error + length, room, " (%s)", place) >= room && room > 4) {
        memcpy(context->error + sizeof context->error - 4, "...", 4);
    }
    return status;
}

void base_log(dw_context *context, dw_log_level level, const char *format, ...) {
    if (context == NULL || context->log == NULL) return;
    char line[ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    print_clipped(line, sizeof line, format, arguments);
    va_end(arguments);
    context->log(context->log_user, level, line);
}

dw_status base_last_status(const dw_context *context) { return context->status; }

dw_status base_poll(dw_context *context) {
    if (context->cancelled == NULL || !context->cancelled(context->cancelled_user)) return DW_OK;
    return base_fail(context, DW_CANCELLED, "the caller asked to stop");
}

dw_status base_alloc(dw_context *context, size_t bytes, size_t align, void **memory) {
    *memory = NULL;
    if (bytes == 0) return DW_OK;
    *memory = context->allocator.alloc(context->allocator.user, bytes, align);
    if (*memory != NULL) return DW_OK;
    context->failed_allocations++;
    return base_fail(context, DW_NO_MEMORY, "%zu bytes aligned to %zu could not be allocated; free memory or ask for smaller sizes",
                     bytes, align);
}

void base_release(dw_context *context, void *memory, size_t bytes, size_t align) {
    if (memory != NULL) context->allocator.release(context->allocator.user, memory, bytes, align);
}

size_t base_failed_allocations(const dw_context *context) { return context->failed_allocations; }

dw_status base_pool(dw_context *context, pool **pool) {
    if (context->pool == NULL) TRY(pool_create(context, context->threads, &context->pool));
    *pool = context->pool;
    return DW_OK;
}

dw_status dw_context_create(const dw_context_options *options, dw_context **context) {
    static const dw_allocator default_allocator = {default_alloc, default_release, NULL};
    static const dw_context_options default_options;
    if (context == NULL) return DW_INVALID;
    *context = NULL;
    if (options == NULL) options = &default_options;
    const dw_allocator *allocator = options->allocator != NULL ? options->allocator : &default_allocator;
    if (allocator->alloc == NULL || allocator->release == NULL) return DW_INVALID;
    if (options->threads < 0 || options->threads > THREADS_MAX) return DW_INVALID;

    dw_context *made = allocator->alloc(allocator->user, sizeof *made, _Alignof(dw_context));
    if (made == NULL) return DW_NO_MEMORY;
    int cpus = usable_cpus();
    *made = (dw_context){
        .allocator = *allocator,
        .threads = options->threads > 0 ? options->threads : cpus < THREADS_MAX ? cpus : THREADS_MAX,
        .log = options->log,
        .log_user = options->log_user,
        .cancelled = options->cancelled,
        .cancelled_user = options->cancelled_user,
    };
    *context = made;
    if (options->threads_of == NULL) return DW_OK;
    made->threads = options->threads_of->threads;
    dw_status status = base_pool(options->threads_of, &made->pool);
    made->shares_pool = true;
    if (status == DW_OK) return DW_OK;
    dw_context_destroy(made);
    *context = NULL;
    return status;
}

void dw_context_destroy(dw_context *context) {
    if (context == NULL) return;
    if (!context->shares_pool) pool_destroy(context->pool);
    context->allocator.release(context->allocator.user, context, sizeof *context, _Alignof(dw_context));
}

const char *dw_context_error(const dw_context *context) { return context->error; }

int dw_context_threads(const dw_context *context) { return context->threads; }

const char *dw_status_name(dw_status status) {
    return (unsigned)status < DW_STATUS_COUNT ? status_names[status] : "?";
}

const char *dw_status_meaning(dw_status status) {
    return (unsigned)status < DW_STATUS_COUNT ? status_meanings[status] : "?";
}

#define TEXT_OF(number) TEXT_OF_(number)
#define TEXT_OF_(number) #number

const char *dw_version(void) {
    return TEXT_OF(DW_VERSION_MAJOR) "." TEXT_OF(DW_VERSION_MINOR) "." TEXT_OF(DW_VERSION_PATCH);
}
