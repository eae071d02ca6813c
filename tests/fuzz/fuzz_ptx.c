/* Fuzzes PTX: refused with a message, or a module whose kernels are decoded or refused, and run to an end or a finding within a small budget. */
#include "fuzz/run_kernels.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    const fuzz_launch launch = {.options = {.seed = 3, .budget = 3000, .races = true, .uninitialised = (length & 1) != 0, .sm_count = 4, .arch = 90, .shared_limit = 1 << 17},
                                .grid = {2, 1, 1}, .block = {40, 1, 1}, .cluster = {1, 1, 1}, .buffer_bytes = 4096, .repeat_buffers = true};
    fuzz_run_kernels(bytes, length, &launch);
    return 0;
}
