/* The memory of generation: what every run reads and writes besides the workspace, and the workspace of the largest runs. */
#include "engine/engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* New tokens of a run: enough for full speed, few enough for rings and workspace to stay small. A GPU's run has more of them, as long as its workspace takes at most
 * this share of the memory. */
enum { CHUNK = 512, DEVICE_RUN = 8192, WORKSPACE_SHARE = 8 };

/* Of pages that texts share: bytes on the host, the share of what a GPU has left. */
#define HOST_CACHE (UINT64_C(2) << 30)
#define DEVICE_SHARE 0.9

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- sizes ---- */

static void set(int64_t *symbols, int symbol, int64_t value) {
    if (symbol >= 0) symbols[symbol] = value;
}

void generation_set_sizes(engine_runner *runner, const generation *g, int64_t fresh, int64_t ends, int64_t total) {
    memcpy(runner->symbols, g->sizes, (size_t)dim_symbol_count(runner->program->plan->graph->dims) * sizeof *runner->symbols);
    set(runner->symbols, g->batch, 1);
    set(runner->symbols, g->fresh, fresh);
    if (g->mode != GENERATION_STEP) return;
    set(runner->symbols, g->rows, g->cache_rows);
    set(runner->symbols, g->max, g->cache_tokens);
    set(runner->symbols, g->ring, g->chunk);
    set(runner->symbols, g->ends, ends);
    set(runner->symbols, g->total, total);
    set(runner->symbols, g->slots, g->page);
    set(runner->symbols, g->entries, g->row_pages);
    for (int i = 0; i < g->group_count; i++) set(runner->symbols, g->groups[i].symbol, g->groups[i].pages);
}

/* The most that a symbol may be. */
static int64_t most_of(const ir_graph *graph, int symbol) {
    int64_t min, max = INT64_MAX;
    if (symbol >= 0) dim_symbol_range(graph->dims, symbol, &min, &max);
    return max == DIM_UNBOUNDED ? INT64_MAX : max;
}

static bool depends_on(dim size, int symbol);

static bool any_term_depends_on(dim sum, int symbol) {
    for (int i = 0; i < dim_term_count(sum); i++) {
        int64_t coefficient;
        dim product;
        dim_term(sum, i, &coefficient, &product);
        for (int k = 0; k < dim_factor_count(product); k++)
            if (depends_on(dim_factor(product, k), symbol)) return true;
    }
    return false;
}

/* Does the symbol occur in the size? */
static bool depends_on(dim size, int symbol) {
    const dim_kind kind = dim_kind_of(size);
    dim a, b;
    int index;
    if (kind == DIM_CONSTANT) return false;
    if (kind == DIM_SYMBOL) return dim_is_symbol(size, &index) && index == symbol;
    if (kind == DIM_SUM || kind == DIM_PRODUCT) return any_term_depends_on(size, symbol);
    dim_operands(size, &a, &b);
    return depends_on(a, symbol) || depends_on(b, symbol);
}

static bool type_depends_on(const op_type *type, int symbol) {
    bool depends = false;
    for (int i = 0; i < type->rank && symbol >= 0; i++) depends = depends || depends_on(type->dims[i], symbol);
    return depends;
}

/* Does anything have the size? */
static bool is_used(const ir_graph *graph, int symbol) {
    bool used = false;
    for (size_t i = 0; i < graph->input_count; i++) used = used || type_depends_on(&graph->inputs[i]->type, symbol);
    for (const ir_node *node = graph->first; node != NULL && !used; node = node->next)
        for (int i = 0; i < node->n_out; i++) used = used || type_depends_on(&node->out[i]->type, symbol);
    return used;
}

static bool runs_are_long(const dw_session *session, const generation *g) { return session->device != NULL && g->mode == GENERATION_STEP; }

