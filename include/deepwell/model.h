/* Models and sessions: open a file, look at it, run it, generate with it, check it, save it.
 * A model is immutable and may be shared by sessions; a session owns its state, its workspace and its position. */
#ifndef DEEPWELL_MODEL_H
#define DEEPWELL_MODEL_H

#include "deepwell/comm.h"
#include "deepwell/device.h"
#include "deepwell/format.h"
#include "deepwell/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_model dw_model;
typedef struct dw_session dw_session;

/* Receives text piece by piece; each piece is NUL-terminated. */
typedef void (*dw_sink)(void *user, const char *text, size_t length);

enum dw_model_flags {
    DW_MODEL_GENERATE = 1,      /* also plan the KV-cached step, where the model can be made incremental */
    DW_MODEL_PLAN_ONLY = 2,     /* plan, but load no weights onto a device: for explaining */
    DW_MODEL_GENERATE_ONLY = 4, /* plan the cached step alone */
    DW_MODEL_VERIFY = 8,        /* check the graph's invariants after every pass */
    DW_MODEL_INVARIANT = 16     /* on a GPU a row of a result depends on what that row is made of alone: a text has the same bits beside any others and in any pieces, as it has on a CPU anyway. explain tells
                                 * what that costs */
};

/* Zero-initialise, then set what matters. Strings are copied. */
typedef struct dw_model_options {
    const char *precision;      /* fp32, bf16, fp8, mxfp8, mxfp4, nvfp4, or a weight-only form such as mxfp8-weights; "fp8 or fp8-weights": by layer what is estimated to be faster (docs/precision.md); NULL: as exported */
    const char *policy;         /* text of a policy (docs/precision.md), first match wins; NULL: none */
    const char *device;         /* "cpu"; NULL: cpu */
    const char *chip;           /* plan for this chip instead of the machine's; needs DW_MODEL_PLAN_ONLY */
    const char *dims;           /* typical sizes for the estimates, "b=1,s=128"; those not named: 1 of a batch, of other axes 128, or what the example of the export had where that is more */
    const char *weights;        /* a safetensors file: weights of a graph in text form; of an archive those that are to have other numbers, as dw_trainer_export writes them */
    const char *kernels;        /* kernels that must be taken: "matmul=matmul_f32_avx2"; such a kernel runs at all sizes, or is refused with the reason */
    const char *tuning;         /* text that dw_tune gave: measured choices among kernels of a GPU; NULL: by estimates. MISMATCH for another chip, driver or build */
    const char *tuning_name;    /* what messages call that text, such as its file; NULL: tuning */
    const char *mesh;           /* of a plan alone (DW_MODEL_PLAN_ONLY) the ranks that it is for: "tp=4"; what runs takes the mesh of its communicator */
    const char *shard;          /* how layers are cut over ranks (docs/ranks.md): lines "pattern = column|row|tokens|heads|vocabulary|experts|whole", and what is asked for all of them, such as "sums = tokens" and "strict"; NULL: all are chosen */
    const dw_registry *registry;/* the caller's kernels; must outlive the model */
    dw_comm *comm;              /* the ranks that run the model together, of which this is one's part; must outlive the model. NULL: one rank. All ranks make the model, and run its sessions alike.
                                 * MISMATCH, on each of them, names the first rank and fact in which they differ: build, options, graph, plan; where the making fails on one, it fails on all */
    unsigned flags;
} dw_model_options;

/* file: a .pt2 archive, a compiled .dw, or a graph in text form, recognised by its first bytes. options may be NULL. Weights that are loaded are held to the file's checksums (CORRUPT names the
 * record): a pass over their bytes. */
DW_API dw_status dw_model_open(dw_context *context, const char *file, const dw_model_options *options, dw_model **model);
/* Takes the graph over, also on failure. */
DW_API dw_status dw_model_create(dw_context *context, dw_graph *graph, const dw_model_options *options, dw_model **model);
/* What DW_MODEL_GENERATE would have added when the model was opened: the plan of the cached step, and of its weights what runs do not have there already. So a model that both runs and generates
 * holds one copy of what both read. Sessions that are there go on, and generate as before; one made afterwards generates by the step. No session is made meanwhile. Whether there is a step now:
 * dw_model_can_generate. Does nothing where generation was asked for before. On failure the model is as it was. */
