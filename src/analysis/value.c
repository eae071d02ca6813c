/* The analysis: a table of hash-consed expressions and a record per value of the graph, filled in one walk in order of execution.
 * How expressions simplify is in value_make.c and value_point.c, what each op does to them in value_rules.c. */
#include "analysis/value.h"

#include <string.h>

/* ---- expressions ------------------------------------------------------------------------------------------------- */

value_expr value_failed(value_analysis *analysis) {
    if (analysis->status == DW_OK) analysis->status = base_last_status(analysis->graph->context);
    if (analysis->status == DW_OK) analysis->status = DW_NO_MEMORY;
    return NULL;
}

dw_status value_status(const value_analysis *analysis) {
    return analysis->status;
}

static uint64_t hash_node(const value_node *node) {
    const uint64_t head[] = {(uint64_t)node->kind,   (uint64_t)node->class, (uint64_t)node->op, (uint64_t)node->format,
                             (uint64_t)node->axis,   (uint64_t)(uintptr_t)node->size, (uint64_t)(uintptr_t)node->source,
                             (uint64_t)node->count};
    uint64_t hash = base_hash(head, sizeof head, 0);
    hash = base_hash(&node->number, sizeof node->number, hash);
    for (int i = 0; i < node->count; i++) {
        hash = base_hash(&node->args[i]->id, sizeof node->args[i]->id, hash);
        if (node->factors != NULL) {
            const uint64_t factor = (uint64_t)(uintptr_t)node->factors[i];
            hash = base_hash(&factor, sizeof factor, hash);
        }
    }
    return hash;
}

static bool equal_nodes(const value_node *a, const value_node *b) {
    if (a->hash != b->hash || a->kind != b->kind || a->class != b->class || a->op != b->op || a->format != b->format || a->axis != b->axis ||
        a->size != b->size || a->source != b->source || a->count != b->count || (a->factors == NULL) != (b->factors == NULL) ||
        memcmp(&a->number, &b->number, sizeof a->number) != 0) {
        return false;
    }
    for (int i = 0; i < a->count; i++) {
        if (a->args[i] != b->args[i] || (a->factors != NULL && a->factors[i] != b->factors[i])) return false;
    }
    return true;
}

static dw_status grow_nodes(value_analysis *analysis) {
    const size_t slot_count = analysis->slot_count == 0 ? 256 : analysis->slot_count * 2;
    const value_node **nodes;
    TRY_NEW(nodes, &analysis->arena, slot_count);
    for (size_t i = 0; i < analysis->slot_count; i++) {
        const value_node *node = analysis->nodes[i];
        if (node == NULL) continue;
        size_t slot = node->hash & (slot_count - 1);
        while (nodes[slot] != NULL) slot = (slot + 1) & (slot_count - 1);
        nodes[slot] = node;
    }
    analysis->nodes = nodes;
    analysis->slot_count = slot_count;
    return DW_OK;
}

/* What follows from the arguments: size as a tree, the axes and BOUND that occur. */
static void summarise(value_node *node) {
    node->weight = 1;
    node->axes = node->kind == VALUE_INDEX ? 1u << node->axis : 0;
    node->bound = node->kind == VALUE_BOUND;
    for (int i = 0; i < node->count; i++) {
        node->weight += node->args[i]->weight;
        node->axes |= node->args[i]->axes;
        node->bound |= node->args[i]->bound && !(node->kind == VALUE_SCAN && i == 0);
    }
}

value_expr value_intern(value_analysis *analysis, const value_node *probe) {
    if (analysis->status != DW_OK) return NULL;
    value_node node = *probe;
    if (node.count == 0) node.factors = NULL;
    node.hash = hash_node(&node);
    if (2 * (analysis->node_count + 1) > analysis->slot_count && grow_nodes(analysis) != DW_OK) return value_failed(analysis);
    size_t slot = node.hash & (analysis->slot_count - 1);
    for (; analysis->nodes[slot] != NULL; slot = (slot + 1) & (analysis->slot_count - 1)) {
        if (equal_nodes(analysis->nodes[slot], &node)) return analysis->nodes[slot];
    }
    summarise(&node);
    if (node.weight > VALUE_MAX_WEIGHT) return NULL;

    value_node *made = arena_new(&analysis->arena, 1, sizeof *made);
    value_expr *args = arena_new(&analysis->arena, (size_t)node.count, sizeof *args);
    dim *factors = arena_new(&analysis->arena, node.factors == NULL ? 0 : (size_t)node.count, sizeof *factors);
    if (made == NULL || args == NULL || factors == NULL) return value_failed(analysis);
    for (int i = 0; i < node.count; i++) {
        args[i] = node.args[i];
        if (node.factors != NULL) factors[i] = node.factors[i];
    }
    *made = node;
    made->args = args;
    made->factors = node.factors == NULL ? NULL : factors;
    made->id = (int)analysis->node_count++;
    analysis->nodes[slot] = made;
    return made;
}

