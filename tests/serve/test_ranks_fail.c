/* A service of a model that is cut over ranks, where they fail, differ, are late, gone or short of memory: what is told to whom, and what goes on. */
#include "deepwell/deepwell.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "support/ranks.h"
#include "support/support.h"
#include "support/texts.h"
#include "support/wire.h"

/* ---- ranks that fail ---- */

/* Logits of 8 ids, by a kernel that a rank may fail in; where nothing is cut ranks meet in no run at all. */
static const char TINY[] = "graph g\n  symbol b 1..4\n  symbol s 1..256\n  input ids i64[b,s]\n  param t f32[8,4]\n  %1 = take t, ids {axis=0}\n  %2 = sin %1\n"
                           "  %3 = reshape %2 {shape=[b,s,2,2]}\n  %4 = transpose %3 {order=[0,2,1,3]}\n  %5 = attention %4, %4, %4 {scale=1.5,causal=true}\n"
                           "  %6 = transpose %5 {order=[0,2,1,3]}\n  %7 = reshape %6 {shape=[b,s,4]}\n  %8 = matmul %7, t {bt=true} at \"lm_head\"\n  output logits %8\n";

/* Of a rank: it fails at its call number fail_at, and at all with numbers of 1000 or more where it minds them. */
typedef struct sine { int calls, fail_at; bool minds; float weights[32]; } sine;

static dw_status sine_run(const dw_kernel_call *call) {
    sine *s = call->user;
    const float *x = call->inputs[0]->data;
    float *y = call->outputs[0]->data;
    if (++s->calls == s->fail_at) return DW_INVALID;
    for (int64_t i = 0, count = op_tensor_count(call->outputs[0]); i < count; i++) {
        if (x[i] >= 1000 && s->minds) return DW_INVALID;
        y[i] = sinf(x[i]);
    }
    return DW_OK;
}

typedef struct tiny { dw_registry *registry; dw_model *model; sine sine; } tiny;

static dw_named_tensor weight_of(tiny *t) { return (dw_named_tensor){"t", {.format = DW_FORMAT_f32, .rank = 2, .dims = {8, 4}, .strides = {4, 1}, .data = t->sine.weights}}; }

/* Id 7 has numbers that a rank may mind. */
static void tiny_open(dw_context *context, dw_comm *comm, const char *shard, tiny *t) {
    dw_graph *graph;
    *t = (tiny){0};
    for (int i = 0; i < 32; i++) t->sine.weights[i] = i >= 28 ? 1000.0f : (float)(i * 7 % 11) / 4 - 1;
    const dw_named_tensor weight = weight_of(t);
    rank_ok(context, dw_registry_create(context, &t->registry));
    rank_ok(context, dw_registry_add(t->registry, &(dw_kernel_options){.name = "mine", .op = "sin", .run = sine_run, .user = &t->sine}));
    rank_ok(context, dw_graph_parse(context, "g", TINY, strlen(TINY), &graph));
    rank_ok(context, dw_graph_bind(graph, 1, &weight));
    rank_ok(context, dw_model_create(context, graph, &(dw_model_options){.comm = comm, .shard = shard, .registry = t->registry, .flags = DW_MODEL_GENERATE_ONLY}, &t->model));
}

static void tiny_close(tiny *t) {
    dw_model_destroy(t->model);
    dw_registry_destroy(t->registry);
}

static const int64_t GOOD[] = {1, 2, 3, 4}, BAD[] = {1, 2, 7}, SEVENTH[] = {7};
static const float NEVER[] = {-INFINITY};
static dw_request tiny_request(const int64_t *ids, int64_t count) {
    return (dw_request){.count = count, .ids = ids, .tokens = 10, .temperature = 1, .seed = 4, .bias_ids = SEVENTH, .bias = NEVER, .bias_count = 1};
}
static const dw_service_options TINY_OPTIONS = {.rows = 3, .context = 64, .page_tokens = 16, .flags = DW_SERVICE_NO_SHARING};

