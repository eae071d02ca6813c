/* Ops that move elements on a GPU, as copies between parts of tensors: the host half of move.cu, and of move_vectors.cu where elements lie so. slice_scatter whose result takes over its operand's
 * memory writes the slice alone. */
#include "kernels/move/move_cuda.h"

#include "kernels/gpu/host/host.h"
#include "kernels/move/parts.h"
#include "kernels/kernels.h"

const char *move_cuda_reject(const kernel_problem *problem, text *why) { return problem->op->id == OP_reshape || problem->op->id == OP_concat ? NULL : cuda_reject_packed(problem, why); }

double move_cuda_cost(const kernel_problem *problem) { return cuda_vector_cost(problem); }

size_t move_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* ---- what other families use, too (parts.h) ---- */

/* Where a part begins; only its place among multiples of 16 bytes stays from run to run. */
static uintptr_t address_of(const kernel_run *run, const cuda_part *part) {
    return (uintptr_t)kernel_operand(run, part->operand)->data + (uintptr_t)part->first * (uintptr_t)(dw_format_bits(part->tensor.format) / 8);
}

/* The axis of operand k's neighbouring elements; -1: none. */
static int dense_axis(const cuda_nest *nest, int k) {
    for (int axis = nest->rank - 1; axis >= 0; axis--)
        if (nest->strides[k][axis] == 1) return axis;
    return -1;
}

static bool is_even(const cuda_nest *nest) {
    for (int k = 0; k < 2; k++)
        for (int axis = 0; axis < nest->rank; axis++)
            if (nest->strides[k][axis] % 2 != 0) return false;
    return true;
}

/* A transpose of two axes, through tiles. false: it is none, or its matrices are thin. */
static bool shape_tiles(const kernel_run *run, const cuda_nest *nest, const cuda_part *to, const cuda_part *from, tile_arguments *tiles, const char **entry) {
    enum { LEAST = 8 };
    static const char *const entries[] = {[1] = "move_tiles_1", [2] = "move_tiles_2", [4] = "move_tiles_4", [8] = "move_tiles_8"};
    int row = dense_axis(nest, 0), col = dense_axis(nest, 1), bytes = dw_format_bits(to->tensor.format) / 8, tile_cols = TILE_COLS;
    if (row < 0 || col < 0 || row == col || nest->dims[row] < LEAST || nest->dims[col] < LEAST) return false;
    *tiles = (tile_arguments){.nest = *nest, .rows = nest->dims[row], .cols = nest->dims[col], .from_row = nest->strides[1][row], .to_col = nest->strides[0][col]};
    tiles->nest.rank = 0;
    tiles->nest.count = nest->count / (nest->dims[row] * nest->dims[col]);
    for (int axis = 0; axis < nest->rank; axis++) {
        if (axis == row || axis == col) continue;
        tiles->nest.dims[tiles->nest.rank] = nest->dims[axis];
        for (int k = 0; k < 2; k++) tiles->nest.strides[k][tiles->nest.rank] = nest->strides[k][axis];
        tiles->nest.rank++;
    }
    *entry = entries[bytes];
    bool in_pairs = tiles->rows % 2 == 0 && tiles->cols % 2 == 0 && tiles->from_row % 2 == 0 && tiles->to_col % 2 == 0 && is_even(&tiles->nest);
    if (bytes == 2 && in_pairs && address_of(run, to) % 4 == 0 && address_of(run, from) % 4 == 0) {
        *entry = "move_tiles_pairs";
        tile_cols = 2 * TILE_COLS;
    }
    int64_t row_tiles = base_ceil_div(tiles->rows, TILE_ROWS), col_tiles = base_ceil_div(tiles->cols, tile_cols);
    if (row_tiles > INT32_MAX / col_tiles) return false;
    tiles->row_tiles = (int32_t)row_tiles;
    tiles->col_tiles = (int32_t)col_tiles;
    return true;
}

