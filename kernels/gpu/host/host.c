/* Index spaces and launches for the host halves of plain GPU kernels. Pure: nothing here knows a driver. */
#include "kernels/gpu/host/host.h"

#include <assert.h>
#include <string.h>

void cuda_broadcast(const dw_tensor *tensor, int rank, const int64_t *dims, int64_t *strides) {
    int lacking = rank - tensor->rank;
    for (int i = 0; i < rank; i++) strides[i] = i < lacking || (tensor->dims[i - lacking] == 1 && dims[i] != 1) ? 0 : tensor->strides[i - lacking];
}

static bool lies_as_one(const cuda_nest *nest, int operands, const int64_t (*strides)[CUDA_RANK], int axis, int64_t size) {
    for (int k = 0; k < operands; k++)
        if (nest->strides[k][nest->rank - 1] != strides[k][axis] * size) return false;
    return true;
}

void cuda_nest_build(cuda_nest *nest, int rank, const int64_t *dims, int operands, const int64_t (*strides)[CUDA_RANK]) {
    *nest = (cuda_nest){.count = 1};
    for (int i = 0; i < rank; i++) {
        nest->count *= dims[i];
        if (dims[i] == 1) continue;
        if (nest->rank > 0 && lies_as_one(nest, operands, strides, i, dims[i])) {
            nest->dims[nest->rank - 1] *= dims[i];
            for (int k = 0; k < operands; k++) nest->strides[k][nest->rank - 1] = strides[k][i];
            continue;
        }
        nest->dims[nest->rank] = dims[i];
        for (int k = 0; k < operands; k++) nest->strides[k][nest->rank] = strides[k][i];
        nest->rank++;
    }
    nest->narrow = nest->count <= INT32_MAX;
}

void cuda_nest_tensors(cuda_nest *nest, int count, const dw_tensor *const *tensors) {
    int64_t strides[CUDA_OPERANDS][CUDA_RANK];
    assert(count <= CUDA_OPERANDS);
    for (int k = 0; k < count; k++) cuda_broadcast(tensors[k], tensors[0]->rank, tensors[0]->dims, strides[k]);
    cuda_nest_build(nest, tensors[0]->rank, tensors[0]->dims, count, (const int64_t(*)[CUDA_RANK])strides);
}

/* Does operand k of the space have the last axis side by side, at multiples of vectors and of 16 bytes? */
static bool lies_in_vectors(const cuda_nest *nest, int k, const dw_tensor *tensor) {
    if (nest->strides[k][nest->rank - 1] != 1 || !cuda_lies_at_16(tensor->data)) return false;
    for (int axis = 0; axis < nest->rank - 1; axis++)
        if (nest->strides[k][axis] % CUDA_VECTOR != 0) return false;
    return true;
}

bool cuda_nest_vectors(cuda_nest *nest, int count, const dw_tensor *const *tensors, int32_t *steps) {
    if (nest->rank == 0 || nest->count == 0) return false;
    const int last = nest->rank - 1;
    if (nest->rank > 1 && nest->dims[last] % CUDA_VECTOR != 0) return false;
    for (int k = 0; k < count; k++) {
        steps[k] = nest->strides[k][last] != 0;
        if ((k == 0 || steps[k] != 0) && !lies_in_vectors(nest, k, tensors[k])) return false;
    }
    nest->count = nest->count / nest->dims[last] * base_ceil_div(nest->dims[last], CUDA_VECTOR);
    nest->dims[last] = base_ceil_div(nest->dims[last], CUDA_VECTOR);
    for (int k = 0; k < count; k++) nest->strides[k][last] *= CUDA_VECTOR;
    return true;
}

bool cuda_nest_words_of(cuda_nest *nest, int moved, int count, int64_t bytes, int64_t word) {
    const int last = nest->rank - 1;
    if (nest->rank == 0 || nest->count == 0 || nest->dims[last] * bytes % word != 0) return false;
    for (int k = 0; k < count; k++) {
        if (nest->strides[k][last] != (k < moved)) return false;
        for (int axis = 0; k < moved && axis < last; axis++)
            if (nest->strides[k][axis] * bytes % word != 0) return false;
    }
    nest->count = nest->count / nest->dims[last] * (nest->dims[last] * bytes / word);
    nest->dims[last] = nest->dims[last] * bytes / word;
    for (int k = 0; k < moved; k++)
        for (int axis = 0; axis < last; axis++) nest->strides[k][axis] = nest->strides[k][axis] * bytes / word;
    return true;
}

