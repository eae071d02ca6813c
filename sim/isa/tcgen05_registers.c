/* tcgen05.ld, st, wait and fence (PTX ISA 9.7.16.8 and 9.7.16.11): between tensor memory and registers of a warp, each of which reaches 32 lanes. A load's
 * registers have their values at once, as register dependences promise; the cells count as read until the warp has waited, and a store's as being written. */
#include "sim/machine/order.h"
#include "sim/math/real.h"
#include "tmem.h"

#include <stdlib.h>

typedef enum register_shape { SHAPE_32x32b, SHAPE_16x64b, SHAPE_16x128b, SHAPE_16x256b, SHAPE_16x32bx2 } register_shape;

/* extreme: of .red, where the smallest or the largest of a lane's values goes; else SIM_NO_ROW. */
typedef struct register_op { sim_address at; register_shape shape; int repeat, registers, half; bool packed; uint32_t extreme; ptx_type type; } register_op;

/* The cell of a lane's register: how far from the first lane and column. Figures 183 to 187 of the ISA; a repetition lies behind the one before it. */
static void cell_of(const register_op *r, int lane, int reg, int *row, int *column) {
    switch (r->shape) {
    case SHAPE_32x32b: *row = lane, *column = reg; break;
    case SHAPE_16x64b: *row = lane % 2 * 8 + lane / 4, *column = lane / 2 % 2 + 2 * reg; break;
    case SHAPE_16x128b: *row = lane / 4 + reg % 2 * 8, *column = lane % 4 + reg / 2 * 4; break;
    case SHAPE_16x256b: *row = lane / 4 + reg / 2 % 2 * 8, *column = lane % 4 * 2 + reg % 2 + reg / 4 * 8; break;
    default: *row = lane % 16, *column = reg; break;
    }
}

static int columns_of(const register_op *r) {
    static const int widths[] = {1, 2, 4, 8, 1};
    return widths[r->shape] * r->repeat * (r->packed ? 2 : 1);
}

/* Where the warp's access begins, its lanes and columns checked; of .16x32bx2 the second half's columns follow at half. */
static bool reach(sim_warp *w, const sim_op *op, bool store, int *lane, int *column) {
    const register_op *r = op->extra;
    uint32_t address = (uint32_t)sim_address_of(w, &r->at, 0);
    int own = w->index % 4 * TMEM_PARTITION, lanes = r->shape == SHAPE_32x32b ? 32 : 16;
    for (int i = 1; i < LANES; i++) {
        if ((uint32_t)sim_address_of(w, &r->at, i) == address) continue;
        sim_find(w, op, i, "gives the address 0x%llx, and lane 0 gives 0x%x: a warp gives one", (unsigned long long)sim_address_of(w, &r->at, i), address);
        return false;
    }
    *lane = tmem_lane(address);
    *column = tmem_column(address);
    if (w->launch->options->lanes_routed) *lane = own + *lane % TMEM_PARTITION;
    if (*lane < own || *lane + lanes > own + TMEM_PARTITION || *lane % 16 != 0) {
        sim_find(w, op, -1, "takes lanes %d to %d of tensor memory, and warp %d reaches %d to %d (option lanes=routed takes the warp's own, as hardware is said to)", *lane, *lane + lanes - 1,
                 w->index, own, own + TMEM_PARTITION - 1);
        return false;
    }
    for (int half = 0; half < (r->shape == SHAPE_16x32bx2 ? 2 : 1); half++) {
        const tmem_area area = tmem_area_of(*lane, lanes, *column + half * r->half, columns_of(r));
        const char *what = store ? "the store" : "the load";
        if (!tmem_check_area(w, op, -1, w->cta, &area, what)) return false;
        if (!tmem_check_accesses(w, op, -1, w->cta, &area, store, what)) return false;
        const tensor_task *task = tensor_conflict(w->cta, &area, store);
        if (task != NULL) {
            sim_find(w, op, -1, "%s columns %d to %d of tensor memory, which the operation of PTX line %d may still use: wait for the mbarrier of its commit first", store ? "writes" : "reads",
                     area.first, area.end - 1, w->launch->code->function->instructions[task->op->instruction].line);
            return false;
        }
        if (!tmem_check_order(w, op, -1, w->cta, &area, store, false)) return false;
        if (!order_tensor(w, op, area.first / TMEM_UNIT, (area.end - 1) / TMEM_UNIT - area.first / TMEM_UNIT + 1, false)) return false;
    }
    return true;
}

