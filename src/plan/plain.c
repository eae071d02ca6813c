/* Values that stay what they are made of between two steps: with few rows a product quantises its operand by itself, and does the norm in front of it, and the launch that would have done it
 * before is saved. The write of caches does norms of keys and queries in front of it, and attention of a token alone the write of that. Saved is also what would have taken the tokens that outputs are wanted of, where these are all. It is said of runs,
 * not in the graph: which numbers are multiplied, written or turned is the same. */
#include "plan/internal.h"

#include <string.h>

#include "pass/pass.h"

/* The step of a value's node; NULL: it has none. */
static const plan_step *maker_of(const ir_value *value) { return value->kind == IR_RESULT ? value->node->mark : NULL; }

static bool is_element(dw_format format) { return format == DW_FORMAT_bf16 || format == DW_FORMAT_f16; }

/* From 16 bits, by itself, scales as they come or searched for. */
static bool is_plainly_quantised(const ir_node *quantize) {
    return quantize->n_in == 1 && op_quantize_round(&quantize->attrs) != NUM_ROUND_FLOOR && is_element(ir_in(quantize, 0)->type.format);
}

static bool has_row_scales(const op_type *type) {
    return dw_format_is_block(type->format) && num_info(type->format)->rows == 1 && num_info(type->format)->second != 1;
}

/* Does the source's memory stay what it is until the product reads it? That of a state may be written in between. */
static bool is_kept(const plan_value *v) {
    while (v->view) v = v->base;
    return v->value->kind != IR_STATE && v->value->next_count == 0;
}

/* ---- norms ---- */

/* Where the residual would be. */
static int residual_of(const ir_node *norm) { return norm->op == OP_layer_norm ? 3 : 2; }

static const ir_value *column_of(const ir_node *norm, int i) { return i + 1 < residual_of(norm) && i + 1 < norm->n_in ? ir_in(norm, i + 1) : NULL; }

/* Its weight and bias lie side by side where no launch writes them, and its result is x's format or made of that. */
static bool is_plain_norm(const ir_node *node) {
    if ((node->op != OP_layer_norm && node->op != OP_rms_norm) || node->n_out != 1 || (node->n_in > residual_of(node) && ir_in(node, residual_of(node)) != NULL)) return false;
    const dw_format format = ir_in(node, 0)->type.format, to = ir_out(node)->type.format;
    for (int i = 0; i < 2; i++) {
        const ir_value *column = column_of(node, i);
        if (column != NULL && (plan_value_of(column)->view || !ir_is_constant(column))) return false;
    }
    return is_element(format) && (to == format || dw_format_is_block(to));
}

static void take_norm(const plan_binding *binding, const ir_node *node, kernel_norm *norm) {
    *norm = (kernel_norm){.centred = node->op == OP_layer_norm, .eps = op_attr_real(&node->attrs, OP_ATTR_eps)};
    for (int i = 0; i < 2; i++)
        if (column_of(node, i) != NULL) norm->columns[i] = &binding->tensors[plan_value_of(column_of(node, i))->index];
}

/* ---- which values ---- */

/* What the step that makes the value can be spared. */
static bool find_made(const plan_step *made, const plan_step *product, plan_plain *plain) {
    const ir_node *node = made->node;
    const bool may_quantise = has_row_scales(&ir_out(node)->type) && kernel_may_take_plain(product->row, product->ways, KERNEL_WAY_QUANTISES);
    plain->quantises = dw_format_is_block(ir_out(node)->type.format);
    if (plain->quantises && !may_quantise) return false;
    plain->searches = plain->quantises && op_quantize_round(&node->attrs) == NUM_ROUND_SEARCH;
    plain->normalises = is_plain_norm(node) && kernel_is_norm_of_products(made->row) && kernel_may_take_plain(product->row, product->ways, KERNEL_WAY_NORMALISES);
    if (node->op == OP_quantize || plain->normalises) {
        plain->source = plan_value_of(ir_in(node, 0));
        plain->format = plain->source->value->type.format;
        return is_kept(plain->source) && (plain->normalises || is_plainly_quantised(node));
    }
    if (!plain->quantises || !kernel_may_quantise_behind(made->row, made->ways, op_get(node->op))) return false;
    plain->format = op_via(&node->attrs);
    return is_element(plain->format);
}

