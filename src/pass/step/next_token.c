/* What generation reads of a step: the logits, and in each row of them the likeliest token. Other outputs go (keys and values stay in the caches), so that nobody
 * brings them anywhere.
 *
 *     output logits %20                    [1,cache_ends,v]
 *     output logits %20; %21 = argmax %20 {axis=2,finite=true}; output step.next %21      [1,cache_ends]
 */
#include "pass/step/incremental.h"

int incremental_find_logits(const ir_graph *graph, int64_t *vocabulary) {
    for (size_t i = 0; i < graph->output_count; i++) {
        const op_type *type = &graph->outputs[i].value->type;
        const bool floats = type->format == DW_FORMAT_f32 || type->format == DW_FORMAT_bf16 || type->format == DW_FORMAT_f16;
        if (floats && type->rank >= 2 && type->rank <= 3 && dim_is_constant(type->dims[type->rank - 1], vocabulary)) return (int)i;
    }
    return -1;
}

dw_status pass_next_token(ir_graph *graph) {
    int64_t vocabulary;
    const int logits = incremental_find_logits(graph, &vocabulary);
    ir_value *next;
    if (logits < 0 || vocabulary == 0) return DW_OK;
    ir_value *value = graph->outputs[logits].value;
    for (size_t i = graph->output_count; i-- > 0;)
        if (i != (size_t)logits) TRY(ir_remove_output(graph, i));
    const op_attr attrs[] = {op_set_int(OP_ATTR_axis, value->type.rank - 1), op_set_bool(OP_ATTR_finite, true)};
    if (value->kind == IR_RESULT) ir_cursor_after(graph, value->node);
    TRY(ir_emit(graph, OP_argmax, 1, &value, COUNT_OF(attrs), attrs, &next));
    return ir_add_output(graph, STEP_OUTPUT_NEXT, next);
}
