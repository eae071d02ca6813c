/* See stepwise.h: runs nodes in order, each by the CPU's kernel of choice and, for the plan's steps, by the device's. */
#include "lab/stepwise.h"

#include <math.h>
#include <string.h>

/* Half an ulp of fp32, and orders of sums: what conformance grants too. Products of 8-bit floats on matrix units keep fewer bits of their sums. */
static const double SUM_BOUND = 1e-5, SUM_BOUND_8_BITS = 1e-3;

/* Does the host have all constants that runs read? */
static bool is_on_host(const engine_program *program) {
    for (int i = 0; i < program->plan->value_count; i++)
        if (program->plan->values[i].read_plain && program->constants[i].data == NULL) return false;
    return true;
}

dw_status stepwise_create(dw_context *context, const engine_program *program, device *device, stepwise *made) {
    *made = (stepwise){.context = context, .program = program, .own = {.plan = program->plan}, .device = device};
    arena_init(&made->arena, context);
    arena_init(&made->run, context);
    engine_constants_init(&made->constants, context);
    TRY(base_pool(context, &made->pool));
    if (!is_on_host(program)) {
        TRY(engine_load(&made->constants, made->pool, &made->own));
        made->program = &made->own;
    }
    TRY(device_probe_cpu(context, "", dw_context_threads(context), &made->cpu));
    TRY_NEW(made->symbols, &made->arena, dim_symbol_count(program->plan->graph->dims) + 1);
    TRY_NEW(made->values, &made->arena, program->plan->value_count);
    TRY_NEW(made->off, &made->arena, program->plan->value_count);
    return DW_OK;
}

void stepwise_free(stepwise *steps) {
    arena_free(&steps->run);
    arena_free(&steps->arena);
    engine_constants_free(&steps->constants);
}

const dw_tensor *stepwise_output(const stepwise *steps, size_t index) {
    return &steps->values[plan_value_of(steps->program->plan->graph->outputs[index].value)->index];
}

/* ---- tensors ---- */

static dw_status new_memory(stepwise *steps, dw_tensor *tensor) {
    num_parts parts;
    if (!num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts)) return base_fail(steps->context, DW_LIMIT, "the bytes of a value overflow");
    void *memory = arena_new(&steps->run, parts.total_bytes + 1, ENGINE_ALIGN);
    if (memory == NULL) return DW_NO_MEMORY;
    op_tensor_init(tensor, tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, memory);
    return DW_OK;
}

static bool is_real(dw_format format) { return dw_format_is_block(format) || num_info(format)->class == NUM_FLOAT || num_info(format)->class == NUM_SCALE; }

/* A contiguous copy of a tensor under any strides. */
static dw_status copy_plain(stepwise *steps, const dw_tensor *from, dw_tensor *to) {
    int64_t index[DW_MAX_RANK] = {0};
    *to = *from;
    TRY(new_memory(steps, to));
    for (int64_t i = 0, count = op_tensor_count(from); i < count; i++, op_tensor_next(from, index)) {
        if (is_real(from->format)) op_tensor_store(to, index, op_tensor_load(from, index));
        else op_tensor_store_int(to, index, op_tensor_load_int(from, index));
    }
    return DW_OK;
}

static bool is_perturbed(const ir_node *node, stepwise_perturbed what) {
    const dw_format format = ir_out(node)->type.format;
    const bool contracts = (op_get(node->op)->traits & OP_TRAIT_CONTRACTION) != 0;
    if (what == STEPWISE_NOTHING || (dw_format_is_block(format) ? !contracts : num_info(format)->class != NUM_FLOAT)) return false;
    if (node->op == OP_take) return plan_value_of(ir_in(node, 0))->key != NULL;
    return what == STEPWISE_SUMS && (op_get(node->op)->traits & (OP_TRAIT_CONTRACTION | OP_TRAIT_REDUCE | OP_TRAIT_ROWWISE)) != 0;
}

