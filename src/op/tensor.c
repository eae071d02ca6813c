/* Tensors in host memory: made from types, read and written element by element in any format. Computes nothing. */
#include "op/family.h"

#include <math.h>
#include <string.h>

/* ---- tensors ---- */

bool op_is_integer(dw_format format) {
    num_class class = num_info(format)->class;
    return class == NUM_BOOL || class == NUM_UNSIGNED || class == NUM_SIGNED;
}

bool op_is_float(dw_format format) { return num_info(format)->class == NUM_FLOAT; }

bool op_is_block(dw_format format) { return num_info(format)->class == NUM_BLOCK; }

/* Does the format lie packed, row after row, whatever the strides say? */
static bool is_packed(dw_format format) { return num_info(format)->bits < 8 || op_is_block(format); }

/* false when the number of elements overflows. */
static bool contiguous_strides(int rank, const int64_t *dims, int64_t *strides) {
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; i--) {
        strides[i] = stride;
        if (dims[i] > 0 && !base_mul_i64(stride, dims[i], &stride)) return false;
    }
    return true;
}

bool op_tensor_init(dw_tensor *tensor, dw_format format, dw_scale_layout layout, int rank, const int64_t *dims, void *memory) {
    num_parts parts;
    dw_tensor made = {.format = format, .scale_layout = layout, .rank = rank};   /* apart from *tensor: dims may be the tensor's own */
    bool fits = rank >= 0 && rank <= DW_MAX_RANK && num_layout(format, layout, rank, dims, &parts);
    for (int i = 0; i < rank && fits; i++) made.dims[i] = dims[i];
    fits = fits && contiguous_strides(rank, made.dims, made.strides);
    *tensor = made;
    if (!fits || memory == NULL) return fits;
    tensor->data = memory;
    if (parts.scale_bytes > 0) tensor->scales = (uint8_t *)memory + parts.scale_offset;
    if (parts.second_bytes > 0) tensor->second = (float *)(void *)((uint8_t *)memory + parts.second_offset);
    return true;
}

dw_status op_tensor_bind(dw_context *context, const op_type *type, const int64_t *symbols, void *memory, dw_tensor *tensor) {
    int64_t dims[DW_MAX_RANK];
    for (int i = 0; i < type->rank; i++) {
        TRY(dim_eval(context, type->dims[i], symbols, &dims[i]));
        if (dims[i] < 0)
            return base_fail(context, DW_INVALID, "axis %d of a tensor comes out as %lld; dimensions are 0 or more", i, (long long)dims[i]);
    }
    if (op_tensor_init(tensor, type->format, type->scale_layout, type->rank, dims, memory)) return DW_OK;
    return base_fail(context, DW_LIMIT, "a %s tensor of rank %d is too large to address", dw_format_name(type->format), type->rank);
}

int64_t op_tensor_step(const dw_tensor *tensor, int axis_from_last) {
    const int axis = tensor->rank - 1 - axis_from_last;
    return axis < 0 || tensor->dims[axis] == 1 ? 0 : tensor->strides[axis];
}

int64_t op_tensor_count(const dw_tensor *tensor) {
    int64_t count = 1;
    for (int i = 0; i < tensor->rank; i++) count *= tensor->dims[i];
    return count;
}

num_matrix op_tensor_matrix(const dw_tensor *tensor) {
    num_matrix matrix = {
        .format = tensor->format,
        .layout = tensor->scale_layout,
        .rows = tensor->rank > 1 ? tensor->dims[tensor->rank - 2] : 1,
        .cols = tensor->dims[tensor->rank - 1],
        .data = tensor->data,
        .scales = tensor->scales,
        .second = tensor->second,
        .batches = 1,
    };
    for (int i = 0; i < tensor->rank - 2; i++) matrix.batches *= tensor->dims[i];
    return matrix;
}

bool op_tensor_is_contiguous(const dw_tensor *tensor) {
    if (is_packed(tensor->format) || op_tensor_count(tensor) == 0) return true;
    int64_t stride = 1;
    for (int i = tensor->rank - 1; i >= 0; i--) {
        if (tensor->dims[i] != 1 && tensor->strides[i] != stride) return false;
        stride *= tensor->dims[i];
    }
    return true;
}

void op_strides(const dw_tensor *tensor, int64_t strides[DW_MAX_RANK]) {
    if (is_packed(tensor->format)) contiguous_strides(tensor->rank, tensor->dims, strides);
    else memcpy(strides, tensor->strides, sizeof tensor->strides);
}