/* Can value, operand 0 of the product's step, stay what it is made of? */
static bool find_plain(plan *plan, int read, plan_plain *plain) {
    const plan_step *product = &plan->steps[read];
    if (product->node->op != OP_matmul) return false;
    const ir_value *value = ir_in(product->node, 0);
    const plan_step *made = maker_of(value);
    if (made == NULL || made->at_load || made->at_update || made->row == NULL || value->result != 0 || value->use_count != 1 || plan_is_result(plan->graph, value)) return false;
    *plain = (plan_plain){.value = plan_value_of(value), .made = (int)(made - plan->steps), .read = read};
    return find_made(made, product, plain);
}

/* ---- what is taken of tokens ---- */

/* The last step that reads value or a view of it; -1: none. */
static int last_reader(const plan *plan, const ir_value *value) {
    int last = -1;
    for (const ir_use *use = value->uses; use != NULL; use = use->next) {
        const plan_step *step = use->node->mark;
        const int read = step != NULL ? (int)(step - plan->steps) : last_reader(plan, ir_out(use->node));
        if (read > last) last = read;
    }
    return last;
}

/* Is the step a take of the tokens that outputs are wanted of, which lists all in their order where it lists as many as there are? */
static bool find_taken(const plan *plan, int made, plan_plain *plain) {
    const ir_node *node = plan->steps[made].node;
    if (node->op != OP_take || ir_in(node, 1)->kind != IR_INPUT || strcmp(ir_in(node, 1)->name, STEP_INPUT_LAST) != 0) return false;
    if (dw_format_is_block(ir_out(node)->type.format) || plan_is_result(plan->graph, ir_out(node))) return false;
    *plain = (plan_plain){.value = plan_value_of(ir_out(node)), .source = plan_value_of(ir_in(node, 0)), .made = made, .takes = true};
    plain->format = plain->source->value->type.format;
    plain->read = last_reader(plan, ir_out(node));
    return plain->read >= 0 && is_kept(plain->source);
}

/* ---- norms in front of a write of caches ---- */

/* The value that operand is, or a view of, through views that nothing else reads; NULL: others read it. */
static const ir_value *seen_through(const plan *plan, const ir_value *operand) {
    while (operand->use_count == 1 && !plan_is_result(plan->graph, operand)) {
        if (!plan_value_of(operand)->view) return operand;
        operand = ir_in(operand->node, 0);
    }
    return NULL;
}

/* Where a value's memory begins is known to be at a multiple of 16 bytes: not so of a caller's. */
static bool is_our_own(const plan_value *v) {
    while (v->base != NULL) v = v->base;
    return v->place == PLAN_WORKSPACE || v->place == PLAN_STATE || v->place == PLAN_CONSTANT;
}

/* Of an update: whose and which the tokens are, and pages. */
static bool is_place(int operand) { return operand == UPDATE_ROW || operand == UPDATE_POSITION || operand == UPDATE_TABLE; }

static bool are_our_own(const ir_node *update) {
    for (int i = 0; i < update->n_in; i++)
        if (!is_place(i) && ir_in(update, i) != NULL && !is_our_own(plan_value_of(ir_in(update, i)))) return false;
    for (int i = 0; i < update->n_out; i++)
        if (!is_our_own(plan_value_of(update->out[i]))) return false;
    return true;
}

/* Is the operand of a cache_update's step what a norm of rows makes, whose source stays? */
static bool find_heads(const plan *plan, int read, int operand, plan_plain *plain) {
    const plan_step *update = &plan->steps[read];
    if (update->node->op != OP_cache_update || update->row == NULL || !kernel_may_normalise_heads(update->row) || operand >= update->node->n_in || ir_in(update->node, operand) == NULL) return false;
    const ir_value *value = seen_through(plan, ir_in(update->node, operand));
    const plan_step *made = value != NULL ? maker_of(value) : NULL;
    if (made == NULL || made->at_load || made->at_update || made->row == NULL || value->result != 0 || !kernel_is_norm_of_products(made->row) || !is_plain_norm(made->node)) return false;
    const ir_value *x = ir_in(made->node, 0);
    *plain = (plan_plain){.value = plan_value_of(value), .source = plan_value_of(x), .made = (int)(made - plan->steps), .read = read, .format = x->type.format, .heads = operand};
    return value->type.format == x->type.format && is_kept(plain->source);
}

