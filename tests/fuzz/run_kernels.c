/* A text is refused with a message, or it is a module whose kernels are refused, or run to an end or a finding within their budget. */
#include "fuzz/run_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICE_MEMORY = 1 << 24, ENTRIES = 4, BUFFERS = 2 };

static void require(dw_context *context, bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "%s: %s\n", what, dw_context_error(context));
    abort();
}

static void require_said(dw_context *context, dw_status status, const char *what) {
    require(context, status != DW_INTERNAL, what);
    require(context, status == DW_OK || dw_context_error(context)[0] != '\0', "an end without a message");
}

static bool make_buffer(sim_memory *memory, size_t bytes, uint64_t *address) {
    if (sim_memory_alloc(memory, bytes, address) != DW_OK) return false;
    sim_allocation *a = sim_memory_find(memory, *address);
    for (size_t i = 0; i < a->bytes; i++) a->host[i] = (uint8_t)(i * 37 >> 3);
    memset(a->shadow, SHADOW_WRITTEN, a->bytes);
    return true;
}

static void run_kernel(dw_context *context, sim_memory *memory, sim_code *code, const uint64_t *buffers, const fuzz_launch *how) {
    sim_options options = how->options;
    uint8_t *params = calloc(1, code->param_bytes + sizeof *buffers * BUFFERS);
    sim_spares spares = {.lock = PTHREAD_MUTEX_INITIALIZER};
    sim_launch launch = {.context = context, .code = code, .memory = memory, .options = &options, .dynamic_shared = how->dynamic_shared, .params = params, .epoch = 1, .spares = &spares};
    if (params == NULL) return;
    if (options.arch == 0) options.arch = code->module->arch;
    memcpy(launch.grid, how->grid, sizeof launch.grid);
    memcpy(launch.block, how->block, sizeof launch.block);
    memcpy(launch.cluster, how->cluster, sizeof launch.cluster);
    const size_t given = how->repeat_buffers ? code->param_bytes / sizeof *buffers : BUFFERS;
    for (size_t i = 0; i < given; i++) memcpy(params + i * sizeof *buffers, &buffers[i % BUFFERS], sizeof *buffers);
    require_said(context, sim_run(&launch), "a kernel makes us contradict ourselves");
    sim_spares_free(&spares);
    free(params);
}

static void run_module(dw_context *context, ptx_module *module, const fuzz_launch *how) {
    sim_memory memory;
    uint64_t buffers[BUFFERS];
    sim_memory_init(&memory, context, DEVICE_MEMORY);
    if (make_buffer(&memory, how->buffer_bytes, &buffers[0]) && make_buffer(&memory, how->buffer_bytes, &buffers[1]) && sim_place_variables(context, module, &memory) == DW_OK) {
        for (size_t i = 0; i < module->function_count && i < ENTRIES; i++) {
            sim_code *code;
            if (module->functions[i]->entry && sim_decode(context, module, module->functions[i], &code) == DW_OK) run_kernel(context, &memory, code, buffers, how);
        }
    }
    sim_memory_free(&memory);
}

void fuzz_run_kernels(const uint8_t *bytes, size_t length, const fuzz_launch *how) {
    const dw_context_options one_thread = {.threads = 1};
    dw_context *context;
    ptx_module *module;
    if (dw_context_create(&one_thread, &context) != DW_OK) return;
    dw_status status = ptx_parse(context, "fuzz", (const char *)bytes, length, &module);
    require_said(context, status, "a text makes us contradict ourselves");
    if (status == DW_OK) {
        run_module(context, module, how);
        ptx_destroy(module);
    }
    dw_context_destroy(context);
}
