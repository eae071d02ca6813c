/* Generation: prefill, cached decoding and sampling, and the likelihood of a given text. Where a model has no cached step, each token
 * recomputes the whole sequence, and the times say so. Knows token ids only; text is the caller's. */
#include "engine/engine.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* What each input of a generating graph is fed. */
typedef enum feed { FEED_IDS, FEED_MASK, FEED_POSITIONS, FEED_ZEROS, FEED_GIVEN, FEED_UNKNOWN } feed;

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

enum { MAX_TENSORS = 256 };   /* inputs, and outputs */

/* Lies in session->generation. */
typedef struct generation {
    int64_t vocabulary, room;       /* positions that logits has room for */
    int output;                     /* which output is the logits */
    int batch_symbol, new_symbol, past_symbol, max_symbol;   /* -1: none */
    int64_t sizes[ENGINE_MAX_SYMBOLS];   /* of the other symbols */
    feed feeds[MAX_TENSORS];
    void *buffers[MAX_TENSORS];     /* one per input */
    void *spare[MAX_TENSORS];       /* one per other output */
    uint8_t *logits;
    dw_format logits_format;
    candidate *candidates;
    int64_t *sequence;              /* prompt and what was made: max_tokens */
} generation;

static engine_runner *runner_of(dw_session *session) { return session->step.program ? &session->step : &session->full; }

/* ---- what the graph's inputs and outputs are ---- */

static bool is_integer(dw_format format) { return format == DW_FORMAT_i64 || format == DW_FORMAT_i32; }

/* Which output of the prelude it is; -1: none. */
static int given_index(const dw_session *session, const char *name) {
    const ir_graph *prelude = session->prelude.program ? session->prelude.program->plan->graph : NULL;
    for (size_t i = 0; prelude != NULL && i < prelude->output_count; i++)
        if (strcmp(prelude->outputs[i].name, name) == 0) return (int)i;
    return -1;
}

/* Token ids are looked up in a table; the usual companions are known by the names that PyTorch users give them. */
static feed feed_of(const dw_session *session, const ir_value *input) {
    int rank = input->type.rank;
    if (given_index(session, input->name) >= 0) return FEED_GIVEN;
    bool by_token = rank == 2 || (rank == 1 && dim_is_symbol(input->type.dims[0], NULL));
    if (!by_token) return FEED_UNKNOWN;
    if (strstr(input->name, "mask") != NULL) return FEED_MASK;
    if (strstr(input->name, "position") != NULL && is_integer(input->type.format)) return FEED_POSITIONS;
    if (strstr(input->name, "type_ids") != NULL) return FEED_ZEROS;
    return is_integer(input->type.format) && rank == 2 ? FEED_IDS : FEED_UNKNOWN;
}

static dw_status find_inputs(dw_session *session, const ir_graph *graph, generation *g) {
    const ir_value *ids = NULL;
    if (graph->input_count > COUNT_OF(g->feeds))
        return base_fail(session->context, DW_LIMIT, "generation with more than %zu inputs", COUNT_OF(g->feeds));
    for (size_t i = 0; i < graph->input_count; i++) {
        g->feeds[i] = feed_of(session, graph->inputs[i]);
        if (g->feeds[i] == FEED_UNKNOWN)
            return base_fail(session->context, DW_UNSUPPORTED,
                             "generation does not know what to feed input %s: it knows token ids, and masks, positions and type ids by token",
                             graph->inputs[i]->name);
        if (g->feeds[i] != FEED_IDS) continue;
        if (ids != NULL)
            return base_fail(session->context, DW_UNSUPPORTED, "generation takes one input of token ids, this model has %s and %s", ids->name,
                             graph->inputs[i]->name);
        ids = graph->inputs[i];
    }
    if (ids == NULL)
        return base_fail(session->context, DW_UNSUPPORTED, "generation needs an input of token ids [batch, tokens]; this model has none");
    int64_t rows;
    if (!dim_is_symbol(ids->type.dims[0], &g->batch_symbol)) g->batch_symbol = -1;
    if (dim_is_constant(ids->type.dims[0], &rows) && rows != 1)
        return base_fail(session->context, DW_UNSUPPORTED,
                         "generation continues one prompt; %s has %" PRId64 " rows: export it with 1 or with a dynamic batch", ids->name, rows);
    if (!dim_is_symbol(ids->type.dims[1], &g->new_symbol))
        return base_fail(session->context, DW_UNSUPPORTED, "generation needs a model exported with a dynamic number of tokens; %s has a fixed one",
                         ids->name);
    return DW_OK;
}

