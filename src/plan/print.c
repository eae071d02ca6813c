/* The text form of a plan:
 *     plan llama
 *       chip      "cpu-avx512bf16" "6bff3c1e08d2a951"
 *       precision "mxfp8"
 *       typical   "b=1,s=128"
 *     graph llama
 *       ...
 *     steps
 *       load %3 quantize_rows
 *       run  %7 matmul_bf16_avx512bf16   # 41.2 us, packs b, y in workspace
 * A way of a row that was asked for is behind it: cuda_matmul way cuda_matmul_wgmma. What was measured of its ways, too: tuned "16:way,128:way/variant", for so many rows.
 * A plan that prepares says so behind its precision, and what it makes after an update of weights has "prepare" instead of "run".
 * What follows a '#' is for people: plan_parse derives it again from the graph and the kernels. */
#include "plan/internal.h"

#include <inttypes.h>
#include <string.h>

void plan_attrs_print(text *text, const dim_table *dims, const op_attrs *attrs)
{
    for (int i = 0; i < attrs->count; i++) {
        const op_attr *attr = &attrs->items[i];
        text_printf(text, "{%s=", op_attr_name(attr->id));
        switch (op_attr_kind_of(attr->id)) {
        case OP_KIND_INT:
        case OP_KIND_BOOL:   text_printf(text, "%" PRId64, attr->integer); break;
        case OP_KIND_REAL:   text_printf(text, "%a", attr->real); break;
        case OP_KIND_TEXT:   text_add(text, attr->text); break;
        case OP_KIND_FORMAT: text_add(text, dw_format_name(attr->format)); break;
        case OP_KIND_DIM:    dim_print(text, dims, attr->dim); break;
        case OP_KIND_INTS:   for (int k = 0; k < attr->count; k++) text_printf(text, "%" PRId64 ",", attr->integers[k]); break;
        case OP_KIND_DIMS:
            for (int k = 0; k < attr->count; k++) {
                dim_print(text, dims, attr->dims[k]);
                text_add(text, ",");
            }
            break;
        }
        text_add(text, "}");
    }
}

const char *plan_place_name(plan_place place)
{
    static const char *const names[PLAN_PLACE_COUNT] = {
        [PLAN_WORKSPACE] = "workspace", [PLAN_INPUT] = "input", [PLAN_OUTPUT] = "output",
        [PLAN_STATE] = "state", [PLAN_CONSTANT] = "constant", [PLAN_NOWHERE] = "nowhere",
    };
    return names[place];
}

static void print_entry(text *text, const kernel_problem *problem, const kernel_tuned *entry, bool more)
{
    text_printf(text, "%s%" PRId64 ":%s", more ? "," : "", entry->rows, entry->way != NULL ? entry->way->name : "");
    if (entry->way != NULL && entry->variant >= 0) text_printf(text, "/%s", kernel_way_variant(entry->way, problem, entry->variant));
}

static void print_tuned(text *text, const plan *plan, const plan_step *step)
{
    const op_type *in[KERNEL_MAX_OPERANDS], *out[KERNEL_MAX_RESULTS];
    kernel_problem problem;
    plan_problem(plan, step, in, out, &problem);
    text_add(text, " tuned \"");
    for (int i = 0; i < step->tuned_count; i++)
        print_entry(text, &problem, &step->tuned[i], i > 0);
    text_add(text, "\"");
}

static void print_step(text *text, const plan *plan, const plan_step *step)
{
    const ir_node *node = step->node;
    const plan_value *result = plan_value_of(node->out[0]);
    text_printf(text, "  %s %%%d %s", step->at_load ? "load" : step->at_update ? "prepare" : "run ", node->out[0]->id, step->row->name);
    if (step->way != NULL) text_printf(text, " way %s", step->way->name);
    if (step->tuned_count > 0) print_tuned(text, plan, step);
    text_add(text, "   #");
    if (!step->at_load) text_printf(text, " %.1f us%s%s,", step->seconds * 1e6, step->picked != NULL ? " by " : "", step->picked != NULL ? step->picked->name : "");
    if (step->packing != NULL) text_printf(text, " packs operand %d,", step->row->packs);
    text_printf(text, " in %s%s%s\n", plan_place_name(result->place), result->base ? " over its operand" : "",
                step->row->reference ? ", reference kernel" : "");
}

dw_status plan_print(const plan *plan, text *text)
{
    const dim_table *dims = plan->graph->dims;
    text_printf(text, "plan %s\n  chip      \"%s\" \"%016" PRIx64 "\"\n  precision ", plan->graph->name, plan->chip.name, chip_hash(&plan->chip));
    text_json_string(text, plan->precision);
    if (plan->invariant) text_add(text, "\n  invariant");
    if (plan->prepares) text_add(text, "\n  prepares");
    text_add(text, "\n  typical   \"");
    for (int i = 0, count = 0; i < dim_symbol_count(dims); i++)   /* a rank's place is no size, and the same text is all ranks' */
        if (strncmp(dim_symbol_name(dims, i), DIM_RANK, strlen(DIM_RANK)) != 0) text_printf(text, "%s%s=%" PRId64, count++ ? "," : "", dim_symbol_name(dims, i), plan->typical[i]);
    text_add(text, "\"\n");
    TRY(ir_print_without_example(plan->graph, text));   /* what came of it are the typical sizes */
    text_add(text, "steps\n");
    for (int i = 0; i < plan->step_count; i++) print_step(text, plan, &plan->steps[i]);
    return text_status(text);
}
