/* Graphs: made from files, exported programs or text, or node by node. What ops mean is in docs/ops.md; how the text looks is in docs/text.md. */
#ifndef DEEPWELL_GRAPH_H
#define DEEPWELL_GRAPH_H

#include "deepwell/format.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_graph dw_graph;
/* A value of a graph; lives as long as the graph. */
typedef struct ir_value dw_value;

/* An empty graph. Calls on a graph whose dw_model_create took it over are errors of the caller. */
DW_API dw_status dw_graph_create(dw_context *context, const char *name, dw_graph **graph);
/* A graph in its text form; source is the name used in messages. Params have no data: dw_graph_bind gives it. */
DW_API dw_status dw_graph_parse(dw_context *context, const char *source, const char *text, size_t length, dw_graph **graph);
/* A .pt2 archive, mapped for the life of the graph and of the model that takes it over, or a graph in its text form. */
DW_API dw_status dw_graph_open(dw_context *context, const char *file, dw_graph **graph);
/* An exported program in memory: the JSON that a .pt2 holds as models/<name>.json, and the tensors that such an archive holds as records: parameters,
 * buffers and constants under the names that the program's signature gives them, of its dtypes and shapes, with any strides that are not negative. Their memory is borrowed:
 * it outlives the graph and every model made of it, and what a model computed from it does not follow a change until dw_model_update. source is the name used in messages.
 * places: where each tensor's memory is, NULL for the host's, else the name of a GPU, "cuda:0": its data is an address there, a multiple of 16, of elements without gaps. A model
 * on that GPU reads the tensor in place; nothing looks at its numbers while a graph is changed; on another device it is an error. places NULL: all are the host's. */
DW_API dw_status dw_graph_program(dw_context *context, const char *source, const char *json, size_t length, int tensor_count,
                                  const dw_named_tensor *tensors, const char *const *places, dw_graph **graph);
/* Gives params and states their data by name, borrowed as above. NOT_FOUND for a name that is none of the graph's, MISMATCH when format or
 * shape differ. Those without data: a state begins with zeros, a param is an error when it is needed. */
DW_API dw_status dw_graph_bind(dw_graph *graph, int tensor_count, const dw_named_tensor *tensors);
DW_API void dw_graph_destroy(dw_graph *graph);

/* What goes in and comes out: the name, which lives as long as the graph, and its type such as "f32[b,s,64]" into type. LIMIT when that needs
 * more than size bytes, INVALID for an index out of range. */
DW_API int dw_graph_input_count(const dw_graph *graph);
DW_API int dw_graph_output_count(const dw_graph *graph);
DW_API dw_status dw_graph_input_at(const dw_graph *graph, int index, const char **name, char *type, size_t size);
DW_API dw_status dw_graph_output_at(const dw_graph *graph, int index, const char **name, char *type, size_t size);

/* An input of a type such as "f32[b,s,64]"; sizes that are names are symbols, any size of at least 0 unless dw_graph_symbol says otherwise. */
DW_API dw_status dw_graph_input(dw_graph *graph, const char *name, const char *type, dw_value **value);
/* A weight. The tensor's memory is borrowed: it outlives the graph and every model made of it. */
DW_API dw_status dw_graph_param(dw_graph *graph, const char *name, const dw_tensor *tensor, dw_value **value);
/* The range of a symbolic size; made if it is new. */
DW_API dw_status dw_graph_symbol(dw_graph *graph, const char *name, int64_t min, int64_t max);
/* A node: op and attributes as in the text form ("bt=true,post=\"bias,gelu\"", "" for none). An operand may be NULL where the op allows it.
 * results has room for result_count; an op with more results than that is INVALID. */
DW_API dw_status dw_graph_op(dw_graph *graph, const char *op, const char *attributes, int operand_count, dw_value *const *operands, int result_count,
                             dw_value **results);
DW_API dw_status dw_graph_output(dw_graph *graph, const char *name, dw_value *value);
/* The text form, to a sink that is called with pieces of it. */
DW_API dw_status dw_graph_print(const dw_graph *graph, void (*sink)(void *user, const char *text, size_t length), void *user);

/* The input i64[2] of a graph that draws, as dropout of a model exported in train mode does: the seed, and a number that is another one for each run that shall draw others. The same two draw the same
 * on every device. A trainer gives it on its own. */
#define DW_RANDOM_DRAW "random.draw"

/* Zero-initialise, then set what matters. */
typedef struct dw_gradient_options {
    const char *loss;       /* the output whose gradient is taken: one floating-point number; NULL: the only such output */
    const char *trained;    /* patterns over the names of parameters, separated by commas ('*' any characters, '?' one); NULL: every floating-point parameter that is no buffer,
                             * or none where inputs are named */
    const char *inputs;     /* patterns over the names of floating-point inputs whose gradients are outputs grad.<input>, too; NULL: none */
    const char *recompute;  /* what of the forward part is made again for gradients instead of being kept: none, cheap, attention or block, and rules in front of it over paths of modules, the first that
                             * matches wins: "blocks.0.* = none, role:attention = cheap, block" (docs/train.md); gradients have the same bits whatever it is. NULL: none */
    int chunks;             /* logits that only a cross entropy reads, and their gradient, are there in so many parts of their rows, one after the other, at most 64; 0, 1: whole. Where they cannot be
                             * the new graph's note "logits.whole" says why */
    int columns;            /* rows of such logits are made so long, by -inf behind the classes, that their length is a multiple of this number, at most 1024: a GPU's kernels read rows best that begin
                             * at multiples of 16 bytes. No number changes. 0, 1: as they are */
    int merged;             /* 1: products that project one value to query, key and value of an attention, by trained weights of modules beside each other, become one, and so do their gradients; their sums
                             * have another order. 0: they stay apart */
} dw_gradient_options;
/* A new graph that computes gradients: the outputs of graph, and behind them grad.<parameter> for each trained one, of its shape and format; its note "loss" names the loss. A trained parameter is a state of
 * the new graph, which begins with the parameter's data and stays as it is; so no numbers of it are built into a plan. graph stays as it is, and outlives the new one, as it has the data.
 * INVALID or NOT_FOUND: there is no such loss or parameter. UNSUPPORTED names an op between a trained parameter and the loss whose gradient is not known, with its module.
 * No gradient flows through what the exported program detaches, or computes without gradients (reshape with detached=true).
 * options may be NULL. */
DW_API dw_status dw_graph_gradient(const dw_graph *graph, const dw_gradient_options *options, dw_graph **gradients);

#ifdef __cplusplus
}
#endif
#endif