DW_API dw_status dw_model_add_generation(dw_model *model);
DW_API void dw_model_destroy(dw_model *model);
/* Writes graph, plans and packed weights to one file that dw_model_open maps. Of a model on several ranks all of them call it, and the first writes: what all ranks have once, and of what
 * depends on the rank each one's. The file is opened by as many ranks (MISMATCH says which it is for), each of which maps it and reads its own. */
DW_API dw_status dw_model_save(const dw_model *model, const char *file);

/* What goes in and comes out. shape: "f32[b,s,256]"; both strings live as long as the model. */
DW_API int dw_model_input_count(const dw_model *model);
DW_API int dw_model_output_count(const dw_model *model);
DW_API const char *dw_model_input(const dw_model *model, int index, const char **shape);
DW_API const char *dw_model_output(const dw_model *model, int index, const char **shape);
/* A fact that the file states, such as "tokenizer"; NULL when it does not. */
DW_API const char *dw_model_note(const dw_model *model, const char *name);
/* Can it generate with a cache, one that was made for it or its own? If not, *reason (if not NULL) names the op that prevents it. */
DW_API int dw_model_can_generate(const dw_model *model, const char **reason);
/* Bytes that the model's weights take in the form that runs: each once, whichever of runs and generation read it. */
DW_API uint64_t dw_model_weight_bytes(const dw_model *model);

typedef enum dw_print {
    DW_PRINT_SUMMARY,           /* parameters, operators, inputs, outputs, FLOPs */
    DW_PRINT_CAPTURED,          /* the graph before passes, */
    DW_PRINT_FUSED,             /* after structural fusion, */
    DW_PRINT_GRAPH,             /* in the chosen precision, */
    DW_PRINT_STEP,              /* and its cached step; before it what runs once for each generation, where there is such a part */
    DW_PRINT_PLAN,              /* the plan's text form */
    DW_PRINT_EXPLAIN,           /* every choice with its reason */
    DW_PRINT_MEMORY             /* the workspace, value by value, at the sizes of options.dims */
} dw_print;
/* json: facts as one JSON object, for SUMMARY and EXPLAIN; the others are text whatever json says. */
DW_API dw_status dw_model_print(const dw_model *model, dw_print what, int json, dw_sink sink, void *user);

/* These weights have new values, or lie elsewhere: what was computed from them is computed again, for the runs and generations that begin after it. Names are those that
 * the graph has its weights by, shapes and formats those of before; their memory is borrowed as before, and in the place where dw_graph_program was given them. No session of the model runs meanwhile; a
 * session's state is what it was until it is reset. MISMATCH also for a weight whose values decided how the model was compiled (a mask
 * that became causal attention): compile again. UNSUPPORTED for a compiled file, which has no weights of the caller's. On failure the model is as it was.
 * So what is computed anew lies beside what was there before until all of it is: an update of all weights takes up to as much memory again as dw_model_weight_bytes says. NO_MEMORY: update fewer at a time. */
DW_API dw_status dw_model_update(dw_model *model, int tensor_count, const dw_named_tensor *tensors);

/* Every operator that capture reads. */
DW_API dw_status dw_operators(dw_context *context, int json, dw_sink sink, void *user);
/* Every precision that a policy may give, with the formats of the weight and of the activation, "f32" as exported. */
DW_API dw_status dw_precisions(dw_context *context, int json, dw_sink sink, void *user);
/* The sizes "b=2,s=7" that inputs of these shapes bind, for dw_session_options.dims; LIMIT when they do not fit size bytes. Of a model
 * that was opened for generation only, inputs are those of dw_generate_options. */
DW_API dw_status dw_model_sizes(const dw_model *model, int input_count, const dw_named_tensor *inputs, char *dims, size_t size);

/* ---- sessions ---- */

enum dw_session_flags {
    DW_SESSION_DEVICE_MEMORY = 1    /* of a model for a GPU: all runs are dw_session_enqueue's, so no memory is taken for copies of inputs and outputs */
};

typedef struct dw_session_options {
    const char *dims;           /* the largest sizes of runs: "b=4,s=512"; sizes not named get their typical value */
    int64_t max_tokens;         /* generation: room for each text, prompt included; 0: no generation */
    int64_t rows;               /* generation: texts at work at a time; 0: 1 */
    int64_t chunk;              /* generation: the most new tokens of a run, so that prompts are read piece by piece; 0: 512, and on a GPU up to 8192 (of each text
                                 * 512 where a layer sees a window), as far as the workspace takes an eighth of its memory at most */
    unsigned flags;             /* of dw_session_flags */
} dw_session_options;

