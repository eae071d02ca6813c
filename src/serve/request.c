#include "serve/request.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- lists ---- */

void requests_add(requests *list, request *request) {
    request->next = NULL;
    *(list->last != NULL ? &list->last->next : &list->first) = request;
    list->last = request;
}

request *requests_take(requests *list) {
    request *first = list->first;
    if (first == NULL) return NULL;
    list->first = first->next;
    if (list->first == NULL) list->last = NULL;
    return first;
}

/* ---- life ---- */

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
    char *message = carve(region, REQUEST_MESSAGE);
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

serve_text request_text(const dw_request *asked) {
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

dw_status request_check(dw_context *context, const dw_session *session, const dw_request *asked, const serve_text *text) {
    if (asked->tokens < 1) return base_fail(context, DW_INVALID, "a request of %" PRId64 " tokens makes none: ask for 1 or more", asked->tokens);
    if (!(asked->deadline_s >= 0)) return base_fail(context, DW_INVALID, "deadline_s %g is no number of seconds from now", asked->deadline_s);
    if (asked->stop_count < 0 || asked->input_count < 0 || asked->bias_count < 0)
        return base_fail(context, DW_INVALID, "a request of %d stop ids, %d inputs and %d biases", asked->stop_count, asked->input_count, asked->bias_count);
    for (int i = 0; i < asked->input_count; i++)
        if (!op_tensor_is_contiguous(&asked->inputs[i].tensor)) return base_fail(context, DW_MISMATCH, "input %s is not contiguous", asked->inputs[i].name);
    return scheduler_check(context, session, text);
}

dw_status request_create(dw_context *context, const dw_request *asked, const serve_text *text, request **result) {
    region region = {0};
    void *memory;
    lay_out(&region, asked);
    const size_t bytes = region.at;
    TRY(base_alloc(context, bytes, _Alignof(max_align_t), &memory));
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
    made->bytes = bytes;
    *result = made;
    return DW_OK;
}

void request_destroy(dw_context *context, request *request) { base_release(context, request, request->bytes, _Alignof(max_align_t)); }

/* ---- what comes of it ---- */

void request_keep_drawn(request *request) {
    const serve_text *text = &request->text;
    const serve_drawn *drawn = &text->drawn;
    const int64_t at = text->made - 1, top = text->draws.top_logprobs;
    if (request->logprobs != NULL) request->logprobs[at] = drawn->logprob;
    if (top == 0) return;
    memcpy(request->top_ids + at * top, drawn->top_ids, (size_t)top * sizeof *drawn->top_ids);
    memcpy(request->top_logprobs + at * top, drawn->top_logprobs, (size_t)top * sizeof *drawn->top_logprobs);
}

dw_event request_event(request *request, bool *last) {
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
