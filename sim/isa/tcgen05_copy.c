/* tcgen05.cp, shift and commit (PTX ISA 9.7.16.9 and 9.7.16.12). With .cta_group::2 each CTA of the pair copies from its own shared memory. */
#include "tmem.h"

/* Rows of 16 or 32 bytes, and which lanes get them. */
typedef enum copy_shape { COPY_128x256b, COPY_4x256b, COPY_128x128b, COPY_64x128b_02_13, COPY_64x128b_01_23, COPY_32x128b } copy_shape;

typedef struct copy_op { sim_address at; uint32_t descriptor; copy_shape shape; int element_bits; } copy_op;   /* element_bits: 4 or 6 to be widened, or 8 */

static int rows_of(copy_shape shape) {
    static const int rows[] = {128, 4, 128, 64, 64, 32};
    return rows[shape];
}

static int chunks_of(copy_shape shape) { return shape <= COPY_4x256b ? 2 : 1; }

/* The i-th lane that gets a row; -1: no more. Offsets from the address's lane. */
static int lane_of(copy_shape shape, int row, int i) {
    switch (shape) {
    case COPY_4x256b: return i == 0 ? row * 32 : -1;
    case COPY_64x128b_02_13: return i < 2 ? row + 64 * i : -1;
    case COPY_64x128b_01_23: return i < 2 ? row / 32 * 64 + row % 32 + 32 * i : -1;
    case COPY_32x128b: return i < 4 ? row + 32 * i : -1;
    default: return i == 0 ? row : -1;
    }
}

static tmem_area area_of(const copy_op *c, uint32_t address) {
    tmem_area area = {{0, 0}, tmem_column(address), tmem_column(address) + 4 * chunks_of(c->shape)};
    for (int row = 0; row < rows_of(c->shape); row++) {
        for (int i = 0, offset; (offset = lane_of(c->shape, row, i)) >= 0; i++) {
            int lane = tmem_lane(address) + offset;
            if (lane < TMEM_LANES) area.lanes[lane / 64] |= 1ull << (lane % 64);
        }
    }
    return area;
}

/* 16 elements of 4 or 6 bits, side by side, become bytes: 4 bits in bits 2 to 5, 6 bits in bits 0 to 5 (figures 195, 197 and 198). */
static void widen(uint8_t chunk[16], int element_bits) {
    uint8_t packed[16];
    memcpy(packed, chunk, sizeof packed);
    for (int i = 0; i < 16; i++) {
        int bit = i * element_bits;
        uint32_t pair = packed[bit / 8] | (bit / 8 + 1 < 16 ? (uint32_t)packed[bit / 8 + 1] << 8 : 0);
        uint32_t code = pair >> (bit % 8) & ((1u << element_bits) - 1);
        chunk[i] = (uint8_t)(element_bits == 4 ? code << 2 : code);
    }
}

static void copy_one(const tensor_task *task, sim_cta *cta) {
    const copy_op *c = task->op->extra;
    umma_matrix m;
    (void)umma_read_matrix(task->a, &m);   /* was checked when it was issued */
    for (int row = 0; row < rows_of(c->shape); row++) {
        for (int k = 0; k < chunks_of(c->shape); k++) {
            uint8_t chunk[16];
            uint32_t offset = umma_chunk(&m, false, row, k);
            memcpy(chunk, cta->shared + offset, sizeof chunk);
            if (c->element_bits != 8) widen(chunk, c->element_bits);
            for (int i = 0, at; (at = lane_of(c->shape, row, i)) >= 0; i++) {
                int lane = tmem_lane(task->d) + at, column = tmem_column(task->d) + 4 * k;
                memcpy(&cta->tmem->cells[lane][column], chunk, sizeof chunk);
                memset(&cta->tmem->written[lane][column], true, 4);
            }
        }
    }
}

static bool run_copy(tensor_task *task) {
    for (int i = 0; i < 2 && task->ctas[i] != NULL; i++) copy_one(task, task->ctas[i]);
    return true;
}

