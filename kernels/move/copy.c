/* Copies. Problem: out[i] = x[i] over one index space and two sets of strides. Axes are merged and ordered as they lie in the result. Where both have
 * elements side by side, lines are memcpy; where the operand has them along another axis (a transpose), tiles of 64 x 64 elements go by way of the stack, so that
 * every cache line is read and written once; else element by element. Measured speed: README.md. */
#include <string.h>

#include "kernels/cpu/nest.h"
#include "kernels/cpu/rows.h"
#include "kernels/move/move.h"

typedef struct copy_job {
    cpu_nest nest;                /* tensor 0 is the result, 1 the operand */
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;                 /* of an element */
    int across;                   /* of a transpose: the axis along which the operand's elements lie side by side */
    int64_t tiles, tasks;         /* along that axis; and units of all */
} copy_job;

static void copy_line(void *argument, const int64_t *offset, int64_t count) {
    const copy_job *job = argument;
    int64_t to_step = cpu_nest_step(&job->nest, 0), from_step = cpu_nest_step(&job->nest, 1);
    uint8_t *to = job->to + offset[0] * (int64_t)job->bytes;
    const uint8_t *from = job->from + offset[1] * (int64_t)job->bytes;
    if (to == from) return;
    if (to_step == 1) {
        cpu_gather(job->bytes, from, from_step, count, to);
    } else if (from_step == 1) {
        cpu_scatter(job->bytes, from, to, to_step, count);
    } else {
        uint64_t block[CPU_BLOCK];
        for (int64_t at = 0; at < count; at += CPU_BLOCK) {
            int64_t part = count - at < CPU_BLOCK ? count - at : CPU_BLOCK;
            cpu_gather(job->bytes, from + at * from_step * (int64_t)job->bytes, from_step, part, block);
            cpu_scatter(job->bytes, block, to + at * to_step * (int64_t)job->bytes, to_step, part);
        }
    }
}

/* ---- transposes ---- */

/* to[j * to_stride + i] = from[i * from_stride + j] for i < rows, j < cols, by way of a tile on the stack: rows of either side are then touched one
 * after the other, so that strides by powers of two cannot drive each other out of the cache. */
#define TURN(type)                                                                                                           \
    {                                                                                                                        \
        type tile[MOVE_TILE * (MOVE_TILE + 1)];                                                                              \
        for (int64_t i = 0; i < rows; i++) memcpy(tile + i * (MOVE_TILE + 1), (const type *)from + i * from_stride, (size_t)cols * sizeof(type)); \
        for (int64_t j = 0; j < cols; j++)                                                                                   \
            for (int64_t i = 0; i < rows; i++) ((type *)to)[j * to_stride + i] = tile[i * (MOVE_TILE + 1) + j];              \
        return;                                                                                                              \
    }
static void turn_tile(size_t bytes, const void *from, int64_t from_stride, int64_t rows, int64_t cols, void *to, int64_t to_stride) {
    switch (bytes) {
    case 1: TURN(uint8_t)
    case 2: TURN(uint16_t)
    case 4: TURN(uint32_t)
    default: TURN(uint64_t)
    }
}
#undef TURN

/* A strip of MOVE_TILE along the operand's axis and all of the result's. */
static void turn_task(void *argument, int64_t task, int worker) {
    (void)worker;
    const copy_job *job = argument;
    const cpu_nest *nest = &job->nest;
    int last = nest->rank - 1;
    int64_t first = task % job->tiles * MOVE_TILE, rest = task / job->tiles;
    int64_t cols = nest->dims[job->across] - first < MOVE_TILE ? nest->dims[job->across] - first : MOVE_TILE;
    int64_t to = first * nest->strides[0][job->across], from = first;
    for (int axis = last - 1; axis >= 0; axis--) {
        if (axis == job->across) continue;
        int64_t index = rest % nest->dims[axis];
        rest /= nest->dims[axis];
        to += index * nest->strides[0][axis];
        from += index * nest->strides[1][axis];
    }
    int64_t from_stride = nest->strides[1][last], size = (int64_t)job->bytes;
    for (int64_t i = 0; i < nest->dims[last]; i += MOVE_TILE) {
        int64_t rows = nest->dims[last] - i < MOVE_TILE ? nest->dims[last] - i : MOVE_TILE;
        turn_tile(job->bytes, job->from + (from + i * from_stride) * size, from_stride, rows, cols, job->to + (to + i) * size,
                  nest->strides[0][job->across]);
    }
}