static bool note_access(sim_warp *w, const sim_op *op, int lane, int column, bool store) {
    const register_op *r = op->extra;
    sim_tmem *t = w->cta->tmem;
    for (int half = 0; half < (r->shape == SHAPE_16x32bx2 ? 2 : 1); half++) {
        if (t->access_count == t->access_capacity) {
            size_t capacity = t->access_capacity == 0 ? 64 : t->access_capacity * 2;
            tmem_access *larger = realloc(t->accesses, capacity * sizeof *larger);
            if (larger == NULL) {
                sim_find(w, op, -1, "no memory for the list of accesses to tensor memory");
                return false;
            }
            t->accesses = larger;
            t->access_capacity = capacity;
        }
        const tmem_area area = tmem_area_of(lane, r->shape == SHAPE_32x32b ? 32 : 16, column + half * r->half, columns_of(r));
        t->accesses[t->access_count++] = (tmem_access){area, w->index, store};
        tmem_touched(w, &area, store);
    }
    return true;
}

/* One register's cell, or, packed, the lower halves of two neighbours. */
static bool move_cell(sim_warp *w, const sim_op *op, int thread, int lane, int column, bool packed, bool store, uint32_t *value) {
    sim_tmem *t = w->cta->tmem;
    for (int i = 0; i <= packed; i++) {
        uint32_t *cell = &t->cells[lane][column + i];
        if (store) {
            *cell = packed ? *value >> (16 * i) & 0xffff : *value;
            t->written[lane][column + i] = true;
            continue;
        }
        if (!t->written[lane][column + i] && w->launch->options->uninitialised) {
            sim_find(w, op, thread, "reads lane %d, column %d of tensor memory, which nobody ever wrote", lane, column + i);
            return false;
        }
        if (!packed) *value = *cell;
        else *value = i == 0 ? *cell & 0xffff : (*value & 0xffff) | *cell << 16;
    }
    return true;
}

/* Floats as integers of the same order. */
static int64_t rank_of(ptx_type type, uint32_t bits) {
    if (type == PTX_u32) return bits;
    return type == PTX_s32 ? (int32_t)bits : (int32_t)(bits ^ ((uint32_t)((int32_t)bits >> 31) & 0x7fffffffu));
}

/* The extreme of a lane's registers; NaNs count with .NaN alone. */
static uint32_t extreme_of(sim_warp *w, const sim_op *op, int thread) {
    const register_op *r = op->extra;
    const bool real = r->type == PTX_f32, smallest = sim_has(&op->mods, SIM_MOD_min);
    uint32_t result = F32_NAN;
    bool started = false;
    for (int i = 0; i < r->registers; i++) {
        uint32_t value = ((const uint32_t *)sim_row(w, op->rows[i]))[thread];
        if (sim_has(&op->mods, SIM_MOD_abs)) value &= 0x7fffffff;
        if (real && (value & 0x7fffffff) > 0x7f800000) {
            if (sim_has(&op->mods, SIM_MOD_NaN)) return F32_NAN;
            continue;
        }
        const int64_t a = rank_of(r->type, value), b = rank_of(r->type, result);
        if (!started || (smallest ? a < b : a > b)) result = value;
        started = true;
    }
    return result;
}

static sim_flow do_registers(sim_warp *w, const sim_op *op, uint32_t mask) {
    const register_op *r = op->extra;
    bool store = op->small != 0;
    int first_lane, first_column;
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    if (mask != SIM_ALL_LANES) return sim_find(w, op, -1, "all 32 lanes execute this together, and only 0x%08x do", mask);
    if (!reach(w, op, store, &first_lane, &first_column)) return SIM_STOP;
    for (int reg = 0; reg < r->registers; reg++) {
        uint32_t *values = sim_row(w, op->rows[reg]);
        for (int thread = 0; thread < LANES; thread++) {
            int row, column;
            cell_of(r, thread, reg, &row, &column);
            if (r->packed) column *= 2;
            if (r->shape == SHAPE_16x32bx2 && thread >= 16) column += r->half;
            if (!move_cell(w, op, thread, first_lane + row, first_column + column, r->packed, store, &values[thread])) return SIM_STOP;
        }
    }
    for (int thread = 0; thread < LANES && r->extreme != SIM_NO_ROW; thread++) ((uint32_t *)sim_row(w, r->extreme))[thread] = extreme_of(w, op, thread);
    if (store ? w->launch->options->stores_done : w->launch->options->loads_done) return SIM_NEXT;
    return note_access(w, op, first_lane, first_column, store) ? SIM_NEXT : SIM_STOP;
}

/* small: stores, not loads. */
static sim_flow do_wait(sim_warp *w, const sim_op *op, uint32_t mask) {
    sim_tmem *t = w->cta->tmem;
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    size_t kept = 0;
    for (size_t i = 0; t != NULL && i < t->access_count; i++) {
        if (t->accesses[i].warp != w->index || t->accesses[i].store != (op->small != 0)) t->accesses[kept++] = t->accesses[i];
    }
    if (t != NULL) t->access_count = kept;
    order_tensor_wait(w, op->small != 0);
    return SIM_NEXT;
}

