/* The bound of products by tiles, held against public times: 14 products on a B300 by two libraries, and an H200's by three, on shapes and of libraries that its constants were not fitted to. Each row's error
 * is printed where a bound on them fails. */
#include "support/support.h"

#include <math.h>
#include <string.h>

#include "kernel/kernel.h"
#include "kernels/gemm/tcgen05/divide.h"
#include "kernels/kernels.h"

static chip_caps chip_of(const char *name) {
    dw_context *context;
    chip_caps chip;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    assert_int_equal(chip_find(context, name, 0, &chip), DW_OK);
    dw_context_destroy(context);
    return chip;
}

static kernel_tiles_bound bound_of(const char *chip, const kernel_tiles *tiles, const kernel_product *product) {
    const chip_caps caps = chip_of(chip);
    kernel_tiles_bound bound;
    assert_true(kernel_tiles_known(&caps));
    kernel_tiles_bound_of(tiles, product, &caps, &bound);
    return bound;
}

/* ---- errors of many rows ---- */

enum { MOST_ERRORS = 64 };
typedef struct errors { int count; double sum, worst; char lines[MOST_ERRORS][192]; } errors;

static const char *words_of(const char *what, int64_t m, int64_t n, int64_t k) {
    static char words[96];
    snprintf(words, sizeof words, "%s %lld x %lld x %lld", what, (long long)m, (long long)n, (long long)k);
    return words;
}

/* Microseconds or something else; 0: nobody measured it. */
static void add_error(errors *e, const char *what, double predicted, double measured) {
    const double error = predicted / measured - 1;
    if (!(measured > 0)) return;
    assert_true(e->count < MOST_ERRORS);
    snprintf(e->lines[e->count++], sizeof e->lines[0], "%s: predicted %.1f, measured %.1f: %+.1f %%", what, predicted, measured, 100 * error);
    e->sum += fabs(error);
    if (fabs(error) > e->worst) e->worst = fabs(error);
}

static void check_errors(const errors *e, double mean, double worst) {
    const double found = e->sum / e->count;
    print_message("errors of %d rows: mean %.1f %%, worst %.1f %%\n", e->count, 100 * found, 100 * e->worst);
    if (found <= mean && e->worst <= worst) return;
    for (int i = 0; i < e->count; i++) print_error("%s\n", e->lines[i]);
    fail_msg("errors of %d rows: mean %.1f %% of %.1f, worst %.1f %% of %.1f", e->count, 100 * found, 100 * mean, 100 * e->worst, 100 * worst);
}

/* ---- B300 ---- */

typedef struct peer_b300 { const char *what; int64_t m, n, k; int bits, scale_block, k96, tile_m, tile_n, raster; double us, gbytes; } peer_b300;
static const peer_b300 b300[] = {
#define PEER_B300(...) {__VA_ARGS__},
#include "peers_b300.def"
#undef PEER_B300
};

static kernel_tiles_bound b300_bound(const peer_b300 *p) {
    const kernel_tiles tiles = {.m = p->tile_m, .n = p->tile_n, .blocks = 2, .accumulators = 2, .raster = p->raster};
    const kernel_product product = {.m = p->m, .n = p->n, .k = p->k, .bits = {p->bits, p->bits}, .scale_block = p->scale_block, .k96 = p->k96 != 0, .result_bytes = 2};
    return bound_of("b300", &tiles, &product);
}

static void products_of_a_b300_are_predicted(void **state) {
    static errors e;
    (void)state;
    for (size_t i = 0; i < COUNT_OF(b300); i++) add_error(&e, words_of(b300[i].what, b300[i].m, b300[i].n, b300[i].k), 1e6 * b300_bound(&b300[i]).seconds, b300[i].us);
    check_errors(&e, 0.10, 0.20);
}

/* Of four of them. The order of cuBLASLt's tiles is a guess, which a wave's bytes depend on. */
static void bytes_of_main_memory_are_those_that_counters_saw(void **state) {
    static errors e;
    (void)state;
    for (size_t i = 0; i < COUNT_OF(b300); i++) add_error(&e, words_of(b300[i].what, b300[i].m, b300[i].n, b300[i].k), 1e-9 * b300_bound(&b300[i]).memory_bytes, b300[i].gbytes);
    check_errors(&e, 0.12, 0.25);
}

/* ---- H200 ---- */

enum { CUBLAS, DEEPGEMM, TORCH_FP8, CUBLASLT_FP8, BLOCK_FP8, COLUMNS };
typedef struct peer_h200 { int64_t m, n, k; double us[COLUMNS]; } peer_h200;
static const peer_h200 h200[] = {
#define PEER_H200(m, n, k, ...) {m, n, k, {__VA_ARGS__}},
#include "peers_h200.def"
#undef PEER_H200
};

