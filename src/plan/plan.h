/* Plans: which kernel runs each node and why, which values share memory, and where everything lies once the sizes are known.
 * Pure functions of (graph, capabilities, options): no device is touched, so a plan for any chip is made anywhere. */
#ifndef PLAN_PLAN_H
#define PLAN_PLAN_H

#include "ir/ir.h"
#include "kernel/kernel.h"

/* Where a value's bytes are. */
typedef enum plan_place {
    PLAN_WORKSPACE,      /* at an offset of the session's workspace, known once sizes are bound */
    PLAN_INPUT,          /* the caller's memory */
    PLAN_OUTPUT,         /* the caller's memory */
    PLAN_STATE,          /* the session's memory */
    PLAN_CONSTANT,       /* a weight, or what is computed from weights before runs: the memory of the model, or of who trains the weights */
    PLAN_NOWHERE,        /* only its packed form is kept, or nothing reads it */
    PLAN_PLACE_COUNT
} plan_place;

typedef struct plan_value plan_value;
struct plan_value {
    const ir_value *value;
    int index;                        /* dense, in order of definition */
    plan_place place;                 /* of views: of their base */
    int slot;                         /* of inputs, outputs and states: which */
    plan_value *base;                 /* of views and results computed in place: the value whose memory this is; else NULL */
    plan_value *root;                 /* the last base's base that has memory of its own, or the value itself */
    int last_read;                    /* order of the last node that reads it, or a view of it; 0 when none does */
    bool read_plain;                  /* of values with a key: is their plain form read by a step that is run later? */
    bool view;                        /* under the strides of its base; no step makes it */
    bool contiguous;                  /* row-major without gaps at all sizes */
    const int64_t *layout;            /* axes in the order in which memory runs, when not row-major; else NULL */
    int first, last;                  /* of bases in the workspace: the steps during which it is alive */
    bool may_be_plain;                /* there is a plan_plain for it, of other bytes */
    const struct plan_plain *taken;   /* the plan_plain that it is all of its source by; NULL: none */
    const char *key;                  /* known when weights are: the expression over weights that it is, the same in every plan of a model; else NULL */
    bool updated;                     /* it has a key, and trained states are among its weights: known after each update of them */
};

typedef struct plan_step {
    ir_node *node;
    const kernel_row *row;
    op_post_list post;
    bool at_load;                     /* depends on weights alone: run once when the model is loaded */
    bool at_update;                   /* depends on trained parameters besides, of a plan that prepares: run once after they have changed */
    double seconds;                   /* estimated at the typical sizes */
    uint32_t ways;                    /* of a row with ways: those that may be picked once sizes are known (kernel_run.ways) */
    const kernel_way *way;            /* the only one of them: it was asked for by name; else NULL */
    const kernel_way *picked;         /* of them, at the typical sizes; NULL: the row has no ways */
    const char *because;              /* of the row: "asked for", "measured", or why not what was measured; NULL: its estimate is the least */
    const kernel_tuned *tuned;        /* what measurements chose among the row's ways and their variants; NULL: nothing */
    int tuned_count;
    const char *pack_key;             /* of a packed operand: its name among the constants; NULL: nothing is packed */
    const kernel_packing *packing;    /* and how it is packed */
    int verdict_count;
    const kernel_verdict *verdicts;   /* every row that was considered */
} plan_step;

/* A value between two steps, which may stay what it is made of where that saves a launch: the product that reads it quantises it, or does the norm that makes it; the write of caches does the norm of its
 * keys or queries; attention does the write of its own token; or outputs are wanted of all tokens that there are, so that what is taken of them is all of it. Whether it does is known once sizes are bound (plain.c). */
typedef struct plan_plain {
    plan_value *value, *source;       /* source: what a quantize, a norm or a take makes it of; NULL: the step that makes it leaves it in format */
    int made, read;                   /* steps; of what is taken the last that reads it */
    dw_format format;                 /* of source, and of a norm's result before it is quantised */
    bool quantises, searches;         /* value is in blocks; its scales are searched for */
    bool normalises;                  /* a norm makes it */
    bool takes;                       /* a take of the tokens that step.last lists makes it */
    int heads;                        /* a norm makes it, whose result, or a view of it, is this operand of a cache_update, read; 0: not so */
    bool writes;                      /* attention, read, does the cache_update in front of it, made, whose keys value is. No source, no format */
    bool beside;                      /* value is what a quantize, read, makes of the result of a norm, made, which can write both. No source */
} plan_plain;

