/* Each step of a run beside its bound, as JSON: what it takes, what it cannot take less than, what runs it and why; equal steps gathered; and the run as a whole. Measures nothing. */
#include "lab/report.h"

#include <string.h>

static double number(const json_t *facts, const char *key) { return json_number_value(json_object_get(facts, key)); }

static void add_to(json_t *facts, const char *key, double more) { json_object_set_new(facts, key, json_real(number(facts, key) + more)); }

/* ---- a step ---- */

static void print_tensor(text *out, const dw_tensor *tensor) {
    text_printf(out, "%s[", dw_format_name(tensor->format));
    for (int i = 0; i < tensor->rank; i++) text_printf(out, "%s%lld", i > 0 ? "," : "", (long long)tensor->dims[i]);
    text_add(out, "]");
}

/* "bf16[512,2048] bf16[8192,2048] -> bf16[512,8192]" */
static void print_shapes(text *out, const op_call *call) {
    for (int i = 0; i < call->n_in; i++) {
        if (i > 0) text_add(out, " ");
        if (call->in[i] != NULL) print_tensor(out, call->in[i]);
        else text_add(out, "-");
    }
    for (int i = 0; i < call->n_out; i++) {
        text_add(out, i == 0 ? " -> " : " ");
        print_tensor(out, call->out[i]);
    }
}

/* What of an op's attributes tells steps of equal shapes apart: its post steps, or what a chain is made of. */
static void print_kind(text *out, const ir_node *node) {
    text_add(out, op_get(node->op)->name);
    const char *steps = node->op == OP_chain ? ir_attr_text(node, OP_ATTR_steps) : ir_attr_text(node, OP_ATTR_post);
    if (steps[0] == '\0') return;
    text_add(out, "(");
    for (const char *at = steps; *at != '\0'; at += strcspn(at, ";"), at += *at == ';')
        text_printf(out, "%s%.*s", at > steps ? "," : "", (int)(node->op == OP_chain ? strcspn(at, "(;") : strcspn(at, ";")), at);
    text_add(out, ")");
}

/* Why the step's kernel runs it, in few words. */
static const char *why_of(const plan_step *step) {
    int accept = 0;
    if (step->because != NULL) return step->because;
    if (step->tuned_count > 0) return "measured";
    for (int i = 0; i < step->verdict_count; i++) accept += step->verdicts[i].reason == NULL && !step->verdicts[i].row->reference;
    return step->row->reference ? "no other accepts" : accept > 1 ? "least estimate" : "the only one";
}

typedef struct recorder { kernel_launcher launcher; json_t *names; } recorder;

static dw_status record_name(kernel_launcher *launcher, const kernel_launch *launch) {
    json_array_append_new(((recorder *)launcher)->names, json_string(launch->entry));
    return DW_OK;
}

static json_t *launches_of(const kernel_row *row, const kernel_run *run) {
    recorder recorder = {{record_name}, json_array()};
    if (row->device == CHIP_GPU) kernel_shape(row, run, &recorder.launcher);
    return recorder.names;
}

static double estimate_of(const plan *plan, const plan_step *step, const int64_t *symbols, const kernel_run *run) {
    const op_type *in[KERNEL_MAX_OPERANDS], *out[KERNEL_MAX_RESULTS];
    kernel_problem problem;
    if (step->node->n_in > KERNEL_MAX_OPERANDS || step->node->n_out > KERNEL_MAX_RESULTS) return step->seconds;
    plan_problem(plan, step, in, out, &problem);
    problem.symbols = symbols;
    problem.user = step->row->user;
    return kernel_run_seconds(step->row, &problem, run);
}

void lab_lend_addresses(const plan_binding *binding, bool lent) {
    enum { APART = 4096 };
    const plan *plan = binding->plan;
    for (int i = 0; i < plan->value_count; i++) {
        if (plan->values[i].base == NULL || plan->values[i].view) continue;
        uint8_t *address = (uint8_t *)(uintptr_t)(((uint64_t)plan->values[i].root->index + 1) * APART);
        for (const plan_value *v = &plan->values[i]; v != NULL; v = v->base) {
            dw_tensor *tensor = &binding->tensors[v->index];
            if (tensor->data == (lent ? NULL : address)) tensor->data = lent ? address : NULL;
        }
    }
}

/* A weight, also one of which only a packed form is kept. */
static bool is_weight(const plan_value *v) { return v->root->place == PLAN_CONSTANT || v->root->key != NULL; }

static bool is_far(const ir_value *value) {
    const plan_value *v = plan_value_of(value);
    return is_weight(v) || v->root->place == PLAN_STATE || v->root->place == PLAN_INPUT;
}

