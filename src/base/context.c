/* The context is made and destroyed, and its pool of threads is made at first use. What it does besides is in error.c and memory.c.
 * Holds nothing of models or devices. */
#include "base/context.h"

#include <sched.h>

enum { THREADS_MAX = 4096 };

/* The CPUs in this process's affinity mask; 1 when the system does not say. */
static int usable_cpus(void) {
    cpu_set_t sets[64];   /* the kernel refuses a mask smaller than its own: this one has 65536 CPUs */
    int count = sched_getaffinity(0, sizeof sets, sets) == 0 ? CPU_COUNT_S(sizeof sets, sets) : 0;
    return count > 0 ? count : 1;
}

dw_status base_pool(dw_context *context, pool **pool) {
    if (context->pool == NULL) TRY(pool_create(context, context->threads, &context->pool));
    *pool = context->pool;
    return DW_OK;
}

dw_status dw_context_create(const dw_context_options *options, dw_context **context) {
    static const dw_context_options default_options;
    if (context == NULL) return DW_INVALID;
    *context = NULL;
    if (options == NULL) options = &default_options;
    const dw_allocator *allocator = options->allocator != NULL ? options->allocator : &context_default_allocator;
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

dw_status base_context_like(const dw_context *context, dw_context **made) {
    const dw_context_options options = {.allocator = &context->allocator, .threads = context->threads, .log = context->log, .log_user = context->log_user};
    TRY(dw_context_create(&options, made));
    if (context->shares_pool) (*made)->pool = context->pool;
    (*made)->shares_pool = context->shares_pool;
    return DW_OK;
}

void base_cancel_as(dw_context *context, const dw_context *other) {
    context->cancelled = other != NULL ? other->cancelled : NULL;
    context->cancelled_user = other != NULL ? other->cancelled_user : NULL;
}

void base_keep(dw_context *context, base_kept *kept) {
    kept->before = context->kept;
    context->kept = kept;
}

void dw_context_destroy(dw_context *context) {
    if (context == NULL) return;
    for (base_kept *kept = context->kept, *before; kept != NULL; kept = before) {
        before = kept->before;
        kept->close(context, kept);
    }
    if (!context->shares_pool) pool_destroy(context->pool);
    context->allocator.release(context->allocator.user, context, sizeof *context, _Alignof(dw_context));
}

int dw_context_threads(const dw_context *context) { return context->threads; }

#define TEXT_OF(number) TEXT_OF_(number)
#define TEXT_OF_(number) #number

const char *dw_version(void) {
    return TEXT_OF(DW_VERSION_MAJOR) "." TEXT_OF(DW_VERSION_MINOR) "." TEXT_OF(DW_VERSION_PATCH);
}
