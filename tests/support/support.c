/* What test programs share; see support.h. */
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

static void *counted_alloc(void *user, size_t bytes, size_t align) {
    test_memory *memory = user;
    if (++memory->calls == memory->fail_at) return NULL;
    void *made = aligned_alloc(align, (bytes + align - 1) / align * align);
    assert_non_null(made);
    memset(made, 0xa5, bytes);   /* so that nobody counts on zeros */
    memory->live_count++;
    memory->live_bytes += bytes;
    if (memory->peak_bytes < memory->live_bytes) memory->peak_bytes = memory->live_bytes;
    return made;
}

static void counted_release(void *user, void *released, size_t bytes, size_t align) {
    test_memory *memory = user;
    (void)align;
    assert_non_null(released);
    assert_true(memory->live_count > 0 && memory->live_bytes >= bytes);
    memory->live_count--;
    memory->live_bytes -= bytes;
    free(released);
}

dw_context *test_context_create(test_memory *memory, int threads) {
    memory->allocator = (dw_allocator){counted_alloc, counted_release, memory};
    dw_context_options options = {.allocator = &memory->allocator, .threads = threads};
    dw_context *context;
    dw_status status = dw_context_create(&options, &context);
    if (status == DW_OK) return context;
    assert_int_equal(status, DW_NO_MEMORY);
    assert_true(memory->calls == memory->fail_at);
    return NULL;
}

void test_every_allocation(dw_status (*scenario)(dw_context *context, void *argument), void *argument) {
    for (size_t fail_at = 1;; fail_at++) {
        test_memory memory = {.fail_at = fail_at};
        dw_context *context = test_context_create(&memory, 1);
        if (context != NULL) {
            dw_status status = scenario(context, argument);
            if (memory.calls < fail_at) {
                if (status != DW_OK) fail_msg("with no allocation failing: %s", dw_context_error(context));
            } else {
                if (status != DW_NO_MEMORY) fail_msg("allocation %zu failed, status %s", fail_at, dw_status_name(status));
                assert_non_null(strstr(dw_context_error(context), "NO_MEMORY"));
            }
            dw_context_destroy(context);
        }
        if (memory.live_count != 0) {
            fail_msg("allocation %zu failed and %zu of %zu allocations stay live", fail_at, memory.live_count, memory.calls);
        }
        if (memory.calls < fail_at) return;
    }
}

void test_assert_fails(dw_context *context, dw_status status, dw_status expected, const char *part) {
    if (status != expected) {
        fail_msg("%s instead of %s: %s", dw_status_name(status), dw_status_name(expected), dw_context_error(context));
    }
    if (strstr(dw_context_error(context), part) == NULL) fail_msg("\"%s\" is not in: %s", part, dw_context_error(context));
}