/* The axis of a transpose that is worth tiles, or -1. */
static int axis_across(const cpu_nest *nest) {
    int last = nest->rank - 1;
    if (nest->strides[0][last] != 1 || nest->strides[1][last] <= 1 || nest->dims[last] < 4) return -1;
    for (int axis = 0; axis < last; axis++)
        if (nest->strides[1][axis] == 1 && nest->dims[axis] >= 4) return axis;
    return -1;
}

void move_copy(pool *pool, const dw_tensor *to, const dw_tensor *from) {
    copy_job job = {.to = to->data, .from = from->data, .bytes = cpu_element_bytes(to->format)};
    cpu_nest_start(&job.nest, to->rank, to->dims);
    cpu_nest_add(&job.nest, to);
    cpu_nest_add(&job.nest, from);
    cpu_nest_merge(&job.nest);
    int64_t size = cpu_nest_size(&job.nest);
    if (size == 0) return;
    job.across = axis_across(&job.nest);
    if (job.across < 0) {
        cpu_nest_run(&job.nest, pool, MOVE_TASK_BYTES / (int64_t)job.bytes, copy_line, &job);
        return;
    }
    int64_t along = job.nest.dims[job.across];
    job.tiles = base_ceil_div(along, MOVE_TILE);
    job.tasks = size / (along * job.nest.dims[job.nest.rank - 1]) * job.tiles;
    pool_run(pool, job.tasks, turn_task, &job);
}

/* ---- fill ---- */

typedef struct fill_job {
    cpu_nest nest;
    uint8_t *to;
    size_t bytes;
    uint64_t pattern;
} fill_job;

#define FILL(type)                                                                          \
    for (int64_t i = 0; i < count; i++) ((type *)to)[i * step] = (type)job->pattern;        \
    return
static void fill_line(void *argument, const int64_t *offset, int64_t count) {
    const fill_job *job = argument;
    int64_t step = cpu_nest_step(&job->nest, 0);
    void *to = job->to + offset[0] * (int64_t)job->bytes;
    switch (job->bytes) {
    case 1: FILL(uint8_t);
    case 2: FILL(uint16_t);
    case 4: FILL(uint32_t);
    default: FILL(uint64_t);
    }
}
#undef FILL

/* The bits of value in the format. */
static uint64_t pattern_of(dw_format format, double value) {
    uint64_t bits[1] = {0};
    dw_tensor scalar = {.format = format, .data = bits};
    op_tensor_store(&scalar, NULL, value);
    uint8_t b1;
    uint16_t b2;
    uint32_t b4;
    switch (cpu_element_bytes(format)) {
    case 1: memcpy(&b1, bits, 1); return b1;
    case 2: memcpy(&b2, bits, 2); return b2;
    case 4: memcpy(&b4, bits, 4); return b4;
    default: return bits[0];
    }
}

void move_fill(pool *pool, const dw_tensor *to, double value) {
    fill_job job = {.to = to->data, .bytes = cpu_element_bytes(to->format), .pattern = pattern_of(to->format, value)};
    cpu_nest_start(&job.nest, to->rank, to->dims);
    cpu_nest_add(&job.nest, to);
    cpu_nest_merge(&job.nest);
    cpu_nest_run(&job.nest, pool, MOVE_TASK_BYTES / (int64_t)job.bytes, fill_line, &job);
}
