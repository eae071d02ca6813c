/* Texts at work on one session: which of them has how many new tokens in the next run, who gets pages, who waits. For one thread; requests of many come by service.h. */
#ifndef SERVE_SCHEDULER_H
#define SERVE_SCHEDULER_H

#include "deepwell/serve.h"
#include "engine/engine.h"
#include "serve/orders.h"
#include "serve/pages.h"

/* How a text's tokens are made; as dw_request says. */
typedef struct serve_draws {
    double temperature, top_p, min_p, repetition, presence, frequency;
    int top_k, top_logprobs;
    bool logprobs;
    uint64_t seed;
    const int64_t *bias_ids;
    const float *bias;
    int bias_count;
    int (*mask)(void *user, int64_t last_id, uint32_t *bits);
    void *user;
} serve_draws;

/* What came of a draw; until the next one. */
typedef struct serve_drawn {
    int64_t id;
    float logprob;
    int top_count;
    const int64_t *top_ids;
    const float *top_logprobs;
} serve_drawn;

/* A text. Its memory, and what it points to, is the caller's, until it has ended. */
typedef struct serve_text {
    /* given */
    int64_t count, tokens;              /* of the prompt, and how many are made at most */
    int64_t *ids;                       /* [count + tokens]: the prompt, and behind it what was made */
    int priority;                       /* larger ones come first */
    double deadline;                    /* by base_now; 0: none */
    pages_key key;
    serve_draws draws;
    const int64_t *stop_ids;
    int stop_count;
    const dw_named_tensor *inputs;
    int input_count;
    void *user;                         /* the caller's own */
    /* the scheduler's */
    int64_t made, cached;               /* how many were made; how many tokens of the prompt were there already */
    int64_t row;                        /* -1: it waits */
    uint64_t serial;
    dw_end end;                         /* DW_END_NONE: it goes on */
    dw_status status;                   /* of DW_END_FAULT; the context has its message while `changed` is called */
    serve_drawn drawn;                  /* of its last token */
    bool is_refused;                    /* its mask wants no token */
    int64_t masked;                     /* tokens that its mask was asked for */
    int64_t flying;                     /* tokens of it that are on their way (ahead.c) */
    bool was_read;                      /* the prompt was in once: what comes again was preempted */
    struct serve_text *before, *after;  /* in order, among those that wait */
} serve_text;

/* Something came of a text: a token, the last of its ids (id), or its end, or both; id -1: no token. Non-zero ends a text that goes on. One that has ended is not read any more. */
typedef int (*serve_changed)(void *user, serve_text *text, int64_t id);

typedef struct scheduler_options {
    serve_changed changed;
    void *user;
    orders *orders;                     /* to other ranks, by who leads them; NULL: there are none, or all call alike */
    bool alone;                         /* texts share no pages */
    bool fails_whole;                   /* a text's fault is the step's */
    bool waits;                         /* for each run: none is started before the ids of the one in front of it are here */
    bool together;                      /* encoders of all texts that find a row run before the next run; else one does, so that texts at work do not wait for many */
} scheduler_options;

enum { SCHEDULER_TIMES = 1024 };        /* runs whose times are kept */

/* A text in a run that is on its way: as it was before; NULL: it has ended since. is_guessed: it goes on with a token that nobody knows yet. */
typedef struct scheduler_flown { serve_text *text; int64_t count, past, length, picked; bool is_guessed; } scheduler_flown;
typedef struct scheduler_flight { bool is_up, is_prompt; double begin; int64_t count; scheduler_flown *of; } scheduler_flight;

typedef struct scheduler {
    dw_session *session;
    generation *g;
    arena arena;
    scheduler_options options;
    pages *pages;                       /* NULL: caches are no pages */
    serve_text **rows;                  /* [texts], by row; NULL: free */
    serve_text **order;                 /* [texts], those at work, first first; filled by each step */
    int64_t *counts;                    /* [texts] */
    int64_t running;
    serve_text *first, *last;           /* of those that wait */
    int64_t waiting;
    uint64_t serial;
    bool looks_ahead;                   /* runs may be on their way: */
    scheduler_flight flights[ENGINE_FLIGHTS];
    int next_flight;                    /* the one that is free, or the older one */
    double landed;                      /* when the last one came */
    uint64_t updates;                   /* of the model's weights, that were noticed */
    bool is_prompt;                     /* the run that is planned reads some of a prompt for the first time */
    bool prompts_turn;                  /* it has prompts alone, and texts that lack a token come next */
    double counted, spent[2];           /* seconds until there was what came of runs, [1] of those that read prompts; up to when they are counted */
    double run_s;                       /* what it took */
    dw_service_facts facts;             /* counters; pages and texts are counted when they are asked for */
    float times[SCHEDULER_TIMES];
} scheduler;

