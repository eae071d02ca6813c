/* The cached step of every exported model beside the model run whole, by the references: equal up to the order of sums, or refused for the
 * reason that is stated here. */
#include "capture/capture.h"
#include "pass/step/incremental.h"
#include "pass/pass.h"
#include "support/stepwise.h"
#include "support/support.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The references round each value once to its format, so a step differs from the whole by a few roundings of the residual stream: f32 6e-8,
 * bf16 4e-3 relative each. */
#define TOLERANCE 1e-6
#define TOLERANCE_BF16 2e-2

static const int64_t chunks[] = {3, 4, 1, 1, 2, 1, 4, 5, 1};

/* refusal: what the reason begins with; NULL: there is a step. */
typedef struct expectation {
    const char *model, *refusal;
    double tolerance;
} expectation;

static const expectation expectations[] = {
    {"gpt2", NULL, TOLERANCE},
    {"llama", NULL, TOLERANCE},
    {"qwen3", NULL, TOLERANCE},
    {"mistral", NULL, TOLERANCE},
    {"gemma2", NULL, TOLERANCE},
    {"nanogpt", NULL, TOLERANCE},
    {"tril_gpt", NULL, TOLERANCE},
    {"llama_padded", NULL, TOLERANCE},
    {"llama_padded_left", NULL, TOLERANCE},
    {"llama_eager", NULL, TOLERANCE},
    {"llama_functional", NULL, TOLERANCE},
    {"llama_bf16", NULL, TOLERANCE_BF16},
    {"falcon", NULL, TOLERANCE},
    {"gpt_neox", NULL, TOLERANCE},
    {"opt", NULL, TOLERANCE},
    {"phi3", NULL, TOLERANCE},
    {"qwen2", NULL, TOLERANCE},
    {"bloom", NULL, TOLERANCE},
    {"gpt_oss", NULL, TOLERANCE},
    {"mixtral", NULL, TOLERANCE},
    {"qwen3moe", NULL, TOLERANCE},
    {"deepseek", NULL, TOLERANCE},
    {"t5", NULL, TOLERANCE},
    {"t5_gated", NULL, TOLERANCE},
    {"bart", NULL, TOLERANCE},
    {"marian", NULL, TOLERANCE},
    {"whisper", NULL, TOLERANCE},
    {"llama_static", "the length of the token input is fixed", 0},
    {"bert", "attention in encoder.layer.0.attention.self: its mask is not causal", 0},
    {"roberta", "cumsum in", 0},
    {"vit", "no integer input", 0},
    {"pooled_gpt", "mean in", 0},
    {"shifted_gpt", "pad in", 0},
};

static dw_status check_model(const expectation *expected, ir_graph *graph, step_cache cache, text *why) {
    const pass_options options = {.check = true};
    ir_graph *step = NULL, *prelude = NULL;
    double error = 0, last_error = 0;
    bool changed;
    TRY(pass_run(graph, PASS_STAGE_CLEAN | PASS_STAGE_FUSE, &options));
    TRY(pass_incremental(graph, cache, &step, &prelude, why));
    dw_status status = DW_OK;
    if (step == NULL) {
        printf("%s: refused: %s\n", expected->model, text_string(why));
        const bool stated = expected->refusal != NULL && strncmp(text_string(why), expected->refusal, strlen(expected->refusal)) == 0;
        return stated ? DW_OK : base_fail(graph->context, DW_INTERNAL, "refused: %s", text_string(why));
    }
    status = stepwise_compare(graph, step, prelude, COUNT_OF(chunks), chunks, &error);
    if (status == DW_OK) status = pass_last_token(step, &changed);
    if (status == DW_OK) status = pass_run(step, PASS_STAGE_INCREMENTAL, &options);
    if (status == DW_OK) status = stepwise_compare(graph, step, prelude, COUNT_OF(chunks), chunks, &last_error);
    ir_graph_destroy(step);
    ir_graph_destroy(prelude);
    if (status != DW_OK) return status;
    printf("%s%s: %.3g, last token alone %.3g\n", expected->model, cache == STEP_CACHE_PAGES ? " in pages" : "", error, last_error);
    if (!(last_error <= error)) error = last_error;
    if (expected->refusal != NULL) return base_fail(graph->context, DW_INTERNAL, "there is a step; expected the refusal: %s", expected->refusal);
    if (error <= expected->tolerance) return DW_OK;
    return base_fail(graph->context, DW_INTERNAL, "the step differs by %g, allowed %g", error, expected->tolerance);
}

static bool run_model(const expectation *expected, const char *path, step_cache cache) {
    test_memory memory = {0};
    dw_context *context = test_context_create(&memory, 1);
    ir_weights weights;
    ir_graph *graph = NULL;
    text why;
    ir_weights_init(&weights, context);
    text_init(&why, context);
    dw_status status = capture_pt2(context, path, NULL, &weights, &graph);
    if (status == DW_OK) status = check_model(expected, graph, cache, &why);
    if (status != DW_OK) fprintf(stderr, "FAILED %s: %s\n", expected->model, dw_context_error(context));
    text_free(&why);
    ir_graph_destroy(graph);
    ir_weights_free(&weights);
    dw_context_destroy(context);
    if (memory.live_count != 0) fprintf(stderr, "FAILED %s: %zu allocations stay live\n", expected->model, memory.live_count);
    return status == DW_OK && memory.live_count == 0;
}

int main(void) {
    enum { SKIPPED = 77 };
    const char *named = getenv("DEEPWELL_FIXTURES"), *folder = named != NULL ? named : TEST_FIXTURES_DIR;
    int found = 0, failed = 0;
    for (size_t i = 0; i < COUNT_OF(expectations); i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s.pt2", folder, expectations[i].model);
        if (access(path, R_OK) != 0) continue;
        found++;
        failed += !run_model(&expectations[i], path, STEP_CACHE_ROWS);
        if (expectations[i].refusal == NULL) failed += !run_model(&expectations[i], path, STEP_CACHE_PAGES);
    }
    printf("%d models, %d failed\n", found, failed);
    if (found > 0) return failed > 0;
    printf("skipped: no exported models in %s; models/export.py makes them\n", folder);
    return SKIPPED;
}