/* A part has the format of its own tensor: of an operand in blocks it is bytes. */
static void take_part(kernel_launch *launch, const kernel_run *run, const cuda_part *part, cuda_array *field) {
    cuda_take_array(launch, run, part->operand, field);
    field->format = part->tensor.format;
    field->element_bytes = dw_format_bits(part->tensor.format) / 8;
    launch->slots[launch->slot_count - 1].offset = part->first * field->element_bytes;
}

static void take_parts(kernel_launch *launch, const kernel_run *run, const cuda_part *to, const cuda_part *from, cuda_array *to_field, cuda_array *from_field) {
    take_part(launch, run, to, to_field);
    take_part(launch, run, from, from_field);
}

dw_status cuda_copy_part(const kernel_run *run, kernel_launcher *launcher, const cuda_part *to, const cuda_part *from) {
    kernel_launch launch;
    copy_arguments *arguments = cuda_launch(&launch, "move", "move_copy", sizeof *arguments);
    int64_t strides[2][CUDA_RANK];
    int64_t bytes = dw_format_bits(to->tensor.format) / 8;
    for (int i = 0; i < from->tensor.rank; i++) {
        strides[0][i] = to->tensor.strides[i];
        strides[1][i] = from->tensor.strides[i];
    }
    cuda_nest_build(&arguments->nest, from->tensor.rank, from->tensor.dims, 2, (const int64_t(*)[CUDA_RANK])strides);
    if (arguments->nest.count == 0) return DW_OK;
    if (chip_has(run->chip, CHIP_tma)) {
        tile_arguments tiles;
        const char *entry;
        if (shape_tiles(run, &arguments->nest, to, from, &tiles, &entry)) {
            tile_arguments *taken = cuda_launch(&launch, "move_vectors", entry, sizeof *taken);
            *taken = tiles;
            launch.overlaps = true;
            take_parts(&launch, run, to, from, &taken->to, &taken->from);
            int64_t blocks = tiles.nest.count * tiles.row_tiles * tiles.col_tiles;
            cuda_grid(&launch, blocks < INT32_MAX ? blocks : INT32_MAX, 1, 1);
            return launcher->add(launcher, &launch);
        }
        if (address_of(run, to) % 16 == 0 && address_of(run, from) % 16 == 0 && cuda_nest_words(&arguments->nest, 2, 2, bytes)) {
            launch.image = "move_vectors";
            launch.overlaps = true;
            launch.entry = "move_words";
        }
    }
    take_parts(&launch, run, to, from, &arguments->to, &arguments->from);
    cuda_grid_items(&launch, arguments->nest.count);
    return launcher->add(launcher, &launch);
}

cuda_part cuda_whole(const kernel_run *run, int operand) { return (cuda_part){.operand = operand, .tensor = *kernel_operand(run, operand)}; }

static dw_status fill_part(const kernel_run *run, kernel_launcher *launcher, const cuda_part *to, uint64_t element) {
    kernel_launch launch;
    fill_arguments *arguments = cuda_launch(&launch, "move", "move_fill", sizeof *arguments);
    const dw_tensor *tensor = &to->tensor;
    cuda_nest_tensors(&arguments->nest, 1, &tensor);
    if (arguments->nest.count == 0) return DW_OK;
    take_part(&launch, run, to, &arguments->to);
    arguments->element = element;
    cuda_grid_items(&launch, arguments->nest.count);
    return launcher->add(launcher, &launch);
}

dw_status cuda_fill_with(const kernel_run *run, kernel_launcher *launcher, int operand, uint64_t element) {
    const cuda_part whole = cuda_whole(run, operand);
    return fill_part(run, launcher, &whole, element);
}

bool cuda_is_in_place(const kernel_run *run, int index) { return run->call.in[index]->data != NULL && run->call.in[index]->data == run->call.out[index]->data; }

/* ---- views ---- */

