/* Chains of pointwise ops on a GPU: the host half of pointwise_chain (pointwise.cu), and of chain_vectors.cu, for whose machine the steps become instructions. */
#include "kernels/pointwise/chain_cuda.h"

#include <assert.h>

#include "kernels/common/cuda/host.h"
#include "kernels/kernels.h"
#include "kernels/pointwise/functions.h"

static_assert((int)CHAIN_STEPS == (int)OP_CHAIN_STEPS && (int)CHAIN_OPERANDS == (int)OP_CHAIN_OPERANDS && (int)CHAIN_READS == (int)OP_CHAIN_READS, "chains of the op");
static_assert(sizeof(chain_arguments) <= KERNEL_ARGUMENT_BYTES && sizeof(chain_vector_arguments) <= KERNEL_ARGUMENT_BYTES, "a launch holds a chain");

const char *chain_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

double chain_cuda_cost(const kernel_problem *problem) { return cuda_vector_cost(problem); }

size_t chain_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* ---- an element a thread ---- */

static int kind_of(const op_chain_step *step) {
    const dw_format format = step->in[0].format;
    if (step->op == OP_cast) return CHAIN_CAST;
    if (step->op == OP_where) return CHAIN_WHERE;
    if (format == DW_FORMAT_f64) return CHAIN_DOUBLE;
    return num_info(format)->class == NUM_FLOAT ? CHAIN_FLOAT : CHAIN_INTEGER;
}

static void take_step(const op_chain_step *from, chain_step *to) {
    static const uint8_t kinds[] = {[OP_CHAIN_OPERAND] = CHAIN_OPERAND, [OP_CHAIN_STEP] = CHAIN_RESULT, [OP_CHAIN_NUMBER] = CHAIN_NUMBER};
    *to = (chain_step){.function = (uint8_t)pointwise_function_of(from->op), .by = (uint8_t)kind_of(from), .is_bool = from->in[0].format == DW_FORMAT_bool,
                       .count = (uint8_t)from->n_in, .format = (uint8_t)from->format, .element_bytes = (uint8_t)(dw_format_bits(from->format) / 8)};
    for (int k = 0; k < from->n_in; k++) {
        const op_chain_read *read = &from->in[k];
        to->in[k] = (chain_read){.kind = kinds[read->kind], .index = (uint8_t)read->index, .format = (uint8_t)read->format,
                                 .element_bytes = (uint8_t)(dw_format_bits(read->format) / 8)};
        const dw_tensor number = {.format = read->format, .data = &to->in[k].number};
        if (read->kind == OP_CHAIN_NUMBER) op_tensor_store(&number, NULL, read->number);
    }
}

static dw_status shape_plain(const kernel_run *run, const op_chain *chain, const cuda_nest *nest, kernel_launcher *launcher) {
    kernel_launch launch;
    chain_arguments *arguments = cuda_launch(&launch, "pointwise", "pointwise_chain", sizeof *arguments);
    arguments->nest = *nest;
    arguments->operands = run->call.n_in;
    arguments->count = chain->count;
    for (int i = 0; i < run->call.n_in; i++) cuda_take_array(&launch, run, i, &arguments->in[i]);
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_fault(&launch, &arguments->fault);
    for (int i = 0; i < chain->count; i++) take_step(&chain->steps[i], &arguments->steps[i]);
    cuda_grid_items(&launch, nest->count);
    return launcher->add(launcher, &launch);
}

/* ---- eight elements a thread: which chains, lying how ---- */

static bool is_of_vectors(dw_format format) { return format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16 || format == DW_FORMAT_bool; }

static bool has_vectors(const kernel_run *run, const op_chain *chain) {
    if (!chip_has(run->chip, CHIP_tma)) return false;
    for (int i = 0; i < run->call.n_in; i++)
        if (!is_of_vectors(run->call.in[i]->format)) return false;
    for (int i = 0; i < chain->count; i++)
        if (!is_of_vectors(chain->steps[i].format)) return false;
    return true;
}

/* Are the strides of all axes but the last multiples of vectors? */
static bool has_outer_vectors(const cuda_nest *nest, int array) {
    for (int axis = 0; axis < nest->rank - 1; axis++)
        if (nest->strides[array][axis] % CUDA_VECTOR != 0) return false;
    return true;
}

