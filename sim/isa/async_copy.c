/* What a copy does to bytes when it is done: boxes and columns of tensors with their swizzles and fills, rows of bytes, sums with what is there. */
#include "async.h"
#include "sim/machine/order.h"
#include "sim/math/real.h"

#include "device/cuda_abi.h"
#include "num/num.h"

#include <stdlib.h>

static const async_grain grains[] = {
    {1, 1, 1}, {1, 2, 2}, {1, 4, 4}, {1, 4, 4}, {1, 8, 8}, {1, 8, 8}, {1, 2, 2}, {1, 4, 4}, {1, 8, 8}, {1, 2, 2}, {1, 4, 4}, {1, 4, 4}, {1, 4, 4}, {2, 1, 1}, {16, 8, 16}, {16, 12, 16},
};

const async_grain *async_grain_of(uint32_t type) { return type < COUNT_OF(grains) ? &grains[type] : NULL; }

/* The XOR of a swizzle acts on bits of the address itself. */
static uint64_t swizzled(uint64_t address, int swizzle) {
    switch (swizzle) {
    case 1: return address ^ (address >> 3 & 0x10);
    case 2: return address ^ (address >> 3 & 0x30);
    case 3: return address ^ (address >> 3 & 0x70);
    case 4: return address ^ (address >> 2 & 0x60);
    case 6: return address ^ (address >> 1 & 0x40);
    default: return address;
    }
}

/* Elements of the box along a dimension: every so many, where the map has strides. Those of dimension 0 always lie side by side. */
static uint32_t box_size(const sim_tensor_map *m, int i) { return i == 0 ? m->box[0] : (m->box[i] + m->steps[i] - 1u) / m->steps[i]; }

size_t async_box_grains(const sim_tensor_map *m) {
    size_t elements = m->im2col != 0 ? (size_t)m->box[0] * m->pixels : 1;
    for (int i = 0; i < m->rank && m->im2col == 0; i++) elements *= box_size(m, i);
    return elements / grains[m->type].elements;
}

/* A byte of what stands for elements outside of the tensor: zeros, or halves of 0x7ff7, NaNs of every format (an H200's). */
static uint8_t fill_byte(const sim_tensor_map *m, size_t byte) {
    if (m->fill == 0) return 0;
    return byte % 2 == 0 ? 0xf7 : 0x7f;
}

/* An element of TF32 on its way into shared memory: to nearest even in the upper 19 bits, all NaNs alike; subnormal ones too, whatever the type says of them (an H200's). */
static uint32_t rounded_to_tf32(uint32_t x) {
    if ((x & 0x7fffffff) > 0x7f800000) return 0x7fffe000;
    return (x + 0xfff + (x >> 13 & 1)) & ~0x1fffu;
}

/* ---- doing a copy ---- */

void async_set_flags(sim_cta *cta, uint64_t offset, size_t bytes, uint8_t clear, uint8_t set) {
    for (size_t i = 0; i < bytes; i++) cta->shared_shadow[offset + i] = (uint8_t)((cta->shared_shadow[offset + i] & ~clear) | set);
}

static bool global_range(struct sim_async *a, uint64_t address, size_t bytes, bool write, sim_place *place) {
    if (!sim_reach(a->warp, a->op, a->lane, PTX_GLOBAL, address, bytes, 1, write ? SIM_WRITE : SIM_READ, place)) return false;
    if (a->early && !sim_check_early(a->warp, a->op, a->lane, place, bytes, address, write ? SIM_WRITE : SIM_READ, true)) return false;
    if (!write && !sim_check_written(a->warp, a->op, a->lane, place, bytes, address)) return false;
    if (write && a->bytes_masked != 0) return true;   /* which bytes it writes is not followed */
    return sim_check_race(a->warp, a->op, a->lane, place, bytes, address, !write ? SIM_READ : a->reduces ? SIM_ATOMIC : SIM_WRITE, false);
}

static uint64_t combine_integers(const sim_op *op, uint64_t a, uint64_t b, bool is_signed, bool wide) {
    bool less = is_signed ? (wide ? (int64_t)a < (int64_t)b : (int32_t)a < (int32_t)b) : a < b;
    if (sim_has(&op->mods, SIM_MOD_min)) return less ? a : b;
    if (sim_has(&op->mods, SIM_MOD_max)) return less ? b : a;
    if (sim_has(&op->mods, SIM_MOD_and)) return a & b;
    if (sim_has(&op->mods, SIM_MOD_or)) return a | b;
    if (sim_has(&op->mods, SIM_MOD_inc)) return a >= b ? 0 : a + 1;
    if (sim_has(&op->mods, SIM_MOD_dec)) return a == 0 || a > b ? b : a - 1;
    return sim_has(&op->mods, SIM_MOD_xor) ? a ^ b : a + b;
}