/* ---- one node on the CPU ---- */

typedef struct node_call {
    const ir_node *node;
    const plan_step *step;                /* NULL: a view, which no kernel makes */
    const dw_tensor *in[KERNEL_MAX_OPERANDS], *out[KERNEL_MAX_RESULTS];
} node_call;

static kernel_run run_of(const stepwise *steps, const node_call *call, const dw_tensor *const *in, const dw_tensor *const *out, const chip_caps *chip) {
    const ir_node *node = call->node;
    return (kernel_run){.call = {.context = steps->context, .op = op_get(node->op), .attrs = &node->attrs, .symbols = steps->symbols, .n_in = node->n_in, .in = in,
                                 .n_out = node->n_out, .out = out},
                        .pool = steps->pool, .chip = chip};
}

static dw_status choose_cpu(stepwise *steps, const node_call *call, arena *scratch, kernel_choice *choice, op_post_list *post) {
    const ir_node *node = call->node;
    const op_type *in[KERNEL_MAX_OPERANDS], *out[KERNEL_MAX_RESULTS];
    kernel_problem problem;
    plan_step view = {.node = (ir_node *)(uintptr_t)node};
    plan_problem(steps->program->plan, call->step != NULL ? call->step : &view, in, out, &problem);
    problem.chip = &steps->cpu;
    problem.constant_in = 0;              /* nothing comes packed */
    *post = problem.post;
    return kernel_choose(scratch, &problem, NULL, NULL, choice);
}

static dw_status run_cpu(stepwise *steps, const node_call *call) {
    arena scratch;
    kernel_choice choice;
    kernel_run run = run_of(steps, call, call->in, call->out, &steps->cpu);
    arena_init(&scratch, steps->context);
    dw_status status = choose_cpu(steps, call, &scratch, &choice, &run.post);
    size_t bytes = status == DW_OK ? kernel_workspace(choice.row, &run) : 0;
    if (bytes > 0) {
        run.workspace = arena_new(&scratch, bytes, ENGINE_ALIGN);
        if (run.workspace == NULL) status = DW_NO_MEMORY;
    }
    if (status == DW_OK) {
        run.user = choice.row->user;
        status = kernel_execute(choice.row, &run);
    }
    arena_free(&scratch);
    return status;
}

/* ---- and on the device ---- */

static dw_status bring(stepwise *steps, const dw_tensor *from, dw_tensor *to, bool is_result) {
    const device_calls *calls = steps->device->calls;
    num_parts parts;
    void *memory;
    if (!num_layout(from->format, from->scale_layout, from->rank, from->dims, &parts)) return base_fail(steps->context, DW_LIMIT, "the bytes of an operand overflow");
    TRY(calls->alloc(steps->device, parts.total_bytes + 1, &memory));
    op_tensor_init(to, from->format, from->scale_layout, from->rank, from->dims, memory);
    if (is_result) return calls->fill(steps->device, memory, 0xff, parts.total_bytes);
    TRY(calls->write(steps->device, to->data, from->data, parts.data_bytes));
    if (parts.scale_bytes > 0) TRY(calls->write(steps->device, to->scales, from->scales, parts.scale_bytes));
    return parts.second_bytes > 0 ? calls->write(steps->device, to->second, from->second, parts.second_bytes) : DW_OK;
}

static size_t bytes_of(const dw_tensor *tensor) {
    num_parts parts;
    return num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts) ? parts.total_bytes : 0;
}

typedef struct on_device {
    dw_tensor in[KERNEL_MAX_OPERANDS], out[KERNEL_MAX_RESULTS];
    const dw_tensor *in_pointers[KERNEL_MAX_OPERANDS], *out_pointers[KERNEL_MAX_RESULTS];
    void *workspace;
    size_t workspace_bytes;
} on_device;

