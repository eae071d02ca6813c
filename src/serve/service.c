/* The door of the scheduler: requests from any thread wait in a list behind a mutex, one loop takes them in, and what it makes lies in the request until somebody polls. All memory of a request is
 * taken when it is submitted, so no run fails for lack of it. Two contexts: `work` is the loop's, `door` is used under the mutex. Over ranks the loop is that of the rank that leads (orders.h). */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "serve/scheduler.h"

enum { ROWS = 16, RUN_TOKENS = 512, QUEUE = 1024, CONTEXT = 8192, MESSAGE = 512 };

typedef struct request {
    serve_text text;
    uint64_t id;
    void *memory;                /* all that it points to */
    size_t bytes;
    int64_t told;                /* tokens that were polled */
    int64_t ready;               /* tokens that may be: of text.made, under the mutex */
    int64_t cached;              /* of the prompt, as the last token found it */
    float *logprobs;             /* [tokens], where they are asked for; else NULL */
    int64_t *top_ids;            /* [tokens,top_logprobs] */
    float *top_logprobs;
    dw_end end;
    char *message;
    bool is_new, is_cancelled;   /* since the loop looked */
    bool is_listed, is_told;     /* among those with events; its end was polled */
    struct request *next;        /* among new ones, those with events, or those that were told to the end */
} request;

typedef struct queue { request *first, *last; } queue;

struct dw_service {
    dw_context *work, *door;
    dw_session *session;
    orders *orders;              /* NULL: the rank is alone */
    scheduler scheduler;
    bool has_scheduler;
    int capacity;
    request **slots;             /* [capacity]; NULL: free */
    int used;
    uint64_t serial;
    const char *alone;
    int fd;

    pthread_mutex_t mutex;
    pthread_cond_t wake;
    queue fresh, eventful, told;
    bool any_cancelled;
    bool is_running, is_draining, must_stop;
    double drain_until;
    pthread_t thread;
    dw_status status;            /* of the loop */
    int64_t submitted, cancelled;
    dw_service_facts facts;      /* of the scheduler, as of its last run */
};

const char *dw_end_name(dw_end end) {
    static const char *const names[] = {
#define DW_END(name, meaning) #name,
#include "deepwell/end.def"
#undef DW_END
    };
    return (unsigned)end < DW_END_COUNT ? names[end] : "?";
}

const char *dw_end_meaning(dw_end end) {
    static const char *const meanings[] = {
#define DW_END(name, meaning) meaning,
#include "deepwell/end.def"
#undef DW_END
    };
    return (unsigned)end < DW_END_COUNT ? meanings[end] : "?";
}

/* A failure of one of the service's contexts, for the caller's. */
static dw_status relay(dw_context *context, dw_status status, const char *where, const dw_context *from) {
    const char *message = dw_context_error(from);
    const size_t name = strlen(dw_status_name(status));
    if (strncmp(message, dw_status_name(status), name) == 0 && message[name] == ':') message += name + 2;
    return base_fail(context, status, "%s%s", where, message);
}

/* ---- queues; under the mutex ---- */

static void enqueue(queue *queue, request *request) {
    request->next = NULL;
    *(queue->last != NULL ? &queue->last->next : &queue->first) = request;
    queue->last = request;
}

static request *dequeue(queue *queue) {
    request *first = queue->first;
    if (first == NULL) return NULL;
    queue->first = first->next;
    if (queue->first == NULL) queue->last = NULL;
    return first;
}

static void signal_events(dw_service *service, request *request) {
    const uint64_t one = 1;
    if (request->is_listed) return;
    request->is_listed = true;
    const bool was_empty = service->eventful.first == NULL;
    enqueue(&service->eventful, request);
    while (was_empty && write(service->fd, &one, sizeof one) < 0 && errno == EINTR) {}
}

static void release_request(dw_service *service, request *request) {
    const int slot = (int)(request->id % (uint64_t)service->capacity);
    service->slots[slot] = NULL;
    service->used--;
    base_release(service->door, request->memory, request->bytes, _Alignof(max_align_t));
}

/* ---- what the loop makes ---- */