/* A run fails on a rank that does not lead: once, which nobody notices; and for one text again and again, which ends alone with that rank's words. */
static void fail_in_runs(int rank, dw_context *context, dw_comm *comm, void *user) {
    const int failing = *(const int *)user;
    const dw_request requests[] = {tiny_request(GOOD, 4), tiny_request(BAD, 3), tiny_request(GOOD, 4)};
    char words[64];
    dw_service *service;
    told alone[3], made[3];
    tiny t;
    tiny_open(context, comm, "all", &t);
    rank_ok(context, dw_service_create(context, t.model, &TINY_OPTIONS, &service));
    t.sine.minds = rank == failing;
    if (rank == failing) t.sine.fail_at = t.sine.calls + 7;
    if (rank > 0) {
        rank_ok(context, dw_service_follow(context, service));
    } else {
        rank_ok(context, texts_serve(context, service, requests, 1, alone));
        rank_assert(context, alone[0].end == DW_END_LENGTH);
        rank_ok(context, texts_serve(context, service, requests, 3, made));
        rank_assert(context, memcmp(&made[0], alone, sizeof *alone) == 0 && memcmp(&made[2], alone, sizeof *alone) == 0);
        snprintf(words, sizeof words, "rank %d failed at step", failing);
        rank_assert(context, made[1].end == DW_END_FAULT && made[1].count == 0 && strstr(made[1].message, "mine") != NULL && (failing == 0 || strstr(made[1].message, words) != NULL));
    }
    dw_service_destroy(service);
    tiny_close(&t);
}

static void a_fault_of_a_rank_ends_its_own_text(void **state) {
    (void)state;
    for (int failing = 0; failing < 2; failing++) ranks_run(&(ranks){.world = 2, .user = &failing}, fail_in_runs);
}

/* All ranks fail alike, where they meet in no run: it is the text's fault, and the others' texts go on. */
static void fail_alike(int rank, dw_context *context, dw_comm *comm, void *user) {
    const dw_request requests[] = {tiny_request(GOOD, 4), tiny_request(BAD, 3), tiny_request(GOOD, 4)};
    dw_service *service;
    told made[3];
    tiny t;
    tiny_open(context, comm, "* = whole", &t);
    rank_ok(context, dw_service_create(context, t.model, &TINY_OPTIONS, &service));
    t.sine.minds = user != NULL || rank == 0;   /* or the one that leads alone */
    if (rank > 0) {
        rank_ok(context, dw_service_follow(context, service));
    } else {
        rank_ok(context, texts_serve(context, service, requests, 3, made));
        rank_assert(context, made[0].end == DW_END_LENGTH && memcmp(&made[0], &made[2], sizeof made[0]) == 0);
        rank_assert(context, made[1].end == DW_END_FAULT && strstr(made[1].message, "mine") != NULL && strstr(made[1].message, "rank") == NULL);
    }
    dw_service_destroy(service);
    tiny_close(&t);
}

static void a_fault_of_all_ranks_ends_its_own_text(void **state) {
    (void)state;
    ranks_run(&(ranks){.world = 3, .user = "all"}, fail_alike);
    ranks_run(&(ranks){.world = 3}, fail_alike);
}

