/* What a text of an invariant model gets depends on the text alone: ids and logprobs of random schedules of a service are those that each text gets in a service of its own, to the bit, whatever else comes and goes, in
 * pieces and pages of any size. On the CPU, where each model is so; and on a simulated H200, where without the option it is not.
 *     test_serve_invariant --device cuda --large [--schedules 200] [--format bf16] [--seed 1] [--for SECONDS]
 * does schedules of a decoder on that device alone, in bf16 and with its cache in fp8, each fourth of them without the option, too, and says what that costs. Schedule i has seed S + i: one that fails is repeated by its own. */
#include "deepwell/serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/decoder.h"
#include "support/session.h"
#include "support/support.h"

static uint64_t next(uint64_t *random) { return (*random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407)) >> 33; }
static int64_t draw(uint64_t *random, int64_t count) { return (int64_t)(next(random) % (uint64_t)count); }

/* ---- logits of a call ---- */

enum { WORDS = 32 };

/* Products of 512 columns, in bf16, which a GPU divides in one way for a row by itself and in another for many. */
static const char WIDE[] =
    "graph g\n  symbol b 1..8\n  symbol s 1..512\n  input ids i64[b,s]\n  param t bf16[32,512]\n  param w bf16[512,512]\n  param u bf16[512,512]\n  %1 = take t, ids {axis=0}\n"
    "  %2 = matmul %1, w {bt=true,post=\"relu\"}\n  %3 = matmul %2, u {bt=true}\n  %4 = reshape %3 {shape=[b,s,8,64]}\n  %5 = transpose %4 {order=[0,2,1,3]}\n"
    "  %6 = attention %5, %5, %5 {scale=0.02,causal=true}\n  %7 = transpose %6 {order=[0,2,1,3]}\n  %8 = reshape %7 {shape=[b,s,512]}\n  %9 = matmul %8, t {bt=true,to=f32}\n  output logits %9\n";

static dw_model *make_wide(dw_context *context, unsigned flags) {
    static const struct { const char *name; int64_t rows, cols; } of[] = {{"t", 32, 512}, {"w", 512, 512}, {"u", 512, 512}};
    static uint16_t weights[COUNT_OF(of)][512 * 512];
    dw_named_tensor tensors[COUNT_OF(of)];
    dw_graph *graph;
    dw_model *model;
    uint64_t random = 11;
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        for (int64_t k = 0; k < of[i].rows * of[i].cols; k++) num_store(DW_FORMAT_bf16, weights[i], k, (double)((int64_t)next(&random) % 4001 - 2000) / 30000, true);
        tensors[i] = (dw_named_tensor){of[i].name, {.format = DW_FORMAT_bf16, .rank = 2, .dims = {of[i].rows, of[i].cols}, .strides = {of[i].cols, 1}, .data = weights[i]}};
    }
    assert_ok(context, dw_graph_parse(context, "g", WIDE, strlen(WIDE), &graph));
    assert_ok(context, dw_graph_bind(graph, COUNT_OF(of), tensors));
    assert_ok(context, dw_model_create(context, graph, &(dw_model_options){.device = "sim:h200", .flags = DW_MODEL_GENERATE_ONLY | flags}, &model));
    return model;
}

/* The first text's logits of its last token, among so many texts: their prompts are longer, so all that the first one had read came in runs of other sizes. */
static void logits_beside(unsigned flags, int count, float *logits) {
    enum { TEXTS = 4, NEW = 2 };
    static const int64_t lengths[TEXTS] = {9, 40, 23, 31};
    static int64_t ids[TEXTS][64], made[TEXTS][NEW];
    dw_prompt prompts[TEXTS];
    dw_context *context;
    dw_session *session;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    dw_model *model = make_wide(context, flags);
    assert_ok(context, dw_session_create(context, model, &(dw_session_options){.max_tokens = 80, .rows = TEXTS}, &session));
    for (int i = 0; i < count; i++) {
        for (int64_t k = 0; k < lengths[i]; k++) ids[i][k] = (int64_t)(num_random((uint64_t)i, (uint64_t)k) % WORDS);
        prompts[i] = (dw_prompt){.count = lengths[i], .ids = ids[i], .made_ids = made[i]};
    }
    assert_ok(context, dw_session_generate_batch(session, count, prompts, &(dw_generate_options){.tokens = NEW}, NULL));
    const generation *g = session->generation;
    const size_t row = WORDS * sizeof *logits;
    assert_true(g->text[0].picked >= 0);
    assert_int_equal(engine_stage_read(session, generation_runner(session), (size_t)g->output, (size_t)g->text[0].picked * row, row, logits), DW_OK);
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_context_destroy(context);
}

