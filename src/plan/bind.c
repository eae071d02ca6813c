/* Binds a plan to sizes: concrete shapes, strides and offsets, and calls that need only base pointers to run. */
#include "plan/internal.h"

#include <string.h>

/* Those that only loading and updates write. */
static unsigned constant_operands(const plan_step *step)
{
    const ir_node *node = step->node;
    unsigned constant = 0;
    for (int i = 0; i < node->n_in && i < 32; i++)
        if (ir_in(node, i) && plan_value_of(ir_in(node, i))->key != NULL) constant |= 1u << i;
    return constant;
}

static unsigned given_operands(const ir_node *node)
{
    unsigned given = 0;
    for (int i = 0; i < node->n_in && i < 32; i++) {
        const plan_value *v = ir_in(node, i) != NULL ? plan_value_of(ir_in(node, i)) : NULL;
        while (v != NULL && v->view) v = v->base;
        if (v != NULL && v->value->kind == IR_INPUT) given |= 1u << i;
    }
    return given;
}

/* Is value a state's memory? */
static bool is_in_state(const ir_value *value)
{
    const plan_value *v = plan_value_of(value);
    return !v->view && v->base != NULL && v->base->value->kind == IR_STATE;
}

static bool adds_in_place(const ir_node *node) { return plan_adds_tokens(node) && is_in_state(ir_in(node, ATTENTION_K)) && is_in_state(ir_in(node, ATTENTION_V)); }

static dw_status make_call(plan_binding *binding, const plan_step *step, plan_call *call)
{
    const ir_node *node = step->node;
    TRY_NEW(call->in, &binding->arena, node->n_in + 1);
    TRY_NEW(call->out, &binding->arena, node->n_out + 1);   /* a norm may make one more (plain.c) */
    for (int i = 0; i < node->n_in; i++)
        call->in[i] = ir_in(node, i) ? &binding->tensors[plan_value_of(ir_in(node, i))->index] : NULL;
    for (int i = 0; i < node->n_out; i++) call->out[i] = &binding->tensors[plan_value_of(node->out[i])->index];
    call->run = (kernel_run){
        .call = {.context = binding->context, .op = op_get(node->op), .attrs = &node->attrs, .symbols = binding->symbols,
                 .n_in = node->n_in, .in = call->in, .n_out = node->n_out, .out = call->out},
        .post = step->post, .constant_in = constant_operands(step), .given_in = given_operands(node), .adds_tokens = adds_in_place(node), .tuned = step->tuned, .tuned_count = step->tuned_count, .is_packed = step->packing != NULL, .chip = &binding->plan->chip, .ways = step->ways, .invariant = binding->plan->invariant, .user = step->row->user,
    };
    return DW_OK;
}

static dw_status create(plan_binding *binding)
{
    const plan *plan = binding->plan;
    TRY_NEW(binding->symbols, &binding->arena, dim_symbol_count(plan->graph->dims) + 1);
    TRY_NEW(binding->tensors, &binding->arena, plan->value_count);
    TRY_NEW(binding->offsets, &binding->arena, plan->value_count);
    TRY_NEW(binding->bytes, &binding->arena, plan->value_count);
    TRY_NEW(binding->order, &binding->arena, plan->value_count);
    TRY_NEW(binding->calls, &binding->arena, plan->step_count);
    for (int i = 0; i < plan->step_count; i++) TRY(make_call(binding, &plan->steps[i], &binding->calls[i]));
    return DW_OK;
}

dw_status plan_binding_create(dw_context *context, const plan *plan, plan_binding *binding)
{
    *binding = (plan_binding){.context = context, .plan = plan};
    arena_init(&binding->arena, context);
    dw_status status = create(binding);
    if (status != DW_OK) plan_binding_destroy(binding);
    return status;
}

void plan_binding_destroy(plan_binding *binding)
{
    arena_free(&binding->arena);
    *binding = (plan_binding){0};
}

/* Row-major strides along the order in which the value's memory runs. */
static void set_layout(const plan_value *v, dw_tensor *tensor)
{
    int64_t stride = 1;
    for (int i = tensor->rank - 1; i >= 0; i--) {
        int64_t axis = v->layout[i];
        tensor->strides[axis] = stride;
        stride *= tensor->dims[axis];
    }
}

static dw_status bind_view(plan_binding *binding, const plan_value *v)
{
    bool is_one;
    TRY(plan_see_view(binding, v, &binding->tensors[v->base->index], &binding->tensors[v->index], &binding->offsets[v->index], &is_one));
    if (is_one) return DW_OK;
    return base_fail(binding->context, DW_INTERNAL, "no strides express view %%%d (%s) at these sizes", v->value->id, op_get(v->value->node->op)->name);
}

static dw_status bind_values(plan_binding *binding, size_t *bytes, bool *moved)
{
    const plan *plan = binding->plan;
    for (int i = 0; i < plan->value_count; i++) {
        const plan_value *v = &plan->values[i];
        dw_tensor *tensor = &binding->tensors[i];
        if (v->view) {
            TRY(bind_view(binding, v));
            continue;
        }
        TRY(op_tensor_bind(binding->context, &v->value->type, binding->symbols, NULL, tensor));
        if (v->layout != NULL) set_layout(v, tensor);
        if (v->base != NULL) binding->offsets[i] = 0;
        if (v->may_be_plain) continue;
        num_parts parts;
        if (!num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts))
            return base_fail(binding->context, DW_LIMIT, "the bytes of %%%d overflow at these sizes", v->value->id);
        if (bytes[i] != parts.total_bytes) *moved = true;
        bytes[i] = parts.total_bytes;
    }
    return DW_OK;
}

