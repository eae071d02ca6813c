/* Loads, stores, atomics and asynchronous copies of single threads (PTX ISA 9.7.9.8 to 12, 9.7.9.25, 9.7.13.5 to 7). */
#include "decode.h"
#include "sim/machine/order.h"
#include "sim/machine/race.h"
#include "sim/machine/lanes.h"
#include "num/num.h"
#include "sim/math/real.h"

#include <stdlib.h>

static inline uint64_t address_of(sim_warp *w, const sim_op *op, int lane) {
    if (op->address_wide) return ROW(uint64_t, 0)[lane] + (uint64_t)op->offset;
    return (uint32_t)(ROW(uint32_t, 0)[lane] + (uint32_t)op->offset);
}

/* Can another CTA see what this does? */
static bool is_outside(int space) { return space == PTX_GLOBAL || space == PTX_GENERIC; }

static bool is_ordered(const sim_decoding *d) {
    return sim_mod(d, SIM_MOD_volatile) || sim_mod(d, SIM_MOD_relaxed) || sim_mod(d, SIM_MOD_acquire) || sim_mod(d, SIM_MOD_release) || sim_mod(d, SIM_MOD_mmio);
}

/* ---- operands: one register or a vector, each as wide as the type or wider ---- */

/* What a row of each member of the vector holds: bytes of a lane. */
typedef struct members { uint8_t bytes[8]; } members;

static dw_status decode_members(sim_decoding *d, const ptx_operand *o, bool target) {
    const ptx_operand *items = o->kind == PTX_OPERAND_VECTOR ? o->items : o;
    int count = o->kind == PTX_OPERAND_VECTOR ? o->count : 1;
    uint32_t *rows = sim_decode_new(d, sizeof *rows * 8);
    members *m = sim_decode_new(d, sizeof *m);
    if (rows == NULL || m == NULL) return DW_NO_MEMORY;
    if (count != d->op->count) return sim_decode_fail(d, DW_SYNTAX, "%d members, where the instruction moves %d", count, d->op->count);
    for (int i = 0; i < count; i++) {
        ptx_type held = sim_decode_register_type(d, &items[i]), use = d->type;
        if (held != PTX_NO_TYPE && held != PTX_pred && ptx_types[held].bits > ptx_types[d->type].bits) use = held;
        TRY(target ? sim_decode_target(d, &items[i], use, &rows[i]) : sim_decode_source(d, &items[i], use, &rows[i]));
        m->bytes[i] = (uint8_t)(ptx_types[use].bits <= 16 ? 2 : ptx_types[use].bits / 8);
    }
    d->op->rows = rows;
    d->op->extra = m;
    return DW_OK;
}

/* ---- ld ---- */

static void put_lane(sim_warp *w, const sim_op *op, int member, int lane, const uint8_t *from) {
    size_t row = ((const members *)op->extra)->bytes[member], size = op->bytes;
    uint8_t *to = (uint8_t *)sim_row(w, op->rows[member]) + (size_t)lane * row;
    if (size < row) {
        bool negative = ptx_types[op->type].class == PTX_SIGNED && (from[size - 1] & 0x80) != 0;
        memset(to + size, negative ? 0xff : 0, row - size);
    }
    memcpy(to, from, size);
}

/* Neither volatile nor ordered. */
static bool is_plain(const sim_op *op) {
    const sim_modifiers *m = &op->mods;
    return !(sim_has(m, SIM_MOD_volatile) || sim_has(m, SIM_MOD_relaxed) || sim_has(m, SIM_MOD_acquire) || sim_has(m, SIM_MOD_release) || sim_has(m, SIM_MOD_mmio));
}

