/* quantize and dequantize, bit for bit as num does them. Formats whose blocks lie in a row and are short (MX, NVFP4, 1x128): a thread for each block. Others: a
 * block of threads for each block of elements, or for each row where one scale serves the tensor. What the scales above depend on comes first: the largest magnitude of
 * the tensor in parts, by its own launch, or of the row, by the row's threads. Resources: 1 KiB of shared memory. Speed: bench/results/h200/plain.md. */
#include "kernels/gpu/plain/device.cuh"
#include "kernels/quantize/quantize_cuda.h"

BLOCK_REDUCE(block_largest, int32_t, a > b ? a : b)

/* Magnitudes as integers: they order alike, and a NaN is larger than all. */
DEVICE int32_t magnitude(float x) { return small_bits(x) & 0x7fffffff; }
DEVICE int32_t magnitude_without_nan(float x) { return rules_is_nan(x) ? 0 : magnitude(x); }

DEVICE float x_at(const quantize_arguments *a, int64_t row_at, int64_t col) { return load_float(&a->x, row_at + col * a->x_step); }

DEVICE int32_t encode(int format, float value) {
    switch (format) {
    case CUDA_e4m3: return small_e4m3(value);
    case CUDA_e5m2: return small_e5m2(value);
    case CUDA_e3m2: return small_e3m2(value);
    case CUDA_e2m3: return small_e2m3(value);
    default: return small_e2m1(value);
    }
}

DEVICE float largest_of(int format) {
    switch (format) {
    case CUDA_e4m3: return 448.0f;
    case CUDA_e5m2: return 57344.0f;
    case CUDA_e3m2: return 28.0f;
    case CUDA_e2m3: return 7.5f;
    default: return 6.0f;
    }
}

/* Elements [begin, end) of a row times inverse; begin is a multiple of 8, so that codes begin on a byte. Unused bits of the last byte are zero. */
DEVICE void encode_run(const quantize_arguments *a, int64_t row, int64_t row_at, int64_t begin, int64_t end, float inverse) {
    uint8_t *to = (uint8_t *)a->out.data + row * a->out.row_bytes + begin * a->element_bits / 8;
    uint32_t bits = 0;
    int held = 0;
    for (int64_t i = begin; i < end; i++) {
        bits |= (uint32_t)encode(a->out.format, x_at(a, row_at, i) * inverse) << held;
        for (held += a->element_bits; held >= 8; held -= 8) {
            *to++ = (uint8_t)bits;
            bits >>= 8;
        }
    }
    if (held > 0) *to = (uint8_t)bits;
}

/* Returns what the block's elements are multiplied by; its scale is written by the thread of which writes is true. */
DEVICE float write_scale(const quantize_arguments *a, int writes, int64_t row, int64_t col, float amax, float nv_encode, float nv_decode) {
    int64_t at = rows_scale_index(&a->out, row, col);
    if (a->out.scale_format == CUDA_e8m0) {
        int32_t code = rules_mx_scale(amax, largest_of(a->out.format), a->floors);
        if (writes) ((uint8_t *)a->out.scales)[at] = (uint8_t)code;
        return rules_mx_inverse(code);
    }
    if (a->out.scale_format == CUDA_e4m3) {
        int32_t code = rules_nv_scale(amax, nv_encode);
        if (writes) ((uint8_t *)a->out.scales)[at] = (uint8_t)code;
        return rules_nv_inverse(code, nv_decode);
    }
    float bounded = rules_fp8_bounded(amax), scale = rules_is_nan(amax) ? NOT_A_NUMBER : bounded / 448.0f;
    if (writes) ((float *)a->out.scales)[at] = scale;
    return rules_is_nan(amax) ? scale : 448.0f / bounded;
}

/* ---- the search for better scales, num.h's, in blocks of e2m1 ---- */

/* The squared error of elements [begin, end) of a row under a candidate: unit and value are num.h's U and S. */
DEVICE float candidate_error(const quantize_arguments *a, int64_t row_at, int64_t begin, int64_t end, float inverse, float unit, float value) {
    float sum = 0;
    for (int64_t i = begin; i < end; i++) {
        float size = small_float(magnitude(x_at(a, row_at, i)));
        float nearest = small_from_e2m1(small_e2m1(size * inverse));
        float error = size * unit - nearest * value;
        sum += error * error;
    }
    return sum;
}

