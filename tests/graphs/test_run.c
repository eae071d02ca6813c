/* Random graphs held against the references: see README.md. Without arguments a short run.
 *     --seed S --count N   graphs S, S + 1, ..      --device D   on that device rather than the CPU      --only OP   every graph has that op
 *     --graph FILE         this one alone           --keep-going all failures, not only the first        --print     the graphs, without a run */
#include "tests/graphs/graphs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The simulator lies beside the library; this program, which has the library's objects, lies elsewhere. */
static dw_status open_device(checks *c) {
    static const char sim[] = "sim:";
    if (strncmp(c->device_name, sim, strlen(sim)) == 0) {
        setenv("DEEPWELL_SIM", c->device_name + strlen(sim), 1);
        c->device_name = "cuda:0,driver=" TEST_BUILD_DIR "/libdeepwell-sim.so";
    }
    return device_open(c->context, c->device_name, &c->device);
}

static dw_status open_levels(checks *c) {
    for (int i = 0; i < chip_count() && c->device_name == NULL; i++) {
        chip_caps caps;
        chip_row_caps(i, 1, &caps);
        if (caps.kind != CHIP_CPU || c->level_count == (int)COUNT_OF(c->levels)) continue;
        const char *level = caps.name + strlen("cpu-");
        static char names[8][256];
        if (device_probe_cpu(c->context, level, 1, &caps) != DW_OK) {
            printf("not run: level %s (%s)\n", level, dw_context_error(c->context));
            continue;
        }
        snprintf(names[c->level_count], sizeof names[0], "cpu:%.*s", (int)sizeof caps.name, level);
        c->levels[c->level_count] = names[c->level_count];
        c->level_count++;
    }
    return c->device_name != NULL ? open_device(c) : DW_OK;
}

bool checks_fail(checks *c, const char *kind, const char *format, ...) {
    va_list arguments;
    char words[3000];
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    snprintf(c->kind, sizeof c->kind, "%s", kind);
    text_free(&c->words);
    text_init(&c->words, c->context);
    text_add(&c->words, words);
    return false;
}

/* Is the graph's text the same when it was read? Consts are printed, other weights are not there yet. */
static bool round_trips(checks *c, const ir_graph *graph, const char *words) {
    text again;
    text_init(&again, c->context);
    const bool held = (ir_print(graph, &again) == DW_OK && strcmp(text_string(&again), words) == 0) || checks_fail(c, "a graph's text is another when it was read", "%s", text_string(&again));
    text_free(&again);
    return held;
}

bool checks_hold(checks *c, const char *words, uint64_t seed, bool *meant) {
    ir_graph *graph;
    *meant = false;
    c->kind[0] = '\0';
    if (ir_parse(c->context, "graph", words, strlen(words), NULL, &graph) != DW_OK) return checks_fail(c, "a graph's text is refused", "%s", dw_context_error(c->context));
    bool held = round_trips(c, graph, words);
    *meant = held && graphs_give_weights(graph, seed) == DW_OK && graphs_is_meant(c, graph, seed);
    if (held && *meant) {
        const char *device = c->device_name != NULL ? c->device_name : c->levels[num_random(seed, 7) % (uint64_t)c->level_count];
        if (c->device_name == NULL) held = checks_passes(c, graph, seed);
        if (held && c->device_name == NULL) held = checks_ranks(c, graph, seed);
        if (held) held = checks_steps(c, graph, device, seed);
    }
    ir_graph_destroy(graph);
    return held;
}

/* ---- the run ---- */

typedef struct wishes {
    uint64_t seed;
    int64_t count;
    const char *device, *graph;
    op_id only;
    bool has_seed, keep_going, print;
} wishes;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* How many failures of that kind there were before. */
static int seen_before(const char *kind) {
    enum { KINDS = 200 };
    static struct { char kind[160]; int count; } seen[KINDS];
    for (int i = 0; i < KINDS; i++) {
        if (seen[i].count == 0) snprintf(seen[i].kind, sizeof seen[i].kind, "%s", kind);
        if (strcmp(seen[i].kind, kind) == 0) return seen[i].count++;
    }
    return 0;
}

enum { SHRUNK = 2 };              /* failures of each kind that are made small */