/* The logits: the first floating-point output whose last axis has a fixed size and whose first is the batch. */
static dw_status find_logits(dw_session *session, const ir_graph *graph, generation *g) {
    for (size_t i = 0; i < graph->output_count; i++) {
        const op_type *type = &graph->outputs[i].value->type;
        bool floats = type->format == DW_FORMAT_f32 || type->format == DW_FORMAT_bf16 || type->format == DW_FORMAT_f16;
        if (!floats || type->rank < 2 || type->rank > 3 || !dim_is_constant(type->dims[type->rank - 1], &g->vocabulary)) continue;
        g->output = (int)i;
        g->logits_format = type->format;
        return DW_OK;
    }
    return base_fail(session->context, DW_UNSUPPORTED, "generation needs an output of logits [batch, tokens, vocabulary]; this model has none");
}

/* ---- memory ---- */

static dw_status start_sizes(const engine_runner *runner, generation *g) {
    const plan *plan = runner->program->plan;
    int count = dim_symbol_count(plan->graph->dims);
    if (count > ENGINE_MAX_SYMBOLS)
        return base_fail(plan->graph->context, DW_LIMIT, "the model has %d symbolic sizes, at most %d can be bound", count, ENGINE_MAX_SYMBOLS);
    memcpy(g->sizes, plan->typical, (size_t)count * sizeof *g->sizes);
    return DW_OK;
}

/* Sizes of a run: count new tokens behind past ones. */
static void set_sizes(dw_session *session, engine_runner *runner, const generation *g, int64_t count, int64_t past) {
    memcpy(runner->symbols, g->sizes, (size_t)dim_symbol_count(runner->program->plan->graph->dims) * sizeof *runner->symbols);
    if (g->batch_symbol >= 0) runner->symbols[g->batch_symbol] = 1;
    runner->symbols[g->new_symbol] = count;
    if (g->past_symbol >= 0) runner->symbols[g->past_symbol] = past;
    if (g->max_symbol >= 0) runner->symbols[g->max_symbol] = session->max_tokens;
}

static dw_status tensor_bytes(dw_session *session, engine_runner *runner, const op_type *type, size_t *bytes) {
    dw_tensor tensor;
    num_parts parts;
    TRY(op_tensor_bind(session->context, type, runner->symbols, NULL, &tensor));
    if (!num_layout(tensor.format, tensor.scale_layout, tensor.rank, tensor.dims, &parts))
        return base_fail(session->context, DW_LIMIT, "a tensor of generation overflows");
    *bytes = base_align_up(parts.total_bytes + 8, ENGINE_ALIGN);
    return DW_OK;
}

/* Lays out the block that generation uses: with memory NULL only measures. */
static dw_status lay_out(dw_session *session, engine_runner *runner, generation *g, uint8_t *memory, size_t *total) {
    const ir_graph *graph = runner->program->plan->graph;
    size_t at = base_align_up(sizeof *g, ENGINE_ALIGN), bytes;
    set_sizes(session, runner, g, session->max_tokens, 0);
    for (size_t i = 0; i < graph->input_count; i++) {
        TRY(tensor_bytes(session, runner, &graph->inputs[i]->type, &bytes));
        if (memory != NULL) g->buffers[i] = memory + at;
        at += bytes > (size_t)session->max_tokens * 8 ? bytes : base_align_up((size_t)session->max_tokens * 8, ENGINE_ALIGN);
    }
    for (size_t i = 0; i < graph->output_count && i < COUNT_OF(g->spare); i++) {
        TRY(tensor_bytes(session, runner, &graph->outputs[i].value->type, &bytes));
        if (memory != NULL) g->spare[i] = memory + at;
        if (memory != NULL && (int)i == g->output) g->logits = memory + at;
        at += bytes;
    }
    if (memory != NULL) g->candidates = (candidate *)(void *)(memory + at);
    at = base_align_up(at + (size_t)g->vocabulary * sizeof(candidate), ENGINE_ALIGN);
    if (memory != NULL) g->sequence = (int64_t *)(void *)(memory + at);
    *total = at + (size_t)session->max_tokens * sizeof *g->sequence;
    return DW_OK;
}

