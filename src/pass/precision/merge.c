/* Merging, once precisions are fixed: products of one operand with different weights become one product with the weights one below the
 * other, and gate and up become one product with a gated step. What a cast makes of a norm or a product alone becomes its format, and what
 * a quantize makes of a norm, a product or attention alone.
 *
 *     %1 = quantize x {to=mxfp8}                       %1 = quantize x {to=mxfp8}
 *     %2 = quantize wq {to=mxfp8}                      %2 = concat wq, wk {axis=0}
 *     %3 = quantize wk {to=mxfp8}                      %3 = quantize %2 {to=mxfp8}
 *     %4 = matmul %1, %2 {to=f32,bt=true}       ->     %4 = matmul %1, %3 {to=f32,bt=true}
 *     %5 = matmul %1, %3 {to=f32,bt=true}              %5 = slice %4 {axis=2,start=0,end=256,step=1}
 *                                                      %6 = slice %4 {axis=2,start=256,end=384,step=1}
 *
 * No number changes: weights are put together before they are quantised, and only where the formats of their rows do not depend on each
 * other. A product without a bias beside others that have one gets one of -0.0. FP8 blocks of 128 rows are merged only at multiples of 128. Where one factor serves a tensor, as NVFP4's second level does, weights are put together behind that, each row with the factor of
 * its own (concat makes nvfp4_row of them, and fp8_row of fp8_tensor). Weights that something else uses stay apart too: they would be in memory twice. */
#include "pass/attention/attention.h"
#include "pass/fuse/fuse.h"

#include <string.h>

enum { MAX_MERGED = 8 };

/* ---- which products go together ---- */

/* What is put together: the weight, or what it is quantised from. */
static ir_value *source_of(const ir_node *product) {
    const ir_node *quantize = ir_def(ir_in(product, 1), OP_quantize);
    return quantize != NULL ? ir_in(quantize, 0) : ir_in(product, 1);
}

static int64_t columns_of(const ir_node *product) {
    int64_t columns = 0;
    dim_is_constant(ir_in(product, 1)->type.dims[ir_bool(product, OP_ATTR_bt) ? 0 : 1], &columns);
    return columns;
}

/* Has the format one factor for all of a weight, which concat makes one for each row? */
static bool is_put_together_behind(dw_format format) { return op_concat_format(format) != format; }

/* Does a weight of columns output columns keep its codes when others are put before and behind it? */
static bool keeps_codes(dw_format format, int64_t columns) {
    const num_format *info = num_info(format);
    if (info->class != NUM_BLOCK) return true;
    if (is_put_together_behind(format)) return true;
    return columns % info->rows == 0;
}

/* A product with a weight of two axes that nothing else uses, its post list made of constant columns and steps without operands. Weights that come in blocks are not put together,
 * and results in blocks are not taken apart. */
static bool is_candidate(ir_graph *graph, const ir_node *node) {
    if (node->op != OP_matmul || dw_format_is_block(source_of(node)->type.format) || dw_format_is_block(ir_out(node)->type.format)) return false;
    if (!ir_is_constant(ir_in(node, 1)) || ir_is_constant(ir_in(node, 0)) || ir_in(node, 1)->type.rank != 2) return false;
    const ir_node *quantize = ir_def(ir_in(node, 1), OP_quantize);
    if (quantize != NULL && quantize->n_in > 1) return false;
    for (int i = 2; i < node->n_in; i++) {
        if (!ir_is_constant(ir_in(node, i)) || ir_in(node, i)->type.rank != 1) return false;
    }
    return fuse_is_single_use(graph, ir_in(node, 1)) && columns_of(node) > 0 && keeps_codes(ir_in(node, 1)->type.format, columns_of(node)) &&
           fuse_has_plain_post(graph, node);
}

