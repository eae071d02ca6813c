/* Random schedules: texts come, are cancelled and end, with any size of pages, runs, cache and rows, shared or not, at one and two threads. What each text gets, ids, logits and logprobs, is bit for
 * bit what it gets alone in a cache of its own. On the carried model, and on exported decoders where they are. DEEPWELL_SCHEDULES is how many there are of the carried model at each number of threads, 60 where it is not set, and six times as many as of each other. */
#include "lab/lab.h"
#include "serve/scheduler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/support.h"

enum { TEXTS = 24, LONGEST = 100, MADE = 24, ROOM = LONGEST + MADE, SHARED = 70, BEST = 3 };

/* A text, and what it gets alone. */
typedef struct subject {
    int64_t count, tokens;
    int64_t prompt[LONGEST];
    serve_draws draws;
    dw_named_tensor *inputs;
    int input_count;
    int64_t made, ids[MADE];
    uint64_t logits[MADE];
    float logs[MADE], best_logs[MADE][BEST];
    int64_t best_ids[MADE][BEST];
} subject;

/* What all schedules held. */
typedef struct tally { int64_t schedules, texts, tokens, logprobs, preemptions, cancellations, hits, released, inputs; } tally;

typedef struct world {
    dw_context *context;
    const dw_model *model;
    arena arena;
    subject subjects[TEXTS];
    uint64_t random;
    uint64_t cache_bytes;          /* of all rows at their longest */
    tally *tally;
} world;

/* One text of a schedule. */
typedef struct follower {
    const subject *subject;
    serve_text text;
    int64_t ids[ROOM];
    bool is_cancelled, has_ended;
} follower;

static int64_t draw(world *w, int64_t count) {
    w->random = w->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((w->random >> 33) % (uint64_t)count);
}

static uint64_t hash_logits(const generation *g, uint64_t serial) {
    const size_t bytes = (size_t)g->vocabulary * (size_t)dw_format_bits(g->logits_format) / 8;
    for (int64_t i = 0; i < g->texts; i++)
        if (g->text[i].serial == serial && g->text[i].picked >= 0) return base_hash((const char *)g->results[g->output] + (size_t)g->text[i].picked * bytes, bytes, 0);
    return 0;
}

/* ---- alone ---- */

typedef struct observed { const dw_session *session; subject *subject; } observed;

static int observe(void *user, serve_text *text, int64_t id) {
    const observed *seen = user;
    subject *s = seen->subject;
    if (id < 0) fail_msg("a text alone ended by %s", dw_end_name(text->end));
    const int64_t at = s->made++;
    s->logits[at] = hash_logits(seen->session->generation, 1);
    s->ids[at] = id;
    if (s->draws.logprobs) s->logs[at] = text->drawn.logprob;
    for (int i = 0; i < text->drawn.top_count; i++) {
        s->best_ids[at][i] = text->drawn.top_ids[i];
        s->best_logs[at][i] = text->drawn.top_logprobs[i];
    }
    return 0;
}

/* Half of them are drawn; some have penalties, some a bias, some tell logprobs. */
static serve_draws draws_of(int number) {
    static const int64_t bias_ids[] = {3, 9};
    static const float bias[] = {2, -INFINITY};
    serve_draws draws = {.temperature = number % 2, .top_k = 20, .min_p = number % 4 == 1 ? 0.02 : 0, .seed = (uint64_t)number};
    if (number % 3 == 0) draws.logprobs = true, draws.top_logprobs = number % 2 ? BEST : 1;
    if (number % 5 == 0) draws.repetition = 1.2, draws.presence = 0.1, draws.frequency = 0.05;
    if (number % 7 == 0) draws.bias_ids = bias_ids, draws.bias = bias, draws.bias_count = 2;
    return draws;
}

static dw_status make_inputs(world *w, const dw_session *session, int number, subject *s) {
    int64_t sizes[ENGINE_MAX_SYMBOLS], min, max;
    if (session->prelude.program == NULL) return DW_OK;
    const plan *plan = session->prelude.program->plan;
    for (int i = 0; i < dim_symbol_count(plan->graph->dims); i++) {
        dim_symbol_range(plan->graph->dims, i, &min, &max);
        sizes[i] = session->prelude_most[i] - 3 * number > min ? session->prelude_most[i] - 3 * number : session->prelude_most[i] > 1 ? 2 : 1;
    }
    TRY_NEW(s->inputs, &w->arena, plan->graph->input_count);
    TRY(lab_random_inputs(&w->arena, plan, sizes, s->inputs));
    s->input_count = (int)plan->graph->input_count;
    return DW_OK;
}

