/* The elements of one result of a reduction, in order and in pieces. What is made of them is reals.c's and integers.c's. */
#include "kernels/reduce/reduce.h"

void reduce_elements(const reduce_job *job, int64_t offset, reduce_piece piece, void *state) {
    const cpu_nest *nest = &job->inner;
    int last = nest->rank - 1;
    int64_t index[DW_MAX_RANK] = {0};
    if (job->count == 0) return;
    for (bool more = true; more;) {
        if (!piece(state, offset, nest->strides[0][last], nest->dims[last])) return;
        more = false;
        for (int axis = last - 1; axis >= 0 && !more; axis--) {
            more = ++index[axis] < nest->dims[axis];
            offset += nest->strides[0][axis] * (more ? 1 : 1 - nest->dims[axis]);
            if (!more) index[axis] = 0;
        }
    }
}
