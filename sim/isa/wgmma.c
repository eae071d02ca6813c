/* wgmma (PTX ISA 9.7.15): products of a warpgroup. Each of its four warps computes 16 of the 64 rows. A product is noted when it is issued and computed when it is
 * waited for, as late as hardware may. So code that reads the result or overwrites an operand without waiting gets wrong numbers. A product begins when all four warps have issued it: what
 * each did before comes before it. The first warp that waits for it waits for all of it: so one thread of the warpgroup may signal that an operand's place is free, as in
 * CUTLASS's pipelines. */
#include "wgmma.h"

#include "sim/machine/order.h"
#include "sim/math/product.h"
#include "sim/math/real.h"

#include <stdlib.h>

/* ---- registers (PTX ISA 9.7.15.7.1): ordinary instructions may not touch results while products are under way, nor change A; and wgmma.fence comes between
 * whatever touched a register and the product that uses it ---- */

static const char *register_name(const sim_frame *frame, int number, char *text, size_t room) {
    snprintf(text, room, "?");
    uint32_t row = frame->code->watched[number];
    const ptx_function *f = frame->code->function;
    for (size_t i = 0; i < f->register_count; i++) {
        if (frame->code->rows[i] != row) continue;
        size_t first = i;
        while (first > 0 && strcmp(f->registers[first - 1].name, f->registers[i].name) == 0) first--;
        snprintf(text, room, "%s", f->registers[i].name);
        if (first < i || (i + 1 < f->register_count && strcmp(f->registers[i + 1].name, f->registers[i].name) == 0)) {
            snprintf(text, room, "%s%zu", f->registers[i].name, i - first);   /* one of %f<100> */
        }
        break;
    }
    return text;
}

sim_flow sim_touch(sim_warp *w, const sim_op *op, uint32_t mask) {
    sim_frame *frame = w->now->frame;
    sim_watch *watches = sim_watches(frame);
    const uint32_t *list = op->extra;
    char name[64];
    for (int64_t i = 0; i < op->offset; i++) {
        int number = (int)(list[i] >> 1);
        bool writes = (list[i] & 1) != 0;
        sim_watch *watch = &watches[number];
        if (watch->written > 0 || (writes && watch->read > 0)) {
            return sim_find(w, op, __builtin_ctz(mask), "%s register %s, which wgmma products under way still %s: wgmma.wait_group first", writes ? "writes" : "reads",
                            register_name(frame, number, name, sizeof name), watch->written > 0 ? "write" : "read");
        }
        if (op->small == 0) watch->fenced = false;   /* moves are the compiler's renaming: it puts them behind the fence, too */
    }
    return SIM_NEXT;
}

static void number_registers(product_op *p, const sim_code *code) {
    for (int i = 0; i < p->count; i++) p->d_watch[i] = sim_watched(code, p->d[i]);
    for (int i = 0; i < 4; i++) p->a_watch[i] = p->a_registers[i] != SIM_NO_ROW ? sim_watched(code, p->a_registers[i]) : -1;
}

static bool use_registers(sim_warp *w, const sim_op *op) {
    const product_op *p = op->extra;
    sim_frame *frame = w->now->frame;
    sim_watch *watches = sim_watches(frame);
    int unfenced = -1;
    for (int i = 0; i < p->count; i++) {
        sim_watch *watch = &watches[p->d_watch[i]];
        if (!watch->fenced) unfenced = p->d_watch[i];
        watch->written++;
    }
    for (int i = 0; i < 4; i++) {
        if (p->a_watch[i] < 0) continue;
        if (!watches[p->a_watch[i]].fenced) unfenced = p->a_watch[i];
        watches[p->a_watch[i]].read++;
    }
    char name[64];
    if (unfenced < 0) return true;
    sim_find(w, op, -1, "uses register %s, which ordinary instructions may have touched, with no wgmma.fence since: wgmma.fence.sync.aligned first", register_name(frame, unfenced, name, sizeof name));
    return false;
}

