/* The tokens of a run: where no more than the likeliest are wanted and the step names them, as it does; else from the rows of logits. */
#include <math.h>

#include "engine/generation.h"
#include "engine/sampler.h"

/* Where the first row lies that a text reads; those of others lie behind it. */
static int64_t first_row(const generation *g) {
    int64_t first = INT64_MAX;
    for (int64_t i = 0; i < g->texts; i++)
        if (g->text[i].picked >= 0 && g->text[i].picked < first) first = g->text[i].picked;
    return first;
}

/* What the step names, where its logit is a number. Logits that stay on a device are not looked at. */
static int64_t named(const dw_session *session, int64_t row) {
    const generation *g = session->generation;
    const int64_t id = ((const int64_t *)g->results[g->next])[row];
    if (session->device != NULL) return id;
    const double logit = num_load(g->logits_format, g->results[g->output], row * g->vocabulary + id);
    return isfinite(logit) ? id : logit == -INFINITY ? SAMPLING_NOTHING_LEFT : SAMPLING_NOT_FINITE;
}

dw_status generation_pick(dw_session *session) {
    const generation *g = session->generation;
    engine_sampler *sampler = session->sampler;
    const int64_t first = first_row(g);
    int64_t count = 0;
    for (int64_t i = 0; i < g->texts; i++) {
        generation_text *text = &g->text[i];
        if (text->picked < 0) continue;
        if (!g->reads_logits) text->id = named(session, text->picked);
        else engine_sampler_ask(sampler, text->picked - first, &text->settings, text->seed, text->draw, text->has_tables ? i : -1);
        count++;
    }
    if (!g->reads_logits || count == 0) return DW_OK;
    TRY(engine_sampler_run(sampler, (const uint8_t *)g->results[g->output] + (size_t)first * num_row_bytes(g->logits_format, g->vocabulary), count));
    for (int64_t i = 0; i < g->texts; i++) {
        generation_text *text = &g->text[i];
        if (text->picked < 0) continue;
        text->id = sampler->ids[text->picked - first];
        text->log = sampler->logs[text->picked - first];
    }
    return DW_OK;
}