/* Where every lane of the mask reads from; to the registers. */
static void put_lanes(sim_warp *w, const sim_op *op, uint32_t mask, const uint8_t *const from[LANES]) {
    for (int k = 0; k < op->count; k++) {
        size_t row = ((const members *)op->extra)->bytes[k], size = op->bytes, at = (size_t)k * size;
        uint8_t *to = sim_row(w, op->rows[k]);
        if (size == 4 && row == 4) {
            for (uint32_t left = mask; left != 0; left &= left - 1) memcpy(to + __builtin_ctz(left) * 4, from[__builtin_ctz(left)] + at, 4);
        } else if (size == 8 && row == 8) {
            for (uint32_t left = mask; left != 0; left &= left - 1) memcpy(to + __builtin_ctz(left) * 8, from[__builtin_ctz(left)] + at, 8);
        } else if (size == 2 && row == 2) {
            for (uint32_t left = mask; left != 0; left &= left - 1) memcpy(to + __builtin_ctz(left) * 2, from[__builtin_ctz(left)] + at, 2);
        } else {
            for (uint32_t left = mask; left != 0; left &= left - 1) put_lane(w, op, k, __builtin_ctz(left), from[__builtin_ctz(left)] + at);
        }
    }
}

static bool check_read(sim_warp *w, const sim_op *op, int lane, const sim_place *place, size_t bytes, uint64_t address) {
    if (!sim_check_written(w, op, lane, place, bytes, address)) return false;
    if (place->space == PTX_GLOBAL && !is_plain(op)) race_strong_read(w, address, sim_has(&op->mods, SIM_MOD_acquire));
    else if (!sim_check_race(w, op, lane, place, bytes, address, SIM_READ, false)) return false;
    if (place->space != PTX_SHARED) return true;
    for (size_t i = 0; i < bytes && w->launch->code->cancels; i++) place->shadow[i] |= (place->shadow[i] & SHADOW_RESPONSE) != 0 ? SHADOW_READ : 0;
    if (is_plain(op)) return place->cta != w->cta || order_read(w, op, lane, place->offset, bytes, false);
    order_through(w);
    return true;
}

/* A read of lanes side by side, `each` bytes long, as one piece of the CTA's own shared memory or of the allocation that the warp reached last. false: it
 * lies elsewhere, or something is wrong with it, and has to be looked at lane by lane. */
static bool read_piece(sim_warp *w, const sim_op *op, int first, int lanes, uint64_t address, size_t bytes, size_t each, sim_place *place) {
    bool shared = op->space == PTX_SHARED;
    sim_allocation *a = w->last;
    if ((address & (each - 1)) != 0 || !is_plain(op)) return false;
    if (shared) {
        sim_cta *cta = w->cta;
        uint64_t at = (uint32_t)address;
        if (op->of_cluster || at < SIM_SHARED_RESERVED || at > cta->shared_bytes || bytes > cta->shared_bytes - at) return false;
        *place = (sim_place){cta->shared + at, cta->shared_shadow + at, NULL, cta, PTX_SHARED, at};
    } else {
        if (w->launch->early && w->waited != w->lanes) return false;
        if (op->space == PTX_LOCAL || op->space == PTX_PARAM || a == NULL || address - a->address >= a->bytes || bytes > a->bytes - (size_t)(address - a->address)) return false;
        size_t at = (size_t)(address - a->address);
        *place = (sim_place){a->host + at, a->shadow + at, a, NULL, PTX_GLOBAL, at};
    }
    sim_shadows s = sim_shadows_of(place->shadow, bytes);
    if ((s.any & SHADOW_RESPONSE) != 0) return false;
    if (w->launch->options->uninitialised && ((s.all & SHADOW_WRITTEN) == 0 || (s.any & SHADOW_FLIGHT) != 0)) return false;
    return shared ? each < 4 || order_may_read(w, first, lanes, place->offset, bytes) : sim_may_read(w, place, bytes);
}

/* From this lane on, the end of those that read one place (*pitch 0), or places side by side (*pitch bytes). */
static int end_of_run(const uint64_t *addresses, uint32_t mask, int lane, size_t bytes, size_t *pitch) {
    int end = lane + 1;
    *pitch = 0;
    if (end == LANES || (mask >> end & 1) == 0) return end;
    if (addresses[end] != addresses[lane]) *pitch = bytes;
    while (end < LANES && (mask >> end & 1) != 0 && addresses[end] == addresses[end - 1] + *pitch) end++;
    return end;
}

