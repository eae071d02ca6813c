/* Tensor maps: encoding with the driver's own checks of arguments. The 128 bytes are the simulator's own format; programs may not look inside. */
#include "tensor_map.h"

#include "driver.h"

static const int element_bits[] = {8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6};

static cuda_result check(const sim_tensor_map *m, uint64_t address, const uint64_t *strides) {
    int bits = element_bits[m->type];
    bool packed = m->type >= CUDA_TENSOR_16U4_ALIGN8;
    uint64_t address_align = packed && m->type != CUDA_TENSOR_16U4_ALIGN8 ? 32 : 16;
    if (m->rank < 1 || m->rank > 5) return driver_say(CUDA_INVALID_VALUE, "a tensor map has 1 to 5 dimensions, not %u", m->rank);
    if (address % address_align != 0) return driver_say(CUDA_INVALID_VALUE, "a tensor map's address 0x%llx is no multiple of %llu", (unsigned long long)address, (unsigned long long)address_align);
    for (uint32_t i = 0; i < m->rank; i++) {
        if (m->dims[i] < 1 || m->dims[i] > 1ull << 32) return driver_say(CUDA_INVALID_VALUE, "dimension %u of a tensor map is 1 to 2^32, not %llu", i, (unsigned long long)m->dims[i]);
        if (m->box[i] < 1 || m->box[i] > 256) return driver_say(CUDA_INVALID_VALUE, "box %u of a tensor map is 1 to 256, not %u", i, m->box[i]);
        if (m->steps[i] < 1 || m->steps[i] > 8) return driver_say(CUDA_INVALID_VALUE, "element stride %u of a tensor map is 1 to 8, not %u", i, m->steps[i]);
        if (i + 1 < m->rank && (strides[i] % address_align != 0 || strides[i] >= 1ull << 40)) {
            return driver_say(CUDA_INVALID_VALUE, "stride %u of a tensor map is a multiple of %llu below 2^40, not %llu: pad the rows", i, (unsigned long long)address_align,
                              (unsigned long long)strides[i]);
        }
    }
    if (packed && (m->dims[0] % 128 != 0 || m->box[0] != 128) && m->type != CUDA_TENSOR_16U4_ALIGN8) {
        return driver_say(CUDA_INVALID_VALUE, "a padded tensor map of 4 or 6 bits has rows of a multiple of 128 elements and boxes of 128, not %llu and %u", (unsigned long long)m->dims[0], m->box[0]);
    }
    uint64_t inner = (uint64_t)m->box[0] * (uint64_t)bits / 8;
    if (m->interleave == CUDA_INTERLEAVE_NONE && inner % 16 != 0) return driver_say(CUDA_INVALID_VALUE, "the inner box is %llu bytes, which is no multiple of 16", (unsigned long long)inner);
    static const uint64_t widths[] = {UINT64_MAX, 32, 64, 128, 128, 128, 128};
    if (!packed && inner > widths[m->swizzle]) return driver_say(CUDA_INVALID_VALUE, "the inner box is %llu bytes, and the swizzle spans %llu", (unsigned long long)inner, (unsigned long long)widths[m->swizzle]);
    return CUDA_OK;
}

cuda_result cuTensorMapEncodeTiled(cuda_tensor_map *map, cuda_tensor_type type, uint32_t rank, void *address, const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                                   const uint32_t *element_strides, cuda_tensor_interleave interleave, cuda_tensor_swizzle swizzle, cuda_tensor_promotion promotion, cuda_tensor_fill fill) {
    cuda_result result = driver_enter();
    if (result != CUDA_OK) return driver_leave(result);
    if (map == NULL || dims == NULL || box == NULL || element_strides == NULL || (rank > 1 && strides == NULL) || (unsigned)type > CUDA_TENSOR_16U6_ALIGN16 || rank < 1 || rank > 5 ||
        (unsigned)interleave > CUDA_INTERLEAVE_32 || (unsigned)swizzle > CUDA_SWIZZLE_128_ATOM_64 || (unsigned)promotion > CUDA_PROMOTION_256 || (unsigned)fill > CUDA_FILL_NAN) {
        return driver_leave(driver_say(CUDA_INVALID_VALUE, "a tensor map with an argument that has no meaning"));
    }
    const bool real = type >= CUDA_TENSOR_F16 && type <= CUDA_TENSOR_TF32_FTZ;
    if (fill == CUDA_FILL_NAN && !real) return driver_leave(driver_say(CUDA_INVALID_VALUE, "a tensor map of integers (type %u) that fills with NaN", (unsigned)type));
    if (interleave != CUDA_INTERLEAVE_NONE) return driver_leave(driver_say(CUDA_NOT_SUPPORTED, "interleaved tensor maps are not modelled"));
    sim_tensor_map m = {.magic = SIM_TENSOR_MAP, .type = (uint8_t)type, .rank = (uint8_t)rank, .interleave = (uint8_t)interleave, .swizzle = (uint8_t)swizzle, .fill = (uint8_t)fill,
                        .address = (uint64_t)(uintptr_t)address};
    for (uint32_t i = 0; i < rank; i++) {
        m.dims[i] = dims[i];
        m.box[i] = (uint16_t)(box[i] > UINT16_MAX ? UINT16_MAX : box[i]);
        m.steps[i] = (uint8_t)(element_strides[i] > 255 ? 255 : element_strides[i]);
        if (i + 1 < rank) m.strides[i] = strides[i];
    }
    result = check(&m, m.address, strides);
    if (result == CUDA_OK) {
        memset(map, 0, sizeof *map);
        memcpy(map, &m, sizeof m);
    }
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
