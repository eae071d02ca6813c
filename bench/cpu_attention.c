/* usage: cpu_attention [THREADS [LEVEL [SHAPE [FORMAT [PAGE]]]]]    0 and "" stand for what is not said; SHAPE counts from 1; FORMAT: f32, bf16, f16; PAGE: keys of a page
 * Attention alone: causal prefill in GFLOP/s of the pairs that are seen, and decoding of one token in GB/s of keys and values, which rotate through
 * half a gigabyte so that caches do not hold them, beside a read-bandwidth probe. With PAGE keys and values lie in pages in an order of chance, and the line before it is that of the
 * same call without, which it takes turns with. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/device.h"

enum { ROTATE_BYTES = 512 << 20 };

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

/* Does the row take operands and a result of the format? */
static bool takes(dw_context *context, const kernel_row *row, dw_format format) {
    dim_table *dims;
    text why;
    check(dim_table_create(context, &dims), context);
    text_init(&why, context);
    op_type type = {.format = format, .rank = 4};
    for (int i = 0; i < 4; i++) type.dims[i] = dim_constant(dims, 64);
    const op_attrs none = {0, NULL};
    const op_type *in[] = {&type, &type, &type}, *out[] = {&type};
    const kernel_problem problem = {.context = context, .op = op_get(OP_attention), .attrs = &none, .dims = dims, .n_in = 3, .in = in, .n_out = 1, .out = out};
    const bool taken = row->reject(&problem, &why) == NULL;
    text_free(&why);
    dim_table_destroy(dims);
    return taken;
}

static const kernel_row *best_row(dw_context *context, const device *device, dw_format format) {
    for (int i = 0; i < kernel_count(); i++) {
        const kernel_row *row = kernel_at(i);
        if (row->op == OP_attention && row->device == CHIP_CPU && (row->needs & ~device->caps.features) == 0 && takes(context, row, format)) return row;
    }
    return NULL;
}

typedef struct shape { int64_t heads, groups, s, t, d; } shape;
typedef struct bench { dw_context *context; device *device; dw_format format; int64_t page; } bench;

/* Numbers of the format. */
static void fill(dw_format format, size_t count, uint64_t seed, void *to) {
    for (size_t i = 0; i < count; i++) num_store(format, to, (int64_t)i, num_random_normal(seed, i), true);
}

/* Pages in an order of chance. */
static void shuffle(int64_t count, int32_t *table) {
    for (int64_t i = 0; i < count; i++) table[i] = (int32_t)i;
    for (int64_t i = count - 1; i > 0; i--) {
        const int64_t j = (int64_t)(num_random(9, (uint64_t)i) % (uint64_t)(i + 1));
        const int32_t other = table[i];
        table[i] = table[j];
        table[j] = other;
    }
}

typedef struct timing { double best_s, total_s; int calls; } timing;

static void time_call(const kernel_row *row, const kernel_run *run, timing *t) {
    const double at = now_s();
    check(row->run(run), run->call.context);
    const double took = now_s() - at;
    t->total_s += took;
    t->calls++;
    if (t->best_s == 0 || took < t->best_s) t->best_s = took;
}

static void report(const bench *b, const shape *z, const timing *t, size_t kv_bytes, double probe, bool paged) {
    const double pairs = (double)z->s * (double)(z->t - z->s) + (double)z->s * (double)(z->s + 1) / 2, flops = 4.0 * (double)(z->heads * z->d) * pairs;
    printf("%s%s h=%-3lld g=%-3lld s=%-5lld t=%-5lld d=%-4lld %9.1f (%.1f) us %8.1f GFLOP/s %6.1f GB/s of %.1f\n", dw_format_name(b->format), paged ? " pages" : "", (long long)z->heads,
           (long long)z->groups, (long long)z->s, (long long)z->t, (long long)z->d, t->best_s * 1e6, t->total_s / t->calls * 1e6, flops / t->best_s * 1e-9,
           (double)kv_bytes / t->best_s * 1e-9, probe);
}