/* The space in vectors of the result, which must lie dense; false: it does not. Operands may lie in any way. */
static bool lay_vectors(const kernel_run *run, const cuda_nest *nest, chain_vector_arguments *arguments) {
    const int last = nest->rank - 1;
    cuda_nest *vectors = &arguments->nest;
    if (nest->rank == 0 || nest->strides[0][last] != 1 || !cuda_lies_at_16(run->call.out[0]->data) || !has_outer_vectors(nest, 0)) return false;
    if (nest->rank > 1 && nest->dims[last] % CUDA_VECTOR != 0) return false;
    *vectors = *nest;
    vectors->dims[last] = (nest->dims[last] + CUDA_VECTOR - 1) / CUDA_VECTOR;
    vectors->count = nest->count / nest->dims[last] * vectors->dims[last];
    for (int k = 0; k <= run->call.n_in; k++) vectors->strides[k][last] *= CUDA_VECTOR;
    for (int i = 0; i < run->call.n_in; i++) {
        const int64_t step = nest->strides[1 + i][last];
        const bool is_dense = step == 1 && cuda_lies_at_16(run->call.in[i]->data) && has_outer_vectors(nest, 1 + i);
        arguments->steps[i] = step;
        arguments->lies[i] = step == 0 ? CHAIN_REPEATS : is_dense ? CHAIN_DENSE : CHAIN_APART;
    }
    arguments->elements = nest->count;
    return true;
}

/* ---- instructions ---- */

typedef struct assembler {
    const op_chain *chain;
    chain_vector_arguments *arguments;
    int slots[OP_CHAIN_STEPS];            /* of results that are kept; -1 */
    int slot_count;
} assembler;

/* Is the result of a step read otherwise than as the accumulator of the next one? There every operand may be it, of where the first alone. */
static bool is_kept(const op_chain *chain, int step) {
    for (int i = step + 1; i < chain->count; i++) {
        const op_chain_step *reader = &chain->steps[i];
        for (int k = 0; k < reader->n_in; k++) {
            const bool reads = reader->in[k].kind == OP_CHAIN_STEP && reader->in[k].index == step;
            if (reads && (i > step + 1 || (reader->op == OP_where && k > 0))) return true;
        }
    }
    return false;
}

static bool is_read_from(const op_chain *chain, int step, int first) {
    for (int i = first; i < chain->count; i++)
        for (int k = 0; k < chain->steps[i].n_in; k++)
            if (chain->steps[i].in[k].kind == OP_CHAIN_STEP && chain->steps[i].in[k].index == step) return true;
    return false;
}

/* A slot that no result holds which a later step than this one reads. */
static void choose_slot(assembler *as, int step) {
    unsigned taken = 0;
    as->slots[step] = -1;
    if (!is_kept(as->chain, step)) return;
    for (int i = 0; i < step; i++)
        if (as->slots[i] >= 0 && is_read_from(as->chain, i, step + 1)) taken |= 1u << as->slots[i];
    as->slots[step] = 0;
    while (taken >> as->slots[step] & 1) as->slots[step]++;
    if (as->slots[step] >= as->slot_count) as->slot_count = as->slots[step] + 1;
}

static float number_of(const op_chain_read *read) {
    return read->format == DW_FORMAT_bool ? read->number != 0 : (float)num_decode(read->format, num_encode(read->format, read->number, false));
}

static void read_y(const assembler *as, const op_chain_read *read, chain_code *code) {
    code->y_index = (uint8_t)(read->kind == OP_CHAIN_STEP ? as->slots[read->index] : read->index);
    code->y = read->kind == OP_CHAIN_NUMBER ? CHAIN_FROM_NUMBER : read->kind == OP_CHAIN_OPERAND ? CHAIN_FROM_OPERAND : CHAIN_FROM_SLOT;
    code->y_number = read->kind == OP_CHAIN_NUMBER ? number_of(read) : 0;
}

static void read_z(const assembler *as, const op_chain_read *read, chain_code *code) {
    chain_code y;
    read_y(as, read, &y);
    code->z = y.y;
    code->z_index = y.y_index;
    code->z_number = y.y_number;
}

static bool same_read(const op_chain_read *a, const op_chain_read *b) { return a->kind != OP_CHAIN_NUMBER && a->kind == b->kind && a->index == b->index; }

/* Ops on bools, which are 0 and 1 in registers, by functions of real numbers. */
static void take_bool_function(op_id op, chain_code *code) {
    switch (op) {
    case OP_add:
    case OP_or: code->function = POINTWISE_maximum; return;
    case OP_and:
    case OP_mul: code->function = POINTWISE_minimum; return;
    case OP_xor: code->function = POINTWISE_ne; return;
    case OP_not:
        code->function = POINTWISE_eq;
        code->y = CHAIN_FROM_NUMBER;
        code->y_number = 0;
        return;
    default: code->function = (uint8_t)pointwise_function_of(op);
    }
}

