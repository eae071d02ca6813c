/* Texts that a service is asked for, and what came of them. */
#ifndef SUPPORT_TEXTS_H
#define SUPPORT_TEXTS_H

#include "deepwell/deepwell.h"

enum { TEXTS = 16, LONGEST = 90, MADE = 14, ROOM = LONGEST + MADE, EVENTS = 256 };

/* Of a service that texts come and go in, and whose prompts are read in pieces. */
static const dw_service_options TEXTS_OPTIONS = {.rows = 4, .run_tokens = 40, .context = ROOM, .page_tokens = 16};

typedef struct told {
    int count;
    dw_end end;
    int64_t ids[MADE];
    float logprobs[MADE], margins[MADE];   /* margin: how much the likeliest is before the next one; 0 where it was not asked for */
    char message[400];
} told;

typedef struct asked { dw_request requests[TEXTS]; int64_t ids[TEXTS][LONGEST]; } asked;

/* Greedy ones and drawn ones, with all that a request may ask for; some begin alike. */
void texts_ask(asked *a, int64_t vocabulary, uint64_t seed);
/* Steps by hand until all is done; the requests come some at a time. Returns the status of what failed. */
dw_status texts_serve(dw_context *context, dw_service *service, const dw_request *requests, int count, told *all);
/* Notes the next events of the requests of these numbers, and says how many there were. */
int texts_poll(dw_service *service, const uint64_t *numbers, told *all);
int texts_ended(const told *all, int count);
/* Below count. */
uint64_t texts_draw(uint64_t *random, uint64_t count);

#endif