static int64_t offset_of(const dw_tensor *tensor, const int64_t *index) {
    int64_t strides[DW_MAX_RANK] = {0}, offset = 0;
    op_strides(tensor, strides);
    for (int i = 0; i < tensor->rank; i++) offset += index[i] * strides[i];
    return offset;
}

/* ---- numbers ---- */

double op_real_of_int(int64_t value) {
    if (value > -(INT64_C(1) << 53) && value < INT64_C(1) << 53) return (double)value;
    /* 63 bits to 53: the 11 lowest become one sticky bit at the place of the tenth. */
    uint64_t magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    uint64_t kept = (magnitude & ~UINT64_C(0x7ff)) | ((magnitude & 0x7ff) != 0 ? 0x400u : 0u);
    return value < 0 ? -(double)kept : (double)kept;
}

int64_t op_int_of_real(double value) {
    if (isnan(value)) return 0;
    if (value >= 9223372036854775808.0) return INT64_MAX;
    if (value < -9223372036854775808.0) return INT64_MIN;
    return (int64_t)value;
}

/* The float to whose 16-bit neighbour value rounds: rounded to odd, so that rounding again is the same as rounding once. */
static float odd_float(double value) {
    float nearest = (float)value;
    if ((double)nearest == value || isnan(value)) return nearest;
    uint32_t bits;
    memcpy(&bits, &nearest, sizeof bits);
    if (fabs((double)nearest) > fabs(value)) bits--;
    bits |= 1;
    memcpy(&nearest, &bits, sizeof bits);
    return nearest;
}

/* ---- elements of packed formats ---- */

/* Where an element of a packed tensor lies, from its row-major number. */
typedef struct place { int64_t matrix, row, col; const uint8_t *row_bytes; } place;

static place packed_place(const dw_tensor *tensor, int64_t offset) {
    int64_t cols = tensor->rank > 0 ? tensor->dims[tensor->rank - 1] : 1;
    int64_t rows = tensor->rank > 1 ? tensor->dims[tensor->rank - 2] : 1;
    int64_t line = offset / cols;
    return (place){line / rows, line % rows, offset % cols, (const uint8_t *)tensor->data + (size_t)line * num_row_bytes(tensor->format, cols)};
}

/* Elements of one row, from a place on; a block's scale is read once. */
static void load_packed_row(const dw_tensor *tensor, const num_parts *parts, place at, int64_t stride, int64_t count, double *values) {
    const num_format *info = num_info(tensor->format);
    const int64_t rows = tensor->rank > 1 ? tensor->dims[tensor->rank - 2] : 1;
    num_load_row(info->element, at.row_bytes, at.col, stride, count, values);
    if (info->class != NUM_BLOCK) return;
    const int64_t row_block = info->rows > 0 ? at.row / info->rows : 0;
    const size_t matrix_scales = info->rows > 0 ? (size_t)(at.matrix * parts->scale_rows * parts->scale_cols) : 0;
    const bool has_second = info->second != 0 && tensor->second != NULL;
    const double second = has_second ? (double)tensor->second[info->second == 1 ? 0 : at.matrix * rows + at.row] : 1;
    for (int64_t i = 0; i < count;) {
        const int64_t col = at.col + i * stride, col_block = info->cols > 0 ? col / info->cols : 0;
        const int64_t in_block = info->cols > 0 && stride > 0 ? ((col_block + 1) * info->cols - col + stride - 1) / stride : count - i, end = in_block < count - i ? i + in_block : count;
        const double scale = num_load(info->scale, tensor->scales, (int64_t)(matrix_scales + num_scale_index(tensor->scale_layout, row_block, col_block, parts->scale_cols)));
        for (; i < end; i++) values[i] *= scale;
    }
    for (int64_t i = 0; has_second && i < count; i++) values[i] *= second;
}

static void load_packed(const dw_tensor *tensor, int64_t offset, int64_t stride, int64_t count, double *values) {
    const int64_t cols = tensor->rank > 0 ? tensor->dims[tensor->rank - 1] : 1;
    num_parts parts = {0};
    if (num_info(tensor->format)->class == NUM_BLOCK && !num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts)) return;
    for (int64_t done = 0; done < count;) {
        const place at = packed_place(tensor, offset + done * stride);
        const int64_t in_row = stride > 0 ? (cols - at.col + stride - 1) / stride : 1, length = in_row < count - done ? in_row : count - done;
        load_packed_row(tensor, &parts, at, stride, length, values + done);
        done += length;
    }
}

/* ---- elements ---- */

void op_load_row(const dw_tensor *tensor, int64_t offset, int64_t stride, int64_t count, double *values) {
    if (is_packed(tensor->format)) load_packed(tensor, offset, stride, count, values);
    else num_load_row(tensor->format, tensor->data, offset, stride, count, values);
}