/* The best candidate's code becomes the scale of the block; returns what its elements are multiplied by, which is inverse where there is nothing to search. */
DEVICE float search(const quantize_arguments *a, int64_t row, int64_t row_at, int64_t begin, int64_t end, float inverse, float nv_encode, float nv_decode) {
    const int steps[] = RULES_NV_STEPS;
    int is_nv = a->out.scale_format == CUDA_e4m3, count = is_nv ? (int)(sizeof steps / sizeof *steps) : 2;
    uint8_t *scale = (uint8_t *)a->out.scales + rows_scale_index(&a->out, row, begin);
    int32_t code = *scale, last = is_nv ? 0x7e : 0xfd;
    float first = inverse, least = 0;
    if (code == 0 || code > last) return inverse;   /* zeros, infinities, NaN */
    for (int i = 0; i < count; i++) {
        int32_t near = is_nv ? code + steps[i] : code - i;
        if (near < is_nv || near > last) continue;
        float value = is_nv ? small_from_e4m3(near) : i == 0 ? 1.0f : 0.5f;
        float by = is_nv ? rules_nv_inverse(near, nv_decode) : rules_mx_inverse(near);
        float error = candidate_error(a, row_at, begin, end, by, is_nv ? nv_encode : first, value);
        if (i > 0 && !(error < least)) continue;
        least = error;
        inverse = by;
        *scale = (uint8_t)near;
    }
    return inverse;
}

/* ---- the largest magnitude of a tensor, in parts ---- */

KERNEL(quantize_parts, quantize_arguments) {
    int without_nan = arguments.out.second_kind != 0;
    int32_t most = 0;
    for (int64_t row = blockIdx.x; row < arguments.rows; row += gridDim.x) {
        int64_t at[1];
        nest_offsets(&arguments.nest, row, 1, at);
        for (int64_t i = threadIdx.x; i < arguments.cols; i += CUDA_THREADS) {
            float x = x_at(&arguments, at[0], i);
            int32_t bits = without_nan ? magnitude_without_nan(x) : magnitude(x);
            most = most > bits ? most : bits;
        }
    }
    most = block_largest(most);
    if (threadIdx.x == 0) ((int32_t *)arguments.partial)[blockIdx.x] = most;
}

DEVICE float largest_part(const quantize_arguments *a) {
    int32_t most = 0;
    for (int i = 0; i < QUANTIZE_PARTS; i++) {
        int32_t part = ((const int32_t *)a->partial)[i];
        most = most > part ? most : part;
    }
    return small_float(most);
}

/* ---- short blocks: a thread each ---- */

/* The second level of one row, or of the tensor: also written, by one thread. */
DEVICE void second_level(const quantize_arguments *a, int64_t row, int64_t row_at, int writes, float *encode_by, float *decode_by) {
    float second;
    if (a->has_given) {
        second = a->level > 0 ? a->level : load_float(&a->given, 0);
        *encode_by = rules_nv_encode_of(second);
    } else {
        float amax;
        if (a->out.second_kind == 1) {
            amax = largest_part(a);
        } else {
            int32_t most = 0;
            for (int64_t i = 0; i < a->cols; i++) {
                int32_t bits = magnitude_without_nan(x_at(a, row_at, i));
                most = most > bits ? most : bits;
            }
            amax = small_float(most);
        }
        *encode_by = rules_nv_encode(amax);
        second = 1.0f / *encode_by;
    }
    *decode_by = second;
    if (writes) ((float *)a->out.second)[a->out.second_kind == 2 ? row : 0] = second;
}