/* The best of nine tiles, of which a pair may share b; a and b swapped, and parts of k, where the library has that. */
static double h200_seconds(const chip_caps *chip, const peer_h200 *p, int column) {
    static const int sizes[][2] = {{64, 32}, {64, 64}, {64, 128}, {64, 256}, {128, 64}, {128, 128}, {128, 192}, {128, 256}, {256, 128}};
    const int bits = column == CUBLAS || column == DEEPGEMM ? 16 : 8, most_splits = column == BLOCK_FP8 ? 1 : 8;
    double best = INFINITY;
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        for (int splits = 1; splits <= most_splits; splits *= 2)
            for (int share = 1; share <= 2; share++)
                for (int swap = 0; swap < 2; swap++) {
                    if (splits > 1 && p->k * bits / 8 / KERNEL_K_BLOCK / splits < 4) continue;
                    const kernel_tiles tiles = {.m = sizes[i][0], .n = sizes[i][1], .share_b = share, .accumulators = 1, .splits = splits, .raster = 8};
                    const kernel_product product = {.m = swap ? p->n : p->m, .n = swap ? p->m : p->n, .k = p->k, .bits = {bits, bits}, .promotes = column == BLOCK_FP8, .result_bytes = 2};
                    kernel_tiles_bound bound;
                    kernel_tiles_bound_of(&tiles, &product, chip, &bound);
                    if (bound.seconds < best) best = bound.seconds;
                }
    return best;
}

static void check_column(const char *what, int column, double mean, double worst) {
    const chip_caps chip = chip_of("h200");
    errors *e = test_calloc(1, sizeof *e);
    for (size_t i = 1; i < COUNT_OF(h200); i += 2) add_error(e, words_of(what, h200[i].m, h200[i].n, h200[i].k), 1e6 * h200_seconds(&chip, &h200[i], column), h200[i].us[column]);
    check_errors(e, mean, worst);
    test_free(e);
}

static void products_of_an_h200_are_predicted_on_shapes_that_nothing_was_fitted_to(void **state) {
    (void)state;
    check_column("bf16 by cuBLAS", CUBLAS, 0.12, 0.35);
    check_column("bf16 by DeepGEMM", DEEPGEMM, 0.12, 0.35);
    check_column("fp8 by torch", TORCH_FP8, 0.12, 0.35);
    check_column("fp8 by cuBLASLt", CUBLASLT_FP8, 0.12, 0.35);
    check_column("fp8 by block by DeepGEMM", BLOCK_FP8, 0.15, 0.40);
}

/* The mean error on the rows that the constants were fitted to. */
static double fitted_error(const chip_caps *chip) {
    double sum = 0;
    int count = 0;
    for (size_t i = 0; i < COUNT_OF(h200); i += 2, count++) sum += fabs(1e6 * h200_seconds(chip, &h200[i], CUBLAS) / h200[i].us[CUBLAS] - 1);
    return sum / count;
}

/* A fifth more or less of any of them is no better there by more than half a hundredth: they are a fit, if a flat one. */
static void constants_fit_the_rows_that_they_were_fitted_to(void **state) {
    static const chip_rate fitted[] = {CHIP_RATE_clock, CHIP_RATE_operands, CHIP_RATE_tile, CHIP_RATE_fixed};
    const chip_caps chip = chip_of("h200");
    const double error = fitted_error(&chip);
    (void)state;
    assert_true(error < 0.055);
    for (size_t i = 0; i < 2 * COUNT_OF(fitted); i++) {
        chip_caps other = chip;
        other.rates[fitted[i / 2]].expected *= i % 2 == 0 ? 0.8 : 1.2;
        const double apart = fitted_error(&other);
        if (apart < error - 0.005) fail_msg("%s of %.0f %% has an error of %.1f %%, not %.1f", chip_rate_name(fitted[i / 2]), i % 2 == 0 ? 80.0 : 120.0, 100 * apart, 100 * error);
    }
}

/* ---- what binds ---- */

typedef struct claim { const char *what; kernel_tiles tiles; kernel_product product; kernel_resource limit; double part, apart; } claim;
#define PRODUCT(m_, n_, k_, bits_, scales) {.m = m_, .n = n_, .k = k_, .bits = {bits_, bits_}, .scale_block = scales, .result_bytes = 2}
#define PAIR(n_, share, of_k) {.m = 256, .n = n_, .blocks = 2, .accumulators = 2, .share_b = share, .streams = of_k}

