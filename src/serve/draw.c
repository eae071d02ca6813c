/* The tokens of a run. A text that wants no more than the likeliest one gets it from the step, which names it; for others the op sample is called once, for all rows of the logits that the run made.
 * Which of both it is depends on the text alone, and so does its token. */
#include "serve/scheduler.h"

#include <math.h>
#include <string.h>

/* ---- what may be asked for ---- */

static bool is_below(double value, double most) { return value >= 0 && value <= most; }

static dw_status check_bias(dw_context *context, const serve_draws *d, int64_t vocabulary) {
    for (int i = 0; i < d->bias_count; i++) {
        if (d->bias_ids[i] < 0 || d->bias_ids[i] >= vocabulary)
            return base_fail(context, DW_INVALID, "bias %d is of id %lld, which is outside the vocabulary of %lld", i, (long long)d->bias_ids[i], (long long)vocabulary);
        if (!(d->bias[i] < INFINITY)) return base_fail(context, DW_INVALID, "bias %d, of id %lld, is %g: it must be a number, or -inf, which forbids the id", i, (long long)d->bias_ids[i], (double)d->bias[i]);
    }
    return DW_OK;
}

dw_status scheduler_check_draws(dw_context *context, const serve_draws *d, int64_t vocabulary) {
    if (!(d->temperature >= 0) || !isfinite(d->temperature)) return base_fail(context, DW_INVALID, "temperature %g is not a number of at least 0", d->temperature);
    if (!is_below(d->top_p, 1)) return base_fail(context, DW_INVALID, "top_p %g is no probability", d->top_p);
    if (!is_below(d->min_p, 1)) return base_fail(context, DW_INVALID, "min_p %g is no probability", d->min_p);
    if (d->top_k < 0) return base_fail(context, DW_INVALID, "top_k %d is negative; 0 draws among all", d->top_k);
    if (!(d->repetition >= 0) || !isfinite(d->repetition)) return base_fail(context, DW_INVALID, "repetition %g is no factor above 0; 0 and 1 ask for none", d->repetition);
    if (!isfinite(d->presence)) return base_fail(context, DW_INVALID, "presence %g is no number", d->presence);
    if (!isfinite(d->frequency)) return base_fail(context, DW_INVALID, "frequency %g is no number", d->frequency);
    if (d->top_logprobs < 0 || d->top_logprobs > vocabulary)
        return base_fail(context, DW_LIMIT, "%d of the likeliest ids are asked for, the vocabulary has %lld", d->top_logprobs, (long long)vocabulary);
    return check_bias(context, d, vocabulary);
}

/* ---- a text's rows of the tables ---- */

static sampling_settings settings_of(const serve_draws *d) {
    sampling_settings settings = engine_sampler_settings(d->temperature, d->top_k, d->top_p);
    settings.min_p = (float)d->min_p;
    settings.presence = (float)d->presence;
    settings.frequency = (float)d->frequency;
    if (d->repetition > 0) settings.repetition = (float)d->repetition;
    return settings;
}

static bool has_penalties(const serve_draws *d) {
    const sampling_settings settings = settings_of(d);
    return sampling_has_penalties(&settings);
}

static bool uses_tables(const serve_draws *d) { return has_penalties(d) || d->bias_count > 0 || d->mask != NULL; }

/* What no draw on a device makes. */
static bool is_for_host(const serve_draws *d) { return d->mask != NULL || d->top_logprobs > SAMPLER_TOLD; }

/* Does the text need more of its logits than which is the largest? */
static bool needs_sample(const scheduler *s, const serve_text *text) {
    return s->g->next < 0 || text->draws.temperature > 0 || text->draws.logprobs || text->draws.top_logprobs > 0 || uses_tables(&text->draws);
}

static int64_t words_of(const scheduler *s) { return base_ceil_div(s->g->vocabulary, 32); }
static uint32_t *mask_of(const scheduler *s, int64_t row) { return (uint32_t *)s->session->sampler->tables[SAMPLER_MASK] + row * words_of(s); }
static int32_t *counts_of(const scheduler *s, int64_t row) { return (int32_t *)s->session->sampler->tables[SAMPLER_COUNTS] + row * s->g->vocabulary; }

static void count_ids(const scheduler *s, const serve_text *text) {
    int32_t *counts = counts_of(s, text->row);
    for (int64_t i = 0; i < text->count; i++) counts[text->ids[i]] |= SAMPLING_IN_PROMPT;
    for (int64_t i = 0; i < text->made; i++) counts[text->ids[text->count + i]]++;
}

