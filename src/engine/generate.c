/* Generation. Texts come in; their prompts are read in runs of many tokens; then each run computes a token of every text at work. A text that
 * has ended makes room for the next. Knows token ids only; words are the caller's. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "engine/generation.h"
#include "engine/sampler.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- requests ---- */

static dw_status check_prompt(const dw_session *session, const dw_prompt *prompt, const dw_generate_options *options) {
    const generation *g = session->generation;
    if (prompt->count < 1) return base_fail(session->context, DW_INVALID, "generation needs a prompt of at least one token");
    if (options->tokens < 0 || prompt->count > session->max_tokens || options->tokens > session->max_tokens - prompt->count)
        return base_fail(session->context, DW_LIMIT, "%" PRId64 " prompt tokens and %" PRId64 " new ones exceed the session's max_tokens of %" PRId64,
                         prompt->count, options->tokens, session->max_tokens);
    for (int64_t i = 0; i < prompt->count; i++)
        if (prompt->ids[i] < 0 || prompt->ids[i] >= g->vocabulary)
            return base_fail(session->context, DW_INVALID, "prompt id %" PRId64 " at %" PRId64 " is outside the vocabulary of %" PRId64, prompt->ids[i], i,
                             g->vocabulary);
    return DW_OK;
}

static dw_status check_request(const dw_session *session, int count, const dw_prompt *prompts, const dw_generate_options *options) {
    if (session->generation == NULL) return base_fail(session->context, DW_INVALID, "the session was made without room to generate: set max_tokens");
    if (!(options->temperature >= 0) || !isfinite(options->temperature))
        return base_fail(session->context, DW_INVALID, "temperature %g is not a number of at least 0", options->temperature);
    if (!(options->top_p >= 0 && options->top_p <= 1)) return base_fail(session->context, DW_INVALID, "top_p %g is no probability", options->top_p);
    if (options->top_k < 0) return base_fail(session->context, DW_INVALID, "top_k %d is negative; 0 draws among all", options->top_k);
    for (int i = 0; i < count; i++) {
        dw_status status = check_prompt(session, &prompts[i], options);
        if (status != DW_OK && count > 1) base_fail_at(session->context, status, "prompt %d", i);
        if (status != DW_OK) return status;
    }
    return DW_OK;
}

static bool is_among(int64_t id, int count, const int64_t *ids) {
    for (int i = 0; i < count; i++)
        if (ids[i] == id) return true;
    return false;
}

/* ---- texts ---- */

/* One call of dw_session_generate_batch. */
typedef struct work {
    dw_session *session;
    const dw_generate_options *options;
    dw_prompt *prompts;
    int count, next;             /* prompts, and how many of them have begun */
    dw_generate_times spent;
} work;

/* Waiting prompts go to free places. */
static dw_status begin_texts(work *work) {
    generation *g = work->session->generation;
    for (int64_t i = 0; i < g->texts; i++) {
        generation_text *text = &g->text[i];
        while (text->prompt == NULL && work->next < work->count) {
            dw_prompt *prompt = &work->prompts[work->next++];
            const bool own = prompt->input_count > 0;
            if (work->options->tokens == 0) continue;
            if (g->mode != GENERATION_STEP) TRY(dw_session_reset(work->session));   /* caches of the step are read where they were written alone */
            text->prompt = prompt;
            text->length = prompt->count;
            text->past = text->count = 0;
            memcpy(text->sequence, prompt->ids, (size_t)prompt->count * sizeof *prompt->ids);
            TRY(generation_set_inputs(work->session, text, own ? prompt->input_count : work->options->input_count, own ? prompt->inputs : work->options->inputs));
        }
    }
    return DW_OK;
}

/* How many new tokens each text has in the next run; false: none has any. */
static bool plan_run(generation *g) {
    int64_t left = g->run_most, all = 0;
    for (int64_t i = 0; i < g->texts; i++) {
        generation_text *text = &g->text[i];
        text->count = 0;
        if (text->prompt == NULL) continue;
        if (g->mode == GENERATION_WHOLE) text->past = 0;
        text->count = least(least(text->length - text->past, g->chunk), left);
        left -= text->count;
        all += text->count;
    }
    return all > 0;
}