/* part: of the matrix rate, by the table of public constants without the kernel's fixed time. */
static const claim claims[] = {
    {"bf16 256 x 256", PAIR(256, 1, false), PRODUCT(8192, 8192, 8192, 16, 0), KERNEL_RESOURCE_mma, 0.988, 0.002},
    {"mxfp8 256 x 256", PAIR(256, 1, false), PRODUCT(8192, 8192, 8192, 8, 32), KERNEL_RESOURCE_mma, 0.988, 0.005},
    {"nvfp4 256 x 256", PAIR(256, 1, false), PRODUCT(8192, 8192, 8192, 4, 16), KERNEL_RESOURCE_l2, 0.908, 0.002},
    {"nvfp4 256 x 256, b shared", PAIR(256, 2, false), PRODUCT(8192, 8192, 8192, 4, 16), KERNEL_RESOURCE_mma, 0.988, 0.002},
    {"bf16 256 x 192", PAIR(192, 1, false), PRODUCT(8192, 8192, 8192, 16, 0), KERNEL_RESOURCE_l2, 0.869, 0.01},
    {"bf16 256 x 128", PAIR(128, 1, false), PRODUCT(8192, 8192, 8192, 16, 0), KERNEL_RESOURCE_l2, 0.681, 0.002},
    {"nvfp4 256 x 128", PAIR(128, 1, false), PRODUCT(8192, 8192, 8192, 4, 16), KERNEL_RESOURCE_l2, 0.605, 0.002},
    {"bf16 256 x 256, 4096", PAIR(256, 1, false), PRODUCT(4096, 4096, 4096, 16, 0), KERNEL_RESOURCE_mma, 0.865, 0.002},
    {"nvfp4 256 x 256, 4096, streams", PAIR(256, 1, true), PRODUCT(4096, 4096, 4096, 4, 16), KERNEL_RESOURCE_l2, 0.80, 0.01},
};

static void what_binds_a_pair_of_a_b300_is_what_counting_by_hand_found(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(claims); i++) {
        chip_caps chip = chip_of("b300");
        kernel_tiles_bound b;
        chip.rates[CHIP_RATE_fixed].expected = 0;
        kernel_tiles_bound_of(&claims[i].tiles, &claims[i].product, &chip, &b);
        if (b.limit != claims[i].limit || fabs(b.part - claims[i].part) > claims[i].apart)
            fail_msg("%s: %s binds, %.1f %% of the matrix rate; expected %s, %.1f %%", claims[i].what, kernel_resource_words(b.limit), 100 * b.part, kernel_resource_words(claims[i].limit), 100 * claims[i].part);
    }
}

/* ---- our own kernels ---- */

/* The ways whose tiles have names. */
typedef struct named_way {
    const char *name;
    const char *(*variant)(const kernel_problem *problem, int index);
    bool (*bound)(const kernel_run *run, kernel_tiles_bound *bound);
} named_way;
static const named_way named_ways[] = {
    {"cuda_matmul_tcgen05_tiles", matmul_tcgen05_tiles_variant, matmul_tcgen05_tiles_bound},
    {"cuda_grouped_tcgen05", grouped_tcgen05_variant, grouped_tcgen05_bound},
};

static const named_way *named_way_of(const char *name) {
    for (size_t i = 0; i < COUNT_OF(named_ways); i++)
        if (strcmp(named_ways[i].name, name) == 0) return &named_ways[i];
    fail_msg("tiles of %s have no names", name);
    return NULL;
}

/* The variant whose name ends so. */
static int variant_of(const named_way *way, const kernel_problem *problem, const char *ends) {
    for (int i = 0;; i++) {
        const char *name = way->variant(problem, i);
        if (name == NULL) fail_msg("there is no variant %s", ends);
        const size_t length = strlen(name), of_end = strlen(ends);
        if (length > of_end && name[length - of_end - 1] == '_' && strcmp(name + length - of_end, ends) == 0) return i + 1;
    }
}

/* A call by one way of a chip. variant: the end of the name of a tile by tcgen05; NULL: the one that is chosen. */
static kernel_tiles_bound variant_bound(const char *chip_name, const char *way, const char *line, const char *variant) {
    static const int64_t no_symbols[1] = {0};
    dw_context *context;
    arena arena;
    dim_table *dims;
    kernel_case c;
    kernel_choice choice;
    kernel_typical typical;
    kernel_tiles_bound bound;
    const chip_caps chip = chip_of(chip_name);
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    arena_init(&arena, context);
    assert_int_equal(dim_table_create(context, &dims), DW_OK);
    assert_int_equal(kernel_case_parse(&arena, dims, "line", 1, line, &c), DW_OK);
    const kernel_problem problem = {.context = context, .op = c.op, .attrs = &c.attrs, .post = c.post, .n_in = c.n_in, .n_out = c.n_out, .in = c.in, .out = c.out,
                                    .constant_in = c.constant, .dims = c.dims, .symbols = no_symbols, .chip = &chip};
    assert_int_equal(kernel_choose(&arena, &problem, NULL, way, &choice), DW_OK);
    assert_true(kernel_at_typical(&problem, choice.ways, &typical));
    if (variant != NULL) typical.run.variant = variant_of(named_way_of(way), &problem, variant);
    if (variant != NULL ? !named_way_of(way)->bound(&typical.run, &bound) : !kernel_pick_bound(choice.row, &typical.run, &bound)) fail_msg("%s does not say what bounds it: %s", way, line);
    /* A chip at its limit of power goes at its measured rates, whatever the cycles. Estimates of wgmma are of measured times instead. */
    if (variant == NULL && chip_has(&chip, CHIP_tcgen05)) assert_float_equal(fmax(kernel_in_step(bound.seconds), kernel_run_roofline(&typical.run, c.types[0].format, 1, 0.906)), choice.seconds, 1e-12);
    dim_table_destroy(dims);
    arena_free(&arena);
    dw_context_destroy(context);
    return bound;
}