/* All memory that runs need is taken here. The context may be another than the model's: each thread its own. */
DW_API dw_status dw_session_create(dw_context *context, const dw_model *model, const dw_session_options *options, dw_session **session);
DW_API void dw_session_destroy(dw_session *session);
/* The shapes that the outputs will have for inputs of these shapes (their data is not read): fills dims, rank and format of outputs[0..output_count). */
DW_API dw_status dw_session_shapes(dw_session *session, int input_count, const dw_named_tensor *inputs, dw_named_tensor *outputs);
/* Inputs by name, in any order, contiguous; outputs by name, contiguous memory of the shapes that dw_session_shapes returns. Everything that does not fit
 * is named in one MISMATCH. LIMIT when a size is beyond what the session reserved: dw_session_reserve makes room. */
DW_API dw_status dw_session_run(dw_session *session, int input_count, const dw_named_tensor *inputs, int output_count, const dw_named_tensor *outputs);
/* The same on a GPU, with inputs and outputs in its memory, as one more thing in a stream of the caller's. Nothing is copied, and nothing waits: it returns when
 * the run is in the stream.
 *   stream     a CUstream or cudaStream_t of the GPU's primary context, which is what the CUDA runtime and PyTorch use; NULL is the legacy default stream
 *   order      the run is behind all that the stream holds, and in front of all that it is given later. Runs of one session follow each other, on whatever streams.
 *   lifetime   inputs and outputs are there until the stream has passed the run, the session until it has passed all of them: dw_session_destroy waits
 *   addresses  are multiples of 16 bytes; contiguous, as everywhere
 *   errors     of kernels (an index outside of its table) are returned by a later call of the session, or by dw_session_synchronize
 *   capture    of a stream that is being captured, the graph gets the run as a child graph. It holds the addresses of now, of the session's workspace and state and of
 *              the model's weights too: the session outlives the graph (what it reserves later does not move what the graph uses), launches of the graph and other
 *              runs of the session are put in order by the caller, and after dw_model_update the run is captured again. Graphs of several sessions may run side by side.
 * INVALID for a model that was made for the CPU. */
DW_API dw_status dw_session_enqueue(dw_session *session, void *stream, int input_count, const dw_named_tensor *inputs, int output_count,
                                    const dw_named_tensor *outputs);
/* Waits for all runs on streams, and says what their kernels have met. On the CPU there is nothing to wait for. */
DW_API dw_status dw_session_synchronize(dw_session *session);
/* Room for runs on inputs of these shapes too (their data is not read), at all sizes up to those and the ones reserved for before. State stays as it
 * is. On failure the session runs what it ran before. */
DW_API dw_status dw_session_reserve(dw_session *session, int input_count, const dw_named_tensor *inputs);
/* State as the export had it; position 0. */
DW_API dw_status dw_session_reset(dw_session *session);
DW_API uint64_t dw_session_workspace_bytes(const dw_session *session);

/* A token is made of its row of logits in this order. At temperature 0 the largest is taken, of equal ones the least id. Else each becomes (logit - largest) / temperature; top_k keeps so many of
 * the largest, of equal ones those with the least ids; top_p keeps the fewest largest of those that have this share of their probability; and one of what is kept is drawn, by its probability:
 * the largest sum with Gumbel noise, which is Philox4x32-10 of the seed, the number of the draw (that of the text's tokens made before) and the id. It is the same on every machine that makes the
 * same logits, and beside any other texts. docs/ops.md has all of it, with penalties, biases and masks, at the op sample. INVALID: a logit is NaN or infinite where the logits are looked at, or none is above -inf. */
typedef struct dw_generate_options {
    int64_t tokens;             /* how many to make */
    double temperature;         /* 0: greedy */
    int top_k;                  /* 0: all */
    double top_p;               /* 0: all */
    uint64_t seed;
    const int64_t *stop_ids;    /* generation ends after one of these */
    int stop_count;
    int (*on_token)(void *user, int64_t id);   /* non-zero ends the text; may be NULL */
    int (*on_prompt_token)(void *user, int prompt, int64_t id);   /* the same, and which prompt it continues */
    void *user;
    const dw_named_tensor *inputs;             /* those besides the prompt, of an encoder-decoder the encoder's: by name, contiguous, one row; */
    int input_count;                           /* their sizes are at most those of the session's dims */
} dw_generate_options;

