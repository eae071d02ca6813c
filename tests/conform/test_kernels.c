/* The conformance program: every line of the .txt files here on every kernel row that accepts it, and on each way of a row that has ways, by itself, at every instruction set level that this machine
 * has, beside the op's reference. Operands are random from three seeds; results, workspace and packed weights are filled with NaN before
 * and are watched for writes behind their ends; one and two threads must give the same bits, the latter in place where
 * the row may; a simulated device, which gives the same bits every time, runs twice only for that. A row or way that no line reaches is a failure.
 * With files or the words of one line as arguments: only those, and a row may stay unreached. Options in front of them: --device D: the rows of that device instead, with the
 * operands in its memory (sim:h200, cuda); --kernel NAME: of all rows and ways this one, or of a row with ways whichever it picks; --part I/N: every N-th line is run, and the others still say which
 * rows and ways they reach; --seeds N, where three take too long; --seed S: that one alone; --once: without the second run, of two threads and in place; --times: with the processor's seconds of each line; --bits: prints a hash of each kernel's results, to hold
 * two builds beside each other; --unwritten: device memory of results and workspace is not filled, which tools that look for reads of such memory want (results have no gaps then, and
 * what lies between their parts is not compared).
 *
 * A line of a collective is run by as many ranks as take part (or world=N), threads of this program, each of which has the bits of its reference.
 *
 * Bounds: fp32 results may differ from the reference's sums in double by the order and rounding of fp32 sums: 1e-5 of the largest result covers
 * 4096 terms of random sign eight times over. Products may lose what docs/formats.md says: 2^-126 for each term, and operands of MX formats below that. Results in bf16 and f16 add half a step of their format. Integers, bools and quantised
 * results must be equal. What a norm, a product or attention quantises is a computed number, and its codes are held to what they are of: to the bits that quantize makes
 * of the same kernel's plain result, and the reference's to those of the reference's. */
#include "conform/conform.h"
#include "support/evaluate.h"
#include "support/lines.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SEEDS = 3, LINE_BYTES = 1024 };

options_of_command options = {.first_seed = 1, .seeds = SEEDS, .parts = 1, .runs_each = THREADS};

/* Whether --kernel names a row of another op. */
static bool is_of_another_op(const kernel_case *c) {
    for (int i = 0; options.kernel != NULL && i < kernel_count(); i++)
        if (kernel_is_named(kernel_at(i), options.kernel)) return kernel_at(i)->op != c->op->id;
    return false;
}

/* Does a way take the line's sizes, which are constants, as the row would lay operands out? */
static bool takes_sizes(program *p, const kernel_problem *problem) {
    static const int64_t no_symbols[1] = {0};
    kernel_problem sized = *problem;
    kernel_typical typical;
    text why;
    sized.symbols = no_symbols;
    if (p->way == NULL || !kernel_at_typical(&sized, p->ways, &typical)) return true;
    text_init(&why, p->context);
    const bool takes = kernel_size_refusal(p->way, &typical.run, &why) == NULL;
    text_free(&why);
    return takes;
}

/* GPUs' rows of norms that keep rows in registers or shared memory add squares in fp32 (kernels/norm/README.md): what overflows there, or is lost, is not theirs. */
static bool loses_squares(const kernel_row *row, const kernel_case *c) {
    static const char *const narrow[] = {"cuda_layer_norm_rows", "cuda_rms_norm_rows"};
    const kernel_range *range = &c->ranges[0];
    const double largest = fmax(fabs(range->low), fabs(range->high));
    for (size_t i = 0; range->given && i < COUNT_OF(narrow); i++)
        if (strcmp(row->name, narrow[i]) == 0) return largest > 0x1p60 || (largest < 0x1p-45 && op_attr_real(&c->attrs, OP_ATTR_eps) < 0x1p-100);
    return false;
}

