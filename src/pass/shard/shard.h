/* One model on many ranks: the parts of the pass that cuts a graph (shard.c), and what they share.
 *
 * Inside the pass a value is whole on each rank, split along an axis, or partial: then it is the sum of what the ranks have. Behind the pass the graph is plain: sizes are those of a part, the place of a rank
 * is the symbol rank.<axis>, which loading knows and which stands in slices of weights, and what ranks have to tell each other are collectives. So one text serves all ranks. */
#ifndef PASS_SHARD_SHARD_H
#define PASS_SHARD_SHARD_H

#include "pass/pass.h"

typedef enum shard_kind {
    SHARD_WHOLE,
    SHARD_SPLIT,                    /* of local elements along axis each rank has those from (rank / repeat) * local on */
    SHARD_PARTIAL,                  /* each rank has a term of the sum */
    SHARD_TOKENS,                   /* each rank has ceil(size / ranks) elements along axis, behind those of the ranks before it; what is over is zeros, and what they give (tokens.c) */
    SHARD_EXPERTS                   /* rows of the rank's own experts come first, in an order of its own; only combine makes something of it that others know */
} shard_kind;

typedef struct shard_place {
    shard_kind kind;
    int axis;
    int64_t size, local;            /* of the whole axis; of a part. local * (ranks / repeat) >= size: what is over is zeros of weights, and what they give */
    bool by_tokens;                 /* of a partial one: the sum is to be of some tokens on each rank */
    int repeat;                     /* ranks beside each other that have the same part: keys and values of fewer heads than ranks */
} shard_place;

/* How a value may be split along an axis, so that all that reads it goes on with its part until a product takes that along k. */
typedef struct shard_wish { bool good; int64_t unit; int repeat; } shard_wish;

enum { SHARD_PARTS = 4 };

/* Of each value that the graph had, in its mark. */
typedef struct shard_record {
    shard_place place;
    ir_value *local;                /* what the rank has of it by place */
    ir_value *whole;                /* all of it; NULL: nobody wanted that so far */
    struct { shard_place place; ir_value *value; } parts[SHARD_PARTS];   /* of a whole one, as they were wanted */
    int part_count;
    shard_place source;             /* of what is quantised whole, since a scale sees more than a part: where what it is made of is */
    bool is_by_rows;                /* scratch (experts.c) */
    bool known[DW_MAX_RANK];        /* is wishes[axis] there? */
    shard_wish wishes[DW_MAX_RANK];
} shard_record;

/* A cut whose graph is thrown away: what each of its nodes takes, in order, and which of them are cut together, as one goes on with parts of another. */
typedef struct shard_trial {
    bool by_columns;                /* products that could be cut along k are cut by columns */
    bool by_tokens;                 /* what products along k give is cut by tokens */
    int count;                      /* nodes of the graph, as they were */
    ir_node **nodes;
    int64_t *sizes;                 /* of each symbol */
    double *seconds, *whole;        /* by node: of what is made in its place, and of itself; INFINITY: nothing runs it */
    int *group;                     /* whom a node is cut with, in front of it; itself: it is the first of its group */
    bool *is_cut;
} shard_trial;

typedef struct sharding {
    ir_graph *graph;
    const pass_options *options;
    pass_splits *splits;
    arena arena;
    const char *over;               /* the axis of the mesh, */
    int ranks;                      /* and how many it has */
    dim rank;                       /* the place on it */
    int64_t rows;                   /* the rows of blocks that formats of weights have: columns are cut between them */
    double weight_bytes;            /* of all params */
    int64_t *usual;                 /* a size of each symbol, and at these sizes */
    double flops;                   /* of the graph, as it was */
    ir_node **replaced;             /* nodes whose part took their place, in order */
    int replaced_count;
    shard_record spare;             /* where memory for one ran out, which failed says: the pass ends behind the node */
    bool failed;
    text *report;
    shard_trial *trial;             /* NULL: this is no trial */
} sharding;

/* Where the elements lie that an operand's part gives: along axis of the results, times / per as many as along the operand's. axis -1: none. */
typedef struct shard_step { int axis; int64_t times, per; } shard_step;

/* ---- follow.c: axes ---- */
shard_step shard_follow(const ir_node *node, int index, int axis);
/* The same of an axis of any size. */
shard_step shard_follow_any(const ir_node *node, int index, int axis);
/* The axis of an operand that is followed to that of the results; -1: it has none, and is whole. */
int shard_axis_to(const ir_node *node, int index, int axis, shard_step *step);
bool shard_has_rule(op_id op);
bool shard_keeps_padding(const ir_node *node);
bool shard_constant_size(const ir_value *value, int axis, int64_t *size);   /* above 1 */