static dw_status run_alone(world *w, int number, int64_t room) {
    subject *s = &w->subjects[number];
    dw_session *session;
    scheduler scheduler;
    int64_t ids[ROOM];
    bool busy = true;
    TRY(engine_session_create(w->context, w->model, &(dw_session_options){.max_tokens = room, .chunk = ROOM}, &(engine_paging){0}, &session));
    const int64_t vocabulary = ((const generation *)session->generation)->vocabulary;
    s->count = 1 + draw(w, room - MADE);
    s->tokens = 1 + draw(w, MADE);
    for (int64_t i = 0; i < s->count; i++) s->prompt[i] = i < SHARED ? (i * 7 + number % 3) % vocabulary : draw(w, vocabulary);
    s->draws = draws_of(number);
    observed seen = {session, s};
    dw_status status = make_inputs(w, session, number, s);
    if (status == DW_OK) status = scheduler_create(session, &(scheduler_options){.changed = observe, .user = &seen, .alone = true}, &scheduler);
    serve_text text = {.count = s->count, .tokens = s->tokens, .ids = memcpy(ids, s->prompt, (size_t)s->count * sizeof *ids), .draws = s->draws, .inputs = s->inputs, .input_count = s->input_count, .row = -1};
    if (status == DW_OK) scheduler_add(&scheduler, &text);
    while (status == DW_OK && busy) status = scheduler_step(&scheduler, &busy);
    assert_int_equal(s->made, s->tokens);
    scheduler_destroy(&scheduler);
    engine_session_destroy(session);
    return status;
}

/* ---- among others ---- */

static void check_logprobs(const world *w, const subject *s, const serve_text *text, int64_t at) {
    const serve_drawn *drawn = &text->drawn;
    if (!s->draws.logprobs) return;
    if (memcmp(&drawn->logprob, &s->logs[at], sizeof drawn->logprob) != 0) fail_msg("the logprob of token %d of text %d is %.9g, alone it is %.9g", (int)at, (int)(s - w->subjects), (double)drawn->logprob, (double)s->logs[at]);
    assert_int_equal(drawn->top_count, s->draws.top_logprobs);
    assert_memory_equal(drawn->top_ids, s->best_ids[at], (size_t)drawn->top_count * sizeof(int64_t));
    assert_memory_equal(drawn->top_logprobs, s->best_logs[at], (size_t)drawn->top_count * sizeof(float));
    w->tally->logprobs++;
}

static int changed(void *user, serve_text *text, int64_t id) {
    world *w = user;
    follower *f = text->user;
    const subject *s = f->subject;
    f->has_ended = text->end != DW_END_NONE;
    if (f->has_ended && text->end == DW_END_FAULT) fail_msg("a text ended by a fault: %s", dw_context_error(w->context));
    if (id < 0) return 0;
    w->tally->tokens++;
    const int64_t at = text->made - 1;
    if (id != s->ids[at]) fail_msg("token %d of text %d is %d, alone it is %d", (int)at, (int)(s - w->subjects), (int)id, (int)s->ids[at]);
    check_logprobs(w, s, text, at);
    if (f->has_ended && text->end != DW_END_LENGTH) fail_msg("a text ended by %s", dw_end_name(text->end));
    return 0;
}

/* Logits of the run that was, of those that go on. */
static void check_logits(world *w, const scheduler *s, const follower *followers) {
    for (int i = 0; i < TEXTS; i++) {
        const follower *f = &followers[i];
        if (f->subject == NULL || f->text.made == 0) continue;
        const uint64_t hash = f->text.serial > 0 ? hash_logits(s->g, f->text.serial) : 0;
        if (hash != 0 && hash != f->subject->logits[f->text.made - 1]) fail_msg("logits of token %d of text %d have other bits", (int)f->text.made - 1, i);
    }
    (void)w;
}