/* Seconds by the clock until there was what came of the runs: of those that read prompts, whatever else they did, and of the others. */
typedef struct dw_generate_times { double prefill_s, decode_s; int64_t prompt_tokens, new_tokens; int cached; } dw_generate_times;

/* Continues one prompt from position 0. ids has room for options->tokens; *made says how many were written. times may be NULL.
 * Without a cached step each token recomputes the whole sequence: times->cached says which it was. */
DW_API dw_status dw_session_generate(dw_session *session, int64_t prompt_count, const int64_t *prompt, const dw_generate_options *options,
                                     int64_t *ids, int64_t *made, dw_generate_times *times);
/* One of several prompts. */
typedef struct dw_prompt {
    int64_t count;
    const int64_t *ids;
    uint64_t seed;                             /* of its own draws */
    const int64_t *stop_ids;                   /* besides those of the options */
    int stop_count;
    const dw_named_tensor *inputs;             /* its own; none: those of the options */
    int input_count;
    int64_t *made_ids;                         /* room for options->tokens */
    int64_t made;                              /* how many were written */
} dw_prompt;

/* Continues any number of prompts of any lengths: as many at a time as the session has rows, the next one wherever a text ends. New tokens of all
 * texts go through one run, so the weights are read once for all of them. Each text gets the tokens that dw_session_generate gives it alone with
 * its seed. Models without a cached step, and those whose step cannot tell texts apart, do one after another. options->seed is not read. */
DW_API dw_status dw_session_generate_batch(dw_session *session, int count, dw_prompt *prompts, const dw_generate_options *options,
                                           dw_generate_times *times);
/* Mean negative log-likelihood in nats of ids[1..count) given what comes before each, over windows of the given length. */
DW_API dw_status dw_session_score(dw_session *session, int64_t count, const int64_t *ids, int64_t window, double *nats);

/* ---- accuracy and speed ---- */

typedef struct dw_bench_options {
    int64_t prefill, tokens;    /* prompt and new tokens of generating models; 0: 128 and 64 */
    int repeat;                 /* counted runs; 0: 5 */
} dw_bench_options;

/* Times of loading, of a run at the sizes of model_options->dims, and of prefill and decode where the model generates; the share of FLOPs on
 * reference kernels. file may also be one op as a line of conformance (docs/text.md), "matmul f32[8,768] mxfp8[768,768] bt=true pack=1": then the times of
 * each kernel that accepts it, and why the others refuse. */
DW_API dw_status dw_bench(dw_context *context, const char *file, const dw_model_options *model_options, const dw_bench_options *options, int json,
                          dw_sink sink, void *user);

/* The same of a graph, which is taken over, also on failure. */
DW_API dw_status dw_bench_graph(dw_context *context, dw_graph *graph, const dw_model_options *model_options, const dw_bench_options *options, int json,
                                dw_sink sink, void *user);

/* What a report is on. Sizes of 0 are usual ones; of generation they are asked for in vain where the model has no cached step, which is UNSUPPORTED; -1: none. */
typedef struct dw_report_options {
    const char *dims;           /* sizes of the whole run, "b=4,s=512", where no inputs are given; those not named are typical */
    int64_t prefill;            /* tokens of each prompt; 0: 128, and 8 on a simulated device */
    int64_t keys;               /* tokens of each text that are cached when the cached step is looked at; 0: as prefill */
    int64_t texts;              /* at work at a time; 0: 1 */
    int repeat;                 /* counted runs; 0: 5 */
    unsigned flags;             /* of dw_report_flags */
} dw_report_options;
enum dw_report_flags {
    DW_REPORT_NO_WHOLE = 1      /* no whole run, generation alone */
};

/* Runs the model on its device and holds each step of each run against its bound: the larger of its bytes and its operations at the rates that the chip was measured to have (docs/report.md).
 * Runs are a whole one on these inputs (count 0: random ones of the sizes of dims), a prefill, and a cached step. Gives the facts as one JSON object. On a simulated device nothing is run and
 * nothing measured: it gives bounds and estimates. */
DW_API dw_status dw_report(dw_context *context, const dw_model *model, const dw_report_options *options, int input_count, const dw_named_tensor *inputs, dw_sink sink, void *user);

typedef struct dw_report_words {
    int all;                    /* each step; else equal steps are one line */
    int lines;                  /* so many lines of each run, those that lose most first; 0: all */
} dw_report_words;
/* Such facts as tables. SYNTAX: they are no JSON object. */
DW_API dw_status dw_report_print(dw_context *context, const char *facts, size_t length, const dw_report_words *words, dw_sink sink, void *user);

