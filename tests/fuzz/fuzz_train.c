/* Fuzzes what a trainer reads. 'o': a text of optimisers, which is refused with its place, or gives a parameter one. 'r': a text of what is made again, which is refused, or gives a node a level. 'c': a checkpoint, after which the trainer is what it was, or of that checkpoint, and takes
 * a step. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pass/gradient/gradient.h"
#include "train/train.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static const char graph_text[] = "graph g\n  input x f32[2,3]\n  param w f32[3,2]\n  param c f32[2]\n  %1 = matmul x, w\n  %2 = add %1, c\n  %3 = mul %2, %2\n  %4 = mean %3 {axes=[0,1]}\n  output loss %4\n";

static void check(dw_context *context, dw_status status) {
    if (status == DW_INTERNAL || (status != DW_OK && dw_context_error(context)[0] == '\0')) abort();
}

static void read_optimizers(dw_context *context, const char *text) {
    train_rules rules;
    const train_rule *rule;
    arena arena;
    arena_init(&arena, context);
    dw_status status = train_rules_parse(&arena, text, &rules);
    check(context, status);
    for (int rank = 0; status == DW_OK && rank < 3; rank++) check(context, train_rule_of(context, &rules, "blocks.0.weight", &(op_type){.rank = rank}, &rule));
    arena_free(&arena);
}

static void read_recompute(dw_context *context, const char *text) {
    gradient_recompute rules;
    arena arena;
    arena_init(&arena, context);
    const dw_status status = gradient_read_recompute(&arena, text, &rules);
    const ir_node node = {.origin = {.module = "blocks.0.attn", .role = "attention"}};
    check(context, status);
    if (status == DW_OK && gradient_recompute_of(&rules, &node) > GRADIENT_RECOMPUTE_block) abort();
    arena_free(&arena);
}

static dw_trainer *make(dw_context *context) {
    static float w[3 * 2] = {1, 2, 3, 4, 5, 6}, c[2];
    const dw_named_tensor weights[] = {{"w", {.format = DW_FORMAT_f32, .rank = 2, .dims = {3, 2}, .strides = {2, 1}, .data = w}}, {"c", {.format = DW_FORMAT_f32, .rank = 1, .dims = {2}, .strides = {1}, .data = c}}};
    dw_graph *graph;
    dw_trainer *trainer;
    if (dw_graph_parse(context, "g", graph_text, strlen(graph_text), &graph) != DW_OK || dw_graph_bind(graph, 2, weights) != DW_OK) abort();
    if (dw_trainer_create(context, graph, NULL, &trainer) != DW_OK) abort();
    return trainer;
}

static void read_checkpoint(dw_context *context, const uint8_t *bytes, size_t length) {
    static float x[2 * 3] = {1, 2, 3, 4, 5, 6};
    const dw_named_tensor input = {"x", {.format = DW_FORMAT_f32, .rank = 2, .dims = {2, 3}, .strides = {3, 1}, .data = x}};
    dw_trainer *trainer = make(context);
    float before[6], after[6];
    char path[64];
    const int file = memfd_create("checkpoint", 0);
    if (file < 0 || write(file, bytes, length) != (ssize_t)length) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (dw_trainer_read(trainer, "w", before, sizeof before) != DW_OK) abort();
    const dw_status status = dw_trainer_resume(trainer, path, NULL);
    check(context, status);
    if (dw_trainer_read(trainer, "w", after, sizeof after) != DW_OK) abort();
    if (status != DW_OK && memcmp(before, after, sizeof before) != 0) abort();
    check(context, dw_trainer_step(trainer, 1, &input, 0.1, NULL));
    dw_trainer_destroy(trainer);
    close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    dw_context *context;
    if (length == 0 || dw_context_create(&(dw_context_options){.threads = 1}, &context) != DW_OK) return 0;
    if (bytes[0] == 'c') {
        read_checkpoint(context, bytes + 1, length - 1);
    } else {
        char *text = malloc(length);
        if (text == NULL) abort();
        memcpy(text, bytes + 1, length - 1);
        text[length - 1] = '\0';
        (bytes[0] == 'r' ? read_recompute : read_optimizers)(context, text);
        free(text);
    }
    dw_context_destroy(context);
    return 0;
}
