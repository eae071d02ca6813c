/* What a model is and why it runs as it does, in words and as JSON. Facts are gathered once into JSON; the words are printed from it. */
#include "engine/engine.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "capture/capture.h"
#include "device/device.h"

/* ---- facts ---- */

static json_t *shape_json(dw_context *context, const dim_table *dims, const char *name, const op_type *type)
{
    text shape;
    text_init(&shape, context);
    op_type_print(&shape, dims, type);
    json_t *row = json_pack("{s:s, s:s}", "name", name, "type", text_string(&shape));
    text_free(&shape);
    return row;
}

static json_t *symbols_json(const plan *plan)
{
    json_t *symbols = json_array();
    for (int i = 0; i < dim_symbol_count(plan->graph->dims); i++) {
        int64_t min, max;
        dim_symbol_range(plan->graph->dims, i, &min, &max);
        json_t *row = json_pack("{s:s, s:I, s:I}", "name", dim_symbol_name(plan->graph->dims, i), "min", (json_int_t)min, "typical", (json_int_t)plan->typical[i]);
        if (max != DIM_UNBOUNDED) json_object_set_new(row, "max", json_integer(max));
        json_array_append_new(symbols, row);
    }
    return symbols;
}

/* Ops by how often they occur. */
static json_t *ops_json(const ir_graph *graph)
{
    int counts[OP_COUNT] = {0};
    json_t *ops = json_object();
    for (const ir_node *node = graph->first; node != NULL; node = node->next) counts[node->op]++;
    for (int i = 0; i < OP_COUNT; i++)
        if (counts[i] > 0) json_object_set_new(ops, op_get((op_id)i)->name, json_integer(counts[i]));
    return ops;
}

static json_t *summary_json(const dw_model *model)
{
    const plan *plan = model->full.plan ? model->full.plan : model->step.plan;
    const ir_graph *graph = model->captured ? model->captured : plan->graph;
    int64_t elements = 0, bytes = 0;
    for (size_t i = 0; i < graph->param_count; i++) {
        const op_type *type = &graph->params[i]->type;
        int64_t count = 1, dim;
        for (int d = 0; d < type->rank; d++)
            if (dim_is_constant(type->dims[d], &dim)) count *= dim;
        elements += count;
        bytes += count * dw_format_bits(type->format) / 8;
    }
    double flops = 0;
    for (const ir_node *node = plan->graph->first; node != NULL; node = node->next) {
        op_work work;
        if ((op_get(node->op)->traits & OP_TRAIT_CONTRACTION) && plan_value_of(ir_out(node))->key == NULL &&
            ir_work(plan->graph, node, plan->typical, &work) == DW_OK)
            flops += work.flops;
    }
    json_t *facts = json_pack("{s:s, s:s, s:I, s:I, s:f, s:o, s:o}", "file", model->file, "graph", graph->name, "parameters", (json_int_t)elements,
                              "parameter_bytes", (json_int_t)bytes, "flops", flops, "symbols", symbols_json(plan), "ops", ops_json(graph));
    json_t *inputs = json_array(), *outputs = json_array(), *notes = json_object();
    for (size_t i = 0; i < graph->input_count; i++)
        json_array_append_new(inputs, shape_json(model->context, graph->dims, graph->inputs[i]->name, &graph->inputs[i]->type));
    for (size_t i = 0; i < graph->output_count; i++)
        json_array_append_new(outputs, shape_json(model->context, graph->dims, graph->outputs[i].name, &graph->outputs[i].value->type));
    for (size_t i = 0; i < graph->notes.count; i++) json_object_set_new(notes, graph->notes.entries[i].key, json_string(graph->notes.entries[i].value));
    json_object_set_new(facts, "inputs", inputs);
    json_object_set_new(facts, "outputs", outputs);
    json_object_set_new(facts, "notes", notes);
    json_object_set_new(facts, "fused_ops", ops_json(plan->graph));
    json_object_set_new(facts, "cached_generation", model->step.plan ? json_string("yes") : json_sprintf("no: %s", model->no_step));
    return facts;
}

