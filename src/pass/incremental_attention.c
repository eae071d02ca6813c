/* Attention in a step: queries are the new tokens, keys and values all so far. New keys and values are written into a state at past:
 *
 *     attention q, k, v {causal=true}
 *     %1 = slice_scatter cache.0, k {axis=2,start=past}; %2 = slice %1 {end=past+s}; .. v; attention q, %2, %4 {causal=true,offset=past}
 *
 * Causality is read off the attributes alone: masks that were not read there do not count. */
#include "pass/attention.h"
#include "pass/step.h"

/* Is axis 2 of a [b, h, s, d] operand the new tokens, and nothing else a sequence? */
static bool runs_over_new(const step_record *record) {
    const step_label *label = &record->label;
    return record->active && label->sequences == 1 && label->kinds[0] == STEP_NEW && label->axes[2].count == 1 && label->axes[2].atoms[0].sequence;
}

/* Links of a mask or bias: along queries it follows the new tokens, along keys all. */
static dw_status link_mask(stepper *stepper, const ir_node *node, int index, bool cached, step_record *record) {
    const step_record *operand = step_of(ir_in(node, index));
    const int shift = 4 - operand->label.rank;
    const char *what = index == ATTENTION_MASK ? "mask" : "bias";
    if (operand->active) return step_refuse(stepper, record, node, "its %s depends on the tokens", what);
    for (int i = 0; i < operand->label.rank; i++) {
        const int count = step_axis_sequences(&operand->label.axes[i]);
        if (count == 0) continue;
        const bool query = i + shift == 2, key = i + shift == 3 && cached;
        if (count > 1 || (!query && !key)) return step_refuse(stepper, record, node, "its %s runs over tokens along axis %d", what, i);
        record->links[index].to[step_first_sequence(&operand->label, i)] = query ? 0 : STEP_LINK_ALL;
    }
    return DW_OK;
}

static dw_status check_causal(stepper *stepper, const ir_node *node, step_record *record) {
    if (op_attrs_get(&node->attrs, OP_ATTR_offset) != NULL) return step_refuse(stepper, record, node, "it has an offset already");
    if (ir_bool(node, OP_ATTR_causal)) return DW_OK;
    const int64_t ahead = ir_int(node, OP_ATTR_ahead);
    if (ahead > 0) return step_refuse(stepper, record, node, "a token sees up to %lld after it", (long long)(ahead - 1));
    if (ir_in(node, ATTENTION_MASK) != NULL) return step_refuse(stepper, record, node, "its mask is not causal as far as it can be read");
    return step_refuse(stepper, record, node, "a token sees those after it");
}

dw_status step_rule_attention(stepper *stepper, const ir_node *node, step_record *record) {
    const step_record *q = step_of(ir_in(node, ATTENTION_Q)), *k = step_of(ir_in(node, ATTENTION_K)), *v = step_of(ir_in(node, ATTENTION_V));
    const bool cached = k->active || v->active;
    if (!runs_over_new(q)) return step_refuse(stepper, record, node, "its queries do not run over the tokens alone");
    if (cached && (!runs_over_new(k) || !runs_over_new(v))) return step_refuse(stepper, record, node, "its keys and values do not run over the tokens alone");
    if (!cached && (k->label.sequences > 0 || v->label.sequences > 0)) {
        return step_refuse(stepper, record, node, "its keys and values run over tokens but do not depend on them");
    }
    if (cached) TRY(check_causal(stepper, node, record));
    if (!cached && (ir_bool(node, OP_ATTR_causal) || ir_int(node, OP_ATTR_window) != 0 || ir_int(node, OP_ATTR_ahead) != 0)) {
        return step_refuse(stepper, record, node, "it limits keys that are no tokens by position");
    }
    record->label = q->label;
    record->label.axes[3] = v->label.axes[3];
    for (int i = ATTENTION_MASK; i <= ATTENTION_BIAS; i++) {
        if (ir_in(node, i) != NULL) TRY(link_mask(stepper, node, i, cached, record));
    }
    return DW_OK;
}

/* The keys or values of all tokens so far: value written into its state, which is read up to the newest token. */
static dw_status cache_value(stepper *stepper, const ir_node *node, ir_value *value, ir_value **cached) {
    ir_graph *graph = stepper->graph;
    step_record *record = step_of(value);
    if (record->cached != NULL) return *cached = record->cached, DW_OK;
    char name[32];
    ir_value *fresh = record->made[0], *state, *updated;
    op_type type = fresh->type;
    type.dims[2] = stepper->max;
    snprintf(name, sizeof name, "cache.%d", stepper->cache_count++);
    TRY(ir_add_state(graph, name, &type, NULL, &state));
    ir_value *const in[2] = {state, fresh};
    const op_attr attrs[] = {op_set_int(OP_ATTR_axis, 2), op_set_dim(OP_ATTR_start, stepper->past), op_set_int(OP_ATTR_step, 1)};
    dim zero;
    TRY_DIM(graph->context, zero, dim_constant(graph->dims, 0));
    graph->origin = node->origin;
    TRY(ir_emit(graph, OP_slice_scatter, 2, in, COUNT_OF(attrs), attrs, &updated));
    TRY(ir_emit_slice(graph, updated, 2, zero, stepper->total, 1, &record->cached));
    ir_set_next(state, updated);
    *cached = record->cached;
    return DW_OK;
}

dw_status step_make_attention(stepper *stepper, ir_node *node) {
    ir_graph *graph = stepper->graph;
    step_record *record = step_of(ir_out(node));
    ir_value *in[ATTENTION_OPERANDS] = {NULL}, *result;
    op_attr attrs[OP_ATTR_COUNT];
    int count = node->attrs.count;
    ir_cursor_end(graph);
    const bool cached = step_of(ir_in(node, ATTENTION_K))->active;
    for (int i = 0; i < node->n_in; i++) {
        step_kind needed[STEP_MAX_SEQUENCES] = {STEP_FREE};
        ir_value *operand = ir_in(node, i);
        if (operand == NULL) continue;
        for (int j = 0; j < step_of(operand)->label.sequences; j++) needed[j] = record->links[i].to[j] == STEP_LINK_ALL ? STEP_ALL : STEP_NEW;
        if (cached && (i == ATTENTION_K || i == ATTENTION_V)) {
            TRY(cache_value(stepper, node, operand, &in[i]));
        } else {
            TRY(step_make(stepper, operand, needed, &in[i]));
        }
    }
    for (int i = 0; i < count; i++) attrs[i] = node->attrs.items[i];
    if (cached) attrs[count++] = op_set_dim(OP_ATTR_offset, stepper->past);
    graph->origin = node->origin;
    TRY(ir_emit(graph, OP_attention, node->n_in, in, count, attrs, &result));
    record->made[0] = result;
    return DW_OK;
}
