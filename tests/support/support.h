/* What test programs share: cmocka with what it needs, and an allocator that counts and can fail. */
#ifndef SUPPORT_SUPPORT_H
#define SUPPORT_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "deepwell/status.h"

/* Counts what is live, and fails the fail_at-th allocation (counted from 1; 0: none). Zero-initialise it. */
typedef struct test_memory {
    size_t calls, fail_at;
    size_t live_count, live_bytes, peak_bytes;
    dw_allocator allocator;   /* filled in by test_context_create */
} test_memory;

/* A context over memory with the given number of threads; NULL when its own allocation was the one that failed. */
dw_context *test_context_create(test_memory *memory, int threads);

/* Runs scenario(context, argument) with every allocation failing once, in turn, until it succeeds. Fails the test when a failed
 * allocation is not reported as NO_MEMORY with a message, or when memory stays live after the scenario and its context. */
void test_every_allocation(dw_status (*scenario)(dw_context *context, void *argument), void *argument);

/* Fails the test unless status is expected and the context's message contains part. */
void test_assert_fails(dw_context *context, dw_status status, dw_status expected, const char *part);

#endif
