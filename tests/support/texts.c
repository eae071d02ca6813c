#include "support/texts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "num/num.h"

/* The first and the last ids may be next. */
static int few_ids(void *user, int64_t last_id, uint32_t *bits) {
    (void)user;
    bits[0] &= last_id % 3 == 0 ? 0x0f0f0f0f : 0xf0f0f0f0;
    return 0;
}

void texts_ask(asked *a, int64_t vocabulary, uint64_t seed) {
    static const int64_t bias_ids[] = {3, 9}, stops[] = {5, 17};
    static const float bias[] = {2, -INFINITY};
    for (int i = 0; i < TEXTS; i++) {
        dw_request *request = &a->requests[i];
        const int64_t count = 1 + (int64_t)(num_random(seed, (uint64_t)i) % LONGEST);
        for (int64_t k = 0; k < count; k++) a->ids[i][k] = (int64_t)((k < 40 ? (uint64_t)(k * 7 + i % 3) : num_random(seed + 1 + (uint64_t)i, (uint64_t)k)) % (uint64_t)vocabulary);
        *request = (dw_request){.count = count, .ids = a->ids[i], .tokens = 1 + (int64_t)(num_random(seed + 99, (uint64_t)i) % MADE), .logprobs = 1, .top_logprobs = i % 2 ? 0 : 2, .seed = (uint64_t)i};
        if (i % 2) request->temperature = 0.9, request->top_k = i % 4 == 1 ? 20 : 0, request->logprobs = i % 4 != 1;
        if (i % 8 == 5) request->min_p = 0.02, request->top_p = 0.9;
        if (i % 5 == 0) request->repetition = 1.2, request->presence = 0.1, request->frequency = 0.05;
        if (i % 7 == 0) request->bias_ids = bias_ids, request->bias = bias, request->bias_count = 2;
        if (i % 6 == 4) request->mask = few_ids;
        if (i % 4 == 2) request->stop_ids = stops, request->stop_count = 2;
        if (i % 3 == 0) request->priority = i % 2;
    }
}

static void texts_note(const uint64_t *numbers, told *all, const dw_event *event) {
    int which = 0;
    while (numbers[which] != event->request) which++;
    told *t = &all[which];
    t->end = event->end;
    if (event->message != NULL) snprintf(t->message, sizeof t->message, "%s", event->message);
    if (event->id < 0) return;
    t->margins[t->count] = event->top_count > 1 ? event->top_logprobs[0] - event->top_logprobs[1] : 0;
    t->logprobs[t->count] = isnan(event->logprob) ? 0 : event->logprob;
    t->ids[t->count++] = event->id;
}

dw_status texts_serve(dw_context *context, dw_service *service, const dw_request *requests, int count, told *all) {
    uint64_t numbers[TEXTS] = {0};
    dw_event events[EVENTS];
    dw_status status = DW_OK;
    memset(all, 0, (size_t)count * sizeof *all);
    for (int sent = 0, busy = 1; status == DW_OK && (busy || sent < count);) {
        for (int i = 0; i < 3 && sent < count && status == DW_OK; i++, sent++) status = dw_service_submit(context, service, &requests[sent], &numbers[sent]);
        if (status == DW_OK) status = dw_service_step(context, service, &busy);
        for (int i = 0, polled = dw_service_poll(service, events, EVENTS); i < polled; i++) texts_note(numbers, all, &events[i]);
    }
    return status;
}

uint64_t texts_draw(uint64_t *random, uint64_t count) {
    *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*random >> 33) % count;
}

int texts_poll(dw_service *service, const uint64_t *numbers, told *all) {
    dw_event events[EVENTS];
    const int polled = dw_service_poll(service, events, EVENTS);
    for (int i = 0; i < polled; i++) texts_note(numbers, all, &events[i]);
    return polled;
}

int texts_ended(const told *all, int count) {
    int ended = 0;
    for (int i = 0; i < count; i++) ended += all[i].end != DW_END_NONE;
    return ended;
}