/* Is a cache that runs see a ring, of one window and one piece of a text, that pieces of this size would make larger than usual ones? */
static dw_status widens_rings(dw_session *session, engine_runner *runner, generation *g, int64_t piece, bool *widens) {
    const ir_graph *graph = runner->program->plan->graph;
    *widens = false;
    for (size_t i = 0; i < graph->state_count; i++) {
        dw_tensor usual, wide;
        g->chunk = CHUNK;
        generation_set_sizes(runner, g, 1, 1, g->cache_tokens);
        TRY(op_tensor_bind(session->context, &graph->states[i]->type, runner->symbols, NULL, &usual));
        g->chunk = piece;
        generation_set_sizes(runner, g, 1, 1, g->cache_tokens);
        TRY(op_tensor_bind(session->context, &graph->states[i]->type, runner->symbols, NULL, &wide));
        *widens = *widens || op_tensor_count(&wide) != op_tensor_count(&usual);
    }
    return DW_OK;
}

/* Are the caches that runs see made for each call? */
static bool fits_calls(const dw_session *session, const generation *g) { return runs_are_long(session, g) && !session->paging.is_shared && g->group_count == 0; }

/* Tokens of a row that holds so many: in four steps from one power of two to the next, of 64 at least, so that a few sizes serve all calls. */
static int64_t row_tokens(const ir_graph *graph, const generation *g, int64_t tokens) {
    int64_t step = 64;
    if (tokens > INT64_MAX / 2) return tokens;
    while (step <= tokens / 8) step *= 2;
    return least(base_ceil_div(tokens, step) * step, least(most_of(graph, g->max), most_of(graph, g->total)));
}

/* How many tokens of a text a run reads at once. */
static dw_status choose_piece(dw_session *session, engine_runner *runner, generation *g) {
    const int64_t usual = runs_are_long(session, g) ? DEVICE_RUN : CHUNK, most = most_of(runner->program->plan->graph, g->fresh);
    const int64_t asked = g->asked > 0 ? g->asked : usual;
    bool widens = false;
    if (g->asked == 0 && usual > CHUNK) TRY(widens_rings(session, runner, g, usual, &widens));
    g->chunk = least(widens ? CHUNK : asked, most);
    g->chunk = least(g->chunk, g->cache_tokens);
    if (g->mode == GENERATION_WHOLE) g->chunk = session->max_tokens;
    if (g->fixed > 0) g->chunk = g->fixed;
    return DW_OK;
}

static dw_status choose_sizes(dw_session *session, engine_runner *runner, const dw_session_options *options, generation *g) {
    const ir_graph *graph = runner->program->plan->graph;
    const int64_t wanted = options->rows > 0 ? options->rows : 1, usual = runs_are_long(session, g) ? DEVICE_RUN : CHUNK;
    const int64_t asked = options->chunk > 0 ? options->chunk : usual;
    const bool known = session->full.program != NULL && runner == &session->full;   /* then its largest sizes are in symbols */
    if (options->rows < 0 || options->chunk < 0)
        return base_fail(session->context, DW_INVALID, "a session has no %lld prompts and no runs of %lld tokens", (long long)options->rows, (long long)options->chunk);
    memcpy(g->sizes, known ? runner->symbols : runner->program->plan->typical, (size_t)dim_symbol_count(graph->dims) * sizeof *g->sizes);
    g->by_text = generation_gives_rows(graph);
    g->texts = g->mode == GENERATION_STEP && generation_tells_apart(graph) ? wanted : 1;
    const int64_t most = most_of(graph, g->fresh);
    if (session->max_tokens > least(most_of(graph, g->max), g->mode == GENERATION_STEP ? INT64_MAX : most) && g->mode != GENERATION_STATE)
        return base_fail(session->context, DW_LIMIT, "the model takes texts of at most %lld tokens, max_tokens is %lld: take fewer, or export it for longer ones; "
                         "a cache of a window that the model makes and returns ends there, and use_cache=False leaves it out",
                         (long long)least(most_of(graph, g->max), most), (long long)session->max_tokens);
    if (session->max_tokens > g->room)
        return base_fail(session->context, DW_LIMIT, "the model's own cache holds %lld tokens, max_tokens is %lld: take fewer", (long long)g->room,
                         (long long)session->max_tokens);
    if (session->max_tokens > INT64_MAX / g->texts) return base_fail(session->context, DW_LIMIT, "%lld prompts of %lld tokens overflow", (long long)g->texts, (long long)session->max_tokens);
    if (!is_used(graph, g->total)) g->total = -1;   /* so that a run with more of them is bound already */
    g->cache_most = fits_calls(session, g) ? row_tokens(graph, g, session->max_tokens) : session->max_tokens;
    g->cache_rows = g->texts;
    g->cache_tokens = g->cache_most;
    g->asked = options->chunk;
    TRY(choose_piece(session, runner, g));
    g->run_most = least(least(asked > g->texts ? asked : g->texts, session->max_tokens * g->texts), most);
    if (g->texts == 1 && !fits_calls(session, g)) g->run_most = g->chunk;
    return DW_OK;
}