static json_t *verdicts_json(const plan_step *step)
{
    json_t *rows = json_array();
    for (int i = 0; i < step->verdict_count; i++) {
        const kernel_verdict *v = &step->verdicts[i];
        if (v->row == step->row) continue;
        if (v->reason != NULL)
            json_array_append_new(rows, json_pack("{s:s, s:s}", "kernel", v->row->name, "refused", v->reason));
        else
            json_array_append_new(rows, json_pack("{s:s, s:f}", "kernel", v->row->name, "us", v->seconds * 1e6));
    }
    return rows;
}

/* The formats that a step multiplies or makes. */
static const char *format_of(const ir_node *node)
{
    bool contraction = (op_get(node->op)->traits & OP_TRAIT_CONTRACTION) && node->n_in > 1 && ir_in(node, 1) != NULL;
    return dw_format_name((contraction ? ir_in(node, 1) : ir_out(node))->type.format);
}

static json_t *step_json(const plan *plan, const plan_step *step)
{
    op_work work = {0};
    const ir_node *node = step->node;
    ir_work(plan->graph, node, plan->typical, &work);
    json_t *row = json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:b, s:f, s:f, s:s, s:o}", "value", ir_out(node)->id, "op", op_get(node->op)->name, "kernel",
                            step->row->name, "format", format_of(node), "module", node->origin.module ? node->origin.module : "", "role",
                            node->origin.role ? node->origin.role : "", "at_load", step->at_load, "us", step->seconds * 1e6, "flops", work.flops, "memory",
                            plan_place_name(plan_value_of(ir_out(node))->place), "others", verdicts_json(step));
    return row;
}

static json_t *plan_json(const plan *plan)
{
    json_t *steps = json_array();
    double seconds = 0, flops = 0, reference = 0;
    int views = 0;
    for (int i = 0; i < plan->step_count; i++) {
        const plan_step *step = &plan->steps[i];
        json_array_append_new(steps, step_json(plan, step));
        op_work work;
        if (step->at_load || ir_work(plan->graph, step->node, plan->typical, &work) != DW_OK) continue;
        seconds += step->seconds;
        if (op_get(step->node->op)->traits & OP_TRAIT_CONTRACTION) flops += work.flops;
        if ((op_get(step->node->op)->traits & OP_TRAIT_CONTRACTION) && step->row->reference) reference += work.flops;
    }
    for (int i = 0; i < plan->value_count; i++) views += plan->values[i].view;
    json_t *facts = json_pack("{s:o, s:f, s:f, s:f, s:i, s:i, s:i}", "steps", steps, "us", seconds * 1e6, "flops", flops, "reference_flops_share",
                              flops > 0 ? reference / flops : 0.0, "views", views, "steps_at_load", plan->load_count, "steps_per_run",
                              plan->step_count - plan->load_count);
    json_object_set_new(facts, "symbols", symbols_json(plan));
    plan_binding binding;
    if (plan_binding_create(plan, &binding) == DW_OK) {
        if (plan_bind(&binding, plan->typical) == DW_OK) json_object_set_new(facts, "workspace_bytes", json_integer((json_int_t)binding.value_bytes));
        plan_binding_destroy(&binding);
    }
    return facts;
}

static json_t *explain_json(const dw_model *model)
{
    text chip;
    text_init(&chip, model->context);
    chip_print(&chip, &model->chip);
    json_t *facts = json_pack("{s:s, s:s, s:s, s:s, s:s}", "file", model->file, "chip", model->chip.name, "capabilities", text_string(&chip), "precision",
                              model->precision, "not_fused", model->fusion_notes);
    text_free(&chip);
    if (model->captured != NULL) json_object_set_new(facts, "captured_ops", ops_json(model->captured));
    if (model->fused != NULL) json_object_set_new(facts, "fused_ops", ops_json(model->fused));
    if (model->full.plan != NULL) json_object_set_new(facts, "plan", plan_json(model->full.plan));
    if (model->step.plan != NULL) json_object_set_new(facts, "step_plan", plan_json(model->step.plan));
    json_object_set_new(facts, "cached_generation", model->step.plan ? json_string("yes") : json_sprintf("no: %s", model->no_step));
    json_object_set_new(facts, "policy", json_string(model->policy_report));
    return facts;
}

