/* usage: cuda_kernels [--device D] [--only WORD,..] [--behind LINE] [--round MS] FILE | LINE..
 * Times every GPU kernel that accepts a line of conformance (kernel_case in kernel.h), or those with one of the words in their name: graphs of calls over rotated operands
 * (more than 200 MB together; caches are written in place), after some idle time; the median of rounds in which all kernels of a line take turns. Bytes are those of the op's work. Variants that a line names are timed each, and a
 * way by itself that has variants, none of which the line names, is left out.
 * --behind: in front of each call one of that line's, as a norm stands in front of a product in a step; both are timed together. --round: how long a kernel runs in a round, 8 unless
 * said; from 40 on without idle time in front, so that the chip is as warm as under load. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "device/device.h"
#include "kernel/kernel.h"

enum { LINE_BYTES = 1024, MOST_SETS = 64, MOST_ROWS = 24, ROUNDS = 5, IDLE_US = 20000, MOST_LAUNCHES = 100 };
static const double ROTATED_BYTES = 256e6, WARM_SECONDS = 40e-3;
static double round_seconds = 8e-3;

static dw_context *context;
static device *gpu;
static const char *only = "";

static double now_s(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void check(dw_status status) {
    if (status == DW_OK) return;
    fprintf(stderr, "%s\n", dw_context_error(context));
    exit(1);
}

static uint32_t random_bits(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* Numbers of the size of one, by their bits: quick, and no NaN among them. */
static void fill_elements(dw_format format, uint8_t *data, size_t bytes, uint32_t *state) {
    size_t size = format == DW_FORMAT_f32 ? 4 : format == DW_FORMAT_bf16 || format == DW_FORMAT_f16 ? 2 : 1;
    for (size_t i = 0; i + size <= bytes; i += size) {
        uint32_t bits = random_bits(state), code = bits;
        switch (format) {
        case DW_FORMAT_f32: code = (bits & 0x807fffff) | (124 + (bits >> 24) % 4) << 23; break;
        case DW_FORMAT_bf16: code = (bits & 0x807f) | (124 + (bits >> 24) % 4) << 7; break;
        case DW_FORMAT_f16: code = (bits & 0x83ff) | (12 + (bits >> 24) % 4) << 10; break;
        case DW_FORMAT_e4m3: code = (bits & 0x87) | (5 + (bits >> 24) % 4) << 3; break;
        case DW_FORMAT_e5m2: code = (bits & 0x83) | (13 + (bits >> 24) % 4) << 2; break;
        case DW_FORMAT_e8m0: code = 120 + bits % 8; break;
        case DW_FORMAT_bool: code = bits & 1; break;
        default: break;
        }
        memcpy(data + i, &code, size);
    }
}

static void fill(const dw_tensor *t, uint8_t *host, const num_parts *parts) {
    static uint32_t state = 12345;
    const num_format *info = num_info(t->format);
    fill_elements(info->class == NUM_BLOCK ? info->element : t->format, host, parts->data_bytes, &state);
    if (info->class != NUM_BLOCK) return;
    fill_elements(info->scale, host + parts->scale_offset, parts->scale_bytes, &state);
    for (size_t i = 0; i < parts->second_bytes / 4; i++) ((float *)(void *)(host + parts->second_offset))[i] = 0.01f;
}

/* Integers that ascend, as the offsets of groups do: from low to high in even steps. */
static void fill_steps(const kernel_range *range, size_t size, int64_t count, uint8_t *to) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t x = (int64_t)(range->low + (range->high - range->low) * (double)(i + 1) / (double)count);
        memcpy(to + (size_t)i * size, &x, size);
    }
}

/* Integers between the range's ends, as indices are: anywhere. */
static void fill_range(const kernel_range *range, size_t size, int64_t count, uint8_t *to) {
    static uint32_t state = 54321;
    const int64_t low = (int64_t)range->low, span = (int64_t)range->high - low + 1;
    for (int64_t i = 0; i < count; i++) {
        const int64_t x = low + (int64_t)random_bits(&state) % span;
        memcpy(to + (size_t)i * size, &x, size);
    }
}

/* Choices, columns and tails, over what is there. */
static void fill_chosen(const kernel_case *c, int operand, const dw_tensor *t, uint8_t *host) {
    bool any = c->choices[operand].count > 0 || c->tails[operand].given;
    for (int i = 0; i < c->column_count; i++) any = any || c->columns[i].operand == operand;
    if (!any) return;
    for (int64_t i = 0, count = op_tensor_count(t); i < count; i++) {
        double value = num_load(t->format, host, i);
        if (c->ranges[operand].given) value = c->ranges[operand].low;
        kernel_case_element(c, operand, 1, i, t->rank > 0 ? t->dims[t->rank - 1] : 1, &value);
        num_store(t->format, host, i, value, isfinite(value) != 0);
    }
}

