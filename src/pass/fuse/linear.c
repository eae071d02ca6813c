/* Products with weights take in what follows them: bias, format, activation, gate, residual, as steps of their post list.
 * Only products with constant weights: those of attention and of other activations belong to other passes. A step is taken in when the
 * product's plain result has no other use.
 *
 *     %1 = matmul x, w {bt=true}            %1 = matmul x, w, c, r {bt=true,post="bias,gelu,add"}
 *     %2 = add %1, c                        output y %1
 *     %3 = gelu %2                     ->
 *     %4 = add r, %3
 *     output y %4 */
#include "pass/fuse/fuse.h"

#include <float.h>
#include <string.h>

/* ---- what rows share ---- */

static bool is_linear(const ir_node *node) {
    return (node->op == OP_matmul || node->op == OP_grouped_matmul) && ir_is_weight(ir_in(node, 1)) && !ir_is_weight(ir_in(node, 0));
}

ir_node *fuse_linear(const ir_graph *graph, const ir_value *value) {
    return value->kind == IR_RESULT && is_linear(value->node) && fuse_is_single_use(graph, value) ? value->node : NULL;
}

static bool read_post(const ir_graph *graph, const ir_node *linear, op_post_list *list) {
    return op_post_parse(graph->context, ir_attr_text(linear, OP_ATTR_post), list) == DW_OK;
}

bool fuse_has_plain_post(ir_graph *graph, const ir_node *linear) {
    op_post_list list;
    if (!read_post(graph, linear, &list)) return false;
    for (int i = 0; i < list.count; i++) {
        if (op_post_operand_of(list.steps[i]) == OP_POST_FULL || op_post_halves(list.steps[i])) return false;
    }
    return true;
}

/* The product over other operands, with one attribute replaced, before root. */
static dw_status emit_again(ir_graph *graph, const ir_node *linear, ir_node *root, int n_in, ir_value *const *in, op_attr attr, ir_value **result) {
    op_attr attrs[OP_ATTR_COUNT];
    int count = 0;
    for (int i = 0; i < linear->attrs.count; i++) {
        if (linear->attrs.items[i].id != attr.id) attrs[count++] = linear->attrs.items[i];
    }
    attrs[count++] = attr;
    fuse_cursor(graph, root, linear);
    return ir_emit(graph, linear->op, n_in, in, count, attrs, result);
}

static int copy_operands(const ir_node *node, ir_value **in) {
    for (int i = 0; i < node->n_in; i++) in[i] = ir_in(node, i);
    return node->n_in;
}

/* ---- rows of no group ---- */

static const ir_value *through(const ir_value *value) {
    while (value->kind == IR_RESULT && (value->node->op == OP_cast || value->node->op == OP_reshape || (value->node->op == OP_sort && value == value->node->out[0])))
        value = ir_in(value->node, 0);
    return value;
}

/* Are the integers places along an axis of so many at most, as topk and choose give them? */
static bool are_places(const ir_value *value, dim length) {
    const ir_value *places = through(value);
    int64_t size, most;
    if (places->kind != IR_RESULT || (places->node->op != OP_topk && places->node->op != OP_choose) || places != places->node->out[1]) return false;
    const op_type *x = &ir_in(places->node, 0)->type;
    return dim_is_constant(x->dims[ir_int(places->node, OP_ATTR_axis)], &size) && dim_is_constant(length, &most) && size <= most;
}

/* Is every row of a grouped product in a group? Where groups are not padded, and the offsets count keys, one for each row, all of which are groups: cumsum(bincount keys). */
static bool has_all_rows(const ir_node *grouped) {
    const ir_value *ends = ir_in(grouped, 2);
    while (ir_def(ends, OP_cast) != NULL) ends = ir_in(ends->node, 0);
    const ir_node *sums = ir_def(ends, OP_cumsum);
    const ir_value *counts = sums != NULL && !ir_bool(sums, OP_ATTR_exclusive) ? ir_in(sums, 0) : ends;
    while (ir_def(counts, OP_cast) != NULL) counts = ir_in(counts->node, 0);
    const ir_node *count = ir_def(counts, OP_bincount);
    const op_type *rows = &ir_in(grouped, 0)->type;
    if (ir_int(grouped, OP_ATTR_padded) > 0) return false;
    if (sums == NULL || count == NULL || ir_in(count, 0)->type.rank != 1 || ir_in(count, 0)->type.dims[0] != rows->dims[0]) return false;
    return are_places(ir_in(count, 0), op_attr_dim(&count->attrs, OP_ATTR_length));
}