uint64_t lab_far_operands(const ir_node *node) {
    uint64_t far = 0;
    for (int i = 0; i < node->n_in && i < 64; i++)
        if (ir_in(node, i) != NULL && is_far(ir_in(node, i))) far |= UINT64_C(1) << i;
    return far;
}

static json_t *step_json(const report_run *run, const plan_binding *binding, int index, const kernel_bound *bound, const report_times *times) {
    const plan_step *step = &run->plan->steps[index];
    const kernel_run *call = &binding->calls[index].run;
    text kind, shapes;
    text_init(&kind, run->plan->context);
    text_init(&shapes, run->plan->context);
    print_kind(&kind, step->node);
    print_shapes(&shapes, &call->call);
    json_t *facts = json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:s, s:s, s:f, s:f}", "value", ir_out(step->node)->id, "op", text_string(&kind), "shapes", text_string(&shapes),
                              "module", step->node->origin.module ? step->node->origin.module : "", "kernel", kernel_runs_as(step->row, call), "row", step->row->name, "why", why_of(step), "flops", bound->work.flops, "bytes_read", bound->work.bytes_read, "bytes_written", bound->work.bytes_written, "far_bytes", bound->far_bytes,
                              "multiplies", dw_format_name(bound->multiplies), "bound_by", kernel_limit_name(bound->limit), "bound_seconds", bound->seconds, "estimate_seconds",
                              estimate_of(run->plan, step, binding->symbols, call));
    if (times->measured) {
        const double seconds = times->device.steps[index - run->plan->load_count];
        json_object_set_new(facts, "seconds", json_real(seconds));
        json_object_set_new(facts, "lost_seconds", json_real(seconds > bound->seconds ? seconds - bound->seconds : 0));
    }
    text_free(&kind);
    text_free(&shapes);
    return facts;
}

/* ---- a run as a whole ---- */

/* reads: what a run reads of a value that is there before it, by its root: the most that any step does. in_cache: all of the run stays in the last-level cache from one run to the next. */
typedef struct whole { double *reads, written, products_s; bool in_cache; } whole;

/* Of what the call writes, that which is there after the run: outputs, and of caches what is new. */
static double bytes_kept(const op_call *call, const ir_node *node, const kernel_bound *bound) {
    double outputs = 0, others = 0;
    bool writes_states = false;
    for (int i = 0; i < node->n_out; i++) {
        const plan_place place = plan_value_of(node->out[i])->root->place;
        writes_states = writes_states || place == PLAN_STATE;
        if (place == PLAN_OUTPUT) outputs += op_tensor_bytes(call->out[i]);
        else if (place != PLAN_STATE) others += op_tensor_bytes(call->out[i]);
    }
    return writes_states ? bound->work.bytes_written - others : outputs;
}

static void add_step(whole *whole, const op_call *call, const ir_node *node, const kernel_bound *bound) {
    whole->products_s += bound->products_s;
    for (int i = 0; i < node->n_in; i++) {
        if (ir_in(node, i) == NULL || !is_far(ir_in(node, i))) continue;
        double *reads = &whole->reads[plan_value_of(ir_in(node, i))->root->index];
        const double bytes = op_bytes_read(call, &bound->work, i);
        if (bytes > *reads) *reads = bytes;
    }
    whole->written += bytes_kept(call, node, bound);
}

/* Weights, caches and inputs read once, caches and outputs written once. */
static double bytes_of(const plan *plan, const whole *whole, double *weights) {
    double bytes = whole->written;
    *weights = 0;
    for (int i = 0; i < plan->value_count; i++) {
        bytes += whole->reads[i];
        if (is_weight(&plan->values[i])) *weights += whole->reads[i];
    }
    return bytes;
}

static void add_whole(json_t *facts, const report_run *run, const whole *whole) {
    double weights;
    const double bytes = bytes_of(run->plan, whole, &weights), memory_s = bytes / (whole->in_cache ? run->chip->rates[CHIP_RATE_l2].expected : chip_bytes_per_s(run->chip));
    add_to(facts, "bytes", bytes);
    add_to(facts, "weight_bytes", weights);
    json_object_set_new(facts, "in_cache", json_boolean(whole->in_cache));
    add_to(facts, "bound_memory_seconds", memory_s);
    add_to(facts, "bound_products_seconds", whole->products_s);
    add_to(facts, "bound_seconds", memory_s > whole->products_s ? memory_s : whole->products_s);
}

static void add_times(json_t *facts, const report_times *times) {
    json_object_set_new(facts, "measured", json_boolean(times->measured));
    if (!times->measured) return;
    add_to(facts, "wall_seconds", times->wall);
    add_to(facts, "seconds", times->device.whole);
    add_to(facts, "apart_seconds", times->device.apart);
    add_to(facts, "look_seconds", times->device.per_look);
    add_to(facts, "host_seconds", times->host);
    add_to(facts, "launches", times->device.launches);
    add_to(facts, "early_launches", times->device.early);
}

