/* A service of generation: requests come from any thread and go as they end, new tokens of all texts go through one run after another, and texts that begin alike share the cache of their
 * beginning. What a text gets does not depend on who runs beside it: on the CPU not one bit. */
#ifndef DEEPWELL_SERVE_H
#define DEEPWELL_SERVE_H

#include "deepwell/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_service dw_service;

enum dw_service_flags {
    DW_SERVICE_NO_SHARING = 1,   /* no text reads what another one brought into the cache */
    DW_SERVICE_NO_LOOKAHEAD = 2, /* on a GPU no run is started before the ids of the one in front of it are here */
    DW_SERVICE_TIMES_DEVICE = 4  /* the facts say how long a GPU works, by its own clock: one or two marks more in each run. UNSUPPORTED on a simulated GPU, which has no clock */
};

/* Zero-initialise, then set what matters. */
typedef struct dw_service_options {
    int64_t rows;               /* texts at work at a time; 0: 16. A model whose step cannot tell texts apart, or that has none, does one after another: the facts say why */
    int64_t run_tokens;         /* the most new tokens of a run, of all texts; 0: 512 */
    int64_t context;            /* tokens that a text may have, prompt included; 0: as many as the model and the cache take, 8192 at most */
    int64_t page_tokens;        /* tokens of a page of the cache: 16, 32, 64 or 128; 0: 64 */
    uint64_t cache_bytes;       /* of all pages, over ranks of each one's part of them; 0: 0.9 of what a GPU has left, and on a CPU 2 GiB, but no more than twice what all rows at their longest need */
    int queue;                  /* requests that are known at most: those that wait, are at work, or have ended and were not polled; 0: 1024 */
    const char *dims;           /* the largest sizes of an encoder's inputs, "enc=512" */
    unsigned flags;             /* of dw_service_flags */
} dw_service_options;

/* Zero-initialise, then set what matters. All that it points to is copied by dw_service_submit. */
typedef struct dw_request {
    int64_t count;              /* of the prompt, at least 1 */
    const int64_t *ids;
    int64_t tokens;             /* how many are made at most, at least 1 */
    double temperature;         /* 0: greedy */
    int top_k;                  /* 0: all */
    double top_p;               /* 0: all */
    double min_p;               /* keeps what is at least so likely beside the likeliest; 0: all */
    double repetition;          /* logits of ids of the prompt and of those that were made are divided by it where positive, else multiplied; 0 or 1: none */
    double presence, frequency; /* taken off the logits of ids that were made: once, and for each time; 0: none */
    const int64_t *bias_ids;    /* bias is added to the logits of these; -inf: never */
    const float *bias;
    int bias_count;
    /* Which ids may be next: a bit for each (id i is bit i % 32 of bits[i / 32]), all set when it is called. last_id: the token before it, -1 in front of the first. In the service's loop, once for each token. Non-zero, or no bit: the
     * text ends with DW_END_MASK. NULL: all may. */
    int (*mask)(void *user, int64_t last_id, uint32_t *bits);
    void *user;
    int logprobs;               /* non-zero: tokens come with the logarithm of their probability, by the logits as they come from the model */
    int top_logprobs;           /* and with those of so many of the likeliest */
    uint64_t seed;
    const int64_t *stop_ids;    /* the text ends after one of these */
    int stop_count;
    int priority;               /* larger ones go first, and are the last that give their pages back */
    double deadline_s;          /* seconds from now; 0: none */
    uint64_t salt;              /* texts of other salts share nothing: one for each tenant, where one may not learn by the time that it takes what another one asked */
    const dw_named_tensor *inputs;   /* those besides the prompt, an encoder's: by name, contiguous, one row */
    int input_count;
} dw_request;

/* Why a text ended: DW_END_NONE, DW_END_LENGTH, .. (end.def). */
typedef enum dw_end {
#define DW_END(name, meaning) DW_END_##name,
#include "deepwell/end.def"
#undef DW_END
    DW_END_COUNT
} dw_end;
DW_API const char *dw_end_name(dw_end end);
DW_API const char *dw_end_meaning(dw_end end);

/* A token, the end of a text, or both. */
typedef struct dw_event {
    uint64_t request;
    int64_t id;                 /* -1: no token, the end alone */
    int64_t index;              /* which of those that were made, from 0 */
    dw_end end;                 /* DW_END_NONE: more will come */
    int64_t cached;             /* tokens of the prompt that were in the cache already */
    float logprob;              /* NaN where none was asked for */
    int top_count;
    const int64_t *top_ids;     /* [top_count], the likeliest first; until the next poll */
    const float *top_logprobs;
    const char *message;        /* of DW_END_FAULT: the error; else NULL. Until the next poll */
} dw_event;

