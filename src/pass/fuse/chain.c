/* Chains: pointwise ops of one shape, connected by results that nothing else reads, become one op, which is one kernel. Runs last, on what no other fusion wants.
 *
 *     %1 = mul x, x                       %1 = chain x, y {steps="mul(x0,x0);add(t0,f32:1);where(x1,t1,x0)"}
 *     %2 = add %1, one              ->    output z %1
 *     %3 = where y, %2, x
 *     output z %3
 *
 * A chain runs where its last op was, so its operands live until then. An op joins only if that keeps no more memory alive than its result did, or if nothing runs in
 * between. Where several pointwise ops read a value of 16 bits widened, each has a cast of its own first, which its chain takes in. So has each its own sum or product of values that are all smaller
 * than it, as angles of rotary embeddings are: it costs less than reading the result. What is known at load stays alone: it is computed once. So do ops for which a kernel was named, and numbers of 64 bits do not go with floats of 32 and less:
 * kernels take those in vectors. */
#include "pass/fuse/fuse.h"

#include <string.h>

enum {
    MOST_BETWEEN = 256,           /* nodes that are looked at between two members */
    MOST_WIDE = 1 << 20           /* elements of a chain that computes with integers or f64: beyond it a GPU is faster with its ops one by one */
};

/* A chain that is being put together. */
typedef struct draft {
    const pass_options *options;
    ir_node *root;
    ir_node *members[OP_CHAIN_STEPS];        /* ascending in order; each has the chain as its mark */
    int count;
    ir_value *operands[OP_CHAIN_OPERANDS];
    int operand_count;
    bool has_narrow, has_wide;               /* what its members compute with */
    int *last_reads;                         /* by id of results: order of the last node that reads it, or a view of it */
} draft;

/* ---- what may be in a chain ---- */

static bool is_view(const ir_node *node) { return (op_get(node->op)->traits & OP_TRAIT_VIEW) != 0; }

static bool is_narrow(dw_format format) { return format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16; }

static bool same_dims(const op_type *a, const op_type *b) { return a->rank == b->rank && memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) == 0; }

static bool is_candidate(const draft *draft, const ir_node *node) {
    if ((op_get(node->op)->traits & OP_TRAIT_POINTWISE) == 0 || ir_is_constant(ir_out(node)) || (draft->options->alone != NULL && draft->options->alone[node->op])) return false;
    for (int i = 0; i < node->n_in; i++)
        if (!op_chain_holds(ir_in(node, i)->type.format)) return false;
    return op_chain_holds(ir_out(node)->type.format) && same_dims(&ir_out(node)->type, &ir_out(draft->root)->type);
}

/* Is operand k of the node a number of the program, and the result's shape that of another operand? */
static bool reads_number(const ir_node *node, int k, double *number) {
    double other;
    if (!fuse_own_number(ir_in(node, k), number)) return false;
    for (int i = 0; i < node->n_in; i++)
        if (i != k && same_dims(&ir_in(node, i)->type, &ir_out(node)->type) && !fuse_own_number(ir_in(node, i), &other)) return true;
    return false;
}

static void see_formats(const ir_node *node, bool *has_narrow, bool *has_wide) {
    double number;
    bool reads_float = false;
    for (int i = 0; i < node->n_in; i++) {
        const dw_format format = ir_in(node, i)->type.format;
        if (reads_number(node, i, &number) || format == DW_FORMAT_bool) continue;
        if (is_narrow(format)) reads_float = true;
        else *has_wide = true;
    }
    if (reads_float) *has_narrow = true;
    if (ir_out(node)->type.format != DW_FORMAT_bool && !is_narrow(ir_out(node)->type.format)) *has_wide = true;
}

/* ---- memory ---- */

static ir_value *base_of(ir_value *value) {
    while (value->kind == IR_RESULT && is_view(value->node)) value = ir_in(value->node, 0);
    return value;
}

static bool is_member(const draft *draft, const ir_node *node) { return node->mark == draft; }