static float combine_floats(const sim_op *op, float a, float b) {
    if (sim_has(&op->mods, SIM_MOD_min)) return fminf(a, b);
    return sim_has(&op->mods, SIM_MOD_max) ? fmaxf(a, b) : a + b;
}

/* An element of that type of a tensor map; bytes of it. */
static void combine(const sim_op *op, int type, uint8_t *global, const uint8_t *value, size_t bytes) {
    uint64_t a = 0, b = 0;
    memcpy(&a, global, bytes);
    memcpy(&b, value, bytes);
    switch (type) {
    case CUDA_TENSOR_F16: a = num_f32_to_f16(combine_floats(op, num_f16_to_f32((uint16_t)a), num_f16_to_f32((uint16_t)b))); break;
    case CUDA_TENSOR_BF16: a = num_f32_to_bf16(combine_floats(op, num_bf16_to_f32((uint16_t)a), num_bf16_to_f32((uint16_t)b))); break;
    case CUDA_TENSOR_F32: a = f32_bits(combine_floats(op, f32_from((uint32_t)a), f32_from((uint32_t)b))); break;
    default: a = combine_integers(op, a, b, type == CUDA_TENSOR_I32 || type == CUDA_TENSOR_I64, bytes == 8); break;
    }
    memcpy(global, &a, bytes);
}

bool async_can_combine(const sim_op *op, int type) {
    if (sim_has(&op->mods, SIM_MOD_inc) || sim_has(&op->mods, SIM_MOD_dec)) return type == CUDA_TENSOR_U32;
    bool bits = sim_has(&op->mods, SIM_MOD_and) || sim_has(&op->mods, SIM_MOD_or) || sim_has(&op->mods, SIM_MOD_xor), adds = sim_has(&op->mods, SIM_MOD_add);
    switch (type) {
    case CUDA_TENSOR_U32: case CUDA_TENSOR_I32: case CUDA_TENSOR_U64: return true;
    case CUDA_TENSOR_I64: return !adds;
    case CUDA_TENSOR_F16: case CUDA_TENSOR_BF16: return !bits;
    case CUDA_TENSOR_F32: return adds;
    default: return false;
    }
}

/* One row of the box along dimension 0, its coordinates those of at with index in each further dimension. true: done; false: a finding was made. */
static bool copy_row(struct sim_async *a, sim_cta *cta, const uint32_t index[5], uint64_t row_offset) {
    const sim_tensor_map *m = &a->map;
    const async_grain g = grains[m->type];
    int64_t count = m->box[0] / g.elements, size = (int64_t)((m->dims[0] + g.elements - 1) / g.elements), start = a->at[0] / g.elements;
    uint64_t address = m->address;
    bool outside = false;
    for (int i = 1; i < m->rank; i++) {
        int64_t at = (int64_t)a->at[i] + (int64_t)index[i] * m->steps[i];
        outside |= at < 0 || (uint64_t)at >= m->dims[i];
        address += (uint64_t)at * m->strides[i - 1];
    }
    int64_t first = start < 0 ? -start : 0, end = size - start;
    if (end > count) end = count;
    if (outside || end <= first) first = end = 0;
    if (!a->store && (first > 0 || end < count)) {
        for (size_t b = 0; b < (size_t)count * g.to; b++) cta->shared[swizzled(a->shared + row_offset + b, m->swizzle)] = fill_byte(m, b);
    }
    if (end == first) return true;
    sim_place place;
    size_t bytes = (size_t)(end - first) * g.from;
    if (!global_range(a, address + (uint64_t)((start + first) * g.from), bytes, a->store, &place)) return false;
    if (a->reduces && !sim_check_written(a->warp, a->op, a->lane, &place, bytes, address + (uint64_t)((start + first) * g.from))) return false;
    for (int64_t e = first; e < end; e++) {
        uint64_t from = swizzled(a->shared + row_offset + (size_t)(e * g.to), m->swizzle);   /* an element lies within 16 bytes */
        if (a->reduces) {
            combine(a->op, m->type, &place.bytes[(e - first) * g.from], a->read != NULL ? a->read + (from - a->shared) : cta->shared + from, g.from);
            continue;
        }
        uint32_t tf32 = 0;
        const bool rounds = !a->store && (m->type == CUDA_TENSOR_TF32 || m->type == CUDA_TENSOR_TF32_FTZ);
        if (rounds) memcpy(&tf32, &place.bytes[(e - first) * g.from], sizeof tf32);
        if (rounds) tf32 = rounded_to_tf32(tf32);
        for (int b = 0; b < g.from; b++) {
            uint64_t at = swizzled(a->shared + row_offset + (size_t)(e * g.to + b), m->swizzle);
            uint8_t *global = &place.bytes[(e - first) * g.from + b];
            if (a->store) *global = a->read != NULL ? a->read[at - a->shared] : cta->shared[at];
            else cta->shared[at] = rounds ? (uint8_t)(tf32 >> (8 * b)) : *global;
        }
    }
    if (a->store) memset(place.shadow, SHADOW_WRITTEN, bytes);
    return true;
}