/* Rows of no group are 0 whatever the list does: where there may be some, only steps that make 0 of 0 are taken in. */
static bool keeps_rows(const ir_node *linear, op_post step) {
    return linear->op != OP_grouped_matmul || (step != OP_POST_bias && step != OP_POST_add && step != OP_POST_sigmoid) || has_all_rows(linear);
}

/* ---- steps ---- */

dw_status fuse_add_post(ir_graph *graph, const ir_node *linear, ir_node *root, op_post step, ir_value *operand, ir_value **result) {
    ir_value *in[64];
    op_post_list list;
    int n_in = copy_operands(linear, in);
    *result = NULL;
    if (!keeps_rows(linear, step)) return DW_OK;
    if (!read_post(graph, linear, &list) || list.count == OP_MAX_POST || (operand != NULL && n_in == op_get(linear->op)->max_in)) return DW_OK;
    if (operand != NULL) in[n_in++] = operand;
    const char *before = ir_attr_text(linear, OP_ATTR_post), *post;
    TRY(ir_intern(graph, op_post_name(step), &post));
    if (list.count > 0) post = arena_printf(&graph->arena, "%s,%s", before, op_post_name(step));
    if (post == NULL) return DW_NO_MEMORY;
    return emit_again(graph, linear, root, n_in, in, op_set_text(OP_ATTR_post, post), result);
}

dw_status fuse_post_step(ir_graph *graph, const ir_node *linear, ir_node *root, op_post step, ir_value *operand, bool *changed) {
    ir_value *made;
    TRY(fuse_add_post(graph, linear, root, step, operand, &made));
    return made != NULL ? fuse_replace(graph, ir_out(root), made, changed) : DW_OK;
}

/* ---- rows ---- */

dw_status fuse_matmul_transpose(ir_graph *graph, ir_node *node, bool *changed) {
    const ir_node *transpose = node->op == OP_matmul || node->op == OP_grouped_matmul ? ir_def(ir_in(node, 1), OP_transpose) : NULL;
    const int64_t *order;
    if (transpose == NULL) return DW_OK;
    int rank = op_attr_ints(&transpose->attrs, OP_ATTR_order, &order);
    for (int i = 0; i < rank; i++) {
        int64_t swapped = i == rank - 1 ? rank - 2 : i == rank - 2 ? rank - 1 : i;
        if (order[i] != swapped) return DW_OK;
    }
    ir_value *in[64], *made;
    int n_in = copy_operands(node, in);
    in[1] = ir_in(transpose, 0);
    TRY(emit_again(graph, node, node, n_in, in, op_set_bool(OP_ATTR_bt, !ir_bool(node, OP_ATTR_bt)), &made));
    return fuse_replace(graph, ir_out(node), made, changed);
}

dw_status fuse_matmul_repeated(ir_graph *graph, ir_node *node, bool *changed) {
    const ir_node *repeat = node->op == OP_matmul ? ir_def(ir_in(node, 1), OP_broadcast) : NULL;
    if (repeat == NULL || ir_bool(node, OP_ATTR_at)) return DW_OK;
    ir_value *in[64], *made, *weight = ir_in(repeat, 0);
    const int rank = ir_out(repeat)->type.rank;
    while (weight->type.rank > 2) {
        int64_t one;
        const ir_node *view = ir_def(weight, OP_reshape);
        if (!dim_is_constant(weight->type.dims[0], &one) || one != 1 || view == NULL) return DW_OK;
        weight = ir_in(view, 0);
    }
    if (weight->type.rank != 2 || rank < 3) return DW_OK;
    for (int i = 1; i <= 2; i++) {
        if (weight->type.dims[2 - i] != ir_out(repeat)->type.dims[rank - i]) return DW_OK;
    }
    int n_in = copy_operands(node, in);
    in[1] = weight;
    fuse_cursor(graph, node, node);
    TRY(ir_emit(graph, OP_matmul, n_in, in, node->attrs.count, node->attrs.items, &made));
    return fuse_replace(graph, ir_out(node), made, changed);
}

/* The value in 16 bits that one of f32 was cast from; NULL: there is none. */
static ir_value *narrow_of(ir_value *value) {
    ir_value *narrow = value->type.format == DW_FORMAT_f32 ? fuse_skip_widening(value) : value;
    return narrow != value && num_info(narrow->type.format)->bits == 16 ? narrow : NULL;
}