/* One set of operands on the device. */
typedef struct set {
    dw_tensor in[KERNEL_CASE_OPERANDS], out[KERNEL_CASE_RESULTS];
    const dw_tensor *in_pointers[KERNEL_CASE_OPERANDS], *out_pointers[KERNEL_CASE_RESULTS];
    void *memory[KERNEL_CASE_OPERANDS + KERNEL_CASE_RESULTS];
    dw_tensor plain;              /* what operand 0 is quantised from, where the case says so; its numbers are any */
    void *of_plain;
    dw_tensor columns[2];         /* weight and bias of the norm that the case says, the same */
    void *of_columns[2];
} set;

static void make_filled(dw_format format, int rank, const int64_t *dims, dw_tensor *t, void **memory) {
    num_parts parts;
    num_layout(format, DW_SCALE_plain, rank, dims, &parts);
    check(gpu->calls->alloc(gpu, parts.total_bytes, memory));
    op_tensor_init(t, format, DW_SCALE_plain, rank, dims, *memory);
    uint8_t *host = calloc(1, parts.total_bytes);
    fill(t, host, &parts);
    check(gpu->calls->write(gpu, *memory, host, parts.total_bytes));
    check(gpu->calls->synchronize(gpu));
    free(host);
}

static bool is_of_caches(const kernel_case *c) { return c->op->id == OP_cache_write || c->op->id == OP_cache_update; }

/* What operand 0 comes as to kernels that quantise it, and the columns of a norm in front of it. */
static void make_plain(const kernel_case *c, set *s) {
    const dw_tensor *a = &s->in[c->op->id == OP_cache_update ? (int)UPDATE_KEYS : 0];
    if (c->plain != DW_FORMAT_COUNT) make_filled(c->plain, a->rank, a->dims, &s->plain, &s->of_plain);
    for (int i = 0; i < 2 && c->norm != OP_COUNT; i++)
        make_filled(c->plain != DW_FORMAT_COUNT ? c->plain : a->format, 1, &a->dims[a->rank - 1], &s->columns[i], &s->of_columns[i]);
}

static void make_set(const kernel_case *c, set *s, const set *first) {
    num_parts parts;
    *s = (set){0};
    for (int i = 0; i < c->n_in + c->n_out; i++) {
        const op_type *type = i < c->n_in ? c->in[i] : c->out[i - c->n_in];
        dw_tensor *t = i < c->n_in ? &s->in[i] : &s->out[i - c->n_in], shape;
        if (type == NULL) continue;
        if (is_of_caches(c) && i >= c->n_in && i - c->n_in < (c->op->id == OP_cache_update ? 2 : 1)) {   /* in place, as models write them */
            s->out[i - c->n_in] = s->in[i - c->n_in];
            s->out_pointers[i - c->n_in] = &s->out[i - c->n_in];
            continue;
        }
        check(op_tensor_bind(context, type, NULL, NULL, &shape));
        num_layout(shape.format, shape.scale_layout, shape.rank, shape.dims, &parts);
        check(gpu->calls->alloc(gpu, parts.total_bytes, &s->memory[i]));
        op_tensor_init(t, shape.format, shape.scale_layout, shape.rank, shape.dims, s->memory[i]);
        if (i < c->n_in && ((c->turned | c->reversed) & ~(c->strided | c->pitched)) >> i & 1) kernel_case_set_apart(c, i, t);   /* without gaps it fills what it has */
        if (i >= c->n_in) {
            s->out_pointers[i - c->n_in] = t;
            continue;
        }
        s->in_pointers[i] = t;
        if (first != NULL) {
            check(gpu->calls->copy(gpu, s->memory[i], first->memory[i], parts.total_bytes));
            continue;
        }
        uint8_t *host = calloc(1, parts.total_bytes + 8);
        const num_class class = num_info(t->format)->class;
        if (c->ascending >> i & 1 && (class == NUM_UNSIGNED || class == NUM_SIGNED)) fill_steps(&c->ranges[i], (size_t)dw_format_bits(t->format) / 8, op_tensor_count(t), host);
        else if (c->ranges[i].given && (class == NUM_UNSIGNED || class == NUM_SIGNED)) fill_range(&c->ranges[i], (size_t)dw_format_bits(t->format) / 8, op_tensor_count(t), host);
        else fill(t, host, &parts);
        if (num_info(t->format)->class != NUM_BLOCK) fill_chosen(c, i, t, host);
        check(gpu->calls->write(gpu, s->memory[i], host, parts.total_bytes));
        check(gpu->calls->synchronize(gpu));
        free(host);
    }
    make_plain(c, s);
}

