/* Chains of few elements: the host half of chain_few.cu. Steps become codes one for one, as every value has a slot. */
#include "kernels/pointwise/chain_few.h"

#include <assert.h>

#include "kernels/gpu/host/host.h"
#include "kernels/pointwise/functions.h"

static_assert(sizeof(chain_few_arguments) <= KERNEL_ARGUMENT_BYTES && (int)CHAIN_READS == (int)OP_CHAIN_READS, "a launch holds a chain");

static bool is_of_slots(dw_format format) { return format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16 || format == DW_FORMAT_bool; }

static bool has_slots(const kernel_run *run, const op_chain *chain) {
    for (int i = 0; i < run->call.n_in; i++)
        if (!is_of_slots(run->call.in[i]->format)) return false;
    for (int i = 0; i < chain->count; i++)
        if (!is_of_slots(chain->steps[i].format)) return false;
    return true;
}

/* Axes and strides in bytes; false: they are more, or reach farther. */
static bool take_space(const kernel_run *run, const cuda_nest *nest, chain_few_arguments *arguments) {
    const int front = FEW_RANK - nest->rank;
    if (front < 0) return false;
    arguments->elements = (uint32_t)nest->count;
    arguments->rank = (uint32_t)nest->rank;
    for (int axis = 0; axis < FEW_RANK; axis++) arguments->dims[axis] = axis < front ? 1 : (uint32_t)nest->dims[axis - front];
    for (int k = 0; k <= run->call.n_in; k++) {
        const dw_tensor *t = k == 0 ? run->call.out[0] : run->call.in[k - 1];
        int64_t reach = 0;
        for (int axis = 0; axis < nest->rank; axis++) {
            const int64_t stride = nest->strides[k][axis] * (dw_format_bits(t->format) / 8), size = stride < 0 ? -stride : stride;
            if (size > INT32_MAX / nest->dims[axis]) return false;
            reach += size * (nest->dims[axis] - 1);
            arguments->strides[k][front + axis] = (int32_t)stride;
        }
        if (reach > INT32_MAX) return false;
    }
    return true;
}

/* A number as it is in its format. */
static float number_of(const op_chain_read *read) {
    return read->format == DW_FORMAT_bool ? read->number != 0 : (float)num_decode(read->format, num_encode(read->format, read->number, false));
}

void few_code_of(const op_chain_step *step, int first, few_code *code) {
    const bool is_bool = step->in[0].format == DW_FORMAT_bool, compares = step->op == OP_not || (step->op == OP_cast && step->to == DW_FORMAT_bool);   /* with 0 */
    const int function = step->op == OP_where                     ? FEW_SELECT
                         : step->op == OP_sum                       ? FEW_SUM
                         : step->op == OP_softmax                   ? FEW_SOFTMAX
                         : compares && step->op == OP_cast          ? POINTWISE_ne
                         : is_bool                                  ? pointwise_function_on_bools(step->op)
                                                                    : pointwise_function_of(step->op);
    const bool rounds = step->format != DW_FORMAT_bool && !op_has(step->op, OP_TRAIT_EXACT);
    *code = (few_code){.function = (uint8_t)function, .rounds = rounds ? (uint8_t)step->format : (uint8_t)CUDA_f32, .from = {FEW_NUMBER, FEW_NUMBER, FEW_NUMBER}};
    for (int k = 0; k < step->n_in; k++) {
        const op_chain_read *read = &step->in[k];
        if (read->kind == OP_CHAIN_NUMBER) code->numbers[k] = number_of(read);
        else code->from[k] = (uint8_t)(read->index + (read->kind == OP_CHAIN_STEP ? first : 0));
    }
}

int64_t chain_few_most(const chip_caps *chip) { return (int64_t)chip->units * FEW_RESIDENT * CUDA_THREADS; }

bool chain_few_launch(const kernel_run *run, const op_chain *chain, const cuda_nest *nest, kernel_launch *launch) {
    if (!chip_has(run->chip, CHIP_tma) || nest->count > chain_few_most(run->chip) || !has_slots(run, chain)) return false;
    chain_few_arguments *arguments = cuda_launch(launch, "chain_few", "chain_few", sizeof *arguments);
    if (!take_space(run, nest, arguments)) return false;
    arguments->operands = (uint32_t)run->call.n_in;
    arguments->count = (uint32_t)chain->count;
    for (int i = 0; i < run->call.n_in; i++) cuda_take_array(launch, run, i, &arguments->in[i]);
    cuda_take_array(launch, run, KERNEL_RESULT, &arguments->out);
    for (int i = 0; i < chain->count; i++) few_code_of(&chain->steps[i], CHAIN_OPERANDS, &arguments->codes[i]);
    launch->overlaps = true;
    cuda_grid(launch, base_ceil_div(nest->count, CUDA_THREADS), 1, 1);
    return true;
}
