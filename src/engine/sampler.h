/* Tokens from rows of logits, by the op sample: what one run asks for is gathered row by row and made in one call, on the host, or on a device behind the run that makes the logits there. */
#ifndef ENGINE_SAMPLER_H
#define ENGINE_SAMPLER_H

#include "device/device.h"
#include "kernel/kernel.h"

typedef enum sampler_table { SAMPLER_COUNTS, SAMPLER_BIAS, SAMPLER_MASK, SAMPLER_TABLES } sampler_table;
enum { SAMPLER_ON_DEVICE = SAMPLER_MASK,  /* the tables in front of it may be on a device */
       SAMPLER_TOLD = 20 };               /* likeliest tokens that draws on a device tell at most */

/* What draws on a device made, in pinned memory of the host. logs NULL: there were none. best_ids and best_logs: [rows,length] */
typedef struct sampler_made { const int64_t *best_ids; const float *logs, *best_logs; int64_t length; } sampler_made;

/* All of it belongs to the context that made it. */
typedef struct engine_sampler {
    dw_context *context;
    const kernel_row *kernel;
    chip_caps chip;
    int64_t vocabulary, rows, texts;  /* rows of logits of a run at most; rows of counts, bias and mask */
    dw_format format;                 /* of the logits */
    bool invariant;                   /* how a device divides a row does not follow from the number of rows */
    int64_t length;                   /* how many of the likeliest are told; 0: none */
    /* Of each row that is asked for: */
    float *settings;
    int64_t *draws, *text;
    /* of each text, NULL until somebody wants them: i32[texts,vocabulary], f32[texts,vocabulary], i32[texts,ceil(vocabulary/32)]. Zeros when they are made, masks all ones */
    void *tables[SAMPLER_TABLES];
    /* and what came of the last run: */
    int64_t *ids, *best_ids;          /* [rows], [rows,length] */
    float *logs, *best_logs;
    void *memory, *best_memory, *workspace;
    size_t bytes, best_bytes, workspace_bytes;
    /* On a device, which is the session's: tables that somebody wanted there, and of each text whether its row of one is what the host has, or follows from that. NULL */
    device *device;
    void *there[SAMPLER_ON_DEVICE];
    bool *is_there[SAMPLER_ON_DEVICE];    /* [texts] */
} engine_sampler;

/* device: where draws may be made besides the host; NULL: nowhere. */
dw_status engine_sampler_create(dw_context *context, device *device, int64_t vocabulary, dw_format format, int64_t rows, int64_t texts, engine_sampler **sampler);
void engine_sampler_destroy(engine_sampler *sampler);    /* NULL is allowed */
uint64_t engine_sampler_bytes(const engine_sampler *sampler);
/* Makes the table, if it is not there yet. */
dw_status engine_sampler_use(engine_sampler *sampler, sampler_table table);
/* Runs from now on tell so many of the likeliest; no more than the vocabulary has. */
dw_status engine_sampler_tell(engine_sampler *sampler, int64_t length);
/* Row row of the next run. text: its row of the tables that are there; -1: it reads none. */
void engine_sampler_ask(engine_sampler *sampler, int64_t row, const sampling_settings *settings, uint64_t seed, uint64_t draw, int64_t text);
/* Settings of what a caller asks for, whose numbers are in range: temperatures that fp32 does not hold are its largest, or 0. */
sampling_settings engine_sampler_settings(double temperature, int top_k, double top_p);
/* Tokens of rows 0 to count - 1, all of which were asked for. ids may be below 0: such a row has none. */
dw_status engine_sampler_run(engine_sampler *sampler, const void *logits, int64_t count);
/* Bytes that draws of all rows on a device want there, and pinned on the host. */
size_t engine_sampler_device_bytes(const engine_sampler *sampler);
/* What was asked of rows 0 to count - 1, in `host`, pinned, and where it has to be on the device before their tokens are started. */
void engine_sampler_send(const engine_sampler *sampler, int64_t count, void *there, void *host, kernel_piece *piece);
/* Room on the device for counts or biases, if there is none yet: made when the first text asks for them, as most services never need it. LIMIT: it has not as much, with the bytes. */
dw_status engine_sampler_place(engine_sampler *sampler, sampler_table table);
/* The text's rows of them are on the device as the host has them, or as draws there have changed that since. */
dw_status engine_sampler_bring(engine_sampler *sampler, int64_t text);
/* They are not any more: the host has changed its row of a text, or of all (-1). */
void engine_sampler_changed(engine_sampler *sampler, int64_t text);
/* Starts the tokens of rows 0 to count - 1 of logits on the device, with what was brought, whose counts follow; without masks: ids go to `ids` there, the rest to *made, in `host`, once the caller has brought the
 * pieces, *back_count of them, SAMPLER_PIECES at most, and those are waited for. */
enum { SAMPLER_PIECES = 3 };
dw_status engine_sampler_launch(const engine_sampler *sampler, const void *logits, int64_t count, void *ids, void *there, void *host, sampler_made *made, kernel_piece *back, int *back_count);
/* INVALID says why a row has no token; DW_OK of an id of 0 or more. */
dw_status engine_sampler_check(dw_context *context, int64_t id);

#endif