/* Does anything run between node and the chain's root, members apart? */
static bool runs_between(const draft *draft, const ir_node *node) {
    int left = MOST_BETWEEN;
    for (const ir_node *next = node->next; next != draft->root; next = next->next) {
        if (next == NULL || left-- == 0) return true;
        if (!is_member(draft, next) && !is_view(next) && !ir_is_constant(ir_out(next))) return true;
    }
    return false;
}

/* Along each axis as long as other, or of one. */
static bool fits_in(const op_type *type, const op_type *other) {
    if (type->rank > other->rank) return false;
    for (int i = 0; i < type->rank; i++) {
        const dim size = type->dims[type->rank - 1 - i];
        int64_t one;
        if (size != other->dims[other->rank - 1 - i] && !(dim_is_constant(size, &one) && one == 1)) return false;
    }
    return true;
}

/* Is what value is a view of, in another order or repeated, no larger than a tensor of the type? */
static bool is_within(const ir_value *value, const op_type *type) {
    bool fits = fits_in(&value->type, type);
    while (value->kind == IR_RESULT && is_view(value->node) && value->node->op != OP_slice) {
        value = ir_in(value->node, 0);
        fits = fits || fits_in(&value->type, type);
    }
    return fits && (value->kind != IR_RESULT || !is_view(value->node));
}

/* Bits for each element of the chain that value keeps alive longer if the root reads it. */
static int64_t extends_by(const draft *draft, ir_value *value) {
    const ir_value *base = base_of(value);
    if (base->kind != IR_RESULT || ir_is_constant(base) || base->output_count + base->next_count > 0) return 0;
    if (draft->last_reads[base->id] >= draft->root->order || base->type.rank == 0) return 0;
    return dw_format_bits(base->type.format);
}

static bool keeps_memory(const draft *draft, const ir_node *node) {
    int64_t extended = 0;
    double number;
    if (!runs_between(draft, node)) return true;
    for (int i = 0; i < node->n_in; i++) {
        bool is_again = false;
        for (int k = 0; k < i; k++) is_again |= base_of(ir_in(node, k)) == base_of(ir_in(node, i));
        if (is_again || reads_number(node, i, &number)) continue;
        const op_type *type = &base_of(ir_in(node, i))->type, *result = &ir_out(node)->type;
        if (!is_within(ir_in(node, i), result) && !same_dims(type, result) && !same_dims(&ir_in(node, i)->type, result) && type->rank > 1) return false;   /* of a size that is not compared here */
        extended += extends_by(draft, ir_in(node, i));
    }
    return extended <= dw_format_bits(ir_out(node)->type.format);
}

/* ---- growing ---- */

static bool is_operand(const draft *draft, const ir_value *value) {
    for (int i = 0; i < draft->operand_count; i++)
        if (draft->operands[i] == value) return true;
    return false;
}

/* The operands once node is a member; false: too many. */
static bool update_operands(draft *draft, const ir_node *node) {
    double number;
    int count = 0;
    for (int i = 0; i < draft->operand_count; i++)
        if (draft->operands[i] != ir_out(node)) draft->operands[count++] = draft->operands[i];
    draft->operand_count = count;
    for (int i = 0; i < node->n_in; i++) {
        if (reads_number(node, i, &number) || is_operand(draft, ir_in(node, i))) continue;
        if (draft->operand_count == OP_CHAIN_OPERANDS) return false;
        draft->operands[draft->operand_count++] = ir_in(node, i);
    }
    return true;
}

static bool is_read_by_members(const draft *draft, const ir_value *value) {
    if (value->output_count + value->next_count > 0) return false;
    for (const ir_use *use = value->uses; use != NULL; use = use->next)
        if (!is_member(draft, use->node)) return false;
    return true;
}

static void add(draft *draft, ir_node *node) {
    int at = draft->count++;
    for (; at > 0 && draft->members[at - 1]->order > node->order; at--) draft->members[at] = draft->members[at - 1];
    draft->members[at] = node;
    node->mark = draft;
    for (int i = 0; i < node->n_in; i++) {
        const ir_value *base = base_of(ir_in(node, i));
        if (base->kind == IR_RESULT && draft->last_reads[base->id] < draft->root->order) draft->last_reads[base->id] = draft->root->order;
    }
}