static bool has_rung(const generation *g, int64_t size) {
    for (int i = 0; i < g->rung_count; i++)
        if (g->rungs[i] == size) return true;
    return false;
}

static void add_rung(generation *g, int64_t size) {
    int at = g->rung_count;
    if (g->rung_count == ENGINE_LADDER || size > g->run_most || has_rung(g, size)) return;
    for (; at > 0 && g->rungs[at - 1] > size; at--) g->rungs[at] = g->rungs[at - 1];
    g->rungs[at] = size;
    g->rung_count++;
}

/* Powers of two below the most, and between those, from the small ones on, one and a half of them. */
static void add_rungs(generation *g, int64_t most) {
    for (int64_t size = 1; size < most; size *= 2) add_rung(g, size);
    for (int64_t size = 2; size / 2 * 3 < most; size *= 2) add_rung(g, size / 2 * 3);
}

static bool may_have_rungs(const dw_session *session, const ir_graph *graph, const generation *g) {
    return session->device != NULL && session->device->calls->graph_ready != NULL && g->mode == GENERATION_STEP && generation_tells_apart(graph);
}

/* The sizes of runs of a service on a GPU: the largest, one token of each text, what prompts have while others wait, and what is below. */
static void choose_rungs(const dw_session *session, const ir_graph *graph, generation *g) {
    if (!session->paging.is_shared || !may_have_rungs(session, graph, g)) return;
    g->is_ladder = true;
    add_rung(g, g->run_most);
    add_rung(g, g->texts);
    add_rung(g, generation_prompts_most(g));
    add_rungs(g, g->run_most);
}

/* Of a call those up to a token of each of its texts: as they end one after another, few sizes are bound. Prompts are read in runs of as many tokens as there are. */
static void choose_rungs_of_call(const dw_session *session, const ir_graph *graph, generation *g) {
    g->rung_count = 0;
    if (!may_have_rungs(session, graph, g)) return;
    add_rung(g, g->cache_rows);
    add_rungs(g, g->cache_rows);
}

dw_status generation_fit(dw_session *session, int64_t texts, int64_t tokens) {
    engine_runner *runner = generation_runner(session);
    generation *g = session->generation;
    if (!fits_calls(session, g)) return DW_OK;
    if (g->by_text) engine_prelude_least(session, runner, g->sizes);
    g->cache_rows = least(texts > 0 ? texts : 1, g->texts);
    g->cache_tokens = least(row_tokens(runner->program->plan->graph, g, tokens > 0 ? tokens : 1), g->cache_most);
    choose_rungs_of_call(session, runner->program->plan->graph, g);
    return choose_piece(session, runner, g);
}

dw_status generation_fit_inputs(dw_session *session, int count, const dw_named_tensor *inputs) {
    generation *g = session->generation;
    return fits_calls(session, g) && g->by_text && count > 0 ? engine_prelude_widen(session, count, inputs, generation_runner(session), g->sizes) : DW_OK;
}

/* Halves the largest run of a GPU until its workspace fits. */
static dw_status fit_runs(dw_session *session, engine_runner *runner, const dw_session_options *options, generation *g) {
    plan_binding *binding;
    while (runs_are_long(session, g) && options->chunk == 0 && g->run_most / 2 >= CHUNK && g->run_most / 2 >= g->texts) {
        generation_set_sizes(runner, g, g->run_most, g->texts, g->cache_most);
        TRY(engine_bind(session, runner, &binding));
        if (binding->value_bytes + binding->scratch_bytes <= session->device->caps.memory_bytes / WORKSPACE_SHARE) break;
        g->run_most /= 2;
        g->chunk = least(g->chunk, g->run_most);
    }
    return DW_OK;
}