/* Prefill is of any number of tokens, none of them cached; then each run is of one token behind any number of others. */
static dw_status reserve_runs(dw_session *session, engine_runner *runner, const generation *g) {
    const struct {
        int64_t count, past;
    } most[] = {{1, 0}, {1, session->max_tokens - 1}, {session->max_tokens, 0}};
    for (size_t i = 0; i < COUNT_OF(most); i++) {
        set_sizes(session, runner, g, most[i].count, most[i].past);
        TRY(engine_reserve(session, runner));
    }
    return DW_OK;
}

/* Each size of what is given at its least too: a kernel's scratch is largest at one of the ends. */
static dw_status reserve_given(dw_session *session, engine_runner *runner, const generation *g) {
    const dim_table *dims = runner->program->plan->graph->dims, *given = session->prelude.program->plan->graph->dims;
    generation less = *g;
    int64_t max;
    for (int i = 0; i < dim_symbol_count(given); i++) {
        int symbol = dim_symbol_find(dims, dim_symbol_name(given, i));
        if (symbol < 0) continue;
        dim_symbol_range(dims, symbol, &less.sizes[symbol], &max);
        TRY(reserve_runs(session, runner, &less));
        less.sizes[symbol] = g->sizes[symbol];
    }
    return DW_OK;
}

static dw_status reserve(dw_session *session, engine_runner *runner, const generation *g) {
    if (g->past_symbol < 0) {
        set_sizes(session, runner, g, session->max_tokens, 0);
        return engine_reserve_up_to(session, runner);
    }
    if (session->prelude.program != NULL) TRY(reserve_given(session, runner, g));
    return reserve_runs(session, runner, g);
}

/* What the prelude makes lies where the step reads it. */
static dw_status connect_given(dw_session *session, const ir_graph *graph, const generation *g) {
    size_t found = 0;
    for (size_t i = 0; i < graph->input_count; i++) {
        if (g->feeds[i] != FEED_GIVEN) continue;
        session->prelude.outputs[given_index(session, graph->inputs[i]->name)] = g->buffers[i];
        found++;
    }
    if (session->prelude.program == NULL || found == session->prelude.program->plan->graph->output_count) return DW_OK;
    return base_fail(session->context, DW_CORRUPT, "the step does not read all that the prelude makes: compile the model again");
}

dw_status engine_generation_create(dw_session *session, const char *dims) {
    engine_runner *runner = runner_of(session);
    generation measured = {.batch_symbol = -1, .past_symbol = -1, .max_symbol = -1};
    if (runner->program == NULL) return base_fail(session->context, DW_UNSUPPORTED, "generation: %s", session->model->no_step);
    const ir_graph *graph = runner->program->plan->graph;
    if (graph->output_count > COUNT_OF(measured.spare))
        return base_fail(session->context, DW_LIMIT, "generation with more than %zu outputs", COUNT_OF(measured.spare));
    TRY(find_inputs(session, graph, &measured));
    TRY(find_logits(session, graph, &measured));
    TRY(start_sizes(runner, &measured));
    if (session->prelude.program != NULL) {
        const char *batch = measured.batch_symbol < 0 ? NULL : dim_symbol_name(graph->dims, measured.batch_symbol);
        TRY(engine_prelude_create(session, dims, batch));
        engine_prelude_sizes(session, runner, measured.sizes);
    }
    if (session->step.program != NULL) {   /* the names that pass_incremental gives */
        measured.past_symbol = dim_symbol_find(graph->dims, "past");
        measured.max_symbol = dim_symbol_find(graph->dims, "max");
    }
    size_t total;
    TRY(lay_out(session, runner, &measured, NULL, &total));
    TRY(base_alloc(session->context, total, ENGINE_ALIGN, &session->generation));
    session->generation_bytes = total;
    generation *g = session->generation;
    *g = measured;
    TRY(lay_out(session, runner, g, session->generation, &total));
    TRY(connect_given(session, graph, g));
    return reserve(session, runner, g);
}

