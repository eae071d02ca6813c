/* What plain device halves share: entries, elements of any format, places in index spaces, rows of matrices, reductions of a block, faults. Plain
 * kernels use no instruction that a host compiler could not be given as a function, so that tests run them on the CPU, too. */
#ifndef KERNELS_GPU_PLAIN_DEVICE_CUH
#define KERNELS_GPU_PLAIN_DEVICE_CUH

#include "kernels/gpu/arguments.h"
#include "num/rules.h"
#include "num/small.h"

#ifdef __CUDACC__
#define DEVICE static __device__
/* An entry takes one structure, named arguments. */
#define KERNEL(name, type) extern "C" __global__ void __launch_bounds__(CUDA_THREADS) name(const __grid_constant__ type arguments)
#define INFINITE __int_as_float(0x7f800000)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)
#endif

/* ---- threads ---- */

DEVICE int64_t item_first(void) { return (int64_t)blockIdx.x * blockDim.x + threadIdx.x; }
DEVICE int64_t item_step(void) { return (int64_t)gridDim.x * blockDim.x; }

/* ---- faults ---- */

DEVICE void fault_raise(const cuda_fault_place *place, unsigned kind, int64_t value, int64_t limit) {
    cuda_fault *fault = (cuda_fault *)place->fault;
    if (atomicCAS(&fault->kind, 0u, kind) != 0) return;
    fault->step = place->step;
    fault->value = value;
    fault->limit = limit;
}

/* ---- elements of a byte or more ---- */

/* The float to whose 16-bit neighbour value rounds: rounded to odd, so that rounding again is the same as rounding once. */
DEVICE float odd_float(double value) {
    float nearest = (float)value;
    if ((double)nearest == value || value != value) return nearest;
    int32_t bits = small_bits(nearest);
    if (fabs((double)nearest) > fabs(value)) bits--;
    return small_float(bits | 1);
}

/* Not saturated: what lies beyond the largest finite value is a NaN (e4m3) or infinity (e5m2). */
DEVICE int32_t encode_e4m3(float value) {
    int32_t bits = small_bits(value), magnitude = bits & 0x7fffffff;
    return magnitude > small_bits(464.0f) ? (int32_t)((uint32_t)bits >> 31 << 7 | 0x7f) & (magnitude > SMALL_F32_INFINITY ? 0x7f : 0xff) : small_e4m3(value);
}
DEVICE int32_t encode_e5m2(float value) {
    int32_t bits = small_bits(value), magnitude = bits & 0x7fffffff;
    if (magnitude > SMALL_F32_INFINITY) return 0x7f;
    return magnitude >= small_bits(61440.0f) ? (int32_t)((uint32_t)bits >> 31 << 7 | 0x7c) : small_e5m2(value);
}

DEVICE int64_t load_int(const cuda_array *array, int64_t at) {
    const void *data = (const void *)array->data;
    switch (array->format) {
    case CUDA_bool: return ((const uint8_t *)data)[at] != 0;
    case CUDA_u8: return ((const uint8_t *)data)[at];
    case CUDA_i8: return ((const int8_t *)data)[at];
    case CUDA_i16: return ((const int16_t *)data)[at];
    case CUDA_i32: return ((const int32_t *)data)[at];
    default: return ((const int64_t *)data)[at];
    }
}

/* Wraps at the format's width. */
DEVICE void store_int(const cuda_array *array, int64_t at, int64_t value) {
    void *data = (void *)array->data;
    switch (array->element_bytes) {
    case 1: ((uint8_t *)data)[at] = array->format == CUDA_bool ? value != 0 : (uint8_t)value; return;
    case 2: ((uint16_t *)data)[at] = (uint16_t)value; return;
    case 4: ((uint32_t *)data)[at] = (uint32_t)value; return;
    default: ((int64_t *)data)[at] = value; return;
    }
}

DEVICE float load_float(const cuda_array *array, int64_t at) {
    const void *data = (const void *)array->data;
    switch (array->format) {
    case CUDA_f32: return ((const float *)data)[at];
    case CUDA_bf16: return small_from_bf16(((const uint16_t *)data)[at]);
    case CUDA_f16: return small_from_f16(((const uint16_t *)data)[at]);
    case CUDA_e4m3: return small_from_e4m3(((const uint8_t *)data)[at]);
    case CUDA_e5m2: return small_from_e5m2(((const uint8_t *)data)[at]);
    case CUDA_f64: return (float)((const double *)data)[at];
    case CUDA_e8m0: return small_from_e8m0(((const uint8_t *)data)[at]);
    default: return (float)load_int(array, at);
    }
}

DEVICE double load_double(const cuda_array *array, int64_t at) {
    return array->format == CUDA_f64 ? ((const double *)array->data)[at] : (double)load_float(array, at);
}

