/* The load of one plan on a device that has memory of its own: steps whose results have the host's bits there, and what runs read is brought once per model, whatever
 * plans read it. Of trained states, which are there, nothing is made elsewhere. */
#include "engine/load.h"

enum { SMALL = 16384 };   /* bytes of a result: up to so many the host is done before a launch would begin */

/* ---- which steps ---- */

/* Does the op give the same bits on every device? Quantisers do (tests/conform), also when they search for scales. */
static bool is_same_everywhere(op_id op) { return op == OP_quantize || op == OP_cast || (op_get(op)->traits & (OP_TRAIT_EXACT | OP_TRAIT_VIEW)) != 0; }

static size_t bytes_of(const loading *load, const plan_value *v)
{
    dw_tensor tensor;
    num_parts parts;
    if (op_tensor_bind(load->constants->context, &v->value->type, load->symbols, NULL, &tensor) != DW_OK) return 0;
    return num_layout(tensor.format, tensor.scale_layout, tensor.rank, tensor.dims, &parts) ? parts.total_bytes : 0;
}

/* The row reads operands of such strides and writes such a result; the plan chose those for the host's row. */
static bool fits_layout(const kernel_row *row, const ir_node *node)
{
    for (int i = 0; i < node->n_in; i++)
        if (ir_in(node, i) != NULL && !plan_value_of(ir_in(node, i))->contiguous && (row->strided_in >> i & 1) == 0) return false;
    for (int i = 0; i < node->n_out; i++)
        if (!plan_value_of(node->out[i])->contiguous || plan_value_of(node->out[i])->base != NULL) return false;
    return true;
}

static dw_status choose_row(loading *load, const plan_step *step, kernel_choice *choice)
{
    const chip_caps *chip = &load->constants->device->caps;
    const op_type *in[KERNEL_MAX_OPERANDS], *out[KERNEL_MAX_RESULTS];
    kernel_problem problem;
    text why;
    bool any = false;
    plan_problem(load->program->plan, step, in, out, &problem);
    problem.chip = chip;
    problem.context = load->constants->context;
    *choice = (kernel_choice){0};
    text_init(&why, load->constants->context);
    for (int i = 0; i < kernel_count() && !any; i++)
        any = kernel_at(i)->op == step->node->op && kernel_at(i)->device == chip->kind && kernel_refusal(kernel_at(i), NULL, &problem, &why) == NULL;
    dw_status status = text_status(&why);
    text_free(&why);
    if (status != DW_OK || !any) return status;
    return kernel_choose(&load->arena, &problem, NULL, NULL, choice);
}

/* A constant of the model there. Takes owned over, also on failure. */
static dw_status add_there(engine_constants *constants, const engine_constant *constant)
{
    engine_constant *kept = arena_new(&constants->arena, 1, sizeof *kept);
    dw_status status = kept ? DW_OK : DW_NO_MEMORY;
    if (status == DW_OK) {
        *kept = *constant;
        status = map_set(&constants->on_device, constant->key, kept);
    }
    if (status != DW_OK) constants->device->calls->release(constants->device, constant->owned, constant->owned_bytes);
    return status;
}

bool load_reaches(const loading *load, const ir_weight *weight) { return load->constants->device != NULL && device_is_named(load->constants->device, weight->place); }

/* A weight that the device has becomes a constant of the model there, whose memory is the caller's. */
static dw_status add_weight(engine_constants *constants, const plan_value *v)
{
    const ir_weight *weight = v->value->weight;
    engine_constant borrowed = {.key = v->key, .tensor = weight->tensor};
    num_parts parts;
    if (!num_layout(weight->tensor.format, weight->tensor.scale_layout, weight->tensor.rank, weight->tensor.dims, &parts))
        return base_fail(constants->context, DW_LIMIT, "the bytes of weight %s overflow", v->key);
    borrowed.bytes = parts.total_bytes;
    borrowed.tensor.data = (void *)(uintptr_t)weight->there;
    return add_there(constants, &borrowed);
}

