/* The engine: models (weights, plans and what was computed from weights), sessions (state, workspace, position), runs, generation,
 * packages. The only layer that executes anything. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "deepwell/model.h"
#include "deepwell/ops.h"
#include "comm/comm.h"
#include "device/device.h"
#include "engine/sampler.h"
#include "pass/pass.h"
#include "plan/plan.h"

enum { ENGINE_ALIGN = 64 };

/* A flag of a model beside dw_model_flags: its plan prepares (plan.prepares). */
#define ENGINE_MODEL_PREPARES (1u << 16)

/* ---- constants.c: what is computed from weights before runs. A set belongs to whom the weights belong to: a model, whose plans and sessions share it, or a session that trains its states ---- */

typedef struct engine_constant {
    const char *key;
    dw_tensor tensor;          /* plain form; of packed ones only data is set */
    size_t bytes;
    bool packed;
    void *owned;               /* memory to release; NULL: mapped */
    size_t owned_bytes;
} engine_constant;

typedef struct engine_constants {
    dw_context *context;
    arena arena;
    map by_key;                /* -> engine_constant */
    device *device;            /* where runs read them, when that is not the host's memory; else NULL */
    map on_device;             /* -> engine_constant whose memory is the device's */
    const struct engine_constants *known;   /* a set of what is known besides: a model's, of one of its sessions; NULL: none */
} engine_constants;

/* A plan with its constants looked up. */
typedef struct engine_program {
    plan *plan;
    dw_tensor *constants;      /* by value index; in the memory of the host. data NULL: on the device alone (engine_constants_fetch) */
    const void **packed;       /* by step index */
    dw_tensor *on_device;      /* by value index, those that runs read: in the device's memory; NULL: runs are on the host */
} engine_program;

void engine_constants_init(engine_constants *constants, dw_context *context);
void engine_constants_free(engine_constants *constants);
/* to has nothing to free; from is empty then. */
void engine_constants_move(engine_constants *to, engine_constants *from);
/* Takes owned over, also on failure. */
dw_status engine_constants_add(engine_constants *constants, const engine_constant *constant);
/* Of the set, or of what is known besides: on the host, on the device. NULL: it is not there. */
const engine_constant *engine_constants_find(const engine_constants *constants, const char *key);
const engine_constant *engine_constants_find_there(const engine_constants *constants, const char *key);
/* load.c: runs the steps at load that run-time steps of the plan need and whose results are not there yet, on the constants' device where that gives the same bits, else on
 * the host; packs weights; brings what runs read to the device; fills program. */
dw_status engine_load(engine_constants *constants, pool *pool, engine_program *program);

/* Reads back a constant that the device has; the caller releases owned, or adds it. */
dw_status engine_constants_fetch(const engine_constants *constants, const char *key, engine_constant *made);

/* ---- model.c ---- */

struct dw_model {
    dw_context *context;
    arena arena;
    const char *file;
    ir_weights weights;
    ir_weights replaced;       /* from a file beside the archive: its parameters' numbers lie there */
    ir_graph *captured;        /* as the file has it; NULL in a model from a .dw */
    ir_graph *fused;           /* after structural fusion, before precision; NULL in a model from a .dw */
    engine_constants constants;
    engine_program full, step; /* plan NULL: none was asked for or none is possible */
    engine_program paged;      /* on a GPU the step with caches in pages, once a service asked for it; on a CPU the step has them */
    engine_program prelude;    /* what the step is given once for each generation; plan NULL: nothing */
    const char *no_step;       /* why there is no step */
    chip_caps chip;
    device *device;            /* that is not the host; else NULL */
    uint64_t updates;          /* how often constants have moved */
    const char *device_name;   /* sessions open it by this name for themselves */
    const char *precision;     /* in words, for print */
    const char *fusion_notes;  /* what fusion left alone, and why; "" */
    const char *policy_report; /* which precision each layer got by which rule; "" */
    const char *split_report;  /* how each layer is cut over ranks, and why; "" */
    pass_splits *splits;       /* while it is planned; NULL: it is not cut */
    const pass_settled *settled;   /* what a policy left open; NULL: nothing, or it is not planned yet */
    int settled_count;
    const char **input_names, **input_shapes;     /* what callers pass: "f32[b,s,256]" */
    const char **output_names, **output_shapes;
    int input_count, output_count;
    bool alone[OP_COUNT];      /* ops that the caller named or registered a kernel for: they join no chain */
    const kernel_registry *registry;
    unsigned flags;
    dw_model_options options;  /* what was asked for; the strings that planning reads are in the arena */
    file_map package;          /* of a .dw; */
    const char *step_text, *prelude_text;   /* in it: the plans of generation, */
    size_t step_length, prelude_length;     /* 0 where it has none */
};

