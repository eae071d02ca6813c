/* Fuzzes measured choices: a text is refused with its place, or printed and read again as the same; and a plan takes from it what it can, or says what it cannot. */
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static const char graph_text[] = "graph g\n  input x bf16[s,8]\n  input w bf16[16,8]\n  %1 = matmul x, w {bt=true}\n  %2 = softmax %1 {axis=1}\n  output y %2\n";

static void print_again(arena *arena, const plan_tuning *tuning) {
    text first, second;
    plan_tuning again;
    text_init(&first, arena->context);
    text_init(&second, arena->context);
    if (plan_tuning_print(tuning, &first) != DW_OK || plan_tuning_parse(arena, "again", text_string(&first), first.length, &again) != DW_OK ||
        plan_tuning_print(&again, &second) != DW_OK || strcmp(text_string(&first), text_string(&second)) != 0)
        abort();
    text_free(&first);
    text_free(&second);
}

static void plan_with(dw_context *context, const plan_tuning *tuning) {
    chip_caps chip;
    ir_graph *graph;
    plan *plan, *again;
    text words;
    if (chip_find(context, "h200", 0, &chip) != DW_OK || ir_parse(context, "g", graph_text, strlen(graph_text), NULL, &graph) != DW_OK) abort();
    if (plan_compile(graph, &(plan_options){.chip = &chip, .precision = "fuzz", .tuning = tuning}, &plan) != DW_OK) {
        if (dw_context_error(context)[0] == '\0') abort();
        return;
    }
    text_init(&words, context);
    if (plan_print(plan, &words) != DW_OK || plan_parse(context, "again", text_string(&words), words.length, NULL, &chip, NULL, &again) != DW_OK) abort();
    plan_destroy(again);
    plan_destroy(plan);
    text_free(&words);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    dw_context *context;
    arena arena;
    plan_tuning tuning;
    if (dw_context_create(NULL, &context) != DW_OK) return 0;
    arena_init(&arena, context);
    dw_status status = plan_tuning_parse(&arena, "fuzz", (const char *)bytes, length, &tuning);
    if (status == DW_INTERNAL || (status != DW_OK && dw_context_error(context)[0] == '\0')) abort();
    if (status == DW_OK) {
        print_again(&arena, &tuning);
        plan_with(context, &tuning);
    }
    arena_free(&arena);
    dw_context_destroy(context);
    return 0;
}
