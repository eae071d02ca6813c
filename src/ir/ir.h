/* The graph: values in single assignment, nodes in order, weights by name; its text form, checks and walks.
 * It knows what ops are and nothing of how they run. */
#ifndef IR_IR_H
#define IR_IR_H

#include "op/op.h"
#include "deepwell/graph.h"

/* ---- weights (weights.c): named tensors in host memory ---- */

/* Bytes that a weight lies in, and whose they are. */
typedef struct ir_storage {
    const void *bytes;
    size_t length;
    void (*release)(void *owner);   /* NULL: somebody else keeps them alive */
    void *owner;
} ir_storage;

typedef struct ir_weight {
    const char *name;
    dw_tensor tensor;               /* data points into storage; strides may be any for element formats */
    const void *read_from;          /* where data was read from, when data is an aligned copy of that; else NULL */
    const char *place;              /* the device that has it ("cuda:0"), at the address there, and data is NULL; NULL: the host has it */
    const void *there;
    bool buffer;                    /* a buffer rather than a parameter of the module */
    bool decides;                   /* its values decided how a graph of it was compiled (ir_rely_on): with other values that has to be done again */
    bool is_local;                  /* lies in the arena of the graph that uses it, not among weights */
} ir_weight;

/* A record of a file, and what the file says that its bytes sum to. */
typedef struct ir_seal { const char *file, *record; const void *bytes; size_t length; uint64_t sum; uint64_t (*sum_of)(const void *bytes, size_t length); } ir_seal;

typedef struct ir_weights {
    dw_context *context;
    arena arena;
    map by_name;                    /* name -> ir_weight */
    ir_storage *storages;
    size_t storage_count, storage_capacity;
    ir_seal *seals;                 /* that nobody has held the records to yet */
    size_t seal_count, seal_capacity;
} ir_weights;

/* Empty ones in memory of their own; for graphs that keep their weights. NULL may be destroyed. */
dw_status ir_weights_create(dw_context *context, ir_weights **weights);
void ir_weights_destroy(ir_weights *weights);
void ir_weights_init(ir_weights *weights, dw_context *context);
void ir_weights_free(ir_weights *weights);                /* releases the storages */
/* Takes the storage over, also on failure (then it is released). */
dw_status ir_weights_own(ir_weights *weights, ir_storage storage);
/* INVALID when the name is taken. tensor.data must stay valid: it lies in an owned storage or outlives the weights. */
dw_status ir_weights_add(ir_weights *weights, const char *name, const dw_tensor *tensor, ir_weight **weight);
/* A new contiguous tensor of zeros, owned. */
dw_status ir_weights_new(ir_weights *weights, const char *name, dw_format format, int rank, const int64_t *dims, ir_weight **weight);
ir_weight *ir_weights_find(const ir_weights *weights, const char *name);
/* Copies the seal and its texts. Who opens a file adds those of the records that weights lie in, and reads none of their bytes. */
dw_status ir_weights_seal(ir_weights *weights, const ir_seal *seal);
/* Holds every sealed record to its sum, and forgets the seals: for who is about to compute with the weights. A pass over their bytes, by the pool's threads. CORRUPT names the first record
 * whose bytes are others. */
dw_status ir_weights_check(ir_weights *weights, pool *pool);

/* ---- values and nodes ---- */

typedef struct ir_value ir_value;
typedef struct ir_node ir_node;
typedef struct dw_graph ir_graph;

typedef enum ir_kind { IR_INPUT, IR_PARAM, IR_STATE, IR_RESULT } ir_kind;

/* When a value is known. Of a result: the latest of its operands', RUN where a symbol is in its shape or attributes, but for symbols of attributes that loading knows (dim_is_settled), and of a
 * collective, in which other ranks take part. */
typedef enum ir_rate {
    IR_RATE_LOAD,                   /* when the model is loaded: made of params, constants and shapes without symbols alone */
    IR_RATE_UPDATE,                 /* after an update of weights: made of these and of trained states. Its numbers change, so no pass reads them */
    IR_RATE_RUN                     /* in a run: made of inputs, other states or symbols */
} ir_rate;

/* One operand slot of a node, linked into the list of its value's uses. */
typedef struct ir_use {
    ir_value *value;                /* NULL: absent operand */
    ir_node *node;
    int index;
    struct ir_use *next, *previous; /* other uses of value */
} ir_use;

