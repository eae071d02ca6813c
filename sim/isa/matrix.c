/* ldmatrix, stmatrix and movmatrix (PTX ISA 9.7.14.5.15 to 17): matrices of 8 by 8 halves, or of bytes, between shared memory, whose rows lanes name, and fragments. */
#include "decode.h"
#include "sim/machine/order.h"

enum { ROW_BYTES = 16 };

/* The rows' addresses, which a load's registers may take the place of. */
static void row_addresses(sim_warp *w, const sim_op *op, uint64_t addresses[LANES]) {
    for (int lane = 0; lane < LANES; lane++)
        addresses[lane] = op->address_wide ? ROW(uint64_t, 0)[lane] + (uint64_t)op->offset : (uint32_t)(ROW(uint32_t, 0)[lane] + (uint32_t)op->offset);
}

/* The row that a lane names, of so many bytes; false: a finding. */
static bool reach_row(sim_warp *w, const sim_op *op, int lane, uint64_t address, size_t bytes, bool store, sim_place *place) {
    if (!sim_reach(w, op, lane, (ptx_space)op->space, address, bytes, ROW_BYTES, store ? SIM_WRITE : SIM_READ, place)) return false;
    if (!store && !sim_check_written(w, op, lane, place, bytes, address)) return false;
    for (size_t i = 0; i < bytes && store; i++) {
        if ((place->shadow[i] & (SHADOW_FLIGHT | SHADOW_SOURCE | SHADOW_TENSOR)) == 0) continue;
        sim_find(w, op, lane, "writes shared memory at 0x%llx, which an asynchronous copy still uses: wait for it first", (unsigned long long)address);
        return false;
    }
    if (store) memset(place->shadow, SHADOW_WRITTEN | SHADOW_GENERIC, bytes);
    return place->space != PTX_SHARED || place->cta != w->cta || (store ? order_write : order_read)(w, op, lane, place->offset, bytes, false);
}