KERNEL(quantize_short, quantize_arguments) {
    int64_t blocks = arguments.col_blocks > 0 ? arguments.col_blocks : 1;   /* a row without elements may still have a second level */
    for (int64_t item = item_first(); item < arguments.rows * blocks; item += item_step()) {
        int64_t row = item / blocks, block = item % blocks, at[1];
        int64_t begin = block * arguments.out.block_cols, end = begin + arguments.out.block_cols;
        float encode_by = 1.0f, decode_by = 1.0f;
        int32_t most = 0;
        if (end > arguments.cols) end = arguments.cols;
        nest_offsets(&arguments.nest, row, 1, at);
        if (arguments.out.second_kind != 0)
            second_level(&arguments, row, at[0], arguments.out.second_kind == 2 ? block == 0 : item == 0, &encode_by, &decode_by);
        if (arguments.col_blocks == 0) continue;
        for (int64_t i = begin; i < end; i++) {
            int32_t bits = magnitude(x_at(&arguments, at[0], i));
            most = most > bits ? most : bits;
        }
        float inverse = write_scale(&arguments, 1, row, begin, small_float(most), encode_by, decode_by);
        if (arguments.searches && most < SMALL_F32_INFINITY) inverse = search(&arguments, row, at[0], begin, end, inverse, encode_by, decode_by);
        encode_run(&arguments, row, at[0], begin, end, inverse);
    }
}

/* The second level of a tensor without rows or columns. */
KERNEL(quantize_second, quantize_arguments) {
    float encode_by, decode_by;
    if (blockIdx.x == 0 && threadIdx.x == 0) second_level(&arguments, 0, 0, 1, &encode_by, &decode_by);
}

/* ---- blocks over whole rows, several rows or the tensor: fp8 ---- */

KERNEL(quantize_wide, quantize_arguments) {
    int64_t high = arguments.over_tensor ? 1 : arguments.out.block_rows, matrix_rows = arguments.over_tensor ? arguments.rows : arguments.out.matrix_rows;
    int64_t per_matrix = arguments.row_blocks * arguments.col_blocks;
    int64_t items = arguments.over_tensor ? (arguments.rows > 0 ? arguments.rows : 1) : arguments.rows / (matrix_rows > 0 ? matrix_rows : 1) * per_matrix;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        int64_t matrix = arguments.over_tensor ? 0 : item / per_matrix, inside = arguments.over_tensor ? item : item % per_matrix;
        int64_t top = inside / arguments.col_blocks * high, bottom = top + high, left = 0, right = arguments.cols, at[1];
        if (arguments.out.block_cols < arguments.cols) {
            left = inside % arguments.col_blocks * arguments.out.block_cols;
            right = left + arguments.out.block_cols < arguments.cols ? left + arguments.out.block_cols : arguments.cols;
        }
        if (bottom > matrix_rows) bottom = matrix_rows;
        int32_t most = 0;
        for (int64_t r = top; !arguments.over_tensor && r < bottom; r++) {
            nest_offsets(&arguments.nest, matrix * matrix_rows + r, 1, at);
            for (int64_t i = left + threadIdx.x; i < right; i += CUDA_THREADS) {
                int32_t bits = magnitude(x_at(&arguments, at[0], i));
                most = most > bits ? most : bits;
            }
        }
        float amax = arguments.over_tensor ? largest_part(&arguments) : small_float(block_largest(most));
        int writes = threadIdx.x == 0 && (!arguments.over_tensor || item == 0);
        float inverse = write_scale(&arguments, writes, matrix * matrix_rows + top, left, amax, 1.0f, 1.0f);
        for (int64_t r = top; r < bottom; r++) {
            int64_t row = matrix * matrix_rows + r;
            nest_offsets(&arguments.nest, row, 1, at);
            for (int64_t i = left + threadIdx.x; i < right; i += CUDA_THREADS)
                ((uint8_t *)arguments.out.data)[row * arguments.out.row_bytes + i] = (uint8_t)encode(arguments.out.format, x_at(&arguments, at[0], i) * inverse);
        }
    }
}

KERNEL(quantize_clear, clear_arguments) {
    for (int64_t i = item_first(); i < arguments.count; i += item_step()) ((uint8_t *)arguments.bytes)[i] = 0;
}

/* ---- back ---- */

KERNEL(quantize_back, dequantize_arguments) {
    for (int64_t item = item_first(); item < arguments.rows * arguments.cols; item += item_step()) {
        int64_t row = item / arguments.cols, col = item % arguments.cols, at[1];
        nest_offsets(&arguments.nest, row, 1, at);
        float value = rows_scaled(&arguments.x, row, col);
        if (arguments.x.second_kind != 0) value *= rows_second(&arguments.x, row);
        store_float(&arguments.out, at[0] + col * arguments.out_step, value);
    }
}