dw_status scheduler_begin_draws(scheduler *s, const serve_text *text) {
    engine_sampler *sampler = s->session->sampler;
    const serve_draws *d = &text->draws;
    if (!uses_tables(d)) return DW_OK;
    engine_sampler_changed(sampler, text->row);
    const bool flies = s->looks_ahead && !is_for_host(d);
    if (has_penalties(d)) TRY(engine_sampler_use(sampler, SAMPLER_COUNTS));
    if (has_penalties(d) && flies) TRY(engine_sampler_place(sampler, SAMPLER_COUNTS));
    if (d->bias_count > 0) TRY(engine_sampler_use(sampler, SAMPLER_BIAS));
    if (d->bias_count > 0 && flies) TRY(engine_sampler_place(sampler, SAMPLER_BIAS));
    if (d->mask != NULL) TRY(engine_sampler_use(sampler, SAMPLER_MASK));
    if (sampler->tables[SAMPLER_COUNTS] != NULL) memset(counts_of(s, text->row), 0, (size_t)s->g->vocabulary * sizeof(int32_t));
    if (sampler->tables[SAMPLER_MASK] != NULL) memset(mask_of(s, text->row), 0xff, (size_t)words_of(s) * sizeof(uint32_t));
    if (has_penalties(d)) count_ids(s, text);
    if (sampler->tables[SAMPLER_BIAS] == NULL) return DW_OK;
    float *bias = (float *)sampler->tables[SAMPLER_BIAS] + text->row * s->g->vocabulary;
    memset(bias, 0, (size_t)s->g->vocabulary * sizeof *bias);
    for (int i = 0; i < d->bias_count; i++) bias[d->bias_ids[i]] += d->bias[i];
    return DW_OK;
}

/* Does the text look at more than the likeliest of its logits, whatever its settings are? */
static bool needs_tables(const serve_text *text) { return uses_tables(&text->draws) || text->draws.top_logprobs > 0; }

/* ---- a run on a device ---- */

static bool is_picked(const scheduler *s, int64_t row) { return s->rows[row] != NULL && s->g->text[row].count > 0 && s->g->text[row].picked >= 0; }

bool scheduler_needs_host(const scheduler *s) {
    for (int64_t row = 0; row < s->g->texts; row++)
        if (s->rows[row] != NULL && s->g->text[row].count > 0 && is_for_host(&s->rows[row]->draws)) return true;
    return false;
}

dw_status scheduler_ask_device(scheduler *s, int64_t ends, bool *any) {
    engine_sampler *sampler = s->session->sampler;
    const sampling_settings greedy = engine_sampler_settings(0, 0, 0);
    int64_t top = 0;
    *any = false;
    for (int64_t row = 0; row < s->g->texts; row++) *any = *any || (is_picked(s, row) && needs_sample(s, s->rows[row]));
    if (!*any) return DW_OK;
    for (int64_t i = 0; i < ends; i++) engine_sampler_ask(sampler, i, &greedy, 0, 0, -1);
    for (int64_t row = 0; row < s->g->texts; row++) {
        if (!is_picked(s, row)) continue;
        const serve_text *text = s->rows[row];
        const sampling_settings settings = settings_of(&text->draws);
        const bool tables = uses_tables(&text->draws);
        if (tables) TRY(engine_sampler_bring(sampler, row));
        engine_sampler_ask(sampler, s->g->text[row].picked, &settings, text->draws.seed, (uint64_t)(text->made + text->flying), tables ? row : -1);
        if (text->draws.top_logprobs > top) top = text->draws.top_logprobs;
    }
    return engine_sampler_tell(sampler, top);
}

/* ---- a run ---- */

bool scheduler_reads_logits(const scheduler *s) {
    for (int64_t row = 0; row < s->g->texts; row++)
        if (s->rows[row] != NULL && s->g->text[row].count > 0 && needs_sample(s, s->rows[row])) return true;
    return false;
}

/* The request's own mask of its next token, which it is asked for once. false: it wants none. */
static bool fill_mask(const scheduler *s, serve_text *text) {
    uint32_t *bits = mask_of(s, text->row);
    if (text->masked > text->made) return !text->is_refused;
    text->masked = text->made + 1;
    memset(bits, 0xff, (size_t)words_of(s) * sizeof *bits);
    return text->draws.mask(text->draws.user, text->made > 0 ? text->ids[text->count + text->made - 1] : -1, bits) == 0;
}