/* What of numbers of a format is one itself, so that nothing has to be rounded. */
static bool is_exact(op_id op) {
    switch (op) {
    case OP_where:
    case OP_neg:
    case OP_abs:
    case OP_sign:
    case OP_relu:
    case OP_floor:
    case OP_ceil:
    case OP_round:
    case OP_minimum:
    case OP_maximum: return true;
    default: return false;
    }
}

static chain_code *new_code(assembler *as) { return &as->arguments->codes[as->arguments->count++]; }

/* What the step does once its first operand is the accumulator. */
static void take_function(const op_chain_step *step, chain_code *code) {
    if (step->op == OP_cast) {
        const bool to_bool = step->to == DW_FORMAT_bool;
        code->function = to_bool ? POINTWISE_ne : POINTWISE_COUNT;
        code->y = to_bool ? CHAIN_FROM_NUMBER : CHAIN_FROM_NOTHING;
        code->y_number = 0;
    } else if (step->op == OP_where) {
        code->function = CHAIN_SELECT;
    } else if (step->in[0].format == DW_FORMAT_bool) {
        take_bool_function(step->op, code);
    } else {
        code->function = (uint8_t)pointwise_function_of(step->op);
    }
}

static void take_code(assembler *as, int index) {
    const op_chain_step *step = &as->chain->steps[index];
    int first = 0;                                /* the operand that is the accumulator */
    const bool is_after = index > 0;
    const op_chain_read before = {.kind = OP_CHAIN_STEP, .index = index - 1};
    const int could_be = step->op == OP_where ? 1 : step->n_in;
    while (is_after && first < could_be && !same_read(&step->in[first], &before)) first++;
    if (!is_after || first == could_be) {
        chain_code *load = new_code(as);
        first = 0;
        *load = (chain_code){.function = CHAIN_LOAD, .rounds = CUDA_f32};
        read_y(as, &step->in[0], load);
    }
    chain_code *code = new_code(as);
    *code = (chain_code){.rounds = (uint8_t)(step->format == DW_FORMAT_bool || is_exact(step->op) ? CUDA_f32 : step->format), .swapped = first == 1};
    if (step->n_in > 1) read_y(as, &step->in[first == 1 ? 0 : 1], code);
    if (step->n_in == 2 && same_read(&step->in[0], &step->in[1])) code->y = CHAIN_FROM_ACCUMULATOR;
    if (step->n_in > 2) read_z(as, &step->in[2], code);
    take_function(step, code);
    choose_slot(as, index);
    code->keep = (uint8_t)(as->slots[index] + 1);
}

static dw_status shape_vectors(const kernel_run *run, const op_chain *chain, kernel_launch *launch, chain_vector_arguments *arguments, kernel_launcher *launcher) {
    assembler as = {.chain = chain, .arguments = arguments};
    arguments->operands = run->call.n_in;
    for (int i = 0; i < run->call.n_in; i++) cuda_take_array(launch, run, i, &arguments->in[i]);
    cuda_take_array(launch, run, KERNEL_RESULT, &arguments->out);
    for (int i = 0; i < chain->count; i++) take_code(&as, i);
    launch->shared_bytes = (uint32_t)as.slot_count * CUDA_THREADS * CUDA_VECTOR * (uint32_t)sizeof(float);
    cuda_grid_items(launch, arguments->nest.count);
    return launcher->add(launcher, launch);
}

dw_status chain_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    const dw_tensor *tensors[1 + CHAIN_OPERANDS] = {run->call.out[0]};
    op_chain chain;
    cuda_nest nest;
    kernel_launch launch;
    TRY(op_chain_of(&run->call, &chain));
    for (int i = 0; i < run->call.n_in; i++) tensors[1 + i] = run->call.in[i];
    cuda_nest_tensors(&nest, 1 + run->call.n_in, tensors);
    if (nest.count == 0) return DW_OK;
    chain_vector_arguments *arguments = cuda_launch(&launch, "chain_vectors", "chain_vectors", sizeof *arguments);
    if (has_vectors(run, &chain) && lay_vectors(run, &nest, arguments)) return shape_vectors(run, &chain, &launch, arguments, launcher);
    return shape_plain(run, &chain, &nest, launcher);
}
