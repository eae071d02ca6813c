/* Reductions of integers and bool, in int64, where sums and products wrap. */
#include "kernels/reduce/reduce.h"

typedef struct integer_state {
    const reduce_job *job;
    int64_t value, seen, index;
} integer_state;

static int64_t load(const dw_tensor *tensor, int64_t offset) {
    switch (tensor->format) {
    case DW_FORMAT_i64: return ((const int64_t *)tensor->data)[offset];
    case DW_FORMAT_i32: return ((const int32_t *)tensor->data)[offset];
    case DW_FORMAT_i16: return ((const int16_t *)tensor->data)[offset];
    case DW_FORMAT_i8: return ((const int8_t *)tensor->data)[offset];
    case DW_FORMAT_bool: return ((const uint8_t *)tensor->data)[offset] != 0;
    default: return ((const uint8_t *)tensor->data)[offset];
    }
}

static void take_best(integer_state *s, int64_t x) {
    bool largest = s->job->op == OP_amax || s->job->op == OP_argmax;
    if (s->seen > 0 && (largest ? x <= s->value : x >= s->value)) return;
    s->value = x;
    s->index = s->seen;
}

static bool piece(void *state, int64_t offset, int64_t step, int64_t count) {
    integer_state *s = state;
    for (int64_t i = 0; i < count; i++) {
        int64_t x = load(s->job->x, offset + i * step);
        switch (s->job->op) {
        case OP_sum: s->value = (int64_t)((uint64_t)s->value + (uint64_t)x); break;
        case OP_prod: s->value = (int64_t)((uint64_t)s->value * (uint64_t)x); break;
        case OP_any: s->value = s->value != 0 || x != 0; break;
        case OP_all: s->value = s->value != 0 && x != 0; break;
        default: take_best(s, x);
        }
        s->seen++;
    }
    return true;
}

void reduce_integers(void *argument, const int64_t *offset, int64_t count) {
    const reduce_job *job = argument;
    for (int64_t i = 0; i < count; i++) {
        integer_state s = {.job = job, .value = job->op == OP_prod || job->op == OP_all};
        reduce_elements(job, offset[1] + i * cpu_nest_step(&job->outer, 1), piece, &s);
        dw_tensor result = {.format = job->out->format, .data = cpu_at(job->out, offset[0] + i * cpu_nest_step(&job->outer, 0))};
        op_tensor_store_int(&result, NULL, reduce_finds_index(job->op) ? s.index : s.value);
    }
}