#define ENGINE_NOT_ASKED "no generation was asked for"   /* no_step where nobody did */

/* weigh.c */
/* Bytes of the weights in the form that runs, each once: of whole runs, of generation, and of both together. */
typedef struct engine_weights { uint64_t runs, generation, all; } engine_weights;
dw_status engine_weigh(const dw_model *model, engine_weights *weights);
/* Bytes of what a plan that prepares makes of trained states, as they are and packed. */
dw_status engine_weigh_prepared(const plan *plan, uint64_t *plain, uint64_t *packed);

/* package.c */
bool engine_is_package(const uint8_t *bytes, size_t length);
/* A mapped .dw: its plans, constants and weights enter the model. */
dw_status engine_package_open(dw_model *model, const char *file, const dw_model_options *options);
/* Its plans of generation enter the model, too. */
dw_status engine_package_add_generation(dw_model *model);

/* tuning.c: of the names of all kernels and the bytes of all images */
uint64_t engine_build_hash(void);

/* registry.c */
const kernel_registry *engine_registry_rows(const dw_registry *registry);   /* NULL for NULL */

/* ranks.c */
/* How the model's graphs are cut, by its communicator's mesh, or by that of a plan alone; NULL: they are not. INVALID for an axis that no model is cut over. */
dw_status engine_splits_create(dw_model *model, pass_splits **splits);
/* This rank's place, for loading and runs of the plan. */
dw_status engine_place(const dw_model *model, plan *plan);
#define ENGINE_CUT_AXIS "tp"
/* Of the axis over which models are cut: its ranks, 1 without a communicator, and this one's place on it. */
int engine_cut_ranks(const dw_model *model);
int engine_cut_place(const dw_model *model);
/* The same number of bytes of each rank along it, in order, into parts. All of them call it; one that fails tells the others. */
dw_status engine_gather_bytes(dw_context *context, const dw_model *model, const void *part, size_t bytes, void *parts);
/* The same in memory that is there: of so many bytes, or more. */
dw_status engine_gather_room(dw_context *context, const dw_model *model, size_t bytes, size_t *room);
dw_status engine_gather_in(dw_context *context, const dw_model *model, const void *part, size_t bytes, void *parts, void *workspace);

/* lower.c: graph -> passes -> plan */
/* captured -> fused */
dw_status engine_fuse(dw_model *model);
/* fused -> the same in the policy's precision, projections merged. The first report becomes the model's. */
dw_status engine_lower(dw_model *model, const ir_graph *fused, pass_policy *policy, pass_probe probe, ir_graph **lowered);
/* Fused -> the cached step and what is computed once for each text before it; NULL: there is none, and for want of a step model->no_step says why. */
dw_status engine_make_steps(dw_model *model, step_cache cache, ir_graph **step, ir_graph **prelude);
/* Where the caches of a step lie on the model's chip, if no service asks for something else. */
step_cache engine_step_cache(const dw_model *model);
/* The plan of a fused graph by the policy and the model's options, but for its typical sizes. Nothing is loaded or placed. */
dw_status engine_plan_alone(dw_model *model, const ir_graph *fused, pass_policy *policy, const char *dims, plan **result);
/* settle.c: what the policy leaves open is settled, once for the model, which has its fused graph and its chip. */
dw_status engine_settle(dw_model *model, pass_policy *policy);

/* compile.c: file -> graph -> plans */
dw_status engine_capture(dw_model *model, const char *file, const dw_model_options *options);
/* fused -> plans, loaded unless DW_MODEL_PLAN_ONLY. */
dw_status engine_find_chip(dw_model *model, const dw_model_options *options);   /* the chip that options name, or this machine's */
dw_status engine_compile(dw_model *model, const dw_model_options *options);
/* The fused graph of that model -> plans for its chip, by the options of this one. */
dw_status engine_compile_beside(dw_model *model, const dw_model *that);
/* fused -> the plans of generation, by the model's options. */
dw_status engine_compile_generation(dw_model *model);
/* The same model planned in another precision for all of its layers, by the same options else; nothing is loaded: to be asked about. The model has its graphs. */
dw_status engine_plan_in(const dw_model *model, const char *precision, dw_model **other);
/* What the model was asked for with scores in bf16, and caches where it has a cached step: where its attention is in fp32 while layers were to be in fewer bits, and nothing was said of scores. Else
 * nothing is added to precision. */
