/* A service as a machine, on the CPU and on a simulated GPU: submit, cancel, step, poll and update in random order. After each step pages used, idle and free are all, and each page counts the tables that name it; each request gets its
 * tokens in order and one end, and as long as no weight changed those that it gets alone. DEEPWELL_MACHINE is how many times something is done, 30000 where it is not set; DEEPWELL_MACHINE_GPU on the GPU. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/scheduler.h"
#include "support/session.h"
#include "support/support.h"

enum { SUBJECTS = 24, OPEN = 20, LONGEST = 60, MADE = 20, WEIGHTS = 2, EVENTS = 512, VOCABULARY = 8, BAD = 7 };

/* sin of numbers below 1000, which id 7 has: looking that up is a fault. Two layers, of which one sees 9 keys. */
static const char GRAPH[] =
    "graph g\n  symbol b 1..4\n  symbol s 1..256\n  input ids i64[b,s]\n  param t f32[8,4]\n  %1 = take t, ids {axis=0}\n  %2 = sin %1\n  %3 = reshape %2 {shape=[b,s,2,2]}\n"
    "  %4 = transpose %3 {order=[0,2,1,3]}\n  %5 = attention %4, %4, %4 {scale=1.5,causal=true}\n  %6 = attention %5, %5, %5 {scale=1.1,causal=true,window=9}\n"
    "  %7 = transpose %6 {order=[0,2,1,3]}\n  %8 = reshape %7 {shape=[b,s,4]}\n  %9 = matmul %8, t {bt=true}\n  output logits %9\n";

/* What is asked for, and what comes of it alone with each of the weights. */
typedef struct subject {
    int64_t count, tokens, ids[LONGEST];
    bool is_masked;
    double temperature;
    int64_t made[WEIGHTS], made_ids[WEIGHTS][MADE];
    dw_end end[WEIGHTS];
} subject;

typedef struct follower {
    uint64_t request;          /* 0: none */
    const subject *subject;
    int64_t updates, made;     /* how many there were when it was submitted */
    bool is_cancelled, is_late;
} follower;

typedef struct tally { int64_t submitted, refused, cancelled, steps, updates, tokens, compared, ends[DW_END_COUNT]; } tally;

typedef struct world {
    dw_context *context;
    const char *device;        /* NULL: the CPU, with a kernel of ours that has faults */
    dw_registry *registry;
    dw_model *model;
    dw_service *service;
    float weights[WEIGHTS][VOCABULARY * 4];
    subject subjects[SUBJECTS];
    follower open[OPEN];
    uint64_t random;
    tally tally;
} world;

static int64_t draw(world *w, int64_t count) {
    w->random = w->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((w->random >> 33) % (uint64_t)count);
}

static dw_status sine(const dw_kernel_call *call) {
    const float *x = call->inputs[0]->data;
    float *y = call->outputs[0]->data;
    for (int64_t i = 0, count = op_tensor_count(call->outputs[0]); i < count; i++) {
        if (x[i] >= 1000) return DW_INVALID;
        y[i] = sinf(x[i]);
    }
    return DW_OK;
}

static dw_named_tensor weight_of(world *w, int which) {
    return (dw_named_tensor){"t", {.format = DW_FORMAT_f32, .rank = 2, .dims = {VOCABULARY, 4}, .strides = {4, 1}, .data = w->weights[which]}};
}

static void make_model(world *w) {
    const dw_named_tensor weight = weight_of(w, 0);
    dw_graph *graph;
    for (int which = 0; which < WEIGHTS; which++)
        for (int i = 0; i < VOCABULARY * 4; i++) w->weights[which][i] = i / 4 == BAD && w->device == NULL ? 1000.0f : (float)draw(w, 400) / 100 - 2;
    if (w->device == NULL) assert_ok(w->context, dw_registry_create(w->context, &w->registry));
    if (w->device == NULL) assert_ok(w->context, dw_registry_add(w->registry, &(dw_kernel_options){.name = "mine", .op = "sin", .run = sine}));
    assert_ok(w->context, dw_graph_parse(w->context, "g", GRAPH, strlen(GRAPH), &graph));
    assert_ok(w->context, dw_graph_bind(graph, 1, &weight));
    assert_ok(w->context, dw_model_create(w->context, graph, &(dw_model_options){.registry = w->registry, .device = w->device, .flags = DW_MODEL_GENERATE_ONLY}, &w->model));
}

/* Five of the ids, and none behind a 2. */
static int allow(void *user, int64_t last_id, uint32_t *bits) {
    (void)user;
    *bits = 0x1f;
    return last_id == 2;
}