struct ir_value {
    ir_kind kind;
    int id;                         /* of results: %id; dense after ir_renumber */
    const char *name;               /* of inputs, params and states, unique among them */
    op_type type;
    ir_rate rate;                   /* kept by ir_update_rate */
    bool trained;                   /* of states: a parameter of the model that a trainer changes (ir_train) */
    ir_node *node;                  /* of results: who makes it */
    int result;                     /* and as which result */
    ir_use *uses;                   /* by nodes */
    int use_count;                  /* how many these are */
    int output_count, next_count;   /* outputs, and next values of other states, that it is: kept by ir_add_output, ir_set_output and ir_set_next */
    ir_weight *weight;              /* of params: the data, NULL when the text form came without weights */
    ir_value *next;                 /* of states: the value it has after the run (itself: unchanged); of the state's type; set by ir_set_next */
    void *mark;                     /* scratch of the pass that runs */
};

/* Where a node comes from. Any member may be NULL; the strings live as long as the graph (ir_intern). Kept through all passes: what is fused keeps the origin of its most telling part. */
typedef struct ir_origin {
    const char *module;             /* path of the module, "model.layers.0.mlp.up_proj" */
    const char *type;               /* the module's class, "Linear" */
    const char *name;               /* the exported name, "linear_4" */
    const char *role;               /* attention, mlp, embedding, norm, lm_head, router, expert, convolution */
    const char *phase;              /* of what computes gradients: dgrad (of values), wgrad (of weights), again (of the forward part, computed a second time); update: an optimiser's; NULL: the graph as it
                                     * was exported */
} ir_origin;

struct ir_node {
    op_id op;
    op_attrs attrs;
    ir_origin origin;
    int n_in, n_out;
    ir_use *in;                     /* n_in slots */
    ir_value **out;                 /* n_out results */
    ir_node *next, *previous;       /* order of execution */
    int order;                      /* ascending along the list after ir_renumber */
    void *mark;
};

typedef struct ir_output { const char *name; ir_value *value; } ir_output;

struct dw_graph {
    dw_context *context;
    arena arena;                    /* owns all below */
    dim_table *dims;
    const char *name;
    ir_weights *weights;            /* borrowed: the model keeps them; NULL in a graph parsed without weights */
    ir_weights *own_weights;        /* those that live and die with the graph (ir_weights_create); NULL: none. Copies of the graph borrow them */
    ir_value **inputs;  size_t input_count,  input_capacity;
    ir_value **params;  size_t param_count,  param_capacity;
    ir_value **states;  size_t state_count,  state_capacity;
    ir_output *outputs; size_t output_count, output_capacity;
    map names;                      /* of inputs, params and states -> ir_value */
    map output_names;               /* -> the name itself */
    map texts;                      /* strings of origins, each once */
    map notes;                      /* facts of the model: "tokenizer" -> "bytes", "source" -> file, .. (char *) */
    ir_node *first, *last;
    ir_node *cursor;                /* new nodes go before it; NULL: at the end */
    ir_origin origin;               /* what new nodes are given */
    int next_id, const_id;
    double folded;                  /* what folding has spent on this graph: elements touched and made, so that it ends (fold.c) */
};

/* The note of what the example of an export had along symbolic axes of inputs, "b=3,s=21": plans are made for sizes by it (plan_typical_dims), and it is no part of what a graph means,
 * so graphs that differ in it alone have one hash. */
#define IR_NOTE_EXAMPLE "example"

/* ---- building (graph.c; nodes: build.c, node.c) ---- */

dw_status ir_graph_create(dw_context *context, const char *name, ir_graph **graph);
void ir_graph_destroy(ir_graph *graph);                  /* NULL is allowed */
/* A deep copy with a dim table of its own; weights are shared. */
dw_status ir_graph_clone(const ir_graph *graph, ir_graph **copy);

/* A copy of text in the graph's arena, the same pointer for the same text. */
dw_status ir_intern(ir_graph *graph, const char *text, const char **interned);
dw_status ir_set_note(ir_graph *graph, const char *name, const char *text);
/* INVALID when the name is taken. Params and their weights have constant dims. A state begins with the weight of its own name
 * (so that the text form finds it again), or with zeros when initial is NULL; its next is itself until it is set. */
