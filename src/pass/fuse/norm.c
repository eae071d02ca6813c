/* Norms written out, piece by piece: the statistic, the centre, weight and bias, the format, the residual.
 *
 *     %1 = cast x {to=f32}                        %1 = rms_norm x, w {eps=1e-06}
 *     %2 = pow %1, 2                              output y %1
 *     %3 = mean %2 {axes=[2],keep=true}
 *     %4 = add %3, 1e-06                   ->
 *     %5 = rsqrt %4
 *     %6 = mul %1, %5
 *     %7 = cast %6 {to=bf16}
 *     %8 = mul w, %7
 *     output y %8
 *
 * Constants stand for fills. A statistic is a value [.., 1] over the rows of x; views that keep its elements in order are looked through. */
#include "pass/fuse/fuse.h"

/* ---- statistics of rows ---- */

/* Below reshapes, which keep a statistic's elements in order. */
static ir_value *skip_reshape(ir_value *value) {
    for (ir_node *node; (node = ir_def(value, OP_reshape)) != NULL;) value = ir_in(node, 0);
    return value;
}

/* The value [.., 1] of which statistic is, or is broadcast from, for rows of x; NULL when it is none. */
static ir_value *row_statistic(ir_value *statistic, const ir_value *x) {
    const ir_node *broadcast = ir_def(statistic, OP_broadcast);
    if (broadcast != NULL) statistic = ir_in(broadcast, 0);
    int64_t size;
    int rank = x->type.rank;
    if (rank == 0 || statistic->type.rank != rank || !fuse_last_axis(statistic, &size) || size != 1) return NULL;
    for (int i = 0; i < rank - 1; i++) {
        if (statistic->type.dims[i] != x->type.dims[i]) return NULL;
    }
    return skip_reshape(statistic);
}

static bool is_over_last_axis(const ir_node *reduce) {
    const int64_t *axes;
    int count = op_attr_ints(&reduce->attrs, OP_ATTR_axes, &axes);
    return count == 1 && axes[0] == ir_in(reduce, 0)->type.rank - 1;
}

/* What statistic is the mean of along the last axis, spelled as a mean, or as a sum divided by the size; NULL when it is no mean. */
static ir_value *mean_operand(ir_value *statistic) {
    statistic = fuse_skip_widening(skip_reshape(statistic));
    ir_node *node = ir_def(statistic, OP_mean);
    if (node != NULL) return is_over_last_axis(node) ? ir_in(node, 0) : NULL;
    ir_value *sum = NULL;
    double number;
    if ((node = ir_def(statistic, OP_mul)) != NULL) {
        if (!fuse_with_number(node, &number, &sum)) return NULL;
    } else if ((node = ir_def(statistic, OP_div)) != NULL) {
        sum = ir_in(node, 0);
    } else {
        return NULL;
    }
    int64_t size;
    const ir_node *reduce = ir_def(skip_reshape(sum), OP_sum);
    if (reduce == NULL || !is_over_last_axis(reduce) || !fuse_last_axis(ir_in(reduce, 0), &size) || size == 0) return NULL;
    if (node->op == OP_mul ? !fuse_is_number(ir_in(node, 0) == sum ? ir_in(node, 1) : ir_in(node, 0), 1.0 / (double)size)
                           : !fuse_is_number(ir_in(node, 1), (double)size)) return NULL;
    return ir_in(reduce, 0);
}

/* What value is the square of. */
static ir_value *square_operand(ir_value *value) {
    ir_node *node = ir_def(value, OP_mul);
    if (node != NULL) return ir_in(node, 0) == ir_in(node, 1) ? ir_in(node, 0) : NULL;
    node = ir_def(value, OP_pow);
    return node != NULL && fuse_is_number(ir_in(node, 1), 2.0) ? ir_in(node, 0) : NULL;
}

/* What value is the square root of (of its inverse when inverse). */
static ir_value *root_operand(ir_value *value, bool inverse) {
    value = fuse_skip_widening(skip_reshape(value));
    if (value->kind != IR_RESULT) return NULL;
    const ir_node *node = value->node;
    if (node->op == (inverse ? OP_rsqrt : OP_sqrt)) return ir_in(node, 0);
    if (node->op == OP_pow) return fuse_is_number(ir_in(node, 1), inverse ? -0.5 : 0.5) ? ir_in(node, 0) : NULL;
    if (!inverse) return NULL;
    if (node->op == OP_reciprocal) return root_operand(ir_in(node, 0), false);
    return node->op == OP_div && fuse_is_number(ir_in(node, 0), 1.0) ? root_operand(ir_in(node, 1), false) : NULL;
}

