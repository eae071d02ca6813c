/* Inputs when nobody gave any, for bench and check: random but valid, positions in their order. */
#include "lab/lab.h"

#include <string.h>

static dw_status new_tensor(arena *arena, const op_type *type, const int64_t *symbols, dw_tensor *tensor) {
    num_parts parts;
    TRY(op_tensor_bind(arena->context, type, symbols, NULL, tensor));
    if (!num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts)) {
        return base_fail(arena->context, DW_LIMIT, "the bytes of an input or output overflow at these sizes");
    }
    tensor->data = arena_new(arena, parts.total_bytes + 1, 1);
    return tensor->data ? DW_OK : DW_NO_MEMORY;
}

/* The least size of an axis that value indexes, directly or through views and casts; most when it indexes none. */
static int64_t least_table(const ir_value *value, int64_t most) {
    for (const ir_use *use = value->uses; use != NULL; use = use->next) {
        const ir_node *node = use->node;
        int64_t size;
        if ((node->op == OP_take || node->op == OP_gather) && use->index == 1) {
            if (dim_is_constant(ir_in(node, 0)->type.dims[ir_int(node, OP_ATTR_axis)], &size) && size < most) most = size;
        } else if (node->op == OP_cast || (op_get(node->op)->traits & OP_TRAIT_VIEW)) {
            most = least_table(ir_out(node), most);
        }
    }
    return most;
}

dw_status lab_random_inputs(arena *arena, const plan *plan, const int64_t *symbols, dw_named_tensor *inputs) {
    const ir_graph *graph = plan->graph;
    for (size_t i = 0; i < graph->input_count; i++) {
        const ir_value *input = graph->inputs[i];
        dw_tensor *tensor = &inputs[i].tensor;
        num_class class = num_info(input->type.format)->class;
        inputs[i].name = input->name;
        TRY(new_tensor(arena, &input->type, symbols, tensor));
        const bool counts = class != NUM_FLOAT && class != NUM_BOOL && strstr(input->name, "position") != NULL && tensor->rank > 0;
        const int64_t length = counts ? tensor->dims[tensor->rank - 1] : 1;
        int64_t limit = least_table(input, INT64_MAX);
        if (limit == INT64_MAX) limit = 2;   /* a mask, most likely: mostly ones would hide nothing, zeros would hide all */
        for (int64_t k = 0, count = op_tensor_count(tensor); k < count; k++) {
            double value = 1;
            if (counts) value = (double)(k % length);
            else if (class == NUM_FLOAT) value = (double)num_random_normal(i, (uint64_t)k);
            else if (class != NUM_BOOL && limit > 2) value = (double)(num_random(i, (uint64_t)k) % (uint64_t)limit);
            num_store(tensor->format, tensor->data, k, value, true);
        }
    }
    return DW_OK;
}

dw_status lab_new_outputs(arena *arena, const plan *plan, const int64_t *symbols, dw_named_tensor *outputs) {
    const ir_graph *graph = plan->graph;
    for (size_t i = 0; i < graph->output_count; i++) {
        outputs[i].name = graph->outputs[i].name;
        TRY(new_tensor(arena, &graph->outputs[i].value->type, symbols, &outputs[i].tensor));
    }
    return DW_OK;
}