static void release_registers(const struct sim_product *issued) {
    const product_op *p = issued->op->extra;
    sim_watch *watches = sim_watches(issued->frame);
    for (int i = 0; i < p->count; i++) watches[p->d_watch[i]].written--;
    for (int i = 0; i < 4; i++) {
        if (p->a_watch[i] >= 0) watches[p->a_watch[i]].read--;
    }
}

static sim_flow do_fence(sim_warp *w, const sim_op *op, uint32_t mask) {
    (void)op;
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    sim_watch *watches = sim_watches(w->now->frame);
    for (size_t i = 0; i < w->now->frame->code->watched_count; i++) watches[i].fenced = true;
    return SIM_NEXT;
}

sim_handler select_wgmma_fence(sim_decoding *d) {
    (void)d;
    return do_fence;
}

/* ---- issuing and waiting ---- */

/* The four warps execute the same instruction on the same operands. What came before in any of them comes before in all once the last one has issued it. false: a finding. */
static bool join_warpgroup(sim_warp *w, const sim_op *op) {
    sim_cta *cta = w->cta;
    const int first = w->index & -WARPGROUP;
    const struct sim_product *mine = &w->products[w->product_count - 1];
    bool last = true;
    if (first + WARPGROUP > cta->warp_count) {
        sim_find(w, op, -1, "a warpgroup of four warps from warp %d on executes this together, and the CTA has %d warps", first, cta->warp_count);
        return false;
    }
    for (int i = first; i < first + WARPGROUP; i++) {
        const sim_warp *other = &cta->warps[i];
        if (other->products_issued <= mine->number) {
            last = false;
            continue;
        }
        const struct sim_product *theirs = wgmma_same_product(other, mine->number);
        if (theirs->op == op && theirs->a == mine->a && theirs->b == mine->b) continue;
        if (theirs->op != op) sim_find(w, op, -1, "warp %d of the warpgroup executes line %d as its product %llu, and all four execute the same one", i, sim_line(other, theirs->op), (unsigned long long)mine->number + 1);
        else sim_find(w, op, -1, "the descriptors are 0x%016llx and 0x%016llx, in warp %d of the warpgroup 0x%016llx and 0x%016llx: they must be the same", (unsigned long long)mine->a, (unsigned long long)mine->b, i,
                      (unsigned long long)theirs->a, (unsigned long long)theirs->b);
        return false;
    }
    uint32_t clock[ORDER_CLOCKS] = {0};
    for (int i = first; i < first + WARPGROUP && last; i++) order_join(clock, wgmma_same_product(&cta->warps[i], mine->number)->clock);
    for (int i = first; i < first + WARPGROUP && last; i++) memcpy(wgmma_same_product(&cta->warps[i], mine->number)->clock, clock, sizeof clock);
    return true;
}

/* Have all four warps issued it? */
static bool has_begun(const sim_warp *w, const struct sim_product *p) {
    for (int i = w->index & -WARPGROUP; i < (w->index & -WARPGROUP) + WARPGROUP; i++) {
        if (w->cta->warps[i].products_issued <= p->number) return false;
    }
    return true;
}

static sim_flow do_wgmma(sim_warp *w, const sim_op *op, uint32_t mask) {
    const product_op *p = op->extra;
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    if (mask != SIM_ALL_LANES) return sim_find(w, op, -1, "all 32 lanes execute this together, and only 0x%08x do", mask);
    if (!use_registers(w, op)) return SIM_STOP;
    struct sim_product issued = {.op = op, .frame = w->now->frame, .registers = w->base[0], .constants = w->base[1], .group = w->product_group};
    issued.b = *(const uint64_t *)sim_row(w, p->b_descriptor);
    if (p->a_descriptor != SIM_NO_ROW) issued.a = *(const uint64_t *)sim_row(w, p->a_descriptor);
    issued.accumulate = (*(const uint32_t *)sim_row(w, p->scale_d) & 1) != 0;
    issued.number = w->products_issued;
    order_release(w, issued.clock);
    if (p->metadata != SIM_NO_ROW) memcpy(issued.metadata, sim_row(w, p->metadata), sizeof issued.metadata);
    if (w->product_count == w->product_capacity) {
        size_t capacity = w->product_capacity == 0 ? 64 : w->product_capacity * 2;
        struct sim_product *larger = realloc(w->products, capacity * sizeof *larger);
        if (larger == NULL) return sim_find(w, op, -1, "no memory for the list of products");
        w->products = larger;
        w->product_capacity = capacity;
    }
    w->products[w->product_count++] = issued;
    w->products_issued++;
    sim_changed(w);
    return join_warpgroup(w, op) ? SIM_NEXT : SIM_STOP;
}

