/* tensormap.replace and cp_fenceproxy (PTX ISA 9.7.9.26 and 9.7.13.16): programs that change tensor maps, or build them from zeros, field by field. */
#include "decode.h"
#include "device/cuda_abi.h"
#include "sim/machine/tensor_map.h"

#include <inttypes.h>
#include <stdlib.h>

typedef enum map_field {
    FIELD_ADDRESS, FIELD_RANK, FIELD_BOX, FIELD_DIM, FIELD_STRIDE, FIELD_STEP, FIELD_TYPE, FIELD_INTERLEAVE, FIELD_SWIZZLE, FIELD_ATOM, FIELD_FILL, FIELD_COUNT
} map_field;

static const struct { sim_modifier word; bool wide; int ordinals; uint64_t least, most; } fields[FIELD_COUNT] = {
    [FIELD_ADDRESS] = {SIM_MOD_global_address, true, 0, 0, UINT64_MAX}, [FIELD_RANK] = {SIM_MOD_rank, false, 0, 0, 4},
    [FIELD_BOX] = {SIM_MOD_box_dim, false, 5, 1, 256},                  [FIELD_DIM] = {SIM_MOD_global_dim, false, 5, 0, UINT32_MAX},
    [FIELD_STRIDE] = {SIM_MOD_global_stride, true, 4, 0, 1ull << 40},   [FIELD_STEP] = {SIM_MOD_element_stride, false, 5, 1, 8},
    [FIELD_TYPE] = {SIM_MOD_elemtype, false, 0, 0, 15},                 [FIELD_INTERLEAVE] = {SIM_MOD_interleave_layout, false, 0, 0, 0},
    [FIELD_SWIZZLE] = {SIM_MOD_swizzle_mode, false, 0, 0, 3},           [FIELD_ATOM] = {SIM_MOD_swizzle_atomicity, false, 0, 0, 3},
    [FIELD_FILL] = {SIM_MOD_fill_mode, false, 0, 0, 1},
};

/* Table 33 numbers types otherwise than the driver's interface. */
static const uint8_t types[] = {CUDA_TENSOR_U8, CUDA_TENSOR_U16, CUDA_TENSOR_U32, CUDA_TENSOR_I32, CUDA_TENSOR_U64, CUDA_TENSOR_I64, CUDA_TENSOR_F16, CUDA_TENSOR_F32,
                                CUDA_TENSOR_F32_FTZ, CUDA_TENSOR_F64, CUDA_TENSOR_BF16, CUDA_TENSOR_TF32, CUDA_TENSOR_TF32_FTZ, CUDA_TENSOR_16U4_ALIGN8, CUDA_TENSOR_16U4_ALIGN16,
                                CUDA_TENSOR_16U6_ALIGN16};

static void set_field(sim_tensor_map *m, map_field field, int ordinal, uint64_t value) {
    switch (field) {
    case FIELD_ADDRESS: m->address = value; break;
    case FIELD_RANK: m->rank = (uint8_t)(value + 1); break;
    case FIELD_BOX: m->box[ordinal] = (uint16_t)value; break;
    case FIELD_DIM: m->dims[ordinal] = value != 0 ? value : 1ull << 32; break;
    case FIELD_STRIDE: m->strides[ordinal] = value; break;
    case FIELD_STEP: m->steps[ordinal] = (uint8_t)value; break;
    case FIELD_TYPE: m->type = types[value]; break;
    case FIELD_INTERLEAVE: m->interleave = (uint8_t)value; break;
    case FIELD_SWIZZLE: m->swizzle = (uint8_t)(value == 3 && m->swizzle > 3 ? m->swizzle : value); break;
    case FIELD_ATOM: m->swizzle = (uint8_t)(value != 0 ? 3 + value : m->swizzle > 3 ? 3 : m->swizzle); break;
    default: m->fill = (uint8_t)value; break;
    }
}

/* small: the field; count: the ordinal; arg 1: the value. */
static sim_flow do_replace(sim_warp *w, const sim_op *op, uint32_t mask) {
    map_field field = (map_field)op->small;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        int lane = __builtin_ctz(left);
        uint64_t address = op->address_wide ? ROW(uint64_t, 0)[lane] + (uint64_t)op->offset : (uint32_t)(ROW(uint32_t, 0)[lane] + (uint32_t)op->offset);
        uint64_t value = fields[field].wide ? ROW(uint64_t, 1)[lane] : ROW(uint32_t, 1)[lane];
        sim_place place;
        sim_tensor_map map;
        if (!sim_reach(w, op, lane, (ptx_space)op->space, address, 128, 128, SIM_WRITE, &place)) return SIM_STOP;
        if (!sim_check_written(w, op, lane, &place, sizeof map, address)) return SIM_STOP;
        if (value < fields[field].least || value > fields[field].most || ((field == FIELD_STRIDE || field == FIELD_ADDRESS) && value % 16 != 0)) {
            return sim_find(w, op, lane, "0x%" PRIx64 " is no value of this field of a tensor map", value);
        }
        memcpy(&map, place.bytes, sizeof map);
        map.magic = SIM_TENSOR_MAP;
        set_field(&map, field, op->count, value);
        memcpy(place.bytes, &map, sizeof map);
    }
    return SIM_NEXT;
}