static void submit(world *w, scheduler *s, follower *f, const subject *subject) {
    *f = (follower){.subject = subject};
    memcpy(f->ids, subject->prompt, (size_t)subject->count * sizeof *f->ids);
    f->text = (serve_text){.count = subject->count, .tokens = subject->tokens, .ids = f->ids, .draws = subject->draws, .inputs = subject->inputs, .input_count = subject->input_count, .row = -1,
                           .priority = draw(w, 4) == 0 ? (int)draw(w, 3) - 1 : 0, .user = f};
    f->text.key = (pages_key){(uint64_t)(draw(w, 8) == 0), subject->input_count > 0 ? (uint64_t)(subject - w->subjects) + 1 : 0};
    if (scheduler_check(w->context, s->session, &f->text) != DW_OK) {   /* larger than the cache */
        f->has_ended = true;
        return;
    }
    w->tally->texts++;
    scheduler_add(s, &f->text);
}

static void cancel_some(world *w, scheduler *s, follower *followers, int begun) {
    follower *f = &followers[begun > 0 ? draw(w, begun) : 0];
    if (begun == 0 || draw(w, 12) > 0 || f->has_ended) return;
    pages_facts facts;
    scheduler_end(s, &f->text, DW_END_CANCELLED);
    w->tally->cancellations++;
    assert_true(f->has_ended);
    assert_int_equal(f->text.row, -1);
    if (s->pages == NULL || s->running > 0) return;
    pages_count(s->pages, &facts);
    assert_int_equal(facts.used, 0);
}

static void run_schedule(world *w, scheduler *s) {
    static follower followers[TEXTS];
    int begun = 0, most = 4 + (int)draw(w, TEXTS - 4);
    bool busy = true;
    memset(followers, 0, sizeof followers);
    while (busy || begun < most) {
        while (begun < most && draw(w, 3) > 0) {
            submit(w, s, &followers[begun], &w->subjects[draw(w, TEXTS)]);
            begun++;
        }
        cancel_some(w, s, followers, begun);
        for (int64_t i = 0; i < s->g->texts; i++) s->g->text[i].picked = -1;
        if (scheduler_step(s, &busy) != DW_OK) fail_msg("%s", dw_context_error(w->context));
        check_logits(w, s, followers);
        if (s->pages != NULL && pages_check(w->context, s->pages) != DW_OK) fail_msg("%s", dw_context_error(w->context));
    }
    for (int i = 0; i < begun; i++) assert_true(followers[i].has_ended);
}

static dw_status schedule(world *w, int64_t room) {
    static const int64_t pages[] = {16, 32, 64, 128};
    dw_session *session;
    scheduler scheduler;
    dw_service_facts facts;
    const dw_session_options options = {.max_tokens = room, .rows = 1 + draw(w, 8), .chunk = 1 + draw(w, draw(w, 2) ? 200 : 20)};
    const engine_paging paging = {.is_shared = true, .page_tokens = pages[draw(w, 4)], .cache_bytes = w->cache_bytes * (uint64_t)(3 + draw(w, 7)) / 4 + 1};
    dw_status status = engine_session_create(w->context, w->model, &options, &paging, &session);
    if (status == DW_LIMIT) return DW_OK;   /* not one page */
    TRY(status);
    status = scheduler_create(session, &(scheduler_options){.changed = changed, .user = w, .alone = draw(w, 5) == 0}, &scheduler);
    if (status == DW_OK) run_schedule(w, &scheduler);
    if (status == DW_OK) scheduler_count(&scheduler, &facts);
    if (status == DW_OK && scheduler.pages != NULL) assert_int_equal(facts.pages_used, 0);
    w->tally->schedules++;
    w->tally->preemptions += facts.preemptions;
    w->tally->hits += facts.prefix_hits;
    w->tally->released += facts.pages_released;
    scheduler_destroy(&scheduler);
    engine_session_destroy(session);
    return status;
}

/* Bytes of caches of one text at its longest. */
static dw_status weigh(world *w, int64_t room) {
    dw_session *session;
    TRY(dw_session_create(w->context, w->model, &(dw_session_options){.max_tokens = room}, &session));
    const ir_graph *graph = generation_runner(session)->program->plan->graph;
    for (size_t i = 0; i < graph->state_count; i++) w->cache_bytes += generation_runner(session)->state_bytes[i];
    dw_session_destroy(session);
    return DW_OK;
}