/* All bits of a text's logits, alone and beside others, on a simulated H200: the same with the option, and not without it, so the sizes are such that kernels divide sums in other ways. */
static void an_invariant_text_has_its_logits_beside_others(void **state) {
    float alone[WORDS], beside[WORDS];
    (void)state;
    if (kernel_lacks_images() != NULL) skip();
    logits_beside(DW_MODEL_INVARIANT, 1, alone);
    logits_beside(DW_MODEL_INVARIANT, 4, beside);
    assert_memory_equal(alone, beside, sizeof alone);
    logits_beside(0, 1, alone);
    logits_beside(0, 4, beside);
    assert_memory_not_equal(alone, beside, sizeof alone);
}

/* ---- schedules of a service ---- */

enum { SUBJECTS = 24, MOST = 16, EVENTS = 512, LONGEST = 900, MADE = 24 };

typedef struct told { int64_t ids[MADE]; float logs[MADE]; int64_t made; } told;

/* A text, and what it gets alone. The first tokens are those of some others. */
typedef struct subject {
    int64_t count, tokens, ids[LONGEST];
    double temperature;
    bool logprobs;
    told alone;
} subject;

/* How large texts and services are. */
typedef struct scale { int64_t longest, made, run_most, subjects, texts, rows; } scale;
static const scale LEAST = {.longest = 40, .made = 3, .run_most = 60, .subjects = 3, .texts = 4, .rows = 3};
static const scale SMALL = {.longest = 90, .made = 6, .run_most = 300, .subjects = 12, .texts = 8, .rows = 6};
static const scale USUAL = {.longest = 90, .made = MADE, .run_most = 300, .subjects = SUBJECTS, .texts = MOST, .rows = 12};
static const scale LARGE = {.longest = LONGEST, .made = MADE, .run_most = 1500, .subjects = SUBJECTS, .texts = MOST, .rows = 12};

/* One schedule: a service, and which texts it gets in which order, each of some number of steps behind the one in front. */
typedef struct schedule {
    dw_service_options options;
    int count, texts[MOST], pauses[MOST];
    bool is_cancelled[MOST];        /* some steps later */
} schedule;

/* What schedules held. */
typedef struct tally { int64_t schedules, texts, made, read, runs, preemptions, hits, cancelled, other_texts; double seconds, whole; } tally;   /* seconds: of runs; whole: of all that was done */

typedef struct world {
    dw_context *context;
    const decoder_sizes *sizes;
    const char *device;
    const decoder_format *format;
    const scale *scale;
    subject subjects[SUBJECTS];
} world;

static void make_subjects(world *w) {
    const scale *s = w->scale;
    uint64_t random = 7;
    for (int i = 0; i < s->subjects; i++) {
        subject *made = &w->subjects[i];
        *made = (subject){.count = 1 + draw(&random, i % 3 > 0 ? s->longest / 2 : s->longest), .tokens = 1 + draw(&random, s->made), .temperature = i % 4 == 1 ? 0.9 : 0, .logprobs = i % 4 < 3};
        if (i % 6 == 5) made->count = base_align_up((size_t)made->count, 16) <= (size_t)s->longest ? (int64_t)base_align_up((size_t)made->count, 16) : made->count;   /* whole pages */
        for (int64_t k = 0; k < made->count; k++) made->ids[k] = (int64_t)(num_random(k < s->longest / 3 ? (uint64_t)(i % 2) : (uint64_t)(100 + i), (uint64_t)k) % (uint64_t)w->sizes->vocabulary);
    }
}

/* Bytes of a token's keys and values. */
static uint64_t token_bytes(const world *w) { return (uint64_t)(w->sizes->layers * w->sizes->shared * w->sizes->head * 2 * w->format->cache_bits / 8); }

static schedule make_schedule(const world *w, uint64_t seed) {
    static const int64_t pages[] = {16, 32, 64, 128};
    const scale *s = w->scale;
    uint64_t random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    schedule made = {.count = 1 + (int)draw(&random, s->texts)};
    made.options = (dw_service_options){.rows = 1 + draw(&random, s->rows), .context = s->longest + s->made + draw(&random, s->longest), .page_tokens = pages[draw(&random, 4)],
                                        .flags = draw(&random, 3) == 0 ? DW_SERVICE_NO_SHARING : 0};
    made.options.run_tokens = made.options.rows + 4 + draw(&random, draw(&random, 3) == 0 ? 20 : s->run_most);
    const int64_t room = s->longest + s->made + 2 * made.options.page_tokens;   /* of the longest text; that of others may be short */
    made.options.cache_bytes = token_bytes(w) * (uint64_t)(room * (2 + draw(&random, made.options.rows)) / 2);
    for (int i = 0; i < made.count; i++) {
        made.texts[i] = (int)draw(&random, s->subjects);
        made.pauses[i] = draw(&random, 2) ? (int)draw(&random, 6) : 0;
        made.is_cancelled[i] = draw(&random, 10) == 0;
    }
    return made;
}

