/* Chains of pointwise ops on a GPU: the host half of pointwise_chain (pointwise.cu), and of chain_vectors.cu and chain_packed.cu, for whose machine the steps become instructions. Short ones go past it
 * (chain_short.c). */
#include "kernels/pointwise/chain_cuda.h"

#include <assert.h>
#include <string.h>

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/pointwise/functions.h"

static_assert((int)CHAIN_STEPS == (int)OP_CHAIN_STEPS && (int)CHAIN_OPERANDS == (int)OP_CHAIN_OPERANDS && (int)CHAIN_READS == (int)OP_CHAIN_READS, "chains of the op");
static_assert(sizeof(chain_arguments) <= KERNEL_ARGUMENT_BYTES && sizeof(chain_vector_arguments) <= KERNEL_ARGUMENT_BYTES, "a launch holds a chain");

const char *chain_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

static bool is_of_vectors(dw_format format) { return format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16 || format == DW_FORMAT_bool; }

/* Steps and bandwidth as an H200 has them; that rows are of whole vectors is assumed. start: of a chain in a model's step there, whose instructions are read one after another
 * (bench/results/h200/models.md); those of few elements have few. */
double chain_cuda_cost(const kernel_problem *problem) {
    const double start_s = 7e-6, few_start_s = 0.3e-6;
    kernel_typical typical;
    bool in_vectors = chip_has(problem->chip, CHIP_tma) && is_of_vectors(problem->out[0]->format);
    for (int i = 0; i < problem->n_in; i++) in_vectors &= is_of_vectors(problem->in[i]->format);
    const bool is_few = in_vectors && kernel_at_typical(problem, 0, &typical) && op_tensor_count(typical.run.call.out[0]) <= chain_few_most(problem->chip);
    return (is_few ? few_start_s : start_s) + (in_vectors ? kernel_roofline(problem, DW_FORMAT_f32, 0.045, 0.693) : kernel_roofline(problem, DW_FORMAT_f32, 0.0015, 0.267));
}

size_t chain_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* ---- any format, lying in any way ---- */

static int kind_of(const op_chain_step *step) {
    const dw_format format = step->in[0].format;
    if (step->op == OP_cast) return CHAIN_CAST;
    if (step->op == OP_where) return CHAIN_WHERE;
    if (format == DW_FORMAT_f64) return CHAIN_DOUBLE;
    return num_info(format)->class == NUM_FLOAT ? CHAIN_FLOAT : CHAIN_INTEGER;
}