bool cuda_nest_words(cuda_nest *nest, int moved, int count, int64_t bytes) { return cuda_nest_words_of(nest, moved, count, bytes, 16); }

void cuda_nest_lines(cuda_nest *nest, int axis, int count, const dw_tensor *const *tensors, int64_t *steps) {
    int64_t strides[CUDA_OPERANDS][CUDA_RANK], dims[CUDA_RANK];
    int rank = tensors[0]->rank, kept = 0;
    assert(count <= CUDA_OPERANDS);
    for (int k = 0; k < count; k++) {
        int64_t all[CUDA_RANK];
        kept = 0;
        cuda_broadcast(tensors[k], rank, tensors[0]->dims, all);
        steps[k] = rank > 0 ? all[axis] : 0;
        for (int i = 0; i < rank; i++) {
            if (i == axis) continue;
            dims[kept] = tensors[0]->dims[i];
            strides[k][kept++] = all[i];
        }
    }
    cuda_nest_build(nest, kept, dims, count, (const int64_t(*)[CUDA_RANK])strides);
}

void *cuda_launch(kernel_launch *launch, const char *image, const char *entry, size_t argument_bytes) {
    assert(argument_bytes <= KERNEL_ARGUMENT_BYTES);
    *launch = (kernel_launch){.image = image, .entry = entry, .grid = {1, 1, 1}, .block = {CUDA_THREADS, 1, 1}, .argument_bytes = (uint32_t)argument_bytes};
    return launch->arguments;
}

void cuda_grid(kernel_launch *launch, int64_t x, int64_t y, int64_t z) {
    launch->grid[0] = (uint32_t)x;
    launch->grid[1] = (uint32_t)y;
    launch->grid[2] = (uint32_t)z;
}

void cuda_grid_items(kernel_launch *launch, int64_t count) {
    enum { MOST_BLOCKS = 1 << 16 };
    int64_t blocks = base_ceil_div(count, CUDA_THREADS);
    cuda_grid(launch, blocks < 1 ? 1 : blocks > MOST_BLOCKS ? MOST_BLOCKS : blocks, 1, 1);
}

void cuda_slot(kernel_launch *launch, kernel_slot_kind kind, int index, const void *field, int64_t offset) {
    assert(launch->slot_count < KERNEL_SLOTS);
    launch->slots[launch->slot_count++] =
        (kernel_slot){(uint16_t)kind, (uint16_t)index, (uint32_t)((const uint8_t *)field - launch->arguments), offset};
}

void cuda_take_array(kernel_launch *launch, const kernel_run *run, int index, cuda_array *field) {
    const dw_tensor *tensor = kernel_operand(run, index);
    field->format = tensor->format;
    field->element_bytes = dw_format_bits(tensor->format) / 8;
    cuda_slot(launch, KERNEL_SLOT_DATA, index, &field->data, 0);
}

void cuda_take_scratch(kernel_launch *launch, dw_format format, int64_t offset, cuda_array *field) {
    field->format = format;
    field->element_bytes = dw_format_bits(format) / 8;
    cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &field->data, offset);
}