/* All the facts, or NULL: never some of them because memory ran out on the way. */
static json_t *facts_of(const dw_model *model, dw_print what)
{
    size_t failed = base_failed_allocations(model->context);
    json_t *facts = what == DW_PRINT_SUMMARY ? summary_json(model) : explain_json(model);
    if (base_failed_allocations(model->context) == failed) return facts;
    json_decref(facts);
    return NULL;
}

/* ---- words ---- */

static const char *member(const json_t *facts, const char *key)
{
    const char *value = json_string_value(json_object_get(facts, key));
    return value ? value : "";
}

static void print_ops(text *out, const char *title, json_t *ops)
{
    const char *name;
    json_t *count;
    int64_t total = 0;
    json_object_foreach(ops, name, count) total += json_integer_value(count);
    text_printf(out, "%s%" PRId64 " ops:", title, total);
    json_object_foreach(ops, name, count) text_printf(out, " %s x%" PRId64, name, (int64_t)json_integer_value(count));
    text_add(out, "\n");
}

static void print_symbols(text *out, const json_t *symbols)
{
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)(uintptr_t)symbols, i, row)
    {
        const json_t *max = json_object_get(row, "max");
        text_printf(out, "%s%s=%" PRId64 " (%" PRId64 "..", i ? ", " : "", member(row, "name"), (int64_t)json_integer_value(json_object_get(row, "typical")),
                    (int64_t)json_integer_value(json_object_get(row, "min")));
        if (max != NULL) text_printf(out, "%" PRId64, (int64_t)json_integer_value(max));
        text_add(out, ")");
    }
}

static void print_summary(text *out, const json_t *facts)
{
    size_t i;
    json_t *row;
    text_printf(out, "%s: graph %s\n", member(facts, "file"), member(facts, "graph"));
    text_printf(out, "  parameters  %.3f million, %.2f MB\n", (double)json_integer_value(json_object_get(facts, "parameters")) / 1e6,
                (double)json_integer_value(json_object_get(facts, "parameter_bytes")) / 1e6);
    json_array_foreach(json_object_get(facts, "inputs"), i, row) text_printf(out, "  input       %s %s\n", member(row, "name"), member(row, "type"));
    json_array_foreach(json_object_get(facts, "outputs"), i, row) text_printf(out, "  output      %s %s\n", member(row, "name"), member(row, "type"));
    text_add(out, "  sizes       ");
    print_symbols(out, json_object_get(facts, "symbols"));
    text_printf(out, "\n  work        %.4g GFLOP at these sizes\n", json_real_value(json_object_get(facts, "flops")) / 1e9);
    print_ops(out, "  captured    ", json_object_get(facts, "ops"));
    print_ops(out, "  to run      ", json_object_get(facts, "fused_ops"));
    text_printf(out, "  generation with a cache: %s\n", member(facts, "cached_generation"));
}

/* Two steps with the same kernel and the same words for the others are explained once. */
static void print_choices(text *out, const json_t *steps)
{
    json_t *seen = json_object();
    size_t i, k;
    json_t *step, *other;
    json_array_foreach((json_t *)(uintptr_t)steps, i, step)
    {
        text why;
        text_init(&why, out->context);
        json_array_foreach(json_object_get(step, "others"), k, other)
        {
            const char *refused = json_string_value(json_object_get(other, "refused"));
            if (refused != NULL) text_printf(&why, "      not %s: %s\n", member(other, "kernel"), refused);
            else if (strncmp(member(other, "kernel"), "reference_", 10) != 0) text_printf(&why, "      not %s: slower by estimate\n", member(other, "kernel"));
        }
        char *key = NULL;
        json_t *joined = json_sprintf("%s\n%s", member(step, "kernel"), text_string(&why));
        key = strdup(json_string_value(joined) ? json_string_value(joined) : "");
        json_decref(joined);
        if (key != NULL && json_object_get(seen, key) == NULL) {
            json_object_set_new(seen, key, json_true());
            text_printf(out, "    %s %s: %s\n%s", member(step, "op"), member(step, "format"),
                        strncmp(member(step, "kernel"), "reference_", 10) == 0 ? "reference kernel, no other accepts" : member(step, "kernel"), text_string(&why));
        }
        free(key);
        if (text_status(&why) != DW_OK) out->status = text_status(&why);
        text_free(&why);
    }
    json_decref(seen);
}