/* ---- pages ---- */

/* Bytes of one page of a group, in all caches that have its pages. */
static dw_status page_bytes(dw_session *session, const engine_runner *runner, const generation *g, int group, uint64_t *bytes) {
    const ir_graph *graph = runner->program->plan->graph;
    *bytes = 0;
    for (size_t i = 0; i < graph->state_count; i++) {
        const op_type *type = &graph->states[i]->type;
        dw_tensor tensor;
        int symbol;
        if (type->rank != 4 || !dim_is_symbol(type->dims[0], &symbol) || symbol != g->groups[group].symbol) continue;
        TRY(op_tensor_bind(session->context, type, runner->symbols, NULL, &tensor));
        *bytes += op_tensor_bytes(&tensor) / (uint64_t)tensor.dims[0];
    }
    return DW_OK;
}

/* Pages for so many of a group that sees all; one that sees a window has as many as its texts can look at. */
static int64_t pages_beside(const generation *g, int group, int64_t pages) {
    const int64_t reach = g->groups[group].reach, seen = engine_pages_needed(g->page, reach, g->row_pages * g->page, g->chunk);
    if (reach == 0) return pages;
    return pages / seen < g->texts ? pages : seen * g->texts;
}

/* Bytes that nobody asked for, and on the host no more than twice what all texts need at their longest. A simulated GPU's memory is the host's. */
static dw_status usual_bytes(dw_session *session, engine_runner *runner, const generation *g, uint64_t *bytes, bool *is_most) {
    const device *device = session->device;
    size_t left;
    plan_binding *binding;
    *bytes = HOST_CACHE;
    *is_most = device == NULL || device->calls->left == NULL || device_is_simulated(device);
    if (*is_most) return DW_OK;
    generation_set_sizes(runner, g, g->run_most, g->texts, g->cache_most);
    TRY(engine_bind(session, runner, &binding));
    TRY(device->calls->left(session->device, &left));
    const double room = DEVICE_SHARE * (double)left - (double)(binding->value_bytes + binding->scratch_bytes);
    *bytes = room > 1 ? (uint64_t)room : 1;
    return DW_OK;
}

/* As many as fit into the bytes. */
static dw_status fill_bytes(dw_session *session, engine_runner *runner, generation *g) {
    uint64_t bytes[GENERATION_GROUPS], room = session->paging.cache_bytes;
    bool is_most = false;
    if (room == 0) TRY(usual_bytes(session, runner, g, &room, &is_most));
    const int64_t whole = INT32_MAX / 8, twice = 2 * g->texts * g->row_pages + 1;   /* beyond what texts need pages are kept for those that come again */
    int64_t low = 0, high = is_most && twice < whole ? twice : whole;
    generation_set_sizes(runner, g, 1, 1, 1);
    for (int i = 0; i < g->group_count; i++) TRY(page_bytes(session, runner, g, i, &bytes[i]));
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        double sum = 0;
        for (int i = 0; i < g->group_count; i++) sum += (double)bytes[i] * (double)pages_beside(g, i, middle);
        *(sum <= (double)room ? &low : &high) = middle;
    }
    for (int i = 0; i < g->group_count; i++) g->groups[i].pages = pages_beside(g, i, low);
    if (low > 0) return DW_OK;
    return base_fail(session->context, DW_LIMIT, "a cache of %llu bytes holds no page of %lld tokens: give it more, or smaller pages", (unsigned long long)room, (long long)g->page);
}

static dw_status choose_pages(dw_session *session, engine_runner *runner, generation *g) {
    const engine_paging *paging = &session->paging;
    if (g->group_count == 0) return DW_OK;
    g->page = paging->page_tokens > 0 ? paging->page_tokens : ENGINE_PAGE;
    g->row_pages = base_ceil_div(session->max_tokens, g->page);
    for (int i = 0; i < g->group_count; i++) g->groups[i].pages = g->texts * engine_pages_needed(g->page, g->groups[i].reach, session->max_tokens, g->chunk);
    return paging->is_shared ? fill_bytes(session, runner, g) : DW_OK;
}

