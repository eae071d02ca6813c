/* A service over ranks. One of them leads: it has the requests, the pages and the tokens. Before it does anything of a session that ranks do together it orders it, and the others do the same. Where a rank is alone, or all
 * call alike (generation by one call), orders are NULL, and the functions below only do what they order. For the thread of the service's loop. */
#ifndef SERVE_ORDERS_H
#define SERVE_ORDERS_H

#include "engine/engine.h"

typedef struct orders orders;

/* NULL where the session's model is not cut. UNSUPPORTED: its graphs have collectives that others than these ranks take part in. */
dw_status orders_create(dw_session *session, orders **made);
void orders_destroy(orders *orders);
bool orders_lead(const orders *orders);            /* is this the rank that orders, or is there none? */
int orders_leader(const orders *orders);           /* its number among all ranks */
uint64_t orders_room(const orders *orders);        /* bytes of an order */

/* ---- of the rank that leads ---- */

/* The others wait for orders from here on. */
void orders_open(orders *orders);
/* What engine/generation.h has under these names, on all ranks. */
dw_status orders_run(orders *orders, dw_session *session);
dw_status orders_logits(orders *orders, dw_session *session, int64_t first, int64_t count, int64_t most, const void **rows);
dw_status orders_set_inputs(orders *orders, dw_session *session, generation_text *text, int count, const dw_named_tensor *inputs);
dw_status orders_reset(orders *orders, dw_session *session);
/* There is nothing to do. The others are told that this rank is there, where it is time for that. */
dw_status orders_beat(orders *orders);
double orders_beat_s(const orders *orders);        /* how often that has to be; 0: not at all */
/* After an error: false, if the ranks do nothing together any more. */
bool orders_go_on(const orders *orders);
/* The others wait no more. NULL is allowed, and a context that takes no message. */
void orders_close(orders *orders);

/* ---- of the others ---- */

/* Does what is ordered, until no more will come. An error of a run that all have is no error of this. */
dw_status orders_follow(orders *orders);

#endif
