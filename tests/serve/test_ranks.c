/* A service of a model that is cut over ranks: its texts beside those of the whole model, and its bits from run to run, by every engine and whatever comes beside. */
#include "deepwell/deepwell.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lab/lab.h"
#include "support/ranks.h"
#include "support/session.h"
#include "support/support.h"
#include "support/texts.h"
#include "support/wire.h"

/* Bytes of so many pages of the carried model: it has two heads of keys, of which each rank has one, or, of three ranks, both. */
static uint64_t cache_of(int world, int64_t page, int64_t pages) { return (uint64_t)(page * pages * 2048 * (world == 3 ? 2 : 1)); }

/* fp32 sums in another order, in the logarithm of a probability. */
#define BOUND 1e-5

/* ---- a service of each rank ---- */

typedef struct job {
    const char *file, *precision, *shard;
    dw_service_options options;
    asked *asked;
    int count;
    told *made;                    /* of the leader */
    dw_service_facts facts;
} job;

static dw_status open_model(dw_context *context, dw_comm *comm, const job *j, dw_model **model) {
    return dw_model_open(context, j->file, &(dw_model_options){.comm = comm, .shard = comm != NULL ? j->shard : NULL, .precision = j->precision, .flags = DW_MODEL_GENERATE | DW_MODEL_GENERATE_ONLY}, model);
}

static void serve_rank(int rank, dw_context *context, dw_comm *comm, void *user) {
    job *j = user;
    dw_model *model;
    dw_service *service;
    rank_ok(context, open_model(context, comm, j, &model));
    rank_ok(context, dw_service_create(context, model, &j->options, &service));
    rank_assert(context, dw_service_leads(service) == (rank == 0));
    if (rank > 0) {
        rank_ok(context, dw_service_follow(context, service));
    } else {
        rank_ok(context, texts_serve(context, service, j->asked->requests, j->count, j->made));
        dw_service_measure(service, &j->facts);
    }
    dw_service_destroy(service);
    dw_model_destroy(model);
}

/* Of the same file whole: the service's texts, and the number of ids. */
static void serve_whole(const job *j, told *made) {
    dw_context *context;
    dw_model *model;
    dw_service *service;
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 2}, &context), DW_OK);
    assert_ok(context, open_model(context, NULL, j, &model));
    assert_ok(context, dw_service_create(context, model, &j->options, &service));
    assert_ok(context, texts_serve(context, service, j->asked->requests, j->count, made));
    dw_service_destroy(service);
    dw_model_destroy(model);
    dw_context_destroy(context);
}

/* Up to where a likeliest id is not before the next one by more than the bound: what comes behind may be another text. Returns how many tokens were compared. */
static int compare(const char *what, int world, const told *made, const told *whole, int count) {
    int compared = 0;
    for (int i = 0; i < count; i++) {
        if (made[i].end == DW_END_FAULT) fail_msg("%s on %d ranks: text %d: %s", what, world, i, made[i].message);
        for (int t = 0; t < whole[i].count; t++, compared++) {
            if (made[i].ids[t] != whole[i].ids[t] && whole[i].margins[t] > 0 && (double)whole[i].margins[t] < 2 * BOUND) break;
            if (t >= made[i].count || made[i].ids[t] != whole[i].ids[t]) fail_msg("%s on %d ranks: text %d has another token %d", what, world, i, t);
            if (fabs((double)made[i].logprobs[t] - (double)whole[i].logprobs[t]) > BOUND)
                fail_msg("%s on %d ranks: text %d: the logprob of token %d is %.9g, of the whole %.9g", what, world, i, t, (double)made[i].logprobs[t], (double)whole[i].logprobs[t]);
        }
        if (made[i].count == whole[i].count && made[i].end != whole[i].end) fail_msg("%s on %d ranks: text %d ends by %s", what, world, i, dw_end_name(made[i].end));
    }
    return compared;
}

/* The carried model on 2, 3 and 4 ranks: texts, logprobs, ends; and all bits again in a second run, by an engine of the caller's, and where nothing is shared and others run beside. */
static void texts_are_those_of_the_whole(void **state) {
    static asked a;
    static told whole[TEXTS], made[TEXTS], again[TEXTS];
    (void)state;
    texts_ask(&a, 256, 3);
    job j = {.file = "models/kjv.pt2", .shard = "all", .options = TEXTS_OPTIONS, .asked = &a, .count = TEXTS, .made = made};
    serve_whole(&j, whole);
    for (int world = 2; world <= 4; world++) {
        char mesh[16];
        dw_collectives engines[RANKS_MOST];
        j.made = made;
        j.options = TEXTS_OPTIONS;
        ranks_run(&(ranks){.world = world, .user = &j}, serve_rank);
        assert_true(compare("kjv", world, made, whole, TEXTS) > 80);
        assert_true(j.facts.prefix_hits > 0);
        snprintf(mesh, sizeof mesh, "tp=%d", world);
        wire *w = wire_create(mesh, 0, 0, DW_OK, engines);
        j.made = again;
        ranks_run(&(ranks){.world = world, .engines = engines, .user = &j}, serve_rank);
        wire_destroy(w);
        assert_memory_equal(made, again, sizeof made);
        j.options.rows = 2 + world, j.options.flags = DW_SERVICE_NO_SHARING, j.options.cache_bytes = cache_of(world, 16, 9);   /* nine pages, so texts give theirs back */
        ranks_run(&(ranks){.world = world, .threads = 2, .user = &j}, serve_rank);
        assert_memory_equal(made, again, sizeof made);
        assert_true(j.facts.preemptions > 0);
    }
}