/* How many variants a line names. */
static int variants_of(const kernel_case *c) {
    int count = c->variants != NULL;
    for (const char *at = c->variants; at != NULL && *at != '\0'; at++) count += *at == ',';
    return count;
}

/* Each variant that the line names, by itself; with --kernel all of them have to be there, if it has variants at all. */
static void run_variants(program *p, const kernel_case *c, const kernel_row *row, const chip_caps *level, const kernel_problem *problem, operand *operands, const result *references, uint64_t seed) {
    const char *name;
    int ran = 0;
    for (int k = 0; p->way != NULL && (name = kernel_way_variant(p->way, problem, k)) != NULL; k++) {
        if (!kernel_case_has_variant(c, name)) continue;
        p->tuned = (kernel_tuned){INT64_MAX, p->way, k};
        run_row(p, c, row, level, problem, operands, references, seed);
        ran++;
    }
    const bool has_some = p->way != NULL && kernel_way_variant(p->way, problem, 0) != NULL;
    if (options.kernel != NULL && has_some && ran < variants_of(c)) report(p, c, row, level->name, seed, 1, "a variant that the line names does not run it");
}

/* Does any way that the device has know one of the line's variants? Of others the reference need not be computed. */
static bool has_variants(const program *p, const kernel_case *c) {
    for (int l = 0; l < p->level_count; l++) {
        const kernel_problem problem = {.context = p->context, .op = c->op, .attrs = &c->attrs, .post = c->post, .n_in = c->n_in, .n_out = c->n_out, .in = c->in, .out = c->out, .dims = c->dims,
                                        .chip = &p->levels[l]};
        for (int i = 0; i < kernel_count(); i++) {
            const kernel_row *row = kernel_at(i);
            for (int w = 0; row->op == c->op->id && row->device == p->levels[l].kind && w < row->way_count; w++) {
                const char *name;
                if ((row->ways[w].needs & ~p->levels[l].features) != 0) continue;
                for (int k = 0; (name = kernel_way_variant(&row->ways[w], &problem, k)) != NULL; k++)
                    if (kernel_case_has_variant(c, name)) return true;
            }
        }
    }
    return false;
}

/* Does row i this way, or the row itself, take the line? Then p says which. */
bool takes(program *p, int i, const kernel_way *way, const kernel_problem *problem) {
    const kernel_row *row = kernel_at(i);
    const char *name = way != NULL ? way->name : row->name;
    text why;
    if (options.kernel != NULL && strcmp(name, options.kernel) != 0) return false;
    text_init(&why, p->context);
    const bool accepted = kernel_refusal(row, way, problem, &why) == NULL;
    text_free(&why);
    if (!accepted) return false;
    p->way = way;
    p->ways = way != NULL ? UINT32_C(1) << (way - row->ways) : kernel_accepted_ways(row, problem);
    return takes_sizes(p, problem);
}

/* Lines of many operations are there for tiles. On simulated devices they are not run by one thread a result, nor by ways that the best one's estimate beats by far: such a way is a loop
 * whatever the sizes, which smaller lines hold, and the simulator takes many times longer for it. By name each way runs all its lines. */
#define LARGE_FLOPS 2e7
#define SLOW_TIMES 1.5

static bool is_left_to_smaller(const program *p, const kernel_row *row, const kernel_way *way, const kernel_problem *problem) {
    static const int64_t no_symbols[1] = {0};
    kernel_problem sized = *problem;
    kernel_typical typical;
    kernel_bound bound;
    if (options.kernel != NULL || way == NULL || p->device == NULL || !device_is_simulated(p->device)) return false;
    sized.symbols = no_symbols;
    if (!kernel_at_typical(&sized, p->ways, &typical)) return false;
    kernel_bound_of(&typical.run, 0, &bound);
    if (bound.work.flops <= LARGE_FLOPS) return false;
    return way->needs == 0 || kernel_seconds(row, p->ways, &sized) > SLOW_TIMES * kernel_seconds(row, kernel_accepted_ways(row, problem), &sized);
}

