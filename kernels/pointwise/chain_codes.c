/* What chain_codes.h says: steps become instructions, and values that are read again have slots. */
#include "kernels/pointwise/chain_codes.h"

#include "kernels/pointwise/functions.h"

static bool is_of_vectors(dw_format format) { return format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16 || format == DW_FORMAT_bool; }

bool chain_has_vectors(const kernel_run *run, const op_chain *chain) {
    if (!chip_has(run->chip, CHIP_tma)) return false;
    for (int i = 0; i < run->call.n_in; i++)
        if (!is_of_vectors(run->call.in[i]->format)) return false;
    for (int i = 0; i < chain->count; i++)
        if (!is_of_vectors(chain->steps[i].format)) return false;
    return true;
}

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
    code->is_wide = read->kind == OP_CHAIN_NUMBER && read->format == DW_FORMAT_f32;
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

/* Which operand of a step becomes the accumulator, where none is it: the first, but not a number where it may be the second by one instruction. */
static int loaded_of(const op_chain_step *step) { return may_be_turned(step) && step->op != OP_sub && step->in[0].kind == OP_CHAIN_NUMBER ? 1 : 0; }

/* That operand becomes the accumulator, and one in memory is kept where it is read again. */
static void load_operand(assembler *as, int index, int k) {
    const op_chain_step *step = &as->chain->steps[index];
    const op_chain_read *read = &step->in[k];
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
        first = loaded_of(step);
        load_operand(as, index, first);
    }
    chain_code *code = take_function(as, step, first);
    if (step->format != DW_FORMAT_bool && !op_has(step->op, OP_TRAIT_EXACT)) code->rounds = (uint8_t)step->format;
    as->slots[index] = is_kept(as->chain, index) ? free_slot(as, index, index + 1) : -1;
    code->keep = (uint8_t)(as->slots[index] + 1);
}

int chain_take_codes(const op_chain *chain, const int *held, chain_vector_arguments *arguments) {
    assembler as = {.chain = chain, .arguments = arguments};
    for (int i = 0; i < OP_CHAIN_OPERANDS; i++) {
        as.operand_slots[i] = held[i];
        if (held[i] >= as.slot_count) as.slot_count = held[i] + 1;
    }
    for (int i = 0; i < chain->count; i++) take_code(&as, i);
    return as.slot_count;
}