/* ---- wish.c: what reads a value ---- */
shard_wish shard_wish_of(sharding *sharding, ir_value *value, int axis);
bool shard_is_weighted(const ir_node *node);                /* a product with a weight that may be cut */
double shard_bytes(const ir_value *weight);
bool shard_is_large(const sharding *sharding, const ir_value *weight);   /* beside all weights */
int shard_k_axis(const ir_node *product), shard_n_axis(const ir_node *product);   /* of operand 1 */
/* The least number of elements between which the weight of a product may be cut along k, and along n. */
int64_t shard_k_unit(const ir_node *product);
int64_t shard_n_unit(const sharding *sharding, const ir_node *product);

/* ---- parts.c: from one place to another ---- */
/* A new value is whole. Never NULL. */
shard_record *shard_of(sharding *sharding, ir_value *value);
dw_status shard_whole(sharding *sharding, ir_value *value, ir_value **whole);
/* The part of a value that lies so. */
dw_status shard_part(sharding *sharding, ir_value *value, const shard_place *place, ir_value **part);
/* Elements of a constant or of a value that is whole on each rank. */
dw_status shard_slice(sharding *sharding, ir_value *value, const shard_place *place, ir_value **part);
bool shard_can_be_cut(const sharding *sharding, const ir_value *value, const shard_place *place);
bool shard_same_place(const shard_place *a, const shard_place *b);
/* So many elements in parts that begin at multiples of unit; local 0: there are fewer than parts. */
shard_place shard_place_of(const sharding *sharding, int axis, int64_t size, int64_t unit, int repeat);
void shard_set(sharding *sharding, ir_value *value, const shard_place *place, ir_value *local);
dw_status shard_replace(sharding *sharding, ir_node *node, const shard_place *place, ir_node *made);
/* Numbers of 8 bits, which no sum takes: they travel as bf16, which holds each of them. */
bool shard_is_narrow(dw_format format);
dw_status shard_sum(sharding *sharding, ir_value *value, const char *by, ir_value **sum);
/* The number of the rank's first element of such a place. */
dw_status shard_start(sharding *sharding, const shard_place *place, dim *start);

/* ---- tokens.c ---- */
shard_place shard_tokens_of(int axis);
int shard_tokens_axis(const ir_value *value);   /* -1: it has no tokens to cut between */
/* The sum of all ranks' terms, of the rank's tokens. */
dw_status shard_scatter(sharding *sharding, ir_value *term, int axis, ir_value **part);
dw_status shard_tokens_part(sharding *sharding, ir_value *value, int axis, ir_value **part);

/* ---- rules: each makes a node's part before it, and says in *done whether it did ---- */
dw_status shard_product(sharding *sharding, ir_node *node, bool *done);       /* product.c */
bool shard_is_logits(const sharding *sharding, const ir_node *product);       /* does its result come out, and is its weight a large part of all? */
dw_status shard_lookup(sharding *sharding, ir_node *node, bool *done);        /* lookup.c */
dw_status shard_ids(sharding *sharding, ir_value *value, ir_value **ids);     /* all of them, in i32 or i64 */
dw_status shard_likeliest(sharding *sharding, ir_node *node, bool *done);
dw_status shard_experts(sharding *sharding, ir_node *node, bool *done);       /* experts.c */
dw_status shard_by_tokens(sharding *sharding, ir_node *node, bool *done);     /* tokens.c */
dw_status shard_cut_packed(sharding *sharding, bool *changed);                /* packed.c: products whose results are taken apart become a product for each part */

/* ---- cut.c ---- */
dw_status shard_cut(sharding *sharding);
void shard_clear_marks(ir_graph *graph);

/* ---- trial.c: nothing where there is no trial ---- */
dw_status shard_trial_begin(sharding *sharding);
/* What was made behind before, and in front of node (NULL: up to the end), takes the place of node, or is what one that was made earlier tells other ranks. */
dw_status shard_trial_add(sharding *sharding, ir_node *before, ir_node *node);
int shard_trial_group(const shard_trial *trial, int node);

/* ---- choose.c: what takes the least time ---- */
/* Tells the policy, for layers that it has no line for. Nothing where no estimates are given. */
dw_status shard_choose(sharding *sharding);

/* ---- policy.c ---- */
void shard_tell(sharding *sharding, const ir_node *node, const char *choice, const char *reason);
/* others: what other ways take; may be NULL */
void shard_explain(sharding *sharding, const ir_node *node, const char *choice, const char *reason, const char *others);
/* What choose.c has found for a layer that no line names. chosen: by its readers. words: why, or what the other ways take; NULL: nothing is to be said. */
dw_status shard_prefer(pass_splits *splits, const char *module, pass_split split, const char *words);
/* Are the sums of a product along k by tokens? words: what either takes. */
dw_status shard_prefer_sums(pass_splits *splits, const char *module, bool by_tokens, const char *words);
bool shard_sums_are_decided(const pass_splits *splits, const char *module);
bool shard_is_decided(const pass_splits *splits, const char *module);
pass_split shard_preferred(const pass_splits *splits, const char *module, const char **words);

#endif