static sim_flow do_ld(sim_warp *w, const sim_op *op, uint32_t mask) {
    size_t bytes = (size_t)op->bytes * op->count, pitch;
    uint64_t addresses[LANES];
    const uint8_t *from[LANES];
    for (uint32_t left = mask; left != 0; left &= left - 1) addresses[__builtin_ctz(left)] = address_of(w, op, __builtin_ctz(left));
    for (uint32_t left = mask; left != 0;) {
        int first = __builtin_ctz(left), end = end_of_run(addresses, mask, first, bytes, &pitch);
        sim_place place;
        int lanes = pitch == 0 ? 1 : end - first;
        bool whole = read_piece(w, op, first, lanes, addresses[first], bytes * (size_t)lanes, bytes, &place);
        /* Of several lanes at one place the second sees whether the first has written there. */
        if (whole && pitch == 0 && end > first + 1 && place.space == PTX_SHARED) whole = bytes < 4 || order_may_read(w, first + 1, 1, place.offset, bytes);
        for (int lane = first; lane < end; lane++) {
            bool seen = whole || (lane != first && pitch == 0 && place.space != PTX_LOCAL && place.space != PTX_SHARED);
            if (!seen && (!sim_reach(w, op, lane, op->space, addresses[lane], bytes, bytes, SIM_READ, &place) || !check_read(w, op, lane, &place, bytes, addresses[lane]))) return SIM_STOP;
            from[lane] = place.bytes + (whole ? (size_t)(lane - first) * pitch : 0);
        }
        left = end == LANES ? 0 : left >> end << end;
    }
    put_lanes(w, op, mask, from);
    return SIM_NEXT;
}

sim_handler select_ld(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    if (in->count != 2 && in->count != 3) {   /* the third is a cache policy */
        d->why = "ld has a target and an address";
        return NULL;
    }
    if (decode_members(d, &in->operands[0], true) != DW_OK || sim_decode_address(d, &in->operands[1], &d->op->arg[0]) != DW_OK) return NULL;
    if (is_ordered(d) && is_outside(d->op->space)) d->code->talks = true;
    return do_ld;
}

/* ---- st ---- */

static void mark_written(const sim_place *place, size_t bytes) {
    if (place->shadow != NULL) memset(place->shadow, SHADOW_WRITTEN | (place->space == PTX_SHARED ? SHADOW_GENERIC : 0), bytes);
}

/* Does an asynchronous copy still read or write these bytes? Then a finding. */
static bool in_flight(sim_warp *w, const sim_op *op, int lane, const sim_place *place, size_t bytes, uint64_t address) {
    if ((sim_shadows_of(place->shadow, bytes).any & (SHADOW_FLIGHT | SHADOW_SOURCE | SHADOW_TENSOR)) == 0) return false;
    for (size_t i = 0; i < bytes; i++) {
        if ((place->shadow[i] & (SHADOW_FLIGHT | SHADOW_SOURCE | SHADOW_TENSOR)) == 0) continue;
        sim_find(w, op, lane, "writes %zu bytes of shared memory at 0x%llx, which %s: wait for it first", bytes, (unsigned long long)address,
                 (place->shadow[i] & SHADOW_TENSOR) != 0   ? "a tensor core may still read, its commit being yet to arrive"
                 : (place->shadow[i] & SHADOW_FLIGHT) != 0 ? "an asynchronous copy may still write" : "an asynchronous copy may still read");
        return true;
    }
    return false;
}

