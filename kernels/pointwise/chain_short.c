/* Which chains are of at most one function and one sum or product: the host half of chain_short.cu. */
#include "kernels/pointwise/chain_short.h"

#include "kernels/gpu/host/host.h"
#include "kernels/pointwise/functions.h"

/* A value of such a chain: an operand, a function of one, or that with another operand. */
typedef struct short_value {
    int x, y;                     /* operands; y: -1 where there is none */
    op_id function, with;         /* OP_COUNT: none */
    dw_format rounds, last;       /* what the function's result is rounded to, and that of the pair */
} short_value;

static bool is_real(dw_format format) { return format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16; }
static bool is_operand(const short_value *v) { return v->function == OP_COUNT && v->with == OP_COUNT; }

/* What a step reads; false: a number. */
static bool read_value(const op_chain_read *read, const short_value *values, short_value *to) {
    if (read->kind == OP_CHAIN_NUMBER) return false;
    *to = read->kind == OP_CHAIN_STEP ? values[read->index] : (short_value){.x = read->index, .y = -1, .function = OP_COUNT, .with = OP_COUNT};
    return true;
}

/* An operand is cast to f32 alone, which every format of its kind is a part of; of a result one rounding is its last. */
static bool take_cast(dw_format to, short_value *v) {
    dw_format *last = v->with != OP_COUNT ? &v->last : &v->rounds;
    if (is_operand(v)) return to == DW_FORMAT_f32;
    if (*last == DW_FORMAT_f32) *last = to;
    return to == DW_FORMAT_f32 || to == *last;
}

static bool take_function(const op_chain_step *step, short_value *v) {
    if (!is_operand(v) || pointwise_function_of(step->op) == POINTWISE_COUNT) return false;
    v->function = step->op;
    v->rounds = step->format;
    return true;
}

/* Sums and products are the same either way round. */
static bool take_pair(const op_chain_step *step, const short_value *other, short_value *v) {
    const bool is_turned = !is_operand(other);
    const short_value first = is_turned ? *other : *v, second = is_turned ? *v : *other;
    if ((step->op != OP_mul && step->op != OP_add) || first.with != OP_COUNT || !is_operand(&second)) return false;
    *v = first;
    v->y = second.x;
    v->with = step->op;
    v->last = step->format;
    return true;
}

static bool take_step(const op_chain_step *step, const short_value *values, short_value *v) {
    short_value other;
    if (!is_real(step->format) || !read_value(&step->in[0], values, v)) return false;
    for (int k = 0; k < step->n_in; k++)
        if (!is_real(step->in[k].format)) return false;
    if (step->op == OP_cast) return take_cast(step->format, v);
    if (step->n_in == 1) return take_function(step, v);
    return step->n_in == 2 && read_value(&step->in[1], values, &other) && take_pair(step, &other, v);
}

/* All of it in whole words of 16 bytes, one behind another. */
static bool lies_in_line(const cuda_nest *nest, int array, const dw_tensor *t) {
    return is_real(t->format) && nest->strides[array][0] == 1 && cuda_lies_at_16(t->data);
}

bool chain_short_launch(const kernel_run *run, const op_chain *chain, const cuda_nest *nest, kernel_launch *launch) {
    short_value values[OP_CHAIN_STEPS], v;
    if (!chip_has(run->chip, CHIP_tma) || nest->rank != 1 || nest->count % CUDA_VECTOR != 0 || !lies_in_line(nest, 0, run->call.out[0])) return false;
    for (int i = 0; i < chain->count; i++)
        if (!take_step(&chain->steps[i], values, &values[i])) return false;
    v = values[chain->count - 1];
    if (v.with != OP_COUNT && v.last != run->call.out[0]->format) return false;
    if (is_operand(&v) || !lies_in_line(nest, 1 + v.x, run->call.in[v.x]) || (v.y >= 0 && !lies_in_line(nest, 1 + v.y, run->call.in[v.y]))) return false;
    chain_short_arguments *arguments = cuda_launch(launch, "chain_short", "chain_short", sizeof *arguments);
    cuda_take_array(launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_array(launch, run, v.x, &arguments->x);
    if (v.y >= 0) cuda_take_array(launch, run, v.y, &arguments->y);
    arguments->vectors = nest->count / CUDA_VECTOR;
    arguments->function = v.function != OP_COUNT ? pointwise_function_of(v.function) : POINTWISE_COUNT;
    arguments->rounds = v.function != OP_COUNT ? (int32_t)v.rounds : (int32_t)DW_FORMAT_f32;
    arguments->with = v.with == OP_COUNT ? CHAIN_SHORT_ALONE : v.with == OP_mul ? CHAIN_SHORT_TIMES : CHAIN_SHORT_PLUS;
    launch->overlaps = true;
    cuda_grid_items(launch, base_ceil_div(arguments->vectors, CHAIN_SHORT_VECTORS));
    return true;
}
