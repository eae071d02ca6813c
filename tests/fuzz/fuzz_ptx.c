/* Fuzzes PTX: refused with a message, or a module whose kernels are decoded or refused, and run to an end or a finding within a small budget. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/machine.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

enum { BUDGET = 3000, BUFFER = 4096, DEVICE_MEMORY = 1 << 24 };

static void require(dw_context *context, bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "%s: %s\n", what, dw_context_error(context));
    abort();
}

static void run_kernel(dw_context *context, sim_memory *memory, sim_code *code, uint64_t buffer, size_t length) {
    const sim_options options = {.seed = 3, .budget = BUDGET, .races = true, .uninitialised = (length & 1) != 0, .sm_count = 4, .arch = 90, .shared_limit = 1 << 17};
    uint8_t *params = calloc(1, code->param_bytes + 8);
    sim_spares spares = {.lock = PTHREAD_MUTEX_INITIALIZER};
    sim_launch launch = {.context = context, .code = code, .memory = memory, .options = &options, .grid = {2, 1, 1}, .block = {40, 1, 1}, .cluster = {1, 1, 1},
                         .params = params, .epoch = 1, .spares = &spares};
    if (params == NULL) return;
    for (size_t i = 0; i + 8 <= code->param_bytes; i += 8) memcpy(params + i, &buffer, 8);
    dw_status status = sim_run(&launch);
    require(context, status == DW_OK || dw_context_error(context)[0] != '\0', "an end without a message");
    sim_spares_free(&spares);
    free(params);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    const dw_context_options one_thread = {.threads = 1};
    dw_context *context;
    ptx_module *module;
    if (dw_context_create(&one_thread, &context) != DW_OK) return 0;
    dw_status status = ptx_parse(context, "fuzz", (const char *)bytes, length, &module);
    require(context, status != DW_INTERNAL, "a text makes us contradict ourselves");
    require(context, status == DW_OK || dw_context_error(context)[0] != '\0', "a refusal without a message");
    if (status == DW_OK) {
        sim_memory memory;
        uint64_t buffer;
        sim_memory_init(&memory, context, DEVICE_MEMORY);
        if (sim_memory_alloc(&memory, BUFFER, &buffer) == DW_OK && sim_place_variables(context, module, &memory) == DW_OK) {
            for (size_t i = 0; i < module->function_count && i < 4; i++) {
                sim_code *code;
                if (module->functions[i]->entry && sim_decode(context, module, module->functions[i], &code) == DW_OK) run_kernel(context, &memory, code, buffer, length);
            }
        }
        sim_memory_free(&memory);
        ptx_destroy(module);
    }
    dw_context_destroy(context);
    return 0;
}
