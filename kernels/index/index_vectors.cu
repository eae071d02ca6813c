/* take and index of rows: words of 16 bytes, or of as many as narrow rows are made of, where they lie side by side in x and in the result, four of them a thread. take, gather and index of elements that indices name
 * one by one: eight side by side of the result a thread. index_put, all places together: which place is the last one that
 * writes to an element is found first. Sums of all places together: the first place of each combination of indices adds up all that have it, in their order. Resources: 2 KiB of shared memory.
 * Speed: README.md. */
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/ldst.cuh"
#include "kernels/index/index.cuh"

enum { WORDS_AT_ONCE = 4 };

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) index_read_words(const __grid_constant__ read_arguments arguments) {
    const read_arguments *a = &arguments;
    grid_release();
    grid_wait();
    for (int64_t first = (int64_t)blockIdx.x * CUDA_THREADS * WORDS_AT_ONCE + threadIdx.x; first < a->nest.count; first += item_step() * WORDS_AT_ONCE) {
        int64_t to[WORDS_AT_ONCE], from[WORDS_AT_ONCE];
        uint4 words[WORDS_AT_ONCE];
#pragma unroll
        for (int k = 0; k < WORDS_AT_ONCE; k++) {
            int64_t at[2 + INDEX_MOST];
            const int64_t i = first + k * CUDA_THREADS;
            from[k] = i < a->nest.count ? read_place(a, i, at) : -1;
            to[k] = at[0];
        }
#pragma unroll
        for (int k = 0; k < WORDS_AT_ONCE; k++) words[k] = from[k] < 0 ? make_uint4(0, 0, 0, 0) : ((const uint4 *)a->x.data)[from[k]];
#pragma unroll
        for (int k = 0; k < WORDS_AT_ONCE; k++)
            if (first + k * CUDA_THREADS < a->nest.count) ((uint4 *)a->out.data)[to[k]] = words[k];
    }
}

/* The same of rows [rows, words] that one index names, as of embeddings: one division says which row a word is of. Words of 16 bytes, or of as many as narrow rows are made of. */
#define READ_ROWS(name, type)                                                                                                                                                            \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS) name(const __grid_constant__ read_arguments arguments) {                                                                  \
        const read_arguments *a = &arguments;                                                                                                                                            \
        const int last = a->nest.rank - 1;                                                                                                                                               \
        const uint32_t words_of_row = (uint32_t)a->nest.dims[last], count = (uint32_t)a->nest.count;                                                                                     \
        const int64_t to_row = last > 0 ? a->nest.strides[0][0] : 0, from_row = last > 0 ? a->nest.strides[1][0] : 0, index_row = last > 0 ? a->nest.strides[2][0] : 0;                  \
        grid_release();                                                                                                                                                                  \
        grid_wait();                                                                                                                                                                     \
        for (uint32_t first = blockIdx.x * CUDA_THREADS * WORDS_AT_ONCE + threadIdx.x; first < count; first += gridDim.x * CUDA_THREADS * WORDS_AT_ONCE) {                               \
            int64_t to[WORDS_AT_ONCE], from[WORDS_AT_ONCE];                                                                                                                              \
            type words[WORDS_AT_ONCE];                                                                                                                                                   \
            _Pragma("unroll") for (int k = 0; k < WORDS_AT_ONCE; k++) {                                                                                                                  \
                const uint32_t i = first + k * CUDA_THREADS, row = i / words_of_row, word = i - row * words_of_row;                                                                      \
                from[k] = to[k] = -1;                                                                                                                                                    \
                if (i >= count) continue;                                                                                                                                                \
                const int64_t index = load_index(&a->index[0], row * index_row, a->sizes[0], &a->fault);                                                                                 \
                to[k] = row * to_row + word;                                                                                                                                             \
                if (index >= 0) from[k] = row * from_row + index * a->strides[0] + word;                                                                                                 \
            }                                                                                                                                                                            \
            _Pragma("unroll") for (int k = 0; k < WORDS_AT_ONCE; k++) {                                                                                                                  \
                const type zero = {0};                                                                                                                                                   \
                words[k] = from[k] < 0 ? zero : ((const type *)a->x.data)[from[k]];                                                                                                      \
            }                                                                                                                                                                            \
            _Pragma("unroll") for (int k = 0; k < WORDS_AT_ONCE; k++)                                                                                                                    \
                if (to[k] >= 0) ((type *)a->out.data)[to[k]] = words[k];                                                                                                                 \
        }                                                                                                                                                                                \
    }
