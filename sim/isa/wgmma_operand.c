/* See wgmma_operand.h (PTX ISA 9.7.15.5.1 and 9.7.15.6.1). */
#include "wgmma_operand.h"

#include "sim/machine/order.h"
#include "sim/math/product.h"

enum { CHUNK = 16 };

/* Address of an element of an operand in shared memory (PTX ISA 9.7.15.5.1): start, and the distances between core matrices, in the descriptor's 16-byte units.
 * row: along m or n. K-major: rows of 16 bytes of k, in groups of 8. MN-major: rows of 8 elements along m or n, one for each k. */
static uint64_t operand_address(uint64_t descriptor, bool transposed, int row, int k, int bytes) {
    static const uint64_t flips[] = {0, 0x70, 0x30, 0x10};
    static const int width_bits[] = {4, 7, 6, 5};
    uint64_t start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
    int mode = (int)(descriptor >> 62);
    uint64_t along = (uint64_t)(transposed ? row : k) * (uint64_t)bytes, across = (uint64_t)(transposed ? k : row), far = along >> width_bits[mode] << width_bits[mode];
    uint64_t at = start + (across % 8 << width_bits[mode]);
    if (mode == 0) at += transposed ? along / 16 * stride + across / 8 * leading + along % 16 : across / 8 * stride + along / 16 * leading + along % 16;
    else at += across / 8 * stride + along - far + (transposed ? (far >> width_bits[mode]) * leading : far);
    return at ^ (at >> 3 & flips[mode]);
}

/* May these 16 bytes, of an operand's row and those behind it, be read? *written: all of them were. false: a finding. */
static bool check_chunk(sim_warp *w, const sim_op *op, uint64_t descriptor, int row, uint64_t at, bool *written) {
    const sim_cta *cta = w->cta;
    if (at < SIM_SHARED_RESERVED || at + CHUNK > cta->shared_bytes) {
        sim_find(w, op, -1, "an operand's row %d lies at 0x%llx of shared memory, and the CTA has 0x%x to 0x%zx: check the descriptor 0x%016llx", row, (unsigned long long)at,
                 SIM_SHARED_RESERVED, cta->shared_bytes, (unsigned long long)descriptor);
        return false;
    }
    sim_shadows s = sim_shadows_of(&cta->shared_shadow[at], CHUNK);
    const char *what = (s.any & SHADOW_FLIGHT) != 0 ? "an asynchronous copy still writes: wait for its mbarrier first"
                       : (s.any & SHADOW_GENERIC) != 0 && !w->launch->options->proxies_one ? "ordinary stores wrote, with no fence.proxy.async behind them" : NULL;
    *written = (s.all & SHADOW_WRITTEN) != 0;
    if (what != NULL) sim_find(w, op, -1, "row %d of an operand lies at 0x%llx of shared memory, which %s", row, (unsigned long long)at, what);
    return what == NULL;
}

static bool check_fence(sim_warp *w, const sim_op *op, int row, uint64_t at) {
    const int writer = w->launch->options->proxies_one ? -1 : order_unfenced_store(w, w->cta, at, CHUNK);
    if (writer >= 0) sim_find(w, op, -1, "row %d of an operand lies at 0x%llx of shared memory, where warp %d stored, and what orders the two has no fence.proxy.async in it", row, (unsigned long long)at, writer);
    return writer < 0;
}

/* 16 bytes as codes of one, two or four bytes. */
static void spread_codes(const uint8_t *from, int bytes, uint32_t *codes) {
    if (bytes == 1) {
        for (int i = 0; i < CHUNK; i++) codes[i] = from[i];
    } else if (bytes == 2) {
        uint16_t halves[CHUNK / 2];
        memcpy(halves, from, sizeof halves);
        for (int i = 0; i < CHUNK / 2; i++) codes[i] = halves[i];
    } else {
        memcpy(codes, from, CHUNK);
    }
}