static dw_status run_there(stepwise *steps, const node_call *call, on_device *there, dw_tensor *made) {
    const device_calls *calls = steps->device->calls;
    const kernel_row *row = call->step->row;
    for (int i = 0; i < call->node->n_in; i++) {
        if (call->in[i] == NULL) continue;
        TRY(bring(steps, call->in[i], &there->in[i], false));
        there->in_pointers[i] = &there->in[i];
    }
    for (int i = 0; i < call->node->n_out; i++) {
        TRY(bring(steps, call->out[i], &there->out[i], true));
        there->out_pointers[i] = &there->out[i];
    }
    kernel_run run = run_of(steps, call, there->in_pointers, there->out_pointers, &steps->device->caps);
    run.post = call->step->post;
    run.ways = call->step->ways;
    run.user = row->user;
    there->workspace_bytes = kernel_workspace(row, &run);
    steps->runs_as = kernel_runs_as(row, &run);
    TRY(calls->alloc(steps->device, there->workspace_bytes, &there->workspace));
    run.workspace = there->workspace;
    TRY(calls->run(steps->device, row, &run));
    for (int i = 0; i < call->node->n_out; i++) {
        made[i] = *call->out[i];
        TRY(new_memory(steps, &made[i]));
        TRY(calls->read(steps->device, made[i].data, there->out[i].data, bytes_of(&made[i])));
    }
    return calls->synchronize(steps->device);
}

static dw_status run_device(stepwise *steps, const node_call *call, dw_tensor *made) {
    const device_calls *calls = steps->device->calls;
    on_device there = {0};
    dw_status status = run_there(steps, call, &there, made);
    for (int i = 0; i < call->node->n_in; i++) calls->release(steps->device, there.in[i].data, bytes_of(&there.in[i]) + 1);
    for (int i = 0; i < call->node->n_out; i++) calls->release(steps->device, there.out[i].data, bytes_of(&there.out[i]) + 1);
    calls->release(steps->device, there.workspace, there.workspace_bytes);
    if (status == DW_OK) return DW_OK;
    return base_fail_at(steps->context, status, "%%%d %s", call->node->out[0]->id, call->step->row->name);
}

/* ---- the difference ---- */

static bool must_be_exact(const ir_node *node, dw_format format) { return node->op == OP_quantize || !is_real(format); }

static dw_format element_of(dw_format format) { return dw_format_is_block(format) ? num_info(format)->element : format; }

/* A last place more in narrow formats: where the sums lie on both sides of a middle. */
static double element_bound(dw_format element, double sums) {
    return !is_real(element) || element == DW_FORMAT_f32 || element == DW_FORMAT_f64 ? sums : sums + ldexp(1, -num_info(element)->mantissa_bits);
}

/* Does the step make a jump of a difference in a last place? */
static bool jumps(const op_chain_step *step) {
    return op_has(step->op, OP_TRAIT_JUMPS) || (!is_real(step->format) && is_real(step->in[0].format));
}

/* Of a chain, whose steps read each other's results: the bounds of its approximate steps and of those that read them. 1: one of these jumps, so that results are not comparable. */
static double chain_bound(dw_context *context, const ir_node *node) {
    op_chain chain;
    dw_format formats[OP_CHAIN_OPERANDS];
    bool differs[OP_CHAIN_STEPS];
    double bound = 0;
    for (int i = 0; i < node->n_in; i++) formats[i] = ir_in(node, i)->type.format;
    if (op_chain_parse(context, ir_attr_text(node, OP_ATTR_steps), node->n_in, formats, &chain) != DW_OK) return 0;
    for (int i = 0; i < chain.count; i++) {
        const op_chain_step *step = &chain.steps[i];
        bool reads = false;
        for (int k = 0; k < step->n_in; k++) reads |= step->in[k].kind == OP_CHAIN_STEP && differs[step->in[k].index];
        differs[i] = reads || op_has(step->op, OP_TRAIT_APPROXIMATE);
        if (reads && jumps(step)) return 1;
        if (differs[i] || i + 1 == chain.count) bound += element_bound(step->format, SUM_BOUND);
    }
    return bound;
}