/* Lane l gives the address of row l % 8 of matrix l / 8, and holds of each matrix row l / 4, columns 2 (l % 4) and the next; transposed, a column so. */
static sim_flow do_matrix(sim_warp *w, const sim_op *op, uint32_t mask) {
    bool store = op->small != 0, transposed = sim_has(&op->mods, SIM_MOD_trans);
    uint64_t addresses[LANES];
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    if (mask != SIM_ALL_LANES) return sim_find(w, op, -1, "all 32 lanes execute this together, and only 0x%08x do", mask);
    row_addresses(w, op, addresses);
    for (int matrix = 0; matrix < op->count; matrix++) {
        uint32_t *fragment = sim_row(w, op->rows[matrix]);
        for (int row = 0; row < 8; row++) {
            int lane = matrix * 8 + row;
            sim_place place;
            if (!reach_row(w, op, lane, addresses[lane], ROW_BYTES, store, &place)) return SIM_STOP;
            for (int column = 0; column < 8; column++) {
                int r = transposed ? column : row, c = transposed ? row : column;
                uint16_t *half = (uint16_t *)&fragment[r * 4 + c / 2] + c % 2;
                if (store) memcpy(place.bytes + column * 2, half, 2);
                else memcpy(half, place.bytes + column * 2, 2);
            }
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

/* ---- bytes ---- */

/* Registers and rows of a matrix; bits of its elements in memory, which lie side by side from the row's begin on, and come to the low ends of bytes. */
typedef struct bytes_op { int registers, rows, bits; bool store; uint32_t row[4]; } bytes_op;

/* Which row and byte of it a lane's register has as byte e (CuTe has it so): of m16n16, transposed, row 4 t + e and byte g + 8 register; of m8n16 row g, byte 4 t + e; of m16n8, transposed,
 * row 2 t + e % 2 and byte g + 8 (e / 2), with g = lane / 4 and t = lane % 4. */
static void byte_place(const bytes_op *b, int lane, int reg, int e, int *row, int *byte) {
    const int g = lane / 4, t = lane % 4;
    *row = b->rows == 16 ? 4 * t + e : b->store ? 2 * t + e % 2 : g;
    *byte = b->rows == 16 ? g + 8 * reg : b->store ? g + 8 * (e / 2) : 4 * t + e;
}

static uint8_t element_of(const uint8_t *row, int bits, int i) {
    const int at = i * bits;
    const unsigned pair = row[at / 8] | (at % 8 + bits > 8 ? (unsigned)row[at / 8 + 1] << 8 : 0);
    return (uint8_t)(pair >> (at % 8) & ((1u << bits) - 1));
}

static sim_flow do_bytes(sim_warp *w, const sim_op *op, uint32_t mask) {
    const bytes_op *b = op->extra;
    uint64_t addresses[LANES];
    uint8_t *lines[16];
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    if (mask != SIM_ALL_LANES) return sim_find(w, op, -1, "all 32 lanes execute this together, and only 0x%08x do", mask);
    row_addresses(w, op, addresses);
    for (int matrix = 0; matrix < op->count; matrix++) {
        for (int row = 0; row < b->rows; row++) {
            const int lane = matrix * b->rows + row;
            sim_place place;
            if (!reach_row(w, op, lane, addresses[lane], (size_t)(2 * b->bits), b->store, &place)) return SIM_STOP;
            lines[row] = place.bytes;
        }
        for (int reg = 0; reg < b->registers; reg++) {
            uint32_t *words = sim_row(w, b->row[matrix * b->registers + reg]);
            for (int i = 0; i < 4 * LANES; i++) {
                int row, byte;
                byte_place(b, i / 4, reg, i % 4, &row, &byte);
                uint8_t *held = (uint8_t *)&words[i / 4] + i % 4;
                if (b->store) lines[row][byte] = *held;
                else *held = element_of(lines[row], b->bits, byte);
            }
        }
    }
    return SIM_NEXT;
}

static sim_handler select_bytes(sim_decoding *d, bool store) {
    const ptx_instruction *in = d->instruction;
    const int matrices = sim_mod(d, SIM_MOD_x4) ? 4 : sim_mod(d, SIM_MOD_x2) ? 2 : 1;
    bytes_op *b = sim_decode_new(d, sizeof *b);
    if (b == NULL) return NULL;
    if (d->module->arch < 100 || d->module->arch_suffix == 0) {
        d->why = "matrices of bytes are for targets like sm_100a and sm_120f";
        return NULL;
    }
    *b = (bytes_op){.registers = sim_mod(d, SIM_MOD_m16n16) ? 2 : 1, .rows = sim_mod(d, SIM_MOD_m16n16) ? 16 : 8,
                     .bits = sim_mod(d, SIM_MOD_b6x16_p32) ? 6 : sim_mod(d, SIM_MOD_b4x16_p64) ? 4 : 8, .store = store};
    const ptx_operand *vector = in->count == 2 ? &in->operands[store ? 1 : 0] : NULL;
    if (vector == NULL || (vector->kind == PTX_OPERAND_VECTOR ? vector->count : 1) != matrices * b->registers) {
        d->why = "a vector with a register for each matrix, of 16 by 16 two, and an address";
        return NULL;
    }
    for (int i = 0; i < matrices * b->registers; i++) {
        const ptx_operand *item = vector->kind == PTX_OPERAND_VECTOR ? &vector->items[i] : vector;
        if ((store ? sim_decode_source(d, item, PTX_b32, &b->row[i]) : sim_decode_target(d, item, PTX_b32, &b->row[i])) != DW_OK) return NULL;
    }
    if (d->op->space == PTX_GENERIC) d->op->space = PTX_SHARED;
    if (sim_decode_address(d, &in->operands[store ? 0 : 1], &d->op->arg[0]) != DW_OK) return NULL;
    d->op->extra = b;
    d->op->count = (uint8_t)matrices;
    return do_bytes;
}

sim_handler select_ldmatrix_bytes(sim_decoding *d) { return select_bytes(d, false); }
sim_handler select_stmatrix_bytes(sim_decoding *d) { return select_bytes(d, true); }

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