dw_status move_view_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    uint8_t *const nominal = (uint8_t *)4096;
    dw_tensor base = *run->call.in[0];
    cuda_part from = {.operand = 0};
    const dw_tensor *in[] = {&base};
    op_call call = run->call;
    base.data = nominal;
    call.in = in;
    if (!op_tensor_view(&call, &from.tensor))
        return base_fail(run->call.context, DW_INVALID, "%s: its bounds do not lie within the operand at these sizes", run->call.op->name);
    from.first = ((uint8_t *)from.tensor.data - nominal) / (dw_format_bits(base.format) / 8);
    cuda_part to = cuda_whole(run, KERNEL_RESULT);
    return cuda_copy_part(run, launcher, &to, &from);
}

/* One part of a tensor in blocks: its elements, scales or second level. */
static dw_status copy_bytes(const kernel_run *run, kernel_launcher *launcher, kernel_slot_kind kind, size_t bytes) {
    static const int64_t strides[2][CUDA_RANK] = {{1}, {1}};
    kernel_launch launch;
    copy_arguments *arguments = cuda_launch(&launch, "move", "move_copy", sizeof *arguments);
    cuda_nest_build(&arguments->nest, 1, (const int64_t[]){(int64_t)bytes}, 2, strides);
    if (arguments->nest.count == 0) return DW_OK;
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->to);
    cuda_take_array(&launch, run, 0, &arguments->from);
    arguments->to.element_bytes = arguments->from.element_bytes = 1;
    for (int i = 0; i < launch.slot_count; i++) launch.slots[i].kind = (uint16_t)kind;
    cuda_grid_items(&launch, arguments->nest.count);
    return launcher->add(launcher, &launch);
}

/* Blocks keep their shape. */
static dw_status copy_packed(const kernel_run *run, kernel_launcher *launcher, const dw_tensor *x) {
    num_parts parts;
    if (!num_layout(x->format, x->scale_layout, x->rank, x->dims, &parts)) return base_fail(run->call.context, DW_LIMIT, "reshape: the operand is too large to address");
    TRY(copy_bytes(run, launcher, KERNEL_SLOT_DATA, parts.data_bytes));
    TRY(copy_bytes(run, launcher, KERNEL_SLOT_SCALES, parts.scale_bytes));
    return copy_bytes(run, launcher, KERNEL_SLOT_SECOND, parts.second_bytes);
}

/* The result is contiguous: seen in the operand's shape, elements have the same places. */
dw_status move_reshape_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    cuda_part from = cuda_whole(run, 0), to = {.operand = KERNEL_RESULT};
    if (!cuda_is_plain(from.tensor.format)) return copy_packed(run, launcher, &from.tensor);
    if (!op_tensor_init(&to.tensor, from.tensor.format, from.tensor.scale_layout, from.tensor.rank, from.tensor.dims, NULL))
        return base_fail(run->call.context, DW_LIMIT, "reshape: the operand is too large to address");
    return cuda_copy_part(run, launcher, &to, &from);
}

/* ---- parts ---- */

/* Where a tensor in blocks has its parts, in bytes behind its elements. */
static void places_of(const dw_tensor *tensor, num_parts *parts, int64_t *scales, int64_t *second) {
    static uint8_t nominal[1];
    dw_tensor whole;
    num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, parts);
    op_tensor_init(&whole, tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, nominal);
    *scales = whole.scales != NULL ? (int64_t)((uintptr_t)whole.scales - (uintptr_t)nominal) : 0;
    *second = whole.second != NULL ? (int64_t)((uintptr_t)whole.second - (uintptr_t)nominal) : 0;
}

/* count elements of a format from a byte on; step 0: all are the first. */
static cuda_part part_at(int operand, dw_format format, int64_t at, int64_t count, int64_t step) {
    cuda_part part = {.operand = operand, .first = at / (dw_format_bits(format) / 8)};
    op_tensor_init(&part.tensor, format, DW_SCALE_plain, 1, &count, NULL);
    part.tensor.strides[0] = step;
    return part;
}

static dw_status copy_at(const kernel_run *run, kernel_launcher *launcher, dw_format format, int64_t to, int operand, int64_t from, int64_t count, int64_t step) {
    const cuda_part target = part_at(KERNEL_RESULT, format, to, count, 1), source = part_at(operand, format, from, count, step);
    return cuda_copy_part(run, launcher, &target, &source);
}

