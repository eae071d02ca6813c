/* The load of one plan on the host: quantised weights, merged projections, folded tables, packed panels. */
#include "engine/load.h"

#include <string.h>

static const engine_constant *find_constant(const loading *load, const char *key) { return engine_constants_find(load->constants, key); }

/* What the session has, whose memory is written again; NULL: it is not there yet, or the load is none of trained states. */
static const engine_constant *find_own(const loading *load, const char *key) { return load->trains != NULL ? map_find(&load->constants->by_key, key) : NULL; }

/* Marks what runs read and, unless a result is there already, all that it is computed from: operands come before results. */
static void want_all(loading *load)
{
    const plan *plan = load->program->plan;
    for (int i = 0; i < plan->value_count; i++)
        load->wanted[i] = load_is_of(load, &plan->values[i]) && plan->values[i].read_plain;
    for (int i = plan->load_count; i < plan->step_count; i++) {
        const plan_value *packed = plan_packed_operand(&plan->steps[i]);
        if (packed != NULL && load_is_of(load, packed) && (load->trains != NULL || find_constant(load, plan->steps[i].pack_key) == NULL)) load->wanted[packed->index] = true;
    }
    for (int i = plan->value_count - 1; i >= 0; i--) {
        const plan_value *v = &plan->values[i];
        if (!load->wanted[i] || v->value->kind != IR_RESULT || load_has(load, v)) continue;
        const ir_node *node = v->value->node;
        for (int k = 0; k < node->n_in; k++)
            if (ir_in(node, k) != NULL) load->wanted[plan_value_of(ir_in(node, k))->index] = true;
    }
}

static dw_status allocate(loading *load, const plan_value *v)
{
    dw_context *context = load->constants->context;
    dw_tensor *tensor = &load->tensors[v->index];
    const engine_constant *own = find_own(load, v->key);
    num_parts parts;
    if (own != NULL) {
        *tensor = own->tensor;
        return DW_OK;
    }
    TRY(op_tensor_bind(context, &v->value->type, load->symbols, NULL, tensor));
    if (!num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts))
        return base_fail(context, DW_LIMIT, "the bytes of constant %%%d overflow", v->value->id);
    size_t bytes = parts.total_bytes ? parts.total_bytes : 1;
    if (!v->read_plain) load->owned[v->index] = load_take_room(&load->room, bytes);
    load->roomed[v->index] = load->owned[v->index] != NULL;
    if (!load->roomed[v->index]) {
        TRY(load_hold(load, v, bytes));
        TRY(base_alloc(context, bytes, ENGINE_ALIGN, &load->owned[v->index]));
    }
    load->owned_bytes[v->index] = bytes;
    op_tensor_init(tensor, tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, load->owned[v->index]);
    return DW_OK;
}

static void release_owned(loading *load, int root)
{
    if (load->owned[root] == NULL) return;
    if (load->roomed[root]) {
        load_leave_room(&load->room);
    } else {
        base_release(load->constants->context, load->owned[root], load->owned_bytes[root], ENGINE_ALIGN);
        load->held -= load->owned_bytes[root];
    }
    load->owned[root] = NULL;
}

/* Of a session whose steps are looked at. */
static void let_watch(loading *load, const plan_step *step, const op_call *call)
{
    const engine_runner *runner = load->trains != NULL ? &load->trains->full : NULL;
    if (runner != NULL && runner->watch != NULL) load->stopped = runner->watch(runner->watcher, step, call);
}

static dw_status run_step(loading *load, const plan_step *step)
{
    dw_context *context = load->constants->context;
    const ir_node *node = step->node;
    const dw_tensor *in[KERNEL_MAX_OPERANDS], *out[KERNEL_MAX_RESULTS];
    for (int i = 0; i < node->n_in; i++) in[i] = ir_in(node, i) ? &load->tensors[plan_value_of(ir_in(node, i))->index] : NULL;
    for (int i = 0; i < node->n_out; i++) {
        TRY(allocate(load, plan_value_of(node->out[i])));
        out[i] = &load->tensors[plan_value_of(node->out[i])->index];
    }
    kernel_run run = {
        .call = {.context = context, .op = op_get(node->op), .attrs = &node->attrs, .symbols = load->symbols, .n_in = node->n_in, .in = in,
                 .n_out = node->n_out, .out = out},
        .post = step->post, .pool = load->pool, .chip = &load->chip, .ways = step->ways, .invariant = load->program->plan->invariant, .user = step->row->user,
    };
    size_t bytes = kernel_workspace(step->row, &run);
    if (bytes > 0) TRY(base_alloc(context, bytes, ENGINE_ALIGN, &run.workspace));
    dw_status status = kernel_execute(step->row, &run);
    if (bytes > 0) base_release(context, run.workspace, bytes, ENGINE_ALIGN);
    if (status == DW_OK) let_watch(load, step, &run.call);
    return status;
}