dw_status engine_narrow_scores(const dw_model *model, text *precision);
/* The step with caches in pages, where the step has none: on a GPU. Nothing is done for a model from a .dw. */
dw_status engine_add_pages(dw_model *model);

/* ---- session.c ---- */

enum { ENGINE_BINDINGS = 4, ENGINE_LADDER = 20 };  /* sizes that a session keeps bound at a time, per plan; and those of a step on a GPU */
enum { ENGINE_RECORDED = 3 };  /* addresses besides those of inputs and outputs that a device graph is made of */

typedef struct engine_slot {
    plan_binding binding;
    uint64_t used;
    device_graph *graph;       /* its steps on a device that has graphs; else NULL */
    void **recorded;           /* inputs, outputs and bases that the graph has, */
    bool is_recorded;          /* where it has any */
    bool carries;              /* its launches copy inputs and results of a run that the host does not wait for */
} engine_slot;

/* Memory on the device for the inputs and outputs of a run, where the caller's is the host's. */
typedef struct engine_stage {
    void *memory;
    size_t bytes, room;        /* bytes are wanted, room is there */
    bool is_kept;              /* of an input: the host's memory changes only when engine_stage_changed says so; */
    size_t held;               /* then so many of its bytes are here already */
    bool is_made;              /* of an input: it is made on the device, 0 before that, and nothing of it is brought */
} engine_stage;
/* Small inputs of a run lie side by side, here and on the host, and come in one copy. */
typedef struct engine_parcel { void *host, *memory; size_t room; } engine_parcel;

/* A run that the host does not wait for: its inputs wait in pinned memory, and one of its outputs comes there. */
typedef struct engine_flight {
    void *host, *result, *mark;
    void *begin;               /* a mark in front of it, where runs are timed; else NULL */
    void *draws, *there;       /* what draws of its rows read, and what they tell besides ids: here, pinned, and on the device */
    sampler_made made;         /* of the run that has landed */
} engine_flight;
enum { ENGINE_FLIGHTS = 2 };   /* runs on their way at a time */
/* Bytes of an input that are bytes of an output of the run before. */
typedef struct engine_link { size_t from, to, bytes; } engine_link;

/* One plan at work in a session. */
typedef struct engine_runner {
    const engine_program *program;
    plan_layout layout;        /* of the sizes that were reserved for */
    size_t scratch_bytes;      /* the most that kernels need at those */
    engine_slot *slots;        /* [slot_count] */
    int slot_count;
    uint64_t clock;
    int64_t *symbols;          /* the sizes of the run that is being prepared, */
    int64_t *most;             /* and the largest that whole runs have room for (not kept of steps and preludes) */
    void **inputs, **outputs;  /* the memory of that run; on a device an output that is NULL stays there */
    void **states;
    size_t *state_bytes;
    bool *lent;                /* by state: the memory is that of another session's state */
    engine_stage *staged_inputs, *staged_outputs;   /* on a device; else NULL */
    engine_parcel parcel;
    engine_flight flights[ENGINE_FLIGHTS];   /* mark NULL: nobody looks ahead */
    int reached;               /* steps that the last run on the host has begun */
    double *profile;           /* by step: seconds are added up here; NULL: not wanted */
    bool (*watch)(void *user, const plan_step *step, const op_call *call);   /* called after each step of a run on the host, which ends where it says true; NULL: nobody looks */
    void *watcher;
} engine_runner;

/* Of caches in pages. */
typedef struct engine_paging {
    bool is_shared;            /* texts have pages together, on a GPU too, of so many bytes; else each has as many as it needs at its longest, and on a GPU a row */
    int64_t page_tokens;       /* 0: ENGINE_PAGE */
    uint64_t cache_bytes;      /* of all pages; 0: the usual, as dw_service_options says */
} engine_paging;
enum { ENGINE_PAGE = 64 };