/* A number as the kernel computes with it. */
static uint64_t number_bits(const op_chain_read *read) {
    uint64_t element = 0;
    const dw_tensor tensor = {.format = read->format, .data = &element};
    op_tensor_store(&tensor, NULL, read->number);
    if (num_info(read->format)->class != NUM_FLOAT) return (uint64_t)op_tensor_load_int(&tensor, NULL);
    if (read->format == DW_FORMAT_f64) return element;
    const float value = (float)op_tensor_load(&tensor, NULL);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void take_step(const op_chain_step *from, chain_step *to) {
    static const uint8_t kinds[] = {[OP_CHAIN_OPERAND] = CHAIN_OPERAND, [OP_CHAIN_STEP] = CHAIN_RESULT, [OP_CHAIN_NUMBER] = CHAIN_NUMBER};
    *to = (chain_step){.function = (uint8_t)pointwise_function_of(from->op), .by = (uint8_t)kind_of(from), .is_bool = from->in[0].format == DW_FORMAT_bool,
                       .count = (uint8_t)from->n_in, .format = (uint8_t)from->format, .element_bytes = (uint8_t)(dw_format_bits(from->format) / 8)};
    for (int k = 0; k < from->n_in; k++) {
        const op_chain_read *read = &from->in[k];
        to->in[k] = (chain_read){.kind = kinds[read->kind], .index = (uint8_t)read->index, .format = (uint8_t)read->format,
                                 .element_bytes = (uint8_t)(dw_format_bits(read->format) / 8)};
        if (read->kind == OP_CHAIN_NUMBER) to->in[k].number = number_bits(read);
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
    cuda_grid_items(&launch, base_ceil_div(nest->count, CHAIN_WIDTH));
    return launcher->add(launcher, &launch);
}

/* ---- eight elements a thread: which chains, lying how ---- */

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

/* Does an array lie as a tensor of the space does that is one line? */
static bool is_in_line(const cuda_nest *nest, int array) {
    int64_t stride = 1;
    for (int axis = nest->rank - 1; axis >= 0; axis--) {
        if (nest->strides[array][axis] != stride) return false;
        stride *= nest->dims[axis];
    }
    return true;
}

static bool repeats(const cuda_nest *nest, int array) {
    for (int axis = 0; axis < nest->rank; axis++)
        if (nest->strides[array][axis] != 0) return false;
    return true;
}

/* The last axis in vectors; operands may lie in any way. */
static void lay_rows(const kernel_run *run, const cuda_nest *nest, chain_vector_arguments *arguments) {
    const int last = nest->rank - 1;
    cuda_nest *vectors = &arguments->nest;
    vectors->dims[last] = base_ceil_div(nest->dims[last], CUDA_VECTOR);
    vectors->count = nest->count / nest->dims[last] * vectors->dims[last];
    for (int k = 0; k <= run->call.n_in; k++) vectors->strides[k][last] *= CUDA_VECTOR;
    for (int i = 0; i < run->call.n_in; i++) {
        const int64_t step = nest->strides[1 + i][last];
        const bool is_dense = step == 1 && cuda_lies_at_16(run->call.in[i]->data) && has_outer_vectors(nest, 1 + i);
        arguments->steps[i] = step;
        arguments->lies[i] = step == 0 ? CHAIN_REPEATS : is_dense ? CHAIN_DENSE : CHAIN_APART;
    }
    arguments->vectors = vectors->count;
}

/* Rows that are no whole vectors, of a result in one line: vectors cross from row to row, in operands that lie as it does, too. */
static void lay_across(const kernel_run *run, const cuda_nest *nest, chain_vector_arguments *arguments) {
    arguments->crosses = true;
    arguments->vectors = base_ceil_div(nest->count, CUDA_VECTOR);
    for (int i = 0; i < run->call.n_in; i++)
        arguments->lies[i] = repeats(nest, 1 + i) ? CHAIN_REPEATS : is_in_line(nest, 1 + i) && cuda_lies_at_16(run->call.in[i]->data) ? CHAIN_DENSE : CHAIN_ACROSS;
}

/* The space in vectors of the result; false: it does not lie so. */
static bool lay_vectors(const kernel_run *run, const cuda_nest *nest, chain_vector_arguments *arguments) {
    const int last = nest->rank - 1;
    arguments->nest = *nest;
    arguments->elements = nest->count;
    if (nest->rank == 0 || nest->strides[0][last] != 1 || !cuda_lies_at_16(run->call.out[0]->data)) return false;
    if (nest->rank == 1 || (nest->dims[last] % CUDA_VECTOR == 0 && has_outer_vectors(nest, 0))) lay_rows(run, nest, arguments);
    else if (is_in_line(nest, 0)) lay_across(run, nest, arguments);
    else return false;
    return true;
}

/* ---- instructions ---- */

/* The function of (y, x) that is the op of (x, y), as x - y is -y + x; OP_COUNT: there is none. minimum and maximum choose between zeros by their order. */
static op_id turned(op_id op) {
    switch (op) {
    case OP_add:
    case OP_mul:
    case OP_eq:
    case OP_ne:
    case OP_and:
    case OP_or:
    case OP_xor: return op;
    case OP_sub: return OP_add;
    case OP_lt: return OP_gt;
    case OP_le: return OP_ge;
    case OP_gt: return OP_lt;
    case OP_ge: return OP_le;
    default: return OP_COUNT;
    }
}
static bool may_be_turned(const op_chain_step *step) { return step->n_in == 2 && turned(step->op) != OP_COUNT; }

typedef struct assembler {
    const op_chain *chain;
    chain_vector_arguments *arguments;
    int slots[OP_CHAIN_STEPS];            /* of results that are kept; -1 */
    int operand_slots[OP_CHAIN_OPERANDS]; /* and of operands that are read again; -1 */
    int slot_count;
} assembler;

/* Which operand of the step behind that result is the accumulator; -1: none. It is the first one, where it may be; the second of functions that may be turned round. */
static int accumulator_of(const op_chain_step *reader, int result) {
    for (int k = 0; k < reader->n_in; k++) {
        const bool reads = reader->in[k].kind == OP_CHAIN_STEP && reader->in[k].index == result;
        if (reads && (k == 0 || (k == 1 && may_be_turned(reader)))) return k;
    }
    return -1;
}

/* Is the result of a step read otherwise than as the accumulator of the next one? A function of it and itself reads the accumulator twice. */
static bool is_kept(const op_chain *chain, int step) {
    for (int i = step + 1; i < chain->count; i++) {
        const op_chain_step *reader = &chain->steps[i];
        const int accumulator = i == step + 1 ? accumulator_of(reader, step) : -1;
        for (int k = 0; k < reader->n_in; k++) {
            const bool reads = reader->in[k].kind == OP_CHAIN_STEP && reader->in[k].index == step;
            const bool is_twice = accumulator == 0 && k == 1 && reader->n_in == 2;
            if (reads && k != accumulator && !is_twice) return true;
        }
    }
    return false;
}

static bool is_read_from(const op_chain *chain, op_chain_kind kind, int index, int first) {
    for (int i = first; i < chain->count; i++)
        for (int k = 0; k < chain->steps[i].n_in; k++)
            if (chain->steps[i].in[k].kind == kind && chain->steps[i].in[k].index == index) return true;
    return false;
}

/* A slot whose value no step from that one on reads. */
static int free_slot(assembler *as, int steps, int first) {
    unsigned taken = 0;
    int slot = 0;
    for (int i = 0; i < steps; i++)
        if (as->slots[i] >= 0 && is_read_from(as->chain, OP_CHAIN_STEP, i, first)) taken |= 1u << as->slots[i];
    for (int i = 0; i < OP_CHAIN_OPERANDS; i++)
        if (as->operand_slots[i] >= 0 && is_read_from(as->chain, OP_CHAIN_OPERAND, i, first)) taken |= 1u << as->operand_slots[i];
    while (taken >> slot & 1) slot++;
    if (slot >= as->slot_count) as->slot_count = slot + 1;
    return slot;
}

static float number_of(const op_chain_read *read) {
    return read->format == DW_FORMAT_bool ? read->number != 0 : (float)num_decode(read->format, num_encode(read->format, read->number, false));
}

static void read_y(const assembler *as, const op_chain_read *read, chain_code *code) {
    const int slot = read->kind == OP_CHAIN_STEP ? as->slots[read->index] : read->kind == OP_CHAIN_OPERAND ? as->operand_slots[read->index] : -1;
    code->y_index = (uint8_t)(slot >= 0 ? slot : read->index);
    code->y = read->kind == OP_CHAIN_NUMBER ? CHAIN_FROM_NUMBER : slot >= 0 ? CHAIN_FROM_SLOT : CHAIN_FROM_OPERAND;
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

static chain_code *new_code(assembler *as, int function) {
    chain_code *code = &as->arguments->codes[as->arguments->count++];
    *code = (chain_code){.function = (uint8_t)function, .rounds = CUDA_f32};
    return code;
}

/* Sums and products with a number have functions of their own; x - 3 is x + -3. */
static void read_number_shortly(op_id op, chain_code *code) {
    if (code->y != CHAIN_FROM_NUMBER) return;
    if (op == OP_mul) code->function = CHAIN_MUL_NUMBER;
    if (op == OP_add || op == OP_sub) code->function = CHAIN_ADD_NUMBER;
    if (op == OP_sub) code->y_number = -code->y_number;
}

/* Of two operands, the accumulator being operand first. */
static chain_code *take_pair(assembler *as, const op_chain_step *step, int first) {
    const bool is_bool = step->in[0].format == DW_FORMAT_bool, is_same = same_read(&step->in[0], &step->in[1]);
    const op_id op = first == 1 ? turned(step->op) : step->op;
    if (first == 1 && step->op == OP_sub) new_code(as, POINTWISE_neg);
    chain_code *code = new_code(as, is_bool ? pointwise_function_on_bools(op) : pointwise_function_of(op));
    if (is_same) code->y = CHAIN_FROM_ACCUMULATOR;
    else read_y(as, &step->in[1 - first], code);
    if (!is_bool) read_number_shortly(op, code);
    return code;
}

/* What the step does once operand first is the accumulator. */
static chain_code *take_function(assembler *as, const op_chain_step *step, int first) {
    const bool compares = (step->op == OP_cast && step->to == DW_FORMAT_bool) || step->op == OP_not;   /* with zero: is it another number, or none? */
    if (step->n_in == 2) return take_pair(as, step, first);
    chain_code *code = new_code(as, step->op == OP_where ? CHAIN_SELECT : step->op == OP_not ? POINTWISE_eq : compares ? POINTWISE_ne : pointwise_function_of(step->op));
    if (compares) code->y = CHAIN_FROM_NUMBER;
    if (step->op == OP_where) {
        read_y(as, &step->in[1], code);
        read_z(as, &step->in[2], code);
    }
    return code;
}

/* The step's first operand becomes the accumulator, and one in memory is kept where it is read again. */
static void load_first(assembler *as, int index) {
    const op_chain_step *step = &as->chain->steps[index];
    const op_chain_read *read = &step->in[0];
    chain_code *code = new_code(as, CHAIN_LOAD);
    read_y(as, read, code);
    bool is_again = is_read_from(as->chain, OP_CHAIN_OPERAND, read->index, index + 1);
    if (step->op == OP_where) is_again |= same_read(read, &step->in[1]) || same_read(read, &step->in[2]);
    if (read->kind != OP_CHAIN_OPERAND || as->operand_slots[read->index] >= 0 || !is_again) return;
    as->operand_slots[read->index] = free_slot(as, index, index);
    code->keep = (uint8_t)(as->operand_slots[read->index] + 1);
}

static void take_code(assembler *as, int index) {
    const op_chain_step *step = &as->chain->steps[index];
    int first = index > 0 ? accumulator_of(step, index - 1) : -1;
    if (first < 0) {
        load_first(as, index);
        first = 0;
    }
    chain_code *code = take_function(as, step, first);
    if (step->format != DW_FORMAT_bool && !op_has(step->op, OP_TRAIT_EXACT)) code->rounds = (uint8_t)step->format;
    as->slots[index] = is_kept(as->chain, index) ? free_slot(as, index, index + 1) : -1;
    code->keep = (uint8_t)(as->slots[index] + 1);
}

/* bf16 or f16, where all values of the chain are of that format, or bools; else f32. */
static dw_format packed_format(const kernel_run *run, const op_chain *chain) {
    const dw_format formats[] = {DW_FORMAT_bf16, DW_FORMAT_f16};
    for (int f = 0; f < 2; f++) {
        bool is_all = true;
        for (int i = 0; i < run->call.n_in; i++) is_all &= run->call.in[i]->format == formats[f] || run->call.in[i]->format == DW_FORMAT_bool;
        for (int i = 0; i < chain->count; i++) is_all &= chain->steps[i].format == formats[f] || chain->steps[i].format == DW_FORMAT_bool;
        if (is_all) return formats[f];
    }
    return DW_FORMAT_f32;
}

/* false: its slots are more than a block of the chip has room for. */
static bool take_vectors(const kernel_run *run, const op_chain *chain, kernel_launch *launch, chain_vector_arguments *arguments) {
    assembler as = {.chain = chain, .arguments = arguments};
    const dw_format packed = packed_format(run, chain);
    const int slot_bytes = CUDA_THREADS * CUDA_VECTOR * (packed != DW_FORMAT_f32 ? CHAIN_PACKED * 2 : CHAIN_VECTORS * (int)sizeof(float));
    const int vectors = packed != DW_FORMAT_f32 ? CHAIN_PACKED : CHAIN_VECTORS;
    arguments->operands = run->call.n_in;
    for (int i = 0; i < OP_CHAIN_OPERANDS; i++) as.operand_slots[i] = -1;
    for (int i = 0; i < run->call.n_in; i++) cuda_take_array(launch, run, i, &arguments->in[i]);
    cuda_take_array(launch, run, KERNEL_RESULT, &arguments->out);
    for (int i = 0; i < chain->count; i++) take_code(&as, i);
    if (packed == DW_FORMAT_f32) {
        launch->entry = arguments->crosses ? "chain_vectors_across" : "chain_vectors";
    } else {
        static const char *const entries[2][2] = {{"chain_packed_bf16", "chain_packed_bf16_across"}, {"chain_packed_f16", "chain_packed_f16_across"}};
        launch->image = "chain_packed";
        launch->entry = entries[packed == DW_FORMAT_f16][arguments->crosses];
    }
    launch->shared_bytes = (uint32_t)(as.slot_count * slot_bytes);
    cuda_grid_items(launch, base_ceil_div(arguments->vectors, vectors));
    launch->overlaps = true;
    return launch->shared_bytes <= run->chip->shared_bytes;
}

dw_status chain_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    const dw_tensor *tensors[1 + CHAIN_OPERANDS] = {run->call.out[0]};
    op_chain chain;
    cuda_nest nest, vectors;
    kernel_launch launch;
    TRY(op_chain_of(&run->call, &chain));
    for (int i = 0; i < run->call.n_in; i++) tensors[1 + i] = run->call.in[i];
    cuda_nest_tensors(&nest, 1 + run->call.n_in, tensors);
    if (nest.count == 0) return DW_OK;
    if (chain_few_launch(run, &chain, &nest, &launch) || chain_short_launch(run, &chain, &nest, &launch)) return launcher->add(launcher, &launch);
    chain_vector_arguments *arguments = cuda_launch(&launch, "chain_vectors", "chain_vectors", sizeof *arguments);
    vectors = nest;
    if (has_vectors(run, &chain) && lay_vectors(run, &vectors, arguments) && take_vectors(run, &chain, &launch, arguments)) return launcher->add(launcher, &launch);
    return shape_plain(run, &chain, &nest, launcher);
}