/* Is statistic sqrt(mean(x^2) + eps), or its inverse? */
static bool is_root_mean_square(ir_value *statistic, bool inverse, const ir_value *x, double *eps) {
    statistic = row_statistic(statistic, x);
    ir_value *mean = statistic != NULL ? root_operand(statistic, inverse) : NULL;
    if (mean == NULL) return false;
    *eps = 0.0;
    mean = skip_reshape(mean);
    const ir_node *add = ir_def(mean, OP_add);
    if (add != NULL && !fuse_with_number(add, eps, &mean)) return false;
    ir_value *squares = mean_operand(mean);
    ir_value *y = squares != NULL ? square_operand(squares) : NULL;
    return y != NULL && *eps >= 0.0 && fuse_skip_widening(y) == fuse_skip_widening((ir_value *)x);
}

/* ---- the norm itself ---- */

static dw_status emit_norm(ir_graph *graph, op_id op, int n_in, ir_value *const *in, double eps, dw_format to, bool searches, ir_value **result) {
    op_attr attrs[3] = {op_set_real(OP_ATTR_eps, eps), op_set_format(OP_ATTR_to, to), op_set_bool(OP_ATTR_search, true)};
    while (n_in > 1 && in[n_in - 1] == NULL) n_in--;
    return ir_emit(graph, op, n_in, in, searches ? 3 : to == in[0]->type.format ? 1 : 2, attrs, result);
}

dw_status fuse_norm(ir_graph *graph, ir_node *node, bool *changed) {
    if ((node->op != OP_mul && node->op != OP_div) || !fuse_is_float(ir_out(node)->type.format)) return DW_OK;
    for (int i = 0; i < (node->op == OP_mul ? 2 : 1); i++) {
        ir_value *x = ir_in(node, i), *norm;
        double eps;
        if (!is_root_mean_square(ir_in(node, 1 - i), node->op == OP_mul, x, &eps)) continue;
        x = fuse_skip_widening(x);
        fuse_cursor(graph, node, node);
        TRY(emit_norm(graph, OP_rms_norm, 1, &x, eps, ir_out(node)->type.format, false, &norm));
        return fuse_replace(graph, ir_out(node), norm, changed);
    }
    return DW_OK;
}

/* Operands of the norms: weight and residual, in layer_norm a bias between them. */
enum { NORM_X, NORM_WEIGHT, LAYER_BIAS, LAYER_RESIDUAL, RMS_RESIDUAL = LAYER_BIAS, MAX_NORM_IN = 4 };

static bool is_norm(const ir_node *node) { return node->op == OP_rms_norm || node->op == OP_layer_norm; }
static int residual_of(const ir_node *norm) { return norm->op == OP_layer_norm ? LAYER_RESIDUAL : RMS_RESIDUAL; }
static dw_format format_of(const ir_node *norm) { return ir_out(norm)->type.format; }

/* The same norm with other operands and another format, whose scales are searched for if it is node's and node's are, where node is. in holds MAX_NORM_IN. */
static dw_status emit_again(ir_graph *graph, ir_node *node, const ir_node *norm, ir_value *const *in, dw_format to, ir_value **result) {
    bool searches = ir_bool(norm, OP_ATTR_search) || ir_bool(node, OP_ATTR_search);
    fuse_cursor(graph, node, norm);
    return emit_norm(graph, norm->op, residual_of(norm) + 1, in, ir_real(norm, OP_ATTR_eps), to, searches, result);
}

static void operands_of(const ir_node *norm, ir_value **in) {
    for (int i = 0; i < MAX_NORM_IN; i++) in[i] = ir_in(norm, i);
}

dw_status fuse_norm_centre(ir_graph *graph, ir_node *node, bool *changed) {
    if (node->op != OP_rms_norm || ir_in(node, RMS_RESIDUAL) != NULL) return DW_OK;
    const ir_node *sub = ir_def(ir_in(node, NORM_X), OP_sub);
    if (sub == NULL) return DW_OK;
    ir_value *x = ir_in(sub, 0), *mean = row_statistic(ir_in(sub, 1), x), *norm;
    ir_value *of = mean != NULL ? mean_operand(mean) : NULL;
    if (of == NULL || fuse_skip_widening(of) != fuse_skip_widening(x)) return DW_OK;
    ir_value *in[] = {fuse_skip_widening(x), ir_in(node, NORM_WEIGHT)};
    fuse_cursor(graph, node, node);
    TRY(emit_norm(graph, OP_layer_norm, 2, in, ir_real(node, OP_ATTR_eps), format_of(node), ir_bool(node, OP_ATTR_search), &norm));
    return fuse_replace(graph, ir_out(node), norm, changed);
}

