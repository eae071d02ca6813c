/* Lays block scales in tiles of 128 x 4 where a kernel of the chip takes products with such alone (KERNEL_WAY_TILED). What makes the operands gets the attribute; weights that come quantised, or
 * were put together of parts, are laid so at load, never in a run.
 *
 *     %1 = quantize x {to=nvfp4_row}; %2 = concat u, v {axis=0}; %3 = matmul %1, %2 {bt=true}
 *  -> %1 = quantize x {to=nvfp4_row,tiled=true}; %2 = concat u, v {axis=0}; %4 = tile_scales %2; %3 = matmul %1, %4 {bt=true}
 *
 * Both operands of a product are. A value that something else reads, too, stays plain, and so do the other operands of its products; a weight is then there twice. Sizes that are bound later decide
 * nothing, so that a model's whole run and its cached step have the same weights. */
#include "plan/internal.h"

#include <string.h>

/* The value's scales may be laid otherwise: a node makes it, in blocks, and nobody outside reads it. */
static bool is_ours(const ir_graph *graph, const ir_value *value)
{
    if (value == NULL || value->kind != IR_RESULT || value->result != 0 || !dw_format_is_block(value->type.format)) return false;
    return !ir_is_output(graph, value) && value->next_count == 0 && strstr(op_get(value->node->op)->attributes, "tiled?") != NULL;
}

/* Known at load, so a step at load may lay its scales. */
static bool is_weight(const ir_value *value) { return value != NULL && plan_value_of(value)->key != NULL; }

/* Does it run the product with the block scales of both operands, which are the problem's, in this layout? */
static bool takes_laid(const kernel_row *row, const kernel_way *way, const kernel_problem *problem, op_type operands[2], dw_scale_layout layout, text *why)
{
    for (int i = 0; i < 2; i++) operands[i].scale_layout = layout;
    return kernel_refusal(row, way, problem, why) == NULL;
}

/* Does a way that takes scales in tiles alone run the product, once they lie so? One that dequantises both operands takes them in either layout. */
static dw_status is_wanted(plan *plan, ir_node *node, bool *wanted)
{
    const op_type *in[KERNEL_MAX_OPERANDS], *out[KERNEL_MAX_RESULTS];
    plan_step step = {.node = node};
    kernel_problem problem;
    op_type laid[2];
    *wanted = false;
    TRY(op_post_parse(plan->context, ir_attr_text(node, OP_ATTR_post), &step.post));
    plan_problem(plan, &step, in, out, &problem);
    problem.context = plan->context;
    for (int i = 0; i < 2; i++) {
        if (!num_has_layout(in[i]->format, DW_SCALE_tile128x4)) return DW_OK;
        laid[i] = *in[i];
        in[i] = &laid[i];
    }
    text why;
    text_init(&why, plan->context);
    for (int i = 0; i < kernel_count() && !*wanted; i++) {
        const kernel_row *row = kernel_at(i);
        for (int k = 0; row->op == node->op && row->device == problem.chip->kind && k < row->way_count && !*wanted; k++)
            *wanted = kernel_way_is(&row->ways[k], KERNEL_WAY_TILED) && takes_laid(row, &row->ways[k], &problem, laid, DW_SCALE_tile128x4, &why) && !takes_laid(row, &row->ways[k], &problem, laid, DW_SCALE_plain, &why);
    }
    dw_status status = text_status(&why);
    text_free(&why);
    return status;
}

/* Products whose operands are to be tiled have this mark while they are looked for. */
static int product_mark;
static bool is_marked(const ir_node *node) { return node->mark == &product_mark; }

static bool only_products_read(const ir_value *value)
{
    for (const ir_use *use = value->uses; use != NULL; use = use->next)
        if (!is_marked(use->node) || use->index > 1) return false;
    return true;
}

static dw_status set_tiled(ir_graph *graph, const ir_value *value)
{
    if (value->type.scale_layout == DW_SCALE_tile128x4) return DW_OK;
    TRY(ir_set_attr(graph, value->node, op_set_bool(OP_ATTR_tiled, true)));
    return ir_infer(graph, value->node);
}

/* The weight with its scales in tiles: made once, whatever reads it. */
static dw_status tile_weight(ir_graph *graph, ir_node *product, ir_value *weight)
{
    ir_value *tiled = NULL;
    for (const ir_use *use = weight->uses; use != NULL && tiled == NULL; use = use->next)
        if (use->node->op == OP_tile_scales) tiled = ir_out(use->node);
    if (tiled == NULL) {
        ir_cursor_before(graph, product);
        TRY(ir_emit_1(graph, OP_tile_scales, weight, &tiled));
        ir_cursor_end(graph);
    }
    ir_set_operand(product, 1, tiled);
    return ir_infer(graph, product);
}

static dw_status tile_second(ir_graph *graph, ir_node *product)
{
    ir_value *b = ir_in(product, 1);
    if (b->type.scale_layout == DW_SCALE_tile128x4) return DW_OK;
    return is_ours(graph, b) && only_products_read(b) ? set_tiled(graph, b) : tile_weight(graph, product, b);
}

dw_status plan_tile_scales(plan *plan)
{
    ir_graph *graph = plan->graph;
    bool again = plan->chip.kind == CHIP_GPU;
    if (!again) return DW_OK;
    ir_renumber(graph);
    TRY(plan_number_values(plan));
    TRY(plan_find_constants(plan));
    for (ir_node *node = graph->first; node != NULL; node = node->next) {
        bool wanted = false;
        node->mark = NULL;
        if ((node->op == OP_matmul || node->op == OP_grouped_matmul) && is_ours(graph, ir_in(node, 0)) && (is_weight(ir_in(node, 1)) || is_ours(graph, ir_in(node, 1)))) TRY(is_wanted(plan, node, &wanted));
        if (wanted) node->mark = &product_mark;
    }
    while (again) {
        again = false;
        for (ir_node *node = graph->first; node != NULL; node = node->next) {
            if (!is_marked(node) || (only_products_read(ir_in(node, 0)) && (is_weight(ir_in(node, 1)) || only_products_read(ir_in(node, 1))))) continue;
            node->mark = NULL;
            again = true;
        }
    }
    for (ir_node *node = graph->first; node != NULL; node = node->next) {
        if (!is_marked(node)) continue;
        TRY(set_tiled(graph, ir_in(node, 0)));
        TRY(tile_second(graph, node));
    }
    for (ir_node *node = graph->first; node != NULL; node = node->next) node->mark = NULL;
    return DW_OK;
}
