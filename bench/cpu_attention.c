/* usage: cpu_attention [THREADS [LEVEL [SHAPE]]]    0 and "" stand for what is not said; SHAPE counts from 1
 * Attention alone: causal prefill in GFLOP/s of the pairs that are seen, and decoding of one token in GB/s of keys and values, which rotate through
 * half a gigabyte so that caches do not hold them, beside a read-bandwidth probe. */
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

static const kernel_row *best_row(const device *device) {
    for (int i = 0; i < kernel_count(); i++) {
        const kernel_row *row = kernel_at(i);
        if (row->op == OP_attention && row->device == CHIP_CPU && (row->needs & ~device->caps.features) == 0) return row;
    }
    return NULL;
}

/* heads queries of s tokens, the last of t; k and v of groups heads. */
static void measure(dw_context *context, device *device, int64_t heads, int64_t groups, int64_t s, int64_t t, int64_t d) {
    const kernel_row *row = best_row(device);
    const int64_t q_dims[] = {1, heads, s, d}, k_dims[] = {1, groups, t, d};
    size_t q_floats = (size_t)(heads * s * d), k_floats = (size_t)(groups * t * d);
    int copies = s == 1 ? (int)(ROTATE_BYTES / (2 * k_floats * sizeof(float))) + 2 : 1;
    float *q = aligned_alloc(64, base_align_up(q_floats * 8, 64)), *kv = aligned_alloc(4096, base_align_up(2 * k_floats * sizeof(float) * (size_t)copies, 4096));
    if (q == NULL || kv == NULL) exit(1);
    for (size_t i = 0; i < q_floats; i++) q[i] = num_random_normal(1, i);
    for (size_t i = 0; i < 2 * k_floats; i++) kv[i] = num_random_normal(2, i);
    for (int i = 1; i < copies; i++) memcpy(kv + 2 * k_floats * (size_t)i, kv, 2 * k_floats * sizeof(float));
    dw_tensor in_q, k, v, out;
    op_tensor_init(&in_q, DW_FORMAT_f32, DW_SCALE_plain, 4, q_dims, q);
    op_tensor_init(&out, DW_FORMAT_f32, DW_SCALE_plain, 4, q_dims, q + q_floats);
    dim_table *dims;
    check(dim_table_create(context, &dims), context);
    const op_attr items[] = {op_set_bool(OP_ATTR_causal, true), op_set_dim(OP_ATTR_offset, dim_constant(dims, t - s)), op_set_real(OP_ATTR_scale, 0.125)};
    const op_attrs attrs = {COUNT_OF(items), items};
    const dw_tensor *in[] = {&in_q, &k, &v}, *results[] = {&out};
    kernel_run run = {.call = {context, op_get(OP_attention), &attrs, NULL, 3, in, 1, results, 0}, .pool = device->pool, .chip = &device->caps};
    chip_caps caps = {0};
    check(device_measure_cpu(context, device->pool, &caps), context);
    double best = 1e9, total = 0;
    int calls = 0;
    for (double start = now_s(); now_s() - start < 0.3 || calls < 3; calls++) {
        float *here = kv + 2 * k_floats * (size_t)(calls % copies);
        op_tensor_init(&k, DW_FORMAT_f32, DW_SCALE_plain, 4, k_dims, here);
        op_tensor_init(&v, DW_FORMAT_f32, DW_SCALE_plain, 4, k_dims, here + k_floats);
        double at = now_s();
        check(row->run(&run), context);
        double took = now_s() - at;
        total += took;
        if (took < best) best = took;
    }
    double pairs = (double)s * (double)(t - s) + (double)s * (double)(s + 1) / 2, flops = 4.0 * (double)(heads * d) * pairs;
    printf("h=%-3lld g=%-3lld s=%-5lld t=%-5lld d=%-4lld %9.1f (%.1f) us %8.1f GFLOP/s %6.1f GB/s of %.1f\n", (long long)heads, (long long)groups, (long long)s,
           (long long)t, (long long)d, best * 1e6, total / calls * 1e6, flops / best * 1e-9, 2.0 * (double)k_floats * 4 / best * 1e-9, chip_bytes_per_s(&caps) * 1e-9);
    dim_table_destroy(dims);
    free(q);
    free(kv);
}

int main(int argc, char **argv) {
    dw_context_options options = {.threads = argc > 1 ? atoi(argv[1]) : 0};
    dw_context *context;
    if (dw_context_create(&options, &context) != DW_OK) return 1;
    const char *level = argc > 2 ? argv[2] : "";
    size_t only = argc > 3 ? (size_t)atol(argv[3]) : 0;
    char name[64];
    snprintf(name, sizeof name, "cpu%s%s", level[0] != '\0' ? ":" : "", level);
    device *device;
    check(device_open(context, name, &device), context);
    printf("%s, %d threads\n", device->caps.name, dw_context_threads(context));
    static const int64_t shapes[][5] = {{12, 12, 1, 512, 64}, {12, 12, 1, 4096, 64}, {32, 8, 1, 512, 128}, {32, 8, 1, 4096, 128},
                                        {12, 12, 128, 128, 64}, {12, 12, 512, 512, 64}, {32, 8, 512, 512, 128}, {32, 8, 2048, 2048, 128}};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        if (only == 0 || only == i + 1) measure(context, device, shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], shapes[i][4]);
    }
    device_close(device);
    dw_context_destroy(context);
    return 0;
}