static bool joins(const draft *before, ir_node *node) {
    draft after = *before;
    if (before->count == OP_CHAIN_STEPS || !is_candidate(before, node) || !is_read_by_members(before, ir_out(node))) return false;
    see_formats(node, &after.has_narrow, &after.has_wide);
    return !(after.has_narrow && after.has_wide) && update_operands(&after, node) && keeps_memory(before, node);
}

/* The last node before the members that may become one, or NULL. */
static ir_node *find_next(const draft *draft) {
    ir_node *found = NULL;
    for (int i = 0; i < draft->operand_count; i++) {
        ir_node *node = draft->operands[i]->kind == IR_RESULT ? draft->operands[i]->node : NULL;
        if (node != NULL && (found == NULL || node->order > found->order) && joins(draft, node)) found = node;
    }
    return found;
}

static void grow(draft *draft) {
    for (ir_node *node = draft->root; node != NULL; node = find_next(draft)) {
        see_formats(node, &draft->has_narrow, &draft->has_wide);
        update_operands(draft, node);
        add(draft, node);
    }
}

/* ---- the chain ---- */

/* Of the root's type, and read by nothing that comes later: the chain's result may take its memory. */
static bool may_be_overwritten(const draft *draft, ir_value *value) {
    if (value->kind != IR_RESULT || is_view(value->node) || ir_is_constant(value) || value->output_count + value->next_count > 0) return false;
    return op_type_equal(&value->type, &ir_out(draft->root)->type) && draft->last_reads[value->id] <= draft->root->order;
}

/* In the order in which the steps read them; but kernels write their result over operand 0 where they may. */
static void order_operands(draft *draft) {
    double number;
    draft->operand_count = 0;
    for (int i = 0; i < draft->count; i++)
        for (int k = 0; k < draft->members[i]->n_in; k++) {
            ir_value *value = ir_in(draft->members[i], k);
            const bool is_inside = value->kind == IR_RESULT && is_member(draft, value->node);
            if (!is_inside && !reads_number(draft->members[i], k, &number) && !is_operand(draft, value)) draft->operands[draft->operand_count++] = value;
        }
    for (int i = 0; i < draft->operand_count; i++) {
        if (!may_be_overwritten(draft, draft->operands[i])) continue;
        ir_value *first = draft->operands[i];
        memmove(&draft->operands[1], &draft->operands[0], (size_t)i * sizeof *draft->operands);
        draft->operands[0] = first;
        return;
    }
}

static op_chain_read read_of(const draft *draft, const ir_node *node, int k) {
    const ir_value *value = ir_in(node, k);
    op_chain_read read = {.kind = OP_CHAIN_NUMBER, .format = value->type.format};
    if (reads_number(node, k, &read.number)) return read;
    read.kind = OP_CHAIN_STEP;
    for (read.index = 0; read.index < draft->count; read.index++)
        if (ir_out(draft->members[read.index]) == value) return read;
    read.kind = OP_CHAIN_OPERAND;
    for (read.index = 0; draft->operands[read.index] != value;) read.index++;
    return read;
}

static dw_status print_steps(const draft *draft, text *text) {
    op_chain chain = {.count = draft->count};
    for (int i = 0; i < draft->count; i++) {
        const ir_node *node = draft->members[i];
        op_chain_step *step = &chain.steps[i];
        *step = (op_chain_step){.op = node->op, .n_in = node->n_in, .to = op_attr_format(&node->attrs, OP_ATTR_to), .format = ir_out(node)->type.format};
        for (int k = 0; k < node->n_in; k++) step->in[k] = read_of(draft, node, k);
    }
    op_chain_print(text, &chain);
    return text_status(text);
}