static double bound_of(dw_context *context, const ir_node *node, dw_format format) {
    if (node->op == OP_chain) return chain_bound(context, node);
    const bool multiplies = node->op == OP_matmul || node->op == OP_grouped_matmul;
    const dw_format element = element_of(format), first = multiplies ? element_of(ir_in(node, 0)->type.format) : DW_FORMAT_f32;
    const double sums = multiplies && dw_format_bits(first) <= 8 ? SUM_BOUND_8_BITS : SUM_BOUND;
    return element_bound(element, sums);
}

/* Elements whose bits differ: of blocks, bytes of codes, scales and second levels; the gaps between these parts are nobody's. */
static int64_t count_differing(const dw_tensor *a, const dw_tensor *b) {
    num_parts parts;
    if (!num_layout(a->format, a->scale_layout, a->rank, a->dims, &parts)) return 0;
    const size_t wide = dw_format_is_block(a->format) || dw_format_bits(a->format) < 8 ? 1 : (size_t)dw_format_bits(a->format) / 8;
    int64_t count = 0;
    for (size_t i = 0; i + wide <= parts.total_bytes; i += wide) count += num_is_part(&parts, i) && memcmp((const char *)a->data + i, (const char *)b->data + i, wide) != 0;
    return count;
}

static double largest_error(const dw_tensor *x, const dw_tensor *reference) {
    int64_t index[DW_MAX_RANK] = {0};
    double error = 0, largest = 0;
    for (int64_t i = 0, count = op_tensor_count(x); i < count; i++, op_tensor_next(x, index)) {
        const double a = op_tensor_load(x, index), b = op_tensor_load(reference, index);
        if (isnan(a) && isnan(b)) continue;
        if (!isfinite(a) || !isfinite(b)) {
            if (a == b) continue;
            return INFINITY;
        }
        if (fabs(a - b) > error) error = fabs(a - b);
        if (fabs(b) > largest) largest = fabs(b);
    }
    return error == 0 ? 0 : largest > 0 ? error / largest : INFINITY;
}

static stepwise_row *row_of(stepwise *steps, const char *kernel, dw_format format, bool exact) {
    for (size_t i = 0; i < steps->row_count; i++)
        if (strcmp(steps->rows[i].kernel, kernel) == 0 && steps->rows[i].format == format && steps->rows[i].exact == exact) return &steps->rows[i];
    stepwise_row *grown = arena_grow(&steps->arena, steps->rows, steps->row_count, &steps->row_room, sizeof *grown);
    if (grown == NULL) return NULL;
    steps->rows = grown;
    grown[steps->row_count] = (stepwise_row){.kernel = kernel, .format = format, .exact = exact, .worst = -1};
    return &grown[steps->row_count++];
}

static dw_status compare(stepwise *steps, const node_call *call, const dw_tensor *made) {
    for (int i = 0; i < call->node->n_out; i++) {
        const dw_tensor *expected = call->out[i];
        const double largest = bound_of(steps->context, call->node, expected->format);
        const bool exact = must_be_exact(call->node, expected->format) && largest < 1;
        stepwise_row *row = row_of(steps, steps->runs_as, expected->format, exact);
        if (row == NULL) return DW_NO_MEMORY;
        const double error = exact ? (double)count_differing(&made[i], expected) : largest_error(&made[i], expected), bound = exact ? 0 : largest;
        row->calls++;
        if (!exact) steps->off[plan_value_of(call->node->out[i])->index] = perturb_measure(&made[i], expected);
        if (row->worst >= 0 && error - bound <= row->worst - row->bound) continue;
        row->worst = error;
        row->bound = bound;
        row->node = call->node->out[i]->id;
        row->module = call->node->origin.module;
    }
    return DW_OK;
}