/* Of a value that is on the device alone, the shape. */
static dw_status see_view(loading *load, const plan_value *v)
{
    dw_tensor *view = &load->tensors[v->index];
    const dw_tensor *base = &load->tensors[v->base->index];
    return base->data != NULL ? load_view(load, v, base, view) : op_tensor_bind(load->constants->context, &v->value->type, load->symbols, NULL, view);
}

static void copy_strided(const dw_tensor *from, const dw_tensor *to)
{
    int64_t index[DW_MAX_RANK] = {0}, count = op_tensor_count(to);
    size_t size = (size_t)dw_format_bits(to->format) / 8;
    for (int64_t i = 0; i < count; i++) {
        int64_t offset = 0;
        for (int d = 0; d < to->rank; d++) offset += index[d] * from->strides[d];
        memcpy((uint8_t *)to->data + (size_t)i * size, (const uint8_t *)from->data + offset * (int64_t)size, size);
        for (int d = to->rank - 1; d >= 0 && ++index[d] == to->dims[d]; d--) index[d] = 0;
    }
}

/* A weight whose strides are not row-major is copied: kernels are promised contiguous weights. */
static dw_status see_weight(loading *load, const plan_value *v)
{
    const ir_weight *weight = v->value->weight;
    const engine_constant *there = find_constant(load, v->key);
    if (there != NULL) {
        load->tensors[v->index] = there->tensor;
        return DW_OK;
    }
    if (weight == NULL)
        return base_fail(load->constants->context, DW_NOT_FOUND, "weight %s has no data: name the file that holds it", v->value->name);
    if (weight->place != NULL && !load_reaches(load, weight))
        return base_fail(load->constants->context, DW_UNSUPPORTED, "weight %s lies in the memory of %s, and the model does not run there: give it in the host's memory", v->value->name, weight->place);
    load->tensors[v->index] = weight->tensor;
    if (weight->place != NULL || op_tensor_is_contiguous(&weight->tensor)) return DW_OK;
    TRY(allocate(load, v));
    copy_strided(&weight->tensor, &load->tensors[v->index]);
    return DW_OK;
}

/* A trained state, where the session has it. */
static dw_status see_state(loading *load, const plan_value *v)
{
    void *memory = load->trains->full.states[v->slot];
    dw_tensor *tensor = &load->tensors[v->index];
    TRY(op_tensor_bind(load->constants->context, &v->value->type, load->symbols, memory, tensor));
    if (load->constants->device == NULL) return DW_OK;
    const dw_tensor there = *tensor;
    load_see_there(load, v, &there);
    return DW_OK;
}

static dw_status see_given(loading *load)
{
    const plan *plan = load->program->plan;
    for (int i = 0; i < plan->value_count; i++) {
        const plan_value *v = &plan->values[i];
        if (!load->wanted[i]) continue;
        if (v->value->kind == IR_PARAM) TRY(see_weight(load, v));
        if (v->value->kind == IR_STATE) TRY(see_state(load, v));
    }
    return DW_OK;
}

static void find_last_reads(loading *load)
{
    const plan *plan = load->program->plan;
    for (const ir_node *node = plan->graph->first; node != NULL; node = node->next) {
        if (plan_value_of(ir_out(node))->key == NULL || !load_must_run(load, node)) continue;
        for (int i = 0; i < node->n_in; i++)
            if (ir_in(node, i) != NULL) load->last_read[plan_value_of(ir_in(node, i))->root->index] = node->order;
    }
    for (int i = 0; i < plan->value_count; i++)
        if (plan->values[i].read_plain) load->last_read[plan->values[i].root->index] = LOAD_NEVER_DONE;
    for (int i = plan->load_count; i < plan->step_count; i++) {
        const plan_step *step = &plan->steps[i];
        const plan_value *v = plan_packed_operand(step);
        if (v == NULL || !load_is_of(load, v)) continue;
        int *last = &load->last_read[v->root->index], made = v->value->kind == IR_RESULT ? v->value->node->order : LOAD_NEVER_DONE;
        if (*last < made) *last = made;
        load->packed_next[i] = load->packed_by[v->index];
        load->packed_by[v->index] = i + 1;
    }
}