void cuda_take_rows(kernel_launch *launch, const kernel_run *run, int index, bool k_is_last, cuda_rows *field) {
    const dw_tensor *tensor = kernel_operand(run, index);
    const num_format *info = num_info(tensor->format);
    int last = tensor->rank - 1;
    int64_t cols = last >= 0 ? tensor->dims[last] : 1, rows = last >= 1 ? tensor->dims[last - 1] : 1;
    *field = (cuda_rows){.format = info->element, .scale_format = CUDA_FORMAT_COUNT, .matrix_rows = rows, .row_bytes = (int64_t)num_row_bytes(tensor->format, cols)};
    bool packed = info->class == NUM_BLOCK || info->bits < 8;
    int64_t row_stride = packed ? cols : last >= 1 ? tensor->strides[last - 1] : 0, col_stride = packed ? 1 : last >= 0 ? tensor->strides[last] : 1;
    field->row_stride = k_is_last ? row_stride : col_stride;
    field->k_stride = k_is_last ? col_stride : row_stride;
    cuda_slot(launch, KERNEL_SLOT_DATA, index, &field->data, 0);
    if (info->class != NUM_BLOCK) return;
    num_parts parts = {0};
    num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts);
    field->scale_format = info->scale;
    field->tiled = tensor->scale_layout == DW_SCALE_tile128x4;
    field->second_kind = info->second;
    field->block_rows = info->rows > 0 ? info->rows : INT64_MAX;
    field->block_cols = info->cols > 0 ? info->cols : INT64_MAX;
    field->scale_rows = parts.scale_rows;
    field->scale_cols = parts.scale_cols;
    if (info->rows == 0) field->matrix_rows = INT64_MAX;   /* one scale over all matrices */
    cuda_slot(launch, KERNEL_SLOT_SCALES, index, &field->scales, 0);
    if (info->second != 0) cuda_slot(launch, KERNEL_SLOT_SECOND, index, &field->second, 0);
}

void cuda_take_fault(kernel_launch *launch, cuda_fault_place *field) { cuda_slot(launch, KERNEL_SLOT_FAULT, 0, field, 0); }

/* ---- launches handed on ---- */

static const cuda_move *move_of(const cuda_mover *mover, int operand) {
    for (int i = 0; i < mover->count; i++)
        if (mover->moves[i].operand == operand) return &mover->moves[i];
    return NULL;
}

static dw_status add_moved(kernel_launcher *launcher, const kernel_launch *launch) {
    const cuda_mover *mover = (const cuda_mover *)launcher;
    kernel_launch moved = *launch;
    for (int i = 0; i < moved.slot_count; i++) {
        kernel_slot *slot = &moved.slots[i];
        const cuda_move *move = slot->kind == KERNEL_SLOT_DATA ? move_of(mover, slot->index) : NULL;
        if (move == NULL) continue;
        slot->offset += move->at;
        if (!move->to_workspace) continue;
        slot->kind = KERNEL_SLOT_WORKSPACE;
        slot->index = 0;
    }
    for (int i = 0; i < moved.map_count; i++) {
        const cuda_move *move = move_of(mover, moved.maps[i].operand);
        if (move == NULL || moved.maps[i].of_scales) continue;
        moved.maps[i].offset += move->at;
        if (move->to_workspace) moved.maps[i].operand = KERNEL_WORKSPACE;
    }
    return mover->next->add(mover->next, &moved);
}

cuda_mover cuda_mover_to(kernel_launcher *next, int count, const cuda_move *moves) {
    cuda_mover mover = {.launcher = {add_moved}, .next = next, .count = count};
    assert(count <= (int)COUNT_OF(mover.moves));
    memcpy(mover.moves, moves, (size_t)count * sizeof *moves);
    return mover;
}

const char *cuda_reject_packed(const kernel_problem *problem, text *why) {
    for (int i = 0; i < problem->n_in + problem->n_out; i++) {
        bool result = i >= problem->n_in;
        const op_type *type = result ? problem->out[i - problem->n_in] : problem->in[i];
        if (type == NULL || cuda_is_plain(type->format)) continue;
        text_printf(why, "%s %d is %s, whose elements have less than a byte or share scales", result ? "result" : "operand", result ? i - problem->n_in : i,
                    dw_format_name(type->format));
        return text_string(why);
    }
    return NULL;
}

double cuda_vector_cost(const kernel_problem *problem) {
    bool in_vectors = chip_has(problem->chip, CHIP_tma);
    for (int i = 0; i < problem->n_in + problem->n_out; i++) {
        const op_type *type = i < problem->n_in ? problem->in[i] : problem->out[i - problem->n_in];
        if (type == NULL) continue;
        in_vectors &= type->format == DW_FORMAT_f32 || type->format == DW_FORMAT_bf16 || type->format == DW_FORMAT_f16 || type->format == DW_FORMAT_bool;
    }
    return in_vectors ? kernel_roofline(problem, DW_FORMAT_f32, 0.1, 0.693) : cuda_cost(problem);
}
