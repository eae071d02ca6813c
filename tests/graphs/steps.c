/* A model of the graph on the CPU at some instruction set, or on a device: step after step, each kernel's results beside what the op's reference makes of the very
 * operands that the kernel read, and every operand beside what was written there once. So a bound speaks of one op alone. Then the same in one piece: a session at two
 * sizes, and now and then the model from a compiled file, must give the same bits as the steps did. What bounds are is told in bounds.c. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ir/internal.h"
#include "tests/graphs/steps.h"

enum { MOST_REGIONS = 400, GUARD = 64, ALIGN = 64 };

/* ---- one kernel ---- */

static bool fail_at(stepping *s, const ir_node *node, const kernel_row *row, const char *what, const char *words) {
    char kind[160];
    snprintf(kind, sizeof kind, "%s: %s%s", row != NULL ? row->name : op_get(node->op)->name, what, s->c->device != NULL ? " on a device" : "");
    return checks_fail(s->c, kind, "%s, %%%d: %s", s->device, node->out[0]->id, words);
}

static void count_row(checks *c, const kernel_row *row) {
    for (int i = 0; c->counting && i < kernel_count(); i++)
        if (kernel_at(i) == row) c->rows_met[i]++;
}

static bool holds_results(stepping *s, const ir_node *node, const kernel_row *row, const dw_tensor *const *in, const dw_tensor *got) {
    arena scratch;
    dw_tensor expected[KERNEL_MAX_RESULTS];
    text words;
    s->row = row;
    arena_init(&scratch, s->c->context);
    text_init(&words, s->c->context);
    dw_status status = new_results(s, &scratch, node, expected);
    if (status == DW_OK) status = run_reference(s, node, in, expected);
    bool held = status == DW_OK || fail_at(s, node, row, "runs what its reference refuses", dw_context_error(s->c->context));
    for (int i = 0; held && i < node->n_out; i++)
        held = agrees(s, node, i, &got[i], &expected[i], in, &words) || fail_at(s, node, row, "differs from the reference", text_string(&words));
    text_free(&words);
    arena_free(&scratch);
    return held;
}

/* A step at load: contiguous operands, results of its own. */
static dw_status run_plain(stepping *s, const plan_step *step, const dw_tensor *const *in, dw_tensor *out) {
    const ir_node *node = step->node;
    const dw_tensor *outs[KERNEL_MAX_RESULTS];
    for (int i = 0; i < node->n_out; i++) outs[i] = &out[i];
    kernel_run run = {.call = {.context = s->c->context, .op = op_get(node->op), .attrs = &node->attrs, .symbols = s->symbols, .n_in = node->n_in, .in = in, .n_out = node->n_out, .out = outs},
                      .post = step->post, .pool = s->c->pool, .chip = &s->load_chip, .user = step->row->user};
    arena scratch;
    arena_init(&scratch, s->c->context);
    const size_t bytes = kernel_workspace(step->row, &run);
    uint8_t *memory = arena_new(&scratch, bytes + 2 * ALIGN, 1);
    if (memory != NULL) run.workspace = memory + (ALIGN - (uintptr_t)memory % ALIGN) % ALIGN;
    const dw_status status = memory != NULL ? kernel_execute(step->row, &run) : DW_NO_MEMORY;
    arena_free(&scratch);
    return status;
}

/* ---- memory that runs read and write ---- */

/* On a device: a piece of its memory, and what was last read of it. */
typedef struct region { uint8_t *there, *here; size_t bytes; } region;

static size_t bytes_of(const dw_tensor *t) {
    num_parts parts;
    return num_layout(t->format, t->scale_layout, t->rank, t->dims, &parts) ? parts.total_bytes : 0;
}