dw_status ir_add_input(ir_graph *graph, const char *name, const op_type *type, ir_value **value);
dw_status ir_add_param(ir_graph *graph, const char *name, const op_type *type, ir_weight *weight, ir_value **value);
dw_status ir_add_state(ir_graph *graph, const char *name, const op_type *type, ir_weight *initial, ir_value **value);
/* The param becomes a trained state of its name, in place, which begins with its weight. Rates of nodes follow by ir_renumber. */
dw_status ir_train(ir_graph *graph, ir_value *param);
dw_status ir_add_output(ir_graph *graph, const char *name, ir_value *value);   /* INVALID when an output has that name */
/* A constant of our own making: a param named const.<n> holding a new contiguous tensor of zeros for the caller to fill, in graph->weights, or in the graph
 * itself when that is NULL. of: the model's tensor that it is computed from (ir_model_tensor), which the name keeps, const.<n>.<of>; NULL: none. */
dw_status ir_add_constant(ir_graph *graph, const char *of, dw_format format, int rank, const int64_t *dims, ir_value **value, dw_tensor *tensor);

/* A node at the cursor, checked and inferred. in[i] may be NULL for an absent operand. Its first result comes back; the others are value->node->out[i].
 * The message of a failure names op, operands and origin. */
dw_status ir_emit(ir_graph *graph, op_id op, int n_in, ir_value *const *in, int n_attrs, const op_attr *attrs, ir_value **result);
/* Frequent forms of ir_emit. */
dw_status ir_emit_1(ir_graph *graph, op_id op, ir_value *x, ir_value **result);
dw_status ir_emit_2(ir_graph *graph, op_id op, ir_value *x, ir_value *y, ir_value **result);
dw_status ir_emit_cast(ir_graph *graph, ir_value *x, dw_format to, ir_value **result);              /* x itself when it has the format */
dw_status ir_emit_scalar(ir_graph *graph, dw_format format, double value, ir_value **result);       /* fill of shape [] */
dw_status ir_emit_size(ir_graph *graph, dim size, ir_value **result);
dw_status ir_emit_reshape(ir_graph *graph, ir_value *x, int rank, const dim *dims, ir_value **result);  /* x itself when it has the shape */
dw_status ir_emit_transpose(ir_graph *graph, ir_value *x, const int64_t *order, ir_value **result);
dw_status ir_emit_broadcast(ir_graph *graph, ir_value *x, int rank, const dim *dims, ir_value **result);
dw_status ir_emit_slice(ir_graph *graph, ir_value *x, int axis, dim start, dim end, int64_t step, ir_value **result);

/* ---- changing (change.c, node.c) ---- */

void ir_set_operand(ir_node *node, int index, ir_value *value);
dw_status ir_remove_output(ir_graph *graph, size_t index);
void ir_set_output(ir_graph *graph, size_t index, ir_value *value);
void ir_set_next(ir_value *state, ir_value *next);                /* next of the state's type */
/* Every use of from, outputs and next-states included, becomes a use of to. */
void ir_replace(ir_graph *graph, ir_value *from, ir_value *to);
/* INTERNAL when a result is still used. */
dw_status ir_remove(ir_graph *graph, ir_node *node);
dw_status ir_remove_param(ir_graph *graph, ir_value *param);      /* INTERNAL when something uses it */
dw_status ir_remove_input(ir_graph *graph, ir_value *input);      /* INTERNAL when something uses it */
dw_status ir_remove_state(ir_graph *graph, ir_value *state);      /* INTERNAL when something uses it or it changes */
void ir_cursor_before(ir_graph *graph, ir_node *node);            /* and takes over its origin */
void ir_cursor_after(ir_graph *graph, ir_node *node);
void ir_cursor_end(ir_graph *graph);
/* Replaces or adds one attribute (copied into the graph's arena). */
dw_status ir_set_attr(ir_graph *graph, ir_node *node, op_attr attr);
/* Recomputes the result types of a node from its operands (and, by ir_infer_all, of all nodes in order). */
dw_status ir_infer(ir_graph *graph, ir_node *node);
dw_status ir_infer_all(ir_graph *graph);
/* Puts nodes in an order where operands come first, keeping the present order where possible; INTERNAL on a cycle. */
dw_status ir_sort(ir_graph *graph);
/* Dense ids and orders from 1, in the order of the list. */
void ir_renumber(ir_graph *graph);

