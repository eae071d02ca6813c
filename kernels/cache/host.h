/* What an attention that writes its own token (kernel_run.write) takes of the write of caches. */
#ifndef KERNELS_CACHE_HOST_H
#define KERNELS_CACHE_HOST_H

#include "kernels/cache/cache_cuda.h"
#include "kernels/kernels.h"

/* Of the write, a cache_update: is it of one token, which lies in vectors that lanes share? NULL, or why not; why may be NULL. */
const char *cache_token_refusal(const kernel_run *write, text *why);
/* Fills in the parts of the token (CACHE_TOKEN_KEYS ..) and its place. Slots are those of the write within the attention's run (KERNEL_WRITE). UNSUPPORTED: it is not in place. */
dw_status cache_take_token(kernel_launch *launch, const kernel_run *write, cache_arguments *a);

#endif