/* Every 16 bytes that it reads from shared memory: check them (change 0), count or discount them. */
static bool visit(tensor_task *task, int change) {
    const copy_op *c = task->op->extra;
    umma_matrix m;
    (void)umma_read_matrix(task->a, &m);
    for (int i = 0; i < rows_of(c->shape) * chunks_of(c->shape); i++) {
        uint32_t offset = umma_chunk(&m, false, i / chunks_of(c->shape), i % chunks_of(c->shape));
        for (int k = 0; k < 2 && task->ctas[k] != NULL; k++) {
            if (change != 0) tensor_hold_chunk(task->ctas[k], offset, change);
            else if (!tensor_check_chunk(task, task->ctas[k], offset, "the copy's source")) return false;
        }
    }
    return true;
}

static void hold_copy(tensor_task *task, int change) { (void)visit(task, change); }

static sim_flow do_cp(sim_warp *w, const sim_op *op, uint32_t mask) {
    const copy_op *c = op->extra;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        int lane = __builtin_ctz(left);
        tensor_task task = {.run = run_copy, .hold = hold_copy, .use_count = 1};
        umma_matrix m;
        if (!tensor_begin(w, op, lane, &task)) return SIM_STOP;
        task.d = (uint32_t)sim_address_of(w, &c->at, lane);
        task.a = ((const uint64_t *)sim_row(w, c->descriptor))[lane];
        const char *wrong = umma_read_matrix(task.a, &m);
        if (wrong != NULL) return sim_find(w, op, lane, "the descriptor 0x%016llx of the copy's source: %s", (unsigned long long)task.a, wrong);
        int last = c->shape == COPY_4x256b ? 31 : 0;
        if (tmem_lane(task.d) > last) return sim_find(w, op, lane, "a copy of this shape begins at lane 0%s of tensor memory, not %d", last > 0 ? " to 31" : "", tmem_lane(task.d));
        task.uses[0] = (tensor_use){area_of(c, task.d), true};
        if (!tensor_check_uses(&task) || !visit(&task, 0) || !tensor_issue(&task)) return SIM_STOP;
    }
    return SIM_NEXT;
}

sim_handler select_tcgen05_cp(sim_decoding *d) {
    static const struct { sim_modifier word; copy_shape shape; } shapes[] = {
        {SIM_MOD_128x256b, COPY_128x256b}, {SIM_MOD_4x256b, COPY_4x256b}, {SIM_MOD_128x128b, COPY_128x128b},
        {SIM_MOD_warpx2_02_13, COPY_64x128b_02_13}, {SIM_MOD_warpx2_01_23, COPY_64x128b_01_23}, {SIM_MOD_warpx4, COPY_32x128b},
    };
    copy_op *c = sim_decode_new(d, sizeof *c);
    if (c == NULL || !tmem_has_target(d, false)) return NULL;
    if (d->instruction->count != 2) {
        d->why = "an address in tensor memory and a descriptor";
        return NULL;
    }
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        if (sim_mod(d, shapes[i].word)) c->shape = shapes[i].shape;
    }
    c->element_bits = sim_mod(d, SIM_MOD_b4x16_p64) ? 4 : sim_mod(d, SIM_MOD_b6x16_p32) ? 6 : 8;
    if (sim_decode_place(d, &d->instruction->operands[0], PTX_GENERIC, &c->at) != DW_OK ||
        sim_decode_source(d, &d->instruction->operands[1], PTX_b64, &c->descriptor) != DW_OK) {
        return NULL;
    }
    d->op->extra = c;
    return do_cp;
}

/* ---- shift ---- */

/* In each 32 lanes from the address on, a lane's 32 bytes become those of the lane behind it; the last lane keeps its own, for cp.4x256b to renew. */
static bool run_shift(tensor_task *task) {
    for (int i = 0; i < 2 && task->ctas[i] != NULL; i++) tmem_shift(task->ctas[i]->tmem, tmem_lane(task->d), tmem_column(task->d));
    return true;
}

