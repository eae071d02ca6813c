/* One op without a graph: a graph of that one node is planned and run at once. */
#include "deepwell/ops.h"

#include "engine/engine.h"
#include "device/device.h"

static dw_status add_operand(ir_graph *graph, int index, const dw_tensor *tensor, dw_value **value) {
    char name[16];
    op_type type = {.format = tensor->format, .scale_layout = tensor->scale_layout, .rank = tensor->rank};
    snprintf(name, sizeof name, "in%d", index);
    if (tensor->rank < 0 || tensor->rank > DW_MAX_RANK)
        return base_fail(graph->context, DW_INVALID, "operand %d: rank %d is not in 0..%d", index, tensor->rank, DW_MAX_RANK);
    for (int i = 0; i < tensor->rank; i++) TRY_DIM(graph->context, type.dims[i], dim_constant(graph->dims, tensor->dims[i]));
    return ir_add_input(graph, name, &type, value);
}

static dw_status build(ir_graph *graph, const char *op, const char *attributes, int input_count, const dw_tensor *const *inputs, int output_count,
                       dw_value **results) {
    dw_value *operands[KERNEL_MAX_OPERANDS] = {0};
    if (input_count < 0 || input_count > KERNEL_MAX_OPERANDS || output_count < 1 || output_count > KERNEL_MAX_RESULTS)
        return base_fail(graph->context, DW_INVALID, "%s: %d operands and %d results; at most %d and %d", op, input_count, output_count,
                         KERNEL_MAX_OPERANDS, KERNEL_MAX_RESULTS);
    for (int i = 0; i < input_count; i++)
        if (inputs[i] != NULL) TRY(add_operand(graph, i, inputs[i], &operands[i]));
    return dw_graph_op(graph, op, attributes, input_count, operands, output_count, results);
}

static dw_status describe(const ir_value *value, dw_context *context, dw_tensor *output) {
    return op_tensor_bind(context, &value->type, NULL, NULL, output);
}

dw_status dw_op_shapes(dw_context *context, const char *op, const char *attributes, int input_count, const dw_tensor *const *inputs, int output_count,
                       dw_tensor *outputs) {
    ir_graph *graph;
    dw_value *results[KERNEL_MAX_RESULTS] = {0};
    TRY(ir_graph_create(context, "op", &graph));
    dw_status status = build(graph, op, attributes, input_count, inputs, output_count, results);
    for (int i = 0; i < output_count && status == DW_OK; i++)
        status = results[i] ? describe(results[i], context, &outputs[i])
                            : base_fail(context, DW_INVALID, "%s has fewer than %d results", op, output_count);
    ir_graph_destroy(graph);
    return status;
}

static bool same_shape(const dw_tensor *a, const dw_tensor *b) {
    bool same = a->format == b->format && a->rank == b->rank;
    for (int i = 0; same && i < a->rank; i++) same = a->dims[i] == b->dims[i];
    return same;
}

static dw_status run_kernel(dw_context *context, const ir_graph *graph, const ir_node *node, const dw_registry *registry,
                            const dw_tensor *const *inputs, const dw_tensor *const *outputs) {
    chip_caps chip;
    arena arena;
    kernel_choice choice;
    const op_type *in[KERNEL_MAX_OPERANDS], *out[KERNEL_MAX_RESULTS];
    kernel_problem problem = {.op = op_get(node->op),
                              .attrs = &node->attrs,
                              .n_in = node->n_in,
                              .n_out = node->n_out,
                              .in = in,
                              .out = out,
                              .dims = graph->dims,
                              .chip = &chip};
    kernel_run run = {
        .call = {.context = context, .op = problem.op, .attrs = &node->attrs, .n_in = node->n_in, .in = inputs, .n_out = node->n_out, .out = outputs},
        .chip = &chip};
    for (int i = 0; i < node->n_in; i++) in[i] = ir_in(node, i) ? &ir_in(node, i)->type : NULL;
    for (int i = 0; i < node->n_out; i++) out[i] = &node->out[i]->type;
    TRY(op_post_parse(context, ir_attr_text(node, OP_ATTR_post), &problem.post));
    TRY(device_probe_cpu(context, "", dw_context_threads(context), &chip));
    TRY(base_pool(context, &run.pool));
    arena_init(&arena, context);
    dw_status status = kernel_choose(&arena, &problem, engine_registry_rows(registry), NULL, &choice);
    if (status == DW_OK) {
        run.post = problem.post;
        run.user = choice.row->user;
        size_t bytes = kernel_workspace(choice.row, &run);
        if (bytes > 0) status = base_alloc(context, bytes, ENGINE_ALIGN, &run.workspace);
        if (status == DW_OK) status = kernel_execute(choice.row, &run);
        if (bytes > 0) base_release(context, run.workspace, bytes, ENGINE_ALIGN);
    }
    arena_free(&arena);
    return status;
}

dw_status dw_op_run(dw_context *context, const char *op, const char *attributes, const dw_registry *registry, int input_count,
                    const dw_tensor *const *inputs, int output_count, const dw_tensor *const *outputs) {
    ir_graph *graph;
    dw_value *results[KERNEL_MAX_RESULTS] = {0};
    TRY(ir_graph_create(context, "op", &graph));
    dw_status status = build(graph, op, attributes, input_count, inputs, output_count, results);
    for (int i = 0; i < output_count && status == DW_OK; i++) {
        dw_tensor expected;
        if (results[i] == NULL) status = base_fail(context, DW_INVALID, "%s has fewer than %d results", op, output_count);
        if (status == DW_OK) status = describe(results[i], context, &expected);
        if (status == DW_OK && (!same_shape(&expected, outputs[i]) || !op_tensor_is_contiguous(outputs[i])))
            status = base_fail(context, DW_MISMATCH, "%s: result %d is not contiguous memory of the shape that dw_op_shapes returns", op, i);
    }
    for (int i = 0; i < input_count && status == DW_OK; i++)
        if (inputs[i] != NULL && !op_tensor_is_contiguous(inputs[i]))
            status = base_fail(context, DW_MISMATCH, "%s: operand %d is not contiguous", op, i);
    if (status == DW_OK) status = run_kernel(context, graph, results[0]->node, registry, inputs, outputs);
    ir_graph_destroy(graph);
    return status;
}

dw_status dw_tensor_bytes(dw_context *context, const dw_tensor *shape, uint64_t *bytes) {
    num_parts parts;
    if (!num_layout(shape->format, shape->scale_layout, shape->rank, shape->dims, &parts))
        return base_fail(context, DW_LIMIT, "the bytes of a %s tensor overflow", dw_format_name(shape->format));
    *bytes = parts.total_bytes;
    return DW_OK;
}

dw_status dw_tensor_place(dw_context *context, dw_tensor *tensor, void *memory) {
    dw_tensor shape = *tensor;
    if (op_tensor_init(tensor, shape.format, shape.scale_layout, shape.rank, shape.dims, memory)) return DW_OK;
    return base_fail(context, DW_LIMIT, "the bytes of a %s tensor overflow", dw_format_name(shape.format));
}
