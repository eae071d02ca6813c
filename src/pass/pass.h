/* Passes: functions that rewrite a graph and keep what it means. One row of pass.def and one file each. Nothing here chooses kernels. */
#ifndef PASS_PASS_H
#define PASS_PASS_H

#include "ir/ir.h"
#include "pass/step/incremental.h"

/* When a pass runs: the stages one after another, in each its rows in the order of pass.def, again and again until none changes anything. */
typedef enum pass_stage {
    PASS_STAGE_CLEAN = 1,           /* what capture left: constants, copies, dead code */
    PASS_STAGE_STRUCTURE = 2,       /* norms, rotary, attention, activations one op each, what gradients are derived from; asked for by gradients alone */
    PASS_STAGE_FUSE = 4,            /* the same, and products and norms with what they take in */
    PASS_STAGE_INCREMENTAL = 8,     /* the step with cached keys and values, before its outputs are restricted to last tokens; asked for by generation alone */
    PASS_STAGE_PRECISION = 16,      /* quantisation by policy; the way to experts and back, of which nothing else is left behind the stage */
    PASS_STAGE_SHARD = 32,          /* the part of a rank, where there are several */
    PASS_STAGE_MERGE = 64,          /* projections of one precision, quantisers */
    PASS_STAGE_CHAIN = 128,         /* pointwise ops that are left, several at a time */
    PASS_STAGE_ALL = 255 - PASS_STAGE_STRUCTURE
} pass_stage;

/* ---- precision policies (policy.c) ---- */

/* A row of precision.def, or its weight-only form. */
typedef struct pass_precision_row {
    const char *name;
    dw_format weight, activation;   /* f32: as exported */
    dw_format cache;                /* of keys and values; f32: as exported; DW_FORMAT_COUNT: no cache is so */
    dw_format scores;               /* queries and keys of attention; f32, DW_FORMAT_COUNT: as for cache */
    const char *head, *meaning;
} pass_precision_row;

const pass_precision_row *pass_precision_get(int index);            /* NULL beyond the last */
const pass_precision_row *pass_precision_find(const char *name);    /* NULL when there is none */

/* Which layer gets which precision: rules in order, the first that matches wins. A rule is a pattern over the layer's name, which is its
 * module path ('*' stands for any characters, '?' for one), or "role:" and a pattern over its role. A rule gives one precision, or leaves several open with "or" between them.
 * It remembers which patterns matched, so one policy belongs to one model at a time. */
typedef struct pass_policy pass_policy;

/* defaults: "mxfp8", "mxfp8 or mxfp8-weights", or rules and at most one of these for what they leave: "lm_head=bf16,mxfp8"; NULL: as exported. rules: lines
 * "pattern = precision" or "pattern = precision or precision" with comments from '#', named source in messages; NULL: none. Rules of the text come first.
 * SYNTAX and NOT_FOUND name the place, and the precisions that there are. */
dw_status pass_policy_create(dw_context *context, const char *defaults, const char *source, const char *rules, pass_policy **policy);
void pass_policy_destroy(pass_policy *policy);                  /* NULL is allowed */
/* The precision of a layer, role NULL when it has none, and the rule that gave it, in words that live as long as the policy. weight: the name of the parameter at the bottom of its weight; NULL: there is none.
 * Of several that a rule leaves open it is the one that is settled for the weight, else the one that is tried. */
dw_status pass_policy_choose(pass_policy *policy, const char *layer, const char *role, const char *weight, const pass_precision_row **precision, const char **rule);
/* The most precisions that one of its rules leaves open, "fp8 or fp8-weights": 1 where all is said. */
enum { PASS_OPEN = 4 };
int pass_policy_open(const pass_policy *policy);
/* Layers for which nothing is settled take the precision of that number, from 0, or their rule's last; 0 to begin with. */
void pass_policy_try(pass_policy *policy, int choice);
/* What was settled for a layer's weight, by estimates: seconds in each precision, alone or with layers that it is merged with. because: of which run, or why it is no layer's own matter. */
typedef struct pass_settled { const char *weight, *because; int choice; double seconds[PASS_OPEN]; } pass_settled;
/* The policy borrows them. */
dw_status pass_policy_settle(pass_policy *policy, int count, const pass_settled *settled);
/* What is no layer: caches of keys and values, and scores of attention, by rules of the patterns "role:cache" and "role:scores". */
typedef enum pass_apart { PASS_CACHE, PASS_SCORES, PASS_APARTS } pass_apart;
/* Its precision, and the rule; NULL: there is none, and it stays as the export has it. */
const pass_precision_row *pass_policy_apart(pass_policy *policy, pass_apart which, const char **rule);
/* A graph was lowered by the policy: did that rule change anything? */
void pass_policy_used_apart(pass_policy *policy, pass_apart which, bool used);
/* Warns once for each pattern that has matched no layer so far. */
void pass_policy_warn(pass_policy *policy);
/* The policy in words: "mxfp8", "lm_head = bf16, mxfp8". */
const char *pass_policy_words(const pass_policy *policy);

/* Outputs that the precision pass adds, named "check." and the layer's name; equal graphs get equal names whatever the policy is. */
typedef enum pass_probe {
    PASS_PROBE_NONE,
    PASS_PROBE_LAYERS,              /* each product's result as it is computed in the chosen precision */
    PASS_PROBE_ISOLATED             /* all products in fp32, and beside each the product in the chosen precision of the same operands */
} pass_probe;