static kernel_tiles_bound way_bound(const char *chip, const char *way, const char *line) { return variant_bound(chip, way, line, NULL); }

typedef struct way_claim { const char *way, *line; kernel_resource limit; double least_part, most_part; } way_claim;

/* The tiles of one multiprocessor: scales that threads bring byte by byte, a tile that asks the L2 cache for twice what it gives, an epilogue that nothing runs under. Those of a pair: matrix instructions
 * bind but where scales come beside operands of 4 bits, and the sums of 256 columns wait for each other's. */
static const way_claim ways[] = {
    {"cuda_matmul_tcgen05", "matmul nvfp4[8192,8192] nvfp4[8192,8192] bt=true to=bf16", KERNEL_RESOURCE_scales, 0, 0.06},
    {"cuda_matmul_tcgen05", "matmul nvfp4@tile128x4[8192,8192] nvfp4@tile128x4[8192,8192] bt=true to=bf16", KERNEL_RESOURCE_scales, 0, 0.51},
    {"cuda_matmul_tcgen05", "matmul nvfp4@tile128x4[8192,65536] nvfp4@tile128x4[8192,65536] bt=true to=bf16", KERNEL_RESOURCE_l2, 0, 0.51},
    {"cuda_matmul_tcgen05", "matmul bf16[8192,8192] bf16[8192,8192] bt=true", KERNEL_RESOURCE_l2, 0, 0.51},
    {"cuda_matmul_tcgen05_tiles", "matmul bf16[8192,8192] bf16[8192,8192] bt=true", KERNEL_RESOURCE_mma, 0.95, 1},
    {"cuda_matmul_tcgen05_tiles", "matmul mxfp8@tile128x4[8192,8192] mxfp8@tile128x4[8192,8192] bt=true to=bf16", KERNEL_RESOURCE_mma, 0.95, 1},
    {"cuda_matmul_tcgen05_tiles", "matmul nvfp4@tile128x4[8192,8192] nvfp4@tile128x4[8192,8192] bt=true to=bf16", KERNEL_RESOURCE_l2, 0.85, 1},
    {"cuda_matmul_tcgen05_tiles", "matmul bf16[4096,16384] bf16[7168,16384] bt=true", KERNEL_RESOURCE_mma, 0.97, 1},       /* 6.05 waves, in parts */
    {"cuda_matmul_tcgen05_tiles", "matmul bf16[512,16384] bf16[7168,16384] bt=true", KERNEL_RESOURCE_mma, 0.8, 0.9},       /* less than a wave */
    {"cuda_matmul_tcgen05_tiles", "matmul nvfp4@tile128x4[4096,16384] nvfp4@tile128x4[7168,16384] bt=true to=bf16", KERNEL_RESOURCE_l2, 0.82, 0.95},
    {"cuda_matmul_tcgen05_tiles", "matmul bf16[8192,8192] bf16[8192,8192] at=true", KERNEL_RESOURCE_mma, 0.95, 1},
    {"cuda_matmul_tcgen05_tiles", "matmul bf16[8192,8192] bf16[8192,8192]", KERNEL_RESOURCE_mma, 0.95, 1},
    {"cuda_matmul_tcgen05_tiles", "matmul bf16[32768,1024] bf16[32768,1024] at=true to=f32", KERNEL_RESOURCE_mma, 0.6, 1},      /* a weight's gradient: 16 tiles of 256 x 256 for 74 pairs */
    {"cuda_matmul_tcgen05_tiles", "matmul bf16[64,7168] bf16[2112,7168] bt=true", KERNEL_RESOURCE_memory, 0.068, 0.1},      /* swapped and in parts: unswapped 0.059 at most, by matrix instructions */
    {"cuda_grouped_tcgen05", "grouped_matmul bf16[4096,2048] bf16[128,1536,2048] i32[128] bt=true", KERNEL_RESOURCE_memory, 0, 0.12},
    {"cuda_grouped_tcgen05", "grouped_matmul bf16[65536,4096] bf16[8,14336,4096] i32[8] bt=true", KERNEL_RESOURCE_mma, 0.9, 1},
};