/* The module that all members with one are in, and their names: "mul_4+add_7+tanh". */
static dw_status set_origin(ir_graph *graph, const draft *draft, text *text) {
    const ir_origin *root = &draft->root->origin;
    const char *module = root->module;
    for (int i = draft->count - 1; i >= 0 && module == NULL; i--) module = draft->members[i]->origin.module;
    size_t length = module != NULL ? strlen(module) : 0;
    for (int i = 0; i < draft->count; i++) {
        const ir_origin *origin = &draft->members[i]->origin;
        if (origin->name != NULL) text_printf(text, "%s%s", text->length > 0 ? "+" : "", origin->name);
        const char *other = origin->module != NULL ? origin->module : module;
        while (length > 0 && !(strncmp(module, other, length) == 0 && (other[length] == '\0' || other[length] == '.'))) {
            do length--;
            while (length > 0 && module[length] != '.');
        }
    }
    TRY(text_status(text));
    graph->origin = (ir_origin){.role = root->role};
    if (text->length > 0) TRY(ir_intern(graph, text_string(text), &graph->origin.name));
    if (module != NULL && module[length] == '\0') {
        graph->origin.module = module;
        graph->origin.type = module == root->module ? root->type : NULL;
    } else if (length > 0) {
        const char *prefix = arena_text_n(&graph->arena, module, length);
        if (prefix == NULL) return DW_NO_MEMORY;
        TRY(ir_intern(graph, prefix, &graph->origin.module));
    }
    return DW_OK;
}

/* *before: the node in front of the chain. */
static dw_status make_chain(ir_graph *graph, draft *draft, ir_node **before, bool *changed) {
    text steps, names;
    ir_value *made = NULL;
    text_init(&steps, graph->context);
    text_init(&names, graph->context);
    order_operands(draft);
    ir_cursor_before(graph, draft->root);
    dw_status status = print_steps(draft, &steps);
    if (status == DW_OK) status = set_origin(graph, draft, &names);
    op_attr attr = op_set_text(OP_ATTR_steps, text_string(&steps));
    if (status == DW_OK) status = ir_emit(graph, OP_chain, draft->operand_count, draft->operands, 1, &attr, &made);
    text_free(&steps);
    text_free(&names);
    if (status != DW_OK) return status;
    ir_replace(graph, ir_out(draft->root), made);
    for (int i = draft->count - 1; i >= 0; i--) TRY(ir_remove(graph, draft->members[i]));
    *before = made->node->previous;
    *changed = true;
    return DW_OK;
}

/* ---- the pass ---- */

static bool is_known_to_be_large(const op_type *type) {
    int64_t count = 1, size;
    for (int i = 0; i < type->rank; i++)
        if (dim_is_constant(type->dims[i], &size) && !base_mul_i64(count, size, &count)) return true;
    return count > MOST_WIDE;
}

static dw_status find_last_reads(const ir_graph *graph, arena *arena, int **last_reads) {
    TRY_NEW(*last_reads, arena, graph->next_id + 1);
    for (const ir_node *node = graph->last; node != NULL; node = node->previous) {
        int last = node->order;
        if (is_view(node) && (*last_reads)[ir_out(node)->id] > last) last = (*last_reads)[ir_out(node)->id];
        for (int i = 0; i < node->n_in; i++) {
            const ir_value *value = ir_in(node, i);
            if (value != NULL && value->kind == IR_RESULT && (*last_reads)[value->id] < last) (*last_reads)[value->id] = last;
        }
    }
    return DW_OK;
}

static dw_status run(ir_graph *graph, const pass_options *options, arena *arena, bool *changed) {
    int *last_reads;
    TRY(find_last_reads(graph, arena, &last_reads));
    for (ir_node *node = graph->first; node != NULL; node = node->next) node->mark = NULL;
    for (ir_node *node = graph->last, *previous; node != NULL; node = previous) {
        draft draft = {.options = options, .root = node, .last_reads = last_reads};
        previous = node->previous;
        if (node->op == OP_chain || ir_out(node)->next_count > 0 || !is_candidate(&draft, node)) continue;
        grow(&draft);
        const bool is_better = draft.count >= 2 && !(draft.has_wide && is_known_to_be_large(&ir_out(node)->type));
        const fuse_attempt attempt = fuse_begin(graph, "chain", node);
        if (is_better) TRY(fuse_end(&attempt, make_chain(graph, &draft, &previous, changed)));
        for (int i = 0; i < draft.count; i++) draft.members[i]->mark = NULL;
    }
    return DW_OK;
}

