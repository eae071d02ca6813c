/* Who has how many new tokens in the next run. Texts that lack one token come first, in order; what is left of the run goes to prompts, in order; in a service on a GPU both have runs of their own, in turns. Order is
 * by priority, then by arrival. Where pages are short the last text in order gives its own back, and is read again later. */
#include "serve/scheduler.h"

/* A GPU's tile of queries goes through the keys of each text that it has a query of, one text after the other. So a tile of 64 texts that lack a token holds up a run of a prompt for longer than a run of
 * their own takes: 64 texts of 1,024 tokens and 1,984 tokens of a prompt take an H200 46 ms together, and apart some 4 and 9. So few texts, or tokens of prompts, go together: how few was chosen, not measured. */
enum { FEW_TEXTS = 2, FEW_TOKENS = 32 };

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static bool comes_before(const serve_text *a, const serve_text *b) { return a->priority != b->priority ? a->priority > b->priority : a->serial < b->serial; }

/* ---- those that wait ---- */

static void wait_in_order(scheduler *s, serve_text *text) {
    serve_text *before = s->last;
    while (before != NULL && comes_before(text, before)) before = before->before;
    text->before = before;
    text->after = before != NULL ? before->after : s->first;
    *(text->before != NULL ? &text->before->after : &s->first) = text;
    *(text->after != NULL ? &text->after->before : &s->last) = text;
    text->row = -1;
    s->waiting++;
}

static void stop_waiting(scheduler *s, serve_text *text) {
    *(text->before != NULL ? &text->before->after : &s->first) = text->after;
    *(text->after != NULL ? &text->after->before : &s->last) = text->before;
    s->waiting--;
}

void scheduler_add(scheduler *s, serve_text *text) {
    text->serial = ++s->serial;
    wait_in_order(s, text);
}

void scheduler_leave(scheduler *s, serve_text *text) {
    if (text->row < 0) {
        stop_waiting(s, text);
        return;
    }
    if (s->pages != NULL) pages_end(s->pages, text->row);
    s->g->text[text->row].count = 0;
    s->g->text[text->row].sequence = s->g->text[text->row].own;
    s->rows[text->row] = NULL;
    s->running--;
    text->row = -1;
}

void scheduler_forget(scheduler *s, const serve_text *text) {
    for (int i = 0; i < ENGINE_FLIGHTS; i++)
        for (int64_t k = 0; k < s->flights[i].count; k++)
            if (s->flights[i].of[k].text == text) s->flights[i].of[k].text = NULL;
}

bool scheduler_is_under_way(const scheduler *s) { return s->flights[0].is_up || s->flights[1].is_up; }

void scheduler_end(scheduler *s, serve_text *text, dw_end end) {
    scheduler_forget(s, text);
    scheduler_leave(s, text);
    text->end = end;
    s->facts.ended++;
    s->facts.faults += end == DW_END_FAULT;
    s->options.changed(s->options.user, text, -1);
}

static void preempt(scheduler *s, serve_text *text) {
    s->facts.preemptions++;
    s->g->text[text->row].serial = 0;
    scheduler_leave(s, text);
    wait_in_order(s, text);
}

/* ---- those at work ---- */

static generation_text *work_of(const scheduler *s, const serve_text *text) { return &s->g->text[text->row]; }

/* s->order; how many there are. */
static int64_t put_in_order(scheduler *s) {
    int64_t count = 0;
    for (int64_t row = 0; row < s->g->texts; row++) {
        int64_t at = count;
        if (s->rows[row] == NULL) continue;
        for (; at > 0 && comes_before(s->rows[row], s->order[at - 1]); at--) s->order[at] = s->order[at - 1];
        s->order[at] = s->rows[row];
        count++;
    }
    return count;
}

static int64_t free_row(const scheduler *s) {
    int64_t row = 0;
    while (s->rows[row] != NULL) row++;
    return row;
}

static void take_known(scheduler *s, serve_text *text) {
    generation_text *work = work_of(s, text);
    if (s->pages == NULL || work->past >= work->length - 1) return;
    const int64_t known = pages_match(s->pages, text->row, work->sequence, work->length - 1);
    if (known <= work->past) return;
    if (!text->was_read) text->cached += known - work->past;
    work->past = known;
}

/* The text gets a row. What else it is given is computed now. */
static dw_status begin(scheduler *s, serve_text *text, int64_t row) {
    generation *g = s->g;
    generation_text *work = &g->text[row];
    stop_waiting(s, text);
    s->rows[row] = text;
    s->running++;
    text->row = row;
    work->sequence = text->ids;
    work->serial = text->serial;
    work->length = text->count + text->made;
    work->past = work->count = 0;
    if (s->pages != NULL) pages_begin(s->pages, row, text->key);
    if (g->mode != GENERATION_STEP) TRY(orders_reset(s->options.orders, s->session));   /* caches of the step are read where they were written alone */
    TRY(scheduler_begin_draws(s, text));
    return orders_set_inputs(s->options.orders, s->session, work, text->input_count, text->inputs);
}

/* Are there pages for all that the text has so far? One that is alone has them, or gets them piece by piece. */
static bool fits(const scheduler *s, const serve_text *text) { return s->pages == NULL || s->running == 1 || pages_fit(s->pages, text->row, work_of(s, text)->length + 1); }

