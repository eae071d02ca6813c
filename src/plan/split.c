/* Splits post steps off a product if a kernel of the caller's choice does not apply them. If a kernel that was registered, or asked for by name, refuses a product with its list and
 * accepts it without the last steps, these become ops of their own behind it. They mean what they meant in the list, except that the product is rounded to its result's format before
 * them.
 *
 *     %1 = matmul x, w, b {bt=true,post="bias,gelu"}   ->   %1 = matmul x, w {bt=true}; %2 = add %1, b; %3 = gelu %2
 *
 * Where no such kernel takes the bare product, either, nothing changes. Ops that come of it are chained as others are. */
#include "plan/internal.h"

#include <string.h>

#include "pass/pass.h"

/* A node to split, the kernel that it is split for, how many steps that applies, and why it refuses them all. */
typedef struct part { ir_node *node; const char *kernel, *reason; op_post_list post; int kept; } part;

static int plain_operands(const ir_node *node) { return node->op == OP_grouped_matmul ? 3 : 2; }

/* Biases of groups are vectors of rows that only the product's kernel knows, and so are the rows of padded groups, of which the others are 0 behind all steps. */
static bool can_split(const ir_node *node, const op_post_list *post)
{
    if (post->count == 0 || dw_format_is_block(ir_out(node)->type.format) || ir_int(node, OP_ATTR_padded) > 0) return false;
    for (int i = 0, next = plain_operands(node); i < post->count; i++) {
        const op_post_operand operand = op_post_operand_of(post->steps[i]);
        if (operand == OP_POST_NONE) continue;
        if (operand == OP_POST_COLUMN && ir_in(node, next)->type.rank > 1) return false;
        next++;
    }
    return true;
}

/* The type of the product with the first kept steps of its list: a later one that halves has not been there. */
static op_type type_of(const ir_node *node, const op_post_list *post, int kept)
{
    const op_type *b = &ir_in(node, 1)->type;
    op_type type = ir_out(node)->type;
    for (int i = kept; i < post->count; i++)
        if (op_post_halves(post->steps[i])) type.dims[type.rank - 1] = b->dims[b->rank - (ir_bool(node, OP_ATTR_bt) ? 2 : 1)];
    return type;
}

/* Operands of the node with the first kept steps. */
static int count_operands(const ir_node *node, const op_post_list *post, int kept)
{
    int count = plain_operands(node);
    for (int i = 0; i < kept; i++) count += op_post_operand_of(post->steps[i]) != OP_POST_NONE;
    return count;
}

/* Does the row, or the way of it that was asked for, take the node whole, or only without the last steps of its list? found->reason is why then, in the plan's arena; else it stays NULL. */
static dw_status ask(plan *plan, const kernel_row *row, const kernel_way *way, const kernel_problem *whole, bool *takes_whole, part *found)
{
    text why;
    text_init(&why, plan->context);
    const char *refused = kernel_refusal(row, way, whole, &why);
    dw_status status = text_status(&why);
    *takes_whole = refused == NULL;
    for (int kept = found->post.count - 1; kept >= 0 && refused != NULL && found->reason == NULL && status == DW_OK; kept--) {
        const op_type type = type_of(found->node, &found->post, kept), *out = &type;
        kernel_problem problem = *whole;
        problem.post.count = kept;
        problem.n_in = count_operands(found->node, &found->post, kept);
        problem.out = &out;
        text of_less;
        text_init(&of_less, plan->context);
        const bool takes = kernel_refusal(row, way, &problem, &of_less) == NULL;
        status = text_status(&of_less);
        text_free(&of_less);
        if (status != DW_OK || !takes) continue;
        found->kept = kept;
        found->reason = arena_text(&plan->arena, refused);
        if (found->reason == NULL) status = DW_NO_MEMORY;
    }
    text_free(&why);
    return status;
}

/* Is there a row that was asked for, or registered, that takes the node without its list alone, and none in front of it that takes it whole? */
static dw_status look_at(plan *plan, const plan_options *options, ir_node *node, part *found)
{
    const op_type *in[KERNEL_MAX_OPERANDS], *out[KERNEL_MAX_RESULTS];
    plan_step step = {.node = node, .at_load = plan_value_of(ir_out(node))->key != NULL && !plan_value_of(ir_out(node))->updated};
    kernel_problem problem;
    const char *asked;
    *found = (part){.node = node};
    TRY(op_post_parse(plan->context, ir_attr_text(node, OP_ATTR_post), &step.post));
    if (!can_split(node, &step.post)) return DW_OK;
    found->post = step.post;
    TRY(plan_asked_kernel(plan, options->kernels, &step, &asked));
    plan_problem(plan, &step, in, out, &problem);
    problem.context = plan->context;
    const int registered = options->registry != NULL ? options->registry->count : 0;
    bool takes_whole = false;
    for (int i = 0; i < registered + kernel_count() && found->reason == NULL && !takes_whole; i++) {
        const kernel_row *row = i < registered ? &options->registry->rows[i] : kernel_at(i - registered);
        if (row->op != node->op || row->device != problem.chip->kind || (asked != NULL ? !kernel_is_named(row, asked) : i >= registered)) continue;
        const kernel_way *way = asked != NULL ? kernel_find_way(row, asked) : NULL;
        found->kernel = way != NULL ? way->name : row->name;
        TRY(ask(plan, row, way, &problem, &takes_whole, found));
    }
    return DW_OK;
}