/* true: it runs the line, or would. */
static bool run_kernel(program *p, const kernel_case *c, int i, const kernel_way *way, const chip_caps *level, const kernel_problem *problem, operand *operands, const result *references,
                       uint64_t seed) {
    const kernel_row *row = kernel_at(i);
    const char *name = way != NULL ? way->name : row->name;
    if (!takes(p, i, way, problem)) return false;
    if (c->special != 0 && way != NULL && (way->needs >> CHIP_cudnn & 1) != 0) {   /* it multiplies hidden keys by weights of 0 */
        if (seed == 1) print_message("%s:%d: %s: not run, a NaN among hidden values becomes one among its results\n", c->source, c->number, name);
        return false;
    }
    if (loses_squares(row, c)) {
        if (seed == 1) print_message("%s:%d: %s: not run, squares leave fp32's range\n", c->source, c->number, name);
        return false;
    }
    if (is_left_to_smaller(p, row, way, problem)) {
        p->left += !p->only_looks;
        return false;
    }
    p->reached[i] = true;
    if (way != NULL) p->ways_reached[i] |= p->ways;
    if (p->only_looks) return true;
    p->tuned.way = NULL;
    if (c->variants == NULL) run_row(p, c, row, level, problem, operands, references, seed);
    else run_variants(p, c, row, level, problem, operands, references, seed);
    p->tuned.way = NULL;
    return true;
}

/* A way that stands for all rows that name it. */
static bool is_own_way(const kernel_row *row, const kernel_way *way) { return kernel_find_way(row, way->name) == way && kernel_way_is(way, KERNEL_WAY_STRIDES) == (row->strided_in != 0); }

static bool is_run_whole(const kernel_row *row) { return row->way_count == 0 || (options.kernel != NULL && strcmp(row->name, options.kernel) == 0); }

kernel_problem problem_of(program *p, const kernel_case *c, int level) {
    return (kernel_problem){.context = p->context, .op = c->op, .attrs = &c->attrs, .post = c->post, .n_in = c->n_in, .n_out = c->n_out, .in = c->in, .out = c->out, .constant_in = c->constant,
                            .dims = c->dims, .symbols = NULL, .chip = &p->levels[level]};
}

/* Does a kernel of an H200 run what the CPU has the reference alone for? */
static bool is_for_gpus(program *p, const kernel_case *c) {
    chip_caps chip;
    kernel_problem problem = problem_of(p, c, 0);
    bool taken = false;
    assert_int_equal(chip_find(p->context, "h200", 0, &chip), DW_OK);
    problem.chip = &chip;
    for (int i = 0; i < kernel_count() && !taken; i++) {
        text why;
        text_init(&why, p->context);
        taken = kernel_at(i)->op == c->op->id && kernel_at(i)->device == CHIP_GPU && kernel_refusal(kernel_at(i), NULL, &problem, &why) == NULL;
        text_free(&why);
    }
    return taken;
}

/* Is the line one of the kernel that is asked for? Else nothing need be computed of it. */
static bool is_wanted(program *p, const kernel_case *c) {
    bool wanted = options.kernel == NULL;
    for (int l = 0; l < p->level_count && !wanted; l++) {
        const kernel_problem problem = problem_of(p, c, l);
        for (int i = 0; i < kernel_count() && !wanted; i++) {
            const kernel_row *row = kernel_at(i);
            if (row->op != c->op->id || row->reference || row->device != p->levels[l].kind) continue;
            if (is_run_whole(row)) wanted = takes(p, i, NULL, &problem);
            for (int k = 0; k < row->way_count && !is_run_whole(row) && !wanted; k++) wanted = is_own_way(row, &row->ways[k]) && takes(p, i, &row->ways[k], &problem);
        }
    }
    return wanted;
}