static void ways_of_tiles_say_what_binds_them(void **state) {
    static const char *const chips[] = {"b200", "b300"};
    (void)state;
    for (size_t i = 0; i < 2 * COUNT_OF(ways); i++) {
        const way_claim *w = &ways[i / 2];
        const kernel_tiles_bound b = way_bound(chips[i % 2], w->way, w->line);
        if (b.limit != w->limit || b.part < w->least_part || b.part > w->most_part)
            fail_msg("%s: %s binds, %.1f %% of the matrix rate; expected %s, %.1f to %.1f %%", w->line, kernel_resource_words(b.limit), 100 * b.part, kernel_resource_words(w->limit), 100 * w->least_part,
                     100 * w->most_part);
    }
}

/* Tiles of 256 x 256 in nvfp4 ask the L2 cache for more than there is; where two pairs bring their rows of a once, matrix instructions bind. */
static void pairs_that_share_rows_are_bound_by_products(void **state) {
    const tiles_sizes sizes = {.pair = 2, .n = 256, .boxes = 2, .scale_tiles = 4};
    const kernel_product product = {.m = 8192, .n = 8192, .k = 8192, .bits = {4, 4}, .scale_block = 16, .result_bytes = 2};
    kernel_tiles tiles = tcgen05_tiles(&sizes, false, 0);
    (void)state;
    tiles.raster = 8;
    const kernel_tiles_bound alone = bound_of("b300", &tiles, &product);
    tiles.share_a = 2;
    const kernel_tiles_bound shared = bound_of("b300", &tiles, &product);
    assert_int_equal(alone.limit, KERNEL_RESOURCE_l2);
    assert_int_equal(shared.limit, KERNEL_RESOURCE_mma);
    if (alone.part > 0.88 || shared.part < 0.91) fail_msg("%.3f of the matrix rate alone, %.3f shared", alone.part, shared.part);
}

/* From the kernel's first instruction to its last, with its own beginning and end and without a launch, on a B300 at 1.86 GHz. What shares rows counts on a limit of the L2 cache's that lies in the cache. */
typedef struct inside_claim { const char *line, *variant; double least; } inside_claim;
#define LINE(a, b, size) "matmul " a "[" size "] " b "[" size "] bt=true to=bf16"
#define SAME(format, size) LINE(format, format, size)
static const inside_claim inside[] = {
    {SAME("bf16", "8192,8192"), "m256n256", 0.95},
    {SAME("fp8_tensor", "8192,8192"), "m256n256", 0.95},
    {SAME("mxfp8@tile128x4", "8192,8192"), "m256n256", 0.95},
    {SAME("mxfp4@tile128x4", "8192,8192"), "m256n256", 0.93},
    {SAME("mxfp4@tile128x4", "8192,8192"), "m256n256_shared", 0.94},
    {SAME("mxfp4@tile128x4", "8192,8192"), "m256n128_shared", 0.9},
    {SAME("nvfp4@tile128x4", "8192,8192"), "m256n256", 0.88},
    {SAME("nvfp4@tile128x4", "8192,8192"), "m256n192_shared", 0.95},
    {SAME("bf16", "4096,4096"), "m256n256", 0.83},
    {SAME("bf16", "4096,4096"), "m256n192_shared", 0.89},
    {SAME("bf16", "4096,4096"), "m256n256_parts", 0.94},
    {SAME("fp8_tensor", "4096,4096"), "m256n256_parts", 0.91},
    {SAME("fp8_tensor", "4096,4096"), "m256n128_shared", 0.9},
    {SAME("mxfp8@tile128x4", "4096,4096"), "m256n256_parts", 0.885},
    {SAME("mxfp8@tile128x4", "4096,4096"), "m256n256_shared_parts", 0.9},
    {SAME("mxfp8@tile128x4", "4096,4096"), "m256n128_shared", 0.9},
    {SAME("nvfp4@tile128x4", "4096,4096"), "m256n256", 0.73},
    {SAME("nvfp4@tile128x4", "4096,4096"), "m256n192_shared", 0.81},
    {SAME("nvfp4@tile128x4", "4096,4096"), "m256n256_parts", 0.75},
    {SAME("nvfp4@tile128x4", "4096,4096"), "m256n256_shared_parts", 0.82},
    {SAME("nvfp4@tile128x4", "4096,4096"), "m256n192_shared_parts", 0.84},
};

