/* Values in blocks that stay plain between two steps: with few rows a product quantises its operand by itself, and the launch that would have done it before is saved. It is said of runs, not in
 * the graph: which numbers are multiplied is the same. */
#include "plan/internal.h"

/* The step of a value's node; NULL: it has none. */
static const plan_step *maker_of(const ir_value *value) { return value->kind == IR_RESULT ? value->node->mark : NULL; }

static bool is_element(dw_format format) { return format == DW_FORMAT_bf16 || format == DW_FORMAT_f16; }

/* From 16 bits, by itself, scales as they come or searched for. */
static bool is_plainly_quantised(const ir_node *quantize) {
    return quantize->n_in == 1 && op_quantize_round(&quantize->attrs) != NUM_ROUND_FLOOR && is_element(ir_in(quantize, 0)->type.format);
}

static bool has_row_scales(const op_type *type) {
    return dw_format_is_block(type->format) && type->scale_layout == DW_SCALE_plain && num_info(type->format)->rows == 1 && num_info(type->format)->second != 1;
}

/* Does the source's memory stay what it is until the product reads it? That of a state may be written in between. */
static bool is_kept(const plan_value *v) {
    while (v->view) v = v->base;
    return v->value->kind != IR_STATE && v->value->next_count == 0;
}

/* Can value, operand 0 of the product's step, come plain? */
static bool find_plain(plan *plan, int read, plan_plain *plain) {
    const plan_step *product = &plan->steps[read];
    if (product->node->op != OP_matmul) return false;
    const ir_value *value = ir_in(product->node, 0);
    const plan_step *made = maker_of(value);
    if (made == NULL || made->at_load || made->row == NULL || value->result != 0 || value->use_count != 1) return false;
    if (plan_is_result(plan->graph, value) || !has_row_scales(&value->type) || !kernel_may_quantise_operand(product->row, product->ways)) return false;
    *plain = (plan_plain){.value = plan_value_of(value), .made = (int)(made - plan->steps), .read = read};
    if (made->node->op == OP_quantize) {
        plain->source = plan_value_of(ir_in(made->node, 0));
        plain->format = plain->source->value->type.format;
        plain->searches = op_quantize_round(&made->node->attrs) == NUM_ROUND_SEARCH;
        return is_plainly_quantised(made->node) && is_kept(plain->source);
    }
    plain->format = op_via(&made->node->attrs);
    return kernel_may_quantise_behind(made->row, made->ways, op_get(made->node->op)) && is_element(plain->format);
}

dw_status plan_find_plains(plan *plan) {
    plan->plain_count = 0;
    if (plan->chip.kind != CHIP_GPU) return DW_OK;
    TRY_NEW(plan->plains, &plan->arena, plan->step_count);
    for (int i = plan->load_count; i < plan->step_count; i++) {
        plan_plain plain;
        if (!find_plain(plan, i, &plain)) continue;
        plain.value->may_be_plain = true;
        plan->plains[plan->plain_count++] = plain;
    }
    return DW_OK;
}

/* Sources are read by the product, too; and so is what they are views of. */
void plan_keep_sources(plan *plan) {
    for (int i = 0; i < plan->plain_count; i++) {
        const int order = plan->steps[plan->plains[i].read].node->order;
        for (plan_value *v = plan->plains[i].source; v != NULL; v = v->view ? v->base : NULL)
            if (v->last_read < order) v->last_read = order;
    }
}

/* A source whose memory runs otherwise than row by row is quantised by its own launch. */
static bool lies_row_by_row(const dw_tensor *tensor) {
    int64_t stride = 1;
    for (int i = tensor->rank - 1; i >= 0; i--) {
        if (tensor->dims[i] != 1 && tensor->strides[i] != stride) return false;
        stride *= tensor->dims[i];
    }
    return true;
}

static bool stays_plain(const plan_binding *binding, const plan_plain *plain, const dw_tensor *tensor) {
    const plan *plan = binding->plan;
    const plan_step *made = &plan->steps[plain->made], *read = &plan->steps[plain->read];
    if (plain->value->base != NULL) return false;
    if (plain->source != NULL ? !lies_row_by_row(&binding->tensors[plain->source->index]) : !kernel_quantises_behind(made->row, &binding->calls[plain->made].run)) return false;
    return kernel_quantises_operand(read->row, &binding->calls[plain->read].run, tensor, plain->searches);
}

static dw_status bytes_of(const plan_binding *binding, const plan_plain *plain, const dw_tensor *tensor, size_t *bytes) {
    num_parts parts;
    if (!num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts))
        return base_fail(binding->context, DW_LIMIT, "the bytes of %%%d overflow at these sizes", plain->value->value->id);
    *bytes = parts.total_bytes;
    return DW_OK;
}

dw_status plan_bind_plains(plan_binding *binding, bool *moved) {
    for (int i = 0; i < binding->plan->plain_count; i++) {
        const plan_plain *plain = &binding->plan->plains[i];
        kernel_run *made = &binding->calls[plain->made].run, *read = &binding->calls[plain->read].run;
        dw_tensor *tensor = &binding->tensors[plain->value->index], other;
        size_t bytes = 0;
        made->passes = made->leaves_plain = read->quantises = false;
        op_tensor_init(&other, plain->format, DW_SCALE_plain, tensor->rank, tensor->dims, NULL);
        if (!binding->holds_blocks && stays_plain(binding, plain, &other)) {
            read->quantises = true;
            read->quantised = tensor->format;
            read->searches = plain->searches;
            made->passes = plain->source != NULL;
            made->leaves_plain = plain->source == NULL;
            *tensor = other;
        }
        TRY(bytes_of(binding, plain, tensor, &bytes));
        if (binding->bytes[plain->value->index] != bytes) *moved = true;
        binding->bytes[plain->value->index] = bytes;
    }
    return DW_OK;
}

size_t plan_plain_room(const plan_value *value, size_t bytes) {
    int64_t cols;
    const op_type *type = &value->value->type;
    if (bytes == 0 || !dim_is_constant(type->dims[type->rank - 1], &cols)) return bytes;
    const size_t plain = (size_t)KERNEL_QUANTISES_ROWS * (size_t)cols * 2;
    return plain > bytes ? plain : bytes;
}