static bool run_ways(program *p, const kernel_case *c, int i, const chip_caps *level, const kernel_problem *problem, operand *operands, const result *references, uint64_t seed) {
    const kernel_row *row = kernel_at(i);
    bool any = false;
    for (int k = 0; k < row->way_count; k++) {
        const kernel_way *way = &row->ways[k];
        if (is_own_way(row, way)) any |= run_kernel(p, c, i, way, level, problem, operands, references, seed);
    }
    return any;
}

/* On every level, by every row and way that takes it; true: there is one. */
static bool run_levels(program *p, const kernel_case *c, operand *operands, const result *references, uint64_t seed) {
    bool any = false;
    for (int l = 0; l < p->level_count; l++) {
        const kernel_problem problem = problem_of(p, c, l);
        for (int i = 0; i < kernel_count(); i++) {
            const kernel_row *row = kernel_at(i);
            if (row->op != c->op->id || row->reference || row->device != p->levels[l].kind) continue;
            if (is_run_whole(row)) any |= run_kernel(p, c, i, NULL, &p->levels[l], &problem, operands, references, seed);
            else any |= run_ways(p, c, i, &p->levels[l], &problem, operands, references, seed);
        }
    }
    return any;
}

/* Lines of many operations, which are there for tiles of GPUs, take one seed on the CPU. */
static void run_case(program *p, const kernel_case *c) {
    bool any = false, is_large = false;
    if (op_has(c->op->id, OP_TRAIT_COLLECTIVE)) {
        run_collective(p, c);
        return;
    }
    if (is_of_another_op(c) || !is_wanted(p, c) || (c->variants != NULL && options.kernel == NULL && !has_variants(p, c))) return;
    if (p->only_looks) {
        run_levels(p, c, NULL, NULL, 0);
        return;
    }
    for (uint64_t k = 0; k < options.seeds && !(is_large && k > 0 && p->device == NULL); k++) {
        const uint64_t seed = options.first_seed + k;
        operand operands[KERNEL_CASE_OPERANDS];
        result references[KERNEL_CASE_RESULTS];
        const dw_tensor *in[KERNEL_CASE_OPERANDS] = {0}, *out[KERNEL_CASE_RESULTS];
        for (int i = 0; i < c->n_in; i++) {
            operand_create(c, i, seed, &operands[i]);
            if (c->in[i] != NULL) in[i] = &operands[i].dense;
        }
        for (int i = 0; i < c->n_out; i++) {
            result_create(c, i, 0, &references[i]);
            out[i] = &references[i].tensor;
        }
        op_call call = {.context = p->context, .op = c->op, .attrs = &c->attrs, .n_in = c->n_in, .in = in, .n_out = c->n_out, .out = out};
        op_work work;
        call.op->work(&call, &work);
        is_large = work.flops > LARGE_FLOPS;
        p->lost = evaluation_lost(&call);
        if (c->op->reference(&call) != DW_OK) fail_msg("%s:%d: the reference: %s", c->source, c->number, dw_context_error(p->context));
        if (is_quantised(c)) {
            result oracle;
            char text[256];
            quantised_oracle(p, c, NULL, NULL, in, operands, NULL, &oracle);
            if (differs(p, c, &references[0], &oracle, text, sizeof text)) fail_msg("%s:%d: the reference: %s", c->source, c->number, text);
            free(oracle.memory.bytes);
        }
        any |= run_levels(p, c, operands, references, seed);
        for (int i = 0; i < c->n_in; i++) operand_destroy(&operands[i]);
        for (int i = 0; i < c->n_out; i++) free(references[i].memory.bytes);
    }
    if (!any && options.kernel != NULL && c->variants != NULL) fail_msg("%s:%d: %s\n    %s does not run it", c->source, c->number, c->line, options.kernel);
    if (!any && options.kernel != NULL) return;
    if (!any && p->device != NULL) print_message("%s:%d: %s\n    no kernel of this device takes it\n", c->source, c->number, c->line);
    if (!any && p->device == NULL && !is_for_gpus(p, c)) {
        p->failures++;
        print_error("%s:%d: %s\n    no kernel takes it\n", c->source, c->number, c->line);
    }
}