static sim_flow do_st(sim_warp *w, const sim_op *op, uint32_t mask) {
    size_t bytes = (size_t)op->bytes * op->count;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        int lane = __builtin_ctz(left);
        uint64_t address = address_of(w, op, lane);
        sim_place place;
        uint8_t value[64];
        if (!sim_reach(w, op, lane, op->space, address, bytes, bytes, SIM_WRITE, &place)) return SIM_STOP;
        for (int k = 0; k < op->count; k++) {
            size_t row = ((const members *)op->extra)->bytes[k];
            memcpy(value + (size_t)k * op->bytes, (const uint8_t *)sim_row(w, op->rows[k]) + (size_t)lane * row, op->bytes);
        }
        if (place.space == PTX_GLOBAL) {
            bool same = (place.shadow[0] & SHADOW_WRITTEN) != 0 && memcmp(place.bytes, value, bytes) == 0;
            if (!sim_check_race(w, op, lane, &place, bytes, address, is_plain(op) ? SIM_WRITE : SIM_ATOMIC, same)) return SIM_STOP;
            if (!is_plain(op)) race_strong_write(w, address, sim_has(&op->mods, SIM_MOD_release));
        }
        if (place.space == PTX_SHARED) {
            if (in_flight(w, op, lane, &place, bytes, address)) return SIM_STOP;
            bool same = (place.shadow[0] & SHADOW_WRITTEN) != 0 && memcmp(place.bytes, value, bytes) == 0;
            if (!is_plain(op)) order_through(w);
            else if (!same && place.cta == w->cta && !order_write(w, op, lane, place.offset, bytes, false)) return SIM_STOP;
            if (place.cta != w->cta) order_forget(place.cta, place.offset, bytes);
        }
        memcpy(place.bytes, value, bytes);
        mark_written(&place, bytes);
        sim_changed(w);
    }
    return SIM_NEXT;
}

sim_handler select_st(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    if (in->count != 2 && in->count != 3) {
        d->why = "st has an address and a value";
        return NULL;
    }
    if (decode_members(d, &in->operands[1], false) != DW_OK || sim_decode_address(d, &in->operands[0], &d->op->arg[0]) != DW_OK) return NULL;
    if (is_ordered(d) && is_outside(d->op->space)) d->code->talks = true;
    return do_st;
}

/* ---- atom, red ---- */

static uint16_t half_sum(uint16_t a, uint16_t b, bool bf16) {
    double sum = bf16 ? (double)num_bf16_to_f32(a) + (double)num_bf16_to_f32(b) : (double)num_f16_to_f32(a) + (double)num_f16_to_f32(b);
    return isnan(sum) ? 0x7fff : (uint16_t)num_encode(bf16 ? DW_FORMAT_bf16 : DW_FORMAT_f16, sum, false);
}

static bool nan64(uint64_t bits) { return (bits & INT64_MAX) > 0x7ff0000000000000ull; }

/* A NaN of .f64 stays (an H200's). In global memory b's comes before the old value's, and may be signalling. In shared memory the old value's comes first, and becomes quiet. */
static uint64_t float_sum(const sim_op *op, uint64_t old, uint64_t b, ptx_space space) {
    float x, y;
    switch (op->type) {
    case PTX_f64: return nan64(old) || nan64(b) ? (space == PTX_GLOBAL ? (nan64(b) ? b : old) : (nan64(old) ? old : b) | 0x0008000000000000ull) : f64_bits(f64_from(old) + f64_from(b));
    case PTX_f16: return half_sum((uint16_t)old, (uint16_t)b, false);
    case PTX_bf16: return half_sum((uint16_t)old, (uint16_t)b, true);
    case PTX_f16x2: case PTX_bf16x2:
        return (uint64_t)half_sum((uint16_t)(old >> 16), (uint16_t)(b >> 16), op->type == PTX_bf16x2) << 16 | half_sum((uint16_t)old, (uint16_t)b, op->type == PTX_bf16x2);
    default:
        x = f32_from((uint32_t)old);
        y = f32_from((uint32_t)b);
        if (space != PTX_GLOBAL) return f32_bits(canonical(x + y));
        return f32_bits(flush(canonical(flush(x) + flush(y))));   /* in global memory subnormals are flushed */
    }
}

