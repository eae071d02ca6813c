/* Attention in a step: queries are the new tokens, of any texts; keys and values all of their texts. New ones are written into a state first:
 *
 *     attention q, k, v {causal=true}
 *     %1 = cache_write cache.0, k, step.row, step.position; .. v; attention q, %1, %2, -, -, -, step.row, step.position {causal=true}
 *
 * In pages each of them has one more operand, step.table, or that of the group of caches.
 *
 * Keys and values that are given (cross attention) have a row for each text, and end where given.<n>.last says.
 * Causality is read off the attributes alone: masks that were not read there do not count. */
#include "pass/attention/attention.h"
#include "pass/step/stepper.h"

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

/* One more attention reads these keys or values; window 0: all of them. */
static void widen_reach(step_record *record, int64_t window) {
    if (!record->read) record->reach = window;
    else if (window == 0 || record->reach == 0) record->reach = 0;
    else if (window > record->reach) record->reach = window;
    record->read = true;
}

dw_status step_rule_attention(stepper *stepper, const ir_node *node, step_record *record) {
    const step_record *q = step_of(ir_in(node, ATTENTION_Q)), *k = step_of(ir_in(node, ATTENTION_K)), *v = step_of(ir_in(node, ATTENTION_V));
    const bool cached = k->active || v->active;
    if (ir_bool(node, OP_ATTR_joined)) return step_refuse(stepper, record, node, "its result has the heads joined");
    if (node->n_out > 1) return step_refuse(stepper, record, node, "it has a second result");
    for (int i = ATTENTION_ROW; i <= ATTENTION_TABLE; i++)
        if (ir_in(node, i) != NULL) return step_refuse(stepper, record, node, "it has rows, positions or pages already");
    if (!runs_over_new(q)) return step_refuse(stepper, record, node, "its queries do not run over the tokens alone");
    if (cached && (!runs_over_new(k) || !runs_over_new(v))) return step_refuse(stepper, record, node, "its keys and values do not run over the tokens alone");
    if (!cached && (k->label.sequences > 0 || v->label.sequences > 0)) {
        return step_refuse(stepper, record, node, "its keys and values run over tokens but do not depend on them");
    }
    if (cached) TRY(check_causal(stepper, node, record));
    if (cached && record->refusal == NULL) {
        widen_reach(step_of(ir_in(node, ATTENTION_K)), ir_int(node, OP_ATTR_window));
        widen_reach(step_of(ir_in(node, ATTENTION_V)), ir_int(node, OP_ATTR_window));
    }
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

/* How many tokens a cache holds: all, or those that a token sees and as many more as one run writes before it reads. */
static dw_status cache_size(stepper *stepper, const step_record *record, dim *size) {
    ir_graph *graph = stepper->graph;
    dim before;
    *size = stepper->max;
    if (record->reach == 0) return DW_OK;
    TRY_DIM(graph->context, before, dim_constant(graph->dims, record->reach - 1));
    TRY_DIM(graph->context, before, dim_add(graph->dims, before, stepper->chunk));
    TRY_DIM(graph->context, *size, dim_min(graph->dims, stepper->max, before));
    return DW_OK;
}

/* ---- pages ---- */

static int64_t wider(int64_t a, int64_t b) { return a == 0 || b == 0 ? 0 : a > b ? a : b; }

void step_join_groups(stepper *stepper) {
    bool changed = true;
    while (changed) {
        changed = false;
        for (const ir_node *node = stepper->graph->first; node != NULL; node = node->next) {
            if (node->op != OP_attention || !step_of(ir_out(node))->active || !step_of(ir_in(node, ATTENTION_K))->active) continue;
            step_record *k = step_of(ir_in(node, ATTENTION_K)), *v = step_of(ir_in(node, ATTENTION_V));
            const int64_t reach = wider(k->reach, v->reach);
            changed = changed || k->reach != reach || v->reach != reach;
            k->reach = v->reach = reach;
        }
    }
}

static dw_status add_group(stepper *stepper, int64_t reach, step_group *group) {
    ir_graph *graph = stepper->graph;
    char table[32] = STEP_INPUT_TABLE, pages[32] = STEP_SYMBOL_PAGES;
    const int number = stepper->group_count;
    if (number > 0) snprintf(table, sizeof table, STEP_INPUT_TABLE ".%d", number);
    if (number > 0) snprintf(pages, sizeof pages, STEP_SYMBOL_PAGES ".%d", number);
    TRY_DIM(graph->context, stepper->slots, dim_symbol(graph->dims, STEP_SYMBOL_SLOTS, 1, DIM_UNBOUNDED));
    TRY_DIM(graph->context, stepper->entries, dim_symbol(graph->dims, STEP_SYMBOL_ENTRIES, 1, DIM_UNBOUNDED));
    TRY_DIM(graph->context, group->pages, dim_symbol(graph->dims, pages, 1, DIM_UNBOUNDED));
    const op_type type = {.format = DW_FORMAT_i32, .rank = 2, .dims = {stepper->rows, stepper->entries}};
    TRY(ir_add_input(graph, table, &type, &group->table));
    group->reach = reach;
    stepper->group_count++;
    return DW_OK;
}

/* The group of keys and values of which so many are seen. */
static dw_status find_group(stepper *stepper, int64_t reach, step_group **group) {
    step_group *groups = stepper->groups;
    for (int i = 0; i < stepper->group_count; i++)
        if (groups[i].reach == reach) return *group = &groups[i], DW_OK;
    if (stepper->group_count == STEP_MAX_GROUPS)
        return base_fail(stepper->graph->context, DW_LIMIT, "windows of more than %d sizes in one model", STEP_MAX_GROUPS);
    *group = &groups[stepper->group_count];
    return add_group(stepper, reach, *group);
}

int64_t incremental_reach_of(const ir_value *table) {
    int64_t reach = 0;
    bool read = false;
    for (const ir_use *use = table->uses; use != NULL; use = use->next) {
        if (use->node->op != OP_attention) continue;
        const int64_t window = ir_int(use->node, OP_ATTR_window);
        reach = read ? wider(reach, window) : window;
        read = true;
    }
    return reach;
}

/* The keys or values of all tokens so far: value written into its state. */
static dw_status cache_value(stepper *stepper, const ir_node *node, ir_value *value, ir_value **cached) {
    ir_graph *graph = stepper->graph;
    step_record *record = step_of(value);
    if (record->cached != NULL) return *cached = record->cached, DW_OK;
    char name[32];
    ir_value *fresh = record->made[0], *state;
    op_type type = fresh->type;
    step_group *group = NULL;
    type.dims[0] = stepper->rows;
    if (stepper->cache == STEP_CACHE_PAGES) {
        TRY(find_group(stepper, record->reach, &group));
        type.dims[0] = group->pages;
        type.dims[2] = stepper->slots;
    } else {
        TRY(cache_size(stepper, record, &type.dims[2]));
    }
    snprintf(name, sizeof name, "cache.%d", stepper->cache_count++);
    TRY(ir_add_state(graph, name, &type, NULL, &state));
    ir_value *const in[CACHE_OPERANDS] = {state, fresh, stepper->row, stepper->position, group != NULL ? group->table : NULL};
    graph->origin = node->origin;
    TRY(ir_emit(graph, OP_cache_write, group != NULL ? CACHE_OPERANDS : CACHE_TABLE, in, 0, NULL, &record->cached));
    ir_set_next(state, record->cached);
    *cached = record->cached;
    return DW_OK;
}

/* An operand that attends along the tokens or along nothing of a text; rows: what is given comes in a row for each text. */
static dw_status make_operand(stepper *stepper, const ir_node *node, int index, bool rows, ir_value **made) {
    const step_record *record = step_of(ir_out(node));
    ir_value *operand = ir_in(node, index);
    step_kind needed[STEP_MAX_SEQUENCES] = {STEP_FREE};
    if (rows && step_of(operand)->given && operand->type.rank == 4) return step_make_rows(stepper, operand, made);
    for (int j = 0; j < step_of(operand)->label.sequences; j++) needed[j] = record->links[index].to[j] == STEP_LINK_ALL ? STEP_ALL : STEP_NEW;
    return step_make(stepper, operand, needed, made);
}

/* Up to the last that is there. */
static int operand_count(const ir_node *node, ir_value *const in[ATTENTION_OPERANDS]) {
    int count = node->n_in;
    for (int i = ATTENTION_ROW; i < ATTENTION_OPERANDS; i++)
        if (in[i] != NULL) count = i + 1;
    return count;
}

/* Keys and values that depend on no input are the same for all texts, and stay as they are. */
dw_status step_make_attention(stepper *stepper, ir_node *node) {
    ir_graph *graph = stepper->graph;
    ir_value *in[ATTENTION_OPERANDS] = {NULL}, *result;
    op_attr attrs[OP_ATTR_COUNT];
    int count = 0;
    ir_cursor_end(graph);
    const bool cached = step_of(ir_in(node, ATTENTION_K))->active;
    const bool rows = step_of(ir_in(node, ATTENTION_K))->given && step_of(ir_in(node, ATTENTION_V))->given;
    for (int i = 0; i < node->n_in; i++) {
        if (ir_in(node, i) == NULL) continue;
        if (cached && (i == ATTENTION_K || i == ATTENTION_V)) {
            TRY(cache_value(stepper, node, ir_in(node, i), &in[i]));
        } else {
            TRY(make_operand(stepper, node, i, rows, &in[i]));
        }
    }
    if (cached || rows) in[ATTENTION_ROW] = stepper->row;
    if (cached) in[ATTENTION_POSITION] = stepper->position;
    if (cached && stepper->cache == STEP_CACHE_PAGES) in[ATTENTION_TABLE] = ir_in(in[ATTENTION_K]->node, CACHE_TABLE);
    if (rows) TRY(step_make_limit(stepper, ir_in(node, ATTENTION_K), &in[ATTENTION_POSITION]));
    for (int i = 0; i < node->attrs.count; i++) {
        if (node->attrs.items[i].id != OP_ATTR_causal) attrs[count++] = node->attrs.items[i];
    }
    if (in[ATTENTION_POSITION] != NULL) attrs[count++] = op_set_bool(OP_ATTR_causal, true);
    graph->origin = node->origin;
    TRY(ir_emit(graph, OP_attention, operand_count(node, in), in, count, attrs, &result));
    step_of(ir_out(node))->made[0] = result;
    return DW_OK;
}