/* A step that the host runs reads its operands there: one that only the device has is fetched. */
static dw_status need_on_host(loading *load, const ir_node *node, bool *on_host)
{
    for (int i = 0; i < node->n_in; i++) {
        if (ir_in(node, i) == NULL) continue;
        const plan_value *root = plan_value_of(ir_in(node, i))->root;
        engine_constant fetched;
        on_host[root->index] = true;
        if (engine_constants_find(load->constants, root->key) != NULL || engine_constants_find_there(load->constants, root->key) == NULL) continue;
        TRY(engine_constants_fetch(load->constants, root->key, &fetched));
        TRY(engine_constants_add(load->constants, &fetched));
    }
    return DW_OK;
}

static dw_status place_step(loading *load, int index, bool *on_host)
{
    const plan_step *step = &load->program->plan->steps[index];
    const ir_node *node = step->node;
    bool there = is_same_everywhere(node->op);
    if (load->trains != NULL) {
        load->rows[index] = step->row;
        load->ways[index] = step->ways;
        return DW_OK;
    }
    for (int i = 0; i < node->n_out && there; i++) there = !on_host[plan_value_of(node->out[i])->root->index] && bytes_of(load, plan_value_of(node->out[i])) > SMALL;
    kernel_choice choice = {0};
    if (there) TRY(choose_row(load, step, &choice));
    if (choice.row == NULL || !fits_layout(choice.row, node)) return need_on_host(load, node, on_host);
    load->rows[index] = choice.row;
    load->ways[index] = choice.ways;
    return DW_OK;
}

dw_status load_place(loading *load)
{
    const plan *plan = load->program->plan;
    bool *on_host;
    if (load->constants->device == NULL) return DW_OK;
    TRY_NEW(load->rows, &load->arena, load_end(load));
    TRY_NEW(load->ways, &load->arena, load_end(load));
    TRY_NEW(load->there, &load->arena, plan->value_count);
    TRY_NEW(load->there_owned, &load->arena, plan->value_count);
    TRY_NEW(load->there_bytes, &load->arena, plan->value_count);
    TRY_NEW(load->there_roomed, &load->arena, plan->value_count);
    TRY_NEW(on_host, &load->arena, plan->value_count);
    for (int i = 0; i < plan->value_count; i++) {
        const ir_weight *weight = plan->values[i].value->kind == IR_PARAM ? plan->values[i].value->weight : NULL;
        if (weight == NULL || weight->place == NULL || !load_reaches(load, weight) || engine_constants_find_there(load->constants, plan->values[i].key) != NULL) continue;
        TRY(add_weight(load->constants, &plan->values[i]));
    }
    for (int i = plan->load_count; i < plan->step_count; i++)
        if (plan->steps[i].pack_key != NULL) on_host[plan_value_of(ir_in(plan->steps[i].node, plan->steps[i].row->packs))->root->index] = true;
    for (int i = load_end(load) - 1; i >= load_first(load); i--)   /* readers come before what they read */
        if (load_must_run(load, plan->steps[i].node)) TRY(place_step(load, i, on_host));
    return DW_OK;
}

bool load_is_there(const loading *load, const plan_step *step) { return load->rows != NULL && load->rows[step - load->program->plan->steps] != NULL; }

/* ---- what lies there ---- */

/* The three parts of a tensor, which may lie apart, into one piece of device memory. */
static dw_status write_parts(device *device, const dw_tensor *from, const num_parts *parts, const dw_tensor *to)
{
    TRY(device->calls->write(device, to->data, from->data, parts->data_bytes));
    if (parts->scale_bytes > 0) TRY(device->calls->write(device, to->scales, from->scales, parts->scale_bytes));
    return parts->second_bytes > 0 ? device->calls->write(device, to->second, from->second, parts->second_bytes) : DW_OK;
}