/* ---- the write in front of attention ---- */

static const ir_value *operand_of(const ir_node *node, int i) { return i < node->n_in ? ir_in(node, i) : NULL; }

/* Is value what a write of the attention's own tokens makes, in the same pages? */
static bool is_added_to(const ir_node *attention, const ir_value *value) {
    const ir_node *write = value->kind == IR_RESULT ? value->node : NULL;
    if (write == NULL) return false;
    if (write->op != OP_cache_write && write->op != OP_cache_update) return false;
    const bool both = write->op == OP_cache_update;
    return operand_of(write, both ? (int)UPDATE_ROW : (int)CACHE_ROW) == ir_in(attention, ATTENTION_ROW) && operand_of(write, both ? (int)UPDATE_POSITION : (int)CACHE_POSITION) == ir_in(attention, ATTENTION_POSITION) &&
           operand_of(write, both ? (int)UPDATE_TABLE : (int)CACHE_TABLE) == operand_of(attention, ATTENTION_TABLE);
}

bool plan_adds_tokens(const ir_node *node) {
    if (node->op != OP_attention || node->n_in <= ATTENTION_POSITION || ir_in(node, ATTENTION_ROW) == NULL || ir_in(node, ATTENTION_POSITION) == NULL) return false;
    return is_added_to(node, ir_in(node, ATTENTION_K)) && is_added_to(node, ir_in(node, ATTENTION_V));
}

/* Is value result i of the update, for who reads it alone, and the caller and the next run at most? */
static bool is_result_of(const plan *plan, const ir_value *value, const ir_node *update, int i) {
    return value->kind == IR_RESULT && value->node == update && value->result == i && value->use_count == 1 && (i < 2 || !plan_is_result(plan->graph, value));
}

/* Does the attention of a step read what a write of its own tokens makes, which nothing else does? */
static bool find_written(const plan *plan, int read, plan_plain *plain) {
    const plan_step *attention = &plan->steps[read];
    if (attention->node->op != OP_attention || attention->row == NULL || !kernel_may_take_plain(attention->row, attention->ways, KERNEL_WAY_WRITES) || !plan_adds_tokens(attention->node)) return false;
    const ir_value *k = ir_in(attention->node, ATTENTION_K), *v = ir_in(attention->node, ATTENTION_V), *q = ir_in(attention->node, ATTENTION_Q);
    const ir_node *update = k->node;
    const plan_step *made = update->mark;
    if (update->op != OP_cache_update || made == NULL || made->row == NULL || !kernel_may_normalise_heads(made->row)) return false;
    if (!is_result_of(plan, k, update, 0) || !is_result_of(plan, v, update, 1) || (update->n_out > 2 && !is_result_of(plan, q, update, 2))) return false;
    *plain = (plan_plain){.value = plan_value_of(k), .made = (int)(made - plan->steps), .read = read, .writes = true};
    for (int i = UPDATE_KEYS; i < update->n_in; i++)
        if (!is_place(i) && ir_in(update, i) != NULL && !is_kept(plan_value_of(ir_in(update, i)))) return false;
    return true;
}

/* ---- what is quantised beside its plain form ---- */

/* Is the step a quantize of what a norm makes, which others read, too? */
static bool find_beside(const plan *plan, int read, plan_plain *plain) {
    const ir_node *node = plan->steps[read].node;
    const ir_value *x = node->op == OP_quantize ? ir_in(node, 0) : NULL;
    const plan_step *made = x != NULL ? maker_of(x) : NULL;
    if (made == NULL || made->at_load || made->at_update || x->use_count < 2 || !is_plain_norm(made->node) || dw_format_is_block(x->type.format)) return false;
    if (!is_plainly_quantised(node) || op_quantize_round(&node->attrs) == NUM_ROUND_SEARCH || op_has_level(&node->attrs) || plan_is_result(plan->graph, ir_out(node))) return false;
    for (int i = 0; i < plan->plain_count; i++)
        if (plan->plains[i].beside && plan->plains[i].made == made - plan->steps) return false;
    *plain = (plan_plain){.value = plan_value_of(ir_out(node)), .made = (int)(made - plan->steps), .read = read, .beside = true};
    plain->format = x->type.format;
    return true;
}

