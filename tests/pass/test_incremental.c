/* Text cases of the cached step: a graph in, its prelude, if it has one, and its step graph or the refusal out; behind a line "last token", the step that gives the last token
 * alone; behind a line "in pages", one whose caches are pages. Where there is a step, a sequence is run whole and in chunks,
 * both by the references, and the outputs must agree to the order of sums. */
#include "pass/step/incremental.h"
#include "pass/pass.h"
#include "support/cases.h"
#include "support/stepwise.h"

/* The references round each result once, so the two differ only where keys that a whole run hides are not there at all in a step. */
#define TOLERANCE 1e-6

static const int64_t chunks[] = {3, 4, 1, 1, 2, 1, 4};

/* ---- cases ------------------------------------------------------------------------------------------------------------------ */

static dw_status clean(ir_graph *graph) {
    static const char *const names[] = {"fuse_attention", "cse", "dead"};
    const pass_options options = {.check = true};
    bool changed;
    for (size_t i = 0; i < COUNT_OF(names); i++) TRY(pass_run_one(graph, pass_find(names[i]), &options, &changed));
    return DW_OK;
}

static dw_status compare(const ir_graph *whole, const ir_graph *step, const ir_graph *prelude) {
    double error;
    TRY(stepwise_compare(whole, step, prelude, COUNT_OF(chunks), chunks, &error));
    if (error <= TOLERANCE) return DW_OK;
    return base_fail(whole->context, DW_INTERNAL, "the step differs from the whole by %g of its norm", error);
}

/* The outputs of step for the last token alone, as an engine asks for them. */
static dw_status restrict_step(ir_graph *step) {
    const pass_options options = {.check = true};
    bool changed;
    TRY(pass_run(step, PASS_STAGE_INCREMENTAL, &options));
    TRY(pass_last_token(step, &changed));
    if (!changed) return base_fail(step->context, DW_INTERNAL, "pass_last_token changed nothing");
    TRY(pass_run_one(step, pass_find("dead"), &options, &changed));
    TRY(pass_last_token(step, &changed));
    return changed ? base_fail(step->context, DW_INTERNAL, "pass_last_token changes its own result") : DW_OK;
}

static dw_status run_graph(ir_graph *graph, bool last_token, step_cache cache, text *output) {
    text why;
    ir_graph *step = NULL, *prelude = NULL;
    TRY(clean(graph));
    text_init(&why, graph->context);
    dw_status status = pass_incremental(graph, cache, &step, &prelude, &why);
    if (status == DW_OK && step == NULL) text_printf(output, "refused: %s\n", text_string(&why));
    if (status == DW_OK && step != NULL && last_token) status = restrict_step(step);
    if (status == DW_OK && step != NULL) status = compare(graph, step, prelude);
    if (status == DW_OK && prelude != NULL) status = ir_print(prelude, output);
    if (status == DW_OK && step != NULL) status = ir_print(step, output);
    text_free(&why);
    ir_graph_destroy(step);
    ir_graph_destroy(prelude);
    return status;
}

static dw_status run_case(dw_context *context, const char *name, const char *input, size_t length, text *output) {
    ir_graph *graph = NULL;
    char line[80];
    const bool last_token = case_take_line(&input, &length, "last token", line, sizeof line);
    const step_cache cache = case_take_line(&input, &length, "in pages", line, sizeof line) ? STEP_CACHE_PAGES : STEP_CACHE_ROWS;
    dw_status status = ir_parse(context, name, input, length, NULL, &graph);
    if (status == DW_OK) status = run_graph(graph, last_token, cache, output);
    ir_graph_destroy(graph);
    return status;
}

int main(int argc, char **argv) { return cases_main(argc, argv, "tests/pass/incremental", run_case); }