/* Products of numbers of 16 bits are exact in f32, where they are added either way. */
dw_status fuse_linear_widened(ir_graph *graph, ir_node *node, bool *changed) {
    ir_value *a = is_linear(node) ? narrow_of(ir_in(node, 0)) : NULL, *b = a != NULL ? narrow_of(ir_in(node, 1)) : NULL;
    if (b == NULL || a->type.format != b->type.format) return DW_OK;
    ir_value *in[64], *made;
    int n_in = copy_operands(node, in);
    in[0] = a, in[1] = b;
    TRY(emit_again(graph, node, node, n_in, in, op_set_format(OP_ATTR_to, ir_out(node)->type.format), &made));
    return fuse_replace(graph, ir_out(node), made, changed);
}

dw_status fuse_linear_bias(ir_graph *graph, ir_node *node, bool *changed) {
    for (int i = 0; node->op == OP_add && i < 2; i++) {
        const ir_node *linear = fuse_linear(graph, ir_in(node, i));
        ir_value *bias;
        if (linear == NULL || !op_type_equal(&ir_out(linear)->type, &ir_out(node)->type)) continue;
        fuse_cursor(graph, node, linear);
        TRY(fuse_column(graph, ir_in(node, 1 - i), ir_out(linear)->type.dims[ir_out(linear)->type.rank - 1], &bias));
        if (bias != NULL) return fuse_post_step(graph, linear, node, OP_POST_bias, bias, changed);
    }
    return DW_OK;
}

/* A result may be rounded once instead of twice. */
dw_status fuse_linear_cast(ir_graph *graph, ir_node *node, bool *changed) {
    const ir_node *linear = node->op == OP_cast ? fuse_linear(graph, ir_in(node, 0)) : NULL;
    dw_format to = ir_out(node)->type.format;
    bool is_narrowing = linear != NULL && fuse_is_float(to) && num_info(to)->bits < num_info(ir_out(linear)->type.format)->bits;
    if (!is_narrowing) return DW_OK;
    ir_value *in[64], *made;
    int n_in = copy_operands(linear, in);
    TRY(emit_again(graph, linear, node, n_in, in, op_set_format(OP_ATTR_to, to), &made));
    return fuse_replace(graph, ir_out(node), made, changed);
}

/* The second level under which a quantize to nvfp4 works: the attribute, or a number as its operand. 0: it is known in a run only. */
static float level_of(const ir_node *quantize) {
    const ir_node *given = ir_def(ir_in(quantize, 1), OP_fill);
    const double level = given != NULL ? ir_real(given, OP_ATTR_value) : ir_real(quantize, OP_ATTR_level);
    return quantize->op == OP_quantize && num_info(ir_out(quantize)->type.format)->second == 1 && !ir_bool(quantize, OP_ATTR_floor) && !ir_bool(quantize, OP_ATTR_search) && level > 0 && level <= FLT_MAX
               ? (float)level : 0;
}

/* A product with a weight that only a quantize reads takes its format. What is quantised is the result in the format it had, so that no bit changes. */
dw_status fuse_linear_quantize(ir_graph *graph, ir_node *node, bool *changed) {
    const float level = node->op == OP_quantize ? level_of(node) : 0;
    const dw_format to = level > 0 ? ir_out(node)->type.format : fuse_blocks(node);
    const ir_node *linear = to != DW_FORMAT_COUNT ? fuse_linear(graph, ir_in(node, 0)) : NULL;
    if (linear == NULL || linear->op != OP_matmul) return DW_OK;
    dw_format via = ir_out(linear)->type.format;
    if (!op_is_via(via)) return DW_OK;
    ir_value *in[64], *made;
    op_attr attrs[OP_ATTR_COUNT];
    int n_in = copy_operands(linear, in), count = 0;
    for (int i = 0; i < linear->attrs.count; i++) {
        if (linear->attrs.items[i].id != OP_ATTR_to) attrs[count++] = linear->attrs.items[i];
    }
    attrs[count++] = op_set_format(OP_ATTR_to, to);
    if (via != DW_FORMAT_f32) attrs[count++] = op_set_format(OP_ATTR_via, via);
    if (level > 0) attrs[count++] = op_set_real(OP_ATTR_level, level);
    fuse_cursor(graph, node, linear);
    TRY(ir_emit(graph, OP_matmul, n_in, in, count, attrs, &made));
    return fuse_replace(graph, ir_out(node), made, changed);
}