static dw_status run_model(dw_context *context, const dw_model *model, int64_t room, int count, uint64_t seed, tally *tally) {
    static world w;
    w = (world){.context = context, .model = model, .random = seed, .tally = tally};
    arena_init(&w.arena, context);
    dw_status status = weigh(&w, room);
    for (int i = 0; i < TEXTS && status == DW_OK; i++) status = run_alone(&w, i, room);
    for (int i = 0; i < count && status == DW_OK; i++) status = schedule(&w, room);
    arena_free(&w.arena);
    return status;
}

/* ---- models ---- */

static dw_status run_file(const char *path, const char *precision, int threads, int64_t room, int count, uint64_t seed, tally *tally) {
    dw_context *context;
    dw_model *model = NULL;
    TRY(dw_context_create(&(dw_context_options){.threads = threads}, &context));
    dw_status status = dw_model_open(context, path, &(dw_model_options){.precision = precision, .flags = DW_MODEL_GENERATE_ONLY}, &model);
    if (status == DW_OK) status = run_model(context, model, room, count, seed, tally);
    if (status != DW_OK) printf("%s: %s\n", path, dw_context_error(context));
    dw_model_destroy(model);
    dw_context_destroy(context);
    return status;
}

static void report(const char *name, const tally *t) {
    printf("%s: %lld schedules of %lld texts, %lld tokens, %lld with logprobs; preemptions %lld, cancellations %lld, prefix hits %lld, released pages %lld\n", name, (long long)t->schedules, (long long)t->texts,
           (long long)t->tokens, (long long)t->logprobs, (long long)t->preemptions, (long long)t->cancellations, (long long)t->hits, (long long)t->released);
}

static int schedules(void) {
    const char *asked = getenv("DEEPWELL_SCHEDULES");
    return asked != NULL ? atoi(asked) : 60;
}

static void texts_of_the_carried_model_get_what_they_get_alone(void **state) {
    (void)state;
    tally all = {0};
    for (int threads = 1; threads <= 2; threads++)
        assert_int_equal(run_file("models/kjv.pt2", NULL, threads, ROOM, schedules(), (uint64_t)threads, &all), DW_OK);
    report("kjv", &all);
    assert_true(all.logprobs >= 100 && all.preemptions >= 100 && all.cancellations >= 100 && all.hits >= 100);
}

static void texts_with_caches_in_few_bits_do(void **state) {
    (void)state;
    static const char *const precisions[] = {"role:cache=fp8,bf16", "role:cache=mxfp8", "role:cache=nvfp4,fp8"};
    tally all = {0};
    for (int i = 0; i < (int)COUNT_OF(precisions); i++)
        assert_int_equal(run_file("models/kjv.pt2", precisions[i], 1 + i % 2, ROOM, (schedules() + 2) / 3, (uint64_t)(50 + i), &all), DW_OK);
    report("kjv, caches in fp8, mxfp8 and nvfp4", &all);
    assert_true(all.preemptions >= 50 && all.cancellations >= 50 && all.hits >= 50);
}

static void texts_of_exported_decoders_do(void **state) {
    (void)state;
    static const struct { const char *name; int64_t room; } models[] = {{"gpt2", 60},    {"llama", ROOM},   {"gemma2", ROOM}, {"mixtral", ROOM}, {"t5", ROOM},
                                                                         {"gpt_oss", ROOM}, {"gemma3", ROOM}, {"bloom", ROOM},  {"qwen3", ROOM}};
    const char *named = getenv("DEEPWELL_FIXTURES"), *folder = named != NULL ? named : TEST_FIXTURES_DIR;
    tally all = {0};
    int found = 0;
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        char path[1024];
        tally one = {0};
        snprintf(path, sizeof path, "%s/%s.pt2", folder, models[i].name);
        if (access(path, R_OK) != 0) continue;
        found++;
        assert_int_equal(run_file(path, NULL, 1 + (int)i % 2, models[i].room, (schedules() + 5) / 6, i + 10, &one), DW_OK);
        report(models[i].name, &one);
        all.preemptions += one.preemptions;
        all.cancellations += one.cancellations;
        all.hits += one.hits;
        all.released += one.released;
    }
    if (found == 0) skip();   /* no exported models */
    assert_true(all.preemptions >= 100 && all.cancellations >= 100 && all.hits >= 100 && all.released >= 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_of_the_carried_model_get_what_they_get_alone),
        cmocka_unit_test(texts_with_caches_in_few_bits_do),
        cmocka_unit_test(texts_of_exported_decoders_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