static void free_set(const kernel_case *c, set *s) {
    for (int i = 0; i < c->n_in + c->n_out; i++)
        if (s->memory[i] != NULL) gpu->calls->release(gpu, s->memory[i], 0);
    if (s->of_plain != NULL) gpu->calls->release(gpu, s->of_plain, 0);
    for (int i = 0; i < 2; i++)
        if (s->of_columns[i] != NULL) gpu->calls->release(gpu, s->of_columns[i], 0);
}

/* What a kernel does itself to an operand that comes plain. */
typedef enum beside { AS_IT_COMES, QUANTISING, NORMALISING, BESIDES } beside;
static const char *const beside_words[BESIDES] = {"", "quantising ", "normalising "};

typedef struct timed { const kernel_row *row; const kernel_way *way; uint32_t ways; kernel_tuned tuned; const char *variant; beside beside; device_graph *graph; int calls; double us[ROUNDS]; } timed;

/* What stands in front of each call: a line, its operands, and a row that runs it, with whichever of its ways. */
static struct { bool given; kernel_case line; set set; const kernel_row *row; } behind;

static dw_status record_behind(device_graph *graph) {
    set *s = &behind.set;
    const kernel_case *c = &behind.line;
    kernel_run run = {.call = {context, c->op, &c->attrs, NULL, c->n_in, s->in_pointers, c->n_out, s->out_pointers, 0, NULL}, .post = c->post, .constant_in = c->constant, .chip = &gpu->caps,
                            .ways = (UINT32_C(1) << behind.row->way_count) - 1};
    return gpu->calls->graph_add(gpu, graph, behind.row, &run);
}

static dw_status record(const kernel_case *c, timed *t, set *sets, int count) {
    static void *workspace;
    static size_t workspace_bytes;
    TRY(gpu->calls->graph_begin(gpu, t->graph));
    for (int i = 0; i < t->calls; i++) {
        set *s = &sets[i % count];
        if (behind.given) TRY(record_behind(t->graph));
        kernel_run run = {.call = {context, c->op, &c->attrs, NULL, c->n_in, s->in_pointers, c->n_out, s->out_pointers, 0, NULL}, .post = c->post, .constant_in = c->constant, .given_in = is_of_caches(c) ? ~0u : 0, .chip = &gpu->caps, .ways = t->ways,
                          .tuned = &t->tuned, .tuned_count = t->variant != NULL};
        const kernel_norm norm = {{&s->columns[0], c->norm == OP_layer_norm ? &s->columns[1] : NULL}, c->norm == OP_layer_norm, 1e-5};
        if (t->beside == NORMALISING && is_of_caches(c)) run.heads[0] = run.heads[1] = &norm;
        else if (t->beside == NORMALISING) run.norm = &norm, run.constant_in = ~0u;
        if (t->beside != AS_IT_COMES && c->plain != DW_FORMAT_COUNT) {
            s->in_pointers[0] = &s->plain;
            run.quantises = true;
            run.quantised = s->in[0].format;
            run.searches = c->plain_searches;
        }
        size_t bytes = kernel_workspace(t->row, &run);
        if (bytes > workspace_bytes) check(gpu->calls->alloc(gpu, workspace_bytes = bytes, &workspace));
        run.workspace = workspace;
        dw_status status = gpu->calls->graph_add(gpu, t->graph, t->row, &run);
        s->in_pointers[0] = &s->in[0];
        TRY(status);
    }
    return DW_OK;
}

static bool is_asked_for(const char *name) {
    for (const char *at = only; *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
        const size_t length = strcspn(at, ",");
        for (const char *part = name; *part != '\0'; part++)
            if (strncmp(part, at, length) == 0) return true;
    }
    return *only == '\0';
}

static double launch_us(timed *t, int times) {
    check(gpu->calls->synchronize(gpu));
    double begin = now_s();
    for (int i = 0; i < times; i++) check(gpu->calls->graph_launch(gpu, t->graph));
    check(gpu->calls->synchronize(gpu));
    return (now_s() - begin) * 1e6 / times / t->calls;
}