typedef struct plan {
    dw_context *context;
    arena arena;
    ir_graph *graph;                  /* owned; every value's mark is its plan_value */
    chip_caps chip;
    chip_caps load_chip;              /* what steps at load are chosen for: chip, or for a GPU the plainest CPU, so that any host can run them */
    const char *precision;            /* the policy in words */
    bool invariant;                   /* a row's bits depend on what that row is made of alone (kernel_problem) */
    const char *split;                /* post lists that became steps of their own, and why, a line for each; NULL: none */
    int64_t *typical;                 /* a value of each symbol, for estimates */
    plan_value *values;
    int value_count;
    bool prepares;                    /* what depends on trained parameters alone is made when these have changed, and not in every run. Runs change none of them */
    plan_step *steps;                 /* those at load first, then those at an update, then those of every run */
    int step_count, load_count, run_first;   /* of every run: from run_first on */
    plan_plain *plains;
    int plain_count;
} plan;

/* ---- measured choices (tuning.c) ---- */

/* A kernel, which is a row or a way, and its variant ("" where it has none) for products of up to so many rows; rows 0: of a case. */
typedef struct plan_tuned { int64_t rows; const char *kernel, *variant; } plan_tuned;
typedef struct plan_tuned_line { const char *line; int count; plan_tuned rows[KERNEL_TUNED]; } plan_tuned_line;
/* All of a device: products at several numbers of rows, and cases of any op, at sizes that are all given; the text form is
 *     tuning "NVIDIA H200" "CUDA 13.0" "0123456789abcdef"
 *     product "matmul bf16[*,768] bf16[3072,768] bt=true"
 *       rows 16 cuda_matmul_wgmma matmul_bf16_m128n64split4
 *     case "attention bf16[1,12,128,64] bf16[1,12,128,64] bf16[1,12,128,64] causal=true scale=0.125"
 *       kernel cuda_attention_wgmma
 * with rows in ascending order; what follows a '#' is for people. */
typedef struct plan_tuning {
    const char *chip, *driver, *kernels;      /* measured on which, under which, of which content */
    map lines;                                /* line -> plan_tuned_line */
} plan_tuning;
/* Everything lives in the arena. SYNTAX with the place; also for a line or number of rows that is there twice, or rows that do not ascend. */
dw_status plan_tuning_parse(arena *arena, const char *source, const char *bytes, size_t length, plan_tuning *tuning);
dw_status plan_tuning_print(const plan_tuning *tuning, text *text);
/* The product of a step as a line of a case (kernel.h) with '*' for the number of rows; NULL in *line: it is none, or not one whose other sizes are known. */
dw_status plan_product_line(arena *arena, const plan *plan, const plan_step *step, const char **line);
/* Any step at the typical sizes as a line of a case (kernel.h); NULL in *line: it has none, and *why says why. */
dw_status plan_case_line(arena *arena, const plan *plan, const plan_step *step, const char **line, const char **why);

typedef struct plan_options {
    const chip_caps *chip;
    const kernel_registry *registry;  /* may be NULL */
    const char *precision;
    const char *dims;                 /* "s=128,b=2": typical sizes; may be NULL */
    const char *kernels;              /* "matmul=matmul_f32_portable,..": kernels that must be taken; may be NULL */
    const plan_tuning *tuning;        /* measured choices; may be NULL */
    bool invariant, prepares;
    const bool *alone;                /* by op: those that join no chain (pass_options); may be NULL */
} plan_options;

/* Takes the graph over, also on failure. The graph must have passed ir_check. */
dw_status plan_compile(ir_graph *graph, const plan_options *options, plan **result);
void plan_destroy(plan *plan);                          /* NULL is allowed */

/* estimate.c: pass_estimates of a plan with these options (plan_options, which are user): before there is one. */
dw_status plan_estimate_sizes(void *user, const ir_graph *graph, int64_t *symbols);
dw_status plan_estimate(void *user, const ir_graph *graph, const ir_node *node, const int64_t *symbols, double *seconds);

/* "s=128,b=2" into values of the graph's symbols; symbols not named keep what is there. NOT_FOUND names the known ones. */
dw_status plan_read_dims(dw_context *context, const ir_graph *graph, const char *dims, int64_t *symbols);
/* Sizes that nobody gave, brought into each symbol's range: 1 for a leading axis of an input, else 128, or what the example of the export had (IR_NOTE_EXAMPLE) where that is more.
 * Of a cached step the example says nothing but how long an encoder's input is. */