/* The others cannot learn of it in the run, as they meet in none: it is the end of the service, for all, and says whose. */
static void fail_unnoticed(int rank, dw_context *context, dw_comm *comm, void *user) {
    const dw_request requests[] = {tiny_request(GOOD, 4), tiny_request(GOOD, 3)};
    dw_service *service;
    told made[2];
    uint64_t request;
    tiny t;
    (void)user;
    tiny_open(context, comm, "* = whole", &t);
    rank_ok(context, dw_service_create(context, t.model, &TINY_OPTIONS, &service));
    if (rank == 1) t.sine.fail_at = t.sine.calls + 4;
    if (rank > 0) {
        rank_assert(context, dw_service_follow(context, service) == DW_INVALID);
        rank_assert(context, strstr(dw_context_error(context), "mine") != NULL && (rank == 1 || strstr(dw_context_error(context), "orders: rank 1 failed") != NULL));
    } else {
        rank_assert(context, texts_serve(context, service, requests, 2, made) == DW_INVALID);
        for (int i = 0; i < 2; i++) rank_assert(context, made[i].end == DW_END_FAULT && strstr(made[i].message, "orders: rank 1 failed: INVALID") != NULL && strstr(made[i].message, "mine") != NULL);
        rank_ok(context, dw_service_submit(context, service, &requests[0], &request));
        int busy;
        rank_assert(context, dw_service_step(context, service, &busy) == DW_LOST && strstr(dw_context_error(context), "the ranks of this service have ended") != NULL);
    }
    dw_service_destroy(service);
    tiny_close(&t);
}

static void a_fault_that_others_cannot_see_ends_the_service(void **state) {
    (void)state;
    ranks_run(&(ranks){.world = 3}, fail_unnoticed);
}

/* ---- ranks that are gone, or late ---- */

typedef struct stopping { int polls, most; bool sleeps; uint64_t random; } stopping;

/* What a context asks now and then: whether it goes on. */
static int stop_or_sleep(void *user) {
    stopping *s = user;
    if (s->sleeps && texts_draw(&s->random, 4) == 0) nanosleep(&(struct timespec){.tv_nsec = (long)texts_draw(&s->random, 300000)}, NULL);
    return ++s->polls > s->most && s->most > 0;
}

typedef struct leaving { int who, after; bool in_thread, sleeps; told made[TEXTS]; dw_status status; double seconds; } leaving;

/* Submits all, and waits until all have ended, or a step fails. */
static dw_status lead_to_the_end(dw_context *context, dw_service *service, const asked *a, leaving *l) {
    uint64_t numbers[TEXTS];
    dw_status status = DW_OK;
    int busy = 1;
    for (int i = 0; i < TEXTS; i++) rank_ok(context, dw_service_submit(context, service, &a->requests[i], &numbers[i]));
    if (l->in_thread) rank_ok(context, dw_service_start(context, service));
    while (status == DW_OK && texts_ended(l->made, TEXTS) < TEXTS) {
        if (l->in_thread) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        else status = dw_service_step(context, service, &busy);
        while (texts_poll(service, numbers, l->made) > 0) {}
    }
    return l->in_thread ? dw_service_stop(context, service, 0) : status;
}

/* One of them has a context that is cancelled some time after the service is there. */
static void leave_at(int rank, dw_context *context, dw_comm *comm, void *user) {
    leaving *l = user;
    stopping s = {.random = (uint64_t)(rank + l->after), .sleeps = l->sleeps};
    dw_context *own = NULL;
    dw_model *model;
    dw_service *service;
    static asked a;
    if (rank == 0) texts_ask(&a, 256, 7);
    rank_ok(context, dw_model_open(context, "models/kjv.pt2", &(dw_model_options){.comm = comm, .shard = "all", .flags = DW_MODEL_GENERATE | DW_MODEL_GENERATE_ONLY}, &model));
    rank_assert(NULL, dw_context_create(&(dw_context_options){.threads = 1, .cancelled = stop_or_sleep, .cancelled_user = &s}, &own) == DW_OK);
    rank_ok(own, dw_service_create(own, model, &TEXTS_OPTIONS, &service));
    s.polls = 0;
    s.most = rank == l->who ? l->after : 0;
    const double begin = base_now();
    const dw_status status = rank == 0 ? lead_to_the_end(own, service, &a, l) : dw_service_follow(own, service);
    if (rank == 0) l->status = status, l->seconds = base_now() - begin;
    /* In a run, or at the next order, the others learn that the rank is cancelled, and the one that leads stops. Else it is gone. */
    if (rank > 0) rank_assert(own, status == DW_OK || status == DW_LOST || status == DW_CANCELLED);
    if (rank > 0 && rank != l->who && status != DW_OK) rank_assert(own, strstr(dw_context_error(own), "rank ") != NULL);
    dw_service_destroy(service);
    dw_model_destroy(model);
    dw_context_destroy(own);
}

