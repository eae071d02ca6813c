/* The door of the scheduler: requests from any thread wait in a list behind a mutex, one loop takes them in, and what it makes lies in the request until somebody polls. All memory of a request is
 * taken when it is submitted, so no run fails for lack of it. Two contexts: `work` is the loop's, `door` is used under the mutex. Over ranks the loop is that of the rank that leads (orders.h). */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "serve/request.h"

enum { ROWS = 16, RUN_TOKENS = 512, QUEUE = 1024, CONTEXT = 8192 };

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
    requests fresh, eventful, told;
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

/* ---- requests that are known; under the mutex ---- */

static void signal_events(dw_service *service, request *request) {
    const uint64_t one = 1;
    if (request->is_listed) return;
    request->is_listed = true;
    const bool was_empty = service->eventful.first == NULL;
    requests_add(&service->eventful, request);
    while (was_empty && write(service->fd, &one, sizeof one) < 0 && errno == EINTR) {}
}

static void release_request(dw_service *service, request *request) {
    const int slot = (int)(request->id % (uint64_t)service->capacity);
    service->slots[slot] = NULL;
    service->used--;
    request_destroy(service->door, request);
}

/* ---- what the loop makes ---- */

/* Called by the scheduler, without the mutex. */
static int changed(void *user, serve_text *text, int64_t id) {
    dw_service *service = user;
    request *request = text->user;
    if (id >= 0) request_keep_drawn(request);
    pthread_mutex_lock(&service->mutex);
    request->ready = text->made;
    request->cached = text->cached;
    request->end = text->end;
    service->facts.made_tokens += id >= 0;   /* who polls the event may ask for the facts before the run is over */
    service->facts.ended += text->end != DW_END_NONE;
    service->facts.device_s = service->session->worked_s;
    if (text->end == DW_END_FAULT) snprintf(request->message, REQUEST_MESSAGE, "%s", dw_context_error(service->work));
    signal_events(service, request);
    pthread_mutex_unlock(&service->mutex);
    return 0;
}

/* New requests go to the scheduler, cancelled ones end. */
static void take_requests(dw_service *service) {
    pthread_mutex_lock(&service->mutex);
    for (request *request; (request = requests_take(&service->fresh)) != NULL;) {
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

/* Under the mutex. */
static dw_status add_request(dw_context *context, dw_service *service, const dw_request *asked, const serve_text *text, uint64_t *id) {
    request *made;
    if (service->is_draining && service->status != DW_OK) return relay(context, service->status, "the service has stopped: ", service->work);
    if (service->is_draining) return base_fail(context, DW_CANCELLED, "the service stops, and takes no requests");
    if (service->used == service->capacity)
        return base_fail(context, DW_LIMIT, "the queue is full: %d requests wait, run, or have ended and were not polled", service->capacity);
    if (request_create(service->door, asked, text, &made) != DW_OK) return relay(context, DW_NO_MEMORY, "", service->door);
    made->is_new = true;
    uint64_t slot = service->serial % (uint64_t)service->capacity;
    while (service->slots[slot] != NULL) slot = ++service->serial % (uint64_t)service->capacity;
    made->id = service->serial++;
    if (asked->input_count > 0) made->text.key.owner = made->id;   /* what an encoder was given decides its keys, too */
    service->slots[slot] = made;
    service->used++;
    service->submitted++;
    requests_add(&service->fresh, made);
    pthread_cond_signal(&service->wake);
    *id = made->id;
    return DW_OK;
}

dw_status dw_service_submit(dw_context *context, dw_service *service, const dw_request *asked, uint64_t *id) {
    const serve_text text = request_text(asked);
    TRY(check_leads(context, service));
    TRY(request_check(context, service->session, asked, &text));
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

int dw_service_poll(dw_service *service, dw_event *events, int room) {
    int count = 0;
    uint64_t number;
    pthread_mutex_lock(&service->mutex);
    for (request *request; (request = requests_take(&service->told)) != NULL;) release_request(service, request);   /* messages of the poll before are not read any more */
    while (count < room && service->eventful.first != NULL) {
        bool last;
        request *request = service->eventful.first;
        events[count++] = request_event(request, &last);
        if (!last) continue;
        requests_take(&service->eventful)->is_listed = false;
        if (request->is_told) requests_add(&service->told, request);
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
    if (options->flags & DW_SERVICE_TIMES_DEVICE) TRY(engine_time_runs(service->session));
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
