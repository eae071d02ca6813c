/* Tensor maps: encoding with the driver's own checks of arguments. The 128 bytes are the simulator's own format; programs may not look inside. */
#include "sim/machine/tensor_map.h"

#include "driver.h"

static const int element_bits[] = {8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6};

static bool is_padded(const sim_tensor_map *m) { return m->type == CUDA_TENSOR_16U4_ALIGN16 || m->type == CUDA_TENSOR_16U6_ALIGN16; }

/* What all maps ask of the tensor. */
static cuda_result check_tensor(const sim_tensor_map *m, const uint64_t *strides) {
    const uint64_t align = is_padded(m) ? 32 : 16;
    if (m->address % align != 0) return driver_say(CUDA_INVALID_VALUE, "a tensor map's address 0x%llx is no multiple of %llu", (unsigned long long)m->address, (unsigned long long)align);
    for (uint32_t i = 0; i < m->rank; i++) {
        if (m->dims[i] < 1 || m->dims[i] > 1ull << 32) return driver_say(CUDA_INVALID_VALUE, "dimension %u of a tensor map is 1 to 2^32, not %llu", i, (unsigned long long)m->dims[i]);
        if (m->steps[i] < 1 || m->steps[i] > 8) return driver_say(CUDA_INVALID_VALUE, "element stride %u of a tensor map is 1 to 8, not %u", i, m->steps[i]);
        if (i + 1 < m->rank && (strides[i] % align != 0 || strides[i] >= 1ull << 40)) {
            return driver_say(CUDA_INVALID_VALUE, "stride %u of a tensor map is a multiple of %llu below 2^40, not %llu: pad the rows", i, (unsigned long long)align, (unsigned long long)strides[i]);
        }
    }
    if (is_padded(m) && (m->dims[0] % 128 != 0 || m->box[0] != 128)) {
        return driver_say(CUDA_INVALID_VALUE, "a padded tensor map of 4 or 6 bits has rows of a multiple of 128 elements and boxes of 128, not %llu and %u", (unsigned long long)m->dims[0], m->box[0]);
    }
    const uint64_t inner = (uint64_t)m->box[0] * (uint64_t)element_bits[m->type] / 8;
    if (inner % 16 != 0) return driver_say(CUDA_INVALID_VALUE, "the inner box is %llu bytes, which is no multiple of 16", (unsigned long long)inner);
    static const uint64_t widths[] = {UINT64_MAX, 32, 64, 128, 128, 128, 128};
    if (m->type < CUDA_TENSOR_16U4_ALIGN8 && inner > widths[m->swizzle]) {
        return driver_say(CUDA_INVALID_VALUE, "the inner box is %llu bytes, and the swizzle spans %llu", (unsigned long long)inner, (unsigned long long)widths[m->swizzle]);
    }
    return CUDA_OK;
}

static cuda_result check_box(const sim_tensor_map *m) {
    for (uint32_t i = 0; i < m->rank; i++) {
        if (m->box[i] < 1 || m->box[i] > 256) return driver_say(CUDA_INVALID_VALUE, "box %u of a tensor map is 1 to 256, not %u", i, m->box[i]);
    }
    return CUDA_OK;
}

/* What a map says beside its shape. */
typedef struct how { cuda_tensor_interleave interleave; cuda_tensor_swizzle swizzle; cuda_tensor_promotion promotion; cuda_tensor_fill fill; } how;

/* The map of a tensor, without a box. */
static cuda_result begin_map(sim_tensor_map *m, cuda_tensor_type type, uint32_t rank, uint32_t least, const void *address, const uint64_t *dims, const uint64_t *strides, const uint32_t *steps, how h) {
    if (dims == NULL || steps == NULL || (rank > 1 && strides == NULL) || (unsigned)type > CUDA_TENSOR_16U6_ALIGN16 || (unsigned)h.interleave > CUDA_INTERLEAVE_32 ||
        (unsigned)h.swizzle > CUDA_SWIZZLE_128_ATOM_64 || (unsigned)h.promotion > CUDA_PROMOTION_256 || (unsigned)h.fill > CUDA_FILL_NAN) {
        return driver_say(CUDA_INVALID_VALUE, "a tensor map with an argument that has no meaning");
    }
    if (rank < least || rank > 5) return driver_say(CUDA_INVALID_VALUE, "a tensor map of this kind has %u to 5 dimensions, not %u", least, rank);
    const bool real = type >= CUDA_TENSOR_F16 && type <= CUDA_TENSOR_TF32_FTZ;
    if (h.fill == CUDA_FILL_NAN && !real) return driver_say(CUDA_INVALID_VALUE, "a tensor map of integers (type %u) that fills with NaN", (unsigned)type);
    if (h.interleave != CUDA_INTERLEAVE_NONE) return driver_say(CUDA_NOT_SUPPORTED, "interleaved tensor maps are not modelled");
    *m = (sim_tensor_map){.magic = SIM_TENSOR_MAP, .type = (uint8_t)type, .rank = (uint8_t)rank, .swizzle = (uint8_t)h.swizzle, .fill = (uint8_t)h.fill, .address = (uint64_t)(uintptr_t)address};
    for (uint32_t i = 0; i < rank; i++) {
        m->dims[i] = dims[i];
        m->steps[i] = (uint8_t)(steps[i] > 255 ? 255 : steps[i]);
        if (i + 1 < rank) m->strides[i] = strides[i];
    }
    return CUDA_OK;
}

