/* The bound of products by tiles. Sources of its constants: chip.def. Held against public times of a B300 and an H200 by tests/kernel/test_tiles.c. */
#include "kernel/tiles.h"

#include <math.h>

#include "base/base.h"

typedef enum resource_scope { OF_UNIT, OF_CHIP } resource_scope;
typedef struct resource_row { const char *name; resource_scope of; const char *words; } resource_row;
static const resource_row resources[] = {
#define KERNEL_RESOURCE(name, of, words) {#name, OF_##of, words},
#include "kernel/resource.def"
#undef KERNEL_RESOURCE
};

const char *kernel_resource_name(kernel_resource resource) { return resources[resource].name; }
const char *kernel_resource_words(kernel_resource resource) { return resources[resource].words; }

/* The problem with what follows from it. Cycles and bytes are of one multiprocessor and tile. */
typedef struct problem {
    const kernel_tiles *t;
    const kernel_product *p;
    const chip_caps *chip;
    double clock, at_once;        /* tiles that the chip computes at once */
    int blocks, splits, rows, unit_rows;   /* rows of a block's part of a tile; of a matrix instruction in it */
    double groups;                /* or 1 */
    double row_groups, column_groups;      /* those that divide rows, or columns; or 1 */
    double down, across;          /* tiles: down of all groups, across of one */
    double k_bytes, k_blocks, steps;       /* of k in shared memory; k-blocks of a tile, matrix instructions of a tile for each of its unit_rows */
    double a_bytes, b_bytes;      /* of a row in memory, scales and all */
} problem;