/* ---- a run ---- */

static dw_status operand_of(stepwise *steps, const ir_value *value, const dw_tensor **operand) {
    const plan_value *v = plan_value_of(value);
    dw_tensor *tensor = &steps->values[v->index];
    *operand = tensor;
    if (v->key == NULL || tensor->data != NULL) return DW_OK;
    const dw_tensor *constant = &steps->program->constants[v->index];
    if (dw_format_is_block(constant->format) || op_tensor_is_contiguous(constant)) *tensor = *constant;
    else TRY(copy_plain(steps, constant, tensor));
    return DW_OK;
}

static dw_status run_node(stepwise *steps, const ir_node *node, const plan_step *step, stepwise_perturbed perturbed, uint64_t seed) {
    node_call call = {.node = node, .step = step};
    dw_tensor made[KERNEL_MAX_RESULTS];
    for (int i = 0; i < node->n_in; i++)
        if (ir_in(node, i) != NULL) TRY(operand_of(steps, ir_in(node, i), &call.in[i]));
    for (int i = 0; i < node->n_out; i++) {
        dw_tensor *out = &steps->values[plan_value_of(node->out[i])->index];
        TRY(op_tensor_bind(steps->context, &node->out[i]->type, steps->symbols, NULL, out));
        TRY(new_memory(steps, out));
        call.out[i] = out;
    }
    TRY(run_cpu(steps, &call));
    if (steps->device != NULL && step != NULL) {
        TRY(run_device(steps, &call, made));
        TRY(compare(steps, &call, made));
    }
    if (is_perturbed(node, perturbed)) perturb_sum(call.out[0], &steps->off[plan_value_of(node->out[0])->index], seed + (uint64_t)node->out[0]->id);
    return base_poll(steps->context);
}

static const plan_step *step_of(const plan *plan, const ir_node *node) {
    for (int i = plan->load_count; i < plan->step_count; i++)
        if (plan->steps[i].node == node) return &plan->steps[i];
    return NULL;
}

static dw_status begin_states(stepwise *steps) {
    const ir_graph *graph = steps->program->plan->graph;
    for (size_t i = 0; i < graph->state_count; i++) {
        const ir_weight *initial = graph->states[i]->weight;
        dw_tensor *state = &steps->values[plan_value_of(graph->states[i])->index];
        TRY(op_tensor_bind(steps->context, &graph->states[i]->type, steps->symbols, NULL, state));
        TRY(new_memory(steps, state));
        if (initial != NULL) memcpy(state->data, initial->tensor.data, bytes_of(state));
        else memset(state->data, 0, bytes_of(state));
    }
    return DW_OK;
}

dw_status stepwise_run(stepwise *steps, int input_count, const dw_named_tensor *inputs, stepwise_perturbed perturbed, uint64_t seed) {
    const plan *plan = steps->program->plan;
    const ir_graph *graph = plan->graph;
    const dw_tensor *ordered[ENGINE_MAX_INPUTS];
    arena_free(&steps->run);
    memset(steps->values, 0, (size_t)plan->value_count * sizeof *steps->values);
    TRY(engine_match(steps->context, plan, input_count, inputs, ordered, steps->symbols));
    for (size_t i = 0; i < graph->input_count; i++) {
        dw_tensor *value = &steps->values[plan_value_of(graph->inputs[i])->index];
        TRY(copy_plain(steps, ordered[i], value));
        if (perturbed != STEPWISE_NOTHING && num_info(value->format)->class == NUM_FLOAT) perturb(value, seed + (uint64_t)i * 7919);
    }
    TRY(begin_states(steps));
    for (const ir_node *node = graph->first; node != NULL; node = node->next)
        if (plan_value_of(ir_out(node))->key == NULL) TRY(run_node(steps, node, step_of(plan, node), perturbed, seed));
    return DW_OK;
}
