/* Runs of the cached step for those who measure: tokens go into the caches of all texts in order, whatever they are. Texts are made by src/serve. */
#include "engine/engine.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* How many new tokens each text has in the next run; false: none has any. */
static bool plan_run(generation *g) {
    int64_t left = g->run_most, all = 0;
    for (int64_t i = 0; i < g->texts; i++) {
        generation_text *text = &g->text[i];
        text->count = least(least(text->length - text->past, g->chunk), left);
        left -= text->count;
        all += text->count;
    }
    return all > 0;
}

bool engine_prepare_again(dw_session *session, int64_t from, int64_t to, int run) {
    generation *g = session->generation;
    bool has;
    generation_own_pages(session);
    for (int64_t i = 0; i < g->texts; i++) {
        g->text[i].past = from;
        g->text[i].length = to;
    }
    while ((has = plan_run(g)) && run-- > 0)
        for (int64_t i = 0; i < g->texts; i++) g->text[i].past += g->text[i].count;
    if (has) generation_prepare(session);
    return has;
}

dw_status engine_run_again(dw_session *session) { return generation_run(session); }

dw_status engine_decode_again(dw_session *session, int64_t id, int64_t past) {
    generation *g = session->generation;
    generation_own_pages(session);
    for (int64_t i = 0; i < g->texts; i++) g->text[i].count = 0;
    g->text[0].sequence[past] = id;
    g->text[0].past = past;
    g->text[0].length = past + 1;
    g->text[0].count = 1;
    return generation_run(session);
}