static uint64_t half_extreme(const sim_op *op, uint64_t old, uint64_t b, bool largest) {
    int each = ptx_types[op->type].bits / 16;
    bool bf16 = op->type == PTX_bf16 || op->type == PTX_bf16x2;
    uint64_t result = 0;
    for (int i = 0; i < each; i++) {
        uint16_t x = (uint16_t)(old >> (16 * i)), y = (uint16_t)(b >> (16 * i)), limit = bf16 ? 0x7f80 : 0x7c00;
        bool x_nan = (x & 0x7fff) > limit, y_nan = (y & 0x7fff) > limit;
        int32_t p = (x & 0x8000) != 0 ? ~(x & 0x7fff) : x, q = (y & 0x8000) != 0 ? ~(y & 0x7fff) : y;
        uint16_t r = x_nan && y_nan ? 0x7fff : x_nan ? y : y_nan ? x : (p < q) == largest ? y : x;
        result |= (uint64_t)r << (16 * i);
    }
    return result;
}

uint64_t sim_combine(const sim_op *op, uint64_t old, uint64_t b, ptx_space space) {
    int bits = ptx_types[op->type].bits;
    bool is_signed = ptx_types[op->type].class == PTX_SIGNED, real = ptx_types[op->type].class == PTX_FLOAT || ptx_types[op->type].class == PTX_PACKED;
    int64_t x = is_signed ? (int64_t)(old << (64 - bits)) >> (64 - bits) : (int64_t)old, y = is_signed ? (int64_t)(b << (64 - bits)) >> (64 - bits) : (int64_t)b;
    bool less = is_signed ? x < y : old < b;
    switch (op->small) {
    case SIM_MOD_add: return real ? float_sum(op, old, b, space) : old + b;
    case SIM_MOD_min: return real ? half_extreme(op, old, b, false) : less ? old : b;
    case SIM_MOD_max: return real ? half_extreme(op, old, b, true) : less ? b : old;
    case SIM_MOD_inc: return old >= b ? 0 : old + 1;
    case SIM_MOD_dec: return old == 0 || old > b ? b : old - 1;
    case SIM_MOD_and: return old & b;
    case SIM_MOD_or: return old | b;
    case SIM_MOD_xor: return old ^ b;
    default: return b;   /* exch */
    }
}

/* An atomic operation on global memory: a race, or an order of CTAs? false: a finding. */
static bool change_global(sim_warp *w, const sim_op *op, int lane, const sim_place *place, size_t bytes, uint64_t address) {
    const bool both = sim_has(&op->mods, SIM_MOD_acq_rel);
    if (!sim_check_race(w, op, lane, place, bytes, address, SIM_ATOMIC, false)) return false;
    race_strong_read(w, address, both || sim_has(&op->mods, SIM_MOD_acquire));
    race_strong_write(w, address, both || sim_has(&op->mods, SIM_MOD_release));
    return true;
}

enum { MOST_MEMBERS = 8 };