static void report_failure(checks *c, uint64_t seed, text *graph) {
    if (seen_before(c->kind) >= SHRUNK) {
        printf("graph %llu: %s (again)\n  %s\n", (unsigned long long)seed, c->kind, text_string(&c->words));
        return;
    }
    printf("graph %llu: %s\n  %s\n", (unsigned long long)seed, c->kind, text_string(&c->words));
    graphs_shrink(c, seed, graph);
    printf("made small (precision %s):\n  %s\n%s\n", graphs_precision(seed) != NULL ? graphs_precision(seed) : "as exported", text_string(&c->words), text_string(graph));
    fflush(stdout);
}

/* One graph; false when something did not hold. */
static bool run_one(checks *c, const graphs_corpus *corpus, const wishes *w, uint64_t seed, int64_t *made, int64_t *meant_count) {
    ir_graph *graph;
    text words;
    bool held = true, meant = false;
    if (graphs_make(c->context, corpus, seed, w->only, &graph) != DW_OK) return true;
    text_init(&words, c->context);
    if (ir_check(graph) != DW_OK) held = checks_fail(c, "the maker's graph does not check", "%s", dw_context_error(c->context));
    if (ir_print(graph, &words) != DW_OK) held = false;
    ir_graph_destroy(graph);
    ++*made;
    if (w->print) printf("%s\n", text_string(&words));
    else if (held) held = checks_hold(c, text_string(&words), seed, &meant);
    *meant_count += meant;
    if (!held) report_failure(c, seed, &words);
    text_free(&words);
    return held;
}

static void print_met(const checks *c) {
    printf("\nkernels met:");
    for (int i = 0; i < kernel_count(); i++)
        if (c->rows_met[i] > 0) printf(" %s=%lld", kernel_at(i)->name, (long long)c->rows_met[i]);
    printf("\nfusions met:");
    for (int i = 0; i < graphs_fusion_count(); i++) printf(" %s=%lld", graphs_fusion_name(i), (long long)c->fusions_met[i]);
    printf("\npasses met:");
    for (int i = 0; pass_get(i) != NULL; i++) printf(" %s=%lld", pass_get(i)->name, (long long)c->passes_met[i]);
    printf("\ncollectives met:");
    for (int i = 0; i < OP_COUNT; i++)
        if (op_has((op_id)i, OP_TRAIT_COLLECTIVE) && c->ops_met[i] > 0) printf(" %s=%lld", op_get((op_id)i)->name, (long long)c->ops_met[i]);
    printf("\nnever met:");
    for (int i = 0; i < kernel_count(); i++) {
        const kernel_row *row = kernel_at(i);
        const bool here = c->device != NULL ? row->device == c->device->caps.kind && (row->needs & ~c->device->caps.features) == 0 : row->device == CHIP_CPU;
        if (here && !row->reference && c->rows_met[i] == 0) printf(" %s", row->name);
    }
    for (int i = 0; c->device == NULL && i < graphs_fusion_count(); i++)
        if (c->fusions_met[i] == 0) printf(" fusion:%s", graphs_fusion_name(i));
    for (int i = 0; c->device == NULL && pass_get(i) != NULL; i++)
        if (c->passes_met[i] == 0) printf(" pass:%s", pass_get(i)->name);
    for (int i = 0; i < OP_COUNT; i++)
        if (c->ops_met[i] == 0) printf(" op:%s", op_get((op_id)i)->name);
    printf("\n");
}

/* One graph in text with the data of some seeds, which also draw the precision and the instruction set. */
static bool holds_text(checks *c, const char *name, const char *words, uint64_t seed, int seeds) {
    for (int i = 0; i < seeds; i++) {
        bool meant;
        if (checks_hold(c, words, seed + (uint64_t)i, &meant)) continue;
        printf("%s, seed %llu: %s\n  %s\n", name, (unsigned long long)seed + (unsigned long long)i, c->kind, text_string(&c->words));
        return false;
    }
    return true;
}

/* The graph behind the first line "# seed N", if there is one: data of that seed found the fault. *seed stays where there is none. */
static const char *behind_seed(const char *words, uint64_t *seed) {
    static const char mark[] = "# seed ";
    const char *end = strchr(words, '\n');
    if (strncmp(words, mark, strlen(mark)) != 0 || end == NULL) return words;
    *seed = strtoull(words + strlen(mark), NULL, 10);
    return end + 1;
}

