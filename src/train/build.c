/* The graphs of a trainer: the loss, its gradients, and what a step makes of them.
 *
 *     accumulate 1:   micro   inputs -> loss, norm; parameters and what optimisers keep change in the same run
 *     else:           micro   inputs -> loss; states grad.<parameter> become sums, which products of weights' gradients add to as they make them
 *                     update  those states -> norm; parameters change
 *     optimiser none: micro   inputs -> loss, norm; states grad.<parameter> are for the caller
 *
 * A step changes nothing where the norm or the loss is not finite: its factor is NaN then, and optimisers keep what was. */
#include "train/train.h"

#include <math.h>
#include <string.h>

/* A parameter that is trained. */
typedef struct pair { ir_value *param, *gradient; } pair;
typedef struct pairs { size_t count; pair *items; } pairs;

static bool is_gradient(const char *output) { return strncmp(output, TRAIN_GRADIENT, strlen(TRAIN_GRADIENT)) == 0; }

/* ---- masters ---- */

static bool is_half(const ir_value *param, const char *trained) {
    const bool is_16_bits = param->type.format == DW_FORMAT_bf16 || param->type.format == DW_FORMAT_f16;
    return is_16_bits && !ir_is_made(param) && param->weight != NULL && !param->weight->buffer && (trained == NULL || pass_is_listed(trained, param->name));
}

static dw_status widen(ir_weights *masters, const ir_weight *from, ir_weight **master) {
    const dw_tensor *tensor = &from->tensor;
    int64_t index[DW_MAX_RANK] = {0};
    if (from->place != NULL) return base_fail(masters->context, DW_UNSUPPORTED, "parameter %s lies in the memory of %s: give it in the host's memory to train it", from->name, from->place);
    TRY(ir_weights_new(masters, from->name, DW_FORMAT_f32, tensor->rank, tensor->dims, master));
    for (int64_t left = op_tensor_count(tensor); left > 0; left--, op_tensor_next(tensor, index)) op_tensor_store(&(*master)->tensor, index, op_tensor_load(tensor, index));
    return DW_OK;
}

/* param w bf16[..]          param w f32[..]
 * .. w ..             ->    %1 = cast w {to=bf16}; .. %1 .. */
static dw_status add_master(ir_graph *graph, ir_value *param, ir_weights *masters) {
    const dw_format format = param->type.format;
    ir_weight *master;
    ir_value *rounded;
    const op_attr to = op_set_format(OP_ATTR_to, format);
    TRY(widen(masters, param->weight, &master));
    param->type.format = DW_FORMAT_f32;
    param->weight = master;
    if (graph->first != NULL) ir_cursor_before(graph, graph->first);
    graph->origin = (ir_origin){0};
    TRY(ir_emit(graph, OP_cast, 1, &param, 1, &to, &rounded));
    ir_replace(graph, param, rounded);
    ir_set_operand(rounded->node, 0, param);
    ir_cursor_end(graph);
    return DW_OK;
}

static dw_status add_masters(ir_graph *graph, const dw_trainer_options *options, ir_weights *masters, bool *has_f16) {
    *has_f16 = false;
    for (size_t i = 0; i < graph->param_count; i++) {
        ir_value *param = graph->params[i];
        if (!is_half(param, options->trained)) continue;
        *has_f16 = *has_f16 || param->type.format == DW_FORMAT_f16;
        TRY(add_master(graph, param, masters));
    }
    ir_renumber(graph);
    return DW_OK;
}

/* ---- the loss ---- */

static bool is_real(const ir_value *value) { return num_info(value->type.format)->class == NUM_FLOAT && dw_format_bits(value->type.format) >= 16; }

static bool is_number(const ir_value *value) {
    int64_t size;
    for (int i = 0; i < value->type.rank; i++)
        if (!dim_is_constant(value->type.dims[i], &size) || size != 1) return false;
    return is_real(value);
}