static void put_map(cuda_tensor_map *map, const sim_tensor_map *m) {
    memset(map, 0, sizeof *map);
    memcpy(map, m, sizeof *m);
}

cuda_result cuTensorMapEncodeTiled(cuda_tensor_map *map, cuda_tensor_type type, uint32_t rank, void *address, const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                                   const uint32_t *element_strides, cuda_tensor_interleave interleave, cuda_tensor_swizzle swizzle, cuda_tensor_promotion promotion, cuda_tensor_fill fill) {
    sim_tensor_map m;
    cuda_result result = driver_enter();
    if (result != CUDA_OK) return driver_leave(result);
    if (map == NULL || box == NULL) return driver_leave(driver_say(CUDA_INVALID_VALUE, "a tensor map, or a box, that is NULL"));
    result = begin_map(&m, type, rank, 1, address, dims, strides, element_strides, (how){interleave, swizzle, promotion, fill});
    for (uint32_t i = 0; i < rank && result == CUDA_OK; i++) m.box[i] = (uint16_t)(box[i] > UINT16_MAX ? UINT16_MAX : box[i]);
    if (result == CUDA_OK) result = check_box(&m);
    if (result == CUDA_OK) result = check_tensor(&m, strides);
    if (result == CUDA_OK) put_map(map, &m);
    return driver_leave(result);
}

/* Corners count from the first, and from the last, position of each dimension but the first and the last, innermost first, as CuTe gives them. */
cuda_result cuTensorMapEncodeIm2col(cuda_tensor_map *map, cuda_tensor_type type, uint32_t rank, void *address, const uint64_t *dims, const uint64_t *strides, const int *lower, const int *upper,
                                    uint32_t channels, uint32_t pixels, const uint32_t *element_strides, cuda_tensor_interleave interleave, cuda_tensor_swizzle swizzle,
                                    cuda_tensor_promotion promotion, cuda_tensor_fill fill) {
    sim_tensor_map m;
    cuda_result result = driver_enter();
    if (result != CUDA_OK) return driver_leave(result);
    if (map == NULL || lower == NULL || upper == NULL) return driver_leave(driver_say(CUDA_INVALID_VALUE, "a tensor map, or a corner of its box, that is NULL"));
    result = begin_map(&m, type, rank, 3, address, dims, strides, element_strides, (how){interleave, swizzle, promotion, fill});
    if (result != CUDA_OK) return driver_leave(result);
    const int limit = rank == 3 ? 1 << 15 : rank == 4 ? 1 << 7 : 1 << 4;
    for (uint32_t i = 0; i < rank - 2; i++) {
        if (lower[i] < -limit || lower[i] >= limit || upper[i] < -limit || upper[i] >= limit) {
            return driver_leave(driver_say(CUDA_INVALID_VALUE, "corner %u of an im2col box is %d to %d in %u dimensions, not %d and %d", i, -limit, limit - 1, rank, lower[i], upper[i]));
        }
        if ((int64_t)dims[i + 1] + upper[i] <= lower[i]) {
            return driver_leave(driver_say(CUDA_INVALID_VALUE, "the im2col box is empty along dimension %u: from %d to %d behind the last of %llu", i + 1, lower[i], upper[i], (unsigned long long)dims[i + 1]));
        }
        m.lower[i] = (int16_t)lower[i];
        m.upper[i] = (int16_t)upper[i];
    }
    if (channels < 1 || channels > 256 || pixels < 1 || pixels > 1024) {
        return driver_leave(driver_say(CUDA_INVALID_VALUE, "an im2col map copies 1 to 256 channels of 1 to 1024 pixels, not %u of %u", channels, pixels));
    }
    m.im2col = 1;
    m.box[0] = (uint16_t)channels;
    m.pixels = (uint16_t)pixels;
    result = check_tensor(&m, strides);
    if (result == CUDA_OK) put_map(map, &m);
    return driver_leave(result);
}

cuda_result cuTensorMapReplaceAddress(cuda_tensor_map *map, void *address) {
    sim_tensor_map m;
    if (map == NULL) return CUDA_INVALID_VALUE;
    memcpy(&m, map, sizeof m);
    if (m.magic != SIM_TENSOR_MAP || (uint64_t)(uintptr_t)address % 16 != 0) return driver_say(CUDA_INVALID_VALUE, "no tensor map, or an address that is no multiple of 16");
    m.address = (uint64_t)(uintptr_t)address;
    memcpy(map, &m, sizeof m);
    return CUDA_OK;
}