/* ---- weight and bias ---- */

/* Is value a norm without a weight that several products with weights read? Each then becomes a norm of its own. */
static bool is_shared_norm(const ir_value *value) {
    if (value->kind != IR_RESULT || !is_norm(value->node) || value->output_count > 0 || ir_in(value->node, NORM_WEIGHT) != NULL) return false;
    for (const ir_use *use = value->uses; use != NULL; use = use->next) {
        if (use->node->op != OP_mul || !ir_is_weight(ir_in(use->node, 1 - use->index))) return false;
    }
    return true;
}

/* The norm that makes value, through casts that only bring it to its operand's format and back. */
static ir_node *norm_below(const ir_graph *graph, ir_value *value) {
    for (;;) {
        if (value->kind != IR_RESULT || (!fuse_is_single_use(graph, value) && !is_shared_norm(value))) return NULL;
        if (is_norm(value->node)) return value->node->n_out == 1 ? value->node : NULL;
        if (value->node->op != OP_cast || !fuse_is_float(value->type.format)) return NULL;
        ir_value *below = ir_in(value->node, 0);
        const ir_node *norm = below->kind == IR_RESULT && is_norm(below->node) ? below->node : NULL;
        bool is_widening = fuse_skip_widening(value) != value;
        if (!is_widening && (norm == NULL || ir_in(norm, NORM_X)->type.format != value->type.format)) return NULL;
        value = below;
    }
}

/* node, a sum or product of a norm and a vector along its axis, as the norm with that vector as operand index. */
static dw_status fuse_vector(ir_graph *graph, ir_node *node, int index, bool *changed) {
    for (int i = 0; i < 2; i++) {
        ir_node *norm = norm_below(graph, ir_in(node, i));
        ir_value *vector, *in[MAX_NORM_IN], *made;
        if (norm == NULL || ir_in(norm, index) != NULL || (index == NORM_WEIGHT && norm->op == OP_layer_norm && ir_in(norm, LAYER_BIAS) != NULL)) continue;
        if (index == LAYER_BIAS && norm->op != OP_layer_norm) continue;
        fuse_cursor(graph, node, norm);
        TRY(fuse_column(graph, ir_in(node, 1 - i), ir_out(norm)->type.dims[ir_out(norm)->type.rank - 1], &vector));
        if (vector == NULL) continue;
        operands_of(norm, in);
        in[index] = vector;
        TRY(emit_again(graph, node, norm, in, ir_out(node)->type.format, &made));
        return fuse_replace(graph, ir_out(node), made, changed);
    }
    return DW_OK;
}

dw_status fuse_norm_weight(ir_graph *graph, ir_node *node, bool *changed) {
    return node->op == OP_mul ? fuse_vector(graph, node, NORM_WEIGHT, changed) : DW_OK;
}

dw_status fuse_norm_bias(ir_graph *graph, ir_node *node, bool *changed) {
    return node->op == OP_add ? fuse_vector(graph, node, LAYER_BIAS, changed) : DW_OK;
}

/* ---- formats ---- */

/* The norm whose first result this cast alone reads, and narrows. */
static ir_node *norm_narrowed_by(const ir_graph *graph, const ir_node *cast) {
    if (cast->op != OP_cast || !fuse_is_float(ir_out(cast)->type.format)) return NULL;
    ir_value *x = ir_in(cast, 0);
    bool is_alone = x->kind == IR_RESULT && is_norm(x->node) && x->result == 0 && fuse_is_single_use(graph, x);
    return is_alone && fuse_skip_widening(ir_out(cast)) == ir_out(cast) ? x->node : NULL;
}

/* Another operand's format would be the sum's too, so a norm with a residual keeps that. */
dw_status fuse_norm_cast(ir_graph *graph, ir_node *node, bool *changed) {
    ir_value *in[MAX_NORM_IN], *made;
    const ir_node *norm = is_norm(node) ? node : norm_narrowed_by(graph, node);
    if (norm == NULL) return DW_OK;
    operands_of(norm, in);
    if (norm->n_out == 1 && !dw_format_is_block(ir_out(norm)->type.format)) in[NORM_X] = fuse_skip_widening(in[NORM_X]);   /* blocks are made of the result in x's format */
    if (norm == node && in[NORM_X] == ir_in(norm, NORM_X)) return DW_OK;
    ir_value *sum = norm->n_out > 1 ? norm->out[1] : NULL;
    TRY(emit_again(graph, node, norm, in, ir_out(node)->type.format, &made));
    if (sum != NULL) TRY(fuse_replace(graph, sum, made->node->out[1], changed));
    return fuse_replace(graph, ir_out(node), made, changed);
}