static dw_status copy_there(engine_constants *constants, const char *key, const dw_tensor *tensor, engine_constant *made)
{
    device *device = constants->device;
    num_parts parts;
    if (!num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts))
        return base_fail(constants->context, DW_LIMIT, "the bytes of constant %s overflow", key);
    *made = (engine_constant){.key = key, .bytes = parts.total_bytes, .owned_bytes = parts.total_bytes + 1};
    TRY(device->calls->alloc(device, made->owned_bytes, &made->owned));
    op_tensor_init(&made->tensor, tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, made->owned);
    dw_status status = write_parts(device, tensor, &parts, &made->tensor);
    if (status != DW_OK) device->calls->release(device, made->owned, made->owned_bytes);
    return status;
}

/* What runs read, brought there unless it is there. */
static dw_status bring(engine_constants *constants, const char *key, const dw_tensor *tensor, dw_tensor *there)
{
    const engine_constant *kept = engine_constants_find_there(constants, key);
    engine_constant made;
    if (kept == NULL) {
        TRY(copy_there(constants, key, tensor, &made));
        TRY(add_there(constants, &made));
        kept = &made;
    }
    *there = kept->tensor;
    return DW_OK;
}

/* The value in the device's memory, for a step there. */
static dw_status operand_there(loading *load, const plan_value *v, const dw_tensor **tensor)
{
    dw_tensor *there = &load->there[v->index];
    const dw_tensor *base;
    engine_constant made;
    *tensor = there;
    if (there->data != NULL) return DW_OK;
    if (v->view) {
        TRY(operand_there(load, v->base, &base));
        return load_view(load, v, base, there);
    }
    if (v->read_plain || engine_constants_find_there(load->constants, v->key) != NULL) return bring(load->constants, v->key, &load->tensors[v->index], there);
    TRY(copy_there(load->constants, v->key, &load->tensors[v->index], &made));
    *there = made.tensor;
    load->held += made.owned_bytes;
    load->there_owned[v->index] = made.owned;
    load->there_bytes[v->index] = made.owned_bytes;
    return DW_OK;
}

void load_see_there(loading *load, const plan_value *v, const dw_tensor *tensor)
{
    dw_tensor *shape = &load->tensors[v->index];
    load->there[v->index] = *shape = *tensor;
    shape->data = shape->scales = shape->second = NULL;
}

/* Room for a result there. */
static dw_status allocate_there(loading *load, const plan_value *v)
{
    device *device = load->constants->device;
    const engine_constant *own = load->trains != NULL ? map_find(&load->constants->on_device, v->key) : NULL;
    dw_tensor made;
    num_parts parts;
    if (own != NULL) {   /* which is written again */
        load_see_there(load, v, &own->tensor);
        return DW_OK;
    }
    TRY(op_tensor_bind(load->constants->context, &v->value->type, load->symbols, NULL, &made));
    if (!num_layout(made.format, made.scale_layout, made.rank, made.dims, &parts))
        return base_fail(load->constants->context, DW_LIMIT, "the bytes of constant %%%d overflow", v->value->id);
    if (!v->read_plain) load->there_owned[v->index] = load_take_room(&load->room, parts.total_bytes + 1);
    load->there_roomed[v->index] = load->there_owned[v->index] != NULL;
    if (!load->there_roomed[v->index]) {
        TRY(load_hold(load, v, parts.total_bytes + 1));
        TRY(device->calls->alloc(device, parts.total_bytes + 1, &load->there_owned[v->index]));
    }
    load->there_bytes[v->index] = parts.total_bytes + 1;
    op_tensor_init(&made, made.format, made.scale_layout, made.rank, made.dims, load->there_owned[v->index]);
    load_see_there(load, v, &made);
    return DW_OK;
}

