/* One run after another: planned (plan.c), executed, and what came of it told. A run that fails is repeated text by text, so that the one whose fault it is ends alone. */
#include "serve/scheduler.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- requests ---- */

static dw_status check_pages(dw_context *context, const generation *g, int64_t tokens) {
    for (int i = 0; i < g->group_count; i++) {
        const int64_t needed = engine_pages_needed(g->page, g->groups[i].reach, tokens, g->chunk);
        if (needed <= g->groups[i].pages) continue;
        return base_fail(context, DW_LIMIT, "a text of %" PRId64 " tokens needs %" PRId64 " pages of %" PRId64 " tokens, the cache has %" PRId64 ": ask for fewer tokens, or give the cache more bytes",
                         tokens, needed, g->page, g->groups[i].pages);
    }
    return DW_OK;
}

dw_status scheduler_check(dw_context *context, const dw_session *session, const serve_text *text) {
    const generation *g = session->generation;
    if (text->count < 1) return base_fail(context, DW_INVALID, "generation needs a prompt of at least one token");
    TRY(scheduler_check_draws(context, &text->draws, g->vocabulary));
    if (text->tokens < 0 || text->count > session->max_tokens || text->tokens > session->max_tokens - text->count)
        return base_fail(context, DW_LIMIT, "%" PRId64 " prompt tokens and %" PRId64 " new ones exceed the session's max_tokens of %" PRId64, text->count, text->tokens, session->max_tokens);
    for (int64_t i = 0; i < text->count; i++)
        if (text->ids[i] < 0 || text->ids[i] >= g->vocabulary)
            return base_fail(context, DW_INVALID, "prompt id %" PRId64 " at %" PRId64 " is outside the vocabulary of %" PRId64, text->ids[i], i, g->vocabulary);
    return check_pages(context, g, text->count + text->tokens);
}

/* ---- a run ---- */

/* What the run that is planned made. */
static dw_status take_results(scheduler *s) {
    for (int64_t row = 0; row < s->g->texts; row++) {
        serve_text *text = s->rows[row];
        generation_text *work = &s->g->text[row];
        if (text == NULL || work->count == 0) continue;
        work->past += work->count;
        s->facts.read_tokens += work->count;
        if (s->pages != NULL) pages_commit(s->pages, row, work->sequence, work->past);
        if (work->past == work->length) text->was_read = true;
        if (work->picked >= 0) TRY(scheduler_add_token(s, text, false));
    }
    return DW_OK;
}

static dw_status execute(scheduler *s) {
    generation *g = s->g;
    const double begin = base_now();
    g->reads_logits = scheduler_reads_logits(s);
    engine_sampler_changed(s->session->sampler, -1);   /* the host counts what comes of this run, or of one that was rolled back */
    if (s->pages != NULL && pages_changed(s->pages)) generation_table_changed(s->session);
    TRY(orders_run(s->options.orders, s->session));
    TRY(scheduler_draw(s));
    scheduler_note_time(s, base_now() - begin, s->is_prompt);
    return take_results(s);
}

/* Is it the end of more than a run? */
static bool is_final(const scheduler *s, dw_status status) { return status == DW_CANCELLED || (status != DW_OK && !orders_go_on(s->options.orders)); }

/* Those of the run that failed, one after another: a token that was written is written again as it was. */
static dw_status execute_each(scheduler *s) {
    generation *g = s->g;
    int64_t *counts = s->counts;
    for (int64_t row = 0; row < g->texts; row++) {
        counts[row] = g->text[row].count;
        g->text[row].count = 0;
    }
    dw_status status = DW_OK;
    for (int64_t row = 0; row < g->texts && !is_final(s, status); row++) {
        serve_text *text = s->rows[row];
        if (counts[row] == 0 || text == NULL) continue;
        g->text[row].count = counts[row];
        status = execute(s);
        if (is_final(s, status)) break;
        if (status != DW_OK) {
            text->status = status;
            scheduler_end(s, text, DW_END_FAULT);
        }
        g->text[row].count = 0;
    }
    return is_final(s, status) ? status : DW_OK;
}

static void end_late_ones(scheduler *s) {
    const double now = base_now();
    for (int64_t row = 0; row < s->g->texts; row++)
        if (s->rows[row] != NULL && s->rows[row]->deadline > 0 && now > s->rows[row]->deadline) scheduler_end(s, s->rows[row], DW_END_DEADLINE);
    for (serve_text *text = s->first, *next; text != NULL; text = next) {
        next = text->after;
        if (text->deadline > 0 && now > text->deadline) scheduler_end(s, text, DW_END_DEADLINE);
    }
}

/* What is in the cache was computed from weights that are no more: nobody takes it over from here on. */
static dw_status notice_update(scheduler *s) {
    if (s->updates == s->session->model->updates) return DW_OK;
    TRY(scheduler_drain(s));
    s->updates = s->session->model->updates;
    if (s->pages != NULL) pages_forget(s->pages);
    return DW_OK;
}

