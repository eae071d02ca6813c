/* See nest.h. A line longer than the grain is cut into pieces, shorter ones are taken together; both depend on sizes alone. */
#include "kernels/cpu/nest.h"

void cpu_nest_start(cpu_nest *nest, int rank, const int64_t *dims) {
    *nest = (cpu_nest){.rank = rank};
    for (int i = 0; i < rank; i++) nest->dims[i] = dims[i];
}

int cpu_nest_add_strides(cpu_nest *nest, const int64_t *strides) {
    for (int i = 0; i < nest->rank; i++) nest->strides[nest->count][i] = strides[i];
    return nest->count++;
}

int cpu_nest_add(cpu_nest *nest, const dw_tensor *tensor) {
    int64_t strides[DW_MAX_RANK] = {0};
    int lead = nest->rank - tensor->rank;
    for (int i = 0; i < tensor->rank; i++) strides[lead + i] = tensor->dims[i] == 1 ? 0 : tensor->strides[i];
    return cpu_nest_add_strides(nest, strides);
}

static void move_axis(cpu_nest *nest, int to, int from) {
    nest->dims[to] = nest->dims[from];
    for (int i = 0; i < nest->count; i++) nest->strides[i][to] = nest->strides[i][from];
}

static void swap_axes(cpu_nest *nest, int a, int b) {
    int64_t size = nest->dims[a];
    nest->dims[a] = nest->dims[b];
    nest->dims[b] = size;
    for (int i = 0; i < nest->count; i++) {
        int64_t stride = nest->strides[i][a];
        nest->strides[i][a] = nest->strides[i][b];
        nest->strides[i][b] = stride;
    }
}

/* Does the outer axis go on where the inner one ends, in every tensor? */
static bool lie_like_one(const cpu_nest *nest, int outer, int inner) {
    for (int i = 0; i < nest->count; i++)
        if (nest->strides[i][outer] != nest->strides[i][inner] * nest->dims[inner]) return false;
    return true;
}

void cpu_nest_merge(cpu_nest *nest) {
    int rank = 0;
    for (int i = 0; i < nest->rank; i++)
        if (nest->dims[i] != 1) move_axis(nest, rank++, i);
    for (int i = 1; i < rank; i++)
        for (int j = i; j > 0 && nest->strides[0][j - 1] < nest->strides[0][j]; j--) swap_axes(nest, j - 1, j);
    nest->rank = 0;
    for (int i = 0; i < rank; i++) {
        if (nest->rank > 0 && lie_like_one(nest, nest->rank - 1, i)) {
            int64_t outer = nest->dims[nest->rank - 1];
            move_axis(nest, nest->rank - 1, i);
            nest->dims[nest->rank - 1] *= outer;
        } else {
            move_axis(nest, nest->rank++, i);
        }
    }
    if (nest->rank > 0) return;
    nest->rank = 1;
    nest->dims[0] = 1;
    for (int i = 0; i < nest->count; i++) nest->strides[i][0] = 1;
}

int64_t cpu_nest_size(const cpu_nest *nest) {
    int64_t size = 1;
    for (int i = 0; i < nest->rank; i++) size *= nest->dims[i];
    return size;
}

typedef struct nest_job {
    const cpu_nest *nest;
    cpu_line line;
    void *argument;
    int64_t pieces, piece;        /* of a line, and the elements of one */
    int64_t units, task_units;    /* pieces of all lines, and those of a task */
} nest_job;

static void run_task(void *argument, int64_t task, int worker) {
    (void)worker;
    const nest_job *job = argument;
    const cpu_nest *nest = job->nest;
    int64_t unit = task * job->task_units, end = unit + job->task_units < job->units ? unit + job->task_units : job->units;
    int64_t part = unit % job->pieces, rest = unit / job->pieces, index[DW_MAX_RANK] = {0}, offset[NEST_TENSORS] = {0};
    int last = nest->rank - 1;
    for (int axis = last - 1; axis >= 0; axis--) {
        index[axis] = rest % nest->dims[axis];
        rest /= nest->dims[axis];
        for (int i = 0; i < nest->count; i++) offset[i] += index[axis] * nest->strides[i][axis];
    }
    for (; unit < end; unit++) {
        int64_t begin = part * job->piece, left = nest->dims[last] - begin, at[NEST_TENSORS];
        for (int i = 0; i < nest->count; i++) at[i] = offset[i] + begin * nest->strides[i][last];
        job->line(job->argument, at, left < job->piece ? left : job->piece);
        if (++part < job->pieces) continue;
        part = 0;
        for (int axis = last - 1; axis >= 0; axis--) {
            bool carries = ++index[axis] == nest->dims[axis];
            if (carries) index[axis] = 0;
            for (int i = 0; i < nest->count; i++) offset[i] += nest->strides[i][axis] * (carries ? 1 - nest->dims[axis] : 1);
            if (!carries) break;
        }
    }
}

void cpu_nest_run(const cpu_nest *nest, pool *pool, int64_t grain, cpu_line line, void *argument) {
    int64_t size = cpu_nest_size(nest);
    if (size == 0) return;
    if (grain < 1) grain = 1;
    nest_job job = {.nest = nest, .line = line, .argument = argument, .pieces = 1, .piece = nest->dims[nest->rank - 1], .task_units = 1};
    int64_t lines = size / job.piece;
    if (job.piece > grain) {
        job.pieces = base_ceil_div(job.piece, grain);
        job.piece = grain;
    } else {
        job.task_units = grain / job.piece;
    }
    job.units = lines * job.pieces;
    pool_run(pool, base_ceil_div(job.units, job.task_units), run_task, &job);
}