static int run_file(checks *c, const wishes *w) {
    file_map file;
    text words;
    if (file_map_open(c->context, w->graph, &file) != DW_OK) {
        printf("%s\n", dw_context_error(c->context));
        return 1;
    }
    text_init(&words, c->context);
    text_add_n(&words, (const char *)file.bytes, file.length);
    uint64_t own = w->seed;
    const char *graph = behind_seed(text_string(&words), &own);
    const bool held = holds_text(c, w->graph, graph, w->has_seed ? w->seed : own, 1);
    if (held) printf("holds\n");
    text_free(&words);
    file_map_close(&file);
    return held ? 0 : 1;
}

/* Graphs that did not hold once. */
static int run_found(checks *c, const graphs_corpus *corpus) {
    enum { SEEDS = 6 };
    int failures = 0;
    for (int i = 0; i < corpus->found_count; i++) {
        uint64_t own = 0;
        const char *graph = behind_seed(corpus->found[i], &own);
        failures += !((own == 0 || holds_text(c, "found", graph, own, 1)) && holds_text(c, "found", graph, 1, SEEDS));
    }
    return failures;
}

static int run_all(checks *c, const graphs_corpus *corpus, const wishes *w) {
    int64_t made = 0, meant = 0, failures = 0;
    const double began = now();
    if (!w->print && w->only == OP_COUNT) failures += run_found(c, corpus);
    for (int64_t i = 0; i < w->count; i++) {
        if (run_one(c, corpus, w, w->seed + (uint64_t)i, &made, &meant)) continue;
        failures++;
        if (!w->keep_going) break;
    }
    const double seconds = now() - began;
    if (!w->print) print_met(c);
    printf("graphs from seed %llu: %lld made, %lld of them run, %lld results compared (%lld elements under vague bounds), %lld failures, %.0f s, %.1f a second\n", (unsigned long long)w->seed,
           (long long)made, (long long)meant, (long long)c->steps, (long long)c->vague, (long long)failures, seconds, seconds > 0 ? (double)made / seconds : 0);
    return failures > 0;
}

static bool read_wishes(int argc, char **argv, wishes *w) {
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--keep-going") == 0) w->keep_going = true;
        else if (strcmp(argv[i], "--print") == 0) w->print = true;
        else if (value == NULL) return false;
        else {
            i++;
            if (strcmp(argv[i - 1], "--seed") == 0) w->seed = strtoull(value, NULL, 0), w->has_seed = true;
            else if (strcmp(argv[i - 1], "--count") == 0) w->count = strtoll(value, NULL, 0);
            else if (strcmp(argv[i - 1], "--device") == 0) w->device = value;
            else if (strcmp(argv[i - 1], "--graph") == 0) w->graph = value;
            else if (strcmp(argv[i - 1], "--only") == 0) w->only = op_find(value);
            else return false;
        }
    }
    return true;
}

int main(int argc, char **argv) {
    wishes w = {.seed = 1, .count = 300, .only = OP_COUNT};
    checks c = {.counting = true};
    graphs_corpus corpus;
    arena memory;
    if (!read_wishes(argc, argv, &w)) {
        fprintf(stderr, "usage: %s [--seed S] [--count N] [--device D] [--only OP] [--graph FILE] [--keep-going] [--print]\n", argv[0]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    c.device_name = w.device;
    if (dw_context_create(&(dw_context_options){.threads = 1}, &c.context) != DW_OK) return 1;
    arena_init(&memory, c.context);
    text_init(&c.words, c.context);
    c.rows_met = calloc((size_t)kernel_count() + 1, sizeof *c.rows_met);
    c.fusions_met = calloc((size_t)graphs_fusion_count() + 1, sizeof *c.fusions_met);
    c.passes_met = calloc(64, sizeof *c.passes_met);
    c.ops_met = calloc(OP_COUNT, sizeof *c.ops_met);
    dw_status status = base_pool(c.context, &c.pool);
    if (status == DW_OK) status = open_levels(&c);
    if (status == DW_OK) status = graphs_corpus_read(&memory, &corpus);
    int failed = 1;
    if (status == DW_OK) failed = w.graph != NULL ? run_file(&c, &w) : run_all(&c, &corpus, &w);
    else printf("%s\n", dw_context_error(c.context));
    device_close(c.device);
    text_free(&c.words);
    arena_free(&memory);
    dw_context_destroy(c.context);
    free(c.rows_met);
    free(c.fusions_met);
    free(c.passes_met);
    free(c.ops_met);
    return failed;
}
