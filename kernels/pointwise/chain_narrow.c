/* Chains in one 16-bit format whose steps go through fp32 in between: as PyTorch exports x * 1.702 of a bf16 tensor, a cast, a product in fp32 by a number, and a cast back. A step in fp32 of widened values and
 * numbers, whose result is only cast back, is that step on the narrow values: kernels compute it in fp32 anyway and round once (chain_packed.cu). What is left are steps in the format, whose numbers may
 * be fp32's. */
#include "kernels/pointwise/functions.h"

/* What a step of the chain has become. */
typedef struct narrowed {
    op_chain_read read;
    bool is_wide;                 /* the read, widened to fp32 */
    bool is_pending;              /* an fp32 result that the step of the read rounds already: only casts may read it */
} narrowed;

typedef struct narrowing {
    const op_chain *from;
    op_chain *to;
    dw_format format;             /* bf16 or f16 */
    narrowed values[OP_CHAIN_STEPS];
} narrowing;

static bool is_narrow(const narrowing *n, dw_format format) { return format == n->format || format == DW_FORMAT_bool; }

/* Steps whose first operand may be an fp32 number, as it is turned to the second place; else it is loaded, rounded to the format. */
static bool may_begin_with_number(op_id op) { return op == OP_add || op == OP_mul; }

/* A read of a new step, in the format; false: there is none. */
static bool take_read(const narrowing *n, const op_chain_step *step, int k, op_chain_read *to) {
    const op_chain_read *read = &step->in[k];
    *to = *read;
    if (read->kind == OP_CHAIN_NUMBER && read->format == DW_FORMAT_f32)
        return k > 0 || may_begin_with_number(step->op) || num_decode(n->format, num_encode(n->format, read->number, false)) == read->number;
    if (read->kind == OP_CHAIN_STEP) {
        const narrowed *value = &n->values[read->index];
        if (value->is_pending || value->is_wide != (read->format == DW_FORMAT_f32)) return false;
        *to = value->read;
        return true;
    }
    return is_narrow(n, read->format);
}

/* Casts between the format and fp32 are no steps. */
static bool take_cast(narrowing *n, const op_chain_step *step, narrowed *value) {
    const op_chain_read *read = &step->in[0];
    if (read->kind == OP_CHAIN_NUMBER) return false;
    if (read->kind == OP_CHAIN_OPERAND) {
        *value = (narrowed){.read = *read, .is_wide = true};
        return read->format == n->format && step->format == DW_FORMAT_f32;
    }
    *value = n->values[read->index];
    if (read->format == n->format && step->format == DW_FORMAT_f32) value->is_wide = true;
    else if (read->format == DW_FORMAT_f32 && step->format == n->format) value->is_wide = value->is_pending = false;
    else return false;
    return true;
}

static bool take_step(narrowing *n, int index) {
    const op_chain_step *step = &n->from->steps[index];
    narrowed *value = &n->values[index];
    op_chain_step *made = &n->to->steps[n->to->count];
    if (step->op == OP_cast && take_cast(n, step, value)) return true;
    const bool is_pending = step->format == DW_FORMAT_f32;
    if (!is_pending && !is_narrow(n, step->format)) return false;
    *made = *step;
    if (is_pending) made->format = n->format;
    if (is_pending && made->to != DW_FORMAT_COUNT) made->to = n->format;
    for (int k = 0; k < step->n_in; k++)
        if (!take_read(n, step, k, &made->in[k])) return false;
    *value = (narrowed){.read = {.kind = OP_CHAIN_STEP, .index = n->to->count++, .format = made->format}, .is_pending = is_pending};
    return true;
}

bool chain_narrow(const op_chain *chain, dw_format format, op_chain *to) {
    narrowing n = {.from = chain, .to = to, .format = format};
    *to = (op_chain){0};
    for (int i = 0; i < chain->count; i++)
        if (!take_step(&n, i)) return false;
    const narrowed *last = &n.values[chain->count - 1];
    return to->count > 0 && !last->is_wide && !last->is_pending && last->read.kind == OP_CHAIN_STEP && last->read.index == to->count - 1;
}