dw_status plan_find_plains(plan *plan) {
    plan->plain_count = 0;
    if (plan->chip.kind != CHIP_GPU) return DW_OK;
    TRY_NEW(plan->plains, &plan->arena, 5 * (size_t)plan->step_count + 1);
    for (int i = plan->step_count; i-- > plan->load_count;) {
        plan_plain plain;
        if (find_plain(plan, i, &plain)) {
            plain.value->may_be_plain = true;
            plan->plains[plan->plain_count++] = plain;
        }
        if (find_taken(plan, i, &plain)) {
            plan->plains[plan->plain_count] = plain;
            plain.value->taken = &plan->plains[plan->plain_count++];
        }
        if (find_beside(plan, i, &plain)) plan->plains[plan->plain_count++] = plain;
        if (find_written(plan, i, &plain)) plan->plains[plan->plain_count++] = plain;
        for (int operand = UPDATE_KEYS; operand <= UPDATE_QUERIES; operand += UPDATE_QUERIES - UPDATE_KEYS)
            if (find_heads(plan, i, operand, &plain)) {
                plan->plains[plan->plain_count] = plain;
                plain.value->taken = &plan->plains[plan->plain_count++];
            }
    }
    return DW_OK;
}

static void keep_till(plan_value *v, int order) {
    for (; v != NULL; v = v->view ? v->base : NULL)
        if (v->last_read < order) v->last_read = order;
}

int plan_reader_of(const plan *plan, int step) {
    for (int i = 0; i < plan->plain_count; i++)
        if (plan->plains[i].writes && plan->plains[i].made == step) return plan->plains[i].read;
    return step;
}

const ir_value *plan_written_operand(const plan *plan, const plan_plain *plain, int index) {
    const ir_node *update = plan->steps[plain->made].node;
    return plain->writes && index >= UPDATE_KEYS && index < update->n_in ? ir_in(update, index) : NULL;
}

/* Sources are read by the product, too, or by who reads what is taken of them; and so is what they are views of. Those that are read later are looked at first, as they may be made of others. */
void plan_keep_sources(plan *plan) {
    for (int i = 0; i < plan->plain_count; i++) {
        const plan_plain *plain = &plan->plains[i];
        const int reads = plan->steps[plan_reader_of(plan, plain->read)].node->order, order = plain->takes && plain->value->last_read > reads ? plain->value->last_read : reads;
        keep_till(plain->source, order);
        for (int k = 0; k < UPDATE_OPERANDS; k++)
            if (plan_written_operand(plan, plain, k) != NULL) keep_till(plan_value_of(plan_written_operand(plan, plain, k)), order);
    }
}

/* ---- at the sizes of a binding ---- */

/* A source whose memory runs otherwise than row by row is read by its own launch. */
static bool lies_row_by_row(const dw_tensor *tensor) {
    int64_t stride = 1;
    for (int i = tensor->rank - 1; i >= 0; i--) {
        if (tensor->dims[i] != 1 && tensor->strides[i] != stride) return false;
        stride *= tensor->dims[i];
    }
    return true;
}

/* Seconds of a step by itself, at the sizes of the binding. */
static double seconds_of(const plan_binding *binding, int index) {
    const plan_step *step = &binding->plan->steps[index];
    const op_type *in[KERNEL_MAX_OPERANDS], *out[KERNEL_MAX_RESULTS];
    kernel_problem problem;
    plan_problem(binding->plan, step, in, out, &problem);
    problem.symbols = binding->symbols;
    problem.user = step->row->user;
    return kernel_run_seconds(step->row, &problem, &binding->calls[index].run);
}

