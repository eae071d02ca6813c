/* Common subexpressions: of nodes with the same op, attributes and operands the first stays, with its origin, and of constants with the
 * same bytes. The operands of ops that commute may stand in either order. What is made again for gradients is another thing than what it is a copy of.
 *
 *     %1 = add x, y                      %1 = add x, y
 *     %2 = add y, x               ->     %2 = mul %1, %1
 *     %3 = mul %1, %2                    output z %2
 *     output z %3 */
#include "pass/pass.h"

#include <string.h>

typedef struct table {
    void **slots;               /* ir_node or ir_value; NULL is free */
    size_t count;               /* a power of two, at least twice the entries */
} table;

/* Room for entries things; the arena owns it. */
static dw_status table_init(table *table, arena *arena, size_t entries) {
    table->count = 16;
    while (table->count < 2 * entries) table->count *= 2;
    TRY_NEW(table->slots, arena, table->count);
    return DW_OK;
}

/* ---- nodes ---- */

/* Swapping must keep every bit: the minimum of 0.0 and -0.0 is whichever comes last. */
static bool may_swap(const ir_node *node) {
    if ((op_get(node->op)->traits & OP_TRAIT_COMMUTES) == 0 || node->n_in != 2) return false;
    bool is_choice = node->op == OP_minimum || node->op == OP_maximum;
    return !is_choice || num_info(node->out[0]->type.format)->class != NUM_FLOAT;
}

static uint64_t hash_attr(const op_attr *attr, uint64_t seed) {
    seed = base_hash(&attr->id, sizeof attr->id, seed);
    switch (op_attr_kind_of(attr->id)) {
    case OP_KIND_INT:
    case OP_KIND_BOOL: return base_hash(&attr->integer, sizeof attr->integer, seed);
    case OP_KIND_REAL: return base_hash(&attr->real, sizeof attr->real, seed);
    case OP_KIND_TEXT: return base_hash(attr->text, strlen(attr->text), seed);
    case OP_KIND_FORMAT: return base_hash(&attr->format, sizeof attr->format, seed);
    case OP_KIND_DIM: return base_hash(&attr->dim, sizeof attr->dim, seed);
    case OP_KIND_INTS: return base_hash(attr->integers, (size_t)attr->count * sizeof *attr->integers, seed);
    case OP_KIND_DIMS: return base_hash(attr->dims, (size_t)attr->count * sizeof *attr->dims, seed);
    }
    return seed;
}

static uint64_t hash_node(const ir_node *node) {
    uint64_t hash = base_hash(&node->op, sizeof node->op, (uint64_t)node->n_in);
    uint64_t operands = 0;
    for (int i = 0; i < node->n_in; i++) {
        const ir_value *value = node->in[i].value;
        uint64_t one = base_hash(&value, sizeof value, may_swap(node) ? 0 : (uint64_t)i);
        operands = may_swap(node) ? operands + one : base_hash(&one, sizeof one, operands);
    }
    hash = base_hash(&operands, sizeof operands, hash);
    for (int i = 0; i < node->attrs.count; i++) hash = hash_attr(&node->attrs.items[i], hash);
    return hash;
}

/* By their bits: 0.0 and -0.0 are not the same number here. */
static bool has_same_reals(const op_attrs *a, const op_attrs *b) {
    for (int i = 0; i < a->count; i++) {
        if (op_attr_kind_of(a->items[i].id) != OP_KIND_REAL) continue;
        if (memcmp(&a->items[i].real, &b->items[i].real, sizeof(double)) != 0) return false;
    }
    return true;
}

static bool is_same_node(const ir_node *a, const ir_node *b) {
    if (a->op != b->op || a->n_in != b->n_in || a->n_out != b->n_out || ir_is_again(a) != ir_is_again(b)) return false;
    if (!op_attrs_equal(&a->attrs, &b->attrs) || !has_same_reals(&a->attrs, &b->attrs)) return false;
    if (may_swap(a) && a->in[0].value == b->in[1].value && a->in[1].value == b->in[0].value) return true;
    for (int i = 0; i < a->n_in; i++) {
        if (a->in[i].value != b->in[i].value) return false;
    }
    return true;
}

/* The first node equal to node; node itself is entered when it is that. */
static ir_node *find_or_enter(table *table, ir_node *node) {
    size_t at = hash_node(node) & (table->count - 1);
    for (; table->slots[at] != NULL; at = (at + 1) & (table->count - 1)) {
        if (is_same_node(table->slots[at], node)) return table->slots[at];
    }
    table->slots[at] = node;
    return node;
}

static dw_status merge_nodes(ir_graph *graph, arena *scratch, bool *changed) {
    table table;
    size_t count = 0;
    for (const ir_node *node = graph->first; node != NULL; node = node->next) count++;
    TRY(table_init(&table, scratch, count));
    for (ir_node *node = graph->first, *next; node != NULL; node = next) {
        next = node->next;
        ir_node *first = find_or_enter(&table, node);
        if (first == node) continue;
        for (int i = 0; i < node->n_out; i++) ir_replace(graph, node->out[i], first->out[i]);
        TRY(ir_remove(graph, node));
        *changed = true;
    }
    return DW_OK;
}

/* ---- constants ---- */

/* Made by this library, contiguous: other params keep their names even if they hold the same. */
static bool is_constant(const ir_value *param) {
    if (param->weight == NULL || param->weight->tensor.data == NULL || dw_format_is_block(param->type.format)) return false;
    return ir_is_made(param) && op_tensor_is_contiguous(&param->weight->tensor);
}

static size_t data_bytes(const dw_tensor *tensor) {
    num_parts parts;
    return num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts) ? parts.data_bytes : 0;
}

static bool is_same_constant(const ir_value *a, const ir_value *b) {
    if (!op_type_equal(&a->type, &b->type)) return false;
    size_t bytes = data_bytes(&a->weight->tensor);
    return bytes == 0 || memcmp(a->weight->tensor.data, b->weight->tensor.data, bytes) == 0;
}

static dw_status merge_constants(ir_graph *graph, arena *scratch, bool *changed) {
    table table;
    TRY(table_init(&table, scratch, graph->param_count));
    for (size_t i = 0; i < graph->param_count; i++) {
        ir_value *param = graph->params[i];
        if (!is_constant(param) || param->uses == NULL) continue;
        const dw_tensor *tensor = &param->weight->tensor;
        size_t at = base_hash(tensor->data, data_bytes(tensor), (uint64_t)tensor->format) & (table.count - 1);
        while (table.slots[at] != NULL && !is_same_constant(table.slots[at], param)) at = (at + 1) & (table.count - 1);
        if (table.slots[at] == NULL) {
            table.slots[at] = param;
        } else {
            ir_replace(graph, param, table.slots[at]);
            *changed = true;
        }
    }
    return DW_OK;
}

dw_status pass_cse(ir_graph *graph, const pass_options *options, bool *changed) {
    (void)options;
    *changed = false;
    arena scratch;
    arena_init(&scratch, graph->context);
    dw_status status = merge_constants(graph, &scratch, changed);
    if (status == DW_OK) status = merge_nodes(graph, &scratch, changed);
    arena_free(&scratch);
    return status;
}