typedef struct engine_memory { void *memory; size_t bytes; } engine_memory;

struct dw_session {
    dw_context *context;
    const dw_model *model;
    arena arena;
    pool *pool;
    device *device;            /* NULL: the host */
    engine_runner full, step, prelude;
    int64_t *prelude_most;     /* by symbol of the prelude: the sizes that generation has room for */
    void *workspace;
    size_t workspace_bytes;
    int64_t max_tokens;
    void *generation;          /* generation.h: texts, inputs, logits */
    struct engine_sampler *sampler;   /* sampler.h: of generation */
    size_t generation_bytes;
    void *serving;             /* src/serve's, of a session that a caller made */
    engine_paging paging;
    dw_session *lender;        /* whole runs have its states, where names and types are the same; NULL: all states are the session's own */
    engine_constants prepared; /* of a plan that prepares: what its steps at an update make of the states that are trained, */
    engine_program own;        /* and the model's program with that */
    size_t prepared_bytes;
    bool is_prepared;          /* they were run, and no trained state has changed since; */
    uint64_t prepared_updates; /* of the model, then */
    unsigned flags;            /* of dw_session_flags */
    void *begin, *end;         /* marks of runs that are waited for, where runs are timed; else NULL */
    double worked_s;           /* what the device worked for them, by its own clock */
    bool enqueued;             /* there were runs on streams */
    bool captured;             /* a graph of the caller's runs on its memory, which stays until the end */
    engine_memory *kept;
    size_t kept_count, kept_room;
};

/* A session whose caches are as paging says. */
dw_status engine_session_create(dw_context *context, const dw_model *model, const dw_session_options *options, const engine_paging *paging, dw_session **session);
/* A session of another model, of the same device, whose whole runs read and write the states of lender's under the same names. lender outlives it, and has it reset no state. */
dw_status engine_session_beside(dw_context *context, const dw_model *model, const dw_session_options *options, dw_session *lender, dw_session **session);
void engine_session_destroy(dw_session *session);   /* NULL is allowed; session->serving is the caller's */

/* runner.c: one plan at work in a session */
/* slots: sizes that it keeps bound. */
dw_status engine_runner_create(dw_session *session, const engine_program *program, int slots, engine_runner *runner);
void engine_runner_free(dw_session *session, engine_runner *runner);
/* Memory that steps read and write: the device's, or the host's. */
dw_status engine_memory_create(dw_session *session, size_t bytes, void **memory);
void engine_memory_free(dw_session *session, void *memory, size_t bytes);
/* Makes the states at the sizes in runner->symbols; their memory stays for the life of the session. */
dw_status engine_states_create(dw_session *session, engine_runner *runner);
/* States as the export had them. */
dw_status engine_states_reset(dw_session *session, engine_runner *runner);
/* prepare.c: of sessions whose whole runs' plan prepares; nothing is done for others */
/* The program that its runs are of: with an own set of what is made of trained states. */
dw_status engine_prepared_create(dw_session *session, const engine_program **program);
void engine_prepared_free(dw_session *session);
/* A run begins: trained states have changed, or may have, since the one before? Then what is made of them is made again, in its memory. *stopped: who watches has seen enough. */
dw_status engine_prepare(dw_session *session, bool *stopped);
/* A trained state changes, or will. */
void engine_prepared_changed(dw_session *session);
/* load.c: the same as engine_load for what depends on trained states: made anew in the memory that it has in the set, once it has some. The first time program's arrays are those of the model's. */
dw_status engine_load_updated(engine_constants *constants, dw_session *session, engine_program *program, bool *stopped);
/* states.c: states of whole runs by number; contiguous */
int engine_state_count(const dw_session *session);
/* Its name, and its shape without data. */
dw_status engine_state_at(const dw_session *session, int index, dw_named_tensor *state);
int engine_state_find(const dw_session *session, const char *name);   /* -1: there is none */
/* Between the memory of the host and the state's, all of it. */
dw_status engine_state_read(dw_session *session, int index, void *to);
dw_status engine_state_write(dw_session *session, int index, const void *from);
dw_status engine_state_clear(dw_session *session, int index);         /* zeros */
/* Has the session's last run changed a state, or may it have? */
bool engine_run_wrote(const dw_session *session);
/* A run on the CPU that is looked at: after each step watch is called with what it has made, until that says true. INVALID for a session on a device. */
dw_status engine_run_watched(dw_session *session, int input_count, const dw_named_tensor *inputs, int output_count, const dw_named_tensor *outputs,
                             bool (*watch)(void *user, const plan_step *step, const op_call *call), void *user);