/* tensor: what the value is then. norm: which the product does, or NULL. */
static bool stays_plain(const plan_binding *binding, const plan_plain *plain, const dw_tensor *tensor, const kernel_norm *norm) {
    const plan *plan = binding->plan;
    const plan_step *made = &plan->steps[plain->made], *read = &plan->steps[plain->read];
    const kernel_plain asked = {.operand = tensor, .quantises = plain->quantises, .searches = plain->searches, .norm = norm, .saved = norm != NULL ? seconds_of(binding, plain->made) : 0};
    if (plain->value->base != NULL) return false;
    if (plain->source != NULL ? !lies_row_by_row(&binding->tensors[plain->source->index]) : !kernel_quantises_behind(made->row, &binding->calls[plain->made].run)) return false;
    return kernel_takes_plain(read->row, &binding->calls[plain->read].run, &asked);
}

static dw_status bytes_of(const plan_binding *binding, const plan_plain *plain, const dw_tensor *tensor, size_t *bytes) {
    num_parts parts;
    if (!num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts))
        return base_fail(binding->context, DW_LIMIT, "the bytes of %%%d overflow at these sizes", plain->value->value->id);
    *bytes = parts.total_bytes;
    return DW_OK;
}

static void leave_plain(plan_binding *binding, const plan_plain *plain, dw_tensor *tensor, const kernel_norm *norm) {
    kernel_run *made = &binding->calls[plain->made].run, *read = &binding->calls[plain->read].run;
    read->quantises = plain->quantises;
    read->quantised = tensor->format;
    read->searches = plain->searches;
    read->norm = norm;
    made->passes = plain->source != NULL;
    made->leaves_plain = plain->source == NULL;
    op_tensor_init(tensor, plain->format, DW_SCALE_plain, tensor->rank, tensor->dims, NULL);
}

/* Is what is taken all of its source, and does it lie as that does? */
static bool takes_all(const plan_binding *binding, const plan_plain *plain) {
    const dw_tensor *all = &binding->tensors[plain->source->index], *taken = &binding->tensors[plain->value->index];
    if (binding->holds_values || all->rank != taken->rank) return false;
    for (int i = 0; i < all->rank; i++)
        if (all->dims[i] != taken->dims[i] || (all->dims[i] != 1 && all->strides[i] != taken->strides[i])) return false;
    return true;
}

/* From the norm's value to the operand: views of the value. */
enum { HEAD_VIEWS = 8 };
typedef struct head_views { const plan_value *values[HEAD_VIEWS]; dw_tensor tensors[HEAD_VIEWS]; size_t offsets[HEAD_VIEWS]; int count; } head_views;

/* Is the last axis a norm's row, side by side? A view of such that has no other last axis takes rows as a whole. */
static bool has_rows(const dw_tensor *tensor, int64_t cols) { return tensor->dims[tensor->rank - 1] == cols && tensor->strides[tensor->rank - 1] == 1; }

/* The same views of what the norm reads. *is_one: they are that, and rows are whole in each of them. */
static dw_status see_heads(const plan_binding *binding, const plan_plain *plain, head_views *views, bool *is_one) {
    const ir_node *update = binding->plan->steps[plain->read].node;
    dw_tensor base = binding->tensors[plain->source->index];
    const int64_t cols = base.dims[base.rank - 1];
    views->count = 0;
    *is_one = false;
    for (const plan_value *v = plan_value_of(ir_in(update, plain->heads)); v != plain->value; v = v->base) {
        if (views->count == HEAD_VIEWS) return DW_OK;
        views->values[views->count++] = v;
    }
    for (int i = views->count; i-- > 0;) {
        TRY(plan_see_view(binding, views->values[i], &base, &views->tensors[i], &views->offsets[i], is_one));
        if (!*is_one) return DW_OK;
        *is_one = has_rows(&base, cols) && has_rows(&views->tensors[i], cols);
        if (!*is_one) return DW_OK;
        base = views->tensors[i];
    }
    *is_one = base.rank == 4 && has_rows(&base, cols);
    return DW_OK;
}

/* How far the operand's first byte is from its memory's, with the views of what the norm reads; its memory is nominal while sizes are bound. */
static size_t head_offset(const plan_binding *binding, const plan_plain *plain, const head_views *views) {
    size_t offset = 0;
    for (int i = 0; i < views->count; i++) offset += views->offsets[i];
    for (const plan_value *v = plain->source; v->view; v = v->base) offset += binding->offsets[v->index];
    return offset;
}

