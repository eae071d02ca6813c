/* Fuzzes exported programs: the JSON of an archive becomes a graph that passes its checks, also after cleaning and fusing, or is refused. */
#include <stdio.h>
#include <stdlib.h>

#include "capture/capture.h"
#include "pass/pass.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void require(dw_context *context, bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "%s: %s\n", what, dw_context_error(context));
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    static const int64_t sizes[] = {3, 4};
    dw_context *context;
    ir_weights weights;
    ir_weight *weight;
    ir_graph *graph;
    const pass_options options = {.check = true, .fold_bytes = 1024};
    if (dw_context_create(NULL, &context) != DW_OK) return 0;
    ir_weights_init(&weights, context);
    if (ir_weights_new(&weights, "weight", DW_FORMAT_f32, 2, sizes, &weight) != DW_OK || ir_weights_new(&weights, "bias", DW_FORMAT_f32, 1, sizes, &weight) != DW_OK)
        abort();
    dw_status status = capture_program(context, "fuzz", (const char *)bytes, length, &weights, &graph);
    require(context, status != DW_INTERNAL, "a program makes us contradict ourselves");
    require(context, status == DW_OK || dw_context_error(context)[0] != '\0', "a refusal without a message");
    if (status == DW_OK) {
        require(context, ir_check(graph) == DW_OK, "a captured graph fails its check");
        status = pass_run(graph, PASS_STAGE_CLEAN | PASS_STAGE_FUSE, &options);
        require(context, status != DW_INTERNAL, "the passes contradict themselves");
        ir_graph_destroy(graph);
    }
    ir_weights_free(&weights);
    dw_context_destroy(context);
    return 0;
}