static sim_flow do_commit(sim_warp *w, const sim_op *op, uint32_t mask) {
    (void)op;
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    w->product_group++;
    return SIM_NEXT;
}

static sim_flow do_wait(sim_warp *w, const sim_op *op, uint32_t mask) {
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    uint32_t pending = ROW(uint32_t, 0)[__builtin_ctz(mask)];
    size_t done = 0;
    bool begun = true;
    while (done < w->product_count && w->products[done].group + pending < w->product_group) {
        struct sim_product *p = &w->products[done];
        begun = has_begun(w, p);
        if (!begun) break;
        order_acquire(w, p->clock);
        if (!p->computed && !wgmma_compute(w, p)) return SIM_STOP;
        release_registers(p);
        done++;
    }
    if (done > 0) memmove(w->products, w->products + done, (w->product_count -= done) * sizeof *w->products);
    if (begun) return SIM_NEXT;
    w->now->wait = SIM_WAIT_POLL;   /* it comes back to this instruction */
    return SIM_WAIT;
}

void sim_number_products(sim_code *code) {
    for (size_t i = 0; i < code->op_count; i++) {
        if (code->ops[i].run == do_wgmma) number_registers((product_op *)(uintptr_t)code->ops[i].extra, code);
    }
}

sim_handler select_wgmma_commit(sim_decoding *d) {
    (void)d;
    return do_commit;
}

sim_handler select_wgmma_wait(sim_decoding *d) {
    (void)d;
    return do_wait;
}

static bool is_constant(const ptx_operand *o, int64_t *value) {
    *value = o->value;
    return o->kind == PTX_OPERAND_INTEGER;
}

/* {d}, a or {a}, b, (of a sparse A metadata and selector,) p; of floats scale-a, scale-b; of 16-bit ones transposes of what lies in shared memory. more: 2 of a sparse A. */
static bool decode_signs(sim_decoding *d, product_op *p, bool halves, int more) {
    const ptx_instruction *in = d->instruction;
    int64_t value[4] = {1, 1, 0, 0};
    int transposes = in->operands[1].kind == PTX_OPERAND_VECTOR ? 1 : 2;
    if (in->count != 6 + more && !(halves && in->count == 6 + more + transposes)) {
        d->why = "six operands, and of 16-bit floats perhaps the order of what lies in shared memory";
        return false;
    }
    for (int i = 4 + more; i < in->count; i++) {
        if (!is_constant(&in->operands[i], &value[i - more - 4 + (i - more >= 6 && transposes == 1)])) {
            d->why = "signs and orders are constants";
            return false;
        }
    }
    p->negate_a = value[0] < 0;
    p->negate_b = value[1] < 0;
    p->transposed_a = value[2] != 0;
    p->transposed_b = value[3] != 0;
    return true;
}

static bool is_type_pair(const sim_decoding *d, ptx_type result) {
    bool a8 = d->type == PTX_s8 || d->type == PTX_u8, b8 = d->type2 == PTX_s8 || d->type2 == PTX_u8;
    if (result == PTX_s32) return a8 && b8;
    const product_format *fa = product_format_of(d->type), *fb = product_format_of(d->type2);
    return fa != NULL && fb != NULL && fa->bits == fb->bits && (fa->bits == 8 || fa == fb) && (result == PTX_f32 || fa->bits == 8 || d->type == PTX_f16);
}