/* Texts that wait go to free rows. Of those with inputs of their own, whose encoder runs now, one, or all where they are together. */
static dw_status take_in(scheduler *s) {
    bool encoded = false;
    while (s->first != NULL && s->running < s->g->texts && !(encoded && s->first->input_count > 0)) {
        serve_text *text = s->first;
        encoded = text->input_count > 0 && !s->options.together;
        text->status = begin(s, text, free_row(s));
        if (text->status != DW_OK && s->options.fails_whole) return text->status;
        if (text->status == DW_NO_MEMORY || text->status == DW_CANCELLED || !orders_go_on(s->options.orders)) return text->status;
        if (text->status != DW_OK) {
            scheduler_end(s, text, DW_END_FAULT);
            continue;
        }
        take_known(s, text);
        if (fits(s, text)) continue;
        scheduler_leave(s, text);
        wait_in_order(s, text);
        return DW_OK;
    }
    return DW_OK;
}

/* ---- the next run ---- */

/* Pages for count more tokens of the text: others behind it in order give theirs. false: they do not do, or it is itself the last. */
static bool make_room(scheduler *s, serve_text *text, int64_t *texts) {
    const generation_text *work = work_of(s, text);
    while (s->pages != NULL && !pages_reserve(s->pages, text->row, work->past + 1)) {
        serve_text *last = s->order[--*texts];
        preempt(s, last);
        if (last == text) return false;
    }
    return true;
}

/* Does a text in front of it bring the page that it would begin with? */
static bool waits_for_other(const scheduler *s, const serve_text *text, int64_t before) {
    const generation_text *work = work_of(s, text);
    for (int64_t i = 0; s->pages != NULL && i < before; i++) {
        const serve_text *other = s->order[i];
        const generation_text *its = work_of(s, other);
        if ((its->count == 0 && other->flying == 0) || its->past + its->count <= work->past) continue;
        if (pages_is_same(s->pages, text->row, other->row, work->sequence, its->sequence, its->past + its->count)) return true;
    }
    return false;
}

static bool lacks_one(const generation_text *work) { return work->length - work->past == 1; }

/* Texts that lack one token. */
static void plan_decoding(scheduler *s, int64_t *texts, int64_t *left) {
    for (int64_t i = 0; i < *texts && *left > 0; i++) {
        serve_text *text = s->order[i];
        if (!lacks_one(work_of(s, text))) continue;
        if (!make_room(s, text, texts)) return;
        work_of(s, text)->count = 1;
        --*left;
    }
}

static void plan_prompts(scheduler *s, int64_t texts, int64_t left) {
    for (int64_t i = 0; i < texts && left > 0; i++) {
        generation_text *work = work_of(s, s->order[i]);
        if (work->count > 0 || work->length == work->past) continue;
        take_known(s, s->order[i]);
        if (waits_for_other(s, s->order[i], i)) continue;
        int64_t count = least(least(work->length - work->past, s->g->chunk), left);
        if (s->pages != NULL) count = pages_room(s->pages, s->order[i]->row, work->past + count) - work->past;
        if (count <= 0 || (s->pages != NULL && !pages_reserve(s->pages, s->order[i]->row, work->past + count))) continue;
        work->count = count;
        left -= count;
    }
}

/* In a service on a GPU. In one call prompts come at once, and nobody waits for a token. */
static bool goes_apart(const scheduler *s, int64_t decoding) { return s->session->device != NULL && s->pages != NULL && decoding > FEW_TEXTS; }

/* The turn of one of both, of prompts or of texts that lack a token, unless a run takes both and there is little of prompts. */
static void take_turns(scheduler *s, int64_t texts, int64_t decoding) {
    int64_t prompts = 0;
    for (int64_t i = 0; i < texts; i++) prompts += lacks_one(work_of(s, s->order[i])) ? 0 : work_of(s, s->order[i])->count;
    const bool together = !goes_apart(s, decoding) || (prompts <= FEW_TOKENS && decoding + prompts <= s->g->run_most);
    s->prompts_turn = !together && !s->prompts_turn;
    for (int64_t i = 0; i < texts && !together; i++)
        if (lacks_one(work_of(s, s->order[i])) == s->prompts_turn) work_of(s, s->order[i])->count = 0;
}

bool scheduler_any_planned(const scheduler *s) {
    for (int64_t row = 0; row < s->g->texts; row++)
        if (s->g->text[row].count > 0) return true;
    return false;
}

dw_status scheduler_plan(scheduler *s, bool *any) {
    TRY(take_in(s));
    *any = false;
    while (!*any && s->running > 0) {
        int64_t texts = put_in_order(s), left = s->g->run_most;
        for (int64_t row = 0; row < s->g->texts; row++) s->g->text[row].count = 0;
        for (int64_t i = 0; i < texts && s->g->mode == GENERATION_WHOLE; i++) work_of(s, s->order[i])->past = 0;
        if (s->g->mode == GENERATION_WHOLE) TRY(orders_reset(s->options.orders, s->session));   /* the next run begins where this one began */
        plan_decoding(s, &texts, &left);
        const int64_t decoding = s->g->run_most - left;
        plan_prompts(s, texts, goes_apart(s, decoding) ? generation_prompts_most(s->g) : left);
        take_turns(s, texts, decoding);
        *any = scheduler_any_planned(s);
        if (!*any && scheduler_is_under_way(s)) return DW_OK;   /* what comes of that may end texts */
        if (!*any && texts > 1) preempt(s, s->order[texts - 1]);
        else if (!*any) return base_fail(s->session->context, DW_INTERNAL, "a text alone has no pages");
    }
    return DW_OK;
}