static int by_size(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

/* The kernel, recorded and run once; false: it is not asked for, or does not take the case. */
static bool add_kernel(const kernel_case *c, const kernel_problem *problem, const kernel_row *row, const kernel_way *way, int variant, beside beside, set *sets, int count, timed *t) {
    const char *name = way != NULL ? way->name : row->name;
    text why;
    if (!is_asked_for(name)) return false;
    text_init(&why, context);
    bool accepted = kernel_refusal(row, way, problem, &why) == NULL;
    text_free(&why);
    if (!accepted) return false;
    *t = (timed){.row = row, .way = way, .ways = way != NULL ? UINT32_C(1) << (way - row->ways) : 0, .beside = beside, .calls = count, .tuned = {INT64_MAX, way, variant},
                 .variant = variant < 0 ? NULL : kernel_way_variant(way, problem, variant)};
    check(gpu->calls->graph_create(gpu, &t->graph));
    dw_status status = record(c, t, sets, count);
    if (status == DW_UNSUPPORTED) {       /* sizes that a way does not take, or what a library says when it is asked */
        printf("not %s: %s\n", name, dw_context_error(context));
        gpu->calls->graph_release(gpu, t->graph);
        return false;
    }
    check(status);
    launch_us(t, 1);
    return true;
}

/* The variants of a way that the line names, each by itself; how many there are. */
static int add_variants(const kernel_case *c, const kernel_problem *problem, const kernel_row *row, const kernel_way *way, set *sets, int count, timed *to, int room) {
    const char *name;
    int added = 0;
    for (int k = 0; added < room && (name = kernel_way_variant(way, problem, k)) != NULL; k++)
        if (kernel_case_has_variant(c, name)) added += add_kernel(c, problem, row, way, k, AS_IT_COMES, sets, count, &to[added]);
    return added;
}

static void run_case(const kernel_case *c) {
    static set sets[MOST_SETS];
    timed rows[MOST_ROWS];
    int row_count = 0;
    make_set(c, &sets[0], NULL);
    op_call call = {.context = context, .op = c->op, .attrs = &c->attrs, .n_in = c->n_in, .in = sets[0].in_pointers, .n_out = c->n_out, .out = sets[0].out_pointers};
    op_work work = {0};
    c->op->work(&call, &work);
    double bytes = work.bytes_read + work.bytes_written;
    int count = bytes * MOST_SETS < ROTATED_BYTES ? MOST_SETS : (int)(ROTATED_BYTES / bytes) + 1;
    if (count < 2) count = 2;
    for (int i = 1; i < count; i++) make_set(c, &sets[i], &sets[0]);
    kernel_problem problem = {.context = context, .op = c->op, .attrs = &c->attrs, .post = c->post, .n_in = c->n_in, .n_out = c->n_out, .in = c->in, .out = c->out,
                              .constant_in = c->constant, .dims = c->dims, .symbols = (const int64_t[1]){0}, .chip = &gpu->caps};
    for (int i = 0; i < kernel_count(); i++) {
        const kernel_row *row = kernel_at(i);
        if (row->op != c->op->id || row->reference || row->device != gpu->caps.kind) continue;
        if (row->way_count == 0) row_count += add_kernel(c, &problem, row, NULL, -1, AS_IT_COMES, sets, count, &rows[row_count]);
        if (c->norm != OP_COUNT && kernel_may_normalise_heads(row)) row_count += add_kernel(c, &problem, row, NULL, -1, NORMALISING, sets, count, &rows[row_count]);
        for (int k = 0; k < row->way_count && row_count + 1 < MOST_ROWS; k++) {   /* each once */
            const kernel_way *way = &row->ways[k];
            if (kernel_way_is(way, KERNEL_WAY_STRIDES) != (row->strided_in != 0)) continue;
            if (c->variants != NULL && kernel_way_variant(way, &problem, 0) != NULL) {
                row_count += add_variants(c, &problem, row, way, sets, count, &rows[row_count], MOST_ROWS - row_count);
                continue;
            }
            row_count += add_kernel(c, &problem, row, way, -1, AS_IT_COMES, sets, count, &rows[row_count]);
            if (c->plain != DW_FORMAT_COUNT && kernel_way_is(way, KERNEL_WAY_QUANTISES)) row_count += add_kernel(c, &problem, row, way, -1, QUANTISING, sets, count, &rows[row_count]);
            if (c->norm != OP_COUNT && kernel_way_is(way, KERNEL_WAY_NORMALISES) && row_count < MOST_ROWS) row_count += add_kernel(c, &problem, row, way, -1, NORMALISING, sets, count, &rows[row_count]);
        }
        if (row_count == MOST_ROWS) break;
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < row_count; i++) {
            double guess = launch_us(&rows[i], 1);
            int times = (int)(round_seconds * 1e6 / (guess * rows[i].calls));
            if (round_seconds < WARM_SECONDS) usleep(IDLE_US);
            if (round_seconds < WARM_SECONDS && times > MOST_LAUNCHES) times = MOST_LAUNCHES;
            rows[i].us[round] = launch_us(&rows[i], times < 1 ? 1 : times);
        }
    }
    for (int i = 0; i < row_count; i++) {
        qsort(rows[i].us, ROUNDS, sizeof(double), by_size);
        double us = rows[i].us[ROUNDS / 2];
        printf("%9.2f us (estimated %8.2f) %7.0f GB/s %7.1f TFLOP/s  %s%-22s %s\n", us, kernel_seconds(rows[i].row, rows[i].ways, &problem) * 1e6, bytes / us * 1e-3, work.flops / us * 1e-6, beside_words[rows[i].beside],
               rows[i].variant != NULL ? rows[i].variant : rows[i].way != NULL ? rows[i].way->name : rows[i].row->name, c->line);
        gpu->calls->graph_release(gpu, rows[i].graph);
    }
    fflush(stdout);
    for (int i = 0; i < count; i++) free_set(c, &sets[i]);
}