/* heads queries of s tokens, the last of t; k and v of groups heads. */
static void measure(const bench *b, const shape *z) {
    const kernel_row *row = best_row(b->context, b->device, b->format);
    const int64_t page = b->page > 0 ? b->page : z->t, pages = z->t / page;
    const int64_t q_dims[] = {1, z->heads, z->s, z->d}, k_dims[] = {1, z->groups, z->t, z->d}, paged_dims[] = {pages, z->groups, page, z->d}, table_dims[] = {1, pages};
    const size_t bytes = (size_t)dw_format_bits(b->format) / 8, q_count = (size_t)(z->heads * z->s * z->d), k_count = (size_t)(z->groups * z->t * z->d), kv_bytes = 2 * k_count * bytes;
    const int copies = z->s == 1 ? (int)(ROTATE_BYTES / kv_bytes) + 2 : 1;
    uint8_t *q = aligned_alloc(64, base_align_up(2 * q_count * bytes, 64)), *kv = aligned_alloc(4096, base_align_up(kv_bytes * (size_t)copies, 4096));
    int32_t *entries = malloc((size_t)(pages + 1) * sizeof *entries);
    if (q == NULL || kv == NULL || entries == NULL) exit(1);
    fill(b->format, q_count, 1, q);
    fill(b->format, 2 * k_count, 2, kv);
    for (int i = 1; i < copies; i++) memcpy(kv + kv_bytes * (size_t)i, kv, kv_bytes);
    shuffle(pages, entries);
    dw_tensor in_q, k, v, table, out;
    op_tensor_init(&in_q, b->format, DW_SCALE_plain, 4, q_dims, q);
    op_tensor_init(&out, b->format, DW_SCALE_plain, 4, q_dims, q + q_count * bytes);
    op_tensor_init(&table, DW_FORMAT_i32, DW_SCALE_plain, 2, table_dims, entries);
    dim_table *dims;
    check(dim_table_create(b->context, &dims), b->context);
    const op_attr items[] = {op_set_bool(OP_ATTR_causal, true), op_set_dim(OP_ATTR_offset, dim_constant(dims, z->t - z->s)), op_set_real(OP_ATTR_scale, 0.125)};
    const op_attrs attrs = {COUNT_OF(items), items};
    const dw_tensor *in[ATTENTION_OPERANDS] = {&in_q, &k, &v}, *results[] = {&out};
    kernel_run run = {.call = {b->context, op_get(OP_attention), &attrs, NULL, 3, in, 1, results, 0, NULL}, .pool = b->device->pool, .chip = &b->device->caps};
    chip_caps caps = {0};
    check(device_measure_cpu(b->context, b->device->pool, &caps), b->context);
    timing times[2] = {{0}};
    int calls = 0;
    for (double start = now_s(); now_s() - start < 0.3 || calls < 4; calls++) {
        const bool paged = b->page > 0 && calls % 2 == 1;
        uint8_t *here = kv + kv_bytes * (size_t)(calls % copies);
        op_tensor_init(&k, b->format, DW_SCALE_plain, 4, paged ? paged_dims : k_dims, here);
        op_tensor_init(&v, b->format, DW_SCALE_plain, 4, paged ? paged_dims : k_dims, here + k_count * bytes);
        in[ATTENTION_TABLE] = paged ? &table : NULL;
        run.call.n_in = paged ? (int)ATTENTION_OPERANDS : 3;
        time_call(row, &run, &times[paged]);
    }
    for (int i = 0; i < (b->page > 0 ? 2 : 1); i++) report(b, z, &times[i], kv_bytes, chip_bytes_per_s(&caps) * 1e-9, i == 1);
    dim_table_destroy(dims);
    free(entries);
    free(q);
    free(kv);
}

int main(int argc, char **argv) {
    dw_context_options options = {.threads = argc > 1 ? atoi(argv[1]) : 0};
    dw_context *context;
    if (dw_context_create(&options, &context) != DW_OK) return 1;
    const char *level = argc > 2 ? argv[2] : "";
    size_t only = argc > 3 ? (size_t)atol(argv[3]) : 0;
    bench b = {.context = context, .format = argc > 4 ? dw_format_find(argv[4]) : DW_FORMAT_f32, .page = argc > 5 ? atol(argv[5]) : 0};
    char name[64];
    snprintf(name, sizeof name, "cpu%s%s", level[0] != '\0' ? ":" : "", level);
    if (b.format != DW_FORMAT_f32 && b.format != DW_FORMAT_bf16 && b.format != DW_FORMAT_f16) return fprintf(stderr, "FORMAT is f32, bf16 or f16\n"), 2;
    check(device_open(context, name, &b.device), context);
    printf("%s, %d threads\n", b.device->caps.name, dw_context_threads(context));
    static const shape shapes[] = {{12, 12, 1, 512, 64}, {12, 12, 1, 4096, 64}, {32, 8, 1, 512, 128}, {32, 8, 1, 4096, 128}, {12, 12, 128, 128, 64}, {12, 12, 512, 512, 64},
                                   {32, 8, 512, 512, 128}, {32, 8, 2048, 2048, 128}, {12, 12, 2048, 2048, 64}, {12, 12, 8192, 8192, 64}};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        if (only == 0 || only == i + 1) measure(&b, &shapes[i]);
    }
    device_close(b.device);
    dw_context_destroy(context);
    return 0;
}