/* A 16-bit result keeps the NaN of PTX. */
DEVICE void store_float(const cuda_array *array, int64_t at, float value) {
    void *data = (void *)array->data;
    switch (array->format) {
    case CUDA_f32: ((float *)data)[at] = value; return;
    case CUDA_bf16: ((uint16_t *)data)[at] = (uint16_t)small_bf16(value); return;
    case CUDA_f16: ((uint16_t *)data)[at] = (uint16_t)small_f16(value); return;
    case CUDA_e4m3: ((uint8_t *)data)[at] = (uint8_t)encode_e4m3(value); return;
    case CUDA_e5m2: ((uint8_t *)data)[at] = (uint8_t)encode_e5m2(value); return;
    case CUDA_f64: ((double *)data)[at] = (double)value; return;
    case CUDA_bool: ((uint8_t *)data)[at] = value != 0; return;
    default: return;
    }
}

/* Rounded once. */
DEVICE void store_double(const cuda_array *array, int64_t at, double value) {
    if (array->format == CUDA_f64) ((double *)array->data)[at] = value;
    else store_float(array, at, array->format == CUDA_f32 ? (float)value : odd_float(value));
}

DEVICE void copy_element(const cuda_array *to, int64_t to_at, const cuda_array *from, int64_t from_at) {
    switch (to->element_bytes) {
    case 1: ((uint8_t *)to->data)[to_at] = ((const uint8_t *)from->data)[from_at]; return;
    case 2: ((uint16_t *)to->data)[to_at] = ((const uint16_t *)from->data)[from_at]; return;
    case 4: ((uint32_t *)to->data)[to_at] = ((const uint32_t *)from->data)[from_at]; return;
    default: ((uint64_t *)to->data)[to_at] = ((const uint64_t *)from->data)[from_at]; return;
    }
}

DEVICE int is_integer(int format) { return format <= CUDA_i64; }

/* What an integer may keep on the way to a narrower format: beyond 2^53 the bits that do not fit leave one behind, so that the next rounding is right. */
DEVICE double real_of_int(int64_t value) {
    if (value > -(1LL << 53) && value < 1LL << 53) return (double)value;
    uint64_t magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    uint64_t kept = (magnitude & ~0x7ffULL) | ((magnitude & 0x7ff) != 0 ? 0x400u : 0u);
    return value < 0 ? -(double)kept : (double)kept;
}

/* Toward zero, saturating; NaN is 0. */
DEVICE int64_t int_of_real(double value) {
    if (value != value) return 0;
    if (value >= 9223372036854775808.0) return INT64_MAX;
    if (value < -9223372036854775808.0) return INT64_MIN;
    return (int64_t)value;
}

/* An integer into any format, and a real number into any format: rounded once. */
DEVICE void store_integer(const cuda_array *array, int64_t at, int64_t value) {
    if (is_integer(array->format)) store_int(array, at, value);
    else if (array->format == CUDA_f64) ((double *)array->data)[at] = (double)value;
    else store_double(array, at, real_of_int(value));
}
DEVICE void store_real(const cuda_array *array, int64_t at, double value) {
    if (array->format == CUDA_bool) store_int(array, at, value != 0);
    else if (is_integer(array->format)) store_int(array, at, int_of_real(value));
    else store_double(array, at, value);
}

/* to += from, as one element: integers wrap, real numbers are rounded once. */
DEVICE void add_element(const cuda_array *to, int64_t to_at, const cuda_array *from, int64_t from_at) {
    if (is_integer(to->format)) store_int(to, to_at, (int64_t)((uint64_t)load_int(to, to_at) + (uint64_t)load_int(from, from_at)));
    else store_double(to, to_at, load_double(to, to_at) + load_double(from, from_at));
}

/* ---- places ---- */

/* The offsets of item flat in each of the nest's first count operands. */
DEVICE void nest_offsets(const cuda_nest *nest, int64_t flat, int count, int64_t *offsets) {
    for (int k = 0; k < count; k++) offsets[k] = 0;
    if (nest->narrow) {
        uint32_t left = (uint32_t)flat;
        for (int axis = nest->rank - 1; axis >= 0; axis--) {
            uint32_t size = (uint32_t)nest->dims[axis], index = axis > 0 ? left % size : left;
            left = axis > 0 ? left / size : 0;
            for (int k = 0; k < count; k++) offsets[k] += index * nest->strides[k][axis];
        }
        return;
    }
    for (int axis = nest->rank - 1; axis >= 0; axis--) {
        int64_t index = axis > 0 ? flat % nest->dims[axis] : flat;
        flat = axis > 0 ? flat / nest->dims[axis] : 0;
        for (int k = 0; k < count; k++) offsets[k] += index * nest->strides[k][axis];
    }
}

/* ---- rows of matrices in any format ---- */