/* An operand at the address that it has beside its memory's first byte. */
static dw_tensor placed_operand(const plan_binding *binding, const ir_value *value) {
    dw_tensor tensor = binding->tensors[plan_value_of(value)->index];
    const plan_value *v = plan_value_of(value);
    size_t offset = 0;
    while (v->view || (v->taken != NULL && binding->calls[v->taken->made].run.passes)) {
        offset += v->view ? binding->offsets[v->index] : 0;
        v = v->view ? v->base : v->taken->source;
    }
    tensor.data = (uint8_t *)4096 + offset;
    return tensor;
}

/* All operands of a node so, as the call that looks at them has them. */
static void place_operands(const plan_binding *binding, const ir_node *node, dw_tensor *placed, const dw_tensor **in) {
    for (int i = 0; i < node->n_in; i++) {
        in[i] = NULL;
        if (ir_in(node, i) == NULL) continue;
        placed[i] = placed_operand(binding, ir_in(node, i));
        in[i] = &placed[i];
    }
}

/* The update does the norm where its kernel can: of a value that has no other memory than its source's then. */
static dw_status bind_heads(plan_binding *binding, const plan_plain *plain) {
    const plan *plan = binding->plan;
    plan_call *made = &binding->calls[plain->made], *read = &binding->calls[plain->read];
    const int which = plain->heads == UPDATE_QUERIES;
    const ir_node *update = plan->steps[plain->read].node;
    const dw_tensor *in[UPDATE_OPERANDS] = {NULL};
    kernel_run run = read->run;
    head_views views;
    dw_tensor operand, placed[UPDATE_OPERANDS];
    bool is_one;
    made->run.passes = false;
    if (binding->holds_values || plain->value->base != NULL || !is_our_own(plain->source) || !are_our_own(plan->steps[plain->read].node)) return DW_OK;
    TRY(see_heads(binding, plain, &views, &is_one));
    if (!is_one) return DW_OK;
    take_norm(binding, plan->steps[plain->made].node, &read->heads[which]);
    operand = views.count > 0 ? views.tensors[0] : binding->tensors[plain->source->index];
    operand.data = (uint8_t *)4096 + head_offset(binding, plain, &views);
    place_operands(binding, update, placed, in);
    in[plain->heads] = &operand;
    run.call.in = in;
    run.heads[which] = &read->heads[which];
    if (!kernel_normalises_heads(plan->steps[plain->read].row, &run)) return DW_OK;
    read->run.heads[which] = &read->heads[which];
    made->run.passes = true;
    binding->tensors[plain->value->index] = binding->tensors[plain->source->index];
    for (int i = 0; i < views.count; i++) {
        binding->tensors[views.values[i]->index] = views.tensors[i];
        binding->offsets[views.values[i]->index] = views.offsets[i];
    }
    return DW_OK;
}

/* Attention does the write in front of it where its kernel can. Addresses are nominal while sizes are bound. */
static void bind_written(plan_binding *binding, const plan_plain *plain) {
    const plan *plan = binding->plan;
    const ir_node *update = plan->steps[plain->made].node, *attention = plan->steps[plain->read].node;
    kernel_run *made = &binding->calls[plain->made].run, *read = &binding->calls[plain->read].run, write = *made, run = *read;
    dw_tensor placed[UPDATE_OPERANDS], results[3], operands[ATTENTION_OPERANDS];
    const dw_tensor *in[UPDATE_OPERANDS] = {NULL}, *out[3], *attended[ATTENTION_OPERANDS] = {NULL};
    if (binding->holds_values || made->passes || !read->adds_tokens || !are_our_own(update) || !is_our_own(plan_value_of(ir_in(attention, ATTENTION_Q)))) return;
    place_operands(binding, update, placed, in);
    for (int i = 0; i < update->n_out; i++) {
        results[i] = placed_operand(binding, update->out[i]);
        out[i] = &results[i];
    }
    place_operands(binding, attention, operands, attended);
    write.call.in = in;
    write.call.out = out;
    run.call.in = attended;
    if (!kernel_does_write(plan->steps[plain->read].row, &run, &write, seconds_of(binding, plain->made))) return;
    read->write = made;
    made->passes = true;
}

