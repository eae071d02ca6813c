/* usage: cpu_gemm [THREADS [LEVEL [ROWS [FORMAT]]]]    0 and "" stand for what is not said
 * The CPU's matrix product alone: GFLOP/s and GB/s of weights for the shapes of a small and a large model, each beside a read-bandwidth probe
 * taken right before it. Weights rotate through half a gigabyte for few rows, so that caches do not hold them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/device.h"
#include "kernels/gemm/cpu/gemm.h"

enum { ROTATE_BYTES = 512 << 20 };

static double now_s(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

typedef struct product { gemm_slice slice; } product;

static void slice_of(const gemm_job *job, int64_t index, gemm_slice *slice) {
    (void)index;
    *slice = ((const product *)job->owner)->slice;
}

static void check(dw_status status, const dw_context *context) {
    if (status == DW_OK) return;
    fprintf(stderr, "%s\n", dw_context_error(context));
    exit(1);
}

static double bandwidth(dw_context *context, pool *pool) {
    chip_caps caps = {0};
    check(device_measure_cpu(context, pool, &caps), context);
    return chip_bytes_per_s(&caps);
}

static void measure(dw_context *context, const device *device, dw_format format, gemm_compute compute, int64_t m, int64_t n, int64_t k) {
    gemm_pack pack;
    if (!gemm_pack_init(&pack, format, compute, k, n, 1, GEMM_TRANSPOSED)) return;
    int copies = m <= 16 ? (int)(ROTATE_BYTES / pack.bytes) + 2 : 1;
    const int64_t dims[2] = {n, k};
    num_parts parts;
    num_layout(format, DW_SCALE_plain, 2, dims, &parts);
    uint8_t *raw = calloc(1, parts.total_bytes + 64), *packed = aligned_alloc(4096, base_align_up((pack.bytes + 64) * (size_t)copies, 4096));
    float *a = aligned_alloc(64, (size_t)(m * k + 64) * 4), *c = aligned_alloc(64, (size_t)(m * n) * 4);
    memset(a, 0, (size_t)(m * k + 64) * 4);
    dw_tensor weight;
    op_tensor_init(&weight, format, DW_SCALE_plain, 2, dims, raw);
    for (size_t i = 0; i < parts.data_bytes; i++) raw[i] = (uint8_t)((num_random(7, i) & 0x3b) | 8);   /* normal numbers, of any format: others take longer */
    if (weight.scales != NULL) memset(weight.scales, 120, parts.scale_bytes);
    size_t step = base_align_up(pack.bytes, 64);
    gemm_pack_run(&pack, NULL, &weight, device->pool, packed);
    for (int i = 1; i < copies; i++) memcpy(packed + step * (size_t)i, packed, pack.bytes);
    product p = {.slice = {.rows = m, .a = a, .out = c}};
    gemm_job job = {.isa = gemm_isa_of(&device->caps), .compute = compute, .pack = pack, .a_stride = k, .slices = 1, .rows_max = m, .slice = slice_of,
                    .owner = &p, .out_format = DW_FORMAT_f32, .out_row_stride = n, .n_out = n};
    double before = bandwidth(context, device->pool), best = 1e9, total = 0;
    int calls = 0;
    for (double start = now_s(); now_s() - start < 0.3 || calls < 3; calls++) {
        p.slice.panels = packed + step * (size_t)(calls % copies) + GEMM_HEADER_BYTES;
        double at = now_s();
        gemm_run(&job, device->pool);
        double took = now_s() - at;
        total += took;
        if (took < best) best = took;
    }
    double flops = 2.0 * (double)m * (double)n * (double)k;
    printf("%-10s %-5s m=%-4lld n=%-6lld k=%-6lld %8.1f (%.1f) GFLOP/s  %6.1f GB/s of %.1f\n", dw_format_name(format), compute == GEMM_F32 ? "f32" : "bf16", (long long)m,
           (long long)n, (long long)k, flops / best * 1e-9, flops * calls / total * 1e-9, (double)pack.bytes / best * 1e-9, before * 1e-9);
    free(raw);
    free(packed);
    free(a);
    free(c);
}

int main(int argc, char **argv) {
    dw_context_options options = {.threads = argc > 1 ? atoi(argv[1]) : 0};
    dw_context *context;
    if (dw_context_create(&options, &context) != DW_OK) return 1;
    char name[64];
    const char *level = argc > 2 ? argv[2] : "", *only = argc > 4 ? argv[4] : "";
    const int64_t only_rows = argc > 3 ? atol(argv[3]) : 0;
    snprintf(name, sizeof name, "cpu%s%s", level[0] != '\0' ? ":" : "", level);
    device *device;
    check(device_open(context, name, &device), context);
    printf("%s, %d threads\n", device->caps.name, dw_context_threads(context));
    static const struct { dw_format format; gemm_compute compute; } kinds[] = {
        {DW_FORMAT_f32, GEMM_F32}, {DW_FORMAT_bf16, GEMM_BF16}, {DW_FORMAT_mxfp8, GEMM_BF16}, {DW_FORMAT_mxfp4, GEMM_BF16}, {DW_FORMAT_nvfp4, GEMM_BF16},
        {DW_FORMAT_mxfp8, GEMM_F32}, {DW_FORMAT_nvfp4, GEMM_F32}};
    static const int64_t shapes[][2] = {{2304, 768}, {768, 768}, {3072, 768}, {768, 3072}, {4096, 4096}};
    static const int64_t all_rows[] = {1, 4, 8, 16, 512};
    const int64_t *rows = only_rows > 0 ? &only_rows : all_rows;
    for (size_t r = 0; r < (only_rows > 0 ? 1 : COUNT_OF(all_rows)); r++) {
        for (size_t s = 0; s < COUNT_OF(shapes); s++) {
            for (size_t i = 0; i < COUNT_OF(kinds); i++) {
                if (only[0] != '\0' && strcmp(only, dw_format_name(kinds[i].format)) != 0) continue;
                measure(context, device, kinds[i].format, kinds[i].compute, rows[r], shapes[s][0], shapes[s][1]);
            }
        }
    }
    device_close(device);
    dw_context_destroy(context);
    return 0;
}