static void kernels_keep_matrix_units_busy_inside(void **state) {
    int failed = 0;
    (void)state;
    for (size_t i = 0; i < COUNT_OF(inside); i++) {
        const kernel_tiles_bound b = variant_bound("b300", "cuda_matmul_tcgen05_tiles", inside[i].line, inside[i].variant);
        print_message("%s %s: %.1f us, %.1f %% of the matrix rate inside; %.1f us with launches; %s\n", inside[i].variant, inside[i].line, 1e6 * b.inside_s, 100 * b.inside_part, 1e6 * b.seconds, kernel_resource_words(b.limit));
        if (b.inside_part < inside[i].least) print_error("at least %.1f %% was expected\n", 100 * inside[i].least), failed++;
    }
    assert_int_equal(failed, 0);
}

/* A group of some 250 rows is a tile's columns, in sixteens; as a tile's rows it would be two of 256, of which half is empty. */
static void groups_are_columns_where_rows_would_be_empty(void **state) {
    static const char *const lines[] = {
        "grouped_matmul bf16[2048,14336] bf16[8,4096,14336] i32[8] bt=true", "grouped_matmul fp8_tensor[2048,14336] fp8_tensor[8,4096,14336] i32[8] bt=true to=bf16",
        "grouped_matmul mxfp8@tile128x4[2048,14336] mxfp8@tile128x4[8,4096,14336] i32[8] bt=true to=bf16",
        "grouped_matmul nvfp4@tile128x4[2048,14336] nvfp4@tile128x4[8,4096,14336] i32[8] bt=true to=bf16",
    };
    static const char *const unswapped[] = {"m256n256_groups", "m256n128_groups", "m128n64_groups"};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        const kernel_tiles_bound chosen = way_bound("b200", "cuda_grouped_tcgen05", lines[i]), swapped = variant_bound("b200", "cuda_grouped_tcgen05", lines[i], "m256n256_swapped_groups");
        assert_float_equal(chosen.seconds, swapped.seconds, 1e-12);
        for (size_t k = 0; k < COUNT_OF(unswapped); k++)
            if (variant_bound("b200", "cuda_grouped_tcgen05", lines[i], unswapped[k]).seconds < 1.2 * chosen.seconds) fail_msg("%s takes about as long as swapped tiles: %s", unswapped[k], lines[i]);
    }
    /* full groups and short k: the ends bind, and those of swapped tiles are four times as long */
    static const char *const full[] = {"grouped_matmul bf16[8192,768] bf16[8,2048,768] i32[8] bt=true", "grouped_matmul bf16[32768,768] bf16[8,2048,768] i32[8] bt=true",
                                       "grouped_matmul bf16[131072,14336] bf16[8,4096,14336] i32[8] bt=true", "grouped_matmul bf16[131072,256] bf16[2,2048,256] i32[2] bt=true"};
    for (size_t i = 0; i < COUNT_OF(full); i++) {
        const kernel_tiles_bound chosen = way_bound("b200", "cuda_grouped_tcgen05", full[i]);
        double least = INFINITY;
        for (size_t k = 0; k < COUNT_OF(unswapped); k++) least = fmin(least, variant_bound("b200", "cuda_grouped_tcgen05", full[i], unswapped[k]).seconds);
        if (variant_bound("b200", "cuda_grouped_tcgen05", full[i], "m256n256_swapped_groups").seconds < 0.99 * least) fail_msg("full groups are a tile's columns: %s", full[i]);
        if (fabs(chosen.seconds - least) > 0.01 * least) fail_msg("%g us are chosen where %g are the least: %s", 1e6 * chosen.seconds, 1e6 * least, full[i]);
    }
}

/* ---- parts ---- */

/* Every block of k once, whoever has it, and as many cuts as there are ends of ranges inside of units. */
static void check_division(const tiles_division *d, int64_t units, int64_t at_a_time, int64_t blocks) {
    const int64_t all = d->units * blocks, whole = units - d->units;
    int64_t at = 0, cuts = 0, most = 0;
    assert_true(d->units >= 1 && d->units <= units && d->ranges >= 1 && d->ranges <= at_a_time && whole % at_a_time == 0);
    for (int64_t range = 0; range < d->ranges; range++) {
        const int64_t length = d->share + (range < d->longer);
        at += length;
        if (length > most) most = length;
        cuts += at % blocks != 0;
    }
    assert_true(at == all);
    assert_true(d->cuts == cuts && d->behind == (whole > 0));
    assert_float_equal(d->each, (double)most / (double)blocks + (double)(whole / at_a_time), 1e-9);
    assert_true(d->others >= (d->cuts > 0) && d->others <= d->cuts && (d->others + 1) * d->units >= d->cuts + d->units);
}