static double rate(const chip_caps *chip, chip_rate which) { return chip->rates[which].expected; }
static double most(double a, double b) { return a > b ? a : b; }
static double least(double a, double b) { return a < b ? a : b; }
static int or_one(int count) { return count > 0 ? count : 1; }
/* amount at a rate that may not be known */
static double at(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

static double scales_of_row(const kernel_product *p) { return p->scale_block > 0 ? ceil((double)p->k / p->scale_block) : 0; }
static double row_bytes(const kernel_product *p, int bits) { return (double)p->k * bits / 8 + scales_of_row(p); }

/* Bits of an element of a and b in shared memory. */
static int bits_there(const kernel_product *p) {
    const int bits = p->bits[0] > p->bits[1] ? p->bits[0] : p->bits[1];
    return bits > 4 && bits < 8 ? 8 : bits;
}

/* Of so many rows or columns by tiles of so many. Of each group half a tile at its end is empty on average. */
static double tiles_of_group(const kernel_tiles *t, double all, double tile, double groups) { return groups > 1 ? most(1, all / tile / groups + t->lead / tile + 0.5) : ceil(all / tile); }

static problem problem_of(const kernel_tiles *t, const kernel_product *p, const chip_caps *chip) {
    const int instruction = p->k96 ? 48 : 32;
    problem x = {.t = t, .p = p, .chip = chip, .clock = rate(chip, CHIP_RATE_clock), .blocks = or_one(t->blocks), .splits = or_one(t->splits)};
    x.k_bytes = (double)p->k * bits_there(p) / 8;
    x.unit_rows = chip_has(chip, CHIP_wgmma) ? 64 : 128;
    x.rows = t->m / x.blocks;
    x.at_once = floor((double)chip->units / x.blocks);
    x.groups = p->groups > 1 ? p->groups : 1;
    x.row_groups = p->groups_columns ? 1 : x.groups;
    x.column_groups = p->groups_columns ? x.groups : 1;
    x.down = x.groups * tiles_of_group(t, (double)p->m, t->m, x.row_groups);
    x.across = tiles_of_group(t, (double)p->n, t->n, x.column_groups);
    x.k_blocks = ceil(ceil(x.k_bytes / KERNEL_K_BLOCK) / x.splits);
    x.steps = ceil(x.k_bytes / x.splits / instruction);
    x.a_bytes = row_bytes(p, p->bits[0]);
    x.b_bytes = row_bytes(p, p->bits[1]);
    return x;
}

/* Columns that a tile multiplies, over all tiles of a row. Of each group half of a sixteen is empty on average. */
static double mean_columns(const problem *x) {
    if (!x->t->trims) return x->t->n;
    return (x->column_groups > 1 ? most(16, (double)x->p->n / x->column_groups + x->t->lead + 8) : 16 * ceil((double)x->p->n / 16)) / x->across;
}

/* Where sums lie: in tensor memory the products of the next block of k run under what threads do with them, in registers none of the same warps' do. */
static bool lies_in_tensor_memory(const problem *x) { return chip_has(x->chip, CHIP_tcgen05); }

static double instructions_down(const problem *x) { return ceil(x->rows / (double)x->unit_rows); }

/* M = 64 of one block takes as long as M = 128; of a pair, whose M is 128 then, half as long (SemiAnalysis, microbench-blackwell). */
static double mma_cycles(const problem *x) {
    const double rows = x->rows < x->unit_rows && x->blocks == 1 ? x->unit_rows : x->rows, instructions = instructions_down(x);
    const double interval = at(rows / instructions * mean_columns(x), rate(x->chip, CHIP_RATE_mma));
    return x->steps * instructions * most(interval, x->blocks > 1 ? rate(x->chip, CHIP_RATE_mma_least) : 0);
}

/* Each instruction reads its rows of a, and its columns of b, of which a block of a pair has half; scales are read once, results are written and read by the store. */
static double shared_cycles(const problem *x) {
    const double rows = most(x->rows, x->unit_rows), columns = mean_columns(x);
    const double operands = (rows + instructions_down(x) * columns / x->blocks) * x->k_bytes / x->splits;
    const double scales = (x->rows + columns) * scales_of_row(x->p) / x->splits;
    return at(operands + scales + 2.0 * x->rows * columns * x->p->result_bytes, rate(x->chip, CHIP_RATE_shared));
}

/* A warp issues one instruction of a chain of them in two cycles. */
static double issue_cycles(const problem *x) { return 2 * x->k_blocks * most(x->t->multiply, x->t->load); }

/* Sums that threads add: 128 in a cycle, and out of tensor memory as fast as they come. */
static double promotion_cycles(const problem *x) {
    const double elements = x->p->promotes ? x->k_blocks * x->rows * mean_columns(x) : 0;
    return most(elements / 128, lies_in_tensor_memory(x) ? at(4 * elements, rate(x->chip, CHIP_RATE_tmem)) : 0);
}

static double latency_cycles(const problem *x) { return x->t->stages > 0 ? x->k_blocks * rate(x->chip, CHIP_RATE_tma_latency) / x->t->stages : 0; }

static double epilogue_cycles(const problem *x) {
    const double elements = x->rows * mean_columns(x), functions = at(elements * x->p->functions, rate(x->chip, CHIP_RATE_mufu));
    const double stores = at(elements * x->p->result_bytes, rate(x->chip, CHIP_RATE_shared));
    const double sums = lies_in_tensor_memory(x) ? at(4 * elements, rate(x->chip, CHIP_RATE_tmem)) : 0;
    return sums + most(functions, stores) + x->t->epilogue_cycles;
}

/* What of a tile nothing runs under. */
static double behind_cycles(const problem *x) {
    double cycles = x->t->accumulators > 1 ? x->t->sums_cycles : most(epilogue_cycles(x), rate(x->chip, CHIP_RATE_tile));
    if (x->t->restarts) cycles += rate(x->chip, CHIP_RATE_tmem_alloc) + rate(x->chip, CHIP_RATE_tma_latency) + rate(x->chip, CHIP_RATE_mma_latency);
    return cycles;
}

/* Of a kernel what comes before its first product and behind its last one: where thread blocks stay, tensor memory is allocated under the first loads. Those that restart count their own beginnings, and with one accumulator the
 * last epilogue is behind its tile. */
static double ends_cycles(const problem *x) {
    const double begin = most(rate(x->chip, CHIP_RATE_tmem_alloc), rate(x->chip, CHIP_RATE_tma_latency)) + rate(x->chip, CHIP_RATE_mma_latency);
    return (x->t->restarts ? 0 : begin) + (x->t->accumulators > 1 ? epilogue_cycles(x) : 0);
}

/* ---- bytes ---- */

/* Rows and columns beyond the operands' are not read. */
static double l2_bytes(const problem *x) {
    const double share_a = least(or_one(x->t->share_a), x->across), share_b = least(or_one(x->t->share_b), x->down);
    const double rows = x->p->m * x->column_groups + (x->row_groups > 1 ? x->row_groups * x->t->lead : 0);
    const double columns = (double)x->p->n / x->column_groups + (x->column_groups > 1 ? x->t->lead : 0);
    return rows * x->across / share_a * x->a_bytes + columns * x->down / share_b * x->b_bytes;
}

/* Each wave of tiles reads its rows of a and columns of b. What both operands have stays in the cache if it fits, of groups those of one; else a wave finds nothing of the one before. */
static double memory_bytes(const problem *x) {
    const double of_group = x->p->m / x->row_groups * x->a_bytes + x->p->n / x->column_groups * x->b_bytes, all = of_group * x->groups, result = (double)x->p->m * x->p->n * x->p->result_bytes + x->p->more_bytes;
    const double tiles_down = x->down / x->groups;
    if (of_group <= (double)x->chip->cache_bytes || x->at_once < 1) return all + result;
    double down = least(x->t->raster > 0 ? x->t->raster : tiles_down, least(tiles_down, x->at_once));
    const double across = least(x->across, x->at_once / down);
    down = least(tiles_down, x->at_once / across);
    const double wave = down * x->t->m * x->a_bytes + across * x->t->n * x->b_bytes;
    return most(all, least(wave * x->down * x->across / x->at_once, l2_bytes(x))) + result;
}

/* fp32 sums of parts that are written and read again. */
static double part_bytes(const problem *x) {
    if (x->splits > 1) return 2.0 * x->splits * x->p->m * x->p->n * 4;
    return x->t->streams ? 2.0 * (x->t->cuts > 0 ? x->t->cuts : x->at_once) * x->t->m * mean_columns(x) * 4 : 0;
}
/* The last of a tile's parts, by whoever adds it: it brings all others, of which one is still being written, from the L2 cache. Under products of a whole tile what these hide. */
static double join_cycles(const problem *x, double tile_cycles) {
    const double tiles = x->down * x->across, even = x->at_once > tiles ? ceil(x->at_once / most(tiles, 1)) : 1, others = x->t->others > 0 ? x->t->others : even;
    const double join = x->t->streams ? at((1 + others) * x->rows * mean_columns(x) * 4, rate(x->chip, CHIP_RATE_operands)) : 0;
    return x->t->whole_behind ? most(0, join + epilogue_cycles(x) - tile_cycles) : join;
}
enum { JOIN_NS = 1500 };          /* that the blocks of a tile's parts wait for each other */

/* ---- all together ---- */

/* The resource of this scope that takes longest. */
static kernel_resource longest(const kernel_tiles_bound *b, resource_scope of) {
    int found = -1;
    for (int i = 0; i < KERNEL_RESOURCES; i++)
        if (resources[i].of == of && (found < 0 || b->cycles[i] > b->cycles[found])) found = i;
    return (kernel_resource)found;
}

kernel_resource kernel_longest_of_unit(const kernel_tiles_bound *bound) { return longest(bound, OF_UNIT); }

static void count_tile(const problem *x, kernel_tiles_bound *b) {
    b->cycles[KERNEL_RESOURCE_mma] = mma_cycles(x) + (lies_in_tensor_memory(x) ? 0 : promotion_cycles(x));
    b->cycles[KERNEL_RESOURCE_sums] = lies_in_tensor_memory(x) ? promotion_cycles(x) : 0;
    b->cycles[KERNEL_RESOURCE_shared] = shared_cycles(x);
    b->cycles[KERNEL_RESOURCE_issue] = issue_cycles(x);
    b->cycles[KERNEL_RESOURCE_scales] = x->k_blocks * x->t->scale_cycles;
    b->cycles[KERNEL_RESOURCE_latency] = latency_cycles(x);
    b->cycles[KERNEL_RESOURCE_epilogue] = x->t->accumulators > 1 ? epilogue_cycles(x) : 0;
    b->behind_cycles = behind_cycles(x);
}

bool kernel_tiles_known(const chip_caps *chip) { return chip->kind == CHIP_GPU && rate(chip, CHIP_RATE_clock) > 0 && rate(chip, CHIP_RATE_mma) > 0; }

void kernel_tiles_bound_of(const kernel_tiles *tiles, const kernel_product *product, const chip_caps *chip, kernel_tiles_bound *b) {
    const problem x = problem_of(tiles, product, chip);
    const double per_l2 = rate(chip, CHIP_RATE_operands) * chip->units, per_memory = chip_bytes_per_s(chip) / x.clock, parts = part_bytes(&x);
    *b = (kernel_tiles_bound){.tiles = x.down * x.across * x.splits, .clock_hz = x.clock, .l2_bytes = l2_bytes(&x), .memory_bytes = memory_bytes(&x)};
    b->waves = b->tiles / most(x.at_once, 1);
    if (!tiles->streams) b->waves = ceil(b->waves);
    if (tiles->streams && tiles->share > 0) b->waves = tiles->share;
    count_tile(&x, b);
    const double tile_cycles = b->cycles[longest(b, OF_UNIT)];
    for (int i = 0; i < KERNEL_RESOURCES; i++) b->cycles[i] *= b->waves;
    b->behind_cycles = b->behind_cycles * ceil(b->waves) - (tiles->accumulators > 1 ? tiles->sums_cycles : 0) + join_cycles(&x, tile_cycles);   /* the first tile's sums wait for none */
    const double unit = b->cycles[longest(b, OF_UNIT)] + b->behind_cycles;
    b->cycles[KERNEL_RESOURCE_l2] = at(b->l2_bytes + parts, per_l2);
    b->cycles[KERNEL_RESOURCE_memory] = at(b->memory_bytes, per_memory);
    if (tiles->accumulators <= 1) b->cycles[KERNEL_RESOURCE_epilogue] = b->behind_cycles;
    const kernel_resource of_chip = longest(b, OF_CHIP);
    const double cycles = most(unit, b->cycles[of_chip]);
    b->limit = b->cycles[of_chip] > unit ? of_chip : longest(b, OF_UNIT);
    b->block_cycles = cycles / (ceil(b->waves) * x.k_blocks);
    b->stage_bytes = (x.rows + (double)tiles->n / x.blocks) * KERNEL_K_BLOCK + (x.rows + (double)tiles->n) * scales_of_row(product) * KERNEL_K_BLOCK / x.k_bytes;
    b->seconds = cycles / x.clock + (tiles->restarts ? chip->launch_s : rate(chip, CHIP_RATE_fixed)) + (x.splits > 1 ? JOIN_NS * 1e-9 : 0);
    const double ideal = at((double)product->m * product->n * x.k_bytes / (product->k96 ? 48 : 32), rate(chip, CHIP_RATE_mma) * chip->units) / x.clock;
    b->part = ideal / b->seconds;
    b->inside_s = (cycles + ends_cycles(&x)) / x.clock;
    b->inside_part = ideal / b->inside_s;
}

int kernel_tiles_stages(const kernel_tiles *tiles, const kernel_product *product, const chip_caps *chip, int fit) {
    kernel_tiles endless = *tiles;
    kernel_tiles_bound b;
    endless.stages = 0;
    kernel_tiles_bound_of(&endless, product, chip, &b);
    double stages = most(2, b.block_cycles > 0 ? ceil(rate(chip, CHIP_RATE_tma_latency) / b.block_cycles) : 2);
    if (b.limit == KERNEL_RESOURCE_memory && b.stage_bytes > 0) stages = most(stages, ceil(rate(chip, CHIP_RATE_in_flight) / b.stage_bytes));
    return stages < fit ? (int)stages : fit;
}
