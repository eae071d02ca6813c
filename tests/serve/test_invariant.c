/* An invariant model on a simulated GPU: a text has all bits of its logits beside any others, where without the option it has not. */
#include "deepwell/serve.h"
#include "engine/engine.h"

#include <string.h>

#include "support/session.h"
#include "support/support.h"

enum { VOCABULARY = 32 };

static uint64_t next(uint64_t *random) { return (*random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407)) >> 33; }

/* Products of 512 columns, in bf16, which a GPU divides in one way for a row by itself and in another for many. */
static const char WIDE[] =
    "graph g\n  symbol b 1..8\n  symbol s 1..512\n  input ids i64[b,s]\n  param t bf16[32,512]\n  param w bf16[512,512]\n  param u bf16[512,512]\n  %1 = take t, ids {axis=0}\n"
    "  %2 = matmul %1, w {bt=true,post=\"relu\"}\n  %3 = matmul %2, u {bt=true}\n  %4 = reshape %3 {shape=[b,s,8,64]}\n  %5 = transpose %4 {order=[0,2,1,3]}\n"
    "  %6 = attention %5, %5, %5 {scale=0.02,causal=true}\n  %7 = transpose %6 {order=[0,2,1,3]}\n  %8 = reshape %7 {shape=[b,s,512]}\n  %9 = matmul %8, t {bt=true,to=f32}\n  output logits %9\n";

static dw_model *make_wide(dw_context *context, unsigned flags) {
    static const struct { const char *name; int64_t rows, cols; } of[] = {{"t", 32, 512}, {"w", 512, 512}, {"u", 512, 512}};
    static uint16_t weights[COUNT_OF(of)][512 * 512];
    dw_named_tensor tensors[COUNT_OF(of)];
    dw_graph *graph;
    dw_model *model;
    uint64_t random = 11;
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        for (int64_t k = 0; k < of[i].rows * of[i].cols; k++) num_store(DW_FORMAT_bf16, weights[i], k, (double)((int64_t)next(&random) % 4001 - 2000) / 30000, true);
        tensors[i] = (dw_named_tensor){of[i].name, {.format = DW_FORMAT_bf16, .rank = 2, .dims = {of[i].rows, of[i].cols}, .strides = {of[i].cols, 1}, .data = weights[i]}};
    }
    assert_ok(context, dw_graph_parse(context, "g", WIDE, strlen(WIDE), &graph));
    assert_ok(context, dw_graph_bind(graph, COUNT_OF(of), tensors));
    assert_ok(context, dw_model_create(context, graph, &(dw_model_options){.device = "sim:h200", .flags = DW_MODEL_GENERATE_ONLY | flags}, &model));
    return model;
}

/* The first text's logits of its last token, among so many texts: their prompts are longer, so all that the first one had read came in runs of other sizes. */
static void logits_beside(unsigned flags, int count, float *logits) {
    enum { TEXTS = 4, NEW = 2 };
    static const int64_t lengths[TEXTS] = {9, 40, 23, 31};
    static int64_t ids[TEXTS][64], made[TEXTS][NEW];
    dw_prompt prompts[TEXTS];
    dw_context *context;
    dw_session *session;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    dw_model *model = make_wide(context, flags);
    assert_ok(context, dw_session_create(context, model, &(dw_session_options){.max_tokens = 80, .rows = TEXTS}, &session));
    for (int i = 0; i < count; i++) {
        for (int64_t k = 0; k < lengths[i]; k++) ids[i][k] = (int64_t)(num_random((uint64_t)i, (uint64_t)k) % VOCABULARY);
        prompts[i] = (dw_prompt){.count = lengths[i], .ids = ids[i], .made_ids = made[i]};
    }
    assert_ok(context, dw_session_generate_batch(session, count, prompts, &(dw_generate_options){.tokens = NEW}, NULL));
    const generation *g = session->generation;
    const size_t row = VOCABULARY * sizeof *logits;
    assert_true(g->text[0].picked >= 0);
    assert_int_equal(engine_stage_read(session, generation_runner(session), (size_t)g->output, (size_t)g->text[0].picked * row, row, logits), DW_OK);
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_context_destroy(context);
}

/* All bits of a text's logits, alone and beside others, on a simulated H200: the same with the option, and not without it, so the sizes are such that kernels divide sums in other ways. */
static void an_invariant_text_has_its_logits_beside_others(void **state) {
    float alone[VOCABULARY], beside[VOCABULARY];
    (void)state;
    if (kernel_lacks_images() != NULL) skip();
    logits_beside(DW_MODEL_INVARIANT, 1, alone);
    logits_beside(DW_MODEL_INVARIANT, 4, beside);
    assert_memory_equal(alone, beside, sizeof alone);
    logits_beside(0, 1, alone);
    logits_beside(0, 4, beside);
    assert_memory_not_equal(alone, beside, sizeof alone);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_invariant_text_has_its_logits_beside_others)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