typedef struct dw_trace_options {
    const char *launch;         /* which: "7", the seventh from 1; a kernel's name or a part of it, its first; "name:2", its second. NULL: all are listed, one a line */
    const char *cta;            /* "x,y,z", or "x" */
    int warp;
    int64_t lines;              /* instructions that are printed at most; 0: 1000 */
} dw_trace_options;

/* Runs the model once, or an op given as for dw_bench, on options->device, which is a simulated GPU, and gives the instructions that one warp of one launch executes: number, line of
 * the PTX and of the source, lanes, instruction, addresses and values (docs/sim.md). input_count 0: random inputs. INVALID: the device is not simulated; NOT_FOUND: there is no such
 * launch, CTA or warp. What was written before a run failed is given, too. */
DW_API dw_status dw_trace(dw_context *context, const char *file, const dw_model_options *model_options, const dw_trace_options *trace_options, int input_count,
                          const dw_named_tensor *inputs, dw_sink sink, void *user);

/* Measures on the GPU of options->device what a model runs for which there is a choice: of products every kernel that accepts them and every variant of it, at several numbers of rows; of
 * other ops every kernel that accepts them, at the sizes of options->dims. What takes less than a thousandth of a run by estimate is left out, and 4 s after a line was begun no further
 * kernel is. Gives a text for dw_model_options.tuning, whose comments say how far the estimates were off and what was not measured; before: such a text, whose lines are kept and not measured again, or NULL. UNSUPPORTED for the CPU, and for a simulated GPU. Whatever it fails for, CANCELLED or another
 * status: the sink has got what was measured till then, unless that is nothing. */
DW_API dw_status dw_tune(dw_context *context, const char *file, const dw_model_options *options, const char *before, dw_sink sink, void *user);
/* A name for what such a text is good for: chip, driver and the content of this build's kernels; letters, digits, '-', '.' and '_'. */
DW_API dw_status dw_tuning_key(dw_context *context, const char *device, char *key, size_t size);

/* Runs the model on options->device, a GPU or a simulated one, beside the CPU, in the options' precision, and reports: each kernel on the CPU's operands; outputs on these
 * inputs (count 0: a drawn text where the model makes one, else random ones), and what perturbations do to those of the CPU; perplexity; greedy text (of fewer tokens on a simulated GPU), with
 * the margin between the two best tokens where it differs. MISMATCH, when all is reported, where more differs than sums in another order explain:
 *   kernels     quantisers and integers bit for bit; other results to 1e-5 of the largest (1e-3 for products of 8-bit floats), and a last place of their format
 *   outputs     to 1e-5, or one and a half times as far as perturbations take those of the CPU, whichever is more (eight of each): of the input, by 1e-7; of all sums, by 1e-7
 *               or by as much as the device's kernel was off on the CPU's operands (root mean squares)
 *   perplexity  to 0.2 %, over texts of up to 256 tokens that the model draws in fp32, as many as bring the standard error of the difference to 0.05 %, 32 at most
 *               (where that leaves it above 0.067 %, to three standard errors); a simulated GPU gets one text, of which the rule of outputs holds, too
 *   text        of one call, and of a service, whose caches are pages: the same wherever the margin is above ten times what the perturbations do to the logits (root mean square) */
DW_API dw_status dw_check_device(dw_context *context, const char *file, const dw_model_options *options, int input_count, const dw_named_tensor *inputs,
                                 int json, dw_sink sink, void *user);
/* Runs the file's fp32 form beside the options' precision on these inputs (count 0: random ones) and reports per layer and at the outputs. With a communicator, which all ranks call it with, it runs the
 * model on the ranks beside the whole one instead, in the options' precision, and the first rank reports the outputs: MISMATCH where nothing is quantised and they are off by more than 1e-5. */
DW_API dw_status dw_check(dw_context *context, const char *file, const dw_model_options *options, int input_count, const dw_named_tensor *inputs,
                          int json, dw_sink sink, void *user);
/* The same of a graph, which is taken over, also on failure. */
DW_API dw_status dw_check_graph(dw_context *context, dw_graph *graph, const dw_model_options *options, int input_count, const dw_named_tensor *inputs,
                                int json, dw_sink sink, void *user);

#ifdef __cplusplus
}
#endif
#endif
