/* usage: cpu_products [THREADS [LEVEL]]     for bench/cpu_products.py, which takes turns with PyTorch
 * One product after the other, of operands that are no constants. A line of the input "FORMAT RESULT AT BT BATCHES M K N PACKED" sets one up, with b packed beforehand where PACKED is 1;
 * each line "run" runs it and answers with the seconds it took and a sum of the result. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/device.h"

typedef struct bench {
    dw_context *context;
    device *device;
    dim_table *dims;
} bench;

typedef struct product {
    const kernel_row *row;
    dw_tensor a, b, out;
    const dw_tensor *in[2], *results[1];
    op_attr items[3];
    op_attrs attrs;
    kernel_run run;
    void *memory[5];
} product;

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

static void *room(size_t bytes) {
    void *memory = aligned_alloc(4096, base_align_up(bytes + 64, 4096));
    if (memory == NULL) exit(1);
    memset(memory, 0, bytes);
    return memory;
}

static void *fill(dw_format format, size_t count, uint64_t seed) {
    void *memory = room(count * (size_t)dw_format_bits(format) / 8);
    for (size_t i = 0; i < count; i++) num_store(format, memory, (int64_t)i, (double)(int)(num_random(seed, i) >> 40 & 0xff) / 128 - 1, true);
    return memory;
}

/* The first row of products in f32 or bf16 that the device has. */
static const kernel_row *best_row(const bench *b, dw_format format) {
    const char *family = format == DW_FORMAT_bf16 ? "matmul_bf16" : "matmul_f32";
    for (int i = 0; i < kernel_count(); i++) {
        const kernel_row *row = kernel_at(i);
        if (row->op == OP_matmul && row->device == CHIP_CPU && (row->needs & ~b->device->caps.features) == 0 && strncmp(row->name, family, strlen(family)) == 0) return row;
    }
    exit(1);
}

static void pack(const bench *b, product *p) {
    op_type types[3];
    const op_type *in[2] = {&types[0], &types[1]}, *out[1] = {&types[2]};
    const dw_tensor *tensors[3] = {&p->a, &p->b, &p->out};
    for (int i = 0; i < 3; i++) {
        types[i] = (op_type){.format = tensors[i]->format, .rank = tensors[i]->rank};
        for (int axis = 0; axis < tensors[i]->rank; axis++) types[i].dims[axis] = dim_constant(b->dims, tensors[i]->dims[axis]);
    }
    const kernel_problem problem = {.context = b->context, .op = op_get(OP_matmul), .attrs = &p->attrs, .dims = b->dims, .n_in = 2, .in = in, .n_out = 1, .out = out, .constant_in = 2};
    kernel_packing packing;
    if (!p->row->packing(&problem, &p->b, &packing)) exit(1);
    p->memory[4] = room(packing.bytes);
    check(packing.run(&packing, b->context, b->device->pool, &p->b, p->memory[4]), b->context);
    p->run.packed = p->memory[4];
    p->run.is_packed = true;
}

static void set_up(const bench *b, const char *line, product *p) {
    char a_name[32], out_name[32];
    int at, bt, packed;
    long long batches, m, k, n;
    for (size_t i = 0; i < COUNT_OF(p->memory); i++) free(p->memory[i]);
    memset(p, 0, sizeof *p);
    if (sscanf(line, "%31s %31s %d %d %lld %lld %lld %lld %d", a_name, out_name, &at, &bt, &batches, &m, &k, &n, &packed) != 9) exit(2);
    const dw_format format = dw_format_find(a_name), out = dw_format_find(out_name);
    const int64_t a_dims[] = {batches, at ? k : m, at ? m : k}, b_dims[] = {batches, bt ? n : k, bt ? k : n}, out_dims[] = {batches, m, n};
    const int skip = batches == 1;
    p->row = best_row(b, format);
    p->memory[0] = fill(format, (size_t)(batches * m * k), 1);
    p->memory[1] = fill(format, (size_t)(batches * k * n), 2);
    p->memory[2] = room((size_t)(batches * m * n) * (size_t)dw_format_bits(out) / 8);
    op_tensor_init(&p->a, format, DW_SCALE_plain, 3 - skip, a_dims + skip, p->memory[0]);
    op_tensor_init(&p->b, format, DW_SCALE_plain, 3 - skip, b_dims + skip, p->memory[1]);
    op_tensor_init(&p->out, out, DW_SCALE_plain, 3 - skip, out_dims + skip, p->memory[2]);
    p->in[0] = &p->a;
    p->in[1] = &p->b;
    p->results[0] = &p->out;
    p->items[0] = op_set_bool(OP_ATTR_at, at != 0);
    p->items[1] = op_set_bool(OP_ATTR_bt, bt != 0);
    p->attrs = (op_attrs){2, p->items};
    p->run = (kernel_run){.call = {b->context, op_get(OP_matmul), &p->attrs, NULL, 2, p->in, 1, p->results, 0, NULL}, .pool = b->device->pool, .chip = &b->device->caps};
    if (packed) pack(b, p);
    p->memory[3] = room(p->row->workspace(&p->run));
    p->run.workspace = p->memory[3];
}

int main(int argc, char **argv) {
    dw_context_options options = {.threads = argc > 1 ? atoi(argv[1]) : 0};
    bench b = {0};
    if (dw_context_create(&options, &b.context) != DW_OK) return 1;
    char name[64], line[256];
    snprintf(name, sizeof name, "cpu%s%s", argc > 2 ? ":" : "", argc > 2 ? argv[2] : "");
    check(device_open(b.context, name, &b.device), b.context);
    check(dim_table_create(b.context, &b.dims), b.context);
    product p = {0};
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (strcmp(line, "run\n") != 0) {
            set_up(&b, line, &p);
            continue;
        }
        const double at = now_s();
        check(p.row->run(&p.run), b.context);
        const double took = now_s() - at;
        double sum = 0;
        for (int64_t i = 0; i < 64 && i < op_tensor_count(&p.out); i++) sum += num_load(p.out.format, p.out.data, i);
        printf("%.9f %.9g\n", took, sum);
        fflush(stdout);
    }
    for (size_t i = 0; i < COUNT_OF(p.memory); i++) free(p.memory[i]);
    dim_table_destroy(b.dims);
    device_close(b.device);
    dw_context_destroy(b.context);
    return 0;
}
