/* Chains of pointwise ops on a GPU: the host half of pointwise_chain (pointwise.cu), and of chain_vectors.cu and chain_packed.cu, for whose machine the steps become instructions (chain_codes.h). Short ones go past it
 * (chain_short.c), and so do those of few elements (chain_few.c) and those that read transposed operands (chain_tiles.c). */
#include "kernels/pointwise/chain_codes.h"

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

/* ---- launches ---- */

/* bf16 or f16, where all values of the chain are of that format, or bools, but for what goes through fp32; else f32. narrow: its steps then. */
static dw_format packed_format(const kernel_run *run, const op_chain *chain, op_chain *narrow) {
    const dw_format formats[] = {DW_FORMAT_bf16, DW_FORMAT_f16};
    for (int f = 0; f < 2; f++) {
        bool is_all = true;
        for (int i = 0; i < run->call.n_in; i++) is_all &= run->call.in[i]->format == formats[f] || run->call.in[i]->format == DW_FORMAT_bool;
        if (is_all && chain_narrow(chain, formats[f], narrow)) return formats[f];
    }
    *narrow = *chain;
    return DW_FORMAT_f32;
}

/* false: its slots are more than a block of the chip has room for. */
static bool take_vectors(const kernel_run *run, const op_chain *chain, kernel_launch *launch, chain_vector_arguments *arguments) {
    static const int held[CHAIN_OPERANDS] = {-1, -1, -1, -1, -1, -1, -1, -1};
    op_chain narrow;
    const dw_format packed = packed_format(run, chain, &narrow);
    const int slot_bytes = CUDA_THREADS * CUDA_VECTOR * (packed != DW_FORMAT_f32 ? CHAIN_PACKED * 2 : CHAIN_VECTORS * (int)sizeof(float));
    const int vectors = packed != DW_FORMAT_f32 ? CHAIN_PACKED : CHAIN_VECTORS;
    arguments->operands = run->call.n_in;
    for (int i = 0; i < run->call.n_in; i++) cuda_take_array(launch, run, i, &arguments->in[i]);
    cuda_take_array(launch, run, KERNEL_RESULT, &arguments->out);
    const int slots = chain_take_codes(&narrow, held, arguments);
    if (packed == DW_FORMAT_f32) {
        launch->entry = arguments->crosses ? "chain_vectors_across" : "chain_vectors";
    } else {
        static const char *const entries[2][2] = {{"chain_packed_bf16", "chain_packed_bf16_across"}, {"chain_packed_f16", "chain_packed_f16_across"}};
        launch->image = "chain_packed";
        launch->entry = entries[packed == DW_FORMAT_f16][arguments->crosses];
    }
    launch->shared_bytes = (uint32_t)(slots * slot_bytes);
    cuda_grid_items(launch, base_ceil_div(arguments->vectors, vectors));
    const uint32_t resident = CHAIN_PACKED_BLOCKS * (uint32_t)run->chip->units;
    if (packed != DW_FORMAT_f32 && launch->grid[0] > resident) launch->grid[0] = resident;
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
    if (chain_few_launch(run, &chain, &nest, &launch) || chain_tiles_launch(run, &chain, &nest, &launch) || chain_short_launch(run, &chain, &nest, &launch)) return launcher->add(launcher, &launch);
    chain_vector_arguments *arguments = cuda_launch(&launch, "chain_vectors", "chain_vectors", sizeof *arguments);
    vectors = nest;
    if (chain_has_vectors(run, &chain) && lay_vectors(run, &vectors, arguments) && take_vectors(run, &chain, &launch, arguments)) return launcher->add(launcher, &launch);
    return shape_plain(run, &chain, &nest, launcher);
}
