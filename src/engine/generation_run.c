/* One run of generation: the new tokens of all texts, one behind another; and what each text is given once. */
#include "engine/engine.h"

#include <inttypes.h>
#include <string.h>

enum { TOTAL_STEP = 64 };   /* sizes that grow with the texts grow by so much, so that most runs have a binding already */

/* ---- what a run is fed ---- */

static int64_t fed_of(const generation *g, feed feed, int given, const generation_text *text, int64_t k) {
    switch (feed) {
    case FEED_IDS:    return text->sequence[text->past + k];
    case FEED_PLACES: return text->past + k;
    case FEED_ROWS:   return text - g->text;
    case FEED_LIMIT:  return text->limits[given];
    case FEED_ONES:
    case FEED_ZEROS:
    case FEED_POSITIONS:
    case FEED_LAST:
    case FEED_GIVEN:
    case FEED_TABLE:
    case FEED_CALLER:
    case FEED_UNKNOWN: break;
    }
    return 0;
}

/* Of tokens that are no text's. */
static void fill_rest(const ir_graph *graph, const generation *g, size_t index, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) generation_store(graph->inputs[index]->type.format, g->buffers[index], i, g->feeds[index] == FEED_ROWS ? -1 : 0);
}

/* Each row of the logits is some token's, wanted or not; where there are as many as tokens row i is that of token i. */
static void fill_ends(const ir_graph *graph, const generation *g, size_t index, int64_t ends, int64_t tokens) {
    for (int64_t i = 0; i < ends; i++) generation_store(graph->inputs[index]->type.format, g->buffers[index], i, ends == tokens ? i : 0);
}

static void fill_input(const ir_graph *graph, const generation *g, size_t index) {
    const dw_format format = graph->inputs[index]->type.format;
    const feed feed = g->feeds[index];
    int64_t at = 0;
    for (int64_t i = 0; i < g->texts; i++) {
        const generation_text *text = &g->text[i];
        if (feed == FEED_LAST && text->picked >= 0) generation_store(format, g->buffers[index], text->picked, text->first + text->count - 1);
        for (int64_t k = 0; feed != FEED_LAST && k < text->count; k++) generation_store(format, g->buffers[index], at++, fed_of(g, feed, g->given[index], text, k));
    }
}

/* How many rows of logits are wanted: one for each text whose tokens are all in. */
static int64_t number_picks(generation *g) {
    int64_t picks = 0;
    for (int64_t i = 0; i < g->texts; i++) {
        generation_text *text = &g->text[i];
        text->picked = text->count > 0 && text->past + text->count == text->length ? picks++ : -1;
    }
    return picks;
}

/* New tokens of a run that has at least so many. */
static int64_t rung_of(const generation *g, int64_t tokens) {
    int i = 0;
    while (i < g->rung_count && g->rungs[i] < tokens) i++;
    return i < g->rung_count ? g->rungs[i] : tokens;
}

static bool is_rung(const generation *g, int64_t tokens) { return g->rung_count > 0 && tokens <= g->rungs[g->rung_count - 1]; }

/* Positions that inputs over the sequence need. */
static int64_t total_of(const generation *g) {
    int64_t total = 1;
    for (int64_t i = 0; i < g->texts; i++)
        if (g->text[i].count > 0 && g->text[i].past + g->text[i].count > total) total = g->text[i].past + g->text[i].count;
    if (g->is_ladder) return g->cache_tokens;
    const int64_t rounded = total / TOTAL_STEP * TOTAL_STEP + (total % TOTAL_STEP > 0 ? TOTAL_STEP : 0);
    return rounded < g->cache_tokens ? rounded : g->cache_tokens;
}

/* The whole graph gives a row of logits for each token: the last of them is looked at, and alone comes from a device. */
static dw_status pick_last_row(dw_session *session, engine_runner *runner, const plan_binding *binding) {
    generation *g = session->generation;
    const dw_tensor *logits = &binding->tensors[plan_value_of(binding->plan->graph->outputs[g->output].value)->index];
    const size_t bytes = num_row_bytes(g->logits_format, g->vocabulary);
    int64_t rows = 1;
    for (int i = 0; i + 1 < logits->rank; i++) rows *= logits->dims[i];
    g->text[0].picked = session->device == NULL ? rows - 1 : 0;
    return session->device == NULL ? DW_OK : engine_stage_read(session, runner, (size_t)g->output, (size_t)(rows - 1) * bytes, bytes, g->results[g->output]);
}