/* The norm's results: its own one alone, or that in blocks in front of it. */
static void set_beside(plan_binding *binding, const plan_plain *plain, bool both) {
    plan_call *made = &binding->calls[plain->made], *quantize = &binding->calls[plain->read];
    dw_tensor *blocks = &binding->tensors[plain->value->index], *own = &binding->tensors[plan_value_of(ir_out(binding->plan->steps[plain->made].node))->index];
    made->out[0] = both ? blocks : own;
    made->out[1] = own;
    made->run.call.n_out = both ? 2 : 1;
    made->run.quantises_beside = quantize->run.quantises_beside = quantize->run.passes = both;
}

/* Once it is known who quantises for itself: then neither this norm nor its quantize has anything to do here. */
static bool writes_both(const plan_binding *binding, const plan_plain *plain) {
    const plan *plan = binding->plan;
    const kernel_run *made = &binding->calls[plain->made].run;
    if (binding->holds_values || made->passes || made->leaves_plain || binding->calls[plain->read].run.passes || plain->value->place != PLAN_WORKSPACE || plain->value->base != NULL) return false;
    return lies_row_by_row(made->call.out[0]) && kernel_writes_both(plan->steps[plain->made].row, made, plan->steps[plain->read].row);
}

dw_status plan_bind_plains(plan_binding *binding, bool *moved) {
    for (int i = 0; i < binding->plan->plain_count; i++) {
        const plan_plain *plain = &binding->plan->plains[i];
        if (plain->beside) set_beside(binding, plain, false);
        if (plain->takes) binding->calls[plain->made].run.passes = takes_all(binding, plain);
        if (plain->heads != 0) binding->calls[plain->read].run.heads[plain->heads == UPDATE_QUERIES] = NULL;
        if (plain->writes) binding->calls[plain->made].run.passes = false;
        if (plain->writes) binding->calls[plain->read].run.write = NULL;
    }
    for (int i = 0; i < binding->plan->plain_count; i++) {
        const plan_plain *plain = &binding->plan->plains[i];
        if (plain->takes || plain->beside || plain->writes) continue;
        if (plain->heads != 0) {
            TRY(bind_heads(binding, plain));
            continue;
        }
        plan_call *made = &binding->calls[plain->made], *read = &binding->calls[plain->read];
        dw_tensor *tensor = &binding->tensors[plain->value->index], other;
        size_t bytes = 0;
        made->run.passes = made->run.leaves_plain = read->run.quantises = read->run.searches = false;
        read->run.norm = NULL;
        op_tensor_init(&other, plain->format, DW_SCALE_plain, tensor->rank, tensor->dims, NULL);
        if (plain->normalises) take_norm(binding, binding->plan->steps[plain->made].node, &read->norm);
        if (!binding->holds_values && stays_plain(binding, plain, &other, plain->normalises ? &read->norm : NULL)) leave_plain(binding, plain, tensor, plain->normalises ? &read->norm : NULL);
        TRY(bytes_of(binding, plain, tensor, &bytes));
        if (binding->bytes[plain->value->index] != bytes) *moved = true;
        binding->bytes[plain->value->index] = bytes;
    }
    for (int i = 0; i < binding->plan->plain_count; i++)
        if (binding->plan->plains[i].writes) bind_written(binding, &binding->plan->plains[i]);
    for (int i = 0; i < binding->plan->plain_count; i++)
        if (binding->plan->plains[i].beside && writes_both(binding, &binding->plan->plains[i])) set_beside(binding, &binding->plan->plains[i], true);
    return DW_OK;
}

size_t plan_plain_room(const plan_value *value, size_t bytes) {
    int64_t cols;
    const op_type *type = &value->value->type;
    if (bytes == 0 || !dim_is_constant(type->dims[type->rank - 1], &cols)) return bytes;
    const size_t plain = (size_t)KERNEL_QUANTISES_ROWS * (size_t)cols * 2;
    return plain > bytes ? plain : bytes;
}
