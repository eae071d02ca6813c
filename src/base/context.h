/* The context among the files of base. */
#ifndef BASE_CONTEXT_H
#define BASE_CONTEXT_H

#include "base/base.h"

enum { ERROR_BYTES = 4096 };   /* a message always has its room, so that none is lost for lack of memory */

struct dw_context {
    dw_allocator allocator;
    int threads;
    void (*log)(void *user, dw_log_level level, const char *text);
    void *log_user;
    int (*cancelled)(void *user);
    void *cancelled_user;
    pool *pool;                 /* NULL until base_pool */
    bool shares_pool;           /* it is another context's */
    base_kept *kept;
    size_t failed_allocations;
    dw_status status;           /* of error */
    char error[ERROR_BYTES];
};

/* malloc and free as an allocator (memory.c): of contexts that bring none. */
extern const dw_allocator context_default_allocator;

#endif