READ_ROWS(index_read_rows, uint4)
READ_ROWS(index_read_rows_8, uint2)
READ_ROWS(index_read_rows_4, uint32_t)
READ_ROWS(index_read_rows_2, uint16_t)
READ_ROWS(index_read_rows_1, uint8_t)

/* ---- elements that indices name one by one ---- */

enum { LOOKED_UP = 8 };
#define EACH_LOOKED_UP(i) _Pragma("unroll") for (int i = 0; i < LOOKED_UP; i++)

/* An index from the front, or -1 and a fault. */
static __device__ __forceinline__ int64_t checked_index(const look_up_arguments *a, const int k, int64_t given) {
    const int64_t from_front = given < 0 ? given + a->sizes[k] : given;
    if (from_front >= 0 && from_front < a->sizes[k]) return from_front;
    fault_raise(&a->fault, CUDA_FAULT_INDEX, given, a->sizes[k]);
    return -1;
}

/* What index tensor k has for eight elements, from element at on. */
static __device__ __forceinline__ void load_indices(const look_up_arguments *a, const int k, int64_t at, int64_t *x) {
    if (a->in_pairs[k]) {
        const longlong2 *from = (const longlong2 *)((const int64_t *)a->index[k].data + at);
        longlong2 pairs[LOOKED_UP / 2];
#pragma unroll
        for (int i = 0; i < LOOKED_UP / 2; i++) pairs[i] = from[i];
#pragma unroll
        for (int i = 0; i < LOOKED_UP / 2; i++) x[2 * i] = pairs[i].x, x[2 * i + 1] = pairs[i].y;
    } else {
        EACH_LOOKED_UP(i) x[i] = load_int(&a->index[k], at + i * a->steps[k]);
    }
}

/* The places of a vector in out, x and the index tensors. */
static __device__ __forceinline__ void vector_places(const cuda_nest *nest, int64_t vector, int64_t *at) {
#pragma unroll
    for (int k = 0; k < 2 + LOOK_UP_INDICES; k++) at[k] = 0;
    for (int axis = nest->rank - 1; axis >= 0; axis--) {
        const int64_t next = axis == 0 ? 0 : nest->narrow ? (uint32_t)vector / (uint32_t)nest->dims[axis] : vector / nest->dims[axis], index = vector - next * nest->dims[axis];
#pragma unroll
        for (int k = 0; k < 2 + LOOK_UP_INDICES; k++) at[k] += index * nest->strides[k][axis];
        vector = next;
    }
}