/* Those of an encoder's, of other sizes for each text. */
static void add_inputs(dw_context *context, const char *file, arena *arena, asked *a, int count) {
    dw_model *model;
    int64_t sizes[ENGINE_MAX_SYMBOLS], min, max;
    assert_ok(context, dw_model_open(context, file, &(dw_model_options){.flags = DW_MODEL_GENERATE | DW_MODEL_GENERATE_ONLY | DW_MODEL_PLAN_ONLY}, &model));
    const plan *plan = model->prelude.plan;
    for (int i = 0; plan != NULL && i < count; i++) {
        dw_named_tensor *inputs = arena_new(arena, plan->graph->input_count, sizeof *inputs);
        for (int k = 0; k < dim_symbol_count(plan->graph->dims); k++) {
            dim_symbol_range(plan->graph->dims, k, &min, &max);
            sizes[k] = strcmp(dim_symbol_name(plan->graph->dims, k), "b") == 0 ? 1 : min + 2 + i;
        }
        assert_ok(context, lab_random_inputs(arena, plan, sizes, inputs));
        for (size_t k = 0; k < plan->graph->input_count; k++) inputs[k].name = arena_text(arena, inputs[k].name);
        a->requests[i].inputs = inputs;
        a->requests[i].input_count = (int)plan->graph->input_count;
    }
    dw_model_destroy(model);
}

/* Caches with windows, of latent values, in few bits, those of an encoder, and models without a cached step, whose texts go one after another. */
static void exported_models_are(void **state) {
    static const struct { const char *name, *precision; int count; } models[] = {{"llama", NULL, 8}, {"gemma2", NULL, 8}, {"deepseek_v3", NULL, 6}, {"mixtral", NULL, 6}, {"t5", NULL, 5}, {"lfm2", NULL, 3}};
    static asked a;
    static told whole[TEXTS], made[TEXTS];
    dw_context *context;
    arena arena;
    int found = 0;
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &context), DW_OK);
    arena_init(&arena, context);
    (void)state;
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        char file[4096];
        snprintf(file, sizeof file, "%s/%s.pt2", TEST_FIXTURES_DIR, models[i].name);
        if (access(file, R_OK) != 0) continue;
        found++;
        texts_ask(&a, 60, i);
        job j = {.file = file, .shard = "all", .precision = models[i].precision, .options = {.rows = 3, .run_tokens = 30, .context = 64, .page_tokens = 16}, .asked = &a, .count = models[i].count, .made = made};
        for (int k = 0; k < j.count; k++) a.requests[k].count = a.requests[k].count % 40 + 1;
        add_inputs(context, file, &arena, &a, j.count);
        serve_whole(&j, whole);
        ranks_run(&(ranks){.world = 2, .user = &j}, serve_rank);
        assert_true(compare(models[i].name, 2, made, whole, j.count) > 15);
        if (a.requests[0].input_count == 0) continue;
        a.requests[1].input_count--;   /* one is missing: the text's fault, on all ranks, and nobody else's */
        serve_whole(&j, whole);
        ranks_run(&(ranks){.world = 2, .user = &j}, serve_rank);
        assert_true(made[1].end == DW_END_FAULT && strcmp(made[1].message, whole[1].message) == 0 && made[0].count == whole[0].count && made[2].count == whole[2].count);
        dw_named_tensor large = *a.requests[1].inputs;   /* more than there is room for */
        const int64_t dims[] = {1, 8000};
        op_tensor_init(&large.tensor, large.tensor.format, DW_SCALE_plain, 2, dims, arena_new(&arena, 8000, 8));
        a.requests[1].inputs = &large;
        a.requests[1].input_count = 1;
        ranks_run(&(ranks){.world = 2, .user = &j}, serve_rank);
        assert_true(made[1].end == DW_END_FAULT && strstr(made[1].message, "LIMIT: the given inputs have") != NULL && made[0].count == whole[0].count && made[2].count == whole[2].count);
    }
    arena_free(&arena);
    dw_context_destroy(context);
    if (found == 0) skip();   /* no exported models */
}

/* ---- random schedules ---- */

typedef struct fuzz { uint64_t seed; const char *precision; const asked *asked; const told *alone; int texts, cancelled; const char *mesh; } fuzz;