/* ---- one run ---- */

static void store_integer(dw_format format, void *buffer, int64_t index, int64_t value) {
    switch (format) {
    case DW_FORMAT_i64: ((int64_t *)buffer)[index] = value; break;
    case DW_FORMAT_i32: ((int32_t *)buffer)[index] = (int32_t)value; break;
    default:            num_store(format, buffer, index, (double)value, true); break;
    }
}

/* Ids are the new ones; every other input has the whole history, as the cached step takes it. */
static void fill_inputs(const ir_graph *graph, const generation *g, int64_t count, const int64_t *ids, int64_t past) {
    for (size_t i = 0; i < graph->input_count; i++) {
        dw_format format = graph->inputs[i]->type.format;
        if (g->feeds[i] == FEED_GIVEN) continue;
        for (int64_t k = 0; k < (g->feeds[i] == FEED_IDS ? count : past + count); k++) {
            int64_t value = 0;
            switch (g->feeds[i]) {
            case FEED_IDS:       value = ids[k]; break;
            case FEED_MASK:      value = 1; break;
            case FEED_POSITIONS: value = k; break;
            case FEED_ZEROS:
            case FEED_GIVEN:
            case FEED_UNKNOWN:   break;
            }
            store_integer(format, g->buffers[i], k, value);
        }
    }
}

/* Runs count tokens behind past ones; *positions is how many rows of logits came out. */
static dw_status run_tokens(dw_session *session, const int64_t *ids, int64_t count, int64_t past, int64_t *positions) {
    engine_runner *runner = runner_of(session);
    generation *g = session->generation;
    const ir_graph *graph = runner->program->plan->graph;
    plan_binding *binding;
    fill_inputs(graph, g, count, ids, past);
    for (size_t i = 0; i < graph->input_count; i++) runner->inputs[i] = g->buffers[i];
    for (size_t i = 0; i < graph->output_count; i++) runner->outputs[i] = g->spare[i];
    set_sizes(session, runner, g, count, past);
    TRY(engine_bind(session, runner, &binding));
    TRY(engine_execute(session, runner, binding));
    const dw_tensor *logits = &binding->tensors[plan_value_of(graph->outputs[g->output].value)->index];
    *positions = logits->rank == 3 ? logits->dims[1] : 1;
    return DW_OK;
}

dw_status engine_decode_again(dw_session *session, int64_t id, int64_t past) {
    int64_t positions;
    return run_tokens(session, &id, 1, past, &positions);
}

/* ---- sampling ---- */

static float logit_at(const generation *g, int64_t position, int64_t id) {
    int64_t index = position * g->vocabulary + id;
    if (g->logits_format == DW_FORMAT_f32) return ((const float *)(const void *)g->logits)[index];
    return (float)num_load(g->logits_format, g->logits, index);
}

static bool ranks_before(candidate a, candidate b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }

/* Sorts the best count candidates to the front (selection by a heap of all: best first). */
static void sift(candidate *heap, int64_t size, int64_t root) {
    for (int64_t child; (child = 2 * root + 1) < size; root = child) {
        if (child + 1 < size && ranks_before(heap[child + 1], heap[child])) child++;
        if (!ranks_before(heap[child], heap[root])) return;
        candidate swap = heap[root];
        heap[root] = heap[child];
        heap[child] = swap;
    }
}

static int64_t pick_greedy(const generation *g, int64_t position) {
    int64_t best = 0;
    for (int64_t i = 1; i < g->vocabulary; i++)
        if (logit_at(g, position, i) > logit_at(g, position, best)) best = i;
    return best;
}