/* reshape(a [t,k] times w) [.., n] becomes reshape(a) [.., k] times w. Blocks cannot be seen in another shape. */
dw_status fuse_linear_batch(ir_graph *graph, ir_node *node, bool *changed) {
    const ir_node *linear = node->op == OP_reshape ? fuse_linear(graph, ir_in(node, 0)) : NULL;
    const op_type *to = &ir_out(node)->type;
    if (linear == NULL || linear->op != OP_matmul || ir_bool(linear, OP_ATTR_at) || ir_out(linear)->type.rank != 2 || ir_in(linear, 0)->type.rank != 2) return DW_OK;
    if (to->rank < 3 || to->dims[to->rank - 1] != ir_out(linear)->type.dims[1] || !fuse_has_plain_post(graph, linear)) return DW_OK;
    if (dw_format_is_block(ir_in(linear, 0)->type.format)) return DW_OK;
    ir_value *in[64], *made;
    dim dims[DW_MAX_RANK];
    int n_in = copy_operands(linear, in);
    for (int i = 0; i < to->rank - 1; i++) dims[i] = to->dims[i];
    dims[to->rank - 1] = in[0]->type.dims[1];
    fuse_cursor(graph, node, linear);
    TRY(ir_emit_reshape(graph, in[0], to->rank, dims, &in[0]));
    TRY(ir_emit(graph, OP_matmul, n_in, in, linear->attrs.count, linear->attrs.items, &made));
    return fuse_replace(graph, ir_out(node), made, changed);
}

op_post fuse_gated_step(op_post activation) {
    const bool is_plain = op_post_operand_of(activation) == OP_POST_NONE && !op_post_halves(activation);
    return is_plain ? op_post_of(op_post_op(activation), true) : OP_POST_COUNT;
}

/* Is the product computed again for gradients, which read its plain result? Then it stays without the step, so that both have the same bits. */
static bool has_copy(const ir_node *linear) {
    for (const ir_use *use = ir_in(linear, 1)->uses; use != NULL; use = use->next)
        if (use->node != linear && use->node->op == linear->op && use->index == 1 && ir_is_again(use->node)) return true;
    return false;
}

dw_status fuse_linear_activation(ir_graph *graph, ir_node *node, bool *changed) {
    const op_post step = op_post_of(node->op, false);
    const ir_node *linear = step != OP_POST_COUNT ? fuse_linear(graph, ir_in(node, 0)) : NULL;
    return linear != NULL && !has_copy(linear) ? fuse_post_step(graph, linear, node, step, NULL, changed) : DW_OK;
}

/* The half of a product's columns that value is, of which only value's user makes use. */
static ir_node *half_of(const ir_graph *graph, ir_value *value, bool is_second) {
    fuse_span span;
    int64_t size;
    if (!fuse_is_single_use(graph, value) || !fuse_span_of(value, &span) || span.step != 1 || !fuse_last_axis(span.source, &size) || size % 2 != 0) return NULL;
    if (span.start != (is_second ? size / 2 : 0) || span.end != span.start + size / 2) return NULL;
    bool is_product = span.source->kind == IR_RESULT && is_linear(span.source->node) && ir_use_count(graph, span.source) == 2;
    return is_product ? span.source->node : NULL;
}

dw_status fuse_linear_gated(ir_graph *graph, ir_node *node, bool *changed) {
    for (int i = 0; node->op == OP_mul && i < 2; i++) {
        ir_value *gate = ir_in(node, i);
        const op_post gated = gate->kind == IR_RESULT ? op_post_of(gate->node->op, true) : OP_POST_COUNT;
        const ir_node *activation = gated != OP_POST_COUNT ? fuse_def_single(graph, gate, gate->node->op) : NULL;
        if (activation == NULL) continue;
        const ir_node *linear = half_of(graph, ir_in(activation, 0), false);
        if (linear == NULL || half_of(graph, ir_in(node, 1 - i), true) != linear || !fuse_has_plain_post(graph, linear) || has_copy(linear)) continue;
        return fuse_post_step(graph, linear, node, gated, NULL, changed);
    }
    return DW_OK;
}