/* A code of fewer than 8 bits: element index of a row of bytes. */
DEVICE int32_t packed_code(int bits, const uint8_t *row, int64_t index) {
    if (bits == 4) return row[index >> 1] >> ((index & 1) * 4) & 15;
    int64_t bit = index * 6;
    int shift = (int)(bit & 7);
    int low = row[bit >> 3] >> shift;
    return (shift > 2 ? low | row[(bit >> 3) + 1] << (8 - shift) : low) & 63;
}

/* Element l of row number row (of all matrices, in one piece) without its scale. */
DEVICE float rows_element(const cuda_rows *rows, int64_t row, int64_t l) {
    const uint8_t *bytes = (const uint8_t *)rows->data + row * rows->row_bytes;
    switch (rows->format) {
    case CUDA_e4m3: return small_from_e4m3(bytes[l]);
    case CUDA_e5m2: return small_from_e5m2(bytes[l]);
    case CUDA_e3m2: return small_from_e3m2(packed_code(6, bytes, l));
    case CUDA_e2m3: return small_from_e2m3(packed_code(6, bytes, l));
    default: return small_from_e2m1(packed_code(4, bytes, l));
    }
}

DEVICE int64_t rows_scale_index(const cuda_rows *rows, int64_t row, int64_t l) {
    int64_t matrix = row / rows->matrix_rows, row_block = (row - matrix * rows->matrix_rows) / rows->block_rows, col_block = l / rows->block_cols;
    int64_t at = matrix * rows->scale_rows * rows->scale_cols;
    if (!rows->tiled) return at + row_block * rows->scale_cols + col_block;
    int64_t tile = row_block / 128 * ((rows->scale_cols + 3) / 4) + col_block / 4;   /* cuBLAS documentation, "Block Scaling Factors Layout" */
    return at + tile * 512 + row_block % 32 * 16 + row_block % 128 / 32 * 4 + col_block % 4;
}

DEVICE float rows_scale(const cuda_rows *rows, int64_t row, int64_t l) {
    int64_t at = rows_scale_index(rows, row, l);
    if (rows->scale_format == CUDA_f32) return ((const float *)rows->scales)[at];
    uint8_t code = ((const uint8_t *)rows->scales)[at];
    return rows->scale_format == CUDA_e8m0 ? small_from_e8m0(code) : small_from_e4m3(code);
}

/* Element times block scale: exact for MX and NVFP4's first level, rounded once for fp32 scales. */
DEVICE float rows_scaled(const cuda_rows *rows, int64_t row, int64_t l) { return rows_element(rows, row, l) * rows_scale(rows, row, l); }

/* The second-level factor of a row; 1 where there is none. */
DEVICE float rows_second(const cuda_rows *rows, int64_t row) {
    if (rows->second_kind == 0) return 1.0f;
    return ((const float *)rows->second)[rows->second_kind == 2 ? row : 0];
}

/* Element l of row r of the matrix that begins at element first: of plain formats by strides, of packed ones by rows. */
DEVICE float rows_load(const cuda_rows *rows, int64_t first, int64_t first_row, int64_t r, int64_t l) {
    if (rows->scale_format != CUDA_FORMAT_COUNT) return rows_scaled(rows, first_row + r, l);
    const int64_t at = first + r * rows->row_stride + l * rows->k_stride;
    switch (rows->format) {
    case CUDA_f32: return ((const float *)rows->data)[at];
    case CUDA_bf16: return small_from_bf16(((const uint16_t *)rows->data)[at]);
    case CUDA_f16: return small_from_f16(((const uint16_t *)rows->data)[at]);
    case CUDA_e4m3: return small_from_e4m3(((const uint8_t *)rows->data)[at]);
    case CUDA_e5m2: return small_from_e5m2(((const uint8_t *)rows->data)[at]);
    case CUDA_f64: return (float)((const double *)rows->data)[at];
    default: return rows_element(rows, first_row + r, l);
    }
}

/* ---- a block's threads together: every thread calls, every thread gets the result; the order of sums is fixed ---- */

#define BLOCK_REDUCE(name, type, combine)                                                        \
    DEVICE type name(type value) {                                                               \
        __shared__ type shared_##name[CUDA_THREADS];                                             \
        int thread = (int)threadIdx.x;                                                           \
        __syncthreads();                                                                         \
        shared_##name[thread] = value;                                                           \
        __syncthreads();                                                                         \
        for (int step = CUDA_THREADS / 2; step > 0; step /= 2) {                                 \
            if (thread < step) {                                                                 \
                type a = shared_##name[thread], b = shared_##name[thread + step];                \
                shared_##name[thread] = combine;                                                 \
            }                                                                                    \
            __syncthreads();                                                                     \
        }                                                                                        \
        return shared_##name[0];                                                                 \
    }

#define BLOCK_SUM(name) BLOCK_REDUCE(name, double, a + b)
/* The largest; NaN if any is. */
#define BLOCK_MAX(name) BLOCK_REDUCE(name, double, a != a || a > b ? a : b)

#endif
