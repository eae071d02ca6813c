/* What a token does to its text: it is the last of its ids, and may end it. And what a run took. */
#include "serve/scheduler.h"

static bool is_among(int64_t id, int count, const int64_t *ids) {
    for (int i = 0; i < count; i++)
        if (ids[i] == id) return true;
    return false;
}

/* The text ends without a token. */
static dw_status refuse(scheduler *s, serve_text *text, dw_end end) {
    const dw_status status = text->status;
    scheduler_end(s, text, end);
    return end == DW_END_FAULT && s->options.fails_whole ? status : DW_OK;
}

dw_status scheduler_add_token(scheduler *s, serve_text *text, bool is_guessed) {
    const int64_t id = text->drawn.id;
    const dw_end refused = scheduler_refuse(s, text);
    if (refused != DW_END_NONE) return refuse(s, text, refused);
    scheduler_count_token(s, text);
    text->ids[text->count + text->made++] = id;
    if (!is_guessed && text->row >= 0) s->g->text[text->row].length++;
    s->facts.made_tokens++;
    if (is_among(id, text->stop_count, text->stop_ids)) text->end = DW_END_STOP;
    else if (text->made == text->tokens) text->end = DW_END_LENGTH;
    if (text->end != DW_END_NONE) {
        scheduler_forget(s, text);
        scheduler_leave(s, text);
        s->facts.ended++;
        s->options.changed(s->options.user, text, id);   /* which may give the text's memory back */
    } else if (s->options.changed(s->options.user, text, id) != 0) {
        text->end = DW_END_CANCELLED;
        scheduler_forget(s, text);
        scheduler_leave(s, text);
        s->facts.ended++;
    }
    return DW_OK;
}

void scheduler_note_time(scheduler *s, double seconds, bool is_prompt) {
    const double now = base_now();
    s->spent[is_prompt] += now - s->counted;
    s->counted = now;
    s->run_s = seconds;
    s->times[s->facts.runs % SCHEDULER_TIMES] = (float)seconds;
    s->facts.runs++;
}