/* A schedule under way. */
typedef struct course { dw_service *service; uint64_t requests[MOST]; told got[MOST]; bool has_ended[MOST]; int begun, ended; } course;

static void submit(const world *w, const schedule *s, course *c) {
    const subject *text = &w->subjects[s->texts[c->begun]];
    const dw_request asked = {.count = text->count, .ids = text->ids, .tokens = text->tokens, .temperature = text->temperature, .seed = (uint64_t)s->texts[c->begun], .logprobs = text->logprobs};
    assert_ok(w->context, dw_service_submit(w->context, c->service, &asked, &c->requests[c->begun]));
    c->begun++;
}

static void poll(course *c) {
    static dw_event events[EVENTS];
    for (int i = dw_service_poll(c->service, events, EVENTS), at = 0; at < i; at++) {
        int text = 0;
        while (c->requests[text] != events[at].request) text++;
        told *got = &c->got[text];
        if (events[at].message != NULL) fail_msg("%s", events[at].message);
        if (events[at].end != DW_END_NONE) c->has_ended[text] = true, c->ended++;
        if (events[at].id < 0) continue;
        assert_int_equal(events[at].index, got->made);
        got->ids[got->made] = events[at].id;
        got->logs[got->made++] = events[at].logprob;
    }
}

static void cancel(const world *w, const schedule *s, course *c, int step) {
    for (int i = 0; i < c->begun; i++)
        if (s->is_cancelled[i] && !c->has_ended[i] && step % 7 == i % 7) dw_service_cancel(w->context, c->service, c->requests[i]);
}

/* What each text got; seconds of the runs alone. */
static double run_schedule(const world *w, dw_model *model, const schedule *s, course *c, dw_service_facts *facts) {
    *c = (course){0};
    assert_ok(w->context, dw_service_create(w->context, model, &s->options, &c->service));
    const double begin = base_now();
    for (int step = 0, wait = s->pauses[0], busy = 1; busy || c->begun < s->count; step++) {
        for (; c->begun < s->count && wait <= 0; wait = c->begun < s->count ? s->pauses[c->begun] : 0) submit(w, s, c);
        wait--;
        cancel(w, s, c, step);
        assert_ok(w->context, dw_service_step(w->context, c->service, &busy));
        poll(c);
    }
    const double seconds = base_now() - begin;
    dw_service_measure(c->service, facts);
    assert_int_equal(c->ended, s->count);
    assert_int_equal(facts->pages_used, 0);
    dw_service_destroy(c->service);
    return seconds;
}

static void add(tally *t, const schedule *s, const dw_service_facts *facts, double seconds) {
    t->schedules++;
    t->texts += s->count;
    t->made += facts->made_tokens;
    t->read += facts->read_tokens;
    t->runs += facts->runs;
    t->preemptions += facts->preemptions;
    t->hits += facts->prefix_hits;
    t->cancelled += facts->cancelled;
    t->seconds += seconds;
}

static void run_alone(world *w, dw_model *model) {
    static course c;
    dw_service_facts facts;
    for (int i = 0; i < w->scale->subjects; i++) {
        const schedule s = {.options = {.rows = 1, .context = LONGEST + MADE, .run_tokens = LONGEST, .cache_bytes = token_bytes(w) * 4 * LONGEST, .flags = DW_SERVICE_NO_SHARING}, .count = 1, .texts = {i}};
        run_schedule(w, model, &s, &c, &facts);
        w->subjects[i].alone = c.got[0];
        assert_int_equal(c.got[0].made, w->subjects[i].tokens);
    }
}

/* The first of its tokens that is another one, or has another logprob, than alone; -1: none. */
static int64_t find_other(const told *alone, const told *got) {
    for (int64_t k = 0; k < got->made; k++)
        if (got->ids[k] != alone->ids[k] || memcmp(&got->logs[k], &alone->logs[k], sizeof *got->logs) != 0) return k;
    return -1;
}

