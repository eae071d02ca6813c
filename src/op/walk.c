/* Walks over index spaces: the offsets of several tensors kept up without a multiplication or division per element. Reads no data. */
#include "op/family.h"

/* Unsigned: a space whose rows are about to be skipped may be larger than any tensor. */
static void count_visits(walk *walk) {
    uint64_t visits = 1;
    for (int i = 0; i < walk->rank; i++) visits *= (uint64_t)walk->dims[i];
    walk->left = (int64_t)visits;
}

void walk_start(walk *walk, int rank, const int64_t *dims) {
    *walk = (struct walk){.rank = rank};
    for (int i = 0; i < rank; i++) walk->dims[i] = dims[i];
    count_visits(walk);
}

void walk_skip(walk *walk, int axis) {
    walk->dims[axis] = 1;
    count_visits(walk);
}

int walk_add_strides(walk *walk, const int64_t *strides) {
    for (int i = 0; i < walk->rank; i++) walk->stride[walk->count][i] = strides[i];
    return walk->count++;
}

int walk_add(walk *walk, const dw_tensor *tensor) {
    int64_t own[DW_MAX_RANK] = {0}, strides[DW_MAX_RANK] = {0};
    op_strides(tensor, own);
    int lead = walk->rank - tensor->rank;
    for (int i = 0; i < tensor->rank; i++) strides[lead + i] = tensor->dims[i] == 1 ? 0 : own[i];
    return walk_add_strides(walk, strides);
}

void walk_next(walk *walk) {
    walk->left--;
    for (int axis = walk->rank - 1; axis >= 0; axis--) {
        if (++walk->index[axis] < walk->dims[axis]) {
            for (int i = 0; i < walk->count; i++) walk->offset[i] += walk->stride[i][axis];
            return;
        }
        for (int i = 0; i < walk->count; i++) walk->offset[i] -= walk->stride[i][axis] * (walk->dims[axis] - 1);
        walk->index[axis] = 0;
    }
}