static sim_flow do_shift(sim_warp *w, const sim_op *op, uint32_t mask) {
    const sim_address *at = op->extra;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        int lane = __builtin_ctz(left);
        tensor_task task = {.run = run_shift, .use_count = 1};
        if (!tensor_begin(w, op, lane, &task)) return SIM_STOP;
        task.d = (uint32_t)sim_address_of(w, at, lane);
        int first = tmem_lane(task.d);
        if (first % 32 != 0 || first >= TMEM_LANES) return sim_find(w, op, lane, "shifts from lane %d of tensor memory on, which is no multiple of 32 below %d", first, TMEM_LANES);
        task.uses[0] = (tensor_use){tmem_area_of(first, TMEM_LANES - first, tmem_column(task.d), 8), true};
        if (!tensor_check_uses(&task) || !tensor_issue(&task)) return SIM_STOP;
    }
    return SIM_NEXT;
}

sim_handler select_tcgen05_shift(sim_decoding *d) {
    sim_address *at = sim_decode_new(d, sizeof *at);
    if (at == NULL || !tmem_has_target(d, true)) return NULL;
    if (d->instruction->count != 1) {
        d->why = "an address in tensor memory";
        return NULL;
    }
    if (sim_decode_place(d, &d->instruction->operands[0], PTX_GENERIC, at) != DW_OK) return NULL;
    d->op->extra = at;
    return do_shift;
}

/* ---- commit ---- */

typedef struct commit_op { sim_address mbarrier; uint32_t mask; } commit_op;

static sim_flow do_commit(sim_warp *w, const sim_op *op, uint32_t mask) {
    const commit_op *c = op->extra;
    sim_cluster *cluster = w->cta->cluster;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        int lane = __builtin_ctz(left);
        tensor_task task = {.run = NULL};
        if (!tensor_begin(w, op, lane, &task)) return SIM_STOP;
        uint64_t address = sim_address_of(w, &c->mbarrier, lane);
        if (address >= SIM_SHARED_WINDOW && address - SIM_SHARED_WINDOW < SIM_WINDOW_BYTES) address -= SIM_SHARED_WINDOW;
        uint64_t rank = address >> SIM_RANK_SHIFT;
        task.mbarrier = address & ((1u << SIM_RANK_SHIFT) - 1);
        if (rank >= (uint64_t)cluster->cta_count) {
            return sim_find(w, op, lane, "commits to an mbarrier at 0x%llx, which is no address of shared memory in a cluster of %d", (unsigned long long)address, cluster->cta_count);
        }
        task.mbarrier_cta = &cluster->ctas[rank];
        if (c->mask != SIM_NO_ROW) {
            task.multicast = ((const uint16_t *)sim_row(w, c->mask))[lane];
            if (task.multicast == 0 || task.multicast >> cluster->cta_count != 0) {
                return sim_find(w, op, lane, "the mask 0x%x of the commit names no CTA, or one that a cluster of %d does not have", task.multicast, cluster->cta_count);
            }
        }
        for (int i = 0; i < cluster->cta_count; i++) {
            const bool is_told = task.multicast != 0 ? (task.multicast >> i & 1) != 0 : i == (int)rank;
            if (is_told && !sim_mbarrier_known(w, op, lane, &cluster->ctas[i], task.mbarrier)) return SIM_STOP;
        }
        if (!tensor_issue(&task)) return SIM_STOP;
    }
    return SIM_NEXT;
}

sim_handler select_tcgen05_commit(sim_decoding *d) {
    bool multicast = sim_mod(d, SIM_MOD_multicast_cluster);
    commit_op *c = sim_decode_new(d, sizeof *c);
    if (c == NULL || !tmem_has_target(d, false)) return NULL;
    if (d->instruction->count != 1 + multicast) {
        d->why = "an mbarrier, and with .multicast::cluster a mask of CTAs";
        return NULL;
    }
    c->mask = SIM_NO_ROW;
    if (sim_decode_place(d, &d->instruction->operands[0], (ptx_space)d->op->space, &c->mbarrier) != DW_OK) return NULL;
    if (multicast && sim_decode_source(d, &d->instruction->operands[1], PTX_u16, &c->mask) != DW_OK) return NULL;
    d->op->extra = c;
    return do_commit;
}