/* rows: [count] results or SIM_NO_ROW, [count] values, and the row of c for cas. extra: members of the values. */
static sim_flow do_atom(sim_warp *w, const sim_op *op, uint32_t mask) {
    size_t size = op->bytes, bytes = size * op->count, row = size < 2 ? 2 : size;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        int lane = __builtin_ctz(left);
        uint64_t address = address_of(w, op, lane);
        sim_place place;
        if (!sim_reach(w, op, lane, op->space, address, bytes, bytes, SIM_ATOMIC, &place)) return SIM_STOP;
        if (op->small != SIM_MOD_exch && !sim_check_written(w, op, lane, &place, bytes, address)) return SIM_STOP;
        order_through(w);
        if (place.space == PTX_GLOBAL && !change_global(w, op, lane, &place, bytes, address)) return SIM_STOP;
        uint8_t before[MOST_MEMBERS][16];      /* results may go to registers that hold further values */
        for (int k = 0; k < op->count; k++) {
            uint8_t *at = place.bytes + (size_t)k * size;
            const uint8_t *value = (const uint8_t *)sim_row(w, op->rows[op->count + k]) + (size_t)lane * row;
            uint64_t old = 0, b = 0;
            memcpy(before[k], at, size);
            memcpy(&old, at, size < 8 ? size : 8);
            memcpy(&b, value, size < 8 ? size : 8);
            if (op->small == SIM_MOD_cas) {
                const uint8_t *c = (const uint8_t *)sim_row(w, op->rows[2 * op->count]) + (size_t)lane * row;
                if (memcmp(at, value, size) == 0) memcpy(at, c, size);
            } else if (size == 16) {
                memcpy(at, value, size);
            } else {
                uint64_t fresh = sim_combine(op, old, b, place.space);
                memcpy(at, &fresh, size);
            }
        }
        for (int k = 0; k < op->count; k++) {
            if (op->rows[k] != SIM_NO_ROW) memcpy((uint8_t *)sim_row(w, op->rows[k]) + (size_t)lane * row, before[k], size);
        }
        mark_written(&place, bytes);
        sim_changed(w);
    }
    return SIM_NEXT;
}

static bool is_atomic_type(const sim_decoding *d, sim_modifier what) {
    ptx_class class = ptx_types[d->type].class;
    bool bits = class == PTX_BITS, real = class == PTX_FLOAT || class == PTX_PACKED, half = real && d->type != PTX_f32 && d->type != PTX_f64;
    switch (what) {
    case SIM_MOD_add: return !bits;
    case SIM_MOD_min: case SIM_MOD_max: return half || (!real && !bits);
    case SIM_MOD_inc: case SIM_MOD_dec: return d->type == PTX_u32;
    case SIM_MOD_and: case SIM_MOD_or: case SIM_MOD_xor: return bits && d->type != PTX_b128;
    case SIM_MOD_exch: case SIM_MOD_cas: return !real;
    default: return false;
    }
}

bool sim_decode_combination(sim_decoding *d) {
    static const sim_modifier kinds[] = {SIM_MOD_add, SIM_MOD_min, SIM_MOD_max, SIM_MOD_inc, SIM_MOD_dec, SIM_MOD_and, SIM_MOD_or, SIM_MOD_xor, SIM_MOD_exch, SIM_MOD_cas};
    d->op->small = 0;
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        if (sim_mod(d, kinds[i])) d->op->small = (uint8_t)kinds[i];
    }
    if (is_atomic_type(d, (sim_modifier)d->op->small)) return true;
    d->why = "an atomic operation that this type does not have";
    return false;
}

static sim_handler select_atomic(sim_decoding *d, bool returns) {
    const ptx_instruction *in = d->instruction;
    int at = returns, count = d->op->count;
    if (!sim_decode_combination(d)) return NULL;
    bool swaps = d->op->small == SIM_MOD_cas;
    if (in->count < at + 2 + swaps || in->count > at + 3 + swaps) {
        d->why = "a wrong number of operands";
        return NULL;
    }
    uint32_t *rows = sim_decode_new(d, sizeof *rows * (2 * (size_t)count + 1));
    if (rows == NULL) return NULL;
    for (int k = 0; k < count; k++) {
        const ptx_operand *result = &in->operands[0], *value = &in->operands[at + 1];
        bool vector = value->kind == PTX_OPERAND_VECTOR;
        rows[k] = SIM_NO_ROW;
        if ((vector && value->count != count) || (!vector && count > 1) || (returns && vector && (result->kind != PTX_OPERAND_VECTOR || result->count != count))) {
            d->why = "vectors of as many members as the instruction says";
            return NULL;
        }
        if (returns && result->kind != PTX_OPERAND_SINK && sim_decode_target(d, vector ? &result->items[k] : result, d->type, &rows[k]) != DW_OK) return NULL;
        if (sim_decode_source(d, vector ? &value->items[k] : value, d->type, &rows[count + k]) != DW_OK) return NULL;
    }
    if (swaps && sim_decode_source(d, &in->operands[at + 2], d->type, &rows[2 * count]) != DW_OK) return NULL;
    d->op->rows = rows;
    if (sim_decode_address(d, &in->operands[at], &d->op->arg[0]) != DW_OK) return NULL;
    if (is_outside(d->op->space)) d->code->talks = true;
    return do_atom;
}

