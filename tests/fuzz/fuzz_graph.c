/* Fuzzes the text form of graphs: any bytes are either refused with a message, or give a graph that passes its checks, prints and parses
 * to itself, clones, hashes, stays whole under the cleaning passes, and has gradients or says why not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pass/pass.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

/* Our own bug: the fuzzer keeps the input. */
static void require(dw_context *context, bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "%s: %s\n", what, dw_context_error(context));
    abort();
}

static void print_and_parse_again(dw_context *context, const ir_graph *graph) {
    text first, second;
    ir_graph *again;
    text_init(&first, context);
    text_init(&second, context);
    require(context, ir_print(graph, &first) == DW_OK, "a parsed graph does not print");
    require(context, ir_parse(context, "printed", text_string(&first), first.length, NULL, &again) == DW_OK, "a printed graph does not parse");
    require(context, ir_print(again, &second) == DW_OK, "a graph does not print twice");
    require(context, strcmp(text_string(&first), text_string(&second)) == 0, "a graph prints another way after parsing");
    ir_graph_destroy(again);
    text_free(&first);
    text_free(&second);
}

static void clone_and_clean(dw_context *context, const ir_graph *graph) {
    ir_graph *clone;
    uint64_t hash, clone_hash;
    const pass_options options = {.check = true, .fold_bytes = 1024};
    require(context, ir_graph_clone(graph, &clone) == DW_OK, "a graph does not clone");
    require(context, ir_hash(graph, &hash) == DW_OK && ir_hash(clone, &clone_hash) == DW_OK && hash == clone_hash, "a clone hashes another way");
    require(context, pass_run(clone, PASS_STAGE_CLEAN, &options) == DW_OK, "the cleaning passes fail");
    print_and_parse_again(context, clone);
    ir_graph_destroy(clone);
}

static void derive_gradients(dw_context *context, const ir_graph *graph) {
    ir_graph *gradients;
    const dw_status status = dw_graph_gradient(graph, NULL, &gradients);
    require(context, status != DW_INTERNAL, "gradients make us contradict ourselves");
    if (status != DW_OK) return;
    require(context, ir_check(gradients) == DW_OK, "a graph of gradients fails its check");
    print_and_parse_again(context, gradients);
    ir_graph_destroy(gradients);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    dw_context *context;
    ir_graph *graph;
    if (dw_context_create(NULL, &context) != DW_OK) return 0;
    dw_status status = ir_parse(context, "fuzz", (const char *)bytes, length, NULL, &graph);
    if (status == DW_OK) {
        require(context, ir_check(graph) == DW_OK, "a parsed graph fails its check");
        print_and_parse_again(context, graph);
        clone_and_clean(context, graph);
        derive_gradients(context, graph);
    } else {
        require(context, status != DW_INTERNAL, "a text makes us contradict ourselves");
        const char *message = dw_context_error(context);
        bool is_clipped = strlen(message) > 4000;   /* the place comes last and has no room */
        require(context, is_clipped || strstr(message, "fuzz:") != NULL, "a message without its place");
    }
    ir_graph_destroy(graph);
    dw_context_destroy(context);
    return 0;
}