static void keep_drawn(request *request) {
    const serve_text *text = &request->text;
    const serve_drawn *drawn = &text->drawn;
    const int64_t at = text->made - 1, top = text->draws.top_logprobs;
    if (request->logprobs != NULL) request->logprobs[at] = drawn->logprob;
    if (top == 0) return;
    memcpy(request->top_ids + at * top, drawn->top_ids, (size_t)top * sizeof *drawn->top_ids);
    memcpy(request->top_logprobs + at * top, drawn->top_logprobs, (size_t)top * sizeof *drawn->top_logprobs);
}

/* Called by the scheduler, without the mutex. */
static int changed(void *user, serve_text *text, int64_t id) {
    dw_service *service = user;
    request *request = text->user;
    if (id >= 0) keep_drawn(request);
    pthread_mutex_lock(&service->mutex);
    request->ready = text->made;
    request->cached = text->cached;
    request->end = text->end;
    service->facts.made_tokens += id >= 0;   /* who polls the event may ask for the facts before the run is over */
    service->facts.ended += text->end != DW_END_NONE;
    if (text->end == DW_END_FAULT) snprintf(request->message, MESSAGE, "%s", dw_context_error(service->work));
    signal_events(service, request);
    pthread_mutex_unlock(&service->mutex);
    return 0;
}

/* New requests go to the scheduler, cancelled ones end. */
static void take_requests(dw_service *service) {
    pthread_mutex_lock(&service->mutex);
    for (request *request; (request = dequeue(&service->fresh)) != NULL;) {
        request->is_new = false;
        scheduler_add(&service->scheduler, &request->text);
    }
    const bool any = service->any_cancelled;
    service->any_cancelled = false;
    pthread_mutex_unlock(&service->mutex);
    for (int i = 0; any && i < service->capacity; i++) {
        pthread_mutex_lock(&service->mutex);
        request *request = service->slots[i];
        const bool ends = request != NULL && request->is_cancelled && !request->is_new && request->text.end == DW_END_NONE;
        pthread_mutex_unlock(&service->mutex);
        if (ends) scheduler_end(&service->scheduler, &request->text, DW_END_CANCELLED);
    }
}

static void publish_facts(dw_service *service) {
    dw_service_facts facts;
    scheduler_count(&service->scheduler, &facts);
    pthread_mutex_lock(&service->mutex);
    service->facts = facts;
    pthread_mutex_unlock(&service->mutex);
}

static void end_all(dw_service *service, dw_end end) {
    take_requests(service);
    for (int64_t row = 0; row < service->scheduler.g->texts; row++)
        if (service->scheduler.rows[row] != NULL) scheduler_end(&service->scheduler, service->scheduler.rows[row], end);
    while (service->scheduler.first != NULL) scheduler_end(&service->scheduler, service->scheduler.first, end);
}

static dw_status step(dw_service *service, bool *busy) {
    take_requests(service);
    dw_status status = scheduler_step(&service->scheduler, busy);
    if (status == DW_OK && !*busy) status = orders_beat(service->orders);
    if (!orders_go_on(service->orders)) end_all(service, DW_END_FAULT);   /* with the words of why */
    publish_facts(service);
    return status;
}

/* ---- the thread ---- */

/* false: other ranks wait to hear of this one. Under the mutex. */
static bool sleep_for_work(dw_service *service) {
    const double most_s = orders_beat_s(service->orders);
    struct timespec until;
    if (most_s == 0) return pthread_cond_wait(&service->wake, &service->mutex) == 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t ns = until.tv_nsec + (int64_t)(most_s * 1e9);
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    return pthread_cond_timedwait(&service->wake, &service->mutex, &until) == 0;
}

/* Waits until there is something to do. false: the loop ends. */
static bool wait_for_work(dw_service *service, bool busy) {
    bool waits = !busy;
    pthread_mutex_lock(&service->mutex);
    while (waits && !service->must_stop && service->fresh.first == NULL && !service->any_cancelled) waits = sleep_for_work(service);
    const bool goes_on = !service->must_stop || ((busy || service->fresh.first != NULL) && base_now() < service->drain_until);
    pthread_mutex_unlock(&service->mutex);
    return goes_on;
}