/* ---- files ---- */

static void run_line(program *p, const char *source, int number, const char *line) {
    const clock_t begin = clock();
    arena arena;
    arena_init(&arena, p->context);
    dim_table *dims;
    assert_int_equal(dim_table_create(p->context, &dims), DW_OK);
    kernel_case c;
    if (kernel_case_parse(&arena, dims, source, number, line, &c) != DW_OK) fail_msg("%s", dw_context_error(p->context));
    run_case(p, &c);
    dim_table_destroy(dims);
    arena_free(&arena);
    if (options.times && !p->only_looks) printf("%8.3f s %s:%d: %s\n", (double)(clock() - begin) / CLOCKS_PER_SEC, source, number, line);
}

/* looks: at lines of other parts, too. */
typedef struct file_run { program *p; const char *source; bool looks; } file_run;

static dw_status run_one(void *argument, int number, const char *line) {
    file_run *run = argument;
    run->p->only_looks = run->p->lines++ % options.parts != options.part;
    if (!run->p->only_looks || run->looks) run_line(run->p, run->source, number, line);
    return DW_OK;
}

static void run_file(program *p, const char *path, bool looks) {
    const char *slash = strrchr(path, '/');
    file_run run = {p, slash != NULL ? slash + 1 : path, looks};
    if (lines_read_file(path, run_one, &run) != DW_OK) fail_msg("%s cannot be read", path);
}

static void program_create(program *p) {
    *p = (program){0};
    assert_int_equal(dw_context_create(NULL, &p->context), DW_OK);
    for (int t = 0; t < THREADS; t++) assert_int_equal(pool_create(p->context, t + 1, &p->pools[t]), DW_OK);
    if (options.device != NULL) {
        if (device_open(p->context, options.device, &p->device) != DW_OK) fail_msg("%s", dw_context_error(p->context));
        p->levels[p->level_count++] = p->device->caps;
    }
    for (int i = 0; i < chip_count() && options.device == NULL; i++) {
        chip_caps caps;
        chip_row_caps(i, 1, &caps);
        if (caps.kind != CHIP_CPU || p->level_count == (int)COUNT_OF(p->levels)) continue;
        if (device_probe_cpu(p->context, caps.name + strlen("cpu-"), 1, &caps) == DW_OK) p->levels[p->level_count++] = caps;
        else print_message("not run: level %s (%s)\n", caps.name, dw_context_error(p->context));
    }
    p->reached = calloc((size_t)kernel_count(), sizeof *p->reached);
    p->ways_reached = calloc((size_t)kernel_count(), sizeof *p->ways_reached);
}

static void program_destroy(program *p) {
    free(p->reached);
    free(p->ways_reached);
    device_close(p->device);
    for (int t = 0; t < THREADS; t++) pool_destroy(p->pools[t]);
    dw_context_destroy(p->context);
}

static void run_all_files(program *p) {
    struct dirent **entries;
    int count = scandir(TEST_SOURCE_DIR "/tests/conform", &entries, NULL, alphasort);   /* in an order, so that parts are the same everywhere */
    assert_true(count > 0);
    for (int i = 0; i < count; i++) {
        char path[LINE_BYTES];
        size_t length = strlen(entries[i]->d_name);
        snprintf(path, sizeof path, "%s/tests/conform/%s", TEST_SOURCE_DIR, entries[i]->d_name);
        if (length >= 4 && strcmp(entries[i]->d_name + length - 4, ".txt") == 0) run_file(p, path, options.kernel == NULL);
        free(entries[i]);
    }
    free(entries);
}

