/* Training: a trainer derives gradients of a graph's loss, runs them with an optimiser as plans of the engine, and keeps parameters, moments and its place. Parameters in bf16 and f16 have masters
 * in f32, which the optimiser changes. The same bits from run to run, at any number of threads, and after a resume. */
#ifndef DEEPWELL_TRAIN_H
#define DEEPWELL_TRAIN_H

#include "deepwell/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_trainer dw_trainer;

enum dw_trainer_flags {
    DW_TRAINER_RAISE = 1,       /* a loss or gradient that is not finite is an error that names the first op whose result is not; else the update is left out, and counted */
    DW_TRAINER_VERIFY = 2       /* check the graphs' invariants after every pass */
};

/* Zero-initialise, then set what matters. Strings are copied. */
typedef struct dw_trainer_options {
    const char *loss;           /* the output that is made small, a floating-point scalar; NULL: the only such output. "next-token": the mean cross entropy of the logits [..,v], which are the only
                                 * floating-point output, at the ids in an input of its own, labels i64[..]; labels below 0 do not count */
    const char *trained;        /* patterns over names of parameters, comma separated ('*', '?'); NULL: every floating-point parameter that is no buffer */
    const char *optimizer;      /* "adamw(beta1=0.9,beta2=0.95,decay=0.1)"; several, separated by ';', each for parameters by name: "adamw; muon for blocks.*": the last that takes the parameter.
                                 * "none": gradients are for the caller, who changes parameters by dw_trainer_write. NULL: adamw. docs/train.md has all, with their settings */
    const char *decayed;        /* patterns: parameters that decay takes from; NULL: those of two axes and more, so biases and the weights of norms are left alone */
    double clip;                /* the largest norm of all gradients together: larger ones are scaled down to it; 0: none */
    int accumulate;             /* micro-batches of a step, of as many calls: the update is of the mean of their gradients; 0: 1 */
    double loss_scale;          /* gradients are computed of the loss times this and divided by it; it is halved where they are not finite, and doubled after 2000 steps where they were.
                                 * 0: 65536 where a trained parameter is f16, else none */
    uint64_t seed;              /* of what the graph draws (dropout) */
    const char *recompute;      /* what of the forward part is made again for gradients instead of being kept, as in dw_gradient_options; NULL: cheap. The bits of a step are the same whatever it is */
    int chunks;                 /* parts of the rows in which logits that only a cross entropy reads are computed, as in dw_gradient_options; 1: whole; 0: parts of 1024 rows and more where logits and their
                                 * gradient take more than 256 MiB at the sizes in dims */
    const char *precision, *policy, *device, *dims, *kernels;   /* as in dw_model_options; dims: the largest sizes, which grow as inputs do */
    unsigned flags;             /* of dw_trainer_flags */
} dw_trainer_options;

typedef struct dw_train_result {
    double loss;                /* of this micro-batch */
    double mean_loss;           /* of those of the step so far */
    int updated;                /* it was the step's last one: parameters have changed, unless */
    int skipped;                /* its loss or norm was not finite: nothing has changed. Then and only then, and where there was an update, */
    double norm;                /* of all gradients of the step, before clipping; of "none" too */
    int64_t step;               /* updates so far, those that were skipped not counted */
} dw_train_result;

/* Takes the graph over, also on failure. A graph that has outputs grad.<state> already is trained as it is. */
DW_API dw_status dw_trainer_create(dw_context *context, dw_graph *graph, const dw_trainer_options *options, dw_trainer **trainer);
DW_API void dw_trainer_destroy(dw_trainer *trainer);                                       /* NULL is allowed */
/* One micro-batch, inputs by name, contiguous, of any sizes; every options.accumulate-th call updates, at that rate. INVALID, with DW_TRAINER_RAISE: a number is not finite; parameters are as
 * they were, and the step begins anew. result may be NULL. */
DW_API dw_status dw_trainer_step(dw_trainer *trainer, int input_count, const dw_named_tensor *inputs, double rate, dw_train_result *result);
/* The loss on these inputs, as dw_trainer_step computes it; nothing changes, but for gradients that are kept, where these are not finite. INVALID between the micro-batches of a step. */
DW_API dw_status dw_trainer_loss(dw_trainer *trainer, int input_count, const dw_named_tensor *inputs, double *loss);

/* What it keeps between steps: parameters and what its graph changes under their names, "adamw.m.<parameter>" and the like, and "grad.<parameter>" where gradients are kept: of the last step, with
 * the optimiser "none", divided by the number of micro-batches and not clipped. Shapes have no data. NOT_FOUND, MISMATCH: bytes are not those of the tensor. */
DW_API int dw_trainer_tensor_count(const dw_trainer *trainer);
DW_API dw_status dw_trainer_tensor_at(const dw_trainer *trainer, int index, dw_named_tensor *tensor);
DW_API dw_status dw_trainer_read(dw_trainer *trainer, const char *name, void *data, size_t bytes);
DW_API dw_status dw_trainer_write(dw_trainer *trainer, const char *name, const void *data, size_t bytes);

/* All that a run goes on from, as safetensors: what it keeps, its step and seed, and place, a number of the caller's, as of the data. The file appears whole or not at all. INVALID between the
 * micro-batches of a step. */
DW_API dw_status dw_trainer_save(dw_trainer *trainer, const char *file, int64_t place);
/* MISMATCH: of another graph, or of other parameters or optimisers; the trainer is as it was then. place may be NULL. */
DW_API dw_status dw_trainer_resume(dw_trainer *trainer, const char *file, int64_t *place);
/* That of the options, or of the checkpoint that it went on from. */
DW_API uint64_t dw_trainer_seed(const dw_trainer *trainer);
/* The parameters that are trained, as safetensors under the names and in the formats of the export. */
DW_API dw_status dw_trainer_export(dw_trainer *trainer, const char *file);
/* A model of the graph that the trainer was made of, with copies of the parameters of now: to run, to generate, to save. What is not trained it reads where the trainer does, which outlives it. */
DW_API dw_status dw_trainer_model(dw_trainer *trainer, const dw_model_options *options, dw_model **model);

/* The plan of a micro-batch, and behind it that of the update where it is one of its own, in their text form. */
DW_API dw_status dw_trainer_print(const dw_trainer *trainer, dw_sink sink, void *user);
/* What a trainer of the graph would do, and nothing is run: its programs by phase (fprop, again, dgrad, wgrad, update) with their kernels and estimates, what is kept for gradients, what is made again, and the
 * memory that a step takes, at the sizes in options.dims. chip: for this one instead of the device's; NULL: none. The graph is taken over, also on failure. options may be NULL. */
DW_API dw_status dw_trainer_explain(dw_context *context, dw_graph *graph, const dw_trainer_options *options, const char *chip, int json, dw_sink sink, void *user);
/* Bytes of what it keeps, and of the workspace of its runs. */
DW_API void dw_trainer_bytes(const dw_trainer *trainer, uint64_t *kept, uint64_t *workspace);

#ifdef __cplusplus
}
#endif
#endif