/* A run fails before it begins: other ranks, which may be in theirs, are told. Returns status. */
dw_status engine_cannot_run(dw_session *session, const engine_runner *runner, dw_status status);
/* LIMIT when a run needs more workspace than the session has. */
dw_status engine_check_workspace(dw_session *session, const plan_binding *binding);
/* The binding for runner->symbols: one that is kept, or the least recently used bound anew. LIMIT when the workspace is too small. */
dw_status engine_bind(dw_session *session, engine_runner *runner, plan_binding **binding);
/* While a session is made: room for runs at the sizes in runner->symbols, or at all sizes up to them. */
dw_status engine_reserve(dw_session *session, engine_runner *runner);
dw_status engine_reserve_up_to(dw_session *session, engine_runner *runner);
/* Runs all steps on runner->inputs and outputs. */
dw_status engine_execute(dw_session *session, engine_runner *runner, plan_binding *binding);

/* device_run.c: runs on a device that has memory of its own */
/* From here on session->worked_s counts what the device takes for runs, each from where its graph is launched, or small inputs are copied for it, to where its outputs are back; they follow each other, so no second counts twice. Before engine_flights_create.
 * Nothing is done where runs are on the host. UNSUPPORTED: the device is simulated, and has no clock. */
dw_status engine_time_runs(dw_session *session);
void engine_time_free(dw_session *session);
/* Inputs and outputs of this binding want room: engine_stage_create makes it, also when there is some already. */
void engine_stage_widen(engine_runner *runner, const plan_binding *binding);
dw_status engine_stage_create(dw_session *session, engine_runner *runner);
/* Input number index is brought to the device once, and again after each engine_stage_changed. Nothing is done where runs are on the host. */
void engine_stage_keep(engine_runner *runner, size_t index);
void engine_stage_changed(engine_runner *runner, size_t index);
/* It lies in staged_inputs, where others write it on the device: nothing is brought. Before engine_stage_create. */
void engine_stage_made(engine_runner *runner, size_t index);
/* LIMIT where it has no room for so many bytes. */
dw_status engine_stage_check(dw_session *session, const engine_runner *runner, size_t index, size_t bytes);
/* Bytes of an output that stayed on the device, after the run. */
dw_status engine_stage_read(dw_session *session, const engine_runner *runner, size_t index, size_t offset, size_t bytes, void *to);
void engine_stage_free(dw_session *session, engine_runner *runner);
/* What engine_execute does there: inputs go to the device, one graph is launched, outputs come back. */
dw_status engine_execute_on_device(dw_session *session, engine_runner *runner, plan_binding *binding);
/* Room for runs that the host does not wait for, after engine_stage_create. UNSUPPORTED on a device that has no marks. */
dw_status engine_flights_create(dw_session *session, engine_runner *runner, size_t output);
/* What a run's tokens are drawn from, on the device: so many rows of an output, as the sampler was asked. sampler NULL: there are no draws. */
typedef struct engine_drawing { struct engine_sampler *sampler; size_t logits; int64_t rows; } engine_drawing;
/* Starts a run: bytes of `input` that links name come from `output` of the run that was started before it. `output` comes back to flight->result, behind the draws, which put their ids there. */
dw_status engine_launch(dw_session *session, engine_runner *runner, plan_binding *binding, engine_flight *flight, size_t input, size_t output, int link_count, const engine_link *links,
                        const engine_drawing *drawing);
/* Waits for it. */
dw_status engine_land(dw_session *session, const engine_runner *runner, const engine_flight *flight);
/* Makes the binding's device graph, which runs with these sizes launch as it is. Nothing runs. */
dw_status engine_ready_on_device(dw_session *session, engine_runner *runner, plan_binding *binding);
/* The binding's last run on a device with graphs, timed some times more: it reads and writes what that one did. times->steps has room for the steps of each run. */
dw_status engine_time_on_device(dw_session *session, engine_runner *runner, const plan_binding *binding, int runs, device_times *times);
/* The same on runner->inputs and outputs in the device's memory, on a stream of the caller's, and not waited for. */
dw_status engine_execute_stream(dw_session *session, engine_runner *runner, plan_binding *binding, void *stream);