int64_t engine_pages_needed(int64_t page, int64_t reach, int64_t tokens, int64_t chunk) {
    const int64_t all = base_ceil_div(tokens, page);
    if (reach == 0 || reach - 1 + chunk >= tokens) return all;
    const int64_t seen = base_ceil_div(reach - 1 + chunk, page) + 1;
    return seen < all ? seen : all;
}

void generation_own_pages(dw_session *session) {
    generation *g = session->generation;
    for (int i = 0; i < g->group_count; i++) {
        const int64_t pages = g->groups[i].pages, own = pages > g->texts ? pages / g->texts : 1;
        for (int64_t at = 0; at < g->texts * g->row_pages; at++) g->groups[i].table[at] = (int32_t)((at / g->row_pages * own + at % g->row_pages % own) % pages);
    }
    generation_table_changed(session);
}

void generation_table_changed(dw_session *session) {
    const generation *g = session->generation;
    for (int i = 0; i < g->group_count; i++) engine_stage_changed(&session->step, g->groups[i].input);
}

/* ---- memory ---- */

/* Memory that is measured with memory NULL and carved up with it. */
typedef struct region { uint8_t *memory; size_t at; } region;

static void *carve(region *region, size_t bytes) {
    void *place = region->memory != NULL ? region->memory + region->at : NULL;
    region->at += base_align_up(bytes, ENGINE_ALIGN);
    return place;
}

static dw_status carve_tensor(dw_session *session, const engine_runner *runner, const op_type *type, region *region, void **place) {
    dw_tensor tensor;
    num_parts parts;
    TRY(op_tensor_bind(session->context, type, runner->symbols, NULL, &tensor));
    if (!num_layout(tensor.format, tensor.scale_layout, tensor.rank, tensor.dims, &parts))
        return base_fail(session->context, DW_LIMIT, "a tensor of generation overflows");
    *place = carve(region, parts.total_bytes + 8);
    return DW_OK;
}

static dw_status carve_parts(dw_session *session, generation *g, region *region) {
    generation_parts *parts = &g->parts;
    size_t sent, received, rows, workspace;
    if (parts->ranks == 0) return DW_OK;
    TRY(generation_parts_bytes(session, g, &sent, &received, &rows, &workspace));
    parts->sent = carve(region, sent);
    parts->received = carve(region, received);
    parts->rows = carve(region, rows);
    parts->workspace = carve(region, workspace);
    return DW_OK;
}

static dw_status lay_out(dw_session *session, engine_runner *runner, generation *g, region *region) {
    const ir_graph *graph = runner->program->plan->graph, *prelude = session->prelude.program != NULL ? session->prelude.program->plan->graph : NULL;
    const size_t given = prelude != NULL ? prelude->output_count : 0;
    if (given > GENERATION_TENSORS) return base_fail(session->context, DW_LIMIT, "generation with more than %d given tensors", GENERATION_TENSORS);
    carve(region, sizeof *g);
    generation_set_sizes(runner, g, g->run_most, g->texts, g->cache_most);
    for (size_t i = 0; i < graph->input_count; i++) {
        if (g->feeds[i] == FEED_CALLER || (g->feeds[i] == FEED_GIVEN && session->device != NULL)) continue;
        TRY(carve_tensor(session, runner, &graph->inputs[i]->type, region, &g->buffers[i]));
    }
    for (int i = 0; i < g->group_count; i++) g->groups[i].table = g->buffers[g->groups[i].input];
    for (size_t i = 0; i < graph->output_count; i++) TRY(carve_tensor(session, runner, &graph->outputs[i].value->type, region, &g->results[i]));
    for (size_t i = 0; i < given && g->by_text && session->device == NULL; i++) TRY(carve_tensor(session, &session->prelude, &prelude->outputs[i].value->type, region, &g->prelude[i]));
    TRY(carve_parts(session, g, region));
    g->links = carve(region, (size_t)g->texts * sizeof *g->links);
    generation_text *text = carve(region, (size_t)g->texts * sizeof *text);
    for (int64_t i = 0; i < g->texts; i++) {
        void *sequence = carve(region, (size_t)session->max_tokens * sizeof(int64_t)), *limits = carve(region, (given + 1) * sizeof(int64_t));
        if (text != NULL) text[i] = (generation_text){.sequence = sequence, .own = sequence, .limits = limits};
    }
    g->text = text;
    return DW_OK;
}