/* Eight elements of x to one place of out. type: of an element; from: where they lie in x, but for what one index adds to all eight; outside: a bit for each that an index names outside, which is 0 and not read. */
#define LOOK_UP(name, type)                                                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS) name(const __grid_constant__ look_up_arguments arguments) {                                                  \
        const look_up_arguments *a = &arguments;                                                                                                                            \
        const int64_t first = (int64_t)blockIdx.y * LOOK_UP_REPEATS, end = min(first + LOOK_UP_REPEATS, a->repeats);                                                        \
        grid_release();                                                                                                                                                     \
        grid_wait();                                                                                                                                                        \
        for (int64_t vector = item_first(); vector < a->nest.count; vector += item_step()) {                                                                                \
            int64_t at[2 + LOOK_UP_INDICES], from[LOOKED_UP];                                                                                                               \
            uint32_t outside = 0;                                                                                                                                           \
            vector_places(&a->nest, vector, at);                                                                                                                            \
            EACH_LOOKED_UP(i) from[i] = at[1] + i * a->x_step;                                                                                                              \
            _Pragma("unroll") for (int k = 0; k < LOOK_UP_INDICES; k++) {                                                                                                   \
                if (k >= a->indices || a->steps[k] == 0) continue;                                                                                                          \
                int64_t given[LOOKED_UP];                                                                                                                                   \
                load_indices(a, k, at[2 + k], given);                                                                                                                       \
                EACH_LOOKED_UP(i) {                                                                                                                                         \
                    const int64_t index = checked_index(a, k, given[i]);                                                                                                    \
                    from[i] += index * a->strides[k];                                                                                                                       \
                    outside |= (uint32_t)(index < 0) << i;                                                                                                                  \
                }                                                                                                                                                           \
            }                                                                                                                                                               \
            _Pragma("unroll 1") for (int64_t r = first; r < end; r++) {                                                                                                     \
                int64_t base = r * a->repeat_steps[1];                                                                                                                      \
                uint32_t none = outside;                                                                                                                                    \
                __align__(16) type x[LOOKED_UP];                                                                                                                            \
                _Pragma("unroll") for (int k = 0; k < LOOK_UP_INDICES; k++) {                                                                                               \
                    if (k >= a->indices || a->steps[k] != 0) continue;                                                                                                      \
                    const int64_t index = checked_index(a, k, load_int(&a->index[k], at[2 + k] + r * a->repeat_steps[2 + k]));                                              \
                    base += index * a->strides[k];                                                                                                                          \
                    if (index < 0) none = (1u << LOOKED_UP) - 1;                                                                                                            \
                }                                                                                                                                                           \
                EACH_LOOKED_UP(i) x[i] = none >> i & 1 ? 0 : ((const type *)a->x.data)[base + from[i]];                                                                     \
                store_looked_up((type *)a->out.data + at[0] + r * a->repeat_steps[0], x);                                                                                   \
            }                                                                                                                                                               \
        }                                                                                                                                                                   \
    }
#define STORE_LOOKED_UP(type, word)                                                                                                                                         \
    static __device__ __forceinline__ void store_looked_up(type *to, const type x[LOOKED_UP]) {                                                                             \
        word words[LOOKED_UP * sizeof(type) / sizeof(word)];                                                                                                                \
        memcpy(words, x, sizeof words);                                                                                                                                     \
        _Pragma("unroll") for (int i = 0; i < (int)(sizeof words / sizeof words[0]); i++) ((word *)to)[i] = words[i];                                                       \
    }
STORE_LOOKED_UP(uint8_t, uint2)
STORE_LOOKED_UP(uint16_t, uint4)
STORE_LOOKED_UP(uint32_t, uint4)
STORE_LOOKED_UP(uint64_t, uint4)
LOOK_UP(index_look_up_1, uint8_t)
LOOK_UP(index_look_up_2, uint16_t)
LOOK_UP(index_look_up_4, uint32_t)
LOOK_UP(index_look_up_8, uint64_t)

/* ---- writing ---- */