static dw_request request_of(const world *w, const subject *s, int number) {
    static const int64_t bad[] = {BAD};
    static const float never[] = {-INFINITY};
    const bool is_plain = w->device != NULL && s->temperature == 0 && !s->is_masked;   /* these take what the step names, the others draw from logits */
    return (dw_request){.count = s->count, .ids = s->ids, .tokens = s->tokens, .temperature = s->temperature, .seed = (uint64_t)number, .bias_ids = bad, .bias = never, .bias_count = is_plain ? 0 : 1, .mask = s->is_masked ? allow : NULL,
                        .presence = number % 8 == 1 ? 0.2 : 0};
}

/* ---- alone ---- */

static void make_subjects(world *w) {
    for (int i = 0; i < SUBJECTS; i++) {
        subject *s = &w->subjects[i];
        s->count = 1 + draw(w, LONGEST);
        s->tokens = 1 + draw(w, MADE);
        s->is_masked = i % 6 == 5;
        s->temperature = w->device != NULL ? i % 8 == 1 : i % 2;
        for (int64_t k = 0; k < s->count; k++) s->ids[k] = k < 40 ? (k * (1 + i % 2)) % BAD : draw(w, BAD);
        if (i % 8 == 7) s->ids[s->count - 1] = BAD;
    }
}

static void run_alone(world *w, int which) {
    static dw_event events[EVENTS];
    dw_service *service;
    uint64_t id;
    assert_ok(w->context, dw_service_create(w->context, w->model, &(dw_service_options){.rows = 1, .context = LONGEST + MADE, .cache_bytes = 1 << 20, .flags = DW_SERVICE_NO_SHARING | DW_SERVICE_NO_LOOKAHEAD}, &service));
    for (int i = 0; i < SUBJECTS; i++) {
        subject *s = &w->subjects[i];
        const dw_request request = request_of(w, s, i);
        assert_ok(w->context, dw_service_submit(w->context, service, &request, &id));
        for (int busy = 1; busy;) assert_ok(w->context, dw_service_step(w->context, service, &busy));
        const int count = dw_service_poll(service, events, EVENTS);
        for (int k = 0; k < count; k++) {
            if (events[k].id >= 0) s->made_ids[which][s->made[which]++] = events[k].id;
            s->end[which] = events[k].end;
        }
    }
    dw_service_destroy(service);
}

/* ---- what is done ---- */

static follower *find_open(world *w, uint64_t request) {
    for (int i = 0; i < OPEN; i++)
        if (w->open[i].request == request) return &w->open[i];
    return NULL;
}

static void submit(world *w) {
    const int number = (int)draw(w, SUBJECTS);
    dw_request request = request_of(w, &w->subjects[number], number);
    follower *place = find_open(w, 0);
    uint64_t id;
    request.priority = draw(w, 4) == 0 ? (int)draw(w, 3) - 1 : 0;
    request.salt = (uint64_t)(draw(w, 6) == 0);
    request.deadline_s = draw(w, 40) == 0 ? 1e-9 : 0;
    const int wrong = draw(w, 20) == 0;
    if (wrong) request.tokens = LONGEST + MADE;
    const dw_status status = dw_service_submit(w->context, w->service, &request, &id);
    assert_int_equal(status, wrong || place == NULL ? DW_LIMIT : DW_OK);
    w->tally.refused += status != DW_OK;
    if (status != DW_OK) return;
    w->tally.submitted++;
    *place = (follower){.request = id, .subject = &w->subjects[number], .updates = w->tally.updates, .is_late = request.deadline_s > 0};
}

static void cancel(world *w) {
    follower *f = &w->open[draw(w, OPEN)];
    const uint64_t id = f->request > 0 ? f->request : UINT64_C(1) << 40;
    assert_int_equal(dw_service_cancel(w->context, w->service, id), f->request > 0 ? DW_OK : DW_NOT_FOUND);
    f->is_cancelled = f->request > 0;
    w->tally.cancelled += f->is_cancelled;
}

static void check_event(world *w, const dw_event *event) {
    follower *f = find_open(w, event->request);
    if (f == NULL) fail_msg("an event of a request that there is not, or that has ended");
    const bool is_same = f->updates == w->tally.updates;
    const int which = (int)(w->tally.updates % WEIGHTS);
    if (event->id >= 0) {
        assert_int_equal(event->index, f->made);
        if (is_same) assert_int_equal(event->id, f->subject->made_ids[which][f->made]);
        w->tally.compared += is_same;
        w->tally.tokens++;
        f->made++;
    }
    if (event->end == DW_END_NONE) return;
    w->tally.ends[event->end]++;
    if (event->end == DW_END_CANCELLED) assert_true(f->is_cancelled);
    else if (event->end == DW_END_DEADLINE) assert_true(f->is_late);
    else if (is_same) assert_int_equal(event->end, f->subject->end[which]);
    else assert_true(event->end == DW_END_LENGTH || event->end == DW_END_MASK || event->end == DW_END_FAULT);
    *f = (follower){0};
}

