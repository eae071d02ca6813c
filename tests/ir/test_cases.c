/* Text cases of the graph's text form: tests/ir/cases/<name>.txt holds a graph, "----", and the graph as it is printed again, or the error.
 * What comes out is parsed and printed once more and must not change; it must pass ir_check, and a clone must print and hash the same. */
#include <string.h>

#include "ir/ir.h"
#include "support/cases.h"

static dw_status print_again(dw_context *context, const text *printed) {
    ir_graph *graph;
    text again;
    TRY(ir_parse(context, "printed", text_string(printed), printed->length, NULL, &graph));
    text_init(&again, context);
    dw_status status = ir_print(graph, &again);
    if (status == DW_OK && strcmp(text_string(&again), text_string(printed)) != 0) {
        status = base_fail(context, DW_INTERNAL, "printed, parsed and printed again it is another text:\n%s", text_string(&again));
    }
    text_free(&again);
    ir_graph_destroy(graph);
    return status;
}

static dw_status check_clone(dw_context *context, const ir_graph *graph, const text *printed) {
    ir_graph *clone;
    text again;
    uint64_t hash = 0, clone_hash = 1;
    TRY(ir_graph_clone(graph, &clone));
    text_init(&again, context);
    dw_status status = ir_check(clone);
    if (status == DW_OK) status = ir_print(clone, &again);
    if (status == DW_OK) status = ir_hash(graph, &hash);
    if (status == DW_OK) status = ir_hash(clone, &clone_hash);
    if (status == DW_OK && (hash != clone_hash || strcmp(text_string(&again), text_string(printed)) != 0)) {
        status = base_fail(context, DW_INTERNAL, "its clone is another graph:\n%s", text_string(&again));
    }
    text_free(&again);
    ir_graph_destroy(clone);
    return status;
}

static dw_status run(dw_context *context, const char *name, const char *input, size_t length, text *output) {
    ir_graph *graph;
    (void)name;
    TRY(ir_parse(context, "case", input, length, NULL, &graph));
    dw_status status = ir_check(graph);
    if (status == DW_OK) status = ir_print(graph, output);
    if (status == DW_OK) status = print_again(context, output);
    if (status == DW_OK) status = check_clone(context, graph, output);
    ir_graph_destroy(graph);
    return status;
}

int main(int argc, char **argv) { return cases_main(argc, argv, TEST_SOURCE_DIR "/tests/ir/cases", run); }