/* least: of new tokens. */
static void prepare(dw_session *session, int64_t least) {
    engine_runner *runner = generation_runner(session);
    generation *g = session->generation;
    const ir_graph *graph = runner->program->plan->graph;
    const int64_t picks = number_picks(g);
    g->new_tokens = 0;
    for (int64_t i = 0; i < g->texts; i++) {
        g->text[i].first = g->new_tokens;
        g->new_tokens += g->text[i].count;
    }
    const int64_t tokens = rung_of(g, g->new_tokens > least ? g->new_tokens : least);
    int64_t ends = g->is_ladder && tokens > g->texts ? g->texts : is_rung(g, tokens) ? tokens : picks;
    if (ends == 0) ends = 1;   /* a run that only reads prompts gives one that nobody looks at */
    for (int64_t i = 0; i < g->texts && ends == tokens; i++)
        if (g->text[i].picked >= 0) g->text[i].picked = g->text[i].first + g->text[i].count - 1;
    for (size_t i = 0; i < graph->input_count; i++) {
        const feed feed = g->feeds[i];
        if (feed == FEED_LAST) fill_ends(graph, g, i, ends, tokens);
        else if (feed == FEED_IDS || feed == FEED_PLACES || feed == FEED_ROWS || feed == FEED_LIMIT) fill_rest(graph, g, i, g->new_tokens, tokens);
        if (feed == FEED_IDS || feed == FEED_PLACES || feed == FEED_ROWS || feed == FEED_LIMIT || feed == FEED_LAST) fill_input(graph, g, i);
        runner->inputs[i] = g->buffers[i];
    }
    for (size_t i = 0; i < graph->output_count; i++) {
        const bool is_read = g->mode == GENERATION_STEP && (int)i == (g->reads_logits ? g->output : g->next);
        runner->outputs[i] = is_read || session->device == NULL ? g->results[i] : NULL;
    }
    generation_set_sizes(runner, g, tokens, ends, total_of(g));
}

void generation_prepare(dw_session *session) { prepare(session, 1); }

static dw_status make_rungs_ready(dw_session *session) {
    engine_runner *runner = generation_runner(session);
    generation *g = session->generation;
    plan_binding *binding;
    for (int64_t i = 0; i < g->texts; i++) g->text[i].count = 0;
    for (int i = 0; i < g->rung_count; i++) {
        prepare(session, g->rungs[i]);
        TRY(engine_bind(session, runner, &binding));
        TRY(engine_check_workspace(session, binding));
        TRY(engine_ready_on_device(session, runner, binding));
        TRY(base_poll(session->context));
    }
    return session->device->calls->synchronize(session->device);
}

dw_status generation_make_ready(dw_session *session) {
    const generation *g = session->generation;
    device *device = session->device;
    size_t before, after;
    if (!g->is_ladder) return DW_OK;
    const double begin = base_now();
    TRY(device->calls->left(device, &before));
    TRY(make_rungs_ready(session));
    TRY(device->calls->left(device, &after));
    base_log(session->context, DW_LOG_INFO, "%d sizes of runs, up to %" PRId64 " tokens, are bound and have a device graph each: %.2f s, %.1f MB of the device", g->rung_count,
             g->rungs[g->rung_count - 1], base_now() - begin, before > after ? (double)(before - after) / 1e6 : 0.0);
    return DW_OK;
}

dw_status generation_run(dw_session *session) {
    engine_runner *runner = generation_runner(session);
    const generation *g = session->generation;
    plan_binding *binding;
    generation_prepare(session);
    dw_status status = engine_bind(session, runner, &binding);
    if (status == DW_OK) status = engine_check_workspace(session, binding);
    if (status != DW_OK) return engine_cannot_run(session, runner, status);
    TRY(engine_execute(session, runner, binding));
    return g->mode == GENERATION_STEP || g->text[0].picked < 0 ? DW_OK : pick_last_row(session, runner, binding);
}

/* ---- runs that the host does not wait for ---- */

static size_t ids_input(const generation *g) {
    size_t i = 0;
    while (g->feeds[i] != FEED_IDS) i++;
    return i;
}