static dw_status fail_loss(const ir_graph *graph, dw_status code, const char *what) {
    text words;
    text_init(&words, graph->context);
    for (size_t i = 0; i < graph->output_count; i++) {
        text_printf(&words, "%s%s ", i > 0 ? ", " : "", graph->outputs[i].name);
        op_type_print(&words, graph->dims, &graph->outputs[i].value->type);
    }
    const dw_status status = base_fail(graph->context, code, "graph '%s' %s; its outputs are %s", graph->name, what, graph->output_count > 0 ? text_string(&words) : "none");
    text_free(&words);
    return status;
}

static dw_status find_loss(const ir_graph *graph, const char *name, const char **loss) {
    int count = 0;
    for (size_t i = 0; i < graph->output_count; i++) {
        const ir_output *output = &graph->outputs[i];
        const bool is_it = name != NULL ? strcmp(output->name, name) == 0 : is_number(output->value) && !is_gradient(output->name);
        if (!is_it) continue;
        if (!is_number(output->value)) return fail_loss(graph, DW_INVALID, "has more than one number, or none that is floating-point, in what is named as the loss");
        *loss = output->name;
        count++;
    }
    if (count == 1) return DW_OK;
    if (count > 1) return fail_loss(graph, DW_INVALID, "has several outputs that are one floating-point number: name the loss");
    if (name != NULL) return fail_loss(graph, DW_NOT_FOUND, "has no output of the name that the loss was given");
    return fail_loss(graph, DW_INVALID, "has no loss, an output that is one floating-point number: export the model with its loss, or ask for next-token");
}

/* The only floating-point output, at least [..,v]. */
static dw_status find_logits(const ir_graph *graph, ir_value **logits) {
    *logits = NULL;
    for (size_t i = 0; i < graph->output_count; i++) {
        ir_value *value = graph->outputs[i].value;
        if (!is_real(value)) continue;
        if (*logits != NULL) return fail_loss(graph, DW_INVALID, "has several floating-point outputs, and the loss next-token is of the only one, logits");
        *logits = value;
    }
    if (*logits == NULL || (*logits)->type.rank < 2) return fail_loss(graph, DW_INVALID, "has no logits [..,v], a floating-point output, to take the loss next-token of");
    return DW_OK;
}

/* The mean cross entropy over labels from 0 on; others are ignored. */
static dw_status add_next_token(ir_graph *graph, const char **name) {
    ir_value *logits, *labels, *zero, *hidden, *counts, *index, *rows, *sum, *count, *one, *loss;
    TRY(find_logits(graph, &logits));
    op_type type = {.format = DW_FORMAT_i64, .rank = logits->type.rank - 1};
    int64_t axes[DW_MAX_RANK];
    for (int i = 0; i < type.rank; i++) {
        type.dims[i] = logits->type.dims[i];
        axes[i] = i;
    }
    ir_cursor_end(graph);
    graph->origin = (ir_origin){0};
    TRY(ir_intern(graph, "next_token", &graph->origin.module));
    TRY(ir_add_input(graph, "labels", &type, &labels));
    const op_attr ignore = op_set_int(OP_ATTR_ignore, -1), over = op_set_ints(OP_ATTR_axes, type.rank, axes);
    TRY(ir_emit_scalar(graph, DW_FORMAT_i64, -1, &hidden));
    TRY(ir_emit_2(graph, OP_maximum, labels, hidden, &index));
    TRY(ir_emit(graph, OP_cross_entropy, 2, (ir_value *[]){logits, index}, 1, &ignore, &rows));
    TRY(ir_emit(graph, OP_sum, 1, &rows, 1, &over, &sum));
    TRY(ir_emit_scalar(graph, DW_FORMAT_i64, 0, &zero));
    TRY(ir_emit_2(graph, OP_ge, labels, zero, &counts));
    TRY(ir_emit_cast(graph, counts, rows->type.format, &counts));
    TRY(ir_emit(graph, OP_sum, 1, &counts, 1, &over, &count));
    TRY(ir_emit_scalar(graph, rows->type.format, 1, &one));
    TRY(ir_emit_2(graph, OP_maximum, count, one, &count));
    TRY(ir_emit_2(graph, OP_div, sum, count, &loss));
    graph->origin = (ir_origin){0};
    *name = "next_token.loss";
    return ir_add_output(graph, *name, loss);
}