dw_status load_run_there(loading *load, const plan_step *step)
{
    device *device = load->constants->device;
    const ir_node *node = step->node;
    const ptrdiff_t index = step - load->program->plan->steps;
    const dw_tensor *in[KERNEL_MAX_OPERANDS] = {NULL}, *out[KERNEL_MAX_RESULTS];
    for (int i = 0; i < node->n_in; i++)
        if (ir_in(node, i) != NULL) TRY(operand_there(load, plan_value_of(ir_in(node, i)), &in[i]));
    for (int i = 0; i < node->n_out; i++) {
        TRY(allocate_there(load, plan_value_of(node->out[i])));
        out[i] = &load->there[plan_value_of(node->out[i])->index];
    }
    kernel_run run = {
        .call = {.context = load->constants->context, .op = op_get(node->op), .attrs = &node->attrs, .symbols = load->symbols, .n_in = node->n_in, .in = in,
                 .n_out = node->n_out, .out = out},
        .post = step->post, .chip = &device->caps, .user = load->rows[index]->user, .ways = load->ways[index],
    };
    const size_t bytes = kernel_workspace(load->rows[index], &run);
    if (bytes > 0) run.workspace = load_take_room(&load->room, bytes);
    const bool is_roomed = run.workspace != NULL;
    if (bytes > 0 && !is_roomed) TRY(device->calls->alloc(device, bytes, &run.workspace));
    dw_status status = device->calls->run(device, load->rows[index], &run);
    if (is_roomed) load_leave_room(&load->room);
    if (bytes == 0 || is_roomed) return status;
    if (status == DW_OK) status = device->calls->synchronize(device);
    device->calls->release(device, run.workspace, bytes);
    return status;
}

dw_status load_release_there(loading *load, int root)
{
    device *device = load->constants->device;
    if (load->there_owned == NULL || load->there_owned[root] == NULL) return DW_OK;
    if (load->there_roomed[root]) {   /* what comes to lie there is started behind those who read it */
        load_leave_room(&load->room);
        load->there_owned[root] = NULL;
        load->there[root].data = NULL;
        return DW_OK;
    }
    TRY(device->calls->synchronize(device));
    device->calls->release(device, load->there_owned[root], load->there_bytes[root]);
    load->held -= load->there_bytes[root];
    load->there_owned[root] = NULL;
    load->there[root].data = NULL;
    return DW_OK;
}

/* ---- what stays ---- */

static dw_status keep_made(loading *load)
{
    const plan *plan = load->program->plan;
    for (int i = 0; i < plan->value_count; i++) {
        const plan_value *v = &plan->values[i];
        if (load->there_owned[i] == NULL || load->there_roomed[i] || !v->read_plain) continue;
        engine_constant made = {.key = arena_text(&load->constants->arena, v->key), .tensor = load->there[i], .bytes = load->there_bytes[i] - 1,
                                .owned = load->there_owned[i], .owned_bytes = load->there_bytes[i]};
        if (made.key == NULL) return DW_NO_MEMORY;
        load->there_owned[i] = NULL;
        TRY(add_there(load->constants, &made));
    }
    return DW_OK;
}

dw_status load_keep_there(loading *load)
{
    engine_constants *constants = load->constants;
    engine_program *program = load->program;
    const plan *plan = program->plan;
    if (constants->device == NULL) return DW_OK;
    TRY(keep_made(load));
    if (load->trains == NULL) TRY_NEW(program->on_device, &constants->arena, plan->value_count);
    for (int i = 0; i < plan->value_count; i++) {
        const plan_value *v = &plan->values[i];
        if (v->place != PLAN_CONSTANT || !load_is_of(load, v) || v->view || v->base != NULL) continue;
        TRY(bring(constants, v->key, &program->constants[i], &program->on_device[i]));
        TRY(base_poll(constants->context));
    }
    return constants->device->calls->synchronize(constants->device);
}

void load_free_there(loading *load)
{
    device *device = load->constants->device;
    for (int i = 0; load->there_owned != NULL && i < load->program->plan->value_count; i++)
        if (load->there_owned[i] != NULL && !load->there_roomed[i]) device->calls->release(device, load->there_owned[i], load->there_bytes[i]);
}