sim_handler select_atom(sim_decoding *d) { return select_atomic(d, true); }
sim_handler select_red(sim_decoding *d) { return select_atomic(d, false); }

/* ---- cp.async: the bytes come at once, but until the thread has waited for them, reading them is a finding ---- */

typedef struct copy_op { uint32_t source; int64_t source_offset; size_t bytes; uint32_t source_bytes, ignore; bool ignore_negated; } copy_op;   /* ignore: a predicate, where it holds there is no source */

struct sim_copy { int lane; uint32_t group; uint64_t serial; uint8_t *shadow; size_t bytes; };

static bool add_copy(sim_warp *w, int lane, uint8_t *shadow, size_t bytes) {
    if (w->copy_count == w->copy_capacity) {
        size_t capacity = w->copy_capacity == 0 ? 256 : w->copy_capacity * 2;
        struct sim_copy *larger = realloc(w->copies, capacity * sizeof *larger);
        if (larger == NULL) return false;
        w->copies = larger;
        w->copy_capacity = capacity;
    }
    w->copies[w->copy_count++] = (struct sim_copy){lane, w->async_group[lane], w->copy_serial++, shadow, bytes};
    return true;
}

static sim_flow do_cp_async(sim_warp *w, const sim_op *op, uint32_t mask) {
    const copy_op *copy = op->extra;
    const uint64_t *source = sim_row(w, copy->source);
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        int lane = __builtin_ctz(left);
        uint64_t to = address_of(w, op, lane), from = source[lane] + (uint64_t)copy->source_offset;
        size_t taken = copy->source_bytes != SIM_NO_ROW ? ((const uint32_t *)sim_row(w, copy->source_bytes))[lane] : copy->bytes;
        sim_place into, out;
        if (copy->ignore != SIM_NO_ROW && ((*(const uint32_t *)sim_row(w, copy->ignore) >> lane & 1) != 0) != copy->ignore_negated) taken = 0;
        if (taken > copy->bytes) return sim_find(w, op, lane, "copies %zu bytes with a source of %zu: at most as many", copy->bytes, taken);
        if (!sim_reach(w, op, lane, PTX_SHARED, to, copy->bytes, copy->bytes, SIM_WRITE, &into)) return SIM_STOP;
        if (into.cta == w->cta && !order_write(w, op, lane, into.offset, copy->bytes, false)) return SIM_STOP;
        memset(into.bytes, 0, copy->bytes);
        if (taken > 0) {
            if (!sim_reach(w, op, lane, PTX_GLOBAL, from, taken, copy->bytes, SIM_READ, &out) || !sim_check_written(w, op, lane, &out, taken, from) ||
                !sim_check_race(w, op, lane, &out, taken, from, SIM_READ, false)) {
                return SIM_STOP;
            }
            memcpy(into.bytes, out.bytes, taken);
        }
        memset(into.shadow, SHADOW_WRITTEN | SHADOW_FLIGHT, copy->bytes);
        if (!add_copy(w, lane, into.shadow, copy->bytes)) return sim_find(w, op, lane, "no memory for the list of copies");
    }
    return SIM_NEXT;
}