static ir_value *output_of(const ir_graph *graph, const char *name) {
    for (size_t i = 0; i < graph->output_count; i++)
        if (strcmp(graph->outputs[i].name, name) == 0) return graph->outputs[i].value;
    return NULL;
}

/* A scalar input of the trainer's. */
static dw_status add_scalar(ir_graph *graph, const char *name, dw_format format, ir_value **value) {
    return ir_add_input(graph, name, &(op_type){.format = format}, value);
}

/* The loss times what comes in as an input of that name, as an output of its own. */
static dw_status add_scaled(ir_graph *graph, const char *loss, const char *input, const char *name) {
    ir_value *scale, *value = output_of(graph, loss);
    TRY(add_scalar(graph, input, DW_FORMAT_f32, &scale));
    ir_cursor_end(graph);
    graph->origin = (ir_origin){0};
    TRY(ir_emit_cast(graph, value, DW_FORMAT_f32, &value));
    TRY(ir_emit_2(graph, OP_mul, value, scale, &value));
    return ir_add_output(graph, name, value);
}

/* ---- gradients ---- */

static dw_status drop_outputs(ir_graph *graph, const char *loss, bool gradients_too) {
    for (size_t i = graph->output_count; i-- > 0;) {
        const char *name = graph->outputs[i].name;
        if (strcmp(name, loss) != 0 && (gradients_too || !is_gradient(name))) TRY(ir_remove_output(graph, i));
    }
    return DW_OK;
}

static bool has_gradients(const ir_graph *graph) {
    for (size_t i = 0; i < graph->output_count; i++)
        if (is_gradient(graph->outputs[i].name)) return true;
    return false;
}

/* Do gradients come as their part of a step's mean already, by a loss that is multiplied by it? Then sums only add. Not where a run of a loss alone must leave them as they are, nor where losses have a
 * factor of their own, nor where the norm of each micro-batch is asked for. */
static bool weighs_loss(const dw_trainer_options *options, const train_rules *rules, double loss_scale) {
    return options->accumulate > 1 && rules->items[0].optimizer != NULL && loss_scale == 0 && (options->flags & DW_TRAINER_RAISE) == 0;
}

/* Of a graph without gradients, the loss in *loss: the same with them. */
static dw_status derive(const ir_graph *source, const dw_trainer_options *options, const train_rules *rules, ir_weights *masters, train_graphs *graphs, ir_graph **joint) {
    static const char scaled[] = "train.scaled_loss";
    ir_graph *graph;
    bool has_f16;
    TRY(ir_graph_clone(source, &graph));
    dw_status status = add_masters(graph, options, masters, &has_f16);
    const bool next_token = options->loss != NULL && strcmp(options->loss, "next-token") == 0;
    if (status == DW_OK) status = next_token ? add_next_token(graph, &graphs->loss) : find_loss(graph, options->loss, &graphs->loss);
    graphs->loss_scale = options->loss_scale > 0 ? options->loss_scale : has_f16 ? 65536 : 0;
    if (status == DW_OK) status = drop_outputs(graph, graphs->loss, true);
    graphs->weighs = weighs_loss(options, rules, graphs->loss_scale);
    const bool is_scaled = graphs->loss_scale > 0 || graphs->weighs;
    if (status == DW_OK && is_scaled) status = add_scaled(graph, graphs->loss, graphs->weighs ? TRAIN_FACTOR : TRAIN_SCALE, scaled);
    if (status == DW_OK) status = train_choose_chunks(graph, options, &graphs->chunks);
    const dw_gradient_options wanted = {.loss = is_scaled ? scaled : graphs->loss, .trained = options->trained, .recompute = options->recompute,
                                        .chunks = graphs->chunks.count, .columns = graphs->chunks.multiple,
                                        .merged = options->policy == NULL && !train_is_on_cpu(options)};   /* a policy names them one by one; a CPU gains nothing */
    if (status == DW_OK) status = dw_graph_gradient(graph, &wanted, joint);
    if (status == DW_OK) status = drop_outputs(*joint, graphs->loss, false);
    if (status == DW_OK) status = find_loss(*joint, graphs->loss, &graphs->loss);   /* whose name is the joint graph's from now on */
    ir_graph_destroy(graph);
    return status;
}