/* ---- what is known of a run before it: inputs, and what is computed of them in integers, as masks and positions are ---- */

enum { MOST_KNOWN = 1 << 24 };        /* bytes of a value */

typedef struct known { const report_run *run; plan_binding *binding; bool *is; } known;

static bool is_whole_number(dw_format format) {
    const num_class class = num_info(format)->class;
    return !dw_format_is_block(format) && class != NUM_FLOAT;
}

static void show_value(known *k, const plan_value *v) {
    dw_tensor *tensor = &k->binding->tensors[v->index];
    if (v->view) {
        k->is[v->index] = k->is[v->base->index];
        if (k->is[v->index]) tensor->data = (uint8_t *)k->binding->tensors[v->base->index].data + k->binding->offsets[v->index];
    } else if (v->place == PLAN_INPUT && v->base == NULL && k->run->inputs != NULL && k->run->inputs[v->slot] != NULL) {
        k->is[v->index] = true;
        tensor->data = k->run->inputs[v->slot];
    }
}

/* By the op's reference, where all that it reads is known. */
static dw_status compute(known *k, const ir_node *node, const op_call *call) {
    bool can = node->n_out == 1 && is_whole_number(call->out[0]->format) && k->binding->bytes[plan_value_of(node->out[0])->index] <= MOST_KNOWN;
    for (int i = 0; i < node->n_in; i++) can = can && (ir_in(node, i) == NULL || (k->is[plan_value_of(ir_in(node, i))->index] && is_whole_number(call->in[i]->format)));
    if (!can) return DW_OK;
    const int index = plan_value_of(node->out[0])->index;
    dw_tensor *out = &k->binding->tensors[index];
    uint8_t *memory = arena_new(&k->binding->arena, k->binding->bytes[index] + 64, 1);
    if (memory == NULL) return DW_NO_MEMORY;
    out->data = memory;
    k->is[index] = call->op->reference(call) == DW_OK;   /* what fails there fails in the run, and is its business */
    return DW_OK;
}

/* A step's results come behind its operands among the values, and views behind what they show. */
static dw_status show_values(const report_run *run, plan_binding *binding) {
    known k = {run, binding, NULL};
    TRY_NEW(k.is, &binding->arena, run->plan->value_count + 1);
    int shown = 0;
    for (int i = run->plan->load_count; i < run->plan->step_count; i++) {
        const ir_node *node = run->plan->steps[i].node;
        op_call *call = &binding->calls[i].run.call;
        for (const int first = plan_value_of(node->out[0])->index; shown < first; shown++) show_value(&k, &run->plan->values[shown]);
        for (int operand = 0; operand < node->n_in && operand < 32; operand++)
            if (ir_in(node, operand) != NULL && k.is[plan_value_of(ir_in(node, operand))->index]) call->known_in |= 1u << operand;
        TRY(compute(&k, node, call));
    }
    return DW_OK;
}

/* Step i by the rates of the run, which need not be those that its kernels are chosen by. */
static void bound_step(const report_run *run, const plan_binding *binding, int i, bool in_cache, kernel_bound *bound) {
    kernel_run call = binding->calls[i].run;
    call.chip = run->chip;
    kernel_bound_of(&call, in_cache ? 0 : lab_far_operands(run->plan->steps[i].node), bound);
}

/* Counts the run, and whether the cache holds it with all that its steps make for each other. */
static void count_whole(const report_run *run, const plan_binding *binding, whole *whole) {
    double weights;
    for (int i = run->plan->load_count; i < run->plan->step_count; i++) {
        kernel_bound bound;
        bound_step(run, binding, i, false, &bound);
        add_step(whole, &binding->calls[i].run.call, run->plan->steps[i].node, &bound);
    }
    whole->in_cache = run->chip->rates[CHIP_RATE_l2].expected > 0 && bytes_of(run->plan, whole, &weights) + (double)binding->value_bytes <= (double)run->chip->cache_bytes;
}

static void add_launches(const report_run *run, const plan_binding *binding, json_t *steps, size_t first) {
    lab_lend_addresses(binding, true);
    for (int i = run->plan->load_count; i < run->plan->step_count; i++)
        json_object_set_new(json_array_get(steps, first + (size_t)(i - run->plan->load_count)), "launches", launches_of(run->plan->steps[i].row, &binding->calls[i].run));
    lab_lend_addresses(binding, false);
}