/* Softmax at a temperature over the top_k best, cut where their mass reaches top_p, then one draw. Candidates leave the heap best first, so
 * only as many are ordered as are needed; the mass of all k is known before the cut. */
static int64_t pick_sampled(generation *g, int64_t position, const dw_generate_options *options, uint64_t draw) {
    candidate *heap = g->candidates;
    int64_t count = g->vocabulary, k = options->top_k > 0 && options->top_k < count ? options->top_k : count;
    for (int64_t i = 0; i < count; i++) heap[i] = (candidate){logit_at(g, position, i), (int32_t)i};
    for (int64_t i = count / 2 - 1; i >= 0; i--) sift(heap, count, i);
    float best = heap[0].logit;
    double mass = 0;
    for (int64_t i = 0; i < k; i++) {   /* taken candidates gather at the end of the array, best last */
        candidate taken = heap[0];
        mass += exp((double)(taken.logit - best) / options->temperature);
        heap[0] = heap[count - 1 - i];
        heap[count - 1 - i] = taken;
        sift(heap, count - 1 - i, 0);
    }
    double limit = options->top_p > 0 && options->top_p < 1 ? options->top_p * mass : mass, kept = 0;
    int64_t last = 0;
    for (; last < k && kept < limit; last++) kept += exp((double)(heap[count - 1 - last].logit - best) / options->temperature);
    double target = (double)num_random_uniform(options->seed, draw) * kept, sum = 0;
    for (int64_t i = 0; i < last; i++) {
        sum += exp((double)(heap[count - 1 - i].logit - best) / options->temperature);
        if (sum > target) return heap[count - 1 - i].id;
    }
    return heap[count - last].id;
}

static bool is_stop(const dw_generate_options *options, int64_t id) {
    for (int i = 0; i < options->stop_count; i++)
        if (options->stop_ids[i] == id) return true;
    return false;
}

/* ---- public ---- */

/* What the caller gives besides the prompt; checked by the prelude. */
static dw_status take_inputs(dw_session *session, const dw_generate_options *options) {
    generation *g = session->generation;
    if (session->prelude.program == NULL && options->input_count > 0)
        return base_fail(session->context, DW_INVALID, "generation with this model takes no input besides the prompt; %s is given",
                         options->inputs[0].name);
    if (session->prelude.program == NULL) return DW_OK;
    TRY(engine_prelude_run(session, options->input_count, options->inputs));
    engine_prelude_sizes(session, &session->step, g->sizes);
    return DW_OK;
}

static dw_status check_request(dw_session *session, int64_t prompt_count, const int64_t *prompt, const dw_generate_options *options) {
    const generation *g = session->generation;
    if (g == NULL) return base_fail(session->context, DW_INVALID, "the session was made without room to generate: set max_tokens");
    if (prompt_count < 1) return base_fail(session->context, DW_INVALID, "generation needs a prompt of at least one token");
    if (options->tokens < 0 || prompt_count + options->tokens > session->max_tokens)
        return base_fail(session->context, DW_LIMIT, "%" PRId64 " prompt tokens and %" PRId64 " new ones exceed the session's max_tokens of %" PRId64,
                         prompt_count, options->tokens, session->max_tokens);
    if (!(options->temperature >= 0) || !isfinite(options->temperature))
        return base_fail(session->context, DW_INVALID, "temperature %g is not a number of at least 0", options->temperature);
    if (!(options->top_p >= 0 && options->top_p <= 1)) return base_fail(session->context, DW_INVALID, "top_p %g is no probability", options->top_p);
    if (options->top_k < 0) return base_fail(session->context, DW_INVALID, "top_k %d is negative; 0 draws among all", options->top_k);
    for (int64_t i = 0; i < prompt_count; i++)
        if (prompt[i] < 0 || prompt[i] >= g->vocabulary)
            return base_fail(session->context, DW_INVALID, "prompt id %" PRId64 " at %" PRId64 " is outside the vocabulary of %" PRId64, prompt[i], i,
                             g->vocabulary);
    return DW_OK;
}