void value_set_scope(value_analysis *analysis, int rank, const dim *dims) {
    analysis->rank = rank;
    for (int i = 0; i < rank; i++) analysis->dims[i] = dims[i];
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

static size_t record_slot(const value_record *records, size_t slots, const ir_value *value) {
    const uint64_t address = (uint64_t)(uintptr_t)value;
    size_t slot = base_hash(&address, sizeof address, 0) & (slots - 1);
    while (records[slot].value != NULL && records[slot].value != value) slot = (slot + 1) & (slots - 1);
    return slot;
}

static dw_status add_record(value_analysis *analysis, const value_record *record) {
    if (2 * (analysis->record_count + 1) > analysis->record_slots) {
        const size_t slots = analysis->record_slots == 0 ? 256 : analysis->record_slots * 2;
        value_record *records;
        TRY_NEW(records, &analysis->arena, slots);
        for (size_t i = 0; i < analysis->record_slots; i++) {
            const value_record *old = &analysis->records[i];
            if (old->value != NULL) records[record_slot(records, slots, old->value)] = *old;
        }
        analysis->records = records;
        analysis->record_slots = slots;
    }
    analysis->records[record_slot(analysis->records, analysis->record_slots, record->value)] = *record;
    analysis->record_count++;
    return DW_OK;
}

static const value_record *find_record(const value_analysis *analysis, const ir_value *value) {
    if (value == NULL || analysis->record_slots == 0) return NULL;
    const value_record *record = &analysis->records[record_slot(analysis->records, analysis->record_slots, value)];
    return record->value == NULL ? NULL : record;
}

const value_formula *value_of(const value_analysis *analysis, const ir_value *value) {
    const value_record *record = find_record(analysis, value);
    return record == NULL ? NULL : record->formula;
}

const ir_node *value_stop(const value_analysis *analysis, const ir_value *value, const char **reason) {
    const value_record *record = find_record(analysis, value);
    if (record == NULL || record->formula != NULL) return NULL;
    *reason = record->reason;
    return record->stop;
}

/* ---- the walk ------------------------------------------------------------------------------------------------------ */

static dw_status record_formula(value_analysis *analysis, const ir_value *value, value_expr expr) {
    value_formula *formula;
    TRY_NEW(formula, &analysis->arena, 1);
    formula->format = value->type.format;
    formula->rank = value->type.rank;
    for (int i = 0; i < formula->rank; i++) formula->dims[i] = value->type.dims[i];
    formula->expr = expr;
    return add_record(analysis, &(value_record){.value = value, .formula = formula});
}

/* Inputs and params are looked up; the values of states are known only when the graph runs. */
static dw_status record_source(value_analysis *analysis, const ir_value *value) {
    if (dw_format_is_block(value->type.format)) return DW_OK;
    value_set_scope(analysis, value->type.rank, value->type.dims);
    double number;
    if (value->kind == IR_PARAM && ir_is_scalar(value, &number)) {
        const value_expr constant = value_cast(analysis, value_real(analysis, number), value->type.format);
        TRY(analysis->status);
        return constant == NULL ? DW_OK : record_formula(analysis, value, constant);
    }
    value_expr args[DW_MAX_RANK];
    for (int i = 0; i < value->type.rank; i++) args[i] = value_index(analysis, i);
    const value_expr expr = value_lookup(analysis, value, value_class_of(value->type.format), value->type.rank, args);
    TRY(analysis->status);
    return expr == NULL ? DW_OK : record_formula(analysis, value, expr);
}

static dw_status record_node(value_analysis *analysis, const ir_node *node) {
    enum { MAX_OPERANDS = 64 };
    const value_formula *in[MAX_OPERANDS] = {NULL};
    const char *reason = "its elements depend on activations";
    const ir_node *stop = node;
    bool known = node->n_in <= MAX_OPERANDS;
    for (int i = 0; i < node->n_in && known; i++) {
        const ir_value *operand = ir_in(node, i);
        if (operand == NULL) continue;
        in[i] = value_of(analysis, operand);
        if (in[i] != NULL) continue;
        known = false;
        const char *deeper = NULL;
        const ir_node *origin = value_stop(analysis, operand, &deeper);
        if (origin != NULL && (op_get(node->op)->traits & (OP_TRAIT_POINTWISE | OP_TRAIT_VIEW))) {
            stop = origin;
            reason = deeper;
        }
    }
    value_expr expr = NULL;
    if (known) {
        const op_type *type = &ir_out(node)->type;
        value_set_scope(analysis, type->rank, type->dims);
        expr = value_rule(analysis, node, in, &reason);
        TRY(analysis->status);
    }
    for (int i = 0; i < node->n_out; i++) {
        if (node->out[i] == NULL) continue;
        if (i == 0 && expr != NULL) {
            TRY(record_formula(analysis, node->out[i], expr));
        } else {
            TRY(add_record(analysis, &(value_record){.value = node->out[i], .stop = stop, .reason = reason}));
        }
    }
    return DW_OK;
}

static dw_status walk(value_analysis *analysis) {
    const ir_graph *graph = analysis->graph;
    for (size_t i = 0; i < graph->input_count; i++) TRY(record_source(analysis, graph->inputs[i]));
    for (size_t i = 0; i < graph->param_count; i++) TRY(record_source(analysis, graph->params[i]));
    for (const ir_node *node = graph->first; node != NULL; node = node->next) TRY(record_node(analysis, node));
    return DW_OK;
}

dw_status value_analyse(ir_graph *graph, value_analysis **analysis) {
    *analysis = NULL;
    void *memory;
    TRY(base_alloc(graph->context, sizeof(value_analysis), 16, &memory));
    value_analysis *made = memory;
    *made = (value_analysis){.graph = graph};
    arena_init(&made->arena, graph->context);
    const dw_status status = walk(made);
    if (status != DW_OK) {
        value_analysis_destroy(made);
        return status;
    }
    *analysis = made;
    return DW_OK;
}

void value_analysis_destroy(value_analysis *analysis) {
    if (analysis == NULL) return;
    dw_context *context = analysis->graph->context;
    arena_free(&analysis->arena);
    base_release(context, analysis, sizeof *analysis, 16);
}
