/* Tokens into caches in blocks (fp8_1x128, MX, nvfp4), turned on the way: 32 threads for each 128 columns of a head of a token, four columns each. Each column is turned in double and rounded to the
 * tokens' format, as rotary and cache_write do it one after the other; the largest magnitude of a block is found over the threads that hold it, through shared memory; scales and codes follow num's own text (rules.h, small.h),
 * so the bits are those of quantize. Any format, any strides of tokens. Speed: README.md. */
#include "kernels/cache/places.cuh"

enum { LANE_COLUMNS = CACHE_CHUNK / 32 };

/* Element i of a row of tokens, of its own format: turned if it lies within the width. */
DEVICE float column_at(const cache_arguments *a, const cache_part *p, int64_t from, int64_t token, int64_t i) {
    const int64_t half = a->width / 2;
    if (!p->turned || i >= a->width) return load_float(&p->from, from + i * p->from_step);
    const int second = a->interleaved ? (int)(i & 1) : i >= half;
    const int64_t other = a->interleaved ? i ^ 1 : second ? i - half : i + half;
    const double x = load_double(&p->from, from + i * p->from_step), y = load_double(&p->from, from + other * p->from_step);
    const double c = load_double(&a->cosine, token * a->cosine_token + i * a->cosine_step), s = load_double(&a->sine, token * a->sine_token + i * a->sine_step);
    const double turned = second ? x * c + y * s : x * c - y * s;
    if (p->from.format == CUDA_bf16) return small_from_bf16(small_bf16(odd_float(turned)));
    if (p->from.format == CUDA_f16) return small_from_f16(small_f16(odd_float(turned)));
    return (float)turned;
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

DEVICE uint32_t encode(int format, float value) {
    switch (format) {
    case CUDA_e4m3: return (uint32_t)small_e4m3(value) & 0xff;
    case CUDA_e5m2: return (uint32_t)small_e5m2(value) & 0xff;
    case CUDA_e3m2: return (uint32_t)small_e3m2(value) & 0x3f;
    case CUDA_e2m3: return (uint32_t)small_e2m3(value) & 0x3f;
    default: return (uint32_t)small_e2m1(value) & 0xf;
    }
}

/* A cache's second level, 1 where it is 0, and from then on: what each thread block finds may be what another one has just written. */
DEVICE float second_of(const cuda_rows *to) {
    const unsigned one = 0x3f800000u, found = to->second_kind != 0 ? atomicCAS((unsigned *)to->second, 0u, one) : one;
    return small_float((int32_t)(found == 0 ? one : found));
}

/* The scale of a block, whose code or number comes back as bits in *stored, and what its elements are multiplied by. */
DEVICE float scale_of(const cuda_rows *to, float second, float amax, uint32_t *stored) {
    if (to->scale_format == CUDA_e8m0) {
        const int32_t code = rules_mx_scale(amax, largest_of(to->format), 0);
        *stored = (uint32_t)code;
        return rules_mx_inverse(code);
    }
    if (to->scale_format == CUDA_e4m3) {
        const int32_t code = rules_nv_scale(amax, rules_nv_encode_of(second));
        *stored = (uint32_t)code;
        return rules_nv_inverse(code, second);
    }
    const float bounded = rules_fp8_bounded(amax), scale = rules_is_nan(amax) ? NOT_A_NUMBER : bounded / 448.0f;
    *stored = (uint32_t)small_bits(scale);
    return rules_is_nan(amax) ? scale : 448.0f / bounded;
}

/* Of a lane's columns; a NaN is larger than all. */
DEVICE int32_t lane_amax(const float *x) {
    int32_t most = 0;
    for (int i = 0; i < LANE_COLUMNS; i++) {
        const int32_t bits = small_bits(x[i]) & 0x7fffffff;
        most = most > bits ? most : bits;
    }
    return most;
}

/* Of the lanes that share a block with this one. */
DEVICE float block_amax(const int32_t *amax, int64_t columns) {
    const int lanes = (int)columns / LANE_COLUMNS, first = (int)threadIdx.x / lanes * lanes;
    int32_t most = 0;
    for (int i = 0; i < lanes; i++) most = most > amax[first + i] ? most : amax[first + i];
    return small_float(most);
}

/* A lane's columns from col on, of the row that begins at element item->to. */
DEVICE void put_columns(const cuda_rows *to, float second, int64_t cols, int64_t line, int64_t col, const float *x, float amax) {
    uint32_t stored, codes = 0;
    const float inverse = scale_of(to, second, amax, &stored);
    if (col >= cols) return;
    if (col % to->block_cols == 0) {
        const int64_t at = line * to->scale_cols + col / to->block_cols;
        if (to->scale_format == CUDA_f32) ((uint32_t *)to->scales)[at] = stored;
        else ((uint8_t *)to->scales)[at] = (uint8_t)stored;
    }
    const int bits = to->format == CUDA_e2m1 ? 4 : to->format == CUDA_e3m2 || to->format == CUDA_e2m3 ? 6 : 8;
    for (int i = 0; i < LANE_COLUMNS; i++)
        if (col + i < cols) codes |= encode(to->format, x[i] * inverse) << (bits * i);
    uint8_t *bytes = (uint8_t *)to->data + line * to->row_bytes;
    const int64_t at = col * bits / 8;
    if (bits == 8 && cols % LANE_COLUMNS == 0) {
        *(uint32_t *)(bytes + at) = codes;
        return;
    }
    for (int i = 0; i < bits / 2 && at + i < to->row_bytes; i++) bytes[at + i] = (uint8_t)(codes >> (8 * i));
}

KERNEL(cache_blocks, cache_blocks_arguments) {
    __shared__ int32_t amax[CUDA_THREADS];
    __shared__ float seconds[CACHE_PARTS];
    const cache_arguments *a = &arguments.call;
    const int64_t first = (int64_t)blockIdx.x * a->together, all = a->together * a->units;
    if (threadIdx.x < (unsigned)a->count) seconds[threadIdx.x] = second_of(&arguments.to[threadIdx.x]);
    const cache_found found = cache_places(a, first);
    if (threadIdx.x < (unsigned)a->together && found.places[threadIdx.x].row < 0) cache_raise_outside(a, first + threadIdx.x);
    __syncthreads();
    for (int64_t base = 0; base < all; base += CUDA_THREADS) {
        const int64_t i = base + threadIdx.x, token = i / a->units;
        const int there = i < all && first + token < a->tokens;
        cache_item item = {0, 0, 0, -1, 0};
        float x[LANE_COLUMNS] = {0};
        if (there) {
            const cache_place place = cache_place_of(&found, (int)token);
            item = cache_item_at(a, first + token, &place, i % a->units);
        }
        const cache_part *p = &a->parts[item.part];
        const int64_t col = item.unit / 32 * CACHE_CHUNK + item.unit % 32 * LANE_COLUMNS;
        for (int k = 0; k < LANE_COLUMNS && item.to >= 0; k++) x[k] = col + k < p->cols ? column_at(a, p, item.from, first + token, col + k) : 0.0f;
        __syncthreads();
        amax[threadIdx.x] = lane_amax(x);
        __syncthreads();
        if (item.to >= 0) put_columns(&arguments.to[item.part], seconds[item.part], p->cols, item.to / p->cols, col, x, block_amax(amax, arguments.to[item.part].block_cols));
    }
}

/* A cache that is not written in place: as it was, in words of eight bytes and what is left of them. */
KERNEL(cache_copy_blocks, cache_copy_arguments) {
    for (int part = 0; part < CACHE_COPIES; part++) {
        const uint8_t *from = (const uint8_t *)arguments.from[part];
        uint8_t *to = (uint8_t *)arguments.to[part];
        const int64_t bytes = arguments.bytes[part], words = (arguments.from[part] | arguments.to[part]) % 8 == 0 ? bytes / 8 : 0;
        for (int64_t i = item_first(); i < words; i += item_step()) ((uint64_t *)to)[i] = ((const uint64_t *)from)[i];
        for (int64_t i = 8 * words + item_first(); i < bytes; i += item_step()) to[i] = from[i];
    }
}