static void blocks_of_k_are_divided_once(void **state) {
    (void)state;
    for (int64_t units = 1; units < 40; units++)
        for (int64_t at_a_time = 1; at_a_time < 12; at_a_time++)
            for (int64_t blocks = 1; blocks < 30; blocks++) {
                const tiles_division evenly = tiles_divide_evenly(units, at_a_time, blocks);
                tiles_division rest;
                check_division(&evenly, units, at_a_time, blocks);
                if (tiles_divide_rest(units, at_a_time, blocks, &rest)) check_division(&rest, units, at_a_time, blocks);
                else assert_true(units % at_a_time == 0 || 2 * (units % at_a_time) > at_a_time || blocks < 2 * TILES_LEAST_RANGE);
            }
}

/* 256 tiles of 16 blocks of k for 74 pairs. Evenly, 108 of them are cut wherever a range ends. The 34 beyond three waves in halves take no longer, and far fewer parts are written and read. */
static void halves_of_the_rest_are_fewer_parts_than_even_ranges(void **state) {
    const tiles_division evenly = tiles_divide_evenly(256, 74, 16);
    tiles_division rest;
    (void)state;
    assert_true(tiles_divide_rest(256, 74, 16, &rest));
    assert_true(evenly.units == 108 && evenly.ranges == 74 && evenly.cuts > rest.cuts + 20 && evenly.behind);
    assert_true(rest.units == 34 && rest.ranges == 68 && rest.cuts == 34 && rest.others == 1 && rest.behind);
    assert_float_equal(evenly.each, 3.5, 1e-9);
    assert_float_equal(rest.each, 3.5, 1e-9);
}

/* Of groups each matrix of b is read once where a group's rows are a tile's, and half a tile at a group's end is empty; products of one group are those without groups. */
static void groups_are_products_side_by_side(void **state) {
    const kernel_tiles tiles = {.m = 128, .n = 128, .accumulators = 2}, led = {.m = 128, .n = 128, .accumulators = 2, .lead = 64};
    kernel_product product = {.m = 4096, .n = 1536, .k = 2048, .bits = {16, 16}, .result_bytes = 2};
    (void)state;
    const kernel_tiles_bound alone = bound_of("b200", &tiles, &product);
    product.groups = 1;
    const kernel_tiles_bound one = bound_of("b200", &tiles, &product);
    assert_memory_equal(&one, &alone, sizeof one);
    product.groups = 128;      /* of 32 rows */
    const kernel_tiles_bound small = bound_of("b200", &tiles, &product);
    assert_float_equal(small.memory_bytes, 2.0 * (4096 * 2048 + 128.0 * 1536 * 2048 + 4096 * 1536), 1);
    assert_float_equal(small.tiles, 128 * 12, 1e-9);
    assert_int_equal(small.limit, KERNEL_RESOURCE_memory);
    product.groups = 16;       /* of 256 rows: two tiles, and half a one */
    assert_float_equal(bound_of("b200", &tiles, &product).tiles, 16 * 2.5 * 12, 1e-9);
    assert_float_equal(bound_of("b200", &led, &product).tiles, 16 * 3 * 12, 1e-9);
    const kernel_product swapped = {.m = product.n, .n = product.m, .k = product.k, .groups = product.groups, .groups_columns = true, .bits = {16, 16}, .result_bytes = 2};
    const kernel_tiles_bound rows = bound_of("b200", &led, &product), columns = bound_of("b200", &led, &swapped);
    assert_float_equal(columns.tiles, rows.tiles, 1e-9);
    assert_float_equal(columns.l2_bytes, rows.l2_bytes, 1);
    assert_float_equal(columns.memory_bytes, rows.memory_bytes, 1);
}

/* Our tiles by wgmma on an H200, by themselves (bench/results/h200/matmul.md), whose sizes nothing was fitted to: here the tile is known. */
typedef struct measured_line { const char *line; double us; } measured_line;
static const measured_line wgmma_lines[] = {
    {"matmul bf16[4096,4096] bf16[4096,4096] bt=true", 175.1},
    {"matmul bf16[4096,7168] bf16[4096,7168] bt=true", 300.4},
    {"matmul bf16[512,7168] bf16[2112,7168] bt=true", 25.8},
    {"matmul bf16[128,7168] bf16[4096,7168] bt=true", 21.1},
    {"matmul fp8_1x128[4096,7168] fp8_128x128[4096,7168] bt=true to=bf16", 183.4},
    {"matmul fp8_1x128[512,7168] fp8_128x128[4096,7168] bt=true to=bf16", 27.2},
};