static void take_events(world *w) {
    static dw_event events[EVENTS];
    int count;
    while ((count = dw_service_poll(w->service, events, EVENTS)) > 0)
        for (int i = 0; i < count; i++) check_event(w, &events[i]);
}

static int step(world *w) {
    const scheduler *s = service_scheduler(w->service);
    pages_facts facts;
    int busy;
    assert_ok(w->context, dw_service_step(w->context, w->service, &busy));
    assert_ok(w->context, pages_check(w->context, s->pages));
    pages_count(s->pages, &facts);
    assert_true(facts.used + facts.idle <= facts.pages);
    if (s->running == 0) assert_int_equal(facts.used, 0);
    w->tally.steps++;
    return busy;
}

static void update(world *w) {
    take_events(w);
    const dw_named_tensor weight = weight_of(w, (int)(++w->tally.updates % WEIGHTS));
    assert_ok(w->context, dw_model_update(w->model, 1, &weight));
}

static void do_something(world *w) {
    const int64_t what = draw(w, 1000);
    if (what < 250) submit(w);
    else if (what < 280) cancel(w);
    else if (what < (w->device != NULL ? 290 : 282)) update(w);
    else if (what < 600) take_events(w);
    else step(w);
}

static int64_t asked_times(const char *variable, int64_t usual) {
    const char *asked = getenv(variable);
    return asked != NULL ? atoll(asked) : usual;
}

static void requests_come_and_go(const char *device, int64_t times) {
    static world w;
    const int64_t some = times >= 30000 ? 20 : 1;
    dw_service_facts facts;
    w = (world){.device = device, .random = 11};
    assert_int_equal(dw_context_create(NULL, &w.context), DW_OK);
    make_model(&w);
    make_subjects(&w);
    run_alone(&w, 0);
    const dw_named_tensor other = weight_of(&w, 1), first = weight_of(&w, 0);
    assert_ok(w.context, dw_model_update(w.model, 1, &other));
    run_alone(&w, 1);
    assert_ok(w.context, dw_model_update(w.model, 1, &first));
    assert_ok(w.context, dw_service_create(w.context, w.model, &(dw_service_options){.rows = 5, .run_tokens = 40, .context = LONGEST + MADE, .page_tokens = 16, .cache_bytes = 14 * 2 * 16 * 16, .queue = OPEN}, &w.service));
    for (int64_t i = 0; i < times; i++) do_something(&w);
    while (step(&w)) {}
    take_events(&w);
    for (int i = 0; i < OPEN; i++) assert_int_equal(w.open[i].request, 0);
    dw_service_measure(w.service, &facts);
    assert_int_equal(facts.submitted, facts.ended);
    printf("%lld times: %lld submitted, %lld refused, %lld cancelled, %lld steps, %lld updates; %lld tokens, %lld compared; ends: length %lld, mask %lld, cancelled %lld, deadline %lld, fault %lld; preempted %lld, hits %lld, released %lld\n",
           (long long)times, (long long)w.tally.submitted, (long long)w.tally.refused, (long long)w.tally.cancelled, (long long)w.tally.steps, (long long)w.tally.updates, (long long)w.tally.tokens,
           (long long)w.tally.compared, (long long)w.tally.ends[DW_END_LENGTH], (long long)w.tally.ends[DW_END_MASK], (long long)w.tally.ends[DW_END_CANCELLED], (long long)w.tally.ends[DW_END_DEADLINE],
           (long long)w.tally.ends[DW_END_FAULT], (long long)facts.preemptions, (long long)facts.prefix_hits, (long long)facts.pages_released);
    assert_true(w.tally.updates >= some && facts.preemptions >= some && facts.prefix_hits >= some && facts.pages_released >= some);
    for (dw_end end = DW_END_LENGTH; end < DW_END_COUNT; end++) assert_true(w.tally.ends[end] >= some || end == DW_END_STOP || end == DW_END_STOPPED || (end == DW_END_FAULT && device != NULL));
    dw_service_destroy(w.service);
    dw_model_destroy(w.model);
    dw_registry_destroy(w.registry);
    dw_context_destroy(w.context);
}

static void requests_come_and_go_and_weights_change(void **state) {
    (void)state;
    requests_come_and_go(NULL, asked_times("DEEPWELL_MACHINE", 30000));
}

/* Most texts are greedy here, as those are what a GPU runs ahead with. */
static void they_do_on_a_gpu(void **state) {
    (void)state;
    if (kernel_lacks_images() != NULL) skip();
    requests_come_and_go("sim:h200", asked_times("DEEPWELL_MACHINE_GPU", 400));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_come_and_go_and_weights_change),
        cmocka_unit_test(they_do_on_a_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
