/* Reads the text form of a plan (print.c). Kernels are taken as named; layout and lives are derived anew by the same rules. */
#include "plan/internal.h"

#include <inttypes.h>
#include <string.h>

typedef struct named_step { int64_t id; bool at_load, at_update; const char *kernel, *way, *tuned; } named_step;
typedef struct named_steps {
    named_step *items;
    size_t count, capacity;
    const kernel_registry *registry;
    const char *source;
} named_steps;

static const kernel_row *find_row(const kernel_registry *registry, const char *name)
{
    for (int i = 0; registry != NULL && i < registry->count; i++)
        if (strcmp(registry->rows[i].name, name) == 0) return &registry->rows[i];
    for (int i = 0; i < kernel_count(); i++)
        if (strcmp(kernel_at(i)->name, name) == 0) return kernel_at(i);
    return NULL;
}

static const named_step *find_named(const named_steps *named, int id)
{
    for (size_t i = 0; i < named->count; i++)
        if (named->items[i].id == id) return &named->items[i];
    return NULL;
}

/* Names are given to steps that print; views that are mere strides have none and take the first row that copies. */
static dw_status set_named(plan *plan, plan_step *step, const named_steps *named)
{
    const op_type *in[KERNEL_MAX_OPERANDS], *out[KERNEL_MAX_RESULTS];
    kernel_problem problem;
    const named_step *name = find_named(named, step->node->out[0]->id);
    plan_problem(plan, step, in, out, &problem);
    if (name == NULL) {
        if (!(problem.op->traits & OP_TRAIT_VIEW))
            return base_fail(plan->context, DW_CORRUPT, "%s: no step for %%%d (%s)", named->source, step->node->out[0]->id, problem.op->name);
        kernel_choice choice;
        TRY(kernel_choose(&plan->arena, &problem, named->registry, NULL, &choice));
        return plan_set_row(plan, step, choice.row, choice.ways);
    }
    const kernel_row *row = find_row(named->registry, name->kernel);
    if (row == NULL)
        return base_fail(plan->context, DW_UNSUPPORTED, "%s: kernel %s of step %%%d is not in this build", named->source, name->kernel,
                         step->node->out[0]->id);
    problem.context = plan->context;
    step->way = name->way != NULL ? kernel_find_way(row, name->way) : NULL;
    if (name->way != NULL && step->way == NULL)
        return base_fail(plan->context, DW_UNSUPPORTED, "%s: kernel %s of %s, step %%%d, is not in this build", named->source, name->way, row->name, step->node->out[0]->id);
    text why;
    text_init(&why, plan->context);
    const char *reason = row->op != step->node->op              ? "it runs another op"
                         : row->device != problem.chip->kind ? "it runs on another kind of device"
                                                             : kernel_refusal(row, step->way, &problem, &why);
    dw_status status = reason ? base_fail(plan->context, DW_MISMATCH, "%s: kernel %s cannot run %%%d (%s): %s", named->source, row->name,
                                          step->node->out[0]->id, problem.op->name, reason)
                              : DW_OK;
    text_free(&why);
    if (status != DW_OK) return status;
    const uint32_t ways = step->way != NULL ? UINT32_C(1) << (step->way - row->ways) : kernel_accepted_ways(row, &problem);
    step->seconds = kernel_seconds(row, ways, &problem);
    if (name->tuned != NULL) TRY(plan_read_tuned(plan, row, &problem, name->tuned, step));
    return plan_set_row(plan, step, row, ways);
}

static dw_status choose_named(plan *plan, const void *argument)
{
    TRY(plan_new_steps(plan));
    for (int i = 0; i < plan->step_count; i++) TRY(set_named(plan, &plan->steps[i], argument));
    return DW_OK;
}

static dw_status parse_steps(scanner *scan, named_steps *named)
{
    TRY(scan_expect(scan, "steps"));
    TRY(scan_end_of_line(scan));
    while (scan->kind != SCAN_END) {
        named_step step = {0};
        TRY(scan_accept(scan, "load", &step.at_load));
        if (!step.at_load) TRY(scan_accept(scan, "prepare", &step.at_update));
        if (!step.at_load && !step.at_update) TRY(scan_expect(scan, "run"));
        if (scan->kind != SCAN_VALUE) return scan_fail(scan, "expected the value that the step makes");
        step.id = scan->integer;
        TRY(scan_next(scan));
        TRY(scan_name(scan, &step.kernel));
        bool tuned, way;
        TRY(scan_accept(scan, "way", &way));
        if (way) TRY(scan_name(scan, &step.way));
        TRY(scan_accept(scan, "tuned", &tuned));
        if (tuned) TRY(scan_string(scan, &step.tuned));
        TRY(scan_end_of_line(scan));
        named_step *grown = arena_grow(scan->arena, named->items, named->count, &named->capacity, sizeof *grown);
        if (grown == NULL) return DW_NO_MEMORY;
        named->items = grown;
        named->items[named->count++] = step;
    }
    return DW_OK;
}