/* ---- what each reader makes ---- */

/* Does the node, a pointwise op of the cast's shape, read 16 bits as well as 32? */
static bool widens_itself(const pass_options *options, const ir_node *cast, const ir_node *node) {
    if (node->op == OP_cast || (op_get(node->op)->traits & OP_TRAIT_POINTWISE) == 0 || !same_dims(&ir_out(node)->type, &ir_out(cast)->type)) return false;
    if (!is_narrow(ir_out(node)->type.format) || (options->alone != NULL && (options->alone[node->op] || options->alone[OP_cast]))) return false;
    for (int i = 0; i < node->n_in; i++)
        if (!is_narrow(ir_in(node, i)->type.format)) return false;
    return true;
}

static bool reads_twice(const ir_node *node, const ir_value *value) {
    int times = 0;
    for (int i = 0; i < node->n_in; i++) times += ir_in(node, i) == value;
    return times > 1;
}

/* What several read widened each of them widens on its own, where a chain does so on the way. */
static dw_status split_cast(ir_graph *graph, const pass_options *options, ir_node *cast) {
    ir_value *x = ir_in(cast, 0), *own;
    if (cast->op != OP_cast || ir_is_constant(x) || !is_narrow(x->type.format) || dw_format_bits(x->type.format) != 16 || ir_out(cast)->type.format != DW_FORMAT_f32) return DW_OK;
    for (ir_use *use = ir_out(cast)->uses, *next; use != NULL; use = next) {
        next = use->next;
        if (ir_use_count(graph, ir_out(cast)) < 2 || !widens_itself(options, cast, use->node)) continue;
        ir_node *const user = use->node;
        if (reads_twice(user, ir_out(cast))) continue;
        const int operand = use->index;
        ir_cursor_before(graph, user);
        graph->origin = cast->origin;
        TRY(ir_emit(graph, OP_cast, 1, &x, cast->attrs.count, cast->attrs.items, &own));
        ir_set_operand(user, operand, own);
    }
    return DW_OK;
}

static bool is_sum_or_product(op_id op) { return op == OP_add || op == OP_sub || op == OP_mul; }

/* Can a chain of the user's take in the node? */
static bool may_take(const pass_options *options, const ir_node *node, const ir_node *user) {
    const draft draft = {.options = options, .root = (ir_node *)user};
    return is_candidate(&draft, user) && is_candidate(&draft, node) && is_narrow(ir_out(user)->type.format);
}

static dw_status split_outer(ir_graph *graph, const pass_options *options, ir_node *node) {
    ir_value *const value = ir_out(node);
    if (!is_sum_or_product(node->op) || !is_narrow(value->type.format) || !fuse_is_outer(node) || value->output_count + value->next_count > 0) return DW_OK;
    for (const ir_use *use = value->uses; use != NULL; use = use->next)
        if (!may_take(options, node, use->node)) return DW_OK;
    for (ir_use *use = value->uses, *next; use != NULL; use = next) {
        ir_value *own;
        ir_node *const user = use->node;
        const int operand = use->index;
        next = use->next;
        if (ir_use_count(graph, value) < 2 || reads_twice(user, value)) continue;
        ir_cursor_before(graph, user);
        graph->origin = node->origin;
        TRY(ir_emit(graph, node->op, node->n_in, (ir_value *[]){ir_in(node, 0), ir_in(node, 1)}, 0, NULL, &own));
        ir_set_operand(user, operand, own);
    }
    return DW_OK;
}

static dw_status split(ir_graph *graph, const pass_options *options) {
    for (ir_node *node = graph->first; node != NULL; node = node->next) {
        TRY(split_cast(graph, options, node));
        TRY(split_outer(graph, options, node));
    }
    ir_renumber(graph);
    return DW_OK;
}

dw_status pass_chain(ir_graph *graph, const pass_options *options, bool *changed) {
    arena scratch;
    *changed = false;
    ir_renumber(graph);
    TRY(split(graph, options));
    arena_init(&scratch, graph->context);
    dw_status status = run(graph, options, &scratch, changed);
    arena_free(&scratch);
    return status;
}