static void *run_thread(void *argument) {
    dw_service *service = argument;
    dw_status status = DW_OK;
    bool busy = false;
    while (status == DW_OK && wait_for_work(service, busy)) status = step(service, &busy);
    pthread_mutex_lock(&service->mutex);
    service->is_draining = true;
    service->status = status;
    pthread_mutex_unlock(&service->mutex);
    end_all(service, status == DW_OK ? DW_END_STOPPED : DW_END_FAULT);
    publish_facts(service);
    orders_close(service->orders);
    return NULL;
}

static dw_status check_leads(dw_context *context, const dw_service *service) {
    if (orders_lead(service->orders)) return DW_OK;
    const dw_comm *comm = service->session->model->options.comm;
    return base_fail(context, DW_INVALID, "rank %d follows rank %d, which takes requests and runs them for all: call dw_service_follow here", dw_comm_rank(comm), orders_leader(service->orders));
}

dw_status dw_service_start(dw_context *context, dw_service *service) {
    TRY(check_leads(context, service));
    pthread_mutex_lock(&service->mutex);
    const bool runs = service->is_running;
    if (!runs) {
        service->is_running = true;
        service->must_stop = service->is_draining = false;
        service->status = DW_OK;
    }
    pthread_mutex_unlock(&service->mutex);
    if (runs) return base_fail(context, DW_INVALID, "the service runs already");
    orders_open(service->orders);
    if (pthread_create(&service->thread, NULL, run_thread, service) == 0) return DW_OK;
    service->is_running = false;
    return base_fail(context, DW_IO, "the system gives no thread for the service");
}

dw_status dw_service_stop(dw_context *context, dw_service *service, double drain_s) {
    pthread_mutex_lock(&service->mutex);
    const bool runs = service->is_running;
    service->must_stop = service->is_draining = runs;
    service->drain_until = base_now() + (drain_s > 0 ? drain_s : 0);
    pthread_cond_broadcast(&service->wake);
    pthread_mutex_unlock(&service->mutex);
    if (!runs) return base_fail(context, DW_INVALID, "the service does not run: start it first");
    pthread_join(service->thread, NULL);
    pthread_mutex_lock(&service->mutex);
    service->is_running = service->is_draining = false;
    pthread_mutex_unlock(&service->mutex);
    if (service->status == DW_OK) return DW_OK;
    return relay(context, service->status, "the service stopped: ", service->work);
}

dw_status dw_service_step(dw_context *context, dw_service *service, int *busy) {
    bool any = false;
    *busy = 0;
    TRY(check_leads(context, service));
    pthread_mutex_lock(&service->mutex);
    const bool runs = service->is_running;
    pthread_mutex_unlock(&service->mutex);
    if (runs) return base_fail(context, DW_INVALID, "the service runs in a thread of its own: stop it, or leave the steps to it");
    const dw_status status = step(service, &any);
    *busy = any;
    return status == DW_OK ? DW_OK : relay(context, status, "", service->work);
}

int dw_service_leads(const dw_service *service) { return orders_lead(service->orders); }

dw_status dw_service_follow(dw_context *context, dw_service *service) {
    if (orders_lead(service->orders)) return base_fail(context, DW_INVALID, "this rank leads, or is alone: the others follow it. Call dw_service_start or dw_service_step here");
    base_cancel_as(service->work, context);
    const dw_status status = orders_follow(service->orders);
    base_cancel_as(service->work, NULL);
    return status == DW_OK ? DW_OK : relay(context, status, "", service->work);
}

/* ---- requests ---- */

/* Memory that is measured with memory NULL, and carved up with it. */
typedef struct region { uint8_t *memory; size_t at; } region;

static void *carve(region *region, size_t bytes) {
    void *place = region->memory != NULL ? region->memory + region->at : NULL;
    region->at += base_align_up(bytes, _Alignof(max_align_t));
    return place;
}

static void *carve_copy(region *region, size_t bytes, const void *from) {
    void *place = carve(region, bytes);
    if (place != NULL && bytes > 0) memcpy(place, from, bytes);
    return place;
}