/* The outputs grad.<state> as pairs; they are no outputs from now on. */
static dw_status take_gradients(ir_graph *graph, pairs *pairs) {
    TRY_NEW(pairs->items, &graph->arena, graph->output_count);
    for (size_t i = 0; i < graph->output_count; i++) {
        const ir_output *output = &graph->outputs[i];
        if (!is_gradient(output->name)) continue;
        ir_value *param = map_find(&graph->names, output->name + strlen(TRAIN_GRADIENT));
        if (param == NULL || param->kind != IR_STATE) return base_fail(graph->context, DW_INVALID, "output %s is the gradient of no state of the graph", output->name);
        if (param->weight == NULL) return base_fail(graph->context, DW_INVALID, "parameter %s has no data to begin with: give it by dw_graph_bind", param->name);
        if (param->next != param) return base_fail(graph->context, DW_INVALID, "state %s changes in the graph, so it is no parameter to train", param->name);
        pairs->items[pairs->count++] = (pair){param, output->value};
    }
    if (pairs->count == 0) return base_fail(graph->context, DW_INVALID, "graph '%s' has no parameter to train", graph->name);
    for (size_t i = graph->output_count; i-- > 0;)
        if (is_gradient(graph->outputs[i].name)) TRY(ir_remove_output(graph, i));
    return DW_OK;
}

/* ---- a step ---- */

/* The square root of the sum of the squares of all, so many at a time, in f32. */
static dw_status add_norm(ir_graph *graph, const pairs *pairs, ir_value **norm) {
    enum { TOGETHER = 32 };
    ir_value *total = NULL, *in[TOGETHER], *squares;
    for (size_t first = 0; first < pairs->count; first += TOGETHER) {
        const size_t left = pairs->count - first, count = left < TOGETHER ? left : TOGETHER;
        for (size_t i = 0; i < count; i++) in[i] = pairs->items[first + i].gradient;
        TRY(ir_emit(graph, OP_sum_squares, (int)count, in, 0, NULL, &squares));
        TRY(ir_emit_cast(graph, squares, DW_FORMAT_f32, &squares));
        if (total == NULL) total = squares;
        else TRY(ir_emit_2(graph, OP_add, total, squares, &total));
    }
    return ir_emit_1(graph, OP_sqrt, total, norm);
}

static dw_status add_is_finite(ir_graph *graph, ir_value *x, ir_value **result) {
    ir_value *nan, *infinite;
    TRY(ir_emit_1(graph, OP_isnan, x, &nan));
    TRY(ir_emit_1(graph, OP_isinf, x, &infinite));
    TRY(ir_emit_2(graph, OP_or, nan, infinite, result));
    return ir_emit_1(graph, OP_not, *result, result);
}