static void print_plan(text *out, const char *title, const json_t *facts)
{
    size_t i;
    json_t *step;
    text_printf(out, "%s at ", title);
    print_symbols(out, json_object_get(facts, "symbols"));
    text_printf(out, ": %" PRId64 " steps per run, %" PRId64 " at load, %" PRId64 " views; %.1f us estimated, %.4g GFLOP, workspace %.1f kB\n",
                (int64_t)json_integer_value(json_object_get(facts, "steps_per_run")), (int64_t)json_integer_value(json_object_get(facts, "steps_at_load")),
                (int64_t)json_integer_value(json_object_get(facts, "views")), json_real_value(json_object_get(facts, "us")),
                json_real_value(json_object_get(facts, "flops")) / 1e9, (double)json_integer_value(json_object_get(facts, "workspace_bytes")) / 1e3);
    text_printf(out, "  FLOPs on reference kernels: %.1f %%\n", 100 * json_real_value(json_object_get(facts, "reference_flops_share")));
    text_printf(out, "  %-6s %-16s %-12s %-28s %9s  %s\n", "value", "op", "format", "kernel", "est. us", "module");
    json_array_foreach(json_object_get(facts, "steps"), i, step)
    {
        bool load = json_is_true(json_object_get(step, "at_load"));
        text_printf(out, "  %%%-5" PRId64 " %-16s %-12s %-28s ", (int64_t)json_integer_value(json_object_get(step, "value")), member(step, "op"),
                    member(step, "format"), member(step, "kernel"));
        if (load)
            text_printf(out, "%9s  %s\n", "at load", member(step, "module"));
        else
            text_printf(out, "%9.1f  %s\n", json_real_value(json_object_get(step, "us")), member(step, "module"));
    }
    text_add(out, "  why these kernels\n");
    print_choices(out, json_object_get(facts, "steps"));
}

static void print_explain(text *out, const json_t *facts)
{
    text_printf(out, "%s for %s, precision %s\n%s", member(facts, "file"), member(facts, "chip"), member(facts, "precision"), member(facts, "capabilities"));
    if (json_object_get(facts, "captured_ops")) print_ops(out, "captured  ", json_object_get(facts, "captured_ops"));
    if (json_object_get(facts, "fused_ops")) print_ops(out, "fused to  ", json_object_get(facts, "fused_ops"));
    if (member(facts, "not_fused")[0] != '\0') text_printf(out, "not fused\n%s", member(facts, "not_fused"));
    if (member(facts, "policy")[0] != '\0') text_printf(out, "precision by layer\n%s", member(facts, "policy"));
    if (json_object_get(facts, "plan")) print_plan(out, "plan of a whole run", json_object_get(facts, "plan"));
    if (json_object_get(facts, "step_plan")) print_plan(out, "plan of the cached step", json_object_get(facts, "step_plan"));
    text_printf(out, "generation with a cache: %s\n", member(facts, "cached_generation"));
}

/* ---- public ---- */

static dw_status emit(dw_context *context, const text *out, dw_sink sink, void *user)
{
    (void)context;
    TRY(text_status(out));
    sink(user, text_string(out), out->length);
    return DW_OK;
}

