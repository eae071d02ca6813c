/* What was asked of a service, and what came of it: all of it in one piece of memory, taken when it is submitted, so that no run fails for lack of it. */
#ifndef SERVE_REQUEST_H
#define SERVE_REQUEST_H

#include "serve/scheduler.h"

enum { REQUEST_MESSAGE = 512 };

typedef struct request {
    serve_text text;
    uint64_t id;
    size_t bytes;                /* of it and all that it points to */
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

/* One behind the other; a request is in one of them at most. */
typedef struct requests { request *first, *last; } requests;

void requests_add(requests *list, request *request);
request *requests_take(requests *list);   /* the first; NULL if there is none */

/* What the scheduler is to make; it points into what was asked. */
serve_text request_text(const dw_request *asked);
dw_status request_check(dw_context *context, const dw_session *session, const dw_request *asked, const serve_text *text);
/* A copy of text, and of all that it points to, with room for what will come of it. */
dw_status request_create(dw_context *context, const dw_request *asked, const serve_text *text, request **made);
void request_destroy(dw_context *context, request *request);

/* What was drawn last becomes that of the token made last. */
void request_keep_drawn(request *request);
/* The next event of the request; *last: it has no further one now. */
dw_event request_event(request *request, bool *last);

#endif