/* factor times what clips the norm; NaN where nothing may change. loss: NULL, or what has to be finite, too. */
static dw_status add_scale(train_emitter *e, ir_value *factor, ir_value *norm, ir_value *loss, double clip) {
    ir_graph *graph = e->graph;
    ir_value *scale = factor, *nothing;
    TRY(add_is_finite(graph, norm, &e->may_change));
    if (loss != NULL) {
        ir_value *is_finite;
        TRY(ir_emit_cast(graph, loss, DW_FORMAT_f32, &loss));
        TRY(ir_emit_reshape(graph, loss, 0, NULL, &loss));
        TRY(add_is_finite(graph, loss, &is_finite));
        TRY(ir_emit_2(graph, OP_and, e->may_change, is_finite, &e->may_change));
    }
    if (clip > 0) {   /* as torch.nn.utils.clip_grad_norm_ */
        ir_value *small, *most, *one, *share;
        TRY(ir_emit_scalar(graph, DW_FORMAT_f32, 1e-6, &small));
        TRY(ir_emit_scalar(graph, DW_FORMAT_f32, clip, &most));
        TRY(ir_emit_scalar(graph, DW_FORMAT_f32, 1, &one));
        TRY(ir_emit_2(graph, OP_add, norm, small, &share));
        TRY(ir_emit_2(graph, OP_div, most, share, &share));
        TRY(ir_emit_2(graph, OP_minimum, share, one, &share));
        TRY(ir_emit_2(graph, OP_mul, factor, share, &scale));
    }
    TRY(ir_emit_scalar(graph, DW_FORMAT_f32, NAN, &nothing));
    return ir_emit(graph, OP_where, 3, (ir_value *[]){e->may_change, scale, nothing}, 0, NULL, &e->scale);
}

static dw_status add_update(ir_graph *graph, const pairs *pairs, ir_value *loss, const dw_trainer_options *options, const train_rules *rules) {
    train_emitter e = {.graph = graph};
    ir_value *factor, *norm;
    ir_cursor_end(graph);
    graph->origin = (ir_origin){0};
    TRY(ir_intern(graph, "update", &graph->origin.phase));
    TRY(add_scalar(graph, TRAIN_RATE, DW_FORMAT_f32, &e.rate));
    TRY(add_scalar(graph, TRAIN_STEP, DW_FORMAT_i64, &e.step));
    TRY(add_scalar(graph, TRAIN_FACTOR, DW_FORMAT_f32, &factor));
    TRY(ir_intern(graph, "optimizer", &graph->origin.module));
    TRY(add_norm(graph, pairs, &norm));
    TRY(ir_emit_2(graph, OP_mul, norm, factor, &norm));
    TRY(add_scale(&e, factor, norm, loss, options->clip));
    TRY(ir_add_output(graph, TRAIN_NORM, norm));
    for (size_t i = 0; i < pairs->count; i++) {
        ir_value *param = pairs->items[i].param;
        const train_rule *rule;
        const bool decayed = options->decayed != NULL ? pass_is_listed(options->decayed, param->name) : param->type.rank >= 2;
        TRY(train_rule_of(graph->context, rules, param->name, &param->type, &rule));
        TRY(rule->optimizer->emit(&e, rule, decayed, param, pairs->items[i].gradient));
    }
    TRY(train_emit_pending(&e));
    graph->origin = (ir_origin){0};
    ir_renumber(graph);
    return DW_OK;
}

static dw_status name_sum(ir_graph *graph, const ir_value *param, const char **name) {
    *name = arena_printf(&graph->arena, TRAIN_GRADIENT "%s", param->name);
    return *name != NULL ? DW_OK : DW_NO_MEMORY;
}

static dw_format sum_format(const ir_value *param) { return param->type.format == DW_FORMAT_f64 ? DW_FORMAT_f64 : DW_FORMAT_f32; }

/* A sum of its own right behind the gradient, whose memory is free then; small ones wait for each other at the end. */
enum { ADDED_AT_ONCE = 1 << 16 };   /* elements from which a gradient does not wait */

/* accumulate over these pairs of a state and what is added to it, behind the node that makes the value; NULL: at the end. */
static dw_status emit_sums(ir_graph *graph, const ir_value *behind, int count, const pair *pairs, ir_value *factor) {
    ir_value *in[SUMS_OPERANDS + 2 * TRAIN_SUMMED], *next;
    if (count == 0) return DW_OK;
    if (behind != NULL && behind->kind == IR_RESULT) ir_cursor_after(graph, behind->node);
    else ir_cursor_end(graph);
    graph->origin = (ir_origin){0};
    TRY(ir_intern(graph, "update", &graph->origin.phase));
    in[SUMS_FACTOR] = factor;
    for (int i = 0; i < count; i++) {
        in[op_update_operand(OP_accumulate, i, SUMS_SUM)] = pairs[i].param;
        in[op_update_operand(OP_accumulate, i, SUMS_G)] = pairs[i].gradient;
    }
    TRY(ir_emit(graph, OP_accumulate, op_update_operand(OP_accumulate, count, 0), in, 0, NULL, &next));
    for (int i = 0; i < count; i++) ir_set_next(pairs[i].param, next->node->out[i]);
    return DW_OK;
}