static dw_status pack_step(loading *load, const plan_step *step)
{
    dw_context *context = load->constants->context;
    const dw_tensor *weight = &load->tensors[plan_packed_operand(step)->index];
    const engine_constant *own = find_own(load, step->pack_key);
    engine_constant packed = {.key = step->pack_key, .packed = true, .bytes = step->packing->bytes};
    if (map_find(&load->packed, step->pack_key) != NULL || (own == NULL && find_constant(load, step->pack_key) != NULL)) return DW_OK;
    TRY(map_set(&load->packed, step->pack_key, load));
    if (own != NULL) return step->packing->run(step->packing, context, load->pool, weight, own->owned);
    packed.owned_bytes = packed.bytes ? packed.bytes : 1;
    TRY(base_alloc(context, packed.owned_bytes, ENGINE_ALIGN, &packed.owned));
    packed.tensor.data = packed.owned;
    dw_status status = step->packing->run(step->packing, context, load->pool, weight, packed.owned);
    if (status == DW_OK) return engine_constants_add(load->constants, &packed);
    base_release(context, packed.owned, packed.owned_bytes, ENGINE_ALIGN);
    return status;
}

/* What a node has made is packed at once, so that no more than one weight is there twice. */
static dw_status pack_results(loading *load, const ir_node *node)
{
    for (int i = 0; i < node->n_out; i++)
        for (int step = load->packed_by[plan_value_of(node->out[i])->index]; step > 0; step = load->packed_next[step - 1]) TRY(pack_step(load, &load->program->plan->steps[step - 1]));
    return DW_OK;
}

static dw_status release_read(loading *load, const ir_value *value, int order)
{
    int root = plan_value_of(value)->root->index;
    if (load->last_read[root] != order) return DW_OK;
    TRY(load_release_there(load, root));
    release_owned(load, root);
    return DW_OK;
}

/* Releases what node was the last to read, or is packed and nothing else: thousands of steps need no more than their widest place. */
static dw_status release_done(loading *load, const ir_node *node)
{
    for (int i = 0; i < node->n_in; i++)
        if (ir_in(node, i) != NULL) TRY(release_read(load, ir_in(node, i), node->order));
    for (int i = 0; i < node->n_out; i++)
        if (load->packed_by[plan_value_of(node->out[i])->index] > 0) TRY(release_read(load, node->out[i], node->order));
    return DW_OK;
}

static dw_status compute(loading *load)
{
    const plan *plan = load->program->plan;
    TRY(see_given(load));
    for (const ir_node *node = plan->graph->first; node != NULL && !load->stopped; node = node->next) {
        const plan_value *v = plan_value_of(ir_out(node));
        if (v->key == NULL || (v->updated && load->trains == NULL)) continue;
        for (int i = 0; i < node->n_out; i++) {
            const plan_value *made = plan_value_of(node->out[i]);
            const engine_constant *here = find_constant(load, made->key), *there = engine_constants_find_there(load->constants, made->key);
            if (here != NULL) load->tensors[made->index] = here->tensor;
            else if (there != NULL) load_see_there(load, made, &there->tensor);
        }
        if (!load_must_run(load, node)) continue;
        if (v->view) TRY(see_view(load, v));
        else TRY(load_is_there(load, node->mark) ? load_run_there(load, node->mark) : run_step(load, node->mark));
        TRY(pack_results(load, node));
        TRY(release_done(load, node));
        TRY(base_poll(load->constants->context));
    }
    return DW_OK;
}

/* Results that runs read stay with the model; the rest is released. A view keeps the value that it is a view of. */
static dw_status keep(loading *load)
{
    const plan *plan = load->program->plan;
    for (int i = 0; i < plan->value_count; i++) {
        const plan_value *v = &plan->values[i];
        if (load->owned[i] == NULL || load->roomed[i] || !v->read_plain) continue;
        engine_constant constant = {.key = v->key, .tensor = load->tensors[i], .bytes = load->owned_bytes[i],
                                    .owned = load->owned[i], .owned_bytes = load->owned_bytes[i]};
        load->owned[i] = NULL;
        TRY(engine_constants_add(load->constants, &constant));
    }
    return DW_OK;
}

