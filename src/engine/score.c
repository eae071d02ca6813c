/* The likelihood of a given text, window by window through the whole graph. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "engine/engine.h"

/* -log p(id) by a log-sum-exp in double. */
static double surprise(const float *logits, int64_t vocabulary, int64_t id) {
    double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < vocabulary; i++) largest = logits[i] > largest ? logits[i] : largest;
    for (int64_t i = 0; i < vocabulary; i++) sum += exp((double)logits[i] - largest);
    return largest + log(sum) - (double)logits[id];
}

static void fill_text(const ir_graph *graph, const generation *g, int64_t count, const int64_t *ids, void *const *buffers) {
    generation_fill_constants(graph, g, buffers, count);
    for (size_t i = 0; i < graph->input_count; i++)
        for (int64_t k = 0; g->feeds[i] == FEED_IDS && k < count; k++) generation_store(graph->inputs[i]->type.format, buffers[i], k, ids[k]);
}

/* One window through the full plan: [1, count] ids in, [1, count, vocabulary] logits out. */
static dw_status score_window(dw_session *session, const generation *g, int64_t count, const int64_t *ids, float *logits, void **buffers,
                              double *nats) {
    engine_runner *runner = &session->full;
    const ir_graph *graph = runner->program->plan->graph;
    plan_binding *binding;
    fill_text(graph, g, count, ids, buffers);
    for (size_t i = 0; i < graph->input_count; i++) runner->inputs[i] = buffers[i];
    runner->outputs[g->output] = logits;
    generation_set_sizes(runner, g, count, 1, count);
    TRY(engine_bind(session, runner, &binding));
    TRY(engine_execute(session, runner, binding));
    for (int64_t i = 0; i + 1 < count; i++) *nats += surprise(logits + i * g->vocabulary, g->vocabulary, ids[i + 1]);
    return DW_OK;
}

/* What the whole graph is fed, and that it is a model of token ids alone. */
static dw_status find_feeds(dw_session *session, generation *g) {
    dw_context *context = session->context;
    *g = (generation){.mode = GENERATION_WHOLE};
    if (session->full.program == NULL) return base_fail(context, DW_INVALID, "scoring needs the full model: open it without DW_MODEL_GENERATE_ONLY");
    const ir_graph *graph = session->full.program->plan->graph;
    TRY(generation_find(session, graph, g));
    for (size_t i = 0; i < graph->input_count; i++)
        if (g->feeds[i] == FEED_CALLER) return base_fail(context, DW_UNSUPPORTED, "scoring takes models of token ids alone; this one reads %s too", graph->inputs[i]->name);
    if (g->fixed > 0) return base_fail(context, DW_UNSUPPORTED, "scoring needs a model exported with a dynamic number of tokens");
    memcpy(g->sizes, session->full.program->plan->typical, (size_t)dim_symbol_count(graph->dims) * sizeof *g->sizes);
    if (graph->output_count != 1 || g->logits_format != DW_FORMAT_f32)
        return base_fail(context, DW_UNSUPPORTED, "scoring takes models with one output, fp32 logits");
    return DW_OK;
}

dw_status engine_text_inputs(dw_session *session, arena *arena, int64_t count, const int64_t *ids, dw_named_tensor *inputs) {
    generation g;
    void *buffers[GENERATION_TENSORS] = {0};
    TRY(find_feeds(session, &g));
    const ir_graph *graph = session->full.program->plan->graph;
    generation_set_sizes(&session->full, &g, count, 1, count);
    for (size_t i = 0; i < graph->input_count; i++) {
        TRY(op_tensor_bind(session->context, &graph->inputs[i]->type, session->full.symbols, NULL, &inputs[i].tensor));
        buffers[i] = inputs[i].tensor.data = arena_new(arena, (size_t)op_tensor_count(&inputs[i].tensor) * 8 + 8, 8);
        if (buffers[i] == NULL) return DW_NO_MEMORY;
        inputs[i].name = graph->inputs[i]->name;
    }
    fill_text(graph, &g, count, ids, buffers);
    return DW_OK;
}

dw_status dw_session_score(dw_session *session, int64_t count, const int64_t *ids, int64_t window, double *nats) {
    dw_context *context = session->context;
    generation g;
    void *buffers[GENERATION_TENSORS] = {0}, *logits = NULL;
    *nats = 0;
    if (count < 2 || window < 2) return base_fail(context, DW_INVALID, "scoring needs at least two ids and a window of at least two");
    TRY(find_feeds(session, &g));
    const ir_graph *graph = session->full.program->plan->graph;
    size_t logits_bytes = (size_t)window * (size_t)g.vocabulary * sizeof(float), input_bytes = (size_t)window * 8;
    dw_status status = base_alloc(context, logits_bytes, ENGINE_ALIGN, &logits);
    for (size_t i = 0; status == DW_OK && i < graph->input_count; i++) status = base_alloc(context, input_bytes, ENGINE_ALIGN, &buffers[i]);
    int64_t scored = 0;
    for (int64_t at = 0; status == DW_OK && at + 1 < count; at += window - 1) {
        int64_t length = count - at < window ? count - at : window;
        for (int64_t i = 0; i < length && status == DW_OK; i++)
            if (ids[at + i] < 0 || ids[at + i] >= g.vocabulary)
                status = base_fail(context, DW_INVALID, "id %" PRId64 " is outside the vocabulary", ids[at + i]);
        if (status == DW_OK) status = score_window(session, &g, length, ids + at, logits, buffers, nats);
        scored += length - 1;
    }
    base_release(context, logits, logits_bytes, ENGINE_ALIGN);
    for (size_t i = 0; i < graph->input_count; i++) base_release(context, buffers[i], input_bytes, ENGINE_ALIGN);
    *nats /= scored > 0 ? (double)scored : 1;
    return status;
}