/* ---- rewriting ---- */

/* activation(first half) * second half */
static dw_status emit_gated(ir_graph *graph, op_post step, ir_value **y)
{
    const int axis = (*y)->type.rank - 1;
    const dim n = (*y)->type.dims[axis];
    ir_value *gate, *up, *active;
    dim zero, two, half;
    TRY_DIM(graph->context, zero, dim_constant(graph->dims, 0));
    TRY_DIM(graph->context, two, dim_constant(graph->dims, 2));
    TRY_DIM(graph->context, half, dim_divide_exact(graph->dims, n, two));
    TRY(ir_emit_slice(graph, *y, axis, zero, half, 1, &gate));
    TRY(ir_emit_slice(graph, *y, axis, half, n, 1, &up));
    TRY(ir_emit_1(graph, op_post_op(step), gate, &active));
    return ir_emit_2(graph, OP_mul, active, up, y);
}

/* In fp32, as in the list; x: the step's operand, or NULL. */
static dw_status emit_step(ir_graph *graph, op_post step, ir_value *x, ir_value **y)
{
    ir_value *operand;
    if (op_post_halves(step)) return emit_gated(graph, step, y);
    if (x == NULL) return ir_emit_1(graph, op_post_op(step), *y, y);
    TRY(ir_emit_cast(graph, x, (*y)->type.format, &operand));
    return ir_emit_2(graph, op_post_op(step), *y, operand, y);
}

/* "bias,gelu": steps first to end - 1, in the graph's arena. */
static dw_status print_steps(ir_graph *graph, const part *part, int first, int end, const char **post)
{
    *post = "";
    for (int i = first; i < end && *post != NULL; i++) *post = arena_printf(&graph->arena, "%s%s%s", *post, i > first ? "," : "", op_post_name(part->post.steps[i]));
    return *post != NULL ? DW_OK : DW_NO_MEMORY;
}

static dw_status split(ir_graph *graph, const part *part)
{
    ir_node *node = part->node;
    const dw_format format = ir_out(node)->type.format;
    ir_value *in[KERNEL_MAX_OPERANDS], *y;
    op_attr attrs[OP_ATTR_COUNT];
    const char *post;
    int count = 0, next = count_operands(node, &part->post, part->kept);
    ir_cursor_before(graph, node);
    for (int i = 0; i < next; i++) in[i] = ir_in(node, i);
    for (int i = 0; i < node->attrs.count; i++)
        if (node->attrs.items[i].id != OP_ATTR_post) attrs[count++] = node->attrs.items[i];
    TRY(print_steps(graph, part, 0, part->kept, &post));
    if (part->kept > 0) attrs[count++] = op_set_text(OP_ATTR_post, post);
    TRY(ir_emit(graph, node->op, next, in, count, attrs, &y));
    if (format != DW_FORMAT_f64) TRY(ir_emit_cast(graph, y, DW_FORMAT_f32, &y));
    for (int i = part->kept; i < part->post.count; i++) {
        const bool takes = op_post_operand_of(part->post.steps[i]) != OP_POST_NONE;
        TRY(emit_step(graph, part->post.steps[i], takes ? ir_in(node, next) : NULL, &y));
        next += takes;
    }
    TRY(ir_emit_cast(graph, y, format, &y));
    ir_replace(graph, ir_out(node), y);
    return ir_remove(graph, node);
}

/* ---- the whole ---- */

static dw_status tell(ir_graph *graph, const part *part, text *words)
{
    const ir_origin *origin = &part->node->origin;
    const char *post;
    TRY(print_steps(graph, part, part->kept, part->post.count, &post));
    text_printf(words, "  %s: post list \"%s\" runs behind %s: %s\n", origin->module != NULL && origin->module[0] != '\0' ? origin->module : op_get(part->node->op)->name, post,
                part->kernel, part->reason);
    return text_status(words);
}

static dw_status split_all(plan *plan, const plan_options *options, text *words)
{
    part *parts;
    int count = 0;
    ir_graph *graph = plan->graph;
    ir_renumber(graph);
    TRY(plan_number_values(plan));
    TRY(plan_find_constants(plan));
    for (const ir_node *node = graph->first; node != NULL; node = node->next) count++;
    TRY_NEW(parts, &plan->arena, count);
    count = 0;
    for (ir_node *node = graph->first; node != NULL; node = node->next) {
        if (node->op != OP_matmul && node->op != OP_grouped_matmul) continue;
        TRY(look_at(plan, options, node, &parts[count]));
        count += parts[count].reason != NULL;
    }
    for (int i = 0; i < count; i++) {
        TRY(tell(graph, &parts[i], words));
        TRY(split(graph, &parts[i]));
    }
    ir_cursor_end(graph);
    graph->origin = (ir_origin){0};
    return count > 0 ? pass_run(graph, PASS_STAGE_CHAIN, &(pass_options){.alone = options->alone}) : DW_OK;
}

dw_status plan_split_posts(plan *plan, const plan_options *options)
{
    text words;
    if ((options->registry == NULL || options->registry->count == 0) && (options->kernels == NULL || options->kernels[0] == '\0')) return DW_OK;
    text_init(&words, plan->context);
    dw_status status = split_all(plan, options, &words);
    if (status == DW_OK && words.length > 0) {
        plan->split = arena_text(&plan->arena, text_string(&words));
        if (plan->split == NULL) status = DW_NO_MEMORY;
    }
    text_free(&words);
    return status;
}