void plan_typical_dims(const ir_graph *graph, int64_t *symbols);
static inline plan_value *plan_value_of(const ir_value *value) { return value->mark; }
/* The value that the step reads packed, where it reads one so. */
static inline plan_value *plan_packed_operand(const plan_step *step) { return step->pack_key != NULL ? plan_value_of(ir_in(step->node, step->row->packs)) : NULL; }

const char *plan_place_name(plan_place place);
/* The question that a step's kernel was chosen for. in and out have room for the node's operands and results. */
void plan_problem(const plan *plan, const plan_step *step, const op_type **in, const op_type **out, kernel_problem *problem);
/* The text form, which plan_parse reads back: chip and hash, precision, graph, and a line per step with its kernel. */
dw_status plan_print(const plan *plan, text *text);
/* weights: where params take their data from; those that are not there have none. MISMATCH when chip is not the one the plan was made for; UNSUPPORTED names a kernel that is not here. */
dw_status plan_parse(dw_context *context, const char *source, const char *bytes, size_t length, ir_weights *weights,
                     const chip_caps *chip, const kernel_registry *registry, plan **result);

/* ---- binding: sizes known (bind.c, memory.c) ---- */

/* One step ready to run. */
typedef struct plan_call {
    kernel_run run;
    kernel_norm norm;                 /* that it does where run.norm is this, */
    kernel_norm heads[2];             /* and those that run.heads are */
    const dw_tensor **in;
    const dw_tensor **out;
} plan_call;

/* Places in the workspace that serve all sizes at which no value is larger than bytes says; arrays by plan_value index. Placing anew at
 * each size would not do: smaller values may pack worse, and so need more than the workspace that the largest sizes were given. */
typedef struct plan_layout {
    dw_context *context;
    const plan *plan;
    size_t *bytes, *offsets;
    size_t value_bytes;               /* of workspace */
} plan_layout;

/* All storage is made by plan_binding_create; plan_bind and plan_attach allocate nothing. */
typedef struct plan_binding {
    dw_context *context;              /* of who runs it, which need not be the plan's */
    const plan *plan;
    const plan_layout *layout;        /* taken where it serves the sizes; NULL: values are placed anew */
    arena arena;
    int64_t *symbols;
    dw_tensor *tensors;               /* by plan_value index */
    size_t *bytes;                    /* by plan_value index */
    size_t *offsets;                  /* by plan_value index: from the base's place (workspace offset), or from the base's first byte for views */
    plan_call *calls;                 /* by step */
    size_t value_bytes;               /* of workspace for values, */
    size_t scratch_bytes;             /* and behind it for the kernels' scratch */
    int *order;                       /* scratch of the memory planner */
    bool bound;
    bool holds_values;                /* set by who looks at every value: none is left for the step that reads it to make */
} plan_binding;

/* Memory that tensors are attached to. constants by value index (NULL for others), packed by step index. */
typedef struct plan_bases {
    uint8_t *workspace;
    void *const *inputs, *const *outputs, *const *states;
    const dw_tensor *constants;
    const void *const *packed;
    pool *pool;
} plan_bases;

dw_status plan_binding_create(dw_context *context, const plan *plan, plan_binding *binding);
void plan_binding_destroy(plan_binding *binding);
/* What a step is estimated to take at the sizes of the binding, with the launches that are saved there (estimate.c). */
double plan_call_seconds(const plan_binding *binding, int step);
/* Shapes, strides and offsets for these sizes. INVALID names a symbol out of its range. */
dw_status plan_bind(plan_binding *binding, const int64_t *symbols);
/* Sets scratch_bytes, which may depend on the number of threads. */
void plan_size_scratch(plan_binding *binding, pool *pool, kernel_comm *comm);
/* Fills in the data pointers of everything that a run touches. Call again whenever a base changes. */
void plan_attach(plan_binding *binding, const plan_bases *bases);
/* Places workspace values by their lives and bytes; sets offsets (of those values alone) and value_bytes. order is scratch, one per value. */
void plan_place_values(const plan *plan, const size_t *bytes, int *order, size_t *offsets, size_t *value_bytes);

/* Layouts (reserve.c): empty ones serve no size; widen them, then place. */
dw_status plan_layout_create(const plan *plan, arena *arena, plan_layout *layout);
/* The sizes that binding is bound to. */
void plan_layout_widen(plan_layout *layout, const plan_binding *binding);
/* All sizes up to these, whatever values do in between; values whose bound is not known are left as they are. */
dw_status plan_layout_widen_up_to(plan_layout *layout, const int64_t *symbols);
dw_status plan_layout_place(plan_layout *layout);
/* Every workspace value of a binding: offset, bytes, life. */
dw_status plan_print_memory(const plan_binding *binding, text *text);

#endif