/* Does the whole of name match the pattern of that length ('*' stands for any characters, '?' for one)? (pattern.c) */
bool pass_matches(const char *pattern, size_t length, const char *name);
/* Does one of the comma-separated patterns, blanks around each aside? */
bool pass_is_listed(const char *patterns, const char *name);
/* The layer of a module, the outermost numbered one: the length of its path, "transformer.h.3" of "transformer.h.3.attn"; 0: it is in none. */
size_t pass_layer_length(const char *module);
/* The length of a module's path up to its last name, the dot included; 0: it has no parent, or is NULL. */
size_t pass_parent_length(const char *module);
/* Have both paths the same parent? Of none: both are NULL. */
bool pass_are_siblings(const char *module, const char *other);
/* Those of products that became one: "model.layers.0.self_attn.q_proj+k_proj+v_proj". */
dw_status pass_join_modules(ir_graph *graph, int count, ir_node *const *nodes, const char **module);

/* ---- policies of splits (shard/policy.c) ---- */

/* How a layer is cut over ranks; a row of split.def each. */
typedef enum pass_split {
    PASS_SPLIT_chosen,              /* no line names the layer: by what reads its result */
#define SPLIT(name, meaning) PASS_SPLIT_##name,
#include "pass/shard/split.def"
#undef SPLIT
} pass_split;
const char *pass_split_name(pass_split split);

/* Over which axis of a mesh of how many ranks graphs are cut, and rules as those of a precision policy: lines "pattern = split", the first that matches wins. */
typedef struct pass_splits pass_splits;
/* rules: NULL: none; source names them in messages. SYNTAX and NOT_FOUND name the place, and the splits that there are. */
dw_status pass_splits_create(dw_context *context, const char *over, int ranks, const char *source, const char *rules, pass_splits **splits);
void pass_splits_destroy(pass_splits *splits);                  /* NULL is allowed */
/* The split of a layer, either name NULL when it has none, and the rule that gave it, NULL: none. */
pass_split pass_splits_choose(pass_splits *splits, const char *module, const char *role, const char **rule);
/* INVALID: a pattern has matched no layer of the graphs that were cut. */
dw_status pass_splits_check(pass_splits *splits);
const char *pass_splits_over(const pass_splits *splits);
int pass_splits_ranks(const pass_splits *splits);
/* Is everything to be cut that can be, whatever time it takes? */
bool pass_splits_all(const pass_splits *splits);
/* Of products that are cut along k, where no line names them: tokens, row (whole sums), or chosen. */
pass_split pass_splits_sums(const pass_splits *splits);
/* May each rank have scales of its own of rows that are split? */
bool pass_splits_local_scales(const pass_splits *splits);
/* The place of the line that makes an error of what is computed whole for want of a rule; NULL: there is none. */
const char *pass_splits_strict(const pass_splits *splits);

/* What nodes take on the chip that is planned for, as the passes know no kernels. */
typedef struct pass_estimates {
    void *user;
    dw_status (*sizes)(void *user, const ir_graph *graph, int64_t *symbols);       /* typical ones */
    /* Of the node at these sizes; INFINITY: nothing runs it. */
    dw_status (*seconds)(void *user, const ir_graph *graph, const ir_node *node, const int64_t *symbols, double *seconds);
} pass_estimates;

/* ---- running ---- */

/* Of a rewrite that was undone, as what it makes does not check, the graph keeps a note: "undone.<fusion>.<module>", with the reason. */
#define PASS_UNDONE "undone."

/* Where fuse_attention reads padding hidden by finite numbers as a mask, the graph keeps a note under this name: what it means for a query that sees nothing else. */
#define PASS_PADDING "padding"

/* Zero-initialise, then set what matters; zero means the default. */
typedef struct pass_options {
    bool check;                     /* ir_check after every pass */
    size_t fold_bytes;              /* the largest constant that folding makes or reads; default 64 KiB */
    const bool *alone;              /* by op: those that join no chain, as a kernel was named for them; NULL: none */
    const char *dump;               /* a pass's name, or "all": after it show gets the graph's text */
    void (*show)(void *user, const char *pass, const char *graph);
    void *user;
    pass_policy *policy;            /* of the precision pass; NULL: it does nothing */
    pass_probe probe;
    bool plain_products, plain_attention;   /* they keep results in element formats: kernels of the caller's know no others */
    text *report;                   /* the precision pass appends a line per layer: name, precision, role, rule; may be NULL */
    pass_splits *splits;            /* of the pass that cuts a graph over ranks; NULL: it does nothing */
    const pass_estimates *estimates;   /* it chooses by them; NULL: all is cut that can be */
    text *told;                     /* it appends a line per layer: name, split, reason; may be NULL */
} pass_options;

/* *changed: was anything rewritten? A pass that runs again on its own result changes nothing. Nodes are left in an order where operands
 * come first; ids need not be dense. */
typedef dw_status (*pass_function)(ir_graph *graph, const pass_options *options, bool *changed);

#define PASS(name, stages, meaning) dw_status pass_##name(ir_graph *graph, const pass_options *options, bool *changed);
#include "pass/pass.def"
#undef PASS

typedef struct pass_row {
    const char *name, *meaning;
    unsigned stages;
    pass_function run;
} pass_row;

const pass_row *pass_get(int index);           /* NULL beyond the last */
const pass_row *pass_find(const char *name);   /* NULL when there is none */

/* One pass; then the graph is renumbered, checked if options say so, and shown if it is the one to dump. The message of a failure names the pass. */
dw_status pass_run_one(ir_graph *graph, const pass_row *row, const pass_options *options, bool *changed);
/* All passes of the stages (a union of pass_stage). INTERNAL when the passes of a stage go on changing the graph. */
dw_status pass_run(ir_graph *graph, unsigned stages, const pass_options *options);

#endif