/* Codes, block scales, and each operand's factor for each of its rows. */
static dw_status concat_blocks(const kernel_run *run, kernel_launcher *launcher) {
    const dw_tensor *out = run->call.out[0];
    const bool is_nv = out->format == DW_FORMAT_nvfp4_row;
    num_parts whole, part;
    int64_t scales, second, own_scales, own_second, data = 0, row = 0;
    places_of(out, &whole, &scales, &second);
    int64_t to = scales;
    for (int i = 0; i < run->call.n_in; i++) {
        const dw_tensor *x = run->call.in[i];
        places_of(x, &part, &own_scales, &own_second);
        TRY(copy_at(run, launcher, DW_FORMAT_u8, data, i, 0, (int64_t)part.data_bytes, 1));
        if (is_nv) TRY(copy_at(run, launcher, DW_FORMAT_u8, to, i, own_scales, (int64_t)part.scale_bytes, 1));
        TRY(copy_at(run, launcher, DW_FORMAT_f32, (is_nv ? second : scales) + row * 4, i, is_nv ? own_second : own_scales, x->dims[0], 0));
        data += (int64_t)part.data_bytes;
        to += (int64_t)part.scale_bytes;
        row += x->dims[0];
    }
    return DW_OK;
}

dw_status move_concat_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    if (dw_format_is_block(run->call.out[0]->format)) return concat_blocks(run, launcher);
    int axis = (int)op_attr_int(run->call.attrs, OP_ATTR_axis);
    int64_t begin = 0;
    for (int i = 0; i < run->call.n_in; i++) {
        cuda_part to = cuda_whole(run, KERNEL_RESULT), from = cuda_whole(run, i);
        to.first = begin * to.tensor.strides[axis];
        TRY(cuda_copy_part(run, launcher, &to, &from));
        begin += from.tensor.dims[axis];
    }
    return DW_OK;
}

/* The bits of a number in a format. */
static uint64_t bits_of(dw_format format, double value) {
    uint64_t bits = 0;
    dw_tensor scalar = {.format = format, .data = &bits};
    op_tensor_store(&scalar, NULL, value);
    return bits;
}

dw_status move_fill_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    return cuda_fill_with(run, launcher, KERNEL_RESULT, bits_of(run->call.out[0]->format, op_attr_real(run->call.attrs, OP_ATTR_value)));
}

/* What a pad puts around its operand: along each axis in front and behind, of the operand's own width along the axes before it. Few borders are filled by themselves, else the whole result is. */
static dw_status fill_borders(const kernel_run *run, kernel_launcher *launcher, const int64_t *before) {
    enum { FEW = 2 };
    const dw_tensor *x = run->call.in[0];
    const uint64_t bits = bits_of(run->call.out[0]->format, op_attr_real(run->call.attrs, OP_ATTR_value));
    cuda_part rest = cuda_whole(run, KERNEL_RESULT);
    int borders = 0;
    for (int i = 0; i < x->rank; i++) borders += (before[i] > 0) + (rest.tensor.dims[i] - x->dims[i] - before[i] > 0);
    if (borders > FEW) return fill_part(run, launcher, &rest, bits);
    for (int i = 0; i < x->rank; i++) {
        cuda_part border = rest;
        border.tensor.dims[i] = before[i];
        if (before[i] > 0) TRY(fill_part(run, launcher, &border, bits));
        border.first = rest.first + (before[i] + x->dims[i]) * rest.tensor.strides[i];
        border.tensor.dims[i] = rest.tensor.dims[i] - before[i] - x->dims[i];
        if (border.tensor.dims[i] > 0) TRY(fill_part(run, launcher, &border, bits));
        rest.first += before[i] * rest.tensor.strides[i];
        rest.tensor.dims[i] = x->dims[i];
    }
    return DW_OK;
}