sim_handler select_tensormap_replace(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    int field = 0;
    while (field < FIELD_COUNT - 1 && !sim_mod(d, fields[field].word)) field++;
    int ordinals = fields[field].ordinals, value = ordinals > 0 ? 2 : 1;
    if (in->count != value + 1 || (ptx_types[d->type].bits == 64) != fields[field].wide ||
        (ordinals > 0 && (in->operands[1].kind != PTX_OPERAND_INTEGER || in->operands[1].value < 0 || in->operands[1].value >= ordinals))) {
        d->why = "[the map], where a field has several a constant that says which, and a value of the field's type";
        return NULL;
    }
    d->op->small = (uint8_t)field;
    d->op->count = (uint8_t)(ordinals > 0 ? in->operands[1].value : 0);
    if (sim_decode_address(d, &in->operands[0], &d->op->arg[0]) != DW_OK || sim_decode_source(d, &in->operands[value], d->type, &d->op->arg[1]) != DW_OK) return NULL;
    return do_replace;
}

/* ---- cp_fenceproxy ---- */

typedef struct fence_copy { sim_address to, from; } fence_copy;

static bool note_map(sim_launch *l, uint64_t address) {
    pthread_mutex_lock(&l->lock);
    uint64_t *larger = realloc(l->maps, (l->map_count + 1) * sizeof *larger);
    if (larger != NULL) {
        l->maps = larger;
        l->maps[l->map_count++] = address;
    }
    pthread_mutex_unlock(&l->lock);
    return larger != NULL;
}

/* The lanes of a warp copy the same 128 bytes; once is enough. */
static sim_flow do_fence_copy(sim_warp *w, const sim_op *op, uint32_t mask) {
    const fence_copy *c = op->extra;
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    int lane = __builtin_ctz(mask);
    uint64_t from_address = sim_address_of(w, &c->from, lane), to_address = sim_address_of(w, &c->to, lane);
    sim_place from, to;
    if (!sim_reach(w, op, lane, PTX_SHARED, from_address, 128, 128, SIM_READ, &from) || !sim_check_written(w, op, lane, &from, 128, from_address)) return SIM_STOP;
    if (!sim_reach(w, op, lane, PTX_GLOBAL, to_address, 128, 128, SIM_WRITE, &to)) return SIM_STOP;
    if (!sim_check_race(w, op, lane, &to, 128, to_address, SIM_WRITE, false)) return SIM_STOP;
    memcpy(to.bytes, from.bytes, 128);
    memset(to.shadow, SHADOW_WRITTEN, 128);
    return note_map(w->launch, to_address) ? SIM_NEXT : sim_find(w, op, lane, "no memory for the list of tensor maps");
}

/* ---- fence.proxy.tensormap: from here on the CTA's copies may use the tensor maps that were written before ---- */

static sim_flow do_fence(sim_warp *w, const sim_op *op, uint32_t mask) {
    (void)op;
    (void)mask;
    pthread_mutex_lock(&w->launch->lock);
    w->cta->maps_seen = w->launch->map_count;
    pthread_mutex_unlock(&w->launch->lock);
    return SIM_NEXT;
}

sim_handler select_fence_tensormap(sim_decoding *d) { return sim_mod(d, SIM_MOD_acquire) ? do_fence : select_nothing(d); }

bool sim_check_map(sim_warp *w, const sim_op *op, int lane, uint64_t address) {
    sim_launch *l = w->launch;
    bool unseen = false;
    pthread_mutex_lock(&l->lock);
    for (size_t i = w->cta->maps_seen; i < l->map_count; i++) unseen |= l->maps[i] == address;
    pthread_mutex_unlock(&l->lock);
    if (unseen) sim_find(w, op, lane, "uses the tensor map at 0x%" PRIx64 ", which this launch wrote, with no fence.proxy.tensormap::generic.acquire in the CTA since", address);
    return !unseen;
}

sim_handler select_tensormap_copy(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    fence_copy *c = sim_decode_new(d, sizeof *c);
    if (c == NULL) return NULL;
    if (in->count != 3 || in->operands[2].kind != PTX_OPERAND_INTEGER || in->operands[2].value != 128) {
        d->why = "[a target], [a source], 128";
        return NULL;
    }
    if (sim_decode_place(d, &in->operands[0], PTX_GLOBAL, &c->to) != DW_OK || sim_decode_place(d, &in->operands[1], PTX_SHARED, &c->from) != DW_OK) return NULL;
    d->op->extra = c;
    return do_fence_copy;
}
