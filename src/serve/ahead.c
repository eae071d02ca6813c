/* Running ahead: a run is started before the ids of the run in front of it are here, so the device has work while the host looks at them. A text whose token is on its way goes on with an id that the
 * host does not know, and the device does (generation_unknown). Two runs are on their way at most; a text that turns out to have ended costs the token that the second one makes of it.
 * Draws are made on the device, too, with penalties and biases, whose tables are there. A text with a mask waits for each run, as the host must know its ids first. */
#include "serve/scheduler.h"

bool scheduler_can_look_ahead(const scheduler *s) {
    return s->looks_ahead && !scheduler_needs_host(s);
}

/* What the text has now becomes what it will have behind the run. */
static void guess(scheduler *s, scheduler_flown *flown) {
    serve_text *text = flown->text;
    generation_text *work = &s->g->text[text->row];
    work->past += work->count;
    text->flying += flown->picked >= 0;
    flown->is_guessed = flown->picked >= 0 && text->made + text->flying < text->tokens;
    if (flown->is_guessed) work->sequence[work->length++] = generation_unknown(flown->picked);
}

static dw_status launch(scheduler *s, int which) {
    const generation *g = s->g;
    scheduler_flight *flight = &s->flights[which];
    flight->begin = base_now();
    flight->is_prompt = s->is_prompt;
    flight->count = 0;
    if (s->pages != NULL && pages_changed(s->pages)) generation_table_changed(s->session);
    generation_prepare(s->session);
    bool draws;
    TRY(scheduler_ask_device(s, generation_ends(s->session), &draws));
    TRY(generation_launch(s->session, which, draws));
    flight->is_up = true;
    for (int64_t row = 0; row < g->texts; row++) {
        const generation_text *work = &g->text[row];
        if (s->rows[row] == NULL || work->count == 0) continue;
        scheduler_flown *flown = &flight->of[flight->count++];
        *flown = (scheduler_flown){.text = s->rows[row], .count = work->count, .past = work->past, .length = work->length, .picked = work->picked};
        guess(s, flown);
    }
    return DW_OK;
}

/* The runs under way never were: their texts, but for those that gave their rows back since, are as before, and what each was to read in the oldest of them is what is planned for it. */
static void roll_back(scheduler *s) {
    for (int i = 0; i < ENGINE_FLIGHTS; i++) {
        scheduler_flight *flight = &s->flights[s->next_flight ^ 1 ^ i];   /* the last one first */
        for (int64_t k = 0; flight->is_up && k < flight->count; k++) {
            const scheduler_flown *flown = &flight->of[k];
            if (flown->text == NULL) continue;
            flown->text->flying -= flown->picked >= 0;
            if (flown->text->row < 0) continue;
            s->g->text[flown->text->row].past = flown->past;
            s->g->text[flown->text->row].length = flown->length;
            s->g->text[flown->text->row].count = flown->count;
        }
        flight->is_up = false;
        flight->count = 0;
    }
}

/* What came of a run, of a text that is still there. */
static dw_status take_flown(scheduler *s, const scheduler_flown *flown, const int64_t *ids, const sampler_made *made) {
    serve_text *text = flown->text;
    const int64_t row = flown->picked;
    s->facts.read_tokens += flown->count;
    text->flying -= flown->picked >= 0;
    if (text->row >= 0 && s->pages != NULL) pages_commit(s->pages, text->row, text->ids, flown->past + flown->count);
    if (row < 0) return DW_OK;
    text->was_read = true;
    text->drawn = (serve_drawn){.id = ids[row], .logprob = made->logs != NULL ? made->logs[row] : 0};
    if (text->draws.top_logprobs > 0) {
        text->drawn.top_count = text->draws.top_logprobs;
        text->drawn.top_ids = made->best_ids + row * made->length;
        text->drawn.top_logprobs = made->best_logs + row * made->length;
    }
    return scheduler_add_token(s, text, flown->is_guessed);
}

/* A run that is over takes less to be seen than this. */
#define SOON_S 5e-6

static dw_status land(scheduler *s, int which) {
    scheduler_flight *flight = &s->flights[which];
    const int64_t *ids;
    sampler_made made;
    if (!flight->is_up) return DW_OK;
    const double asked = base_now();
    TRY(generation_land(s->session, which, &ids, &made));
    const double now = base_now(), begin = flight->begin > s->landed ? flight->begin : s->landed;
    s->landed = now;
    s->facts.wait_s += now - asked;
    s->facts.waited_runs += now - asked > SOON_S;
    flight->is_up = false;
    scheduler_note_time(s, now - begin, flight->is_prompt);
    for (int64_t k = 0; k < flight->count; k++)
        if (flight->of[k].text != NULL) TRY(take_flown(s, &flight->of[k], ids, &made));
    flight->count = 0;
    return DW_OK;
}

/* The first of those under way; all wait for the device, whose error is theirs. */
static dw_status recover(scheduler *s, dw_status status) {
    s->session->device->calls->synchronize(s->session->device);
    roll_back(s);
    return status;
}

dw_status scheduler_drain(scheduler *s) {
    for (int i = 0; i < ENGINE_FLIGHTS && s->looks_ahead; i++) {
        const dw_status status = land(s, s->next_flight ^ i);
        if (status != DW_OK) return recover(s, status);
    }
    return DW_OK;
}

dw_status scheduler_run_ahead(scheduler *s) {
    const int which = s->next_flight;
    s->next_flight ^= 1;
    dw_status status = launch(s, which);
    if (status == DW_OK) status = land(s, which ^ 1);
    if (status == DW_OK && s->options.waits) status = land(s, which);
    return status == DW_OK ? DW_OK : recover(s, status);
}