typedef struct plan_header { const char *name, *chip, *hash, *precision, *typical; bool invariant, prepares; } plan_header;

static dw_status parse_header(scanner *scan, plan_header *header)
{
    TRY(scan_expect(scan, "plan"));
    TRY(scan_name(scan, &header->name));
    TRY(scan_end_of_line(scan));
    TRY(scan_expect(scan, "chip"));
    TRY(scan_string(scan, &header->chip));
    TRY(scan_string(scan, &header->hash));
    TRY(scan_end_of_line(scan));
    TRY(scan_expect(scan, "precision"));
    TRY(scan_string(scan, &header->precision));
    TRY(scan_end_of_line(scan));
    TRY(scan_accept(scan, "invariant", &header->invariant));
    if (header->invariant) TRY(scan_end_of_line(scan));
    TRY(scan_accept(scan, "prepares", &header->prepares));
    if (header->prepares) TRY(scan_end_of_line(scan));
    TRY(scan_expect(scan, "typical"));
    TRY(scan_string(scan, &header->typical));
    return scan_end_of_line(scan);
}

static dw_status check_chip(dw_context *context, const char *source, const plan_header *header, const chip_caps *chip)
{
    char hash[32];
    snprintf(hash, sizeof hash, "%016" PRIx64, chip_hash(chip));
    if (strcmp(hash, header->hash) == 0) return DW_OK;
    return base_fail(context, DW_MISMATCH, "%s: the plan was made for %s (capabilities %s), this is %s (%s): compile it again for this machine",
                     source, header->chip, header->hash, chip->name, hash);
}

/* Params that are read only in packed form have no weight under their name, and need none. */
static void find_weights(ir_graph *graph, const ir_weights *weights)
{
    for (size_t i = 0; weights != NULL && i < graph->param_count; i++)
        if (graph->params[i]->weight == NULL) graph->params[i]->weight = ir_weights_find(weights, graph->params[i]->name);
}

/* The lines are the plan's steps: no step twice, none that is not there, and each in its phase. */
static dw_status check_steps(const plan *plan, const named_steps *named)
{
    if (named->count != (size_t)plan->step_count)
        return base_fail(plan->context, DW_CORRUPT, "%s: there are lines for %zu steps, the graph has %d", named->source, named->count, plan->step_count);
    for (int i = 0; i < plan->step_count; i++) {
        const plan_step *step = &plan->steps[i];
        const named_step *line = find_named(named, step->node->out[0]->id);
        if (line == NULL || line->at_load != step->at_load || line->at_update != step->at_update)
            return base_fail(plan->context, DW_CORRUPT, "%s: step %%%d runs %s", named->source, step->node->out[0]->id, step->at_load ? "at load" : step->at_update ? "after an update" : "each time");
    }
    return DW_OK;
}

static dw_status parse(scanner *scan, ir_weights *weights, const chip_caps *chip, const kernel_registry *registry, plan **result)
{
    plan_header header;
    named_steps named = {.registry = registry, .source = scan->source};
    ir_graph *graph;
    TRY(parse_header(scan, &header));
    TRY(check_chip(scan->context, scan->source, &header, chip));
    TRY(ir_parse_at(scan, NULL, &graph));
    find_weights(graph, weights);
    dw_status status = parse_steps(scan, &named);
    if (status != DW_OK) {
        ir_graph_destroy(graph);
        return status;
    }
    plan *plan;
    TRY(plan_create(graph, chip, &plan));
    plan->invariant = header.invariant;
    plan->prepares = header.prepares;
    plan->precision = arena_text(&plan->arena, header.precision);
    plan->typical = arena_new(&plan->arena, (size_t)dim_symbol_count(graph->dims) + 1, sizeof *plan->typical);
    status = plan->precision && plan->typical ? DW_OK : DW_NO_MEMORY;
    if (status == DW_OK) {
        plan_typical_dims(graph, plan->typical);
        status = plan_read_dims(graph->context, graph, header.typical, plan->typical);
    }
    if (status == DW_OK) status = plan_finish(plan, choose_named, &named);
    if (status == DW_OK) status = check_steps(plan, &named);
    if (status != DW_OK) {
        plan_destroy(plan);
        return status;
    }
    *result = plan;
    return DW_OK;
}

dw_status plan_parse(dw_context *context, const char *source, const char *bytes, size_t length, ir_weights *weights,
                     const chip_caps *chip, const kernel_registry *registry, plan **result)
{
    arena arena;
    scanner scan;
    *result = NULL;
    arena_init(&arena, context);
    dw_status status = scan_open(&scan, &arena, source, bytes, length);
    if (status == DW_OK) status = parse(&scan, weights, chip, registry, result);
    arena_free(&arena);
    return status;
}