double op_load_at(const dw_tensor *tensor, int64_t offset) {
    double value;
    op_load_row(tensor, offset, 1, 1, &value);
    return value;
}

void op_store_at(const dw_tensor *tensor, int64_t offset, double value) {
    if (tensor->format == DW_FORMAT_f32) {
        ((float *)tensor->data)[offset] = (float)value;
    } else if (tensor->format == DW_FORMAT_bf16) {
        ((uint16_t *)tensor->data)[offset] = num_f32_to_bf16(odd_float(value));
    } else if (tensor->format == DW_FORMAT_f16) {
        ((uint16_t *)tensor->data)[offset] = num_f32_to_f16(odd_float(value));
    } else if (tensor->format == DW_FORMAT_bool) {
        ((uint8_t *)tensor->data)[offset] = value != 0;
    } else if (op_is_integer(tensor->format)) {
        op_store_int_at(tensor, offset, op_int_of_real(value));
    } else if (is_packed(tensor->format)) {
        place at = packed_place(tensor, offset);
        size_t begin = (size_t)(at.row_bytes - (const uint8_t *)tensor->data);
        num_store(tensor->format, (uint8_t *)tensor->data + begin, at.col, value, false);
    } else {
        num_store(tensor->format, tensor->data, offset, value, false);
    }
}

int64_t op_load_int_at(const dw_tensor *tensor, int64_t offset) {
    switch (tensor->format) {
    case DW_FORMAT_bool: return ((const uint8_t *)tensor->data)[offset] != 0;
    case DW_FORMAT_u8: return ((const uint8_t *)tensor->data)[offset];
    case DW_FORMAT_i8: return ((const int8_t *)tensor->data)[offset];
    case DW_FORMAT_i16: return ((const int16_t *)tensor->data)[offset];
    case DW_FORMAT_i32: return ((const int32_t *)tensor->data)[offset];
    case DW_FORMAT_i64: return ((const int64_t *)tensor->data)[offset];
    default: return op_int_of_real(op_load_at(tensor, offset));
    }
}

void op_store_int_at(const dw_tensor *tensor, int64_t offset, int64_t value) {
    switch (tensor->format) {
    case DW_FORMAT_bool: ((uint8_t *)tensor->data)[offset] = value != 0; return;
    case DW_FORMAT_u8: ((uint8_t *)tensor->data)[offset] = (uint8_t)value; return;
    case DW_FORMAT_i8: ((uint8_t *)tensor->data)[offset] = (uint8_t)value; return;
    case DW_FORMAT_i16: ((uint16_t *)tensor->data)[offset] = (uint16_t)value; return;
    case DW_FORMAT_i32: ((uint32_t *)tensor->data)[offset] = (uint32_t)value; return;
    case DW_FORMAT_i64: ((int64_t *)tensor->data)[offset] = value; return;
    case DW_FORMAT_f64: ((double *)tensor->data)[offset] = (double)value; return;
    default: op_store_at(tensor, offset, op_real_of_int(value));
    }
}

void op_copy_at(const dw_tensor *to, int64_t to_offset, const dw_tensor *from, int64_t from_offset) {
    switch (num_info(to->format)->bits) {
    case 8: ((uint8_t *)to->data)[to_offset] = ((const uint8_t *)from->data)[from_offset]; return;
    case 16: ((uint16_t *)to->data)[to_offset] = ((const uint16_t *)from->data)[from_offset]; return;
    case 32: memcpy((uint32_t *)to->data + to_offset, (const uint32_t *)from->data + from_offset, 4); return;
    case 64: memcpy((uint64_t *)to->data + to_offset, (const uint64_t *)from->data + from_offset, 8); return;
    default: op_store_at(to, to_offset, op_load_at(from, from_offset));
    }
}

void op_tensor_next(const dw_tensor *tensor, int64_t *index) {
    for (int axis = tensor->rank - 1; axis >= 0 && ++index[axis] == tensor->dims[axis]; axis--) index[axis] = 0;
}

double op_tensor_load(const dw_tensor *tensor, const int64_t *index) { return op_load_at(tensor, offset_of(tensor, index)); }

void op_tensor_store(const dw_tensor *tensor, const int64_t *index, double value) { op_store_at(tensor, offset_of(tensor, index), value); }

int64_t op_tensor_load_int(const dw_tensor *tensor, const int64_t *index) { return op_load_int_at(tensor, offset_of(tensor, index)); }

void op_tensor_store_int(const dw_tensor *tensor, const int64_t *index, int64_t value) {
    op_store_int_at(tensor, offset_of(tensor, index), value);
}
