/* Graphs: made from text or node by node. What ops mean is in docs/ops.md; how the text looks is in docs/text.md. */
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
/* A graph in its text form; source is the name used in messages. Params have no data: the model takes them from dw_model_options.weights. */
DW_API dw_status dw_graph_parse(dw_context *context, const char *source, const char *text, size_t length, dw_graph **graph);
DW_API void dw_graph_destroy(dw_graph *graph);

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

#ifdef __cplusplus
}
#endif
#endif