dw_status move_pad_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    const dim *before;
    int64_t added[DW_MAX_RANK];
    cuda_part to = cuda_whole(run, KERNEL_RESULT), from = cuda_whole(run, 0);
    op_attr_dims(run->call.attrs, OP_ATTR_before, &before);
    for (int i = 0; i < from.tensor.rank; i++) {
        TRY(dim_eval(run->call.context, before[i], run->call.symbols, &added[i]));
        if (added[i] < 0 || added[i] > to.tensor.dims[i] - from.tensor.dims[i])
            return base_fail(run->call.context, DW_INVALID, "pad: axis %d of size %lld with %lld elements before does not lie within the result's %lld", i,
                             (long long)from.tensor.dims[i], (long long)added[i], (long long)to.tensor.dims[i]);
        to.first += added[i] * to.tensor.strides[i];
    }
    TRY(fill_borders(run, launcher, added));
    return cuda_copy_part(run, launcher, &to, &from);
}

dw_status move_slice_scatter_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    int axis = (int)op_attr_int(run->call.attrs, OP_ATTR_axis);
    int64_t start, step = op_attr_int(run->call.attrs, OP_ATTR_step);
    cuda_part to = cuda_whole(run, KERNEL_RESULT), x = cuda_whole(run, 0), y = cuda_whole(run, 1);
    int64_t count = y.tensor.dims[axis], size = x.tensor.dims[axis];
    TRY(dim_eval(run->call.context, op_attr_dim(run->call.attrs, OP_ATTR_start), run->call.symbols, &start));
    if (start < 0 || (count > 0 && (start >= size || count - 1 > (size - 1 - start) / step)))
        return base_fail(run->call.context, DW_INVALID, "slice_scatter: %lld elements from %lld in steps of %lld do not lie within axis %d of size %lld",
                         (long long)count, (long long)start, (long long)step, axis, (long long)size);
    if (!cuda_is_in_place(run, 0)) TRY(cuda_copy_part(run, launcher, &to, &x));
    to.first = start * to.tensor.strides[axis];
    to.tensor.strides[axis] *= step;
    return cuda_copy_part(run, launcher, &to, &y);
}

/* ---- numbers ---- */

dw_status move_iota_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    iota_arguments *arguments = cuda_launch(&launch, "move", "move_iota", sizeof *arguments);
    const dw_tensor *out = run->call.out[0];
    bool is_size = run->call.op->id == OP_size;
    TRY(dim_eval(run->call.context, op_attr_dim(run->call.attrs, is_size ? OP_ATTR_size : OP_ATTR_start), run->call.symbols, &arguments->start));
    arguments->step = op_attr_int(run->call.attrs, OP_ATTR_step);
    arguments->count = is_size ? 1 : out->dims[0];
    arguments->stride = is_size ? 0 : out->strides[0];
    if (arguments->count == 0) return DW_OK;
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->to);
    cuda_grid_items(&launch, arguments->count);
    return launcher->add(launcher, &launch);
}

dw_status move_triangle_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    triangle_arguments *arguments = cuda_launch(&launch, "move", "move_triangle", sizeof *arguments);
    const dw_tensor *x = run->call.in[0], *out = run->call.out[0];
    int row = x->rank - 2, col = x->rank - 1;
    int64_t strides[2][CUDA_RANK];
    for (int i = 0; i < row; i++) {
        strides[0][i] = out->strides[i];
        strides[1][i] = x->strides[i];
    }
    cuda_nest_build(&arguments->nest, row, x->dims, 2, (const int64_t(*)[CUDA_RANK])strides);
    TRY(dim_eval(run->call.context, op_attr_dim(run->call.attrs, OP_ATTR_offset), run->call.symbols, &arguments->offset));
    arguments->lower = run->call.op->id == OP_tril;
    arguments->rows = x->dims[row];
    arguments->cols = x->dims[col];
    arguments->to_row = out->strides[row];
    arguments->to_col = out->strides[col];
    arguments->from_row = x->strides[row];
    arguments->from_col = x->strides[col];
    int64_t count = op_tensor_count(x);
    if (count == 0) return DW_OK;
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->to);
    cuda_take_array(&launch, run, 0, &arguments->from);
    cuda_grid_items(&launch, count);
    return launcher->add(launcher, &launch);
}