/* A norm whose first result only a quantize reads takes its format. What is quantised is the result in x's format, so that no bit changes;
 * a norm that widens or narrows stays, and so do formats whose scales span rows. */
dw_status fuse_norm_quantize(ir_graph *graph, ir_node *node, bool *changed) {
    ir_value *in[MAX_NORM_IN], *made;
    if (node->op != OP_quantize || ir_in(node, 1) != NULL || ir_bool(node, OP_ATTR_floor)) return DW_OK;
    const ir_value *x = ir_in(node, 0);
    const ir_node *norm = x->kind == IR_RESULT && is_norm(x->node) && x->result == 0 && fuse_is_single_use(graph, x) ? x->node : NULL;
    dw_format to = ir_out(node)->type.format;
    if (norm == NULL || format_of(norm) != ir_in(norm, NORM_X)->type.format || !num_is_row_wise(to, false)) return DW_OK;
    operands_of(norm, in);
    ir_value *sum = norm->n_out > 1 ? norm->out[1] : NULL;
    TRY(emit_again(graph, node, norm, in, to, &made));
    if (sum != NULL) TRY(fuse_replace(graph, sum, made->node->out[1], changed));
    return fuse_replace(graph, ir_out(node), made, changed);
}

/* ---- the residual ---- */

/* Do both operands have the sum's own shape? */
static bool is_residual(const ir_node *add) {
    for (int i = 0; i < 2; i++) {
        if (!op_type_equal(&ir_in(add, i)->type, &ir_out(add)->type)) return false;
    }
    return true;
}

/* The norm goes where the sum was, so that the sum's other users come after it; its other operands are moved before it by the sort
 * at the end of the pass. */
dw_status fuse_norm_residual(ir_graph *graph, ir_node *node, bool *changed) {
    if (!is_norm(node) || node->n_out != 1) return DW_OK;
    ir_node *add = ir_def(ir_in(node, NORM_X), OP_add);
    if (add == NULL || !is_residual(add)) return DW_OK;
    for (int i = NORM_WEIGHT; i < residual_of(node); i++) {
        if (ir_in(node, i) != NULL && !ir_is_weight(ir_in(node, i))) return DW_OK;   /* it might need the sum */
    }
    ir_value *in[MAX_NORM_IN], *made;
    operands_of(node, in);
    in[NORM_X] = ir_in(add, 0);
    in[residual_of(node)] = ir_in(add, 1);
    TRY(emit_again(graph, add, node, in, format_of(node), &made));
    TRY(fuse_replace(graph, ir_out(node), made, changed));
    return fuse_replace(graph, ir_out(add), made->node->out[1], changed);
}

/* The gradient of a norm's operand whose only use is a sum with the rest of that gradient, as behind a residual: x, dy, weight and no more.
 *
 *     %1, %2, %3 = layer_norm_backward x, d, w             %1, %2, %3 = layer_norm_backward x, d, w, r
 *     %4 = add r, %1                                ->     what read %4 reads %1 */
static ir_node *backward_of(const ir_graph *graph, const ir_value *value) {
    ir_node *node = value->kind == IR_RESULT && (value->node->op == OP_layer_norm_backward || value->node->op == OP_rms_norm_backward) ? value->node : NULL;
    return node != NULL && value == node->out[0] && fuse_is_single_use(graph, value) && node->n_in <= 3 ? node : NULL;
}

dw_status fuse_norm_plus(ir_graph *graph, ir_node *node, bool *changed) {
    for (int i = 0; node->op == OP_add && i < 2; i++) {
        ir_node *back = backward_of(graph, ir_in(node, i));
        ir_value *rest = ir_in(node, 1 - i), *made;
        if (back == NULL || !op_type_equal(&ir_out(back)->type, &ir_out(node)->type) || !op_type_equal(&rest->type, &ir_out(node)->type)) continue;
        fuse_cursor(graph, node, back);
        TRY(ir_emit(graph, back->op, 4, (ir_value *[]){ir_in(back, 0), ir_in(back, 1), back->n_in > 2 ? ir_in(back, 2) : NULL, rest}, back->attrs.count, back->attrs.items, &made));
        const ir_node *const whole = made->node;
        for (int k = 1; k < back->n_out; k++) ir_replace(graph, back->out[k], whole->out[k]);
        return fuse_replace(graph, ir_out(node), made, changed);
    }
    return DW_OK;
}
