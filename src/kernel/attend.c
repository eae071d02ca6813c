/* The bound of attention by tiles. Sources of its constants: chip.def. */
#include "kernel/attend.h"

#include <math.h>

typedef struct problem {
    const kernel_attend *k;
    const kernel_attention *p;
    const chip_caps *chip;
    double units, pairs;          /* units of all heads; tiles times blocks of keys that a multiprocessor goes through */
} problem;

static double rate(const chip_caps *chip, chip_rate which) { return chip->rates[which].expected; }
static double most(double a, double b) { return a > b ? a : b; }
/* amount at a rate that may not be known */
static double at(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

/* Blocks that a query sees, on average, and half a block for where the interval begins and ends within one, as long as there are others. */
static double blocks_of(const kernel_attend *k, const kernel_attention *p) {
    const double all = ceil(p->keys / k->keys), seen = p->seen / k->keys;
    return (p->seen < p->keys && seen + 0.5 < all ? seen + 0.5 : all) * most(1, p->texts);
}

/* Units that see alike take whole waves; others, the longest first, end together, but the longest one takes its time. */
static problem problem_of(const kernel_attend *k, const kernel_attention *p, const chip_caps *chip) {
    problem x = {.k = k, .p = p, .chip = chip};
    const double rows = (double)k->rows * k->tiles, units_of_head = ceil(p->queries / rows), blocks = blocks_of(k, p);
    x.units = p->heads * units_of_head;
    const double tiles = p->heads * ceil(p->queries / k->rows), each = most(1, chip->units);
    if (p->seen < p->keys) x.pairs = most(tiles * blocks / each, k->tiles * ceil(p->keys / k->keys));
    else x.pairs = ceil(x.units / each) * most(1, tiles / most(1, x.units)) * blocks;
    return x;
}

/* ---- cycles of a tile and a block ---- */

static double mma_cycles(const problem *x) {
    const double pairs = x->k->rows * (double)x->k->keys, bits = pairs * x->k->width * x->p->score_bits + pairs * x->k->value_width * x->p->bits;
    return at(bits / 256, rate(x->chip, CHIP_RATE_mma));   /* 32 bytes of k an instruction */
}

/* Queries and keys of scores, and values: weights lie in tensor memory. */
static double shared_cycles(const problem *x) {
    const double scores = (x->k->rows + (double)x->k->keys) * x->k->width * x->p->score_bits / 8, values = (double)x->k->keys * x->k->value_width * x->p->bits / 8;
    return at(scores + values, rate(x->chip, CHIP_RATE_shared));
}

static double power_cycles(const problem *x) { return at(x->k->rows * (double)x->k->keys * (1 - x->k->emulated + x->k->functions), rate(x->chip, CHIP_RATE_ex2)); }

/* Scores are read, weights of half the size written. */
static double tmem_cycles(const problem *x) { return at(x->k->rows * (double)x->k->keys * (4 + 2), rate(x->chip, CHIP_RATE_tmem)); }

/* ---- the ring of keys and values ---- */

/* Products go through stages in the order of the ring: a unit's first tile waits for each, and its last one gives it back, to be filled with what comes so many stages behind. */
typedef struct ring { double now, released[KERNEL_ATTEND_STAGES], latency; int stages; } ring;

/* A tile's products with the pieces of a block, which begin at stage `first`. */
static void pass_pieces(ring *r, int first, int pieces, double cycles, bool waits, bool releases) {
    for (int i = 0; i < pieces; i++) {
        double *released = &r->released[(first + i) % r->stages];
        if (waits) r->now = most(r->now, *released + r->latency);
        r->now += cycles / pieces;
        if (releases) *released = r->now;
    }
}

/* Cycles of a unit's block when nothing but loads holds its products up: tile after tile values of a block, then scores of the next one. On average once the ring goes round. */
static double ring_cycles(const problem *x, double scores, double values) {
    const kernel_attend *k = x->k;
    const int key_pieces = k->key_pieces > 0 ? k->key_pieces : 1, value_pieces = k->value_pieces > 0 ? k->value_pieces : 1, pieces = key_pieces + value_pieces, blocks = 2 * k->stages;
    ring r = {.latency = rate(x->chip, CHIP_RATE_tma_latency), .stages = k->stages};
    double begun = 0;
    for (int block = 0; block < 2 * blocks; block++) {
        const int first = block * pieces;
        if (block == blocks) begun = r.now;
        for (int tile = 0; tile < k->tiles; tile++) {
            pass_pieces(&r, first, value_pieces, values, tile == 0, tile + 1 == k->tiles);
            pass_pieces(&r, first + value_pieces, key_pieces, scores, tile == 0, tile + 1 == k->tiles);
        }
    }
    return (r.now - begun) / blocks;
}

/* Of a tile; 0 where no product waits for a load. */
static double latency_cycles(const problem *x) {
    const double pairs = x->k->rows * (double)x->k->keys / 256, scores = at(pairs * x->k->width * x->p->score_bits, rate(x->chip, CHIP_RATE_mma)), values = at(pairs * x->k->value_width * x->p->bits, rate(x->chip, CHIP_RATE_mma));
    const double cycles = x->k->stages > 0 ? ring_cycles(x, scores, values) / x->k->tiles : 0;
    return cycles > 1.001 * (scores + values) ? cycles : 0;
}

/* A unit's first block: what nothing runs under where a thread block begins, and its results where it ends. */
static double behind_cycles(const problem *x) {
    const double sums = at(4.0 * x->k->tiles * x->k->rows * x->k->value_width, rate(x->chip, CHIP_RATE_tmem));
    return rate(x->chip, CHIP_RATE_tma_latency) + 2 * rate(x->chip, CHIP_RATE_mma_latency) + x->k->tiles * most(power_cycles(x), x->k->instructions) + sums;
}

/* ---- all together ---- */

void kernel_attend_bound_of(const kernel_attend *kernel, const kernel_attention *call, const chip_caps *chip, kernel_tiles_bound *b) {
    const problem x = problem_of(kernel, call, chip);
    const double clock = rate(chip, CHIP_RATE_clock), rows = call->heads * call->queries, of_query = kernel->width * call->score_bits / 8.0, of_key = of_query + kernel->value_width * call->bits / 8.0;
    const double all_keys = call->heads / most(1, call->shared) * call->keys * of_key, queries = rows * of_query, results = rows * kernel->value_width * call->result_bytes;
    *b = (kernel_tiles_bound){.tiles = x.units, .waves = x.units / most(1, chip->units), .clock_hz = clock};
    b->cycles[KERNEL_RESOURCE_mma] = x.pairs * mma_cycles(&x);
    b->cycles[KERNEL_RESOURCE_shared] = x.pairs * shared_cycles(&x);
    b->cycles[KERNEL_RESOURCE_powers] = x.pairs * power_cycles(&x);
    b->cycles[KERNEL_RESOURCE_tmem] = x.pairs * tmem_cycles(&x);
    b->cycles[KERNEL_RESOURCE_issue] = x.pairs * kernel->instructions;
    b->cycles[KERNEL_RESOURCE_latency] = x.pairs * latency_cycles(&x);
    b->behind_cycles = behind_cycles(&x);
    const kernel_resource of_unit = kernel_longest_of_unit(b);
    const double unit = b->cycles[of_unit] + b->behind_cycles;
    b->l2_bytes = queries + x.units * blocks_of(kernel, call) * kernel->keys * of_key;
    b->memory_bytes = queries + all_keys + results;
    b->cycles[KERNEL_RESOURCE_l2] = at(b->l2_bytes, rate(chip, CHIP_RATE_operands) * chip->units);
    b->cycles[KERNEL_RESOURCE_memory] = at(b->memory_bytes, at(chip_bytes_per_s(chip), clock));
    const kernel_resource of_chip = b->cycles[KERNEL_RESOURCE_l2] > b->cycles[KERNEL_RESOURCE_memory] ? KERNEL_RESOURCE_l2 : KERNEL_RESOURCE_memory;
    b->limit = b->cycles[of_chip] > unit ? of_chip : of_unit;
    b->seconds = at(most(unit, b->cycles[of_chip]), clock) + rate(chip, CHIP_RATE_fixed);
    const double useful = rows * call->seen * (kernel->width * call->score_bits + kernel->value_width * call->bits) / 256;
    b->part = at(at(useful, rate(chip, CHIP_RATE_mma) * chip->units), clock * b->seconds);
}