/* A row of A has 32 bytes, of a sparse one as if it had 64. */
static sim_handler select_product(sim_decoding *d, ptx_type result) {
    const ptx_instruction *in = d->instruction;
    const bool sparse = sim_mod(d, SIM_MOD_sp), single_bits = sim_mod(d, SIM_MOD_b1);
    const int n = d->op->shape[1], bytes = single_bits ? 4 : ptx_types[d->type].bits / 8, count = result == PTX_f16 ? n / 4 : n / 2, k = (sparse ? 64 : 32) / bytes;
    const bool wide = result == PTX_s32 && n > 32 && n % 16 != 0;
    const int more = sparse ? 2 : 0;
    if ((!single_bits && !is_type_pair(d, result)) || d->op->shape[0] != 64 || d->op->shape[2] != k * (single_bits ? 32 : 1) || n < 8 || n > WGMMA_MAX_N || n % 8 != 0 || wide) {
        d->why = "a shape or types that wgmma does not have";
        return NULL;
    }
    if (in->count < (result == PTX_s32 ? 4 : 6) + more || in->operands[0].kind != PTX_OPERAND_VECTOR || in->operands[0].count != count) {
        d->why = "the accumulator has n / 2 registers (of halves n / 4), and three operands at least follow";
        return NULL;
    }
    product_op *p = sim_decode_new(d, sizeof *p);
    if (p == NULL || (p->d = sim_decode_new(d, sizeof *p->d * (size_t)count)) == NULL || (p->d_watch = sim_decode_new(d, sizeof *p->d_watch * (size_t)count)) == NULL) return NULL;
    p->count = count;
    p->result = result;
    p->code_bytes = bytes;
    p->k = k;
    p->single_bits = single_bits;
    p->a_descriptor = p->metadata = SIM_NO_ROW;
    for (int i = 0; i < 4; i++) p->a_registers[i] = SIM_NO_ROW;
    if (result == PTX_s32 && in->count != 4 + more) {
        d->why = "products of integers have four operands";
        return NULL;
    }
    if (result != PTX_s32 && !decode_signs(d, p, bytes == 2, more)) return NULL;
    if (sparse) {
        int64_t selector;
        if (!is_constant(&in->operands[4], &selector) || selector < 0 || selector > (bytes == 1 ? 0 : 1)) {
            d->why = "the selector of metadata is the constant 0, or of 16 and 32-bit elements 0 or 1";
            return NULL;
        }
        p->selector = (int)selector;
        if (sim_decode_source(d, &in->operands[3], PTX_b32, &p->metadata) != DW_OK) return NULL;
    }
    for (int i = 0; i < count; i++) {
        if (sim_decode_target(d, &in->operands[0].items[i], PTX_b32, &p->d[i]) != DW_OK || sim_decode_watch(d, p->d[i]) != DW_OK) return NULL;
    }
    const ptx_operand *a = &in->operands[1];
    if (a->kind == PTX_OPERAND_VECTOR) {
        if (a->count != 4) {
            d->why = "A in registers has four of them";
            return NULL;
        }
        for (int i = 0; i < 4; i++) {
            if (sim_decode_source(d, &a->items[i], PTX_b32, &p->a_registers[i]) != DW_OK) return NULL;
            if ((p->a_registers[i] & SIM_CONSTANT_ROW) == 0 && sim_decode_watch(d, p->a_registers[i]) != DW_OK) return NULL;
        }
    } else if (sim_decode_source(d, a, PTX_b64, &p->a_descriptor) != DW_OK) {
        return NULL;
    }
    if (sim_decode_source(d, &in->operands[2], PTX_b64, &p->b_descriptor) != DW_OK || sim_decode_source(d, &in->operands[3 + more], PTX_pred, &p->scale_d) != DW_OK) return NULL;
    d->op->extra = p;
    return do_wgmma;
}

sim_handler select_wgmma(sim_decoding *d) { return select_product(d, PTX_f32); }
sim_handler select_wgmma_f16(sim_decoding *d) { return select_product(d, PTX_f16); }
sim_handler select_wgmma_s32(sim_decoding *d) { return select_product(d, PTX_s32); }