/* ---- the workspace of the largest runs ---- */

/* A kernel's scratch is largest where each size is at one of its ends. */
static dw_status reserve_runs(dw_session *session, engine_runner *runner, const generation *g) {
    const int64_t fresh[] = {1, g->run_most}, ends[] = {1, g->texts}, total[] = {1, g->cache_most};
    for (int i = 0; i < 8; i++) {
        if ((i & 2 && g->ends < 0) || (i & 4 && g->total < 0)) continue;
        if (ends[i >> 1 & 1] > fresh[i & 1]) continue;
        generation_set_sizes(runner, g, fresh[i & 1], ends[i >> 1 & 1], total[i >> 2 & 1]);
        TRY(engine_reserve(session, runner));
    }
    return DW_OK;
}

/* Each size of what is given at its least too, where it is not that of a row for each text. */
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
    if (g->mode == GENERATION_WHOLE) {
        generation_set_sizes(runner, g, session->max_tokens, 1, session->max_tokens);
        return engine_reserve_up_to(session, runner);
    }
    if (session->prelude.program != NULL && !g->by_text) TRY(reserve_given(session, runner, g));
    return reserve_runs(session, runner, g);
}

/* Bytes of all states at the sizes of the runner. */
static dw_status state_bytes(dw_session *session, const engine_runner *runner, double *bytes) {
    const ir_graph *graph = runner->program->plan->graph;
    *bytes = 0;
    for (size_t i = 0; i < graph->state_count; i++) {
        dw_tensor tensor;
        num_parts parts;
        TRY(op_tensor_bind(session->context, &graph->states[i]->type, runner->symbols, NULL, &tensor));
        if (!num_layout(tensor.format, tensor.scale_layout, tensor.rank, tensor.dims, &parts)) return base_fail(session->context, DW_LIMIT, "the bytes of state %s overflow", graph->states[i]->name);
        *bytes += (double)parts.total_bytes;
    }
    return DW_OK;
}

/* What to ask for less of, and how much of it fits, where that is known. Pages that texts share are as many as the caller gave bytes for, whatever the rows. */
static void advise(const dw_session *session, const generation *g, double caches, double runs, double free, char *words, size_t size) {
    const double rows = caches > 0 ? (free - runs) / (caches / (double)g->texts) : 0;
    if (runs >= free) snprintf(words, size, "take fewer tokens of a run");
    else if (session->paging.is_shared && g->group_count > 0) snprintf(words, size, "give the cache fewer bytes, %.0f fit", free - runs);
    else if (rows >= 1) snprintf(words, size, "take fewer rows, %" PRId64 " fit", (int64_t)rows);
    else snprintf(words, size, "take fewer tokens of a text");
}

/* Has the device room for the caches and for the largest runs? Asked before any of it is made, so that the message can say what would fit. */
static dw_status check_room(dw_session *session, engine_runner *runner, const generation *g) {
    const device *device = session->device;
    size_t left;
    double caches;
    char words[96];
    if (device == NULL || device->calls->left == NULL || g->mode != GENERATION_STEP) return DW_OK;
    generation_set_sizes(runner, g, 1, 1, 1);
    TRY(state_bytes(session, runner, &caches));
    TRY(plan_layout_place(&runner->layout));
    TRY(device->calls->left(session->device, &left));
    const double runs = (double)runner->layout.value_bytes + (double)runner->scratch_bytes, free = (double)left;
    if (caches + runs <= free) return DW_OK;
    advise(session, g, caches, runs, free, words, sizeof words);
    return base_fail(session->context, DW_LIMIT, "rows=%" PRId64 " of %" PRId64 " tokens need %.1f MB for caches, and runs of %" PRId64 " tokens %.1f MB besides; %s has %.1f MB free: %s", g->texts,
                     session->max_tokens, caches / 1e6, g->run_most, runs / 1e6, device->caps.model, free / 1e6, words);
}