static bool is_large(const ir_value *value) {
    int64_t size, elements = 1;
    for (int axis = 0; axis < value->type.rank; axis++) {
        if (!dim_is_constant(value->type.dims[axis], &size)) return false;
        if (size > ADDED_AT_ONCE) return true;
        elements *= size;
        if (elements > ADDED_AT_ONCE) return true;
    }
    return false;
}

/* The product that alone makes the gradient, as it is or cast; NULL: something else does. */
static const ir_node *product_of(const ir_graph *graph, const ir_value *gradient) {
    const ir_node *cast = ir_def(gradient, OP_cast);
    const ir_value *made = cast != NULL ? ir_in(cast, 0) : gradient;
    const ir_node *product = ir_def(made, OP_matmul);
    if (product == NULL || ir_use_count(graph, gradient) > 0 || ir_use_count(graph, made) > (cast != NULL) || ir_attr_text(product, OP_ATTR_post)[0] != '\0') return NULL;
    return dw_format_bits(ir_in(product, 0)->type.format) <= 32 ? product : NULL;
}

/* %1 = matmul a, b {at=true}; next s accumulate s, %1     ->     next s matmul a, b, s {at=true,post="add"} */
static dw_status add_product(ir_graph *graph, const ir_node *product, ir_value *sum) {
    ir_value *next;
    op_attr attrs[OP_ATTR_COUNT];
    int count = 0;
    for (int i = 0; i < product->attrs.count; i++)
        if (product->attrs.items[i].id != OP_ATTR_to && product->attrs.items[i].id != OP_ATTR_post) attrs[count++] = product->attrs.items[i];
    attrs[count++] = op_set_format(OP_ATTR_to, sum->type.format);
    attrs[count++] = op_set_text(OP_ATTR_post, "add");
    ir_cursor_after(graph, ir_out(product)->node);
    graph->origin = product->origin;
    TRY(ir_emit(graph, OP_matmul, 3, (ir_value *[]){ir_in(product, 0), ir_in(product, 1), sum}, count, attrs, &next));
    ir_set_next(sum, next);
    return DW_OK;
}

/* Gradients times TRAIN_FACTOR, where the loss is not weighed by it, are added to states. norms: the norm of these gradients is an output, or where of_sums: of the sums. */
static dw_status add_sums(ir_graph *graph, const pairs *pairs, bool weighs, bool norms, bool of_sums) {
    struct pairs normed = {.count = pairs->count};
    struct pair waiting[TRAIN_SUMMED];
    int count = 0;
    ir_value *factor, *norm;
    TRY_NEW(normed.items, &graph->arena, pairs->count);
    ir_cursor_before(graph, graph->first);      /* in front of every gradient */
    graph->origin = (ir_origin){0};
    TRY(weighs ? ir_emit_scalar(graph, DW_FORMAT_f32, 1, &factor) : add_scalar(graph, TRAIN_FACTOR, DW_FORMAT_f32, &factor));
    for (size_t i = 0; i < pairs->count; i++) {
        const ir_value *param = pairs->items[i].param;
        const ir_node *product = weighs ? product_of(graph, pairs->items[i].gradient) : NULL;
        op_type type = param->type;
        ir_value *sum, *gradient = pairs->items[i].gradient;
        const char *name;
        type.format = sum_format(param);
        TRY(name_sum(graph, param, &name));
        TRY(ir_add_state(graph, name, &type, NULL, &sum));
        normed.items[i] = (pair){sum, gradient};
        if (product != NULL && type.format == DW_FORMAT_f32) TRY(add_product(graph, product, sum));
        else if (is_large(gradient)) TRY(emit_sums(graph, gradient, 1, &normed.items[i], factor));
        else waiting[count++] = normed.items[i];
        if (count < TRAIN_SUMMED) continue;
        TRY(emit_sums(graph, NULL, count, waiting, factor));
        count = 0;
    }
    TRY(emit_sums(graph, NULL, count, waiting, factor));
    for (size_t i = 0; of_sums && i < pairs->count; i++) normed.items[i].gradient = normed.items[i].param->next;
    ir_cursor_end(graph);
    if (norms) {
        TRY(add_norm(graph, &normed, &norm));
        if (!of_sums) TRY(ir_emit_2(graph, OP_mul, norm, factor, &norm));
        TRY(ir_add_output(graph, TRAIN_NORM, norm));
    }
    ir_renumber(graph);
    return DW_OK;
}