static void ask(scheduler *s, serve_text *text, int64_t first, int64_t *top) {
    const int64_t row = text->row;
    const sampling_settings settings = settings_of(&text->draws);
    text->is_refused = text->draws.mask != NULL && !fill_mask(s, text);
    engine_sampler_ask(s->session->sampler, s->g->text[row].picked - first, &settings, text->draws.seed, (uint64_t)text->made, uses_tables(&text->draws) ? row : -1);
    if (text->draws.top_logprobs > *top) *top = text->draws.top_logprobs;
}

static void take(const scheduler *s, serve_text *text, int64_t first) {
    const generation_text *work = &s->g->text[text->row];
    const engine_sampler *sampler = s->session->sampler;
    const int64_t at = work->picked - first;
    text->drawn = (serve_drawn){.id = -1};
    const bool is_here = s->session->device == NULL || !s->g->reads_logits;   /* a device gives the logits or what the step names */
    if (!needs_sample(s, text) && is_here) {
        text->drawn.id = ((const int64_t *)s->g->results[s->g->next])[work->picked];
        return;
    }
    text->drawn.id = sampler->ids[at];
    text->drawn.logprob = sampler->logs[at];
    text->drawn.top_count = text->draws.top_logprobs;
    if (text->draws.top_logprobs == 0) return;
    text->drawn.top_ids = sampler->best_ids + at * sampler->length;
    text->drawn.top_logprobs = sampler->best_logs + at * sampler->length;
}

/* Of the logits of each row so many of the largest are all that draws look at; 0: all of them. */
static int64_t count_candidates(const scheduler *s) {
    int64_t most = 0;
    for (int64_t row = 0; row < s->g->texts; row++) {
        const serve_draws *d = is_picked(s, row) ? &s->rows[row]->draws : NULL;
        if (d == NULL || !needs_sample(s, s->rows[row])) continue;
        if (d->top_k < 1 || d->temperature == 0 || d->logprobs || needs_tables(s->rows[row])) return 0;
        if (d->top_k > most) most = d->top_k;
    }
    return most;
}

/* The rows of the logits from the first that a text wants to the last; between them may be some that nobody does. */
dw_status scheduler_draw(scheduler *s) {
    const generation *g = s->g;
    const sampling_settings greedy = engine_sampler_settings(0, 0, 0);
    int64_t first = INT64_MAX, last = -1, top = 0;
    const void *rows = NULL;
    for (int64_t row = 0; row < g->texts; row++) {
        if (!is_picked(s, row)) continue;
        if (g->text[row].picked < first) first = g->text[row].picked;
        if (g->text[row].picked > last) last = g->text[row].picked;
    }
    if (last < 0) return DW_OK;
    const bool samples = scheduler_reads_logits(s);
    for (int64_t i = first; i <= last && samples; i++) engine_sampler_ask(s->session->sampler, i - first, &greedy, 0, 0, -1);
    for (int64_t row = 0; row < g->texts && samples; row++)
        if (is_picked(s, row)) ask(s, s->rows[row], first, &top);
    if (samples) TRY(orders_logits(s->options.orders, s->session, first, last - first + 1, count_candidates(s), &rows));
    if (samples) TRY(engine_sampler_tell(s->session->sampler, top));
    if (samples) TRY(engine_sampler_run(s->session->sampler, rows, last - first + 1));
    for (int64_t row = 0; row < g->texts; row++)
        if (is_picked(s, row)) take(s, s->rows[row], first);
    return DW_OK;
}

dw_end scheduler_refuse(scheduler *s, serve_text *text) {
    if (text->is_refused || (text->drawn.id == SAMPLING_NOTHING_LEFT && text->draws.mask != NULL)) return DW_END_MASK;
    if (text->drawn.id >= 0) return DW_END_NONE;
    text->status = engine_sampler_check(s->session->context, text->drawn.id);
    return DW_END_FAULT;
}

void scheduler_count_token(scheduler *s, const serve_text *text) {
    if (text->row >= 0 && has_penalties(&text->draws)) counts_of(s, text->row)[text->drawn.id]++;   /* one that gave its row back meanwhile is counted anew with its next one */
}