/* What the prelude makes lies where the step reads it, or where it is copied from, row by row. On a device it stays there. */
static dw_status connect_given(dw_session *session, const ir_graph *graph, const generation *g) {
    size_t found = 0;
    if (session->prelude.program == NULL) return DW_OK;
    for (size_t i = 0; i < graph->input_count; i++) {
        if (g->feeds[i] != FEED_GIVEN) continue;
        session->prelude.outputs[g->given[i]] = session->device != NULL ? NULL : g->by_text ? g->prelude[g->given[i]] : g->buffers[i];
        if (session->device != NULL) engine_stage_made(&session->step, i);
        found++;
    }
    if (found == session->prelude.program->plan->graph->output_count) return DW_OK;
    return base_fail(session->context, DW_CORRUPT, "the step does not read all that the prelude makes: compile the model again");
}

/* Is an input that is fed so the same from run to run, as long as no text begins? */
static bool is_lasting(feed feed) { return feed == FEED_ONES || feed == FEED_POSITIONS || feed == FEED_ZEROS || feed == FEED_TABLE; }

bool engine_keeps_cache(const dw_model *model) {
    if (model->step.plan != NULL || model->full.plan == NULL) return false;
    const ir_graph *graph = model->full.plan->graph;
    bool keeps = false, told = false;
    for (size_t i = 0; i < graph->state_count; i++) keeps = keeps || (graph->states[i]->next != graph->states[i] && graph->states[i]->type.rank > 0);
    for (size_t i = 0; i < graph->input_count; i++) told = told || strstr(graph->inputs[i]->name, "position") != NULL;
    return keeps && told;
}

static generation_mode mode_of(const dw_session *session) {
    if (session->step.program != NULL) return GENERATION_STEP;
    return engine_keeps_cache(session->model) ? GENERATION_STATE : GENERATION_WHOLE;
}

dw_status engine_generation_create(dw_session *session, const dw_session_options *options) {
    engine_runner *runner = generation_runner(session);
    if (runner->program == NULL) return base_fail(session->context, DW_UNSUPPORTED, "generation: %s", session->model->no_step);
    const ir_graph *graph = runner->program->plan->graph;
    generation measured = {.mode = mode_of(session)};
    TRY(generation_find(session, graph, &measured));
    TRY(choose_sizes(session, runner, options, &measured));
    if (session->prelude.program != NULL) {
        TRY(engine_prelude_create(session, options->dims, measured.batch < 0 ? NULL : dim_symbol_name(graph->dims, measured.batch)));
        engine_prelude_sizes(session, runner, measured.sizes);
    }
    TRY(choose_pages(session, runner, &measured));
    TRY(fit_runs(session, runner, options, &measured));
    choose_rungs(session, graph, &measured);
    TRY(reserve(session, runner, &measured));
    TRY(check_room(session, runner, &measured));
    region region = {0};
    TRY(lay_out(session, runner, &measured, &region));
    TRY(base_alloc(session->context, region.at, ENGINE_ALIGN, &session->generation));
    session->generation_bytes = region.at;
    memset(session->generation, 0, region.at);
    TRY(engine_sampler_create(session->context, session->device, measured.vocabulary, measured.logits_format, measured.texts, measured.texts, &session->sampler));
    session->sampler->invariant = (session->model->flags & DW_MODEL_INVARIANT) != 0;
    generation *g = session->generation;
    region.memory = session->generation;
    region.at = 0;
    TRY(lay_out(session, runner, &measured, &region));
    *g = measured;
    generation_own_pages(session);
    generation_fill_constants(graph, g, g->buffers, g->mode == GENERATION_STATE ? g->run_most : g->cache_most);
    TRY(connect_given(session, graph, g));
    for (size_t i = 0; i < graph->input_count && g->mode == GENERATION_STEP; i++)   /* whole runs of other callers have the whole graph's inputs, too */
        if (is_lasting(g->feeds[i])) engine_stage_keep(runner, i);
    generation_set_sizes(runner, g, 1, 1, 1);   /* the caches are made at these sizes */
    return DW_OK;
}
