/* Steps on the values of a line: what is made of a token's chosen weights, as dividing them by their sum. Pointwise ops of real numbers, casts among them, and sums and softmax of the line. Which
 * values a line has is the op's own (scan.c). */
#include "op/family.h"

#include <math.h>

static bool is_real(dw_format format) { return format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16; }

static bool takes(const op_chain_step *step) {
    const double x[OP_CHAIN_READS] = {1, 1, 1};
    double value;
    for (int k = 0; k < step->n_in; k++)
        if (!is_real(step->in[k].format) || step->in[k].format != step->in[0].format) return false;
    return is_real(step->format) && (step->op == OP_sum || step->op == OP_softmax || step->op == OP_cast || op_pointwise_value(step->op, step->n_in, x, &value));
}

dw_status op_line_infer(const op_infer *infer, dw_format values, dw_format *format, bool *one) {
    op_chain chain;
    if (!is_real(values)) return base_fail(infer->context, DW_UNSUPPORTED, "%s: the values are %s; they must be f32, bf16 or f16", infer->op->name, dw_format_name(values));
    TRY(op_line_parse(infer->context, op_attr_text(infer->attrs, OP_ATTR_steps), values, &chain));
    if (chain.count > 0) TRY(op_check_reads(infer, &chain));
    for (int i = 0; i < chain.count; i++)
        if (!takes(&chain.steps[i])) return base_fail(infer->context, DW_UNSUPPORTED, "%s: step %d takes and makes something else than numbers of one format, f32, bf16 or f16", infer->op->name, i);
    *format = chain.count > 0 ? chain.steps[chain.count - 1].format : values;
    *one = chain.count > 0 && chain.steps[chain.count - 1].op == OP_sum;
    return DW_OK;
}

dw_status op_line_of(const op_call *call, op_chain *chain) {
    const dw_tensor *y = op_operand(call, CHOOSE_Y);
    return op_line_parse(call->context, op_attr_text(call->attrs, OP_ATTR_steps), (y != NULL ? y : call->in[CHOOSE_X])->format, chain);
}

static double load(dw_format format, const uint64_t *element) { return op_load_at(&(dw_tensor){.format = format, .data = (void *)element}, 0); }
static void store(dw_format format, uint64_t *element, double value) { op_store_at(&(dw_tensor){.format = format, .data = element}, 0, value); }

static double read(const op_chain_read *from, dw_format format, int place, op_line_values values) {
    uint64_t element = 0;
    if (from->kind != OP_CHAIN_NUMBER) return load(from->kind == OP_CHAIN_STEP ? from->format : format, &values[from->kind == OP_CHAIN_STEP ? 1 + from->index : 0][place]);
    store(from->format, &element, from->number);
    return load(from->format, &element);
}

void op_line_softmax(double *x, int64_t count) {
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count; i++) most = isnan(x[i]) || x[i] > most ? x[i] : most;
    for (int64_t i = 0; i < count; i++) {
        x[i] = exp(x[i] - most);
        sum += x[i];
    }
    for (int64_t i = 0; i < count; i++) x[i] = most == -INFINITY ? 0 : x[i] / sum;
}

static void sum_line(double *x, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) sum += x[i];
    for (int i = 0; i < count; i++) x[i] = sum;
}

void op_line_run(const op_chain *chain, dw_format format, int count, op_line_values values) {
    for (int i = 0; i < chain->count; i++) {
        const op_chain_step *step = &chain->steps[i];
        double made[OP_LINE];
        for (int place = 0; place < count; place++) {
            double x[OP_CHAIN_READS];
            for (int k = 0; k < step->n_in; k++) x[k] = read(&step->in[k], format, place, values);
            const bool is_pointwise = step->op != OP_sum && step->op != OP_softmax && step->op != OP_cast;
            if (!is_pointwise || !op_pointwise_value(step->op, step->n_in, x, &made[place])) made[place] = x[0];
        }
        if (step->op == OP_sum) sum_line(made, count);
        if (step->op == OP_softmax) op_line_softmax(made, count);
        for (int place = 0; place < count; place++) store(step->format, &values[1 + i][place], made[place]);
    }
}