static void copy_inputs(region *region, const dw_request *asked, request *made) {
    dw_named_tensor *inputs = carve_copy(region, (size_t)asked->input_count * sizeof *inputs, asked->inputs);
    for (int i = 0; i < asked->input_count; i++) {
        const dw_named_tensor *from = &asked->inputs[i];
        char *name = carve_copy(region, strlen(from->name) + 1, from->name);
        void *data = carve_copy(region, (size_t)op_tensor_bytes(&from->tensor), from->tensor.data);
        if (inputs == NULL) continue;
        inputs[i].name = name;
        inputs[i].tensor.data = data;
    }
    if (made != NULL) made->text.inputs = inputs;
}

/* The request and all that it points to. */
static request *lay_out(region *region, const dw_request *asked) {
    request *made = carve(region, sizeof *made);
    int64_t *ids = carve(region, (size_t)(asked->count + asked->tokens) * sizeof *ids);
    int64_t *stop_ids = carve_copy(region, (size_t)asked->stop_count * sizeof *stop_ids, asked->stop_ids);
    char *message = carve(region, MESSAGE);
    int64_t *bias_ids = carve_copy(region, (size_t)asked->bias_count * sizeof *bias_ids, asked->bias_ids);
    float *bias = carve_copy(region, (size_t)asked->bias_count * sizeof *bias, asked->bias);
    float *logprobs = asked->logprobs ? carve(region, (size_t)asked->tokens * sizeof *logprobs) : NULL;
    const size_t tops = (size_t)asked->tokens * (size_t)asked->top_logprobs;
    int64_t *top_ids = carve(region, tops * sizeof *top_ids);
    float *top_logprobs = carve(region, tops * sizeof *top_logprobs);
    if (made != NULL) {
        memset(made, 0, sizeof *made);
        memcpy(ids, asked->ids, (size_t)asked->count * sizeof *ids);
        made->text.ids = ids;
        made->text.stop_ids = stop_ids;
        made->text.draws.bias_ids = bias_ids;
        made->text.draws.bias = bias;
        made->logprobs = logprobs;
        made->top_ids = top_ids;
        made->top_logprobs = top_logprobs;
        made->message = message;
    }
    copy_inputs(region, asked, made);
    return made;
}

static serve_text text_of(const dw_request *asked) {
    return (serve_text){
        .count = asked->count,
        .tokens = asked->tokens,
        .ids = (int64_t *)asked->ids,
        .priority = asked->priority,
        .deadline = asked->deadline_s > 0 ? base_now() + asked->deadline_s : 0,
        .key = {asked->salt, 0},
        .draws = {.temperature = asked->temperature, .top_p = asked->top_p, .min_p = asked->min_p, .repetition = asked->repetition, .presence = asked->presence, .frequency = asked->frequency,
                  .top_k = asked->top_k, .top_logprobs = asked->top_logprobs, .logprobs = asked->logprobs != 0, .seed = asked->seed, .bias_ids = asked->bias_ids, .bias = asked->bias,
                  .bias_count = asked->bias_count, .mask = asked->mask, .user = asked->user},
        .stop_count = asked->stop_count,
        .input_count = asked->input_count,
        .row = -1,
    };
}

static dw_status check_request(dw_context *context, const dw_service *service, const dw_request *asked, const serve_text *text) {
    if (asked->tokens < 1) return base_fail(context, DW_INVALID, "a request of %" PRId64 " tokens makes none: ask for 1 or more", asked->tokens);
    if (!(asked->deadline_s >= 0)) return base_fail(context, DW_INVALID, "deadline_s %g is no number of seconds from now", asked->deadline_s);
    if (asked->stop_count < 0 || asked->input_count < 0 || asked->bias_count < 0)
        return base_fail(context, DW_INVALID, "a request of %d stop ids, %d inputs and %d biases", asked->stop_count, asked->input_count, asked->bias_count);
    for (int i = 0; i < asked->input_count; i++)
        if (!op_tensor_is_contiguous(&asked->inputs[i].tensor)) return base_fail(context, DW_MISMATCH, "input %s is not contiguous", asked->inputs[i].name);
    return scheduler_check(context, service->session, text);
}