dw_status generation_look_ahead(dw_session *session, bool *can) {
    const generation *g = session->generation;
    engine_runner *runner = generation_runner(session);
    const device *device = session->device;
    *can = false;
    if (g->mode != GENERATION_STEP || g->next < 0 || device == NULL || device->calls->mark == NULL || device->calls->graph_create == NULL) return DW_OK;
    const ir_graph *graph = runner->program->plan->graph;
    if (graph->inputs[ids_input(g)]->type.format != DW_FORMAT_i64 || !generation_tells_apart(graph)) return DW_OK;
    TRY(engine_flights_create(session, runner, (size_t)g->next));
    *can = true;
    return DW_OK;
}

/* Which ids are those of the run before; neighbours of neighbours are one piece. A text has one unknown id at most, its last. */
static int find_links(const generation *g) {
    int count = 0;
    for (int64_t i = 0; i < g->texts; i++) {
        const generation_text *text = &g->text[i];
        if (text->count == 0 || text->sequence[text->past + text->count - 1] >= 0) continue;
        const size_t from = (size_t)(-1 - text->sequence[text->past + text->count - 1]) * sizeof(int64_t), to = (size_t)(text->first + text->count - 1) * sizeof(int64_t);
        engine_link *before = count > 0 ? &g->links[count - 1] : NULL;
        if (before != NULL && before->from + before->bytes == from && before->to + before->bytes == to) before->bytes += sizeof(int64_t);
        else g->links[count++] = (engine_link){from, to, sizeof(int64_t)};
    }
    return count;
}

int64_t generation_ends(dw_session *session) { return generation_runner(session)->symbols[((const generation *)session->generation)->ends]; }

dw_status generation_launch(dw_session *session, int which, bool draws) {
    engine_runner *runner = generation_runner(session);
    const generation *g = session->generation;
    const engine_drawing drawing = {draws ? session->sampler : NULL, (size_t)g->output, generation_ends(session)};
    plan_binding *binding;
    TRY(engine_bind(session, runner, &binding));
    TRY(engine_check_workspace(session, binding));
    return engine_launch(session, runner, binding, &runner->flights[which], ids_input(g), (size_t)g->next, find_links(g), g->links, &drawing);
}

dw_status generation_land(dw_session *session, int which, const int64_t **ids, sampler_made *made) {
    const engine_runner *runner = generation_runner(session);
    *ids = runner->flights[which].result;
    *made = runner->flights[which].made;
    return engine_land(session, runner, &runner->flights[which]);
}

/* ---- what a text is given ---- */

static size_t bytes_of(const dw_tensor *tensor) { return (size_t)op_tensor_count(tensor) * ((size_t)dw_format_bits(tensor->format) / 8); }

/* device: where both lie; NULL: the host. */
static dw_status copy_bytes(device *device, void *to, const void *from, size_t bytes) {
    if (device != NULL) return device->calls->copy(device, to, from, bytes);
    memcpy(to, from, bytes);
    return DW_OK;
}

static dw_status copy_rows(device *device, const device_rows *rows) {
    if (device != NULL) return device->calls->copy_rows(device, rows);
    device_copy_host_rows(rows);
    return DW_OK;
}

/* A contiguous tensor into a row of one that may be larger along each axis. What lies together in both is one piece, and pieces along an axis are one copy. */
static dw_status copy_row(device *device, const dw_tensor *to, int64_t row, const dw_tensor *from) {
    const size_t bytes = (size_t)dw_format_bits(to->format) / 8;
    int last = from->rank - 1;
    int64_t index[DW_MAX_RANK] = {0}, piece = from->dims[last];
    if (op_tensor_count(from) == 0) return DW_OK;
    while (last > 1 && from->dims[last] == to->dims[last]) piece *= from->dims[--last];
    const int along = last > 1 ? last - 1 : 0;      /* the axis of pieces that are copied together; 0: there is one */
    device_rows rows = {.to_pitch = (size_t)to->strides[along] * bytes, .from_pitch = (size_t)from->strides[along] * bytes, .bytes = (size_t)piece * bytes, .count = along > 0 ? (size_t)from->dims[along] : 1};
    for (bool more = true; more;) {
        int64_t target = row * to->strides[0], source = 0;
        for (int i = 1; i < along; i++) {
            target += index[i] * to->strides[i];
            source += index[i] * from->strides[i];
        }
        rows.to = (char *)to->data + (size_t)target * bytes;
        rows.from = (const char *)from->data + (size_t)source * bytes;
        TRY(along > 0 ? copy_rows(device, &rows) : copy_bytes(device, rows.to, rows.from, rows.bytes));
        int axis = along - 1;
        while (axis > 0 && ++index[axis] == from->dims[axis]) index[axis--] = 0;
        more = axis > 0;
    }
    return DW_OK;
}