static void check(const world *w, const schedule *s, const course *c, uint64_t seed) {
    for (int i = 0; i < s->count; i++) {
        const subject *text = &w->subjects[s->texts[i]];
        const told *alone = &text->alone, *got = &c->got[i];
        const int64_t k = find_other(alone, got);
        if (k < 0 && (s->is_cancelled[i] || got->made == text->tokens)) continue;
        if (k < 0) fail_msg("text %d made %d tokens of %d", s->texts[i], (int)got->made, (int)text->tokens);
        fail_msg("%s, %s, schedule of seed %llu (--seed %llu --schedules 1): text %d, a prompt of %d tokens, the %dth of %d: token %d is %d with logprob %.9g, alone %d with %.9g; %d rows, runs of %d tokens, pages of %d, beginnings %s",
                 w->device != NULL ? w->device : "cpu", w->format->name, (unsigned long long)seed, (unsigned long long)seed, s->texts[i], (int)text->count, i + 1, s->count, (int)k, (int)got->ids[k], (double)got->logs[k],
                 (int)alone->ids[k], (double)alone->logs[k], (int)s->options.rows, (int)s->options.run_tokens, (int)s->options.page_tokens, s->options.flags & DW_SERVICE_NO_SHARING ? "not shared" : "shared");
    }
}

static void count_others(const world *w, const schedule *s, const course *c, tally *t) {
    for (int i = 0; i < s->count; i++) t->other_texts += find_other(&w->subjects[s->texts[i]].alone, &c->got[i]) >= 0;
}

/* What was held, and of the schedules that ran without the option, too: how they did. */
static void report(const world *w, int64_t asked, uint64_t seed, const tally *all, const tally *with, const tally *without) {
    print_message("invariant, %s, %s: %lld schedules of %lld (seeds from %llu), %lld texts, %lld tokens made and %lld read in %lld runs, %.1f s of runs, %.1f in all; %lld preemptions, %lld cancelled, %lld found a beginning: ids and logprobs are those of each text alone, to the bit\n",
                  w->device != NULL ? w->device : "cpu", w->format->name, (long long)all->schedules, (long long)asked, (unsigned long long)seed, (long long)all->texts, (long long)all->made, (long long)all->read, (long long)all->runs, all->seconds, all->whole,
                  (long long)all->preemptions, (long long)all->cancelled, (long long)all->hits);
    if (without->schedules == 0) return;
    print_message("invariant, %s, %s, cost: on %lld of these schedules %.0f tokens/s made and %.0f read with the option, %.0f and %.0f without it, which takes %.3f of the time; without it %lld of %lld texts have other ids or logprobs than with it alone\n", w->device, w->format->name,
                  (long long)without->schedules, (double)with->made / with->seconds, (double)with->read / with->seconds, (double)without->made / without->seconds, (double)without->read / without->seconds,
                  without->seconds / with->seconds, (long long)without->other_texts, (long long)without->texts);
}

typedef struct wanted { const char *device; const decoder_format *format; const scale *scale; int64_t count; uint64_t seed; double seconds; bool compares; } wanted;

/* All schedules with the option, which are told; and where both are compared, the first of each four without it, too. */
static tally schedules(const decoder *decoder, const wanted *asked) {
    static world w;
    static course c;
    tally all = {0}, with = {0}, without = {0};
    const double begin = base_now();
    dw_model_options options = {.device = asked->device, .precision = asked->format->precision, .flags = DW_MODEL_GENERATE_ONLY};
    dw_service_facts facts;
    w = (world){.sizes = decoder_sizes_of(decoder), .device = asked->device, .format = asked->format, .scale = asked->scale};
    assert_int_equal(dw_context_create(NULL, &w.context), DW_OK);
    dw_model *plain = asked->compares ? decoder_open(w.context, decoder, &options) : NULL;
    options.flags |= DW_MODEL_INVARIANT;
    dw_model *model = decoder_open(w.context, decoder, &options);
    make_subjects(&w);
    run_alone(&w, model);
    for (int64_t i = 0; i < asked->count && (i == 0 || asked->seconds == 0 || base_now() - begin < asked->seconds); i++) {
        const schedule s = make_schedule(&w, asked->seed + (uint64_t)i);
        const double seconds = run_schedule(&w, model, &s, &c, &facts);
        check(&w, &s, &c, asked->seed + (uint64_t)i);
        add(&all, &s, &facts, seconds);
        if (!asked->compares || i % 4 > 0) continue;
        add(&with, &s, &facts, seconds);
        const double plainly = run_schedule(&w, plain, &s, &c, &facts);
        count_others(&w, &s, &c, &without);
        add(&without, &s, &facts, plainly);
    }
    all.whole = base_now() - begin;
    report(&w, asked->count, asked->seed, &all, &with, &without);
    dw_model_destroy(model);
    dw_model_destroy(plain);
    dw_context_destroy(w.context);
    return all;
}