bool wgmma_read_operand(sim_warp *w, const sim_op *op, int bytes, uint64_t descriptor, bool transposed, int first, int rows, int k, operand *o) {
    int each = CHUNK / bytes, outer = transposed ? k : rows, inner = (transposed ? rows : k) / each;
    memset(o->lost, 0, (size_t)rows * sizeof *o->lost);
    o->digest = 0;
    const order_reader reader = order_reader_of(w);
    for (int i = 0; i < outer; i++) {
        for (int j = 0; j < inner; j++) {
            int row = transposed ? j * each : i, column = transposed ? i : j * each;
            uint64_t at = operand_address(descriptor, transposed, first + row, column, bytes);
            bool written;
            if (!check_chunk(w, op, descriptor, first + row, at, &written)) return false;
            if (w->launch->digests) o->digest = sim_mix(o->digest, at);
            if (!order_read_chunk(w, op, at, &reader) || !check_fence(w, op, first + row, at)) return false;
            uint32_t spread[CHUNK], *codes = transposed ? spread : &o->code[row][column];
            spread_codes(&w->cta->shared[at], bytes, codes);
            for (int e = 0; e < each && transposed; e++) o->code[row + e][column] = spread[e];
            for (int e = 0; e < (transposed ? each : 1) && !written; e++) o->lost[row + e] = true;
        }
    }
    return true;
}

/* A's fragment: register i of a lane has row lane / 4 + 8 (i % 2), and 4 bytes of columns from 4 (lane % 4) + 16 (i / 2) bytes on. */
void wgmma_read_registers(const product_op *p, const struct sim_product *issued, operand *o) {
    const int bytes = p->code_bytes;
    memset(o->lost, 0, ROWS * sizeof *o->lost);
    o->digest = 0;
    for (int i = 0; i < 4; i++) {
        const uint8_t *row = ((p->a_registers[i] & SIM_CONSTANT_ROW) != 0 ? issued->constants : issued->registers) + (p->a_registers[i] & ~SIM_CONSTANT_ROW);
        for (int lane = 0; lane < LANES; lane++) {
            for (int e = 0; e < 4 / bytes; e++) {
                uint32_t *code = &o->code[lane / 4 + 8 * (i % 2)][(4 * (lane % 4) + 16 * (i / 2)) / bytes + e];
                *code = 0;
                memcpy(code, row + lane * 4 + e * bytes, (size_t)bytes);
            }
        }
    }
}

/* Four bits of metadata for each four columns (of 32-bit elements, two): the places of its two elements (of 32-bit ones, of the two halves of one). Lanes of a
 * group of four have rows lane / 4 and that plus 8; of 16 and 32-bit elements the two lanes that the selector names have the lower and upper columns, and the second
 * row in their upper halves; of 8-bit ones lane % 2 is the second row, and lane / 2 % 2 the upper columns (PTX ISA 9.7.15.6.1). */
static uint32_t metadata_of(const struct sim_product *issued, int bytes, int row, int group, int groups) {
    const int quad = row % 8 * 4, second = row / 8, upper = group >= groups / 2, at = group % (groups / 2) * 4;
    if (bytes == 1) return issued->metadata[quad + second + 2 * upper] >> at & 15;
    const product_op *p = issued->op->extra;
    return issued->metadata[quad + 2 * p->selector + upper] >> (16 * second + at) & 15;
}

bool wgmma_spread(sim_warp *w, const struct sim_product *issued, operand *a, pattern *there) {
    const product_op *p = issued->op->extra;
    const int bytes = p->code_bytes, k = p->k, each = bytes == 4 ? 2 : 4, groups = k / each;
    for (int row = 0; row < ROWS; row++) {
        uint32_t packed[MAX_K / 2];
        memcpy(packed, a->code[row], sizeof *packed * (size_t)k / 2);
        memset(a->code[row], 0, sizeof *packed * (size_t)k);
        there->row[row] = 0;
        for (int group = 0; group < groups; group++) {
            const uint32_t bits = metadata_of(issued, bytes, row, group, groups), first = bits & 3, second = bits >> 2;
            const bool valid = bytes == 4 ? bits == 4 || bits == 14 : product_names_places(bits, packed[group * 2], packed[group * 2 + 1]);
            if (!valid) {
                sim_find(w, issued->op, -1, "the metadata of row %d, columns %d to %d, is %u, which names no places", row, group * each, group * each + each - 1, bits);
                return false;
            }
            for (int i = 0; i < each / 2; i++) {
                const int column = group * each + (bytes == 4 ? bits == 14 : (int)(i == 0 ? first : second));
                a->code[row][column] = packed[group * each / 2 + i];
                there->row[row] |= 1ull << column;
            }
        }
    }
    return true;
}