static void check_one(program *p, const char *name, uint64_t needs, bool reached) {
    if (reached) return;
    if ((needs & ~p->levels[0].features) != 0) {
        print_message("not run: %s (this machine lacks what it needs)\n", name);
        return;
    }
    p->failures++;
    print_error("%s: no line of tests/conform reaches it\n", name);
}

static void check_reached(program *p) {
    for (int i = 0; i < kernel_count(); i++) {
        const kernel_row *row = kernel_at(i);
        if (row->reference || row->device != p->levels[0].kind) continue;
        if (row->way_count == 0) check_one(p, row->name, row->needs, p->reached[i]);
        for (int k = 0; k < row->way_count; k++)
            if (kernel_way_is(&row->ways[k], KERNEL_WAY_STRIDES) == (row->strided_in != 0)) check_one(p, row->ways[k].name, row->ways[k].needs, (p->ways_reached[i] >> k & 1) != 0);
    }
}

static void every_kernel_conforms(void **state) {
    (void)state;
    program p;
    program_create(&p);
    run_all_files(&p);
    if (options.kernel == NULL) check_reached(&p);
    print_message("%lld runs\n", (long long)p.runs);
    if (p.left > 0) print_message("%lld runs of slow ways left to smaller lines\n", (long long)p.left);
    if (options.kernel != NULL && p.runs == 0) fail_msg("no line of tests/conform runs the kernel '%s' here", options.kernel);
    int64_t failures = p.failures;
    program_destroy(&p);
    assert_int_equal(failures, 0);
}

/* The files and the words of a line. */
static int run_given(int count, char **given) {
    program p;
    program_create(&p);
    char line[LINE_BYTES] = "";
    for (int i = 0; i < count; i++) {
        if (strstr(given[i], ".txt") != NULL || strstr(given[i], ".list") != NULL) run_file(&p, given[i], false);
        else snprintf(line + strlen(line), sizeof line - strlen(line), "%s%s", line[0] != '\0' ? " " : "", given[i]);
    }
    if (line[0] != '\0') run_line(&p, "line", 1, line);
    printf("%lld runs, %lld failures\n", (long long)p.runs, (long long)p.failures);
    int status = p.failures > 0 || (options.kernel != NULL && p.runs == 0);
    program_destroy(&p);
    return status;
}

static bool read_part(const char *text) {
    char *end;
    options.part = strtoll(text, &end, 10);
    options.parts = *end == '/' ? strtoll(end + 1, &end, 10) : 0;
    return *end == '\0' && options.part >= 0 && options.part < options.parts;
}

/* The options in front; the index of what follows them, or -1. */
static int read_options(int argc, char **argv) {
    int i = 1;
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
        const char *name = argv[i] + 2, *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(name, "once") == 0) options.runs_each = 1;
        else if (strcmp(name, "times") == 0) options.times = true;
        else if (strcmp(name, "bits") == 0) options.bits = true;
        else if (strcmp(name, "unwritten") == 0) options.unwritten = true;
        else if (value == NULL) return -1;
        else if (strcmp(name, "device") == 0) options.device = argv[++i];
        else if (strcmp(name, "kernel") == 0) options.kernel = argv[++i];
        else if (strcmp(name, "seeds") == 0) options.seeds = strtoull(argv[++i], NULL, 10);
        else if (strcmp(name, "seed") == 0) options.first_seed = strtoull(argv[++i], NULL, 10), options.seeds = 1;
        else if (strcmp(name, "part") != 0 || !read_part(argv[++i])) return -1;
    }
    return i;
}

int main(int argc, char **argv) {
    int first = read_options(argc, argv);
    if (first < 0) {
        fprintf(stderr, "usage: test_conform_kernels [--device D] [--kernel NAME] [--part I/N] [--seeds N] [--seed S] [--once] [--times] [--bits] [--unwritten] [FILE.. | OP OPERANDS..]\n");
        return 2;
    }
    if (first < argc) return run_given(argc - first, argv + first);
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_kernel_conforms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