/* A rank ends at any moment: texts end with the words, and nobody waits for it: the timeout is 20 s. */
static void a_rank_that_leaves_at_any_moment_is_told(void **state) {
    static leaving l;
    int faults = 0;
    (void)state;
    for (int i = 0; i < 16; i++) {
        l = (leaving){.who = 1 + i % 2, .after = 1 + i * 43, .in_thread = i % 3 == 0};
        ranks_run(&(ranks){.world = 3, .user = &l}, leave_at);
        if (l.seconds > 10) fail_msg("it took %g s", l.seconds);
        if (l.status != DW_LOST && l.status != DW_CANCELLED) fail_msg("rank %d ended after %d looks, and the leader got %s", l.who, l.after, dw_status_name(l.status));
        for (int t = 0; t < TEXTS; t++) {
            if (l.made[t].end == DW_END_FAULT && strstr(l.made[t].message, "rank ") == NULL) fail_msg("a text ended with '%s'", l.made[t].message);
            faults += l.made[t].end == DW_END_FAULT;
        }
    }
    printf("%d texts ended with a rank that was gone\n", faults);
    assert_true(faults > 40);
}

static void delays_change_nothing(void **state) {
    static leaving l;
    static told first[TEXTS];
    (void)state;
    for (int i = 0; i < 2; i++) {
        l = (leaving){.sleeps = i > 0, .in_thread = true};
        ranks_run(&(ranks){.world = 3, .user = &l}, leave_at);
        assert_int_equal(l.status, DW_OK);
        if (i == 0) memcpy(first, l.made, sizeof first);
        else assert_memory_equal(first, l.made, sizeof first);
    }
}

/* Every call of the engine fails once, on the rank that leads and on one that does not. */
typedef struct broken { int in_create, in_model, served; } broken;

static void meet_a_broken_engine(int rank, dw_context *context, dw_comm *comm, void *user) {
    broken *b = user;
    const dw_request requests[] = {tiny_request(GOOD, 4), tiny_request(GOOD, 3)};
    dw_service *service;
    told made[2];
    dw_graph *graph;
    dw_model *model;
    dw_registry *registry;
    sine sine = {0};
    const dw_named_tensor weight = {"t", {.format = DW_FORMAT_f32, .rank = 2, .dims = {8, 4}, .strides = {4, 1}, .data = sine.weights}};
    rank_ok(context, dw_registry_create(context, &registry));
    rank_ok(context, dw_registry_add(registry, &(dw_kernel_options){.name = "mine", .op = "sin", .run = sine_run, .user = &sine}));
    rank_ok(context, dw_graph_parse(context, "g", TINY, strlen(TINY), &graph));
    rank_ok(context, dw_graph_bind(graph, 1, &weight));
    dw_status status = dw_model_create(context, graph, &(dw_model_options){.comm = comm, .shard = "all", .registry = registry, .flags = DW_MODEL_GENERATE_ONLY}, &model);
    b[rank].in_model = status != DW_OK;
    if (status == DW_OK) {
        status = dw_service_create(context, model, &TINY_OPTIONS, &service);
        b[rank].in_create = status != DW_OK;
        if (status == DW_OK) status = rank > 0 ? dw_service_follow(context, service) : texts_serve(context, service, requests, 2, made);
        for (int i = 0; rank == 0 && i < 2 && !b[rank].in_create; i++) rank_assert(context, made[i].end == (status == DW_OK ? DW_END_LENGTH : DW_END_FAULT) || made[i].end == DW_END_LENGTH);
        b[rank].served = status == DW_OK;
        if (status != DW_OK) rank_assert(context, strstr(dw_context_error(context), "the wire is cut") != NULL || strstr(dw_context_error(context), "rank ") != NULL);
        dw_service_destroy(service);
        dw_model_destroy(model);
    }
    dw_registry_destroy(registry);
}