static dw_status emit_json(dw_context *context, json_t *facts, dw_sink sink, void *user)
{
    char *words = facts ? json_dumps(facts, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(facts);
    if (words == NULL) return base_fail(context, DW_NO_MEMORY, "the facts of the model do not fit in memory");
    sink(user, words, strlen(words));
    sink(user, "\n", 1);
    free(words);
    return DW_OK;
}

static dw_status print_memory(const plan *plan, text *out)
{
    plan_binding binding;
    TRY(plan_binding_create(plan, &binding));
    dw_status status = plan_bind(&binding, plan->typical);
    if (status == DW_OK) {
        text_printf(out, "workspace of %zu bytes\n", binding.value_bytes);
        status = plan_print_memory(&binding, out);
    }
    plan_binding_destroy(&binding);
    return status;
}

static dw_status print_text(const dw_model *model, dw_print what, text *out)
{
    const plan *full = model->full.plan ? model->full.plan : model->step.plan;
    switch (what) {
    case DW_PRINT_CAPTURED:
    case DW_PRINT_FUSED: {
        const ir_graph *graph = what == DW_PRINT_CAPTURED ? model->captured : model->fused;
        if (graph == NULL) return base_fail(model->context, DW_UNSUPPORTED, "%s is compiled: it holds no graph before precision", model->file);
        return ir_print(graph, out);
    }
    case DW_PRINT_GRAPH: return ir_print(full->graph, out);
    case DW_PRINT_STEP:
        if (model->step.plan == NULL) return base_fail(model->context, DW_UNSUPPORTED, "%s has no cached step: %s", model->file, model->no_step);
        return ir_print(model->step.plan->graph, out);
    case DW_PRINT_PLAN:   return plan_print(full, out);
    case DW_PRINT_MEMORY: return print_memory(full, out);
    case DW_PRINT_SUMMARY:
    case DW_PRINT_EXPLAIN: break;
    }
    json_t *facts = facts_of(model, what);
    if (facts == NULL) return base_fail(model->context, DW_NO_MEMORY, "the facts of the model do not fit in memory");
    (what == DW_PRINT_SUMMARY ? print_summary : print_explain)(out, facts);
    json_decref(facts);
    return DW_OK;
}

dw_status dw_model_print(const dw_model *model, dw_print what, int json, dw_sink sink, void *user)
{
    if (json && (what == DW_PRINT_SUMMARY || what == DW_PRINT_EXPLAIN)) return emit_json(model->context, facts_of(model, what), sink, user);
    text out;
    text_init(&out, model->context);
    dw_status status = print_text(model, what, &out);
    if (status == DW_OK) status = emit(model->context, &out, sink, user);
    text_free(&out);
    return status;
}

dw_status dw_operators(dw_context *context, int json, dw_sink sink, void *user)
{
    text out;
    json_t *rows = json_array();
    text_init(&out, context);
    for (int i = 0; i < capture_operator_count(); i++) {
        capture_operator row = capture_operator_at(i);
        json_array_append_new(rows, json_pack("{s:s, s:s, s:s, s:b}", "target", row.target, "arguments", row.arguments, "becomes", row.becomes, "in_place", row.in_place));
        text_printf(&out, "%-48s %s%s\n", row.target, row.becomes, row.in_place ? " (in place too)" : "");
    }
    dw_status status = json ? emit_json(context, json_incref(rows), sink, user) : emit(context, &out, sink, user);
    json_decref(rows);
    text_free(&out);
    return status;
}

dw_status dw_probe(dw_context *context, int json, dw_device_sink sink, void *user)
{
    chip_caps caps;
    text out;
    TRY(device_probe_cpu(context, "", dw_context_threads(context), &caps));
    if (json) {
        json_t *features = json_array();
        for (int i = 0; i < CHIP_FEATURE_COUNT; i++)
            if (chip_has(&caps, (chip_feature)i)) json_array_append_new(features, json_string(chip_feature_name((chip_feature)i)));
        json_t *cpu = json_pack("{s:s, s:s, s:i, s:o, s:I}", "level", caps.name, "model", caps.model, "threads", caps.units, "features", features, "memory_bytes",
                                (json_int_t)caps.memory_bytes);
        return emit_json(context, json_pack("{s:s, s:o, s:[]}", "version", dw_version(), "cpu", cpu, "gpus"), sink, user);
    }
    text_init(&out, context);
    chip_print(&out, &caps);
    text_add(&out, "gpus: none; this build runs on the CPU alone\n");
    dw_status status = emit(context, &out, sink, user);
    text_free(&out);
    return status;
}