/* A small file must not make us compute tables of gigabytes: what is computed from weights stays within a multiple of them and what tables of
 * positions and masks may take. */
static size_t limit_of(const ir_graph *graph)
{
    enum { MULTIPLE = 16 };
    size_t limit = (size_t)256 << 20;
    for (size_t i = 0; i < graph->param_count + graph->state_count; i++) {
        int64_t dims[DW_MAX_RANK];
        const ir_value *weight = i < graph->param_count ? graph->params[i] : graph->states[i - graph->param_count];
        const op_type *type = &weight->type;
        if (weight->kind == IR_STATE && !weight->trained) continue;
        num_parts parts;
        size_t more, sum;
        for (int d = 0; d < type->rank; d++)
            if (!dim_is_constant(type->dims[d], &dims[d])) dims[d] = 0;
        if (!num_layout(type->format, type->scale_layout, type->rank, dims, &parts)) continue;
        if (!base_mul_size(parts.total_bytes, MULTIPLE, &more) || !base_add_size(limit, more, &sum)) return SIZE_MAX;
        limit = sum;
    }
    return limit;
}

static dw_status make_arrays(loading *load)
{
    engine_program *program = load->program;
    const plan *plan = program->plan;
    if (load->trains == NULL) {
        TRY_NEW(program->constants, &load->constants->arena, plan->value_count);
        TRY_NEW(program->packed, &load->constants->arena, plan->step_count);
    }
    TRY_NEW(load->wanted, &load->arena, plan->value_count);
    TRY_NEW(load->tensors, &load->arena, plan->value_count);
    TRY_NEW(load->owned_bytes, &load->arena, plan->value_count);
    TRY_NEW(load->last_read, &load->arena, plan->value_count);
    TRY_NEW(load->packed_by, &load->arena, plan->value_count);
    TRY_NEW(load->packed_next, &load->arena, plan->step_count);
    TRY_NEW(load->symbols, &load->arena, dim_symbol_count(plan->graph->dims) + 1);
    memcpy(load->symbols, plan->typical, (size_t)dim_symbol_count(plan->graph->dims) * sizeof *load->symbols);   /* of which constants have the rank's place alone */
    TRY_NEW(load->roomed, &load->arena, plan->value_count);
    TRY_NEW(load->owned, &load->arena, plan->value_count);
    return DW_OK;
}

static dw_status load_program(loading *load)
{
    engine_program *program = load->program;
    const plan *plan = program->plan;
    TRY(make_arrays(load));
    want_all(load);
    find_last_reads(load);
    TRY(load_place(load));
    TRY(compute(load));
    if (load->stopped) return DW_OK;
    for (int i = plan->load_count; i < plan->step_count; i++) {
        const plan_step *step = &plan->steps[i];
        const plan_value *packed = plan_packed_operand(step);
        if (packed == NULL || !load_is_of(load, packed)) continue;
        TRY(pack_step(load, step));
        program->packed[i] = find_constant(load, step->pack_key)->tensor.data;
    }
    for (int i = 0; i < plan->value_count; i++)
        if (load->trains == NULL || plan->values[i].updated) program->constants[i] = load->tensors[i];
    TRY(keep(load));
    return load_keep_there(load);
}

static dw_status run_load(loading *load)
{
    const plan *plan = load->program->plan;
    arena_init(&load->arena, load->constants->context);
    map_init(&load->packed, &load->arena);
    dw_status status = load_program(load);
    load_free_there(load);
    for (int i = 0; load->owned != NULL && i < plan->value_count; i++) release_owned(load, i);
    arena_free(&load->arena);
    return status;
}

dw_status engine_load(engine_constants *constants, pool *pool, engine_program *program)
{
    loading load = {.constants = constants, .program = program, .pool = pool, .chip = program->plan->chip, .limit = limit_of(program->plan->graph)};
    if (load.chip.kind != CHIP_CPU) TRY(device_probe_cpu(constants->context, "", pool_threads(pool), &load.chip));
    return run_load(&load);
}

dw_status engine_load_updated(engine_constants *constants, dw_session *session, engine_program *program, bool *stopped)
{
    loading load = {.constants = constants, .program = program, .pool = session->pool, .chip = program->plan->chip, .limit = limit_of(program->plan->graph), .trains = session,
                    .room = {.memory = session->workspace, .bytes = session->workspace_bytes}};
    const dw_status status = run_load(&load);
    *stopped = load.stopped;
    return status;
}