/* match_inputs.c */
enum { ENGINE_MAX_INPUTS = 1024, ENGINE_MAX_SYMBOLS = 64 };
/* Finds each of the graph's inputs among those given by name, inputs[i] for graph->inputs[i], and the sizes that their shapes bind. MISMATCH
 * names all that is missing, unknown, there twice, or of another type, rank or size. */
dw_status engine_match(dw_context *context, const plan *plan, int count, const dw_named_tensor *given, const dw_tensor **inputs, int64_t *symbols);
/* The same where inputs may be missing: those are NULL, and sizes that are not given are typical ones. */
dw_status engine_match_some(dw_context *context, const plan *plan, int count, const dw_named_tensor *given, const dw_tensor **inputs, int64_t *symbols);

/* score.c: what a model of token ids alone is fed for these, in the arena; UNSUPPORTED says what else it reads. It has one output, fp32 logits. */
dw_status engine_text_inputs(dw_session *session, arena *arena, int64_t count, const int64_t *ids, dw_named_tensor *inputs);

/* tuning.c: measured choices for a device */
/* What measurements are good for: this chip, driver, and kernels. UNSUPPORTED where the model's device is none whose kernels are measured. */
dw_status engine_tuning_key(const dw_model *model, arena *arena, plan_tuning *key);
bool engine_tuning_is_same_key(const plan_tuning *a, const plan_tuning *b);
/* name: what messages call the text; NULL: tuning. */
dw_status engine_tuning_parse(arena *arena, const char *name, const char *words, plan_tuning *tuning);
/* The text as choices for this model's device, in the model's arena; NULL for NULL. */
dw_status engine_tuning_read(dw_model *model, const char *words, const char *name, plan_tuning **tuning);

/* generation_memory.c */
/* Reserves for generation: memory of its own, and the workspace of its largest runs. Sets the sizes that the caches are made at. */
dw_status engine_generation_create(dw_session *session, const dw_session_options *options);
/* Pages of a text of so many tokens, of which at most chunk come at a time, for keys of which the last `reach` are seen; 0: all. */
int64_t engine_pages_needed(int64_t page, int64_t reach, int64_t tokens, int64_t chunk);

/* Why texts of a service go one after another, or share no pages; NULL: they do neither. */
const char *engine_alone(const dw_model *model);
/* Has it no step, but a cache of its own (state that changes) and an input that says where new tokens stand? Then it generates by that. */
bool engine_keeps_cache(const dw_model *model);
/* generate.c: one decode step behind past tokens that are cached already; for profiles. */
dw_status engine_decode_again(dw_session *session, int64_t id, int64_t past);
/* For measurements: sets session->step up for run number `run`, from 0, of those that bring tokens from..to of all texts that the session has room for into the cache, where the tokens before are.
 * Ids are what the texts had there. false: there are fewer runs. Then engine_run_again runs it, any number of times. */
bool engine_prepare_again(dw_session *session, int64_t from, int64_t to, int run);
dw_status engine_run_again(dw_session *session);

/* prelude.c: its largest sizes are those of dims, for one prompt at a time: the size named batch is 1. They are in session->prelude.symbols then. */
dw_status engine_prelude_create(dw_session *session, const char *dims, const char *batch);
/* Sizes of the prelude's last run, or the largest ones where there was none, into those of the same names of runner. */
void engine_prelude_sizes(const dw_session *session, const engine_runner *runner, int64_t *sizes);
/* The least that they may be, and at least so much that what a text is given fits, as far as the session has room: for the runs of one call. */
void engine_prelude_least(const dw_session *session, const engine_runner *runner, int64_t *sizes);
dw_status engine_prelude_widen(dw_session *session, int count, const dw_named_tensor *inputs, const engine_runner *runner, int64_t *sizes);
/* Runs it on inputs by name; its outputs are where session->prelude.outputs says, on a device in its staged_outputs, of the sizes in made. */
dw_status engine_prelude_run(dw_session *session, int input_count, const dw_named_tensor *inputs, plan_binding **made);

/* Runs of generation, and tokens from logits, for src/serve. */
#include "engine/generation.h"

#endif