static bool has_same_formats(const ir_node *a, const ir_node *b) {
    if (ir_in(a, 0) != ir_in(b, 0) || ir_out(a)->type.format != ir_out(b)->type.format) return false;
    if (ir_bool(a, OP_ATTR_at) != ir_bool(b, OP_ATTR_at) || ir_bool(a, OP_ATTR_bt) != ir_bool(b, OP_ATTR_bt)) return false;
    const ir_node *qa = ir_def(ir_in(a, 1), OP_quantize), *qb = ir_def(ir_in(b, 1), OP_quantize);
    if ((qa != NULL) != (qb != NULL) || (qa != NULL && !op_attrs_equal(&qa->attrs, &qb->attrs))) return false;
    if (ir_in(a, 1)->type.format != ir_in(b, 1)->type.format || source_of(a)->type.format != source_of(b)->type.format) return false;
    for (int i = 2; i < a->n_in && i < b->n_in; i++) {
        if (ir_in(a, i)->type.format != ir_in(b, i)->type.format) return false;
    }
    return true;
}

/* ---- the merged product ---- */

static dw_status emit_concat(ir_graph *graph, int count, ir_value *const *parts, int axis, ir_value **whole) {
    op_attr attr = op_set_int(OP_ATTR_axis, axis);
    return ir_emit(graph, OP_concat, count, parts, 1, &attr, whole);
}

static dw_status emit_weight(ir_graph *graph, int count, ir_node *const *products, ir_value **weight) {
    ir_value *parts[MAX_MERGED];
    const ir_node *quantize = ir_def(ir_in(products[0], 1), OP_quantize);
    const bool behind = is_put_together_behind(ir_in(products[0], 1)->type.format);
    for (int i = 0; i < count; i++) parts[i] = behind ? ir_in(products[i], 1) : source_of(products[i]);
    if (behind) return emit_concat(graph, count, parts, 0, weight);
    TRY(emit_concat(graph, count, parts, ir_bool(products[0], OP_ATTR_bt) ? 0 : 1, weight));
    ir_value *whole = *weight;
    return quantize != NULL ? ir_emit(graph, OP_quantize, 1, &whole, quantize->attrs.count, quantize->attrs.items, weight) : DW_OK;
}

/* A bias that changes no bit, of as many columns as the product has: y + -0.0 is y, also where y is -0.0. */
static dw_status emit_no_bias(ir_graph *graph, const ir_node *product, dw_format format, ir_value **bias) {
    dim columns;
    TRY_DIM(graph->context, columns, dim_constant(graph->dims, columns_of(product)));
    const op_attr attrs[] = {op_set_dims(OP_ATTR_shape, 1, &columns), op_set_real(OP_ATTR_value, -0.0), op_set_format(OP_ATTR_to, format)};
    return ir_emit(graph, OP_fill, 0, NULL, COUNT_OF(attrs), attrs, bias);
}

/* The product of the common operand with all weights, before root, with that post list, whose operands like has. */
static dw_status emit_merged(ir_graph *graph, ir_node *root, int count, ir_node *const *products, const ir_node *like, const char *post, ir_value **result) {
    const ir_node *first = products[0];
    ir_value *in[64], *parts[MAX_MERGED];
    op_attr attrs[OP_ATTR_COUNT];
    int attr_count = 0;
    fuse_cursor(graph, root, first);
    TRY(pass_join_modules(graph, count, products, &graph->origin.module));
    in[0] = ir_in(first, 0);
    TRY(emit_weight(graph, count, products, &in[1]));
    for (int i = 2; i < like->n_in; i++) {
        for (int j = 0; j < count; j++) {
            if (i < products[j]->n_in) parts[j] = ir_in(products[j], i);
            else TRY(emit_no_bias(graph, products[j], ir_in(like, i)->type.format, &parts[j]));
        }
        TRY(emit_concat(graph, count, parts, 0, &in[i]));
    }
    for (int i = 0; i < first->attrs.count; i++) {
        if (first->attrs.items[i].id != OP_ATTR_post) attrs[attr_count++] = first->attrs.items[i];
    }
    if (*post != '\0') attrs[attr_count++] = op_set_text(OP_ATTR_post, post);
    return ir_emit(graph, OP_matmul, like->n_in, in, attr_count, attrs, result);
}

/* ---- weights as products of few rows read them ---- */