/* What each has made so far is what it gets alone, bit for bit. */
static void check_texts(dw_context *context, const fuzz *f, const int *subjects, const told *all, int count) {
    for (int i = 0; i < count; i++) {
        const told *t = &all[i], *alone = &f->alone[subjects[i]];
        rank_assert(context, t->end != DW_END_NONE && t->end != DW_END_FAULT && t->count <= alone->count);
        rank_assert(context, memcmp(t->ids, alone->ids, (size_t)t->count * sizeof *t->ids) == 0 && memcmp(t->logprobs, alone->logprobs, (size_t)t->count * sizeof *t->logprobs) == 0);
        rank_assert(context, t->end == DW_END_CANCELLED || t->end == DW_END_STOPPED || (t->count == alone->count && t->end == alone->end));
    }
}

/* Texts come, are cancelled, and are left over, while the service runs in a thread of its own, or is stepped. */
static void lead_at_random(dw_context *context, dw_service *service, fuzz *f, uint64_t *random) {
    enum { MOST = TEXTS };
    static const struct timespec moment = {.tv_nsec = 200000};
    uint64_t numbers[MOST] = {0};
    int subjects[MOST], sent = 0, busy = 1;
    const int count = 3 + (int)texts_draw(random, MOST - 3);
    const bool in_thread = texts_draw(random, 2) == 0, leaves = in_thread && texts_draw(random, 3) == 0;
    told *all = calloc(MOST, sizeof *all);
    if (in_thread) rank_ok(context, dw_service_start(context, service));
    while (sent < count || (leaves ? false : in_thread ? texts_ended(all, sent) < sent : busy != 0)) {
        for (; sent < count && texts_draw(random, 3) > 0; sent++) {
            subjects[sent] = (int)texts_draw(random, TEXTS);
            rank_ok(context, dw_service_submit(context, service, &f->asked->requests[subjects[sent]], &numbers[sent]));
        }
        if (sent > 0 && texts_draw(random, 6) == 0) f->cancelled += dw_service_cancel(context, service, numbers[texts_draw(random, (uint64_t)sent)]) == DW_OK;
        if (in_thread) nanosleep(&moment, NULL);
        else rank_ok(context, dw_service_step(context, service, &busy));
        texts_poll(service, numbers, all);
    }
    if (in_thread) rank_ok(context, dw_service_stop(context, service, 0));
    while (texts_poll(service, numbers, all) > 0) {}
    check_texts(context, f, subjects, all, sent);
    f->texts += sent;
    free(all);
}

static void serve_at_random(int rank, dw_context *context, dw_comm *comm, void *user) {
    fuzz *f = user;
    const job j = {.file = "models/kjv.pt2", .shard = "all", .precision = f->precision};
    static const int64_t pages[] = {16, 32, 64};
    dw_model *model;
    rank_ok(context, open_model(context, comm, &j, &model));
    for (int round = 0; round < 6; round++) {
        uint64_t random = f->seed * 100 + (uint64_t)round;   /* all ranks draw the same */
        dw_service *service;
        const int64_t page = pages[texts_draw(&random, 3)];
        const dw_service_options options = {.rows = 1 + (int64_t)texts_draw(&random, 6), .run_tokens = 1 + (int64_t)texts_draw(&random, 90), .context = ROOM, .page_tokens = page,
                                            .cache_bytes = cache_of(dw_comm_world(comm), page, ROOM / page + 1 + (int64_t)texts_draw(&random, 16)), .flags = texts_draw(&random, 4) == 0 ? DW_SERVICE_NO_SHARING : 0};
        rank_ok(context, dw_service_create(context, model, &options, &service));
        if (rank > 0) rank_ok(context, dw_service_follow(context, service));
        else lead_at_random(context, service, f, &random);
        dw_service_destroy(service);
    }
    dw_model_destroy(model);
}

static void texts_get_what_they_get_alone_whatever_comes_beside(void **state) {
    static const struct { int world; const char *precision; } cases[] = {{2, NULL}, {3, NULL}, {4, NULL}, {2, "role:cache=mxfp8"}};
    static asked a;
    static told alone[TEXTS];
    int texts = 0, cancelled = 0;
    (void)state;
    texts_ask(&a, 256, 5);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const int world = cases[i].world;
        job j = {.file = "models/kjv.pt2", .shard = "all", .precision = cases[i].precision, .options = {.rows = 1, .context = ROOM, .flags = DW_SERVICE_NO_SHARING}, .asked = &a, .count = TEXTS, .made = alone};
        ranks_run(&(ranks){.world = world, .user = &j}, serve_rank);   /* one after another, each in a cache of its own */
        for (uint64_t seed = 0; seed < 2; seed++) {
            fuzz f = {.seed = seed + 10 * i, .precision = j.precision, .asked = &a, .alone = alone};
            ranks_run(&(ranks){.world = world, .user = &f}, serve_at_random);
            texts += f.texts;
            cancelled += f.cancelled;
        }
    }
    printf("%d texts, %d of them cancelled\n", texts, cancelled);
    assert_true(texts > 200 && cancelled > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_those_of_the_whole),
        cmocka_unit_test(exported_models_are),
        cmocka_unit_test(texts_get_what_they_get_alone_whatever_comes_beside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
