/* The choice of row loops, and rows of tensors of any unpacked format and stride. */
#include "kernels/cpu/rows.h"

#include <assert.h>
#include <string.h>

#include "num/num.h"

const cpu_rows *cpu_rows_of(const chip_caps *chip) {
#if defined(__x86_64__)
    if (chip_has(chip, CHIP_avx512)) return &cpu_rows_avx512;
    if (chip_has(chip, CHIP_avx2)) return &cpu_rows_avx2;
#else
    (void)chip;
#endif
    return &cpu_rows_portable;
}

bool cpu_is_plain(dw_format format) { return num_info(format)->class != NUM_BLOCK && num_info(format)->bits >= 8; }

#define GATHER(type)                                                                     \
    for (int64_t i = 0; i < count; i++) ((type *)to)[i] = ((const type *)from)[i * stride]; \
    return
#define SCATTER(type)                                                                    \
    for (int64_t i = 0; i < count; i++) ((type *)to)[i * stride] = ((const type *)from)[i]; \
    return

void cpu_gather(size_t bytes, const void *from, int64_t stride, int64_t count, void *to) {
    if (stride == 1) {
        memcpy(to, from, (size_t)count * bytes);
        return;
    }
    switch (bytes) {
    case 1: GATHER(uint8_t);
    case 2: GATHER(uint16_t);
    case 4: GATHER(uint32_t);
    default: GATHER(uint64_t);
    }
}

void cpu_scatter(size_t bytes, const void *from, void *to, int64_t stride, int64_t count) {
    if (stride == 1) {
        memcpy(to, from, (size_t)count * bytes);
        return;
    }
    switch (bytes) {
    case 1: SCATTER(uint8_t);
    case 2: SCATTER(uint16_t);
    case 4: SCATTER(uint32_t);
    default: SCATTER(uint64_t);
    }
}
#undef GATHER
#undef SCATTER

static void widen(const cpu_rows *rows, dw_format format, const void *from, int64_t count, float *to) {
    switch (format) {
    case DW_FORMAT_bf16: rows->from_bf16(from, to, count); return;
    case DW_FORMAT_f16: rows->from_f16(from, to, count); return;
    case DW_FORMAT_e4m3:
        for (int64_t i = 0; i < count; i++) to[i] = num_e4m3_to_f32(((const uint8_t *)from)[i]);
        return;
    case DW_FORMAT_e5m2:
        for (int64_t i = 0; i < count; i++) to[i] = num_e5m2_to_f32(((const uint8_t *)from)[i]);
        return;
    default:
        for (int64_t i = 0; i < count; i++) to[i] = (float)num_load(format, from, i);
    }
}

static void narrow(const cpu_rows *rows, dw_format format, const float *from, int64_t count, void *to) {
    switch (format) {
    case DW_FORMAT_bf16: rows->to_bf16(from, to, count); return;
    case DW_FORMAT_f16: rows->to_f16(from, to, count); return;
    default:
        for (int64_t i = 0; i < count; i++) num_store(format, to, i, (double)from[i], false);
    }
}

const float *cpu_load(const cpu_rows *rows, const dw_tensor *tensor, int64_t offset, int64_t stride, int64_t count, float *buffer) {
    const void *from = cpu_at(tensor, offset);
    assert(count <= CPU_BLOCK);
    if (tensor->format == DW_FORMAT_f32) {
        if (stride == 1) return from;
        cpu_gather(sizeof(float), from, stride, count, buffer);
        return buffer;
    }
    uint64_t side_by_side[CPU_BLOCK];
    if (stride != 1) {
        cpu_gather(cpu_element_bytes(tensor->format), from, stride, count, side_by_side);
        from = side_by_side;
    }
    widen(rows, tensor->format, from, count, buffer);
    return buffer;
}

float *cpu_target(const dw_tensor *tensor, int64_t offset, int64_t stride, float *buffer) {
    return tensor->format == DW_FORMAT_f32 && stride == 1 ? cpu_at(tensor, offset) : buffer;
}

void cpu_store(const cpu_rows *rows, const float *values, const dw_tensor *tensor, int64_t offset, int64_t stride, int64_t count) {
    void *to = cpu_at(tensor, offset);
    assert(count <= CPU_BLOCK);
    if ((const void *)values == to) return;
    if (tensor->format == DW_FORMAT_f32) {
        cpu_scatter(sizeof(float), values, to, stride, count);
    } else if (stride == 1) {
        narrow(rows, tensor->format, values, count, to);
    } else {
        uint64_t side_by_side[CPU_BLOCK];
        narrow(rows, tensor->format, values, count, side_by_side);
        cpu_scatter(cpu_element_bytes(tensor->format), side_by_side, to, stride, count);
    }
}