/* x w, w [..,k,n], becomes x (w^T)^T: where b is read but once, its rows have to lie side by side. Weights that something else reads stay, as they would be in memory
 * twice, and so do those in blocks, which run along k. */
static dw_status turn_weight(ir_graph *graph, ir_node *node, bool *changed) {
    if ((node->op != OP_matmul && node->op != OP_grouped_matmul) || ir_bool(node, OP_ATTR_bt) || ir_bool(node, OP_ATTR_at)) return DW_OK;
    ir_value *weight = ir_in(node, 1), *in[64], *made;
    const int rank = weight->type.rank;
    if (weight->kind != IR_PARAM || ir_is_constant(ir_in(node, 0)) || !fuse_is_float(weight->type.format) || rank < 2 || rank > 3 || !fuse_is_single_use(graph, weight)) return DW_OK;
    const int64_t order[] = {0, rank - 1, rank - 2};
    op_attr attrs[OP_ATTR_COUNT];
    int count = 0;
    for (int i = 0; i < node->n_in; i++) in[i] = ir_in(node, i);
    for (int i = 0; i < node->attrs.count; i++)
        if (node->attrs.items[i].id != OP_ATTR_bt) attrs[count++] = node->attrs.items[i];
    attrs[count++] = op_set_bool(OP_ATTR_bt, true);
    fuse_cursor(graph, node, node);
    TRY(ir_emit_transpose(graph, weight, rank == 2 ? (const int64_t[]){1, 0} : order, &in[1]));
    TRY(ir_emit(graph, node->op, node->n_in, in, count, attrs, &made));
    return fuse_replace(graph, ir_out(node), made, changed);
}

/* ---- gate and up ---- */

/* The activation at the end of the gate's post list, the steps before it being the up's. */
static bool read_gate(ir_graph *graph, const ir_node *gate, const ir_node *up, op_post *step) {
    op_post_list list, rest;
    if (op_post_parse(graph->context, ir_attr_text(gate, OP_ATTR_post), &list) != DW_OK) return false;
    if (op_post_parse(graph->context, ir_attr_text(up, OP_ATTR_post), &rest) != DW_OK) return false;
    if (list.count != rest.count + 1 || memcmp(list.steps, rest.steps, sizeof *list.steps * (size_t)rest.count) != 0) return false;
    *step = fuse_gated_step(list.steps[rest.count]);
    return *step != OP_POST_COUNT;
}

static dw_status merge_gated(ir_graph *graph, ir_node *node, bool *changed) {
    for (int i = 0; node->op == OP_mul && i < 2; i++) {
        ir_node *pair[] = {fuse_linear(graph, ir_in(node, i)), fuse_linear(graph, ir_in(node, 1 - i))};
        op_post step;
        ir_value *made;
        if (pair[0] == NULL || pair[1] == NULL || !is_candidate(graph, pair[0]) || !is_candidate(graph, pair[1])) continue;
        if (!has_same_formats(pair[0], pair[1]) || columns_of(pair[0]) != columns_of(pair[1]) || !read_gate(graph, pair[0], pair[1], &step)) continue;
        const char *before = ir_attr_text(pair[1], OP_ATTR_post);
        const char *post = arena_printf(&graph->arena, "%s%s%s", before, *before != '\0' ? "," : "", op_post_name(step));
        if (post == NULL) return DW_NO_MEMORY;
        TRY(emit_merged(graph, node, 2, pair, pair[0], post, &made));
        return fuse_replace(graph, ir_out(node), made, changed);
    }
    return DW_OK;
}

/* What could not be merged: the up takes the gate as a factor. */
static dw_status merge_factor(ir_graph *graph, ir_node *node, bool *changed) {
    for (int i = 1; node->op == OP_mul && i >= 0; i--) {
        const ir_node *linear = fuse_linear(graph, ir_in(node, i));
        bool fits = linear != NULL && op_type_equal(&ir_out(linear)->type, &ir_out(node)->type) && op_type_equal(&ir_in(node, 1 - i)->type, &ir_out(node)->type);
        if (fits) return fuse_post_step(graph, linear, node, OP_POST_mul, ir_in(node, 1 - i), changed);
    }
    return DW_OK;
}