/* Under the mutex. */
static dw_status add_request(dw_context *context, dw_service *service, const dw_request *asked, const serve_text *text, uint64_t *id) {
    region region = {0};
    void *memory;
    if (service->is_draining && service->status != DW_OK) return relay(context, service->status, "the service has stopped: ", service->work);
    if (service->is_draining) return base_fail(context, DW_CANCELLED, "the service stops, and takes no requests");
    if (service->used == service->capacity)
        return base_fail(context, DW_LIMIT, "the queue is full: %d requests wait, run, or have ended and were not polled", service->capacity);
    lay_out(&region, asked);
    const size_t bytes = region.at;
    if (base_alloc(service->door, bytes, _Alignof(max_align_t), &memory) != DW_OK) return relay(context, DW_NO_MEMORY, "", service->door);
    region.memory = memory;
    region.at = 0;
    request *made = lay_out(&region, asked);
    serve_text whole = *text;
    whole.ids = made->text.ids;
    whole.stop_ids = made->text.stop_ids;
    whole.draws.bias_ids = made->text.draws.bias_ids;
    whole.draws.bias = made->text.draws.bias;
    whole.inputs = made->text.inputs;
    whole.user = made;
    made->text = whole;
    made->memory = memory;
    made->bytes = bytes;
    made->is_new = true;
    uint64_t slot = service->serial % (uint64_t)service->capacity;
    while (service->slots[slot] != NULL) slot = ++service->serial % (uint64_t)service->capacity;
    made->id = service->serial++;
    if (asked->input_count > 0) made->text.key.owner = made->id;   /* what an encoder was given decides its keys, too */
    service->slots[slot] = made;
    service->used++;
    service->submitted++;
    enqueue(&service->fresh, made);
    pthread_cond_signal(&service->wake);
    *id = made->id;
    return DW_OK;
}

dw_status dw_service_submit(dw_context *context, dw_service *service, const dw_request *asked, uint64_t *id) {
    const serve_text text = text_of(asked);
    TRY(check_leads(context, service));
    TRY(check_request(context, service, asked, &text));
    pthread_mutex_lock(&service->mutex);
    const dw_status status = add_request(context, service, asked, &text, id);
    pthread_mutex_unlock(&service->mutex);
    return status;
}

dw_status dw_service_cancel(dw_context *context, dw_service *service, uint64_t id) {
    TRY(check_leads(context, service));
    pthread_mutex_lock(&service->mutex);
    request *request = service->slots[id % (uint64_t)service->capacity];
    const bool known = request != NULL && request->id == id && !request->is_told;
    if (known && !request->is_cancelled && request->end == DW_END_NONE) {
        request->is_cancelled = service->any_cancelled = true;
        service->cancelled++;
        pthread_cond_signal(&service->wake);
    }
    pthread_mutex_unlock(&service->mutex);
    return known ? DW_OK : base_fail(context, DW_NOT_FOUND, "there is no request %" PRIu64 ", or it has ended", id);
}

/* ---- events ---- */

/* The next event of the request; *last: it has no further one now. */
static dw_event event_of(request *request, bool *last) {
    const bool has_token = request->told < request->ready;
    const bool ends = request->end != DW_END_NONE && request->told + has_token == request->ready;
    dw_event event = {.request = request->id, .id = -1, .index = request->told, .cached = request->cached, .logprob = NAN};
    if (has_token) {
        const int64_t at = request->told++, top = request->text.draws.top_logprobs;
        event.id = request->text.ids[request->text.count + at];
        if (request->logprobs != NULL) event.logprob = request->logprobs[at];
        event.top_count = (int)top;
        event.top_ids = request->top_ids + at * top;
        event.top_logprobs = request->top_logprobs + at * top;
    }
    if (ends) {
        event.end = request->end;
        event.message = request->end == DW_END_FAULT ? request->message : NULL;
        request->is_told = true;
    }
    *last = request->told == request->ready;
    return event;
}

int dw_service_poll(dw_service *service, dw_event *events, int room) {
    int count = 0;
    uint64_t number;
    pthread_mutex_lock(&service->mutex);
    for (request *request; (request = dequeue(&service->told)) != NULL;) release_request(service, request);   /* messages of the poll before are not read any more */
    while (count < room && service->eventful.first != NULL) {
        bool last;
        request *request = service->eventful.first;
        events[count++] = event_of(request, &last);
        if (!last) continue;
        dequeue(&service->eventful)->is_listed = false;
        if (request->is_told) enqueue(&service->told, request);
    }
    while (service->eventful.first == NULL && read(service->fd, &number, sizeof number) < 0 && errno == EINTR) {}
    pthread_mutex_unlock(&service->mutex);
    return count;
}

