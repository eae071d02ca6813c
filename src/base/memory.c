/* Memory from the context's allocator. */
#include "base/context.h"

#include <stdlib.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

size_t base_align_up(size_t value, size_t align) {
    size_t over = value % align;
    return over == 0 ? value : value + (align - over);
}

#if defined(__linux__)
/* Large memory begins at a multiple of a large page, and the system is asked for such pages: what reads weights or caches from memory then waits for fewer addresses to be looked up. What does not fill a last one is in
 * small ones. */
enum { LARGE_PAGE = 2 << 20 };

static void *large_alloc(size_t bytes) {
    void *memory;
    if (posix_memalign(&memory, LARGE_PAGE, bytes) != 0) return NULL;
    (void)madvise(memory, bytes / LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE);   /* memory without them is as good */
    return memory;
}
#endif

static void *default_alloc(void *user, size_t bytes, size_t align) {
    (void)user;
#if defined(__linux__)
    if (bytes >= LARGE_PAGE) return large_alloc(bytes);
#endif
    if (align <= _Alignof(max_align_t)) return malloc(bytes);
    size_t rounded = base_align_up(bytes, align);   /* as aligned_alloc asks */
    return rounded < bytes ? NULL : aligned_alloc(align, rounded);
}

static void default_release(void *user, void *memory, size_t bytes, size_t align) {
    (void)user, (void)bytes, (void)align;
    free(memory);
}

const dw_allocator context_default_allocator = {default_alloc, default_release, NULL};

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