/* The update of sums, as a graph of its own. */
static dw_status make_update(const ir_graph *micro, const pairs *of, const dw_trainer_options *options, const train_rules *rules, ir_graph **result) {
    ir_graph *graph;
    pairs own = {.count = of->count};
    TRY(ir_graph_create(micro->context, "update", &graph));
    *result = graph;
    graph->weights = micro->weights;
    TRY_NEW(own.items, &graph->arena, of->count);
    for (size_t i = 0; i < of->count; i++) {
        const ir_value *param = of->items[i].param;
        op_type type = param->type;
        const char *name;
        for (int axis = 0; axis < type.rank; axis++) TRY_DIM(graph->context, type.dims[axis], dim_rewrite(graph->dims, micro->dims, type.dims[axis], NULL));
        TRY(ir_add_state(graph, param->name, &type, param->weight, &own.items[i].param));
        type.format = sum_format(param);
        TRY(name_sum(graph, param, &name));
        TRY(ir_add_state(graph, name, &type, NULL, &own.items[i].gradient));
    }
    return add_update(graph, &own, NULL, options, rules);
}

static dw_status build(const dw_trainer_options *options, const train_rules *rules, train_graphs *graphs) {
    const bool callers = rules->items[0].optimizer == NULL;
    pairs pairs = {0};
    ir_value *loss = output_of(graphs->micro, graphs->loss);
    TRY(take_gradients(graphs->micro, &pairs));
    graphs->sums = callers || options->accumulate > 1;
    graphs->has_norm = !graphs->sums || callers || (options->flags & DW_TRAINER_RAISE) != 0;
    if (!graphs->sums) return add_update(graphs->micro, &pairs, loss, options, rules);
    TRY(add_sums(graphs->micro, &pairs, graphs->weighs, graphs->has_norm, callers));
    return callers ? DW_OK : make_update(graphs->micro, &pairs, options, rules, &graphs->update);
}

dw_status train_build(const ir_graph *source, const dw_trainer_options *options, const train_rules *rules, ir_weights *masters, train_graphs *graphs) {
    *graphs = (train_graphs){0};
    dw_status status = DW_OK;
    if (has_gradients(source)) {
        if (options->loss_scale > 0) return base_fail(source->context, DW_INVALID, "graph '%s' has gradients of its own, whose loss is not scaled: leave loss_scale out", source->name);
        if (strcmp(options->recompute, TRAIN_RECOMPUTE) != 0 || options->chunks > 1)
            return base_fail(source->context, DW_INVALID, "graph '%s' has gradients of its own, so what they keep is decided: leave recompute and chunks out", source->name);
        status = ir_graph_clone(source, &graphs->micro);
        if (status == DW_OK) status = find_loss(graphs->micro, options->loss, &graphs->loss);
        if (status == DW_OK) status = drop_outputs(graphs->micro, graphs->loss, false);
    } else {
        status = derive(source, options, rules, masters, graphs, &graphs->micro);
    }
    if (status == DW_OK) status = build(options, rules, graphs);
    if (status == DW_OK) return DW_OK;
    ir_graph_destroy(graphs->micro);
    ir_graph_destroy(graphs->update);
    *graphs = (train_graphs){0};
    return status;
}