const scheduler *service_scheduler(const dw_service *service) { return &service->scheduler; }

int dw_service_fd(const dw_service *service) { return service->fd; }

void dw_service_measure(dw_service *service, dw_service_facts *facts) {
    pthread_mutex_lock(&service->mutex);
    *facts = service->facts;
    facts->submitted = service->submitted;
    facts->cancelled = service->cancelled;
    for (const request *request = service->fresh.first; request != NULL; request = request->next) facts->waiting++;
    facts->alone = service->alone;
    pthread_mutex_unlock(&service->mutex);
}

/* ---- life ---- */

static int64_t or_usual(int64_t given, int64_t usual) { return given > 0 ? given : usual; }

/* The most tokens of a text that nobody limited. */
static int64_t usual_context(const dw_model *model) {
    int64_t least = CONTEXT;
    const plan *plan = model->step.plan != NULL ? model->step.plan : model->full.plan;
    const dim_table *dims = plan->graph->dims;
    const ir_value *tokens = incremental_find_tokens(plan->graph);
    int symbol = dim_symbol_find(dims, STEP_SYMBOL_MAX);
    int64_t min, max = least;
    if (symbol < 0 && (tokens == NULL || !dim_is_symbol(tokens->type.dims[tokens->type.rank - 1], &symbol))) return least;
    dim_symbol_range(dims, symbol, &min, &max);
    return max < least ? max : least;
}

static dw_status check_options(dw_context *context, const dw_model *model, const dw_service_options *options) {
    if (options->rows < 0 || options->run_tokens < 0 || options->context < 0 || options->queue < 0)
        return base_fail(context, DW_INVALID, "a service has no %" PRId64 " rows, runs of %" PRId64 " tokens, texts of %" PRId64 " and queue of %d", options->rows, options->run_tokens,
                         options->context, options->queue);
    const int64_t page = options->page_tokens;
    if (page != 0 && page != 16 && page != 32 && page != 64 && page != 128)
        return base_fail(context, DW_INVALID, "pages of %" PRId64 " tokens: take 16, 32, 64 or 128", page);
    if (!(model->flags & (DW_MODEL_GENERATE | DW_MODEL_GENERATE_ONLY)))
        return base_fail(context, DW_INVALID, "the model was opened without generation: open it with DW_MODEL_GENERATE");
    return DW_OK;
}

/* On a GPU generation by one call has rows, so pages come with the first service. */
static dw_status add_pages(dw_context *context, dw_model *model) {
    const dw_status status = engine_add_pages(model);
    return status == DW_OK || context == model->context ? status : relay(context, status, "", model->context);
}

static dw_status make_session(dw_service *service, const dw_model *model, const dw_service_options *options) {
    const dw_session_options wanted = {
        .dims = options->dims,
        .max_tokens = or_usual(options->context, usual_context(model)),
        .rows = or_usual(options->rows, ROWS),
        .chunk = or_usual(options->run_tokens, RUN_TOKENS),
    };
    const engine_paging paging = {.is_shared = true, .page_tokens = or_usual(options->page_tokens, ENGINE_PAGE), .cache_bytes = options->cache_bytes};
    TRY(engine_session_create(service->work, model, &wanted, &paging, &service->session));
    const generation *g = service->session->generation;
    service->alone = engine_alone(model);
    if (service->alone != NULL) base_log(service->work, DW_LOG_WARNING, "%s, so texts %s", service->alone, g->texts == 1 ? "go one after another" : "share no pages");
    return DW_OK;
}