sim_handler select_cp_async(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    copy_op *copy = sim_decode_new(d, sizeof *copy);
    if (copy == NULL) return NULL;
    if (in->count < 3 || in->count > 5 || in->operands[2].kind != PTX_OPERAND_INTEGER) {
        d->why = "cp.async has a target, a source and a constant count of bytes";
        return NULL;
    }
    copy->bytes = (size_t)in->operands[2].value;
    if (!(copy->bytes == 16 || (sim_mod(d, SIM_MOD_ca) && (copy->bytes == 4 || copy->bytes == 8)))) {
        d->why = "cp.async.ca copies 4, 8 or 16 bytes, cp.async.cg 16";
        return NULL;
    }
    copy->source_bytes = copy->ignore = SIM_NO_ROW;
    if (in->count > 3 && sim_decode_register_type(d, &in->operands[3]) == PTX_pred) {
        ptx_operand predicate = in->operands[3];
        copy->ignore_negated = predicate.negated;
        predicate.negated = false;
        if (sim_decode_source(d, &predicate, PTX_pred, &copy->ignore) != DW_OK) return NULL;
    } else if (in->count > 3) {
        ptx_type held = sim_decode_register_type(d, &in->operands[3]);
        if (held == PTX_NO_TYPE || ptx_types[held].bits == 32) {   /* a 64-bit one is a cache policy */
            if (sim_decode_source(d, &in->operands[3], PTX_u32, &copy->source_bytes) != DW_OK) return NULL;
        }
    }
    d->op->space = PTX_GLOBAL;
    if (sim_decode_address(d, &in->operands[1], &copy->source) != DW_OK) return NULL;
    if (!d->op->address_wide) {
        d->why = "the source's address has 64 bits";
        return NULL;
    }
    copy->source_offset = d->op->offset;
    d->op->space = PTX_SHARED;
    if (sim_decode_address(d, &in->operands[0], &d->op->arg[0]) != DW_OK) return NULL;
    d->op->extra = copy;
    return do_cp_async;
}

static sim_flow do_commit(sim_warp *w, const sim_op *op, uint32_t mask) {
    (void)op;
    for (int lane = 0; lane < LANES; lane++) w->async_group[lane] += mask >> lane & 1;
    return SIM_NEXT;
}

void sim_copies_finish(sim_warp *w, int lane, uint64_t serial) {
    size_t kept = 0;
    for (size_t i = 0; i < w->copy_count; i++) {
        struct sim_copy *c = &w->copies[i];
        if (c->lane != lane || c->serial >= serial) w->copies[kept++] = *c;
        else for (size_t b = 0; b < c->bytes; b++) c->shadow[b] &= (uint8_t)~SHADOW_FLIGHT;
    }
    w->copy_count = kept;
}

/* All groups of the lane but its newest `pending` are done; SIM_NO_ROW: everything. */
static sim_flow do_wait(sim_warp *w, const sim_op *op, uint32_t mask) {
    size_t kept = 0;
    for (size_t i = 0; i < w->copy_count; i++) {
        struct sim_copy *c = &w->copies[i];
        bool done = false;
        if (mask >> c->lane & 1) done = op->arg[0] == SIM_NO_ROW || c->group + ROW(uint32_t, 0)[c->lane] < w->async_group[c->lane];
        if (!done) {
            w->copies[kept++] = *c;
            continue;
        }
        for (size_t b = 0; b < c->bytes; b++) c->shadow[b] &= (uint8_t)~SHADOW_FLIGHT;
    }
    w->copy_count = kept;
    return SIM_NEXT;
}

sim_handler select_cp_async_commit(sim_decoding *d) {
    (void)d;
    return do_commit;
}

sim_handler select_cp_async_wait(sim_decoding *d) {
    (void)d;
    return do_wait;
}

/* ---- fences: execution is in order; they show that CTAs may communicate, and order what they did ---- */

static sim_flow do_fence(sim_warp *w, const sim_op *op, uint32_t mask) {
    (void)mask;
    if (!sim_has(&op->mods, SIM_MOD_cta)) race_fence(w);
    return SIM_NEXT;
}

sim_handler select_fence(sim_decoding *d) {
    if (sim_mod(d, SIM_MOD_gl) || sim_mod(d, SIM_MOD_gpu) || sim_mod(d, SIM_MOD_sys)) d->code->talks = true;
    return do_fence;
}
