/* The trainer: a graph with a loss becomes programs that compute gradients, add them up and update parameters; checkpoints; and models of what was trained. It derives no gradient (src/pass/gradient) and
 * runs nothing itself (the engine does). */
#ifndef TRAIN_TRAIN_H
#define TRAIN_TRAIN_H

#include "deepwell/tensors.h"
#include "deepwell/train.h"
#include "engine/engine.h"
#include "pass/pass.h"

/* Names of what the programs are given and give, beside what the graph has. */
#define TRAIN_RATE "train.rate"          /* f32[] */
#define TRAIN_STEP "train.step"          /* i64[]: 1 for the first */
#define TRAIN_FACTOR "train.factor"      /* f32[]: what gradients are multiplied by before they are looked at */
#define TRAIN_SCALE "train.loss_scale"   /* f32[]: the loss is multiplied by it; there only where losses are scaled */
#define TRAIN_NORM "train.norm"          /* f32[] */
#define TRAIN_RECOMPUTE "cheap"          /* where nothing was asked for */
#define TRAIN_GRADIENT "grad."           /* a gradient, or the state that gradients are added up in, is this and the parameter's name */

/* ---- rules.c: which optimiser a parameter has ---- */

enum { TRAIN_SETTINGS = 8 };

typedef struct train_emitter train_emitter;
typedef struct train_rule train_rule;

typedef struct train_optimizer {
    const char *name, *settings, *meaning;
    bool matrices;                       /* it takes parameters of two axes alone */
    dw_status (*emit)(train_emitter *emitter, const train_rule *rule, bool decayed, ir_value *param, ir_value *gradient);
} train_optimizer;

struct train_rule {
    const train_optimizer *optimizer;    /* NULL: gradients are the caller's */
    const char *patterns;                /* NULL: all parameters */
    int count;
    struct { const char *name; double value; } settings[TRAIN_SETTINGS];
};
typedef struct train_rules { int count; train_rule *items; } train_rules;

/* In the arena; NULL words: adamw. SYNTAX, NOT_FOUND and INVALID say where. */
dw_status train_rules_parse(arena *arena, const char *words, train_rules *rules);
/* The last one that takes the parameter; NOT_FOUND: none does. */
dw_status train_rule_of(dw_context *context, const train_rules *rules, const char *name, const op_type *type, const train_rule **rule);

/* ---- optimizers.c ---- */

const train_optimizer *train_optimizer_get(int index);   /* NULL beyond the last */
double train_setting(const train_rule *rule, const char *name);

enum { TRAIN_UPDATED = 15, TRAIN_SUMMED = 31 };   /* as many as one adamw, and one accumulate, take */

/* Parameters that one op is going to update, of one optimiser with the same settings. */
typedef struct train_pending {
    const train_rule *rule;
    bool decayed;
    int count;
    ir_value *params[TRAIN_UPDATED], *m[TRAIN_UPDATED], *v[TRAIN_UPDATED], *gradients[TRAIN_UPDATED];
    struct train_pending *next;
} train_pending;

/* What optimisers are emitted with. scale: gradients times this are clipped means; NaN where nothing may change. */
struct train_emitter {
    ir_graph *graph;
    ir_value *rate, *step, *scale, *may_change;   /* may_change: bool [] */
    train_pending *pending;
};

/* Behind the last parameter: the ops that are still to come. */
dw_status train_emit_pending(train_emitter *emitter);

/* ---- chunks.c: parts of logits ---- */

typedef struct train_chunks {
    int count;                   /* of parts; 1: whole */
    int64_t rows, cols;          /* of the largest logits at the sizes of the options; 0: there is no cross entropy */
    double bytes;                /* of these and their gradient as a whole */
    int multiple;                /* of columns; 1: as they are */
} train_chunks;
/* As options.chunks says, else by size; columns by the device. graph has its loss. */
bool train_is_on_cpu(const dw_trainer_options *options);
dw_status train_choose_chunks(const ir_graph *graph, const dw_trainer_options *options, train_chunks *chosen);

/* ---- build.c: graphs ---- */

typedef struct train_graphs {
    ir_graph *micro;             /* gradients of a micro-batch, and the update in the same run where a step is one micro-batch */
    ir_graph *update;            /* else the update; NULL: it is in micro, or the caller's */
    const char *loss;            /* the output's name */
    bool has_norm;               /* micro has the output TRAIN_NORM */
    bool sums;                   /* gradients are states of micro */
    bool weighs;                 /* its loss is multiplied by TRAIN_FACTOR before gradients are taken */
    double loss_scale;           /* the first; 0: losses are not scaled */
    train_chunks chunks;
} train_graphs;

/* source stays as it is and outlives what is made; masters: where weights of f32 masters go. */
dw_status train_build(const ir_graph *source, const dw_trainer_options *options, const train_rules *rules, ir_weights *masters, train_graphs *graphs);

/* trainer.c: INVALID for numbers that are none; fills in what was left out, but for dims. */
dw_status train_check_options(dw_context *context, dw_trainer_options *options);

/* ---- the trainer ---- */

struct dw_trainer {
    dw_context *context;
    arena arena;
    dw_trainer_options options;
    train_rules rules;
    ir_graph *source;            /* as the caller gave it */
    ir_weights *masters;
    ir_graph *watched;           /* micro's, for the CPU, where the device is another; else NULL */
    dw_model *micro_model, *update_model;
    dw_session *micro, *update;  /* update NULL: micro does it all, or the caller does */
    const char *loss;
    bool has_norm, sums;
    uint64_t hash;               /* of source */
    int accumulate, done;        /* micro-batches of a step; of this one so far */
    double sum;                  /* of its losses */
    int64_t step, calls;         /* updates; micro-batches that were not raised for */
    double loss_scale;           /* 0: none */
    int64_t good;                /* steps since it has changed */
    bool torn;                   /* parameters are of no step: some were updated, and others not */
};

/* trainer.c: a tensor that it keeps, and where. index: 0 to train_count - 1 */
typedef struct train_kept { dw_session *session; int index; dw_named_tensor state; } train_kept;
int train_count(const dw_trainer *trainer);
dw_status train_at(const dw_trainer *trainer, int index, train_kept *kept);
dw_status train_find(const dw_trainer *trainer, const char *name, train_kept *kept);

/* blame.c: INVALID for a number that is not finite in a run on these inputs: names the input, or the first op whose result is not finite, and its module. */
dw_status train_blame(dw_trainer *trainer, int input_count, const dw_named_tensor *inputs);
/* inputs.c: scalars that are given to a run, and what comes of it. */
typedef struct train_exchange {
    float rate, factor, scale;
    int64_t step, draw[2];       /* draw: the seed, and which micro-batch it is */
    double loss[1];              /* in the loss's format */
    float norm;
} train_exchange;
/* The caller's inputs with the trainer's own behind them, in the arena; those that the session's runs read. */
dw_status train_gather(const dw_trainer *trainer, arena *arena, const dw_session *session, int given, const dw_named_tensor *inputs, train_exchange *x, int *count, dw_named_tensor **all);
/* step.c */
/* INVALID within a step, and where parameters are torn; what: "is saved". */
dw_status train_check_between(const dw_trainer *trainer, const char *what);

#endif