static void our_tiles_on_an_h200_take_what_bounds_them(void **state) {
    errors *e = test_calloc(1, sizeof *e);
    (void)state;
    for (size_t i = 0; i < COUNT_OF(wgmma_lines); i++) {
        add_error(e, wgmma_lines[i].line, 1e6 * way_bound("h200", "cuda_matmul_wgmma", wgmma_lines[i].line).seconds, wgmma_lines[i].us);
    }
    check_errors(e, 0.12, 0.25);
    test_free(e);
}

/* ---- stages ---- */

typedef struct tile_row { const char *name; int bits, scale_block; tiles_sizes sizes; } tile_row;
static const tile_row tile_rows[] = {
#define TILES_DENSE(name, ...) {"bf16 " #name, 16, 0, {__VA_ARGS__, 0, 0}}, {"e4m3 " #name, 8, 0, {__VA_ARGS__, 0, 0}},
#define TILES_PROMOTED(name, ...) {"e4m3 by block " #name, 8, 0, {__VA_ARGS__, 0, 1}},
#define TILES_SCALED(name, ...) {"mxfp8 " #name, 8, 32, {__VA_ARGS__, 1, 0}}, {"mxfp4 " #name, 4, 32, {__VA_ARGS__, 2, 0}}, {"nvfp4 " #name, 4, 16, {__VA_ARGS__, 4, 0}},
#include "kernels/gemm/tcgen05/tiles.def"
#undef TILES_DENSE
#undef TILES_PROMOTED
#undef TILES_SCALED
};

static void stages_that_fit_cover_the_latency_of_loads(void **state) {
    const chip_caps chip = chip_of("b200");
    (void)state;
    for (size_t i = 0; i < COUNT_OF(tile_rows); i++) {
        const tile_row *r = &tile_rows[i];
        const kernel_tiles tiles = {.m = 128 * r->sizes.pair, .n = r->sizes.n, .blocks = r->sizes.pair, .accumulators = 2, .raster = 8};
        const kernel_product product = {.m = 8192, .n = 8192, .k = 8192, .bits = {r->bits, r->bits}, .scale_block = r->scale_block, .promotes = r->sizes.promotes, .result_bytes = 2};
        const int fit = tiles_stages(r->sizes), wanted = kernel_tiles_stages(&tiles, &product, &chip, INT32_MAX);
        if (fit < wanted) fail_msg("%s has %d stages, %d are needed", r->name, fit, wanted);
    }
}

/* Main memory gives its rate to 64 KB on their way to each multiprocessor, so few rows want as many stages of a small tile. */
static void products_that_main_memory_bounds_want_stages_for_what_it_has_on_its_way(void **state) {
    const chip_caps chip = chip_of("b200");
    const kernel_tiles tiles = {.m = 128, .n = 64, .accumulators = 2};
    const kernel_product product = {.m = 7168, .n = 64, .k = 16384, .bits = {16, 16}, .result_bytes = 2};
    (void)state;
    const kernel_tiles_bound bound = bound_of("b200", &tiles, &product);
    const int stages = kernel_tiles_stages(&tiles, &product, &chip, 12);
    assert_int_equal(bound.limit, KERNEL_RESOURCE_memory);
    assert_true(stages * bound.stage_bytes >= 64 * 1024 && stages * bound.block_cycles >= chip.rates[CHIP_RATE_tma_latency].expected);
    assert_true((stages - 1) * bound.stage_bytes < 64 * 1024 || (stages - 1) * bound.block_cycles < chip.rates[CHIP_RATE_tma_latency].expected);
    assert_int_equal(kernel_tiles_stages(&tiles, &product, &chip, 2), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_a_b300_are_predicted),
        cmocka_unit_test(bytes_of_main_memory_are_those_that_counters_saw),
        cmocka_unit_test(products_of_an_h200_are_predicted_on_shapes_that_nothing_was_fitted_to),
        cmocka_unit_test(constants_fit_the_rows_that_they_were_fitted_to),
        cmocka_unit_test(what_binds_a_pair_of_a_b300_is_what_counting_by_hand_found),
        cmocka_unit_test(ways_of_tiles_say_what_binds_them),
        cmocka_unit_test(pairs_that_share_rows_are_bound_by_products),
        cmocka_unit_test(kernels_keep_matrix_units_busy_inside),
        cmocka_unit_test(groups_are_columns_where_rows_would_be_empty),
        cmocka_unit_test(blocks_of_k_are_divided_once),
        cmocka_unit_test(halves_of_the_rest_are_fewer_parts_than_even_ranges),
        cmocka_unit_test(groups_are_products_side_by_side),
        cmocka_unit_test(our_tiles_on_an_h200_take_what_bounds_them),
        cmocka_unit_test(stages_that_fit_cover_the_latency_of_loads),
        cmocka_unit_test(products_that_main_memory_bounds_want_stages_for_what_it_has_on_its_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