static void an_engine_that_fails_at_any_call_is_told(void **state) {
    (void)state;
    for (int who = 0; who < 2; who++) {
        int in_runs = 0;
        bool done = false;
        for (int at = 4; !done; at++) {   /* those before make the communicator */
            broken b[2] = {{0}};
            dw_collectives engines[RANKS_MOST];
            wire *w = wire_create("tp=2", who, at, DW_LOST, engines);
            ranks_run(&(ranks){.world = 2, .engines = engines, .user = b}, meet_a_broken_engine);
            wire_destroy(w);
            done = b[0].served && b[1].served;
            in_runs += !b[0].in_model && !b[0].in_create && !done;
        }
        printf("rank %d: %d calls of runs and orders failed in turn\n", who, in_runs);
        assert_true(in_runs > 30);
    }
}

/* The one that leads is idle for longer than ranks wait for each other; or does not step. */
static void wait_idle(int rank, dw_context *context, dw_comm *comm, void *user) {
    const bool in_thread = user != NULL;
    const dw_request request = tiny_request(GOOD, 4);
    const struct timespec idle = {.tv_sec = 1, .tv_nsec = 600000000};
    dw_service *service;
    dw_event events[EVENTS];
    uint64_t number;
    tiny t;
    tiny_open(context, comm, "all", &t);
    rank_ok(context, dw_service_create(context, t.model, &TINY_OPTIONS, &service));
    if (rank > 0) {
        const dw_status status = dw_service_follow(context, service);
        rank_assert(context, status == (in_thread ? DW_OK : DW_LOST));
        if (!in_thread) rank_assert(context, strstr(dw_context_error(context), "rank 0 did not come within 0.8 s (orders over tp)") != NULL);
    } else {
        if (in_thread) rank_ok(context, dw_service_start(context, service));
        nanosleep(&idle, NULL);
        rank_ok(context, dw_service_submit(context, service, &request, &number));
        if (in_thread) rank_ok(context, dw_service_stop(context, service, 20));
        rank_assert(context, dw_service_poll(service, events, EVENTS) == (in_thread ? 10 : 0));
    }
    dw_service_destroy(service);
    tiny_close(&t);
}

static void who_has_nothing_to_do_is_not_taken_for_gone(void **state) {
    (void)state;
    ranks_run(&(ranks){.world = 2, .timeout_s = 0.8, .user = "in a thread"}, wait_idle);
    ranks_run(&(ranks){.world = 2, .timeout_s = 0.8}, wait_idle);
}

/* ---- what is asked wrongly ---- */