static dw_status build(dw_service *service, const dw_model *model, const dw_service_options *options) {
    void *slots;
    service->capacity = (int)or_usual(options->queue, QUEUE);
    TRY(base_alloc(service->work, (size_t)service->capacity * sizeof(request *), _Alignof(max_align_t), &slots));
    memset(slots, 0, (size_t)service->capacity * sizeof(request *));
    service->slots = slots;
    TRY(make_session(service, model, options));
    TRY(orders_create(service->session, &service->orders));
    const scheduler_options scheduling = {.changed = changed, .user = service, .orders = service->orders, .alone = (options->flags & DW_SERVICE_NO_SHARING) != 0, .waits = (options->flags & DW_SERVICE_NO_LOOKAHEAD) != 0};
    service->has_scheduler = true;
    TRY(scheduler_create(service->session, &scheduling, &service->scheduler));
    publish_facts(service);
    service->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return service->fd >= 0 ? DW_OK : base_fail(service->work, DW_IO, "the system gives no descriptor for events");
}

static dw_status create(dw_context *context, dw_model *model, const dw_service_options *options, dw_service **result) {
    void *memory;
    pthread_condattr_t attributes;
    dw_context *work, *door;
    TRY(check_options(context, model, options));
    TRY(add_pages(context, model));
    if (base_context_like(context, &work) != DW_OK) return base_fail(context, DW_NO_MEMORY, "a service needs a context of its own");
    dw_status status = base_context_like(context, &door);
    if (status == DW_OK && (status = base_alloc(work, sizeof(dw_service), _Alignof(max_align_t), &memory)) != DW_OK) dw_context_destroy(door);
    if (status != DW_OK) {
        dw_context_destroy(work);
        return base_fail(context, status, "a service needs memory");
    }
    dw_service *service = memory;
    *service = (dw_service){.work = work, .door = door, .serial = 1, .fd = -1};
    pthread_mutex_init(&service->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&service->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    status = build(service, model, options);
    if (status == DW_OK) return *result = service, DW_OK;
    relay(context, status, "", work);
    dw_service_destroy(service);
    return status;
}

/* All ranks have made one, with the same options, or none has. */
static dw_status agree(dw_context *context, const dw_model *model, const dw_service_options *options, dw_status status, dw_service **result) {
    const int64_t numbers[] = {options->rows, options->run_tokens, options->context, options->page_tokens, (int64_t)options->cache_bytes, options->flags};
    const char *dims = options->dims != NULL ? options->dims : "";
    const dw_service *service = *result;
    const generation *g = service != NULL ? service->session->generation : NULL;
    uint64_t pages = 0;
    for (int i = 0; g != NULL && i < g->group_count; i++) pages += (uint64_t)g->groups[i].pages;
    const comm_fact facts[] = {{"options of the service", base_hash(numbers, sizeof numbers, base_hash(dims, strlen(dims), 0))},
                               {"number of pages", pages},
                               {"room for orders", service != NULL ? orders_room(service->orders) : 0}};
    status = comm_agree(model->options.comm, context, "service", status, COUNT_OF(facts), facts);
    if (status == DW_OK) {
        orders_open((*result)->orders);
        return DW_OK;
    }
    dw_service_destroy(*result);
    *result = NULL;
    return status;
}

dw_status dw_service_create(dw_context *context, dw_model *model, const dw_service_options *options, dw_service **result) {
    static const dw_service_options none = {0};
    *result = NULL;
    if (options == NULL) options = &none;
    const dw_status status = create(context, model, options, result);
    return engine_cut_ranks(model) > 1 ? agree(context, model, options, status, result) : status;
}

void dw_service_destroy(dw_service *service) {
    if (service == NULL) return;
    if (service->is_running) dw_service_stop(service->door, service, 0);
    orders_close(service->orders);
    dw_context *work = service->work, *door = service->door;
    for (int i = 0; service->slots != NULL && i < service->capacity; i++)
        if (service->slots[i] != NULL) release_request(service, service->slots[i]);
    if (service->has_scheduler) scheduler_destroy(&service->scheduler);
    orders_destroy(service->orders);
    engine_session_destroy(service->session);
    base_release(work, service->slots, (size_t)service->capacity * sizeof(request *), _Alignof(max_align_t));
    if (service->fd >= 0) close(service->fd);
    pthread_mutex_destroy(&service->mutex);
    pthread_cond_destroy(&service->wake);
    base_release(work, service, sizeof *service, _Alignof(max_align_t));
    dw_context_destroy(door);
    dw_context_destroy(work);
}
