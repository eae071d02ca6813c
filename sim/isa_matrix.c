/* ldmatrix, stmatrix and movmatrix (PTX ISA 9.7.14.5.15 to 17): matrices of 8 by 8 halves between shared memory, whose rows lanes name, and fragments. */
#include "decode.h"
#include "order.h"

/* Lane l gives the address of row l % 8 of matrix l / 8, and holds of each matrix row l / 4, columns 2 (l % 4) and the next; transposed, a column so. */
static uint64_t row_address(sim_warp *w, const sim_op *op, int lane) {
    if (op->address_wide) return ROW(uint64_t, 0)[lane] + (uint64_t)op->offset;
    return (uint32_t)(ROW(uint32_t, 0)[lane] + (uint32_t)op->offset);
}

static sim_flow do_matrix(sim_warp *w, const sim_op *op, uint32_t mask) {
    bool store = op->small != 0, transposed = sim_has(&op->mods, SIM_MOD_trans);
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    if (mask != SIM_ALL_LANES) return sim_find(w, op, -1, "all 32 lanes execute this together, and only 0x%08x do", mask);
    for (int matrix = 0; matrix < op->count; matrix++) {
        uint32_t *fragment = sim_row(w, op->rows[matrix]);
        for (int row = 0; row < 8; row++) {
            int lane = matrix * 8 + row;
            uint64_t address = row_address(w, op, lane);
            sim_place place;
            if (!sim_reach(w, op, lane, (ptx_space)op->space, address, 16, 16, store ? SIM_WRITE : SIM_READ, &place)) return SIM_STOP;
            if (!store && !sim_check_written(w, op, lane, &place, 16, address)) return SIM_STOP;
            for (int i = 0; i < 16 && store; i++) {
                if ((place.shadow[i] & (SHADOW_FLIGHT | SHADOW_SOURCE | SHADOW_TENSOR)) == 0) continue;
                return sim_find(w, op, lane, "writes shared memory at 0x%llx, which an asynchronous copy still uses: wait for it first", (unsigned long long)address);
            }
            if (place.space == PTX_SHARED && place.cta == w->cta && !(store ? order_write : order_read)(w, op, lane, place.offset, 16, false)) return SIM_STOP;
            for (int column = 0; column < 8; column++) {
                int r = transposed ? column : row, c = transposed ? row : column;
                uint16_t *half = (uint16_t *)&fragment[r * 4 + c / 2] + c % 2;
                if (store) memcpy(place.bytes + column * 2, half, 2);
                else memcpy(half, place.bytes + column * 2, 2);
            }
            if (store) memset(place.shadow, SHADOW_WRITTEN | SHADOW_GENERIC, 16);
        }
    }
    return SIM_NEXT;
}

static sim_handler select_matrix(sim_decoding *d, bool store) {
    const ptx_instruction *in = d->instruction;
    int count = sim_mod(d, SIM_MOD_x4) ? 4 : sim_mod(d, SIM_MOD_x2) ? 2 : 1;
    if (in->count != 2) {
        d->why = "a vector and an address";
        return NULL;
    }
    const ptx_operand *vector = &in->operands[store ? 1 : 0], *items = vector->kind == PTX_OPERAND_VECTOR ? vector->items : vector;
    uint32_t *rows = sim_decode_new(d, sizeof *rows * 4);
    if (rows == NULL) return NULL;
    if ((vector->kind == PTX_OPERAND_VECTOR ? vector->count : 1) != count) {
        d->why = "as many registers as matrices";
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        if ((store ? sim_decode_source(d, &items[i], PTX_b32, &rows[i]) : sim_decode_target(d, &items[i], PTX_b32, &rows[i])) != DW_OK) return NULL;
    }
    if (d->op->space == PTX_GENERIC) d->op->space = PTX_SHARED;
    if (sim_decode_address(d, &in->operands[store ? 0 : 1], &d->op->arg[0]) != DW_OK) return NULL;
    d->op->rows = rows;
    d->op->count = (uint8_t)count;
    d->op->small = store;
    return do_matrix;
}

sim_handler select_ldmatrix(sim_decoding *d) { return select_matrix(d, false); }
sim_handler select_stmatrix(sim_decoding *d) { return select_matrix(d, true); }

/* ---- movmatrix: a fragment of the transposed matrix ---- */

static sim_flow do_transpose(sim_warp *w, const sim_op *op, uint32_t mask) {
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    if (mask != SIM_ALL_LANES) return sim_find(w, op, -1, "all 32 lanes execute this together, and only 0x%08x do", mask);
    const uint32_t *from = ROW(uint32_t, 1);
    uint32_t values[LANES];
    for (int lane = 0; lane < LANES; lane++) {
        const int row = lane / 4, column = lane % 4 * 2;
        const uint32_t low = from[column * 4 + row / 2] >> row % 2 * 16, high = from[(column + 1) * 4 + row / 2] >> row % 2 * 16;
        values[lane] = (low & 0xffff) | high << 16;
    }
    STORE_ROW(uint32_t, 0, values, mask);
    return SIM_NEXT;
}

sim_handler select_movmatrix(sim_decoding *d) {
    (void)d;
    return do_transpose;
}
