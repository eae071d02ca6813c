/* Runs what fuzzed PTX has for kernels: for fuzz_ptx.c and fuzz_kernel.c. */
#ifndef FUZZ_RUN_KERNELS_H
#define FUZZ_RUN_KERNELS_H

#include "sim/machine/machine.h"

/* How each kernel is run. Its parameters begin with the addresses of two buffers, which repeat to their end where every one is to be a valid address. */
typedef struct fuzz_launch {
    sim_options options;          /* arch 0: the module's */
    uint32_t grid[3], block[3], cluster[3];
    size_t dynamic_shared, buffer_bytes;
    bool repeat_buffers;
} fuzz_launch;

/* Parses a text and runs its first entries. Aborts where one of these contradicts itself, or ends without a message. */
void fuzz_run_kernels(const uint8_t *bytes, size_t length, const fuzz_launch *how);

#endif