dw_status scheduler_create(dw_session *session, const scheduler_options *options, scheduler *made);
void scheduler_destroy(scheduler *scheduler);
/* Texts that are there are forgotten, without a word, and so is what pages hold. */
void scheduler_clear(scheduler *scheduler);

/* INVALID or LIMIT: no such text can be made, with the number and its limit. Reads nothing that changes: from any thread, whose context is given. */
dw_status scheduler_check(dw_context *context, const dw_session *session, const serve_text *text);
/* The text waits. */
void scheduler_add(scheduler *scheduler, serve_text *text);
/* The text ends; its pages are free. `changed` is called. */
void scheduler_end(scheduler *scheduler, serve_text *text, dw_end end);
/* One run, of what is there; *busy is false where there is nothing. A failure is the device's, and no text's; with fails_whole it may be a text's. */
dw_status scheduler_step(scheduler *scheduler, bool *busy);
void scheduler_count(const scheduler *scheduler, dw_service_facts *facts);

/* service.c: that of a service which nobody runs just now, for those who check what it holds. */
const scheduler *service_scheduler(const dw_service *service);

/* token.c */
/* The text's next token is text->drawn; is_guessed: its place was counted already. */
dw_status scheduler_add_token(scheduler *scheduler, serve_text *text, bool is_guessed);
/* What came of a run is there, which took so many seconds. */
void scheduler_note_time(scheduler *scheduler, double seconds, bool is_prompt);

/* ahead.c */
/* Can the run that is planned be started without a look at the one before? */
bool scheduler_can_look_ahead(const scheduler *scheduler);
/* Starts the run that is planned, and takes what came of the one before. Where one fails none is under way any more, and texts are as before them. */
dw_status scheduler_run_ahead(scheduler *scheduler);
/* Takes what comes of all runs under way. */
dw_status scheduler_drain(scheduler *scheduler);

/* draw.c */
dw_status scheduler_check_draws(dw_context *context, const serve_draws *draws, int64_t vocabulary);
/* The text has its row. */
dw_status scheduler_begin_draws(scheduler *scheduler, const serve_text *text);
/* Does a text of the run that is planned read its logits? */
bool scheduler_reads_logits(const scheduler *scheduler);
/* Does a text of the run that is planned need what only the host has: a mask, or more of the likeliest ids than a device tells? */
bool scheduler_needs_host(const scheduler *scheduler);
/* Of a run that is prepared, on a device: what each of so many rows of the logits is drawn by. *any false: all take the likeliest, as the step does. */
dw_status scheduler_ask_device(scheduler *scheduler, int64_t ends, bool *any);
/* Behind a run: text->drawn of all that have a row of the logits. */
dw_status scheduler_draw(scheduler *scheduler);
/* Why it has no token; text->status and the context's message, of DW_END_FAULT. DW_END_NONE: it has one. */
dw_end scheduler_refuse(scheduler *scheduler, serve_text *text);
/* The text has this token. */
void scheduler_count_token(scheduler *scheduler, const serve_text *text);

/* plan.c: how many new tokens each text at work has in the next run. Takes texts in, and lets others wait again. false: none has any. */
dw_status scheduler_plan(scheduler *scheduler, bool *any);
bool scheduler_is_under_way(const scheduler *scheduler);
/* The text has ended: what is under way of it is dropped. */
void scheduler_forget(scheduler *scheduler, const serve_text *text);
/* Has any text new tokens in the run that is planned? */
bool scheduler_any_planned(const scheduler *scheduler);
/* The text leaves its row. */
void scheduler_leave(scheduler *scheduler, serve_text *text);

#endif
