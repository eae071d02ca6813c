/* usage: cpu_kernels [--threads N] FILE | LINE..
 * Times every kernel that accepts a line of conformance (kernel_case in kernel.h) beside a copy of as many bytes by memcpy over the same threads, turn by turn:
 * the best of each, and how near the kernel comes. Bytes are those of the op's work: each operand read once, each result written once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/device.h"
#include "kernel/kernel.h"

enum { PROBE_TASK_BYTES = 1 << 17, LINE_BYTES = 1024, LEAST_TURNS = 5, MOST_TURNS = 2000 };
static const double TURN_SECONDS = 0.4;     /* of all turns of a kernel together */

static double now_s(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void check(dw_status status, const dw_context *context) {
    if (status == DW_OK) return;
    fprintf(stderr, "%s\n", dw_context_error(context));
    exit(1);
}

static void *memory_of(size_t bytes) {
    void *memory = aligned_alloc(4096, base_align_up(bytes + 64, 4096));
    if (memory == NULL) {
        fprintf(stderr, "cpu_kernels: %zu bytes cannot be had\n", bytes);
        exit(1);
    }
    return memory;
}

typedef struct bench {
    dw_context *context;
    pool *pool;
    chip_caps chip;
} bench;

typedef struct probe { uint8_t *to, *from; size_t bytes; } probe;

static void probe_task(void *argument, int64_t task, int worker) {
    (void)worker;
    const probe *p = argument;
    size_t begin = (size_t)task * PROBE_TASK_BYTES, count = p->bytes - begin < PROBE_TASK_BYTES ? p->bytes - begin : PROBE_TASK_BYTES;
    memcpy(p->to + begin, p->from + begin, count);
}

static double probe_s(const bench *b, probe *p) {
    double start = now_s();
    pool_run(b->pool, (int64_t)((p->bytes + PROBE_TASK_BYTES - 1) / PROBE_TASK_BYTES), probe_task, p);
    return now_s() - start;
}

static void fill(const kernel_case *c, int index, dw_tensor *t) {
    int64_t count = op_tensor_count(t);
    num_class class = num_info(t->format)->class;
    if (class == NUM_BLOCK) {
        num_parts parts;
        num_layout(t->format, t->scale_layout, t->rank, t->dims, &parts);
        memset(t->data, 0x22, parts.data_bytes);
        memset(t->scales, 0x70, parts.scale_bytes);
        if (t->second != NULL) t->second[0] = 1;
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        double value = c->ranges[index].given ? c->ranges[index].low + num_random_uniform(1, (uint64_t)i) * (c->ranges[index].high - c->ranges[index].low)
                                              : (double)num_random_uniform(1, (uint64_t)i) * 4 - 2;
        kernel_case_element(c, index, 1, i, t->rank > 0 ? t->dims[t->rank - 1] : 1, &value);
        num_store(t->format, t->data, i, class == NUM_FLOAT ? value : (double)(int64_t)value, true);
    }
}

static void measure(const bench *b, const kernel_case *c, const kernel_row *row, const kernel_problem *problem, kernel_run *run) {
    void *packed = NULL;
    dw_tensor hidden;
    const dw_tensor **in = (const dw_tensor **)run->call.in, *weight = NULL;
    run->packed = NULL;
    run->is_packed = row->packs >= 0 && (c->constant >> row->packs & 1) != 0;
    if (run->is_packed) {
        kernel_packing packing = {0};
        weight = in[row->packs];
        if (!row->packing(problem, weight, &packing)) return;
        packed = memory_of(packing.bytes);
        check(packing.run(&packing, b->context, b->pool, weight, packed), b->context);
        hidden = *weight;
        hidden.data = NULL;
        in[row->packs] = &hidden;
        run->packed = packed;
    }
    run->workspace = memory_of(kernel_workspace(row, run));
    op_work work = {0};
    c->op->work(&run->call, &work);
    double bytes = work.bytes_read + work.bytes_written, best = 1e9, best_probe = 1e9, start = now_s();
    probe p = {.bytes = (size_t)(bytes / 2) + 1};
    p.to = memory_of(p.bytes);
    p.from = memory_of(p.bytes);
    memset(p.from, 1, p.bytes);
    memset(p.to, 1, p.bytes);
    for (int turn = 0; turn < LEAST_TURNS || (turn < MOST_TURNS && now_s() - start < TURN_SECONDS); turn++) {
        double begin = now_s();
        check(kernel_execute(row, run), b->context);
        double took = now_s() - begin, took_probe = probe_s(b, &p);
        if (took < best) best = took;
        if (took_probe < best_probe) best_probe = took_probe;
    }
    printf("%-26s %9.1f us %7.1f GB/s  memcpy %7.1f GB/s  %5.2f  %s\n", row->name, best * 1e6, bytes / best * 1e-9, bytes / best_probe * 1e-9,
           best_probe / best, c->line);
    if (weight != NULL) in[row->packs] = weight;
    free(packed);
    free(run->workspace);
    free(p.to);
    free(p.from);
}

static void run_case(const bench *b, const kernel_case *c) {
    dw_tensor in[KERNEL_CASE_OPERANDS], out[KERNEL_CASE_RESULTS];
    const dw_tensor *in_pointers[KERNEL_CASE_OPERANDS] = {0}, *out_pointers[KERNEL_CASE_RESULTS];
    void *memory[KERNEL_CASE_OPERANDS + KERNEL_CASE_RESULTS] = {0};
    num_parts parts;
    for (int i = 0; i < c->n_in + c->n_out; i++) {
        const op_type *type = i < c->n_in ? c->in[i] : c->out[i - c->n_in];
        dw_tensor *t = i < c->n_in ? &in[i] : &out[i - c->n_in], shape;
        if (type == NULL) continue;
        check(op_tensor_bind(b->context, type, NULL, NULL, &shape), b->context);
        num_layout(shape.format, shape.scale_layout, shape.rank, shape.dims, &parts);
        memory[i] = memory_of(parts.total_bytes);
        memset(memory[i], 0, parts.total_bytes);
        op_tensor_init(t, shape.format, shape.scale_layout, shape.rank, shape.dims, memory[i]);
        if (i < c->n_in) {
            fill(c, i, t);
            in_pointers[i] = t;
        } else {
            out_pointers[i - c->n_in] = t;
        }
    }
    kernel_problem problem = {.context = b->context, .op = c->op, .attrs = &c->attrs, .post = c->post, .n_in = c->n_in, .n_out = c->n_out, .in = c->in,
                              .out = c->out, .constant_in = c->constant, .dims = c->dims, .chip = &b->chip};
    for (int i = 0; i < kernel_count(); i++) {
        const kernel_row *row = kernel_at(i);
        if (row->op != c->op->id || row->reference || row->device != CHIP_CPU) continue;
        text why;
        text_init(&why, b->context);
        bool accepted = kernel_refusal(row, NULL, &problem, &why) == NULL;
        text_free(&why);
        kernel_run run = {.call = {b->context, c->op, &c->attrs, NULL, c->n_in, in_pointers, c->n_out, out_pointers, 0, NULL}, .post = c->post, .pool = b->pool,
                          .chip = &b->chip};
        if (accepted) measure(b, c, row, &problem, &run);
    }
    for (int i = 0; i < c->n_in + c->n_out; i++) free(memory[i]);
}

static void run_line(const bench *b, const char *source, int number, const char *line) {
    arena arena;
    arena_init(&arena, b->context);
    dim_table *dims;
    kernel_case c;
    check(dim_table_create(b->context, &dims), b->context);
    check(kernel_case_parse(&arena, dims, source, number, line, &c), b->context);
    run_case(b, &c);
    dim_table_destroy(dims);
    arena_free(&arena);
}

static void run_file(const bench *b, const char *path) {
    char line[LINE_BYTES];
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        fprintf(stderr, "cpu_kernels: %s cannot be opened\n", path);
        exit(1);
    }
    for (int number = 1; fgets(line, sizeof line, file) != NULL; number++) {
        line[strcspn(line, "#\n")] = '\0';
        if (line[strspn(line, " ")] != '\0') run_line(b, path, number, line);
    }
    fclose(file);
}

int main(int argc, char **argv) {
    bench b = {0};
    int threads = 2, first = 1;
    if (argc > 2 && strcmp(argv[1], "--threads") == 0) {
        threads = atoi(argv[2]);
        first = 3;
    }
    if (argc <= first) {
        fprintf(stderr, "usage: cpu_kernels [--threads N] FILE | LINE..\n");
        return 2;
    }
    check(dw_context_create(NULL, &b.context), NULL);
    check(pool_create(b.context, threads, &b.pool), b.context);
    check(device_probe_cpu(b.context, "", threads, &b.chip), b.context);
    if (strstr(argv[first], ".txt") != NULL) {
        run_file(&b, argv[first]);
    } else {
        char line[LINE_BYTES] = "";
        for (int i = first; i < argc; i++) snprintf(line + strlen(line), sizeof line - strlen(line), "%s%s", i > first ? " " : "", argv[i]);
        run_line(&b, "line", 1, line);
    }
    pool_destroy(b.pool);
    dw_context_destroy(b.context);
    return 0;
}