/* The prelude's results into the text's rows of what the step reads, on a device without the host; where they end. */
static dw_status place_given(dw_session *session, generation_text *text, const plan_binding *made) {
    generation *g = session->generation;
    device *device = session->device;
    const ir_graph *graph = session->step.program->plan->graph, *prelude = session->prelude.program->plan->graph;
    generation_set_sizes(&session->step, g, 1, 1, 1);
    for (size_t i = 0; i < graph->input_count; i++) {
        if (g->feeds[i] != FEED_GIVEN) continue;
        dw_tensor rows, from;
        const int given = g->given[i];
        const op_type *type = &prelude->outputs[given].value->type;
        TRY(op_tensor_bind(session->context, type, made->symbols, device != NULL ? session->prelude.staged_outputs[given].memory : session->prelude.outputs[given], &from));
        if (from.rank > 2) text->limits[given] = from.dims[2] - 1;
        if (!g->by_text && device == NULL) continue;      /* it is there */
        TRY(op_tensor_bind(session->context, &graph->inputs[i]->type, session->step.symbols, device != NULL ? session->step.staged_inputs[i].memory : g->buffers[i], &rows));
        if (device != NULL) TRY(engine_stage_check(session, &session->step, i, bytes_of(g->by_text ? &rows : &from)));
        TRY(g->by_text ? copy_row(device, &rows, text - g->text, &from) : copy_bytes(device, rows.data, from.data, bytes_of(&from)));
    }
    return DW_OK;
}

/* Inputs that the whole graph reads as they are. */
static dw_status set_whole_inputs(dw_session *session, int count, const dw_named_tensor *inputs) {
    generation *g = session->generation;
    engine_runner *runner = &session->full;
    const plan *plan = runner->program->plan;
    const ir_graph *graph = plan->graph;
    const dw_tensor *ordered[ENGINE_MAX_INPUTS];
    int64_t sizes[ENGINE_MAX_SYMBOLS];
    TRY(engine_match_some(session->context, plan, count, inputs, ordered, sizes));
    for (size_t i = 0; i < graph->input_count; i++) {
        const char *name = graph->inputs[i]->name;
        if (g->feeds[i] != FEED_CALLER && ordered[i] != NULL)
            return base_fail(session->context, DW_INVALID, "generation makes input %s itself: do not give it", name);
        if (g->feeds[i] != FEED_CALLER) continue;
        if (ordered[i] == NULL) return base_fail(session->context, DW_MISMATCH, "generation needs input %s besides the prompt; %s is missing", name, name);
        if (!op_tensor_is_contiguous(ordered[i])) return base_fail(session->context, DW_MISMATCH, "input %s is not contiguous", name);
        for (int axis = 0, symbol; axis < graph->inputs[i]->type.rank; axis++) {
            if (!dim_is_symbol(graph->inputs[i]->type.dims[axis], &symbol)) continue;
            const int64_t limit = symbol == g->batch ? 1 : runner->most[symbol];
            if (sizes[symbol] > limit)
                return base_fail(session->context, DW_LIMIT, "the given inputs have %s=%" PRId64 ", this session generates with at most %" PRId64 "%s",
                                 dim_symbol_name(graph->dims, symbol), sizes[symbol], limit,
                                 symbol == g->batch ? ", one prompt at a time" : ": create it with larger dims");
            g->sizes[symbol] = sizes[symbol];
        }
        g->buffers[i] = ordered[i]->data;
    }
    return DW_OK;
}

dw_status generation_set_inputs(dw_session *session, generation_text *text, int count, const dw_named_tensor *inputs) {
    generation *g = session->generation;
    plan_binding *made;
    bool reads = session->prelude.program != NULL;
    const ir_graph *graph = generation_runner(session)->program->plan->graph;
    for (size_t i = 0; i < graph->input_count; i++) reads = reads || g->feeds[i] == FEED_CALLER;
    if (!reads && count > 0)
        return base_fail(session->context, DW_INVALID, "generation with this model takes no input besides the prompt; %s is given", inputs[0].name);
    if (!reads) return DW_OK;
    if (session->prelude.program == NULL) return set_whole_inputs(session, count, inputs);
    TRY(engine_prelude_run(session, count, inputs, &made));
    if (!g->by_text) engine_prelude_sizes(session, &session->step, g->sizes);
    return place_given(session, text, made);
}