/* Memory of that many bytes, filled with 0xff, with a guard behind it: *here on the host, *there where kernels see it. */
static dw_status new_region(stepping *s, size_t bytes, uint8_t **here, uint8_t **there) {
    device *device = s->c->device;
    uint8_t *memory = arena_new(&s->arena, bytes + ALIGN + GUARD, 1);
    if (memory == NULL) return DW_NO_MEMORY;
    memory += (ALIGN - (uintptr_t)memory % ALIGN) % ALIGN;
    memset(memory, 0xff, bytes);
    memset(memory + bytes, 0x5a, GUARD);
    *here = *there = memory;
    if (device == NULL) return DW_OK;
    if (s->region_count == MOST_REGIONS) return base_fail(s->c->context, DW_LIMIT, "too many inputs and outputs");
    void *address;
    TRY(device->calls->alloc(device, bytes + GUARD, &address));
    s->regions[s->region_count++] = (region){address, memory, bytes + GUARD};
    *there = address;
    return device->calls->write(device, address, memory, bytes + GUARD);
}

static void release_regions(stepping *s) {
    for (int i = 0; i < s->region_count; i++) s->c->device->calls->release(s->c->device, s->regions[i].there, s->regions[i].bytes);
    s->region_count = 0;
}

/* Its region as it is now, on the host; NULL: it is none of these. */
static dw_status read_region(stepping *s, const void *address, region **found) {
    *found = NULL;
    for (int i = 0; i < s->region_count; i++) {
        region *r = &s->regions[i];
        const uint8_t *at = address;
        if (at < r->there || at >= r->there + r->bytes) continue;
        *found = r;
        return s->c->device->calls->read(s->c->device, r->here, r->there, r->bytes);
    }
    return DW_OK;
}

/* A tensor that kernels see, as the host sees it; *is_seen: false for constants on a device. */
static dw_status see(stepping *s, const dw_tensor *t, dw_tensor *seen, bool *is_seen) {
    *seen = *t;
    *is_seen = true;
    if (s->c->device == NULL) return DW_OK;
    region *r;
    TRY(read_region(s, t->data, &r));
    TRY(s->c->device->calls->synchronize(s->c->device));
    *is_seen = r != NULL;
    if (r == NULL) return DW_OK;
    seen->data = r->here + ((uint8_t *)t->data - r->there);
    if (t->scales != NULL) seen->scales = r->here + ((uint8_t *)t->scales - r->there);
    if (t->second != NULL) seen->second = (float *)(void *)(r->here + ((uint8_t *)(void *)t->second - r->there));
    return DW_OK;
}

/* ---- all steps ---- */

static dw_status run_call(stepping *s, const plan_step *step, const kernel_run *run) {
    device *device = s->c->device;
    kernel_run there = *run;
    if (device == NULL) return kernel_execute(step->row, run);
    TRY(device->calls->run(device, step->row, &there));
    return device->calls->synchronize(device);
}

static bool reads_what_was_written(stepping *s, const plan_step *step, const plan_call *call) {
    const ir_node *node = step->node;
    for (int i = 0; i < node->n_in; i++) {
        dw_tensor seen;
        bool is_seen;
        if (ir_in(node, i) == NULL || call->in[i]->data == NULL) continue;
        if (see(s, call->in[i], &seen, &is_seen) != DW_OK) return fail_at(s, node, step->row, "has an operand that cannot be read", dw_context_error(s->c->context));
        if (!is_seen || has_bits(&seen, &s->truth[plan_value_of(ir_in(node, i))->index])) continue;
        char words[100];
        snprintf(words, sizeof words, "operand %d, %%%d, is not what was written there", i, ir_in(node, i)->id);
        return fail_at(s, node, step->row, "reads memory that was overwritten", words);
    }
    return true;
}