static void ask_wrongly(int rank, dw_context *context, dw_comm *comm, void *user) {
    const dw_request request = tiny_request(GOOD, 4);
    dw_service_options other = TINY_OPTIONS;
    dw_service *service;
    uint64_t number;
    int busy;
    tiny t;
    (void)user;
    tiny_open(context, comm, "all", &t);
    if (rank == 1) other.rows = 2;
    rank_assert(context, dw_service_create(context, t.model, &other, &service) == DW_MISMATCH && service == NULL && strstr(dw_context_error(context), "service: rank 1 has another options of the service than rank 0") != NULL);
    other.rows = rank == 1 ? -1 : 3;
    rank_assert(context, dw_service_create(context, t.model, &other, &service) == DW_INVALID && service == NULL && strstr(dw_context_error(context), rank == 1 ? "-1 rows" : "rank 1 failed: INVALID: a service has no -1 rows") != NULL);
    for (int round = 0; round < 2; round++) {   /* and all may go on; twice, as the one that leads starts again */
        if (round == 0) rank_ok(context, dw_service_create(context, t.model, &TINY_OPTIONS, &service));
        if (rank == 0) {
            rank_assert(context, dw_service_follow(context, service) == DW_INVALID && strstr(dw_context_error(context), "this rank leads") != NULL);
            rank_ok(context, dw_service_start(context, service));
            rank_ok(context, dw_service_submit(context, service, &request, &number));
            rank_ok(context, dw_service_stop(context, service, 20));
            dw_event events[EVENTS];
            rank_assert(context, dw_service_poll(service, events, EVENTS) == 10);
        } else {
            rank_assert(context, dw_service_submit(context, service, &request, &number) == DW_INVALID && strstr(dw_context_error(context), rank == 1 ? "rank 1 follows rank 0" : "rank 2 follows rank 0") != NULL);
            rank_assert(context, dw_service_step(context, service, &busy) == DW_INVALID && dw_service_start(context, service) == DW_INVALID && dw_service_cancel(context, service, 1) == DW_INVALID);
            rank_ok(context, dw_service_follow(context, service));
        }
    }
    dw_service_destroy(service);
    tiny_close(&t);
}

static void what_cannot_be_is_refused_on_all_ranks(void **state) {
    (void)state;
    ranks_run(&(ranks){.world = 3}, ask_wrongly);
}

/* Weights are new on the rank that leads alone, then on all. */
static void update_apart(int rank, dw_context *context, dw_comm *comm, void *user) {
    const dw_request request = tiny_request(GOOD, 4);
    dw_service *service;
    told before, made;
    tiny t;
    (void)user;
    tiny_open(context, comm, "all", &t);
    rank_ok(context, dw_service_create(context, t.model, &TINY_OPTIONS, &service));
    float others[32];
    for (int i = 0; i < 32; i++) others[i] = (float)(i * 5 % 13) / 4 - 1;
    const dw_named_tensor weight = {"t", {.format = DW_FORMAT_f32, .rank = 2, .dims = {8, 4}, .strides = {4, 1}, .data = others}};
    for (int round = 0; round < 3; round++) {
        if (round == (rank == 0 ? 1 : 2)) rank_ok(context, dw_model_update(t.model, 1, &weight));
        if (rank > 0) {
            rank_ok(context, dw_service_follow(context, service));
            continue;
        }
        uint64_t number;
        rank_ok(context, dw_service_submit(context, service, &request, &number));
        rank_ok(context, dw_service_start(context, service));
        rank_ok(context, dw_service_stop(context, service, 20));
        memset(&made, 0, sizeof made);
        while (texts_poll(service, &number, &made) > 0) {}
        if (round == 0) before = made;
        if (round == 1) rank_assert(context, made.end == DW_END_FAULT && strstr(made.message, "has updated its weights 1 times, and this one 0 times") != NULL && strstr(made.message, "rank 1") != NULL);
        if (round == 2) rank_assert(context, made.end == DW_END_LENGTH && memcmp(made.ids, before.ids, sizeof made.ids) != 0);
    }
    dw_service_destroy(service);
    tiny_close(&t);
}

static void weights_are_updated_on_all_ranks_or_not_served(void **state) {
    (void)state;
    ranks_run(&(ranks){.world = 2}, update_apart);
}

/* Two lines of ranks, each of which has requests of its own. */
static void serve_lines(int rank, dw_context *context, dw_comm *comm, void *user) {
    told *made = user;
    dw_request requests[] = {tiny_request(GOOD, 4), tiny_request(GOOD + 1, 2)};
    dw_service *service;
    tiny t;
    requests[1].seed = 9;
    tiny_open(context, comm, "all", &t);
    rank_ok(context, dw_service_create(context, t.model, &TINY_OPTIONS, &service));
    rank_assert(context, dw_service_leads(service) == (rank % 2 == 0));
    if (rank % 2 == 0) rank_ok(context, texts_serve(context, service, &requests[rank / 2], 1, &made[rank / 2]));
    else rank_ok(context, dw_service_follow(context, service));
    dw_service_destroy(service);
    tiny_close(&t);
}