/* What a place says of out: where its first element lies, and which combination of indices it is; -1: one lies outside. */
static __device__ __forceinline__ int64_t place_key(const write_arguments *a, int64_t place, int64_t *at, int64_t *to) {
    int64_t key = 0;
    nest_offsets(&a->places, place, 2 + a->indices, at);
    *to = at[0];
    for (int k = 0; k < a->indices; k++) {
        const int64_t index = load_index(&a->index[k], at[2 + k], a->sizes[k], &a->fault);
        if (index < 0) return -1;
        *to += index * a->strides[k];
        key = key * a->sizes[k] + index;
    }
    return key;
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) index_last_places(const __grid_constant__ place_arguments arguments) {
    const write_arguments *a = &arguments.write;
    for (int64_t place = item_first(); place < a->places.count; place += item_step()) {
        int64_t at[2 + INDEX_MOST], to;
        const int64_t key = place_key(a, place, at, &to);
        if (key >= 0) atomicMax((uint32_t *)arguments.last + key, (uint32_t)place + 1);
    }
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) index_write_places(const __grid_constant__ place_arguments arguments) {
    const write_arguments *a = &arguments.write;
    for (int64_t i = item_first(); i < a->places.count * a->items.count; i += item_step()) {
        int64_t at[2 + INDEX_MOST], item[2 + INDEX_MOST], to;
        const int64_t place = i / a->items.count, key = place_key(a, place, at, &to);
        if (key < 0 || ((const uint32_t *)arguments.last)[key] != (uint32_t)place + 1) continue;
        nest_offsets(&a->items, i - place * a->items.count, 2, item);
        to += item[0];
        const int64_t from = at[1] + item[1];
        if (arguments.in_words) ((uint4 *)a->out.data)[to] = ((const uint4 *)a->values.data)[from];
        else copy_element(&a->out, to, &a->values, from);
    }
}

/* ---- sums ---- */

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) index_count_places(const __grid_constant__ place_arguments arguments) {
    const write_arguments *a = &arguments.write;
    for (int64_t place = item_first(); place < a->places.count; place += item_step()) {
        int64_t at[2 + INDEX_MOST], to;
        const int64_t key = place_key(a, place, at, &to);
        const index_place found = {to, at[1], (uint32_t)key, 0};
        ((index_place *)arguments.places)[place] = found;
        if (key < 0) continue;
        atomicMax((uint32_t *)arguments.last + key, (uint32_t)(a->places.count - place));
        atomicAdd((uint32_t *)arguments.counts + key, 1u);
    }
}

/* How many places have the combination of this one, if it is the first of them; else 0. */
static __device__ __forceinline__ int count_of(const place_arguments *p, int64_t place, uint32_t key) {
    if (key == UINT32_MAX || ((const uint32_t *)p->last)[key] != (uint32_t)(p->write.places.count - place)) return 0;
    return (int)((const uint32_t *)p->counts)[key];
}

/* Where the values of those of CUDA_THREADS places from `from` on begin that have the key, in their order; returns how many they are. */
static __device__ __forceinline__ int list_places(const place_arguments *p, int64_t from, uint32_t key, int64_t *list) {
    __shared__ int counts[CUDA_THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const index_place *place = (const index_place *)p->places + from + threadIdx.x;
    const bool is_of_key = from + threadIdx.x < p->write.places.count && place->key == key;
    const uint32_t bits = __ballot_sync(0xffffffff, is_of_key);
    int before = __popc(bits & ((1u << lane) - 1)), all = 0;
    if (lane == 0) counts[warp] = __popc(bits);
    __syncthreads();
    for (int i = 0; i < CUDA_THREADS / 32; i++) {
        before += i < warp ? counts[i] : 0;
        all += counts[i];
    }
    if (is_of_key) list[before] = place->values;
    __syncthreads();
    return all;
}

/* A word of 16 bytes as numbers: 4 of f32, 8 of 16-bit formats. */
typedef struct word_values { float of[8]; } word_values;

static __device__ __forceinline__ word_values widen_word(const int format, uint4 word) {
    const uint32_t of[4] = {word.x, word.y, word.z, word.w};
    word_values y;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (format == CUDA_f32) {
            y.of[i] = __uint_as_float(of[i]);
            continue;
        }
        y.of[2 * i] = format == CUDA_bf16 ? __uint_as_float(of[i] << 16) : cvt_f32_f16((uint16_t)of[i]);
        y.of[2 * i + 1] = format == CUDA_bf16 ? __uint_as_float(of[i] & 0xffff0000) : cvt_f32_f16((uint16_t)(of[i] >> 16));
    }
    return y;
}