dw_status dw_session_generate(dw_session *session, int64_t prompt_count, const int64_t *prompt, const dw_generate_options *options, int64_t *ids,
                              int64_t *made, dw_generate_times *times) {
    dw_generate_times spent = {.prompt_tokens = prompt_count, .cached = session->step.program != NULL};
    *made = 0;
    TRY(check_request(session, prompt_count, prompt, options));
    generation *g = session->generation;
    int64_t *sequence = g->sequence;
    TRY(dw_session_reset(session));
    memcpy(sequence, prompt, (size_t)prompt_count * sizeof *prompt);
    double begin = engine_now();
    dw_status status = take_inputs(session, options);
    spent.prefill_s = engine_now() - begin;
    int64_t length = prompt_count, past = 0;
    while (status == DW_OK && *made < options->tokens) {
        int64_t from = spent.cached ? past : 0, positions;
        double start = engine_now();
        status = run_tokens(session, sequence + from, length - from, from, &positions);
        if (status != DW_OK) break;
        *(*made == 0 ? &spent.prefill_s : &spent.decode_s) += engine_now() - start;
        past = length;
        int64_t id = options->temperature > 0 ? pick_sampled(g, positions - 1, options, (uint64_t)*made) : pick_greedy(g, positions - 1);
        sequence[length++] = id;
        ids[(*made)++] = id;
        if ((options->on_token && options->on_token(options->user, id)) || is_stop(options, id)) break;
    }
    spent.new_tokens = *made;
    if (times != NULL) *times = spent;
    return status;
}

/* -log p(id) by a log-sum-exp in double. */
static double surprise(const float *logits, int64_t vocabulary, int64_t id) {
    double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < vocabulary; i++) largest = logits[i] > largest ? logits[i] : largest;
    for (int64_t i = 0; i < vocabulary; i++) sum += exp((double)logits[i] - largest);
    return largest + log(sum) - (double)logits[id];
}

/* One window through the full plan: [1, count] ids in, [1, count, vocabulary] logits out. */
static dw_status score_window(dw_session *session, const generation *g, int64_t count, const int64_t *ids, float *logits, void **buffers,
                              double *nats) {
    engine_runner *runner = &session->full;
    const ir_graph *graph = runner->program->plan->graph;
    plan_binding *binding;
    generation full = *g;
    memcpy(full.buffers, buffers, sizeof full.buffers);
    fill_inputs(graph, &full, count, ids, 0);
    for (size_t i = 0; i < graph->input_count; i++) runner->inputs[i] = buffers[i];
    runner->outputs[g->output] = logits;
    set_sizes(session, runner, &full, count, 0);
    TRY(engine_bind(session, runner, &binding));
    TRY(engine_execute(session, runner, binding));
    for (int64_t i = 0; i + 1 < count; i++) *nats += surprise(logits + i * g->vocabulary, g->vocabulary, ids[i + 1]);
    return DW_OK;
}

dw_status dw_session_score(dw_session *session, int64_t count, const int64_t *ids, int64_t window, double *nats) {
    dw_context *context = session->context;
    generation g = {.batch_symbol = -1, .past_symbol = -1, .max_symbol = -1};
    void *buffers[MAX_TENSORS] = {0}, *logits = NULL;
    *nats = 0;
    if (session->full.program == NULL) return base_fail(context, DW_INVALID, "scoring needs the full model: open it without DW_MODEL_GENERATE_ONLY");
    if (count < 2 || window < 2) return base_fail(context, DW_INVALID, "scoring needs at least two ids and a window of at least two");
    const ir_graph *graph = session->full.program->plan->graph;
    TRY(find_inputs(session, graph, &g));
    TRY(find_logits(session, graph, &g));
    TRY(start_sizes(&session->full, &g));
    if (graph->output_count != 1 || g.logits_format != DW_FORMAT_f32)
        return base_fail(context, DW_UNSUPPORTED, "scoring takes models with one output, fp32 logits");
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