static void replicas_serve_apart(void **state) {
    told lines[2], both[2];
    (void)state;
    ranks_run(&(ranks){.world = 4, .mesh = "dp=2,tp=2", .user = lines}, serve_lines);
    ranks_run(&(ranks){.world = 4, .mesh = "dp=2,tp=2", .user = both}, serve_lines);
    assert_memory_equal(lines, both, sizeof lines);
    assert_true(lines[0].end == DW_END_LENGTH && lines[1].end == DW_END_LENGTH && memcmp(lines[0].ids, lines[1].ids, sizeof lines[0].ids) != 0);
}

/* ---- memory ---- */

typedef struct short_of_memory { int who; test_memory memory; dw_status statuses[2]; } short_of_memory;

/* One rank's service has a context whose allocations fail. */
static void serve_short_of_memory(int rank, dw_context *context, dw_comm *comm, void *user) {
    short_of_memory *m = user;
    const dw_request requests[] = {tiny_request(GOOD, 4)};
    dw_context *own = context;
    dw_service *service = NULL;
    told made;
    tiny t;
    tiny_open(context, comm, "all", &t);
    if (rank == m->who) own = test_context_create(&m->memory, 1);
    rank_assert(NULL, own != NULL);
    dw_status status = dw_service_create(own, t.model, &TINY_OPTIONS, &service);
    if (status == DW_OK) status = rank > 0 ? dw_service_follow(own, service) : texts_serve(own, service, requests, 1, &made);
    if (status == DW_OK && rank == 0 && made.end == DW_END_FAULT) status = strstr(made.message, "NO_MEMORY") != NULL ? DW_NO_MEMORY : DW_INTERNAL;
    m->statuses[rank] = status;
    dw_service_destroy(service);
    if (rank == m->who) dw_context_destroy(own);
    tiny_close(&t);
}

static void memory_may_end_anywhere(void **state) {
    (void)state;
    for (int who = 0; who < 2; who++) {
        bool done = false;
        int refused = 0;
        for (size_t at = 2; !done; at++) {   /* the first is the context */
            short_of_memory m = {.who = who, .memory = {.fail_at = at}};
            ranks_run(&(ranks){.world = 2, .user = &m}, serve_short_of_memory);
            for (int i = 0; i < 2; i++)
                if (m.statuses[i] != DW_OK && m.statuses[i] != DW_NO_MEMORY) fail_msg("allocation %zu of rank %d failed: rank %d has %s", at, who, i, dw_status_name(m.statuses[i]));
            assert_int_equal(m.memory.live_count, 0);
            refused += m.statuses[who] == DW_NO_MEMORY;
            done = m.memory.calls < at;
        }
        assert_true(refused > 10);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fault_of_a_rank_ends_its_own_text),
        cmocka_unit_test(a_fault_of_all_ranks_ends_its_own_text),
        cmocka_unit_test(a_fault_that_others_cannot_see_ends_the_service),
        cmocka_unit_test(a_rank_that_leaves_at_any_moment_is_told),
        cmocka_unit_test(delays_change_nothing),
        cmocka_unit_test(an_engine_that_fails_at_any_call_is_told),
        cmocka_unit_test(who_has_nothing_to_do_is_not_taken_for_gone),
        cmocka_unit_test(what_cannot_be_is_refused_on_all_ranks),
        cmocka_unit_test(weights_are_updated_on_all_ranks_or_not_served),
        cmocka_unit_test(replicas_serve_apart),
        cmocka_unit_test(memory_may_end_anywhere),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);   /* of one test alone */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