/* ---- products side by side ---- */

static bool has_post(const ir_node *node, const char *post) { return strcmp(ir_attr_text(node, OP_ATTR_post), post) == 0; }

/* Of one kind with the same operand: the same post list, or one that lacks the bias that is all of like's. */
static bool goes_with(ir_graph *graph, const ir_node *like, const ir_node *other) {
    if (!is_candidate(graph, other) || !has_same_formats(like, other) || !pass_are_siblings(like->origin.module, other->origin.module)) return false;
    return has_post(other, ir_attr_text(like, OP_ATTR_post)) || (has_post(like, "bias") && has_post(other, ""));
}

/* node, or where it has no post list, one that it goes with and that has a bias. */
static const ir_node *find_like(ir_graph *graph, const ir_node *node) {
    for (const ir_use *use = ir_in(node, 0)->uses; has_post(node, "") && use != NULL; use = use->next)
        if (use->index == 0 && has_post(use->node, "bias") && is_candidate(graph, use->node) && goes_with(graph, use->node, node)) return use->node;
    return node;
}

/* Those that go with like, in the order of the graph; their number. */
static int collect(ir_graph *graph, const ir_node *like, ir_node **products) {
    int count = 0;
    for (const ir_use *use = ir_in(like, 0)->uses; use != NULL; use = use->next) {
        ir_node *other = use->node;
        if (use->index != 0 || !goes_with(graph, like, other)) continue;
        if (count == MAX_MERGED) return 0;
        int at = count++;
        for (; at > 0 && products[at - 1]->order > other->order; at--) products[at] = products[at - 1];
        products[at] = other;
    }
    return count;
}

static dw_status merge_siblings(ir_graph *graph, ir_node *node, bool *changed) {
    ir_node *products[MAX_MERGED];
    ir_value *made, *parts[MAX_MERGED];
    if (node->op != OP_matmul || !is_candidate(graph, node)) return DW_OK;
    const ir_node *like = find_like(graph, node);
    int count = collect(graph, like, products);
    if (count < 2) return DW_OK;
    TRY(emit_merged(graph, products[0], count, products, like, ir_attr_text(like, OP_ATTR_post), &made));
    int64_t start = 0;
    for (int i = 0; i < count; i++) {
        dim from, to;
        TRY_DIM(graph->context, from, dim_constant(graph->dims, start));
        start += columns_of(products[i]);
        TRY_DIM(graph->context, to, dim_constant(graph->dims, start));
        graph->origin = products[i]->origin;
        TRY(ir_emit_slice(graph, made, made->type.rank - 1, from, to, 1, &parts[i]));
    }
    for (int i = 0; i < count; i++) TRY(fuse_replace(graph, ir_out(products[i]), parts[i], changed));
    return DW_OK;
}

/* ---- the pass ---- */

/* Weights are turned first. Gates before siblings, which would take them apart; factors when no gate is left to merge; quantisers when products are what they stay. */
static const struct { const char *name; fuse_function run; } rows[] = {
    {"turn_weight", turn_weight},          {"norm_cast", fuse_norm_cast},       {"linear_cast", fuse_linear_cast},   {"merge_gated", merge_gated},
    {"merge_siblings", merge_siblings},    {"merge_factor", merge_factor},      {"norm_quantize", fuse_norm_quantize},
};

dw_status pass_merge(ir_graph *graph, const pass_options *options, bool *changed) {
    *changed = false;
    ir_renumber(graph);
    for (size_t i = 0; i < COUNT_OF(rows); i++) TRY(fuse_each(graph, rows[i].name, rows[i].run, changed));
    if (!options->plain_products) TRY(fuse_each(graph, "linear_quantize", fuse_linear_quantize, changed));
    if (!options->plain_attention) TRY(fuse_each(graph, "attention_quantize", fuse_attention_quantize, changed));
    return *changed ? ir_sort(graph) : DW_OK;
}