/* A product with a weight, or the gradient of one, where parts of it are added up. */
static const ir_node *sum_of_products(const ir_graph *graph, const ir_value *value) {
    if (value->kind != IR_RESULT || value->node->op != OP_matmul || !fuse_is_single_use(graph, value)) return fuse_linear(graph, value);
    const char *phase = value->node->origin.phase;
    return is_linear(value->node) || (phase != NULL && strcmp(phase, "wgrad") == 0) ? value->node : NULL;
}

/* Is the value there when the product runs? */
static bool is_there_before(const ir_value *value, const ir_node *product) { return value->kind != IR_RESULT || value->node->order < product->order; }

/* The later of two products takes in the earlier one's result, whose operands need not wait for it. The gradient of a weight waits for nothing: what it is a product of is large. */
dw_status fuse_linear_add(ir_graph *graph, ir_node *node, bool *changed) {
    const bool is_second_later = node->op == OP_add && ir_in(node, 1)->kind == IR_RESULT && ir_in(node, 0)->kind == IR_RESULT && ir_in(node, 1)->node->order > ir_in(node, 0)->node->order &&
                                 sum_of_products(graph, ir_in(node, 1)) != NULL && fuse_linear(graph, ir_in(node, 0)) == NULL;
    for (int k = 0; node->op == OP_add && k < 2; k++) {
        const int i = is_second_later ? 1 - k : k;
        const ir_node *linear = sum_of_products(graph, ir_in(node, i));
        bool fits = linear != NULL && op_type_equal(&ir_out(linear)->type, &ir_out(node)->type) && op_type_equal(&ir_in(node, 1 - i)->type, &ir_out(node)->type) && (is_linear(linear) || is_there_before(ir_in(node, 1 - i), linear));
        if (fits) return fuse_post_step(graph, linear, node, OP_POST_add, ir_in(node, 1 - i), changed);
    }
    return DW_OK;
}

/* ---- roles ---- */

enum { MAX_STEPS = 12 };

/* What feeds the product, below views and casts: attention, or an activation or gate. */
static const char *role_of_source(const ir_value *value) {
    for (int i = 0; i < MAX_STEPS && value->kind == IR_RESULT; i++) {
        const ir_node *node = value->node;
        if (node->op == OP_attention) return "attention";
        if (op_post_of(node->op, false) != OP_POST_COUNT) return "mlp";
        if (is_linear(node) && *ir_attr_text(node, OP_ATTR_post) != '\0') return node->origin.role;
        if (node->op == OP_mul) return ir_def(ir_in(node, 0), OP_matmul) != NULL ? role_of_source(ir_in(node, 0)) : NULL;
        if (node->op != OP_cast && (op_get(node->op)->traits & OP_TRAIT_VIEW) == 0) return NULL;
        value = ir_in(node, 0);
    }
    return NULL;
}

static const char *role_of_use(const ir_node *node, int steps) {
    const char *role = NULL;
    for (const ir_use *use = ir_out(node)->uses; role == NULL && use != NULL && steps > 0; use = use->next) {
        if (use->node->op == OP_attention) return "attention";
        bool passes = use->node->op == OP_rotary || use->node->op == OP_cast || (op_get(use->node->op)->traits & (OP_TRAIT_VIEW | OP_TRAIT_ROWWISE)) != 0;
        if (passes) role = role_of_use(use->node, steps - 1);
    }
    return role;
}

/* Does its own post list say so? */
static const char *role_of_post(const ir_graph *graph, const ir_node *linear) {
    op_post_list list;
    if (!read_post(graph, linear, &list)) return NULL;
    for (int i = 0; i < list.count; i++) {
        if (op_has(op_post_op(list.steps[i]), OP_TRAIT_ACTIVATION)) return "mlp";
    }
    return NULL;
}

/* Sets no *changed: the graph computes the same, and no other row asks. A "router" with an activation is the gate of an mlp: modules of
 * both kinds are named mlp.gate. */
dw_status fuse_role(ir_graph *graph, ir_node *node, bool *changed) {
    (void)changed;
    if (!is_linear(node)) return DW_OK;
    const char *role = role_of_post(graph, node);
    if (role != NULL && node->origin.role != NULL && strcmp(node->origin.role, "router") == 0) node->origin.role = role;
    if (node->origin.role != NULL) return DW_OK;
    if (role == NULL) role = role_of_source(ir_in(node, 0));
    if (role == NULL) role = role_of_use(node, MAX_STEPS);
    node->origin.role = role;
    return DW_OK;
}