/* ---- asking (walk.c) ---- */

int ir_use_count(const ir_graph *graph, const ir_value *value);   /* uses by nodes, outputs and next-states */
bool ir_is_output(const ir_graph *graph, const ir_value *value);
/* The node that makes value, if it is of that op, else NULL. */
ir_node *ir_def(const ir_value *value, op_id op);
/* Is the value known before any input is (its rate is LOAD)?
 * After ir_replace or ir_set_operand: exact for the nodes touched, for those after them only after ir_infer or ir_renumber. */
bool ir_is_constant(const ir_value *value);
/* Does the value depend on no input of a run: is it a constant, or made of trained states? Whoever asks which operand of a product is its weight asks this;
 * whoever reads numbers asks ir_is_constant. */
bool ir_is_weight(const ir_value *value);
/* Is the node made again for gradients (its phase)? Then it stays apart from what it is a copy of, and both are computed alike. */
bool ir_is_again(const ir_node *node);
/* Is the param a constant of our own making (ir_add_constant)? */
bool ir_is_made(const ir_value *param);
/* The parameter or buffer of the model that a param holds or was computed from; NULL: made of nothing but the program, as the matrix of a Fourier transform is. */
const char *ir_model_tensor(const ir_value *param);
/* To be called where a pass concludes something from the data of a param. */
void ir_rely_on(const ir_value *param);
/* The number that every element of value is (a fill, or a constant param of one element or of equal elements, through views and casts). */
bool ir_is_scalar(const ir_value *value, double *number);
static inline ir_value *ir_in(const ir_node *node, int index) { return index < node->n_in ? node->in[index].value : NULL; }
static inline ir_value *ir_out(const ir_node *node) { return node->out[0]; }
/* Attributes of a node. */
static inline int64_t ir_int(const ir_node *node, op_attr_id id) { return op_attr_int(&node->attrs, id); }
static inline bool ir_bool(const ir_node *node, op_attr_id id) { return op_attr_bool(&node->attrs, id); }
static inline double ir_real(const ir_node *node, op_attr_id id) { return op_attr_real(&node->attrs, id); }
static inline const char *ir_attr_text(const ir_node *node, op_attr_id id) { return op_attr_text(&node->attrs, id); }
/* FLOPs and bytes of a node with the symbols bound. */
dw_status ir_work(const ir_graph *graph, const ir_node *node, const int64_t *symbols, op_work *work);

/* ---- text (print.c, parse.c), check.c, hash.c ---- */

/* The text form:
 *     graph mlp
 *       note   tokenizer "bytes"
 *       symbol s0 1..4096                      (every symbol that occurs; "1.." is unbounded)
 *       input  x  bf16[s0,4096]
 *       param  w1 bf16[11008,4096]
 *       const  const.0 i64[3] = 1, 2, 3        (params of at most 64 elements whose data is known)
 *       state  k0 f32[b,8,max,64]
 *       state  w2 f32[64,64] trained
 *       %1 = matmul x, w1 {bt=true} at "model.up_proj" type "Linear" name "linear" role mlp phase dgrad
 *       %2, %3 = topk %1 {axis=1,length=8,largest=true}
 *       next   k0 %9
 *       output y %2
 * An absent operand is '-'. Types of results are not written; they are inferred. Names that are no plain names are quoted. */
dw_status ir_print(const ir_graph *graph, text *text);
/* The same but for the note IR_NOTE_EXAMPLE. */
dw_status ir_print_without_example(const ir_graph *graph, text *text);
/* weights may be NULL; else params take their data from it by name and must agree with it in format and shape, and consts are added to it. */
dw_status ir_parse(dw_context *context, const char *source, const char *bytes, size_t length, ir_weights *weights, ir_graph **graph);
/* The graph that begins at the scanner's current token (a plan holds one), up to the first line that is no graph line. */
dw_status ir_parse_at(scanner *scanner, ir_weights *weights, ir_graph **graph);
/* Every invariant: order, uses, types equal to what inference gives, names, states. INTERNAL names the first that fails and its node. */
dw_status ir_check(const ir_graph *graph);
/* Of the text form without origins and the note IR_NOTE_EXAMPLE; weights by name, format and shape. */
dw_status ir_hash(const ir_graph *graph, uint64_t *hash);

#endif