static bool serves(const plan_layout *layout, const size_t *bytes)
{
    for (int i = 0; layout != NULL && i < layout->plan->value_count; i++)
        if (plan_needs_place(&layout->plan->values[i]) && bytes[i] > layout->bytes[i]) return false;
    return layout != NULL;
}

static void place(plan_binding *binding)
{
    const plan_layout *layout = binding->layout;
    if (!serves(layout, binding->bytes)) {
        plan_place_values(binding->plan, binding->bytes, binding->order, binding->offsets, &binding->value_bytes);
        return;
    }
    for (int i = 0; i < binding->plan->value_count; i++)
        if (plan_needs_place(&binding->plan->values[i])) binding->offsets[i] = layout->offsets[i];
    binding->value_bytes = layout->value_bytes;
}

dw_status plan_bind(plan_binding *binding, const int64_t *symbols)
{
    const plan *plan = binding->plan;
    size_t *bytes = binding->bytes;
    bool moved = !binding->bound;
    for (int i = 0; i < dim_symbol_count(plan->graph->dims); i++) TRY(plan_check_size(binding->context, plan->graph, i, symbols[i]));
    binding->bound = false;
    memcpy(binding->symbols, symbols, (size_t)dim_symbol_count(plan->graph->dims) * sizeof *symbols);
    TRY(bind_values(binding, bytes, &moved));
    TRY(plan_bind_plains(binding, &moved));
    if (moved) place(binding);
    binding->bound = true;
    return DW_OK;
}

/* The first byte of the memory that v is in, or NULL when v is nowhere. Its base, which comes before it, is attached already, and so is what all of it is taken of. */
static uint8_t *memory_of(const plan_binding *binding, const plan_bases *bases, const plan_value *v)
{
    if (v->taken != NULL && binding->calls[v->taken->made].run.passes) return binding->tensors[v->taken->source->index].data;
    if (v->base != NULL) {
        uint8_t *memory = binding->tensors[v->base->index].data;
        return memory && v->view ? memory + binding->offsets[v->index] : memory;
    }
    switch (v->place) {
    case PLAN_WORKSPACE: return v->first >= 0 && bases->workspace ? bases->workspace + binding->offsets[v->index] : NULL;
    case PLAN_INPUT:     return bases->inputs[v->slot];
    case PLAN_OUTPUT:    return bases->outputs[v->slot];
    case PLAN_STATE:     return bases->states[v->slot];
    case PLAN_CONSTANT:  return bases->constants[v->index].data;
    case PLAN_NOWHERE:
    case PLAN_PLACE_COUNT: break;
    }
    return NULL;
}

void plan_attach(plan_binding *binding, const plan_bases *bases)
{
    const plan *plan = binding->plan;
    for (int i = 0; i < plan->value_count; i++) {
        const plan_value *v = &plan->values[i];
        dw_tensor *tensor = &binding->tensors[i];
        if (v->place == PLAN_CONSTANT && !v->view && v->base == NULL) {
            *tensor = bases->constants[i];
            continue;
        }
        uint8_t *memory = memory_of(binding, bases, v);
        if (dw_format_is_block(tensor->format) && memory != NULL)
            op_tensor_init(tensor, tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, memory);
        else
            tensor->data = memory;
    }
    for (int i = 0; i < plan->plain_count; i++) {
        const plan_plain *plain = &plan->plains[i];
        if (plain->source != NULL && !plain->takes && binding->calls[plain->made].run.passes && !binding->calls[plain->made].run.quantises_beside) binding->tensors[plain->value->index].data = binding->tensors[plain->source->index].data;
    }
    for (int i = plan->load_count; i < plan->step_count; i++) {
        kernel_run *run = &binding->calls[i].run;
        run->packed = bases->packed ? bases->packed[i] : NULL;
        run->workspace = bases->workspace ? bases->workspace + base_align_up(binding->value_bytes, 64) : NULL;
        run->pool = bases->pool;
    }
}

void plan_size_scratch(plan_binding *binding, pool *pool, kernel_comm *comm)
{
    const plan *plan = binding->plan;
    binding->scratch_bytes = 0;
    for (int i = plan->load_count; i < plan->step_count; i++) {
        kernel_run *run = &binding->calls[i].run;
        run->pool = pool;
        run->comm = comm;
        run->step = (uint32_t)(i - plan->load_count + 1);
        const size_t bytes = kernel_workspace(plan->steps[i].row, run);
        if (bytes > binding->scratch_bytes) binding->scratch_bytes = bytes;
    }
}

dw_status plan_print_memory(const plan_binding *binding, text *text)
{
    const plan *plan = binding->plan;
    const size_t *bytes = binding->bytes;
    for (int i = 0; i < plan->value_count; i++) {
        const plan_value *v = &plan->values[i];
        if (v->place != PLAN_WORKSPACE || v->base != NULL || v->first < 0) continue;
        text_printf(text, "  @0x%08zx %10zu bytes  steps %d..%d  %%%d %s\n", binding->offsets[i], bytes[i], v->first - plan->load_count + 1,
                    v->last - plan->load_count + 1, v->value->id, op_get(v->value->node->op)->name);
    }
    return text_status(text);
}