/* The call of a step as a run makes it: operands where the plan put them. */
static bool run_bound(stepping *s, const plan_step *step) {
    const ir_node *node = step->node;
    plan_call *call = &s->binding.calls[step - s->plan->steps];
    if (!reads_what_was_written(s, step, call)) return false;
    if (run_call(s, step, &call->run) != DW_OK) return fail_at(s, node, step->row, "fails", dw_context_error(s->c->context));
    for (int i = 0; i < node->n_out; i++) {
        dw_tensor seen;
        bool is_seen;
        dw_status status = see(s, call->out[i], &seen, &is_seen);
        if (status == DW_OK) status = copy_of(&s->arena, &seen, &s->truth[plan_value_of(node->out[i])->index]);
        if (status != DW_OK) return fail_at(s, node, step->row, "has a result that cannot be read", dw_context_error(s->c->context));
    }
    return true;
}

static bool run_node(stepping *s, const ir_node *node) {
    const plan_value *v = plan_value_of(ir_out(node));
    const plan_step *step = v->view ? NULL : node->mark;
    const dw_tensor *in[KERNEL_MAX_OPERANDS] = {0};
    dw_tensor got[KERNEL_MAX_RESULTS];
    if (s->c->counting) s->c->ops_met[node->op]++;
    for (int i = 0; i < node->n_in; i++)
        if (ir_in(node, i) != NULL) in[i] = &s->truth[plan_value_of(ir_in(node, i))->index];
    if (new_results(s, &s->arena, node, got) != DW_OK) return fail_at(s, node, NULL, "has no results", dw_context_error(s->c->context));
    if (step == NULL || step->row == NULL) {
        if (run_reference(s, node, in, got) != DW_OK) return fail_at(s, node, NULL, "fails", dw_context_error(s->c->context));
        for (int i = 0; i < node->n_out; i++) s->truth[plan_value_of(node->out[i])->index] = got[i];
        return true;
    }
    count_row(s->c, step->row);
    if (step->at_load) {
        const dw_status status = run_plain(s, step, in, got);
        if (status != DW_OK) return fail_at(s, node, step->row, "fails", dw_context_error(s->c->context));
        /* What the model has computed, whose operands may have had other strides than those here: sums may be in another order. */
        for (int i = 0; i < node->n_out; i++) {
            const plan_value *made = plan_value_of(node->out[i]);
            const dw_tensor *constant = &s->program->constants[made->index];
            if (made->read_plain && constant->data != NULL && copy_of(&s->arena, constant, &got[i]) != DW_OK) return fail_at(s, node, step->row, "has a constant that cannot be read", dw_context_error(s->c->context));
            s->truth[made->index] = got[i];
        }
    } else {
        if (!run_bound(s, step)) return false;
        for (int i = 0; i < node->n_out; i++) got[i] = s->truth[plan_value_of(node->out[i])->index];
    }
    return step->row->reference || holds_results(s, node, step->row, in, got);
}

/* ---- memory of a run ---- */

static dw_status new_guarded(stepping *s, const op_type *type, dw_tensor *t, void **there) {
    dw_tensor shape;
    uint8_t *here, *seen;
    TRY(op_tensor_bind(s->c->context, type, s->symbols, NULL, &shape));
    TRY(new_region(s, bytes_of(&shape), &here, &seen));
    op_tensor_init(t, shape.format, shape.scale_layout, shape.rank, shape.dims, here);
    *there = seen;
    return DW_OK;
}

static bool is_guarded(const dw_tensor *t) {
    const uint8_t *guard = (const uint8_t *)t->data + bytes_of(t);
    for (int i = 0; i < GUARD; i++)
        if (guard[i] != 0x5a) return false;
    return true;
}