static dw_status add_steps(json_t *facts, const report_run *run, plan_binding *binding, const report_times *times) {
    whole all = {0};
    json_t *steps = json_object_get(facts, "steps");
    if (steps == NULL) json_object_set_new(facts, "steps", steps = json_array());
    const size_t first = json_array_size(steps);
    TRY_NEW(all.reads, &binding->arena, run->plan->value_count + 1);
    TRY(plan_bind(binding, run->symbols));
    TRY(show_values(run, binding));
    count_whole(run, binding, &all);
    for (int i = run->plan->load_count; i < run->plan->step_count; i++) {
        kernel_bound bound;
        bound_step(run, binding, i, all.in_cache, &bound);
        json_array_append_new(steps, step_json(run, binding, i, &bound, times));
    }
    add_launches(run, binding, steps, first);
    add_whole(facts, run, &all);
    add_times(facts, times);
    return DW_OK;
}

dw_status report_add_run(json_t *facts, const report_run *run, const report_times *times) {
    plan_binding binding;
    TRY(plan_binding_create(run->plan->context, run->plan, &binding));
    dw_status status = add_steps(facts, run, &binding, times);
    plan_binding_destroy(&binding);
    return status;
}

/* ---- equal steps ---- */

static const char *const summed[] = {"seconds", "lost_seconds", "bound_seconds", "estimate_seconds", "flops", "bytes_read", "bytes_written", "far_bytes"};

static json_t *find_group(json_t *groups, json_t *by_name, const json_t *step, const char *name) {
    static const char *const same[] = {"op", "shapes", "kernel", "row", "why", "launches", "multiplies", "bound_by"};
    json_t *group = json_object_get(by_name, name);
    if (group != NULL) return group;
    group = json_pack("{s:i}", "count", 0);
    for (size_t i = 0; i < COUNT_OF(same); i++) json_object_set(group, same[i], json_object_get(step, same[i]));
    json_object_set_new(by_name, name, group);
    json_array_append(groups, group);
    return group;
}

static void add_to_group(json_t *group, const json_t *step) {
    json_object_set_new(group, "count", json_integer(json_integer_value(json_object_get(group, "count")) + 1));
    for (size_t i = 0; i < COUNT_OF(summed); i++)
        if (json_object_get(step, summed[i]) != NULL) add_to(group, summed[i], number(step, summed[i]));
}

/* A step that takes more than twice its bound, where all that are equal to it take more than a hundredth of the run. */
static bool loses(const json_t *group, double run_seconds) {
    return number(group, "seconds") > 0.01 * run_seconds && number(group, "bound_seconds") < 0.5 * number(group, "seconds");
}

static void add_ratio(json_t *facts) {
    if (number(facts, "seconds") > 0) json_object_set_new(facts, "ratio", json_real(number(facts, "bound_seconds") / number(facts, "seconds")));
}

/* What equal steps have in common. */
static const char *name_group(text *name, const json_t *step) {
    name->length = 0;
    text_printf(name, "%s\n%s\n%s", json_string_value(json_object_get(step, "op")), json_string_value(json_object_get(step, "shapes")), json_string_value(json_object_get(step, "kernel")));
    return text_string(name);
}

static void gather(json_t *facts, text *name, json_t *by_name) {
    size_t i;
    json_t *step, *groups = json_array();
    json_object_set_new(facts, "groups", groups);
    json_array_foreach(json_object_get(facts, "steps"), i, step) add_to_group(find_group(groups, by_name, step, name_group(name, step)), step);
}

static void judge(json_t *facts, text *name, const json_t *by_name) {
    size_t i;
    json_t *group, *step;
    json_array_foreach(json_object_get(facts, "groups"), i, group) {
        add_ratio(group);
        json_object_set_new(group, "marked", json_boolean(loses(group, number(facts, "seconds"))));
    }
    json_array_foreach(json_object_get(facts, "steps"), i, step) {
        const bool marked = json_is_true(json_object_get(json_object_get(by_name, name_group(name, step)), "marked"));
        add_ratio(step);
        json_object_set_new(step, "marked", json_boolean(marked && number(step, "bound_seconds") < 0.5 * number(step, "seconds")));
    }
    add_ratio(facts);
}

static void add_sum(json_t *facts, const char *of, const char *key) {
    size_t i;
    json_t *step;
    double sum = 0;
    json_array_foreach(json_object_get(facts, "steps"), i, step) sum += number(step, of);
    json_object_set_new(facts, key, json_real(sum));
}

dw_status report_finish_run(dw_context *context, json_t *facts) {
    json_t *by_name = json_object();
    text name;
    text_init(&name, context);
    gather(facts, &name, by_name);
    add_sum(facts, "bound_seconds", "step_bounds_seconds");
    add_sum(facts, "estimate_seconds", "estimate_seconds");
    if (json_is_true(json_object_get(facts, "measured"))) judge(facts, &name, by_name);
    json_decref(by_name);
    dw_status status = text_status(&name);
    text_free(&name);
    return status;
}