/* ---- the tests ---- */

static const decoder_sizes TINY = {.layers = 2, .width = 64, .heads = 2, .shared = 1, .head = 32, .hidden = 64, .vocabulary = 64, .window = 40};

static void two_hundred_schedules_on_the_cpu(void **state) {
    (void)state;
    decoder *decoder = decoder_create(&TINY);
    for (int i = 0; i < DECODER_FORMATS; i++) {
        const tally t = schedules(decoder, &(wanted){.format = &DECODER_FORMAT[i], .scale = &USUAL, .count = 200, .seed = 1});
        assert_true(t.preemptions > 10 && t.cancelled > 10 && t.hits > 10);
    }
    decoder_destroy(decoder);
}

static void two_schedules_on_a_simulated_gpu(void **state) {
    (void)state;
    if (kernel_lacks_images() != NULL) skip();
    decoder *decoder = decoder_create(&DECODER_SMALL);
    schedules(decoder, &(wanted){.device = "sim:h200", .format = &DECODER_FORMAT[0], .scale = &LEAST, .count = 2, .seed = 1});
    decoder_destroy(decoder);
}

/* Of so many words that the kernel of draws divides a row by how many there are beside it: a text that has other bits then, where that may be, has the logarithm that it has alone. */
static void logprobs_of_many_words_are_those_alone(void **state) {
    static const decoder_sizes words = {.layers = 1, .width = 64, .heads = 1, .shared = 1, .head = 64, .hidden = 64, .vocabulary = 49152};
    enum { LENGTH = 3, ONE = 7 };
    static world w;
    static course alone, among;
    dw_service_facts facts;
    (void)state;
    if (kernel_lacks_images() != NULL) skip();
    decoder *decoder = decoder_create(&words);
    w = (world){.sizes = &words};
    assert_int_equal(dw_context_create(NULL, &w.context), DW_OK);
    dw_model *model = decoder_open(w.context, decoder, &(dw_model_options){.device = "sim:h200", .precision = "bf16", .flags = DW_MODEL_GENERATE_ONLY | DW_MODEL_INVARIANT});
    for (int i = 0; i < MOST; i++) w.subjects[i] = (subject){.count = LENGTH, .tokens = 1, .ids = {i, 5 * i, 7}, .logprobs = true};
    schedule s = {.options = {.rows = 1, .context = 16, .run_tokens = MOST * LENGTH, .page_tokens = 16, .cache_bytes = 1 << 20}, .count = 1, .texts = {ONE}};
    run_schedule(&w, model, &s, &alone, &facts);
    s.options.rows = s.count = MOST;
    for (int i = 0; i < MOST; i++) s.texts[i] = i;
    run_schedule(&w, model, &s, &among, &facts);
    const told *a = &alone.got[0], *b = &among.got[ONE];
    if (find_other(a, b) >= 0) fail_msg("alone id %d with logprob %.9g, among %d id %d with %.9g", (int)a->ids[0], (double)a->logs[0], MOST, (int)b->ids[0], (double)b->logs[0]);
    dw_model_destroy(model);
    dw_context_destroy(w.context);
    decoder_destroy(decoder);
}

static decoder_options options = {.sizes = &DECODER_SMALL, .format = -1, .count = 200, .seed = 1};

static void schedules_on_the_device(void **state) {
    (void)state;
    const scale *scale = options.sizes == &DECODER_LARGE ? &LARGE : strncmp(options.device, "sim", 3) == 0 ? &SMALL : &USUAL;
    decoder *decoder = decoder_create(options.sizes);
    for (int i = 0; i < DECODER_FORMATS; i++)
        if (options.format < 0 || options.format == i)
            schedules(decoder, &(wanted){options.device, &DECODER_FORMAT[i], scale, options.count, options.seed, options.seconds / (options.format < 0 ? DECODER_FORMATS : 1), true});
    decoder_destroy(decoder);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_invariant_text_has_its_logits_beside_others), cmocka_unit_test(two_hundred_schedules_on_the_cpu),
                                       cmocka_unit_test(two_schedules_on_a_simulated_gpu), cmocka_unit_test(logprobs_of_many_words_are_those_alone)};
    const struct CMUnitTest asked[] = {cmocka_unit_test(schedules_on_the_device)};
    if (!decoder_read_options(argc, argv, "schedules", &options)) return 2;
    return options.device != NULL ? cmocka_run_group_tests(asked, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