static dw_status begin_values(stepping *s) {
    const ir_graph *graph = s->plan->graph;
    TRY_NEW(s->truth, &s->arena, s->plan->value_count + 1);
    TRY_NEW(s->regions, &s->arena, MOST_REGIONS);
    TRY_NEW(s->inputs, &s->arena, graph->input_count + 1);
    TRY_NEW(s->outputs, &s->arena, graph->output_count + 1);
    TRY_NEW(s->states, &s->arena, graph->state_count + 1);
    TRY_NEW(s->input_data, &s->arena, graph->input_count + 1);
    TRY_NEW(s->output_data, &s->arena, graph->output_count + 1);
    TRY_NEW(s->state_data, &s->arena, graph->state_count + 1);
    for (size_t i = 0; i < graph->input_count; i++) {
        TRY(new_guarded(s, &graph->inputs[i]->type, &s->inputs[i], &s->input_data[i]));
        TRY(graphs_fill(s->c->context, &s->inputs[i], graph->inputs[i]->name, s->seed));
        if (s->c->device != NULL) TRY(s->c->device->calls->write(s->c->device, s->input_data[i], s->inputs[i].data, bytes_of(&s->inputs[i])));
        TRY(copy_of(&s->arena, &s->inputs[i], &s->truth[plan_value_of(graph->inputs[i])->index]));
    }
    for (size_t i = 0; i < graph->output_count; i++) {
        TRY(new_guarded(s, &graph->outputs[i].value->type, &s->outputs[i], &s->output_data[i]));
    }
    for (size_t i = 0; i < graph->param_count; i++) TRY(copy_of(&s->arena, &graph->params[i]->weight->tensor, &s->truth[plan_value_of(graph->params[i])->index]));
    return DW_OK;
}

static dw_status bind(stepping *s) {
    uint8_t *there;
    TRY(plan_binding_create(s->c->context, s->plan, &s->binding));
    s->binding.holds_values = true;   /* whole runs, whose outputs are compared with these, may leave some plain: to the same bits */
    TRY(plan_bind(&s->binding, s->symbols));
    plan_size_scratch(&s->binding, s->c->pool, NULL);
    s->workspace_bytes = base_align_up(s->binding.value_bytes, ALIGN) + s->binding.scratch_bytes;
    TRY(new_region(s, s->workspace_bytes, &s->workspace, &there));
    plan_attach(&s->binding, &(plan_bases){.workspace = there, .inputs = s->input_data, .outputs = s->output_data, .states = s->state_data,
                                           .constants = s->c->device != NULL ? s->program->on_device : s->program->constants, .packed = s->program->packed, .pool = s->c->pool});
    return DW_OK;
}

/* All memory as it is after the run, on the host. */
static dw_status read_regions(stepping *s) {
    for (int i = 0; i < s->region_count; i++) TRY(s->c->device->calls->read(s->c->device, s->regions[i].here, s->regions[i].there, s->regions[i].bytes));
    return s->c->device != NULL ? s->c->device->calls->synchronize(s->c->device) : DW_OK;
}

static bool ends_well(stepping *s) {
    const ir_graph *graph = s->plan->graph;
    if (read_regions(s) != DW_OK) return checks_fail(s->c, "memory cannot be read", "%s: %s", s->device, dw_context_error(s->c->context));
    for (size_t i = 0; i < graph->input_count; i++)
        if (!is_guarded(&s->inputs[i]) || !has_bits(&s->inputs[i], &s->truth[plan_value_of(graph->inputs[i])->index])) return checks_fail(s->c, "a run writes into an input", "%s: %s", s->device, graph->inputs[i]->name);
    for (size_t i = 0; i < graph->output_count; i++) {
        if (!is_guarded(&s->outputs[i])) return checks_fail(s->c, "a run writes behind an output", "%s: %s", s->device, graph->outputs[i].name);
        if (!has_bits(&s->outputs[i], &s->truth[plan_value_of(graph->outputs[i].value)->index])) return checks_fail(s->c, "an output is not its value", "%s: %s", s->device, graph->outputs[i].name);
    }
    for (int i = 0; i < GUARD; i++)
        if (s->workspace[s->workspace_bytes + (size_t)i] != 0x5a) return checks_fail(s->c, "a run writes behind its workspace", "%s", s->device);
    return true;
}