/* Counters since the service was made, and what is there now. A page is used by a text, idle (known for what it holds, and taken when none is free), or free. */
typedef struct dw_service_facts {
    int64_t waiting, running;
    int64_t submitted, ended, cancelled, faults, preemptions;
    int64_t pages, pages_used, pages_idle, pages_free, pages_shared;   /* shared: in several texts */
    int64_t pages_released;                                            /* that fell behind a window */
    int64_t prefix_hits, prefix_tokens;                                /* texts that found a beginning of theirs, and the tokens that were not read again */
    int64_t read_tokens, made_tokens, runs;
    double run_s_median, run_s_90, run_s_99, run_s_most;               /* of the last 1024 runs */
    double host_s, wait_s;                                             /* of all steps together: what the host worked, and what it waited for a device */
    double device_s;                                                   /* with DW_SERVICE_TIMES_DEVICE: what a GPU worked, by events in front of each run that has come and behind it; runs follow each other, so no second counts twice. Else 0 */
    int64_t waited_runs;                                               /* the runs of a device that the host waited for: their next one was there before they ended */
    int64_t vocabulary;                                                /* ids that there are; a mask has a bit for each */
    const char *alone;                                                 /* why texts go one after another, or share no pages; NULL: they do neither. As long as the service */
} dw_service_facts;

/* Weights are updated (dw_model_update) between two steps, or while the service is stopped: texts at work go on with the new ones, and what is in the cache is shared no further.
 *
 * A service has contexts of its own, with context's allocator, log and threads; context itself takes the messages of this call alone. The model outlives the service, and context does where threads are
 * borrowed from it. On a GPU the first service plans a step whose caches are pages, and adds it to the model. Calls name the context of the thread that makes them: it takes the message. On failure *service is NULL. INVALID: the model was opened without DW_MODEL_GENERATE. Over ranks all of them call it, and where
 * one fails all do. MISMATCH: their options differ. UNSUPPORTED: the model has collectives over another axis than tp. */
DW_API dw_status dw_service_create(dw_context *context, dw_model *model, const dw_service_options *options, dw_service **service);
/* Stops it, and forgets all requests. NULL is allowed. Of the rank that leads others: they wait no more. */
DW_API void dw_service_destroy(dw_service *service);

/* From any thread. INVALID or LIMIT: no such text can be made, or the queue is full; nobody else notices. *request names it from then on, and is never 0. */
DW_API dw_status dw_service_submit(dw_context *context, dw_service *service, const dw_request *asked, uint64_t *request);
/* From any thread. The text's pages are free before the next run; its last event says DW_END_CANCELLED, unless it had ended by then. NOT_FOUND: there is no such request, or its end was polled. */
DW_API dw_status dw_service_cancel(dw_context *context, dw_service *service, uint64_t request);

/* One run, in this thread: for programs with a loop of their own. *busy 0: nothing is to be done. On a GPU the step after it tells what a run made, as that one is started first. INVALID while the service runs by itself. Another failure is the device's, and no text's. */
DW_API dw_status dw_service_step(dw_context *context, dw_service *service, int *busy);
/* Or: runs by itself, in a thread of its own. */
DW_API dw_status dw_service_start(dw_context *context, dw_service *service);
/* No more requests are taken; those that are there get so many seconds to end, the rest ends with DW_END_STOPPED. Returns when the thread has. The status is that of the run that failed, if one did.
 * dw_service_start may follow. */
DW_API dw_status dw_service_stop(dw_context *context, dw_service *service, double drain_s);

/* Of a model that is cut over ranks (dw_model_options.comm) all ranks create a service, with the same options, and destroy it. The first one along the axis tp leads: requests, steps, start and stop are its alone (INVALID elsewhere).
 * The others call this, once between each start of the leader's and the stop that ends it, or once for all of its steps. It does in this thread what the leader tells it of each run, and returns when the leader has stopped or destroyed its
 * service: OK; LOST, with the rank, the op and the layer, when a rank is gone or did not come within the communicator's timeout; the status of an error of this rank, of which the others could not learn; CANCELLED, if the context is: then the others lose this rank. What fails in one run, on
 * whatever rank, is the error of texts of that run, and this goes on. A rank that leads and has nothing to do tells so by itself while it runs in a thread; who steps it by hand does so more often than the timeout.
 * After LOST texts end with DW_END_FAULT and the words, and so does the service: make a new communicator, on all ranks.
 * Meanwhile the communicator is the service's: a caller's engine is called in the thread of the leader's loop, and in this one. Along dp each line of ranks has a service of its own. Weights are updated on all ranks, while the
 * service is stopped. INVALID: this rank leads, or is alone. */
DW_API dw_status dw_service_follow(dw_context *context, dw_service *service);
/* Does this rank lead, or is it alone? 0: it follows. */
DW_API int dw_service_leads(const dw_service *service);

/* From any thread: takes events, at most `room`, and says how many. Each request's come in order; DW_END_NONE is not the last. */
DW_API int dw_service_poll(dw_service *service, dw_event *events, int room);
/* A file descriptor that is readable while there are events; the service's own: to be waited for, not read. */
DW_API int dw_service_fd(const dw_service *service);

/* From any thread. */
DW_API void dw_service_measure(dw_service *service, dw_service_facts *facts);
/* The same as one JSON object. */
DW_API dw_status dw_service_print(dw_context *context, dw_service *service, dw_sink sink, void *user);

#ifdef __cplusplus
}
#endif
#endif