/* Its workspace is none: lines of norms and of other small ops need none. */
static void take_behind(const char *line) {
    static arena arena;
    dim_table *dims;
    arena_init(&arena, context);
    check(dim_table_create(context, &dims));
    check(kernel_case_parse(&arena, dims, "--behind", 1, line, &behind.line));
    const kernel_case *c = &behind.line;
    const kernel_problem problem = {.context = context, .op = c->op, .attrs = &c->attrs, .post = c->post, .n_in = c->n_in, .n_out = c->n_out, .in = c->in, .out = c->out,
                                    .constant_in = c->constant, .dims = c->dims, .symbols = (const int64_t[1]){0}, .chip = &gpu->caps};
    for (int i = 0; i < kernel_count() && behind.row == NULL; i++) {
        const kernel_row *row = kernel_at(i);
        text why;
        if (row->op != c->op->id || row->reference || row->device != gpu->caps.kind) continue;
        text_init(&why, context);
        if (kernel_refusal(row, NULL, &problem, &why) == NULL) behind.row = row;
        text_free(&why);
    }
    if (behind.row == NULL) {
        fprintf(stderr, "no kernel runs %s\n", line);
        exit(1);
    }
    make_set(c, &behind.set, NULL);
    behind.given = true;
}

static void run_line(const char *source, int number, const char *line) {
    arena arena;
    arena_init(&arena, context);
    dim_table *dims;
    kernel_case c;
    check(dim_table_create(context, &dims));
    check(kernel_case_parse(&arena, dims, source, number, line, &c));
    run_case(&c);
    dim_table_destroy(dims);
    arena_free(&arena);
}

int main(int argc, char **argv) {
    const char *name = "cuda", *in_front = NULL;
    int first = 1;
    for (; first + 1 < argc && strncmp(argv[first], "--", 2) == 0; first += 2) {
        if (strcmp(argv[first], "--device") == 0) name = argv[first + 1];
        else if (strcmp(argv[first], "--only") == 0) only = argv[first + 1];
        else if (strcmp(argv[first], "--behind") == 0) in_front = argv[first + 1];
        else if (strcmp(argv[first], "--round") == 0) round_seconds = atof(argv[first + 1]) * 1e-3;
        else break;
    }
    if (first >= argc) {
        fprintf(stderr, "usage: cuda_kernels [--device D] [--only WORD,..] [--behind LINE] [--round MS] FILE | LINE..\n");
        return 2;
    }
    if (dw_context_create(NULL, &context) != DW_OK) return 1;
    check(device_open(context, name, &gpu));
    if (in_front != NULL) take_behind(in_front);
    for (int i = first; i < argc; i++) {
        char line[LINE_BYTES];
        FILE *file = fopen(argv[i], "r");
        if (file == NULL) {
            run_line("the command line", 1, argv[i]);
            continue;
        }
        for (int number = 1; fgets(line, sizeof line, file) != NULL; number++) {
            line[strcspn(line, "#\n")] = '\0';
            if (line[strspn(line, " ")] != '\0') run_line(argv[i], number, line);
        }
        fclose(file);
    }
    device_close(gpu);
    dw_context_destroy(context);
    return 0;
}