static bool run_steps(stepping *s) {
    if (begin_values(s) != DW_OK) return checks_fail(s->c, "a run cannot begin", "%s: %s", s->device, dw_context_error(s->c->context));
    if (bind(s) != DW_OK) return checks_fail(s->c, "a plan cannot be bound", "%s: %s", s->device, dw_context_error(s->c->context));
    for (const ir_node *node = s->plan->graph->first; node != NULL; node = node->next)
        if (!run_node(s, node)) return false;
    return ends_well(s);
}

/* ---- the same in one piece ---- */

static bool runs_as_steps(stepping *s, dw_session *session, const char *who) {
    const ir_graph *graph = s->plan->graph;
    dw_named_tensor *inputs = arena_new(&s->arena, graph->input_count + 1, sizeof *inputs), *outputs = arena_new(&s->arena, graph->output_count + 1, sizeof *outputs);
    if (inputs == NULL || outputs == NULL) return false;
    for (size_t i = 0; i < graph->input_count; i++) inputs[i] = (dw_named_tensor){graph->inputs[i]->name, s->inputs[i]};
    for (size_t i = 0; i < graph->output_count; i++) {
        memset(s->outputs[i].data, 0xff, bytes_of(&s->outputs[i]));
        outputs[i] = (dw_named_tensor){graph->outputs[i].name, s->outputs[i]};
    }
    if (dw_session_run(session, (int)graph->input_count, inputs, (int)graph->output_count, outputs) != DW_OK)
        return checks_fail(s->c, "a session fails", "%s, %s: %s", s->device, who, dw_context_error(s->c->context));
    for (size_t i = 0; i < graph->output_count; i++) {
        if (!is_guarded(&s->outputs[i])) return checks_fail(s->c, "a session writes behind an output", "%s, %s: %s", s->device, who, graph->outputs[i].name);
        if (!has_numbers(&s->outputs[i], &s->truth[plan_value_of(graph->outputs[i].value)->index]))
            return checks_fail(s->c, "a session gives other bits than its steps", "%s, %s: %s", s->device, who, graph->outputs[i].name);
    }
    return true;
}

/* The larger of two sizes of each symbol. */
static void print_dims(const dim_table *table, const int64_t *sizes, const int64_t *other, char *dims, size_t size) {
    dims[0] = '\0';
    for (int i = 0; i < dim_symbol_count(table); i++) {
        const int64_t most = sizes[i] > other[i] ? sizes[i] : other[i];
        snprintf(dims + strlen(dims), size - strlen(dims), "%s%s=%lld", i > 0 ? "," : "", dim_symbol_name(table, i), (long long)most);
    }
}

static bool round_trips(stepping *s) {
    text first, second;
    plan *again = NULL;
    text_init(&first, s->c->context);
    text_init(&second, s->c->context);
    dw_status status = plan_print(s->plan, &first);
    if (status == DW_OK) status = plan_parse(s->c->context, "plan", text_string(&first), first.length, NULL, &s->plan->chip, NULL, &again);
    if (status == DW_OK) status = plan_print(again, &second);
    bool held = status == DW_OK || checks_fail(s->c, "a plan's text is refused", "%s: %s", s->device, dw_context_error(s->c->context));
    if (held && strcmp(text_string(&first), text_string(&second)) != 0) held = checks_fail(s->c, "a plan's text is another when it was read", "%s:\n%s\n%s", s->device, text_string(&first), text_string(&second));
    plan_destroy(again);
    text_free(&first);
    text_free(&second);
    return held;
}

static bool runs_from_a_file(stepping *s, const dw_model *model, const char *dims) {
    char path[256];
    dw_model *again = NULL;
    dw_session *session = NULL;
    snprintf(path, sizeof path, "%s/graphs-%d.dw", TEST_BUILD_DIR, (int)getpid());
    const dw_model_options options = {.device = s->device};
    dw_status status = dw_model_save(model, path);
    if (status == DW_OK) status = dw_model_open(s->c->context, path, &options, &again);
    if (status == DW_OK) status = dw_session_create(s->c->context, again, &(dw_session_options){.dims = dims}, &session);
    bool held = status == DW_OK || checks_fail(s->c, "a compiled file is refused", "%s: %s", s->device, dw_context_error(s->c->context));
    if (held) held = runs_as_steps(s, session, "from a file");
    dw_session_destroy(session);
    dw_model_destroy(again);
    unlink(path);
    return held;
}