/* ---- decoding ---- */

static int count_of(const sim_decoding *d) {
    static const sim_modifier words[] = {SIM_MOD_x1, SIM_MOD_x2, SIM_MOD_x4, SIM_MOD_x8, SIM_MOD_x16, SIM_MOD_x32, SIM_MOD_x64, SIM_MOD_x128};
    for (int i = 0; i < 8; i++) {
        if (sim_mod(d, words[i])) return 1 << i;
    }
    return 1;
}

static sim_handler select_registers(sim_decoding *d, bool store) {
    static const sim_modifier words[] = {SIM_MOD_32x32b, SIM_MOD_16x64b, SIM_MOD_16x128b, SIM_MOD_16x256b, SIM_MOD_16x32bx2};
    static const int registers[] = {1, 1, 2, 4, 1};
    const ptx_instruction *in = d->instruction;
    register_op *r = sim_decode_new(d, sizeof *r);
    if (r == NULL || !tmem_has_target(d, false)) return NULL;
    for (int i = 0; i < 5; i++) {
        if (sim_mod(d, words[i])) r->shape = (register_shape)i;
    }
    r->repeat = count_of(d);
    r->extreme = SIM_NO_ROW;
    r->registers = r->repeat * registers[r->shape];
    r->packed = sim_mod(d, SIM_MOD_pack_16b) || sim_mod(d, SIM_MOD_unpack_16b);
    const bool split = r->shape == SHAPE_16x32bx2, red = sim_mod(d, SIM_MOD_red);
    if (r->registers > 128 || in->count != 2 + split + red) {
        d->why = "more than 128 registers, or not a vector, of .red a register, an address, and the distance of .16x32bx2's halves";
        return NULL;
    }
    const ptx_operand *vector = &in->operands[store ? 1 + split : 0], *items = vector->kind == PTX_OPERAND_VECTOR ? vector->items : vector;
    const ptx_operand *half = split ? &in->operands[store ? 1 : 2] : NULL;
    if ((vector->kind == PTX_OPERAND_VECTOR ? vector->count : 1) != r->registers || (half != NULL && half->kind != PTX_OPERAND_INTEGER)) {
        d->why = "another number of registers than the shape has, or a distance that is no constant";
        return NULL;
    }
    r->half = half != NULL ? (int)(half->value & 0xffff) : 0;
    uint32_t *rows = sim_decode_new(d, sizeof *rows * (size_t)r->registers);
    if (rows == NULL || sim_decode_place(d, &in->operands[store ? 0 : 1 + red], PTX_GENERIC, &r->at) != DW_OK) return NULL;
    for (int i = 0; i < r->registers; i++) {
        if ((store ? sim_decode_source(d, &items[i], PTX_b32, &rows[i]) : sim_decode_target(d, &items[i], PTX_b32, &rows[i])) != DW_OK) return NULL;
    }
    d->op->rows = rows;
    d->op->extra = r;
    d->op->small = store;
    return do_registers;
}

sim_handler select_tcgen05_ld(sim_decoding *d) { return select_registers(d, false); }

/* The register of the extreme stands between the vector and the address. */
sim_handler select_tcgen05_ld_red(sim_decoding *d) {
    uint32_t row;
    if (d->module->arch == 100) {
        d->why = "tcgen05.ld.red is for targets like sm_103f and sm_110f";
        return NULL;
    }
    sim_handler handler = select_registers(d, false);
    if (handler == NULL || sim_decode_target(d, &d->instruction->operands[1], PTX_b32, &row) != DW_OK) return NULL;
    register_op *r = (register_op *)(uintptr_t)d->op->extra;
    r->extreme = row;
    r->type = d->type;
    return handler;
}
sim_handler select_tcgen05_st(sim_decoding *d) { return select_registers(d, true); }

sim_handler select_tcgen05_wait(sim_decoding *d) {
    d->op->small = sim_mod(d, SIM_MOD_wait_st);
    return tmem_has_target(d, false) ? do_wait : NULL;
}

/* small: after_thread_sync, not before. */
static sim_flow do_fence(sim_warp *w, const sim_op *op, uint32_t mask) {
    (void)mask;
    *(op->small != 0 ? &w->tensor_after : &w->tensor_before) = ++w->cta->cluster->tensor_time;
    order_tensor_fence(w, op->small != 0);
    return SIM_NEXT;
}

sim_handler select_tcgen05_fence(sim_decoding *d) {
    d->op->small = sim_mod(d, SIM_MOD_fence_after);
    d->code->tensor_fences = true;
    return tmem_has_target(d, false) ? do_fence : NULL;
}