/* x + y, rounded to the format. */
static __device__ __forceinline__ uint4 add_words(const int format, uint4 x, uint4 y) {
    const word_values a = widen_word(format, x), b = widen_word(format, y);
    uint32_t sum[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (format == CUDA_f32) sum[i] = __float_as_uint(a.of[i] + b.of[i]);
        else if (format == CUDA_bf16) sum[i] = cvt_bf16x2(a.of[2 * i] + b.of[2 * i], a.of[2 * i + 1] + b.of[2 * i + 1]);
        else sum[i] = cvt_f16x2(a.of[2 * i] + b.of[2 * i], a.of[2 * i + 1] + b.of[2 * i + 1]);
    }
    return make_uint4(sum[0], sum[1], sum[2], sum[3]);
}

/* out += the values of the listed places, one after another, in words. */
static __device__ __forceinline__ void add_listed(const int format, const place_arguments *p, int64_t to, const int64_t *list, int count) {
    const write_arguments *a = &p->write;
    const int64_t out_step = a->items.strides[0][0], step = a->items.strides[1][0];
    for (int i = threadIdx.x; i < (int)a->items.count; i += CUDA_THREADS) {
        const uint4 *values = (const uint4 *)a->values.data + i * step;
        uint4 *const out = (uint4 *)a->out.data + to + i * out_step, sum = *out;
        int k = 0;
        for (; k + WORDS_AT_ONCE <= count; k += WORDS_AT_ONCE) {
            uint4 x[WORDS_AT_ONCE];
#pragma unroll
            for (int j = 0; j < WORDS_AT_ONCE; j++) x[j] = values[list[k + j]];
#pragma unroll
            for (int j = 0; j < WORDS_AT_ONCE; j++) sum = add_words(format, sum, x[j]);
        }
        for (; k < count; k++) sum = add_words(format, sum, values[list[k]]);
        *out = sum;
    }
}

/* Rows in words, of which the items are one: a block for each place. Those that are not the first of their combination have nothing to do. */
static __device__ __forceinline__ void add_rows(const int format, const place_arguments *p, int64_t *list) {
    for (int64_t place = blockIdx.x; place < p->write.places.count; place += gridDim.x) {
        const index_place first = ((const index_place *)p->places)[place];
        int left = count_of(p, place, first.key);
        for (int64_t from = place; left > 0; from += CUDA_THREADS) {
            const int count = list_places(p, from, first.key, list);
            add_listed(format, p, first.to, list, count);
            left -= count;
            __syncthreads();
        }
    }
}

#define ADD_ROWS(format)                                                                                                                                \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS) index_add_rows_##format(const __grid_constant__ place_arguments arguments) {             \
        __shared__ int64_t list[CUDA_THREADS];                                                                                                          \
        add_rows(CUDA_##format, &arguments, list);                                                                                                      \
    }
ADD_ROWS(f32)
ADD_ROWS(bf16)
ADD_ROWS(f16)

/* Anything else: a thread for each item of each place, rounded after each sum. */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS) index_add_places(const __grid_constant__ place_arguments arguments) {
    const write_arguments *a = &arguments.write;
    const index_place *places = (const index_place *)arguments.places;
    for (int64_t i = item_first(); i < a->places.count * a->items.count; i += item_step()) {
        int64_t item[2 + INDEX_MOST];
        const int64_t place = i / a->items.count;
        const uint32_t key = places[place].key;
        int left = count_of(&arguments, place, key);
        if (left == 0) continue;
        nest_offsets(&a->items, i - place * a->items.count, 2, item);
        for (int64_t other = place; left > 0; other++) {
            if (places[other].key != key) continue;
            add_element(&a->out, places[place].to + item[0], &a->values, places[other].values + item[1]);
            left--;
        }
    }
}
