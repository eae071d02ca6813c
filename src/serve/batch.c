/* Sessions of callers, and generation by one call: its prompts are texts of the session's scheduler, as many at a time as it has rows. All memory is taken when the session is made. Knows token ids
 * only; words are the caller's. */
#include "serve/scheduler.h"

#include <string.h>

/* One call of dw_session_generate_batch. */
typedef struct batch {
    const dw_generate_options *options;
    dw_prompt *prompts;
    int count, next;             /* prompts, and how many of them have begun */
    dw_generate_times spent;
} batch;

/* Lies in session->serving. */
typedef struct serving {
    scheduler scheduler;
    serve_text *texts;           /* [texts] */
    batch *batch;                /* while there is a call */
} serving;

static bool is_among(int64_t id, int count, const int64_t *ids) {
    for (int i = 0; i < count; i++)
        if (ids[i] == id) return true;
    return false;
}

/* A token: the caller's functions may end the text. */
static int changed(void *user, serve_text *text, int64_t id) {
    batch *batch = ((serving *)user)->batch;
    const dw_generate_options *options = batch->options;
    dw_prompt *prompt = text->user;
    if (id < 0) return 0;
    prompt->made_ids[prompt->made++] = id;
    batch->spent.new_tokens++;
    bool ends = is_among(id, options->stop_count, options->stop_ids);
    ends |= options->on_token != NULL && options->on_token(options->user, id) != 0;
    ends |= options->on_prompt_token != NULL && options->on_prompt_token(options->user, (int)(prompt - batch->prompts), id) != 0;
    return ends;
}

static serve_text text_of(const batch *batch, int index) {
    dw_prompt *prompt = &batch->prompts[index];
    const bool own = prompt->input_count > 0;
    serve_text text = {
        .count = prompt->count,
        .tokens = batch->options->tokens,
        .ids = (int64_t *)prompt->ids,
        .draws = {.temperature = batch->options->temperature, .top_k = batch->options->top_k, .top_p = batch->options->top_p, .seed = prompt->seed},
        .stop_ids = prompt->stop_ids,
        .stop_count = prompt->stop_count,
        .inputs = own ? prompt->inputs : batch->options->inputs,
        .input_count = own ? prompt->input_count : batch->options->input_count,
        .user = prompt,
        .row = -1,
    };
    text.key.owner = text.input_count > 0 ? (uint64_t)index + 1 : 0;   /* what an encoder was given decides its keys, too */
    return text;
}

static dw_status check_prompts(dw_session *session, const batch *batch) {
    if (session->generation == NULL) return base_fail(session->context, DW_INVALID, "the session was made without room to generate: set max_tokens");
    for (int i = 0; i < batch->count; i++) {
        const serve_text text = text_of(batch, i);
        const dw_status status = scheduler_check(session->context, session, &text);
        if (status != DW_OK && batch->count > 1) base_fail_at(session->context, status, "prompt %d", i);
        if (status != DW_OK) return status;
    }
    return DW_OK;
}

/* The next prompts take the places of texts that have ended. */
static void begin_prompts(serving *serving) {
    scheduler *s = &serving->scheduler;
    batch *batch = serving->batch;
    for (int64_t i = 0; i < s->g->texts && batch->next < batch->count; i++) {
        serve_text *text = &serving->texts[i];
        if (text->user != NULL && text->end == DW_END_NONE) continue;
        *text = text_of(batch, batch->next++);
        int64_t *ids = s->g->text[i].own;
        memcpy(ids, text->ids, (size_t)text->count * sizeof *ids);
        text->ids = ids;
        scheduler_add(s, text);
    }
}

/* Caches of a GPU are as the call's texts need them, so what a text gets does not depend on what else the session has room for. */
static dw_status fit(dw_session *session, const batch *batch) {
    int64_t longest = 0;
    for (int i = 0; i < batch->count; i++) longest = batch->prompts[i].count > longest ? batch->prompts[i].count : longest;
    TRY(generation_fit(session, batch->count, longest + batch->options->tokens));
    for (int i = 0; i < batch->count; i++) {
        const serve_text text = text_of(batch, i);
        TRY(generation_fit_inputs(session, text.input_count, text.inputs));
    }
    return DW_OK;
}

static dw_status run_prompts(serving *serving) {
    batch *batch = serving->batch;
    scheduler *s = &serving->scheduler;
    bool busy = true;
    scheduler_clear(s);
    dw_status status = fit(s->session, batch);
    s->counted = base_now();
    s->spent[false] = s->spent[true] = 0;
    for (int64_t i = 0; i < s->g->texts; i++) serving->texts[i].user = NULL;
    while (status == DW_OK && busy && batch->options->tokens > 0) {
        begin_prompts(serving);
        status = scheduler_step(s, &busy);
    }
    batch->spent.prefill_s = s->spent[true];
    batch->spent.decode_s = s->spent[false];
    scheduler_clear(s);
    return status;
}

dw_status dw_session_generate_batch(dw_session *session, int count, dw_prompt *prompts, const dw_generate_options *options, dw_generate_times *times) {
    batch batch = {.options = options, .prompts = prompts, .count = count};
    serving *serving = session->serving;
    for (int i = 0; i < count; i++) prompts[i].made = 0;
    TRY(check_prompts(session, &batch));
    batch.spent.cached = ((const generation *)session->generation)->mode != GENERATION_WHOLE;
    for (int i = 0; i < count; i++) batch.spent.prompt_tokens += prompts[i].count;
    serving->batch = &batch;
    const dw_status status = run_prompts(serving);
    serving->batch = NULL;
    if (times != NULL) *times = batch.spent;
    return status;
}

dw_status dw_session_generate(dw_session *session, int64_t prompt_count, const int64_t *prompt, const dw_generate_options *options, int64_t *ids, int64_t *made,
                              dw_generate_times *times) {
    dw_prompt one = {.count = prompt_count, .ids = prompt, .seed = options->seed, .made_ids = ids};
    const dw_status status = dw_session_generate_batch(session, 1, &one, options, times);
    *made = one.made;
    return status;
}

/* ---- sessions ---- */

static dw_status add_serving(dw_session *session) {
    const generation *g = session->generation;
    serving *serving;
    if (g == NULL) return DW_OK;
    TRY_NEW(serving, &session->arena, 1);
    TRY_NEW(serving->texts, &session->arena, g->texts);
    session->serving = serving;
    return scheduler_create(session, &(scheduler_options){.changed = changed, .user = serving, .fails_whole = true, .together = true}, &serving->scheduler);
}

dw_status dw_session_create(dw_context *context, const dw_model *model, const dw_session_options *options, dw_session **session) {
    TRY(engine_session_create(context, model, options, &(engine_paging){0}, session));
    const dw_status status = add_serving(*session);
    if (status == DW_OK) return DW_OK;
    dw_session_destroy(*session);
    *session = NULL;
    return status;
}

void dw_session_destroy(dw_session *session) {
    if (session == NULL) return;
    if (session->serving != NULL) scheduler_destroy(&((serving *)session->serving)->scheduler);
    engine_session_destroy(session);
}