static bool copy_box(struct sim_async *a, sim_cta *cta) {
    const sim_tensor_map *m = &a->map;
    uint32_t index[5] = {0};
    size_t row = (size_t)(m->box[0] / grains[m->type].elements) * grains[m->type].to, rows = row > 0 ? a->bytes / row : 0;
    for (size_t r = 0; r < rows; r++) {
        struct sim_async one = *a;
        if (a->four_rows) one.at[1] = a->at[1 + r];
        if (!copy_row(&one, cta, index, r * row)) return false;
        for (int i = 1; i < m->rank && !a->four_rows && ++index[i] == box_size(m, i); i++) index[i] = 0;
    }
    return true;
}

int64_t async_end_of_box(const sim_tensor_map *m, int dimension) { return (int64_t)(m->dims[dimension] + (uint64_t)(int64_t)m->upper[dimension - 1]); }

/* The pixels of an im2col map, one after another through its bounding box, from which the copy's offsets lead to those that are copied (PTX ISA 5.5.4). */
static bool copy_column(struct sim_async *a, sim_cta *cta) {
    static const uint32_t index[5] = {0};
    const sim_tensor_map *m = &a->map;
    const size_t row = (size_t)(m->box[0] / grains[m->type].elements) * grains[m->type].to;
    const int last = m->rank - 1;
    int64_t at[5];
    for (int i = 0; i < m->rank; i++) at[i] = a->at[i];
    for (size_t pixel = 0; pixel < m->pixels; pixel++) {
        struct sim_async one = *a;
        for (int i = 1; i < last; i++) one.at[i] = (int32_t)(at[i] + a->offsets[i - 1]);
        one.at[last] = at[last] < INT32_MAX ? (int32_t)at[last] : INT32_MAX;
        if (!copy_row(&one, cta, index, pixel * row)) return false;
        int i = 1;
        for (; i < last; i++) {
            at[i] += m->steps[i];
            if (at[i] < async_end_of_box(m, i)) break;
            at[i] = m->lower[i - 1];
        }
        if (i == last) at[last] += m->steps[last];
    }
    return true;
}

/* Combines bytes of elements of the op's type. */
static void combine_bytes(const struct sim_async *a, uint8_t *to, const uint8_t *from, ptx_space space) {
    const size_t each = a->op->bytes;
    for (size_t at = 0; at + each <= a->bytes; at += each) {
        uint64_t old = 0, value = 0;
        memcpy(&old, to + at, each);
        memcpy(&value, from + at, each);
        old = sim_combine(a->op, old, value, space);
        memcpy(to + at, &old, each);
    }
}

static bool copy_bytes(struct sim_async *a, sim_cta *cta) {
    sim_place place;
    if (!global_range(a, a->global, a->bytes, a->store, &place)) return false;
    if (!a->store) {
        memcpy(cta->shared + a->shared, place.bytes, a->bytes);
        return true;
    }
    const uint8_t *from = a->read != NULL ? a->read : cta->shared + a->shared;
    if (a->reduces) {
        if (!sim_check_written(a->warp, a->op, a->lane, &place, a->bytes, a->global)) return false;
        combine_bytes(a, place.bytes, from, PTX_GLOBAL);
    }
    for (size_t i = 0; i < a->bytes && !a->reduces; i++) {
        if (a->bytes_masked >> (i % 16) & 1) continue;
        place.bytes[i] = from[i];
        place.shadow[i] = SHADOW_WRITTEN;
    }
    return true;
}

/* Between CTAs, or from registers. */
static void copy_near(struct sim_async *a, sim_cta *cta) {
    const uint8_t *from = a->from != NULL ? a->from->shared + a->source : (const uint8_t *)(const void *)a->words;
    if (a->reduces) combine_bytes(a, cta->shared + a->shared, from, PTX_SHARED);
    else memmove(cta->shared + a->shared, from, a->bytes);
    if (a->from != NULL) async_set_flags(a->from, a->source, a->bytes, SHADOW_SOURCE, 0);
}

bool async_copy(struct sim_async *a, sim_cta *cta) {
    if (!a->response && a->from == NULL) return !a->tensor ? copy_bytes(a, cta) : a->map.im2col != 0 ? copy_column(a, cta) : copy_box(a, cta);
    copy_near(a, cta);
    return true;
}