static void add_token(work *work, generation_text *text) {
    const dw_generate_options *options = work->options;
    dw_prompt *prompt = text->prompt;
    const int64_t id = text->id;
    const int row = (int)(prompt - work->prompts);
    text->sequence[text->length++] = id;
    prompt->made_ids[prompt->made++] = id;
    work->spent.new_tokens++;
    bool ends = prompt->made == options->tokens || is_among(id, options->stop_count, options->stop_ids) || is_among(id, prompt->stop_count, prompt->stop_ids);
    ends |= options->on_token != NULL && options->on_token(options->user, id) != 0;
    ends |= options->on_prompt_token != NULL && options->on_prompt_token(options->user, row, id) != 0;
    if (ends) text->prompt = NULL;
}

/* The next token of each text whose tokens are all in. */
static dw_status pick_tokens(work *work) {
    const dw_generate_options *options = work->options;
    generation *g = work->session->generation;
    for (int64_t i = 0; i < g->texts; i++) {
        generation_text *text = &g->text[i];
        if (text->picked < 0) continue;
        text->settings = engine_sampler_settings(options->temperature, options->top_k, options->top_p);
        text->seed = text->prompt->seed;
        text->draw = (uint64_t)text->prompt->made;
    }
    TRY(generation_pick(work->session));
    for (int64_t i = 0; i < g->texts; i++)
        if (g->text[i].picked >= 0) TRY(engine_sampler_check(work->session->context, g->text[i].id));
    return DW_OK;
}

static dw_status run_texts(work *work) {
    generation *g = work->session->generation;
    double begin = base_now();
    TRY(begin_texts(work));
    while (plan_run(g)) {
        bool reads = false;
        for (int64_t i = 0; i < g->texts; i++) reads = reads || (g->text[i].count > 0 && g->text[i].prompt->made == 0);
        if (g->mode == GENERATION_WHOLE) TRY(dw_session_reset(work->session));   /* the next run begins where this one began */
        TRY(generation_run(work->session));
        TRY(pick_tokens(work));
        *(reads ? &work->spent.prefill_s : &work->spent.decode_s) += base_now() - begin;
        for (int64_t i = 0; i < g->texts; i++) {
            generation_text *text = &g->text[i];
            text->past += text->count;
            if (text->count > 0 && text->picked >= 0) add_token(work, text);
        }
        begin = base_now();
        TRY(begin_texts(work));
    }
    return DW_OK;
}

/* ---- public ---- */

dw_status dw_session_generate_batch(dw_session *session, int count, dw_prompt *prompts, const dw_generate_options *options, dw_generate_times *times) {
    work work = {.session = session, .options = options, .prompts = prompts, .count = count};
    for (int i = 0; i < count; i++) prompts[i].made = 0;
    TRY(check_request(session, count, prompts, options));
    generation *g = session->generation;
    g->reads_logits = options->temperature > 0 || g->next < 0;
    work.spent.cached = g->mode != GENERATION_WHOLE;
    for (int i = 0; i < count; i++) work.spent.prompt_tokens += prompts[i].count;
    for (int64_t i = 0; i < g->texts; i++) g->text[i].prompt = NULL;
    const dw_status status = run_texts(&work);
    for (int64_t i = 0; i < g->texts; i++) g->text[i].prompt = NULL;
    if (times != NULL) *times = work.spent;
    return status;
}

dw_status dw_session_generate(dw_session *session, int64_t prompt_count, const int64_t *prompt, const dw_generate_options *options, int64_t *ids,
                              int64_t *made, dw_generate_times *times) {
    dw_prompt one = {.count = prompt_count, .ids = prompt, .seed = options->seed, .made_ids = ids};
    const dw_status status = dw_session_generate_batch(session, 1, &one, options, times);
    *made = one.made;
    return status;
}

bool engine_prepare_again(dw_session *session, int64_t from, int64_t to, int run) {
    generation *g = session->generation;
    dw_prompt any = {0};
    bool has;
    for (int64_t i = 0; i < g->texts; i++) {
        g->text[i].prompt = &any;
        g->text[i].past = from;
        g->text[i].length = to;
    }
    while ((has = plan_run(g)) && run-- > 0)
        for (int64_t i = 0; i < g->texts; i++) g->text[i].past += g->text[i].count;
    for (int64_t i = 0; i < g->texts; i++) g->text[i].prompt = NULL;
    if (has) generation_prepare(session);
    return has;
}

dw_status engine_run_again(dw_session *session) { return generation_run(session); }

dw_status engine_decode_again(dw_session *session, int64_t id, int64_t past) {
    generation *g = session->generation;
    for (int64_t i = 0; i < g->texts; i++) g->text[i].count = 0;
    g->text[0].sequence[past] = id;
    g->text[0].past = past;
    g->text[0].length = past + 1;
    g->text[0].count = 1;
    return generation_run(session);
}