/* The run that is planned; what is under way ends first where it cannot wait. */
static dw_status run_planned(scheduler *s, bool any) {
    const bool ahead = any && scheduler_can_look_ahead(s);
    if (ahead) return scheduler_run_ahead(s);
    TRY(scheduler_drain(s));
    return scheduler_any_planned(s) ? execute(s) : DW_OK;
}

/* Does the run that is planned read some of a text that has no token of its own yet, and none on its way? */
static bool reads_prompt(const scheduler *s) {
    for (int64_t row = 0; row < s->g->texts; row++)
        if (s->rows[row] != NULL && s->g->text[row].count > 0 && s->rows[row]->made + s->rows[row]->flying == 0) return true;
    return false;
}

static dw_status step(scheduler *s, bool *busy) {
    bool any;
    *busy = false;
    TRY(notice_update(s));
    end_late_ones(s);
    TRY(scheduler_plan(s, &any));
    *busy = any || scheduler_is_under_way(s);
    if (!*busy) return DW_OK;
    s->is_prompt = reads_prompt(s);
    const dw_status status = run_planned(s, any);
    return status == DW_OK || is_final(s, status) || s->options.fails_whole ? status : execute_each(s);
}

dw_status scheduler_step(scheduler *s, bool *busy) {
    const double begin = base_now(), waited = s->facts.wait_s;
    const dw_status status = step(s, busy);
    if (*busy) s->facts.host_s += base_now() - begin - (s->facts.wait_s - waited);
    return status;
}

/* ---- life ---- */

static dw_status make_pages(scheduler *s) {
    const generation *g = s->g;
    pages_options options = {.slots = g->page, .rows = g->texts, .entries = g->row_pages, .group_count = g->group_count, .alone = s->options.alone};
    for (int i = 0; i < g->group_count; i++) options.groups[i] = (pages_group){g->groups[i].reach, g->groups[i].pages, g->groups[i].table};
    return g->group_count > 0 ? pages_create(s->session->context, &options, &s->pages) : DW_OK;
}

dw_status scheduler_create(dw_session *session, const scheduler_options *options, scheduler *made) {
    *made = (scheduler){.session = session, .g = session->generation, .options = *options, .updates = session->model->updates};
    arena_init(&made->arena, session->context);
    for (int64_t i = 0; i < made->g->texts; i++) made->g->text[i].count = 0;
    TRY_NEW(made->rows, &made->arena, made->g->texts);
    TRY_NEW(made->order, &made->arena, made->g->texts);
    TRY_NEW(made->counts, &made->arena, made->g->texts);
    for (int i = 0; i < ENGINE_FLIGHTS; i++) TRY_NEW(made->flights[i].of, &made->arena, made->g->texts);
    TRY(generation_look_ahead(session, &made->looks_ahead));
    return make_pages(made);
}

void scheduler_clear(scheduler *s) {
    for (int i = 0; i < ENGINE_FLIGHTS; i++) s->flights[i].is_up = false, s->flights[i].count = 0;
    for (int64_t row = 0; row < s->g->texts; row++)
        if (s->rows[row] != NULL) scheduler_leave(s, s->rows[row]);
    s->first = s->last = NULL;
    s->waiting = 0;
    s->serial = 0;
    if (s->pages != NULL) pages_forget(s->pages);
}

void scheduler_destroy(scheduler *s) {
    if (s->session != NULL && scheduler_is_under_way(s)) s->session->device->calls->synchronize(s->session->device);
    pages_destroy(s->pages);
    arena_free(&s->arena);
}

static int compare_times(const void *a, const void *b) { return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b); }

void scheduler_count(const scheduler *s, dw_service_facts *facts) {
    float times[SCHEDULER_TIMES];
    const int64_t count = s->facts.runs < SCHEDULER_TIMES ? s->facts.runs : SCHEDULER_TIMES;
    pages_facts pages = {0};
    *facts = s->facts;
    if (s->pages != NULL) pages_count(s->pages, &pages);
    facts->vocabulary = s->g->vocabulary;
    facts->waiting = s->waiting;
    facts->running = s->running;
    facts->device_s = s->session->worked_s;
    facts->pages = pages.pages;
    facts->pages_used = pages.used;
    facts->pages_idle = pages.idle;
    facts->pages_free = pages.pages - pages.used - pages.idle;
    facts->pages_shared = pages.shared;
    facts->pages_released = pages.released;
    facts->prefix_hits = pages.hits;
    facts->prefix_tokens = pages.hit_tokens;
    if (count == 0) return;
    memcpy(times, s->times, (size_t)count * sizeof *times);
    qsort(times, (size_t)count, sizeof *times, compare_times);
    facts->run_s_median = times[count / 2];
    facts->run_s_90 = times[count * 9 / 10];
    facts->run_s_99 = times[count * 99 / 100];
    facts->run_s_most = times[count - 1];
}