static void end_run(stepping *s) {
    plan_binding_destroy(&s->binding);
    release_regions(s);
    arena_free(&s->arena);
}

static bool holds_at(stepping *s, dw_session *session, int turn) {
    graphs_sizes(s->plan->graph, s->seed, turn, s->symbols);
    return run_steps(s) && runs_as_steps(s, session, turn == 0 ? "first sizes" : "second sizes");
}

static bool holds_of_model(stepping *s, const dw_model *model) {
    int64_t other[MOST_SYMBOLS];
    char dims[512];
    dw_session *session = NULL;
    s->program = &model->full;
    s->plan = model->full.plan;
    s->load_chip = s->plan->load_chip;
    if (s->plan->chip.kind != CHIP_CPU && device_probe_cpu(s->c->context, "", 1, &s->load_chip) != DW_OK) return checks_fail(s->c, "there is no CPU", "%s", dw_context_error(s->c->context));
    if (dim_symbol_count(s->plan->graph->dims) > MOST_SYMBOLS) return true;
    graphs_sizes(s->plan->graph, s->seed, 0, s->symbols);
    graphs_sizes(s->plan->graph, s->seed, 1, other);
    print_dims(s->plan->graph->dims, s->symbols, other, dims, sizeof dims);
    if (!round_trips(s)) return false;
    if (dw_session_create(s->c->context, model, &(dw_session_options){.dims = dims}, &session) != DW_OK) return checks_fail(s->c, "a session cannot be made", "%s: %s", s->device, dw_context_error(s->c->context));
    bool held = holds_at(s, session, 0);
    if (held && num_random(s->seed, 99) % 16 == 0) held = runs_from_a_file(s, model, dims);
    if (held && dim_symbol_count(s->plan->graph->dims) > 0) {
        end_run(s);
        held = holds_at(s, session, 1);
    }
    end_run(s);
    dw_session_destroy(session);
    return held;
}

const char *graphs_precision(uint64_t seed) {
    int count = 0;
    while (pass_precision_get(count) != NULL) count++;
    const uint64_t drawn = num_random(seed, 4242);
    return drawn % 10 < 5 ? NULL : pass_precision_get((int)(drawn / 10 % (uint64_t)count))->name;
}

bool checks_steps(checks *c, const ir_graph *graph, const char *device, uint64_t seed) {
    stepping s = {.c = c, .device = device, .seed = seed};
    ir_graph *copy;
    dw_model *model = NULL;
    arena_init(&s.arena, c->context);
    char dims[512];
    int64_t symbols[MOST_SYMBOLS];
    if (dim_symbol_count(graph->dims) > MOST_SYMBOLS) return true;
    graphs_sizes(graph, seed, 0, symbols);
    print_dims(graph->dims, symbols, symbols, dims, sizeof dims);
    const dw_model_options options = {.precision = graphs_precision(seed), .device = device, .dims = dims, .flags = DW_MODEL_VERIFY};
    dw_status status = ir_graph_clone(graph, &copy);
    if (status == DW_OK) status = dw_model_create(c->context, copy, &options, &model);
    if (status == DW_UNSUPPORTED && c->device != NULL) return true;       /* kernels for GPUs take no f64 */
    if (status != DW_OK) return checks_fail(c, "a model cannot be made", "%s, %s: %s", device, options.precision != NULL ? options.precision : "as exported", dw_context_error(c->context));
    const bool held = holds_of_model(&s, model);
    dw_model_destroy(model);
    return held;
}
