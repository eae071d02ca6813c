/* usage: cuda_matmul IMAGES check|time [FORMAT [M N K [WORDS [ENTRY,..]]]]
 * The Hopper matmul kernels alone, through the driver interface: each entry against the plain meaning of the product (largest error beside the largest
 * result, poisoned results, a guard behind them), and its time: a graph of calls over rotated inputs, median of replays. IMAGES: the folder of fatbins. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/cuda_matmul.h"
#include "device/cuda_abi.h"
#include "kernels/gemm/wgmma/wgmma.h"

static struct {
#define CUDA_CALL(name, since, needed, parameters) cuda_result(*name) parameters;
#include "device/cuda.def"
#undef CUDA_CALL
} cu;

#define CHECK(call) check(call, #call, __LINE__)
static void check(cuda_result result, const char *call, int line) {
    if (result == CUDA_OK) return;
    const char *words = "";
    cu.GetErrorName(result, &words);
    fprintf(stderr, "cuda_matmul.c:%d: %s: %s (%d)\n", line, call, words, (int)result);
    exit(1);
}

static cuda_stream stream;
static int multiprocessors;

static void open_device(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "no driver: %s\n", dlerror());
        exit(1);
    }
#define CUDA_CALL(name, since, needed, parameters) *(void **)&cu.name = dlsym(library, "cu" #name);
#include "device/cuda.def"
#undef CUDA_CALL
    cuda_device device;
    cuda_context context;
    CHECK(cu.Init(0));
    CHECK(cu.DeviceGet(&device, 0));
    CHECK(cu.DevicePrimaryCtxRetain(&context, device));
    CHECK(cu.CtxPushCurrent_v2(context));
    CHECK(cu.StreamCreateWithPriority(&stream, CUDA_STREAM_NON_BLOCKING, 0));
    CHECK(cu.DeviceGetAttribute(&multiprocessors, CUDA_DEVICE_MULTIPROCESSORS, device));
}

static cuda_library open_image(const char *folder, const char *stem) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s.fatbin", folder, stem);
    FILE *file = fopen(path, "rb");
    if (file == NULL) return NULL;
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file);
    rewind(file);
    void *code = malloc((size_t)bytes);
    if (fread(code, 1, (size_t)bytes, file) != (size_t)bytes) exit(1);
    fclose(file);
    cuda_library library;
    CHECK(cu.LibraryLoadData(&library, code, NULL, NULL, 0, NULL, NULL, 0));
    return library;
}

static cuda_function function_of(cuda_library library, const char *name, uint32_t shared_bytes) {
    cuda_kernel kernel;
    cuda_function function;
    CHECK(cu.LibraryGetKernel(&kernel, library, name));
    if (shared_bytes > 0) CHECK(cu.KernelSetAttribute(CUDA_FUNCTION_MAX_DYNAMIC_SHARED_BYTES, (int)shared_bytes, kernel, 0));
    CHECK(cu.KernelGetFunction(&function, kernel));
    return function;
}

static cuda_pointer device_memory(size_t bytes) {
    cuda_pointer memory;
    CHECK(cu.MemAlloc_v2(&memory, bytes < 256 ? 256 : bytes));
    return memory;
}

static void launch(cuda_function function, unsigned grid, unsigned block, unsigned shared, void **parameters) {
    cuda_launch_config config = {.grid_x = grid, .grid_y = 1, .grid_z = 1, .block_x = block, .block_y = 1, .block_z = 1, .shared_bytes = shared, .stream = stream};
    CHECK(cu.LaunchKernelEx(&config, function, parameters, NULL));
}

/* ---- formats and entries ---- */

typedef struct format_row {
    const char *name;
    int element, bits, scale_format, scale_bits, scale_fill, block_cols;
    int b_block_rows;             /* of b; of a it is 1 */
    int second_kind;
} format_row;

static const format_row formats[] = {
    {"bf16", MATMUL_bf16, 16, MATMUL_FORMAT_COUNT, 0, 0, 0, 0, 0},
    {"f16", MATMUL_f16, 16, MATMUL_FORMAT_COUNT, 0, 0, 0, 0, 0},
    {"e4m3", MATMUL_e4m3, 8, MATMUL_FORMAT_COUNT, 0, 0, 0, 0, 0},
    {"e4m3_block", MATMUL_e4m3, 8, MATMUL_f32, 32, MATMUL_FORMAT_COUNT, 128, 128, 0},
};
enum { FORMATS = sizeof formats / sizeof *formats };

typedef struct entry_row { const char *stem, *name; int format, parts, tile_m, tile_n, stages, boxes, pair, splits; bool blocks; } entry_row;

static const entry_row entries[] = {
#define MATMUL_TILE_HALF(name, tile_m, tile_n, stages, boxes, pair, splits, block_us, tile_us) {"matmul_bf16_sm90", "matmul_bf16_" #name, 0, 0, tile_m, tile_n, stages, boxes, pair, splits, false},
#define MATMUL_TURNS_HALF(name, tile_m, tile_n, stages, boxes, pair, block_us, tile_us) {"matmul_bf16_sm90", "matmul_bf16_" #name, 0, 0, tile_m, tile_n, stages, boxes, pair, 1, false},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_TILE_HALF
#undef MATMUL_TURNS_HALF
#define MATMUL_TILE_HALF(name, tile_m, tile_n, stages, boxes, pair, splits, block_us, tile_us) {"matmul_f16_sm90", "matmul_f16_" #name, 1, 0, tile_m, tile_n, stages, boxes, pair, splits, false},
#define MATMUL_TURNS_HALF(name, tile_m, tile_n, stages, boxes, pair, block_us, tile_us) {"matmul_f16_sm90", "matmul_f16_" #name, 1, 0, tile_m, tile_n, stages, boxes, pair, 1, false},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_TILE_HALF
#undef MATMUL_TURNS_HALF
#define MATMUL_TILE_BYTE(name, tile_m, tile_n, stages, boxes, pair, splits, block_us, tile_us) {"matmul_e4m3_sm90", "matmul_e4m3_" #name, 2, 0, tile_m, tile_n, stages, boxes, pair, splits, false},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_TILE_BYTE
#define MATMUL_BLOCKS_BYTE(name, tile_m, tile_n, stages, boxes, pair, block_us, tile_us)                                                                  \
    {"matmul_e4m3_sm90", "matmul_e4m3_" #name "_blocks", 2, 0, tile_m, tile_n, stages, boxes, pair, 1, true},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_BLOCKS_BYTE
#define MATMUL_TILE_SCALED(name, parts, tile_m, tile_n, stages, boxes, pair, splits, block_us, tile_us)                                                    \
    {"matmul_e4m3_block_sm90", "matmul_e4m3_block_" #name, 3, parts, tile_m, tile_n, stages, boxes, pair, splits, false},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_TILE_SCALED
#define MATMUL_BLOCKS_SCALED(name, parts, tile_m, tile_n, stages, boxes, pair, block_us, tile_us)                                                         \
    {"matmul_e4m3_block_sm90", "matmul_e4m3_block_" #name "_blocks", 3, parts, tile_m, tile_n, stages, boxes, pair, 1, true},
#include "kernels/gemm/wgmma/tiles.def"
#undef MATMUL_BLOCKS_SCALED
};
enum { ENTRIES = sizeof entries / sizeof *entries };

static cuda_function functions[ENTRIES], reference_kernel, compare_kernel, fill_kernel;

static uint32_t shared_bytes_of(const entry_row *e) {
    return (uint32_t)MATMUL_SHARED_BYTES(e->tile_m, e->tile_n, e->stages, e->boxes, formats[e->format].scale_format == MATMUL_f32);
}

static void load_kernels(const char *folder) {
    cuda_library library = NULL;
    for (int i = 0; i < ENTRIES; i++) {
        if (i == 0 || strcmp(entries[i].stem, entries[i - 1].stem) != 0) library = open_image(folder, entries[i].stem);
        if (library != NULL) functions[i] = function_of(library, entries[i].name, shared_bytes_of(&entries[i]));
    }
    library = open_image(folder, "cuda_matmul_reference");
    if (library == NULL) exit(1);
    reference_kernel = function_of(library, "bench_reference_kernel", 0);
    compare_kernel = function_of(library, "bench_compare_kernel", 0);
    fill_kernel = function_of(library, "bench_fill_kernel", 0);
}

/* ---- one problem ---- */

typedef struct problem {
    const format_row *format;
    int64_t m, n, k;
    int post[MATMUL_STEPS], post_count, out_format;
    bool odd_rows;                /* rows of the result that no tensor map describes */
    int block;                    /* 0, or the result is in blocks of so many e4m3: 128 or 32 */
} problem;

typedef struct data {
    bench_operand a, b;
    cuda_pointer out;
    matmul_epilogue epilogue;
    int64_t out_elements, out_bytes, scale_bytes;
} data;

static void fill(cuda_pointer memory, int format, int64_t count, uint64_t seed) {
    void *parameters[] = {&memory, &format, &count, &seed};
    if (count > 0) launch(fill_kernel, 1024, 256, 0, parameters);
}

static void make_operand(const format_row *f, int64_t rows, int64_t k, int block_rows, uint64_t seed, bench_operand *x) {
    *x = (bench_operand){.element = f->element, .scale_format = f->scale_format, .block_rows = block_rows, .block_cols = f->block_cols, .row_stride = k};
    int64_t bytes = rows * k * f->bits / 8;
    x->data = device_memory((size_t)bytes);
    fill(x->data, f->element, f->bits == 4 ? bytes : rows * k, seed);
    if (f->scale_format == MATMUL_FORMAT_COUNT) return;
    x->scale_stride = (k + f->block_cols - 1) / f->block_cols;
    int64_t scales = x->scale_stride * ((rows + block_rows - 1) / block_rows);
    x->scales = device_memory((size_t)(scales * f->scale_bits / 8));
    fill(x->scales, f->scale_fill, scales, seed + 1);
}

static bool halves(int step) { return step >= MATMUL_POST_swiglu; }

enum { GUARD = 4096 };

static void make_data(const problem *p, uint64_t seed, data *d) {
    *d = (data){0};
    make_operand(p->format, p->m, p->k, 1, seed, &d->a);
    make_operand(p->format, p->n, p->k, p->format->b_block_rows, seed + 100, &d->b);
    matmul_epilogue *e = &d->epilogue;
    e->halving = -1;
    e->count = p->post_count;
    e->alpha = p->format->element == MATMUL_e4m3 ? (p->format->scale_format == MATMUL_f32 ? 1.0f : 1e-4f) : 1.0f;
    e->alpha /= p->k > 0 ? (float)p->k / 64.0f : 1;
    e->out_format = p->out_format;
    for (int i = 0; i < p->post_count; i++)
        if (halves(p->post[i])) e->halving = i;
    int64_t n_out = e->halving >= 0 ? p->n / 2 : p->n;
    e->half = (int32_t)(p->n / 2);
    for (int i = 0; i < p->post_count; i++) {
        matmul_step *s = &e->steps[i];
        s->step = p->post[i];
        bool column = s->step == MATMUL_POST_bias, full = s->step == MATMUL_POST_add || s->step == MATMUL_POST_mul;
        s->format = full ? MATMUL_bf16 : MATMUL_f32;
        int64_t cols = e->halving >= 0 && i < e->halving ? p->n : n_out, count = column ? cols : full ? p->m * cols : 0;
        if (count == 0) continue;
        s->data = device_memory((size_t)count * 4);
        s->col_stride = 1;
        s->row_stride = full ? cols : 0;
        fill(s->data, s->format, count, seed + 200 + (uint64_t)i);
    }
    int64_t size = p->out_format == MATMUL_f32 ? 4 : 2;
    e->out_row_stride = p->odd_rows ? n_out + 1 : n_out;
    e->by_tma = e->out_row_stride * size % 16 == 0;
    if (p->block > 0) {
        e->block = p->block;
        e->by_tma = 0;
        e->scale_row_stride = (n_out + p->block - 1) / p->block;
        size = 1;
        d->scale_bytes = p->m * e->scale_row_stride * (p->block == 128 ? 4 : 1);
        e->scales = device_memory((size_t)d->scale_bytes);
        CHECK(cu.MemsetD8Async(e->scales, 0xff, (size_t)d->scale_bytes, stream));
    }
    d->out_elements = e->out_row_stride * p->m;
    d->out_bytes = size;
    d->out = e->out = device_memory((size_t)(d->out_elements * size + GUARD));
    CHECK(cu.MemsetD8Async(d->out, 0xff, (size_t)(d->out_elements * size + GUARD), stream));
}

static void free_data(data *d) {
    cuda_pointer all[] = {d->a.data, d->a.scales, d->a.second, d->b.data, d->b.scales, d->b.second, d->out, d->epilogue.scales};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] != 0) CHECK(cu.MemFree_v2(all[i]));
    for (int i = 0; i < d->epilogue.count; i++)
        if (d->epilogue.steps[i].data != 0) CHECK(cu.MemFree_v2(d->epilogue.steps[i].data));
}

static void encode(void *map, int format, uint64_t address, int64_t cols, int64_t rows, int64_t row_stride, uint32_t box_cols, uint32_t box_rows) {
    cuda_tensor_type type = format == MATMUL_f32 ? CUDA_TENSOR_F32 : format == MATMUL_bf16 ? CUDA_TENSOR_BF16 : format == MATMUL_f16 ? CUDA_TENSOR_F16 : CUDA_TENSOR_U8;
    uint64_t size = format == MATMUL_f32 ? 4 : type == CUDA_TENSOR_U8 ? 1 : 2, dims[] = {(uint64_t)cols, (uint64_t)rows}, strides[] = {(uint64_t)row_stride * size};
    uint32_t box[] = {box_cols, box_rows}, ones[] = {1, 1};
    _Alignas(128) cuda_tensor_map encoded;
    CHECK(cu.TensorMapEncodeTiled(&encoded, type, 2, (void *)address, dims, strides, box, ones, CUDA_INTERLEAVE_NONE, CUDA_SWIZZLE_128, CUDA_PROMOTION_256, CUDA_FILL_ZERO));
    memcpy(map, &encoded, sizeof encoded);
}

static int64_t units_down(const problem *p, const entry_row *e) { return (p->m + e->tile_m * e->pair - 1) / (e->tile_m * e->pair); }

static int64_t units_across(const problem *p, const data *d, const entry_row *e) {
    bool halved = d->epilogue.halving >= 0;
    int64_t end = halved ? p->n / 2 : p->n, step = halved ? e->tile_n / 2 : e->tile_n;
    return (end + step - 1) / step;
}

static void make_arguments(const problem *p, const data *d, const entry_row *entry, matmul_wgmma_arguments *g) {
    memset(g, 0, sizeof *g);
    g->epilogue = d->epilogue;
    g->a_rows = p->m < entry->tile_m ? ((int32_t)p->m + 7) / 8 * 8 : entry->tile_m;
    uint32_t depth = 128 * 8 / (uint32_t)p->format->bits;
    encode(g->map_a, p->format->element, d->a.data, p->k, p->m, p->k, depth, (uint32_t)g->a_rows);
    encode(g->map_b, p->format->element, d->b.data, p->k, p->n, p->k, depth, (uint32_t)entry->tile_n / 2);
    int64_t n_out = d->epilogue.halving >= 0 ? p->n / 2 : p->n;
    if (d->epilogue.by_tma) encode(g->map_out, p->out_format, d->out, n_out, p->m, d->epilogue.out_row_stride, 128 / (uint32_t)d->out_bytes, MATMUL_OUT_ROWS(false));
    g->a_scales = d->a.scales;
    g->b_scales = d->b.scales;
    g->a_scale_stride = d->a.scale_stride;
    g->b_scale_stride = d->b.scale_stride;
    g->m = (int32_t)p->m;
    g->n = (int32_t)p->n;
    g->k = (int32_t)p->k;
    g->units_m = (int32_t)units_down(p, entry);
    g->units_n = (int32_t)units_across(p, d, entry);
}

static unsigned grid_of(const problem *p, const data *d, const entry_row *e) {
    int64_t units = units_down(p, e) * units_across(p, d, e), cluster = e->pair * e->splits;
    int64_t most = e->splits > 1 ? units : multiprocessors / cluster;
    return (unsigned)((units < most ? units : most) * cluster);
}

static bool accepts(const data *d, const entry_row *e) {
    if (e->blocks != (d->epilogue.block > 0) || (e->blocks && d->epilogue.halving >= 0 && e->tile_n / 2 % d->epilogue.block != 0)) return false;
    if (e->blocks && e->tile_n == 256) {
        const int halving = d->epilogue.halving;
        return halving == 0 || (halving == 1 && d->epilogue.steps[0].step == MATMUL_POST_bias);
    }
    return d->epilogue.halving < 0 || ((e->parts == 0 || e->parts == 2) && (e->tile_n / 2 % 64 == 0 || e->splits > 1 || e->tile_n < 64));
}

/* only: words of which one is in the entry's name, with commas between them; NULL: any. */
static bool is_named(const entry_row *e, const char *only) {
    if (only == NULL) return true;
    for (const char *at = only; *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
        char word[64];
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at, ","), at);
        if (strstr(e->name, word) != NULL) return true;
    }
    return false;
}

/* ---- checking ---- */

static int failures;

static void check_entry(const problem *p, data *d, const entry_row *entry, cuda_function function, const char *words) {
    _Alignas(128) static matmul_wgmma_arguments g;
    make_arguments(p, d, entry, &g);
    CHECK(cu.MemsetD8Async(d->out, 0xff, (size_t)(d->out_elements * d->out_bytes + GUARD), stream));
    void *parameters[] = {&g};
    launch(function, grid_of(p, d, entry), 384, shared_bytes_of(entry), parameters);
    int64_t n_out = d->epilogue.halving >= 0 ? p->n / 2 : p->n, budget = (int64_t)1 << 31;
    int64_t rows = budget / (p->n * (p->k + 1)) + 1, step = p->m <= rows ? 1 : (p->m / rows) | 1;
    rows = (p->m + step - 1) / step;
    bench_reference r = {.epilogue = d->epilogue, .a = d->a, .b = d->b, .m = p->m, .n = p->n, .k = p->k, .row_step = step, .guard = GUARD, .out_bytes = d->out_bytes};
    r.out = device_memory((size_t)(rows * n_out * 8));
    r.result = device_memory(16);
    CHECK(cu.MemsetD8Async(r.result, 0, 16, stream));
    void *reference[] = {&r};
    int64_t threads = rows * n_out < GUARD ? GUARD : rows * n_out;
    launch(reference_kernel, (unsigned)((threads + 127) / 128), 128, 0, reference);
    launch(compare_kernel, (unsigned)((threads + 127) / 128), 128, 0, reference);
    float result[4];
    uint32_t bits[4];
    CHECK(cu.MemcpyDtoHAsync_v2(result, r.result, 16, stream));
    CHECK(cu.StreamSynchronize(stream));
    memcpy(bits, result, 16);
    bool failed = bits[2] != 0 || bits[3] != 0 || !(result[1] <= 0.001f * result[0]) || result[0] == 0;
    failures += failed;
    printf("%-8s %-36s %6lld x %6lld x %6lld %-24s largest %9.3g  error %.1e  strange %u  outside %u\n", failed ? "FAILED" : "ok", entry->name, (long long)p->m,
           (long long)p->n, (long long)p->k, words, (double)result[0], (double)(result[1] / result[0]), bits[2], bits[3]);
    CHECK(cu.MemFree_v2(r.out));
    CHECK(cu.MemFree_v2(r.result));
}

/* Results in blocks: of all entries the same bits as of the first that takes the product. */
static void check_blocks(const problem *p, const char *words, const char *only) {
    data d;
    make_data(p, 5, &d);
    const size_t bytes = (size_t)(d.out_elements + d.scale_bytes);
    uint8_t *first = NULL, *other = malloc(bytes + GUARD);
    for (int i = 0; i < ENTRIES; i++) {
        if (functions[i] == NULL || &formats[entries[i].format] != p->format || !accepts(&d, &entries[i]) || (first != NULL && !is_named(&entries[i], only))) continue;
        _Alignas(128) static matmul_wgmma_arguments g;
        make_arguments(p, &d, &entries[i], &g);
        CHECK(cu.MemsetD8Async(d.out, 0xff, (size_t)d.out_elements + GUARD, stream));
        CHECK(cu.MemsetD8Async(d.epilogue.scales, 0xff, (size_t)d.scale_bytes, stream));
        void *parameters[] = {&g};
        launch(functions[i], grid_of(p, &d, &entries[i]), 384, shared_bytes_of(&entries[i]), parameters);
        CHECK(cu.MemcpyDtoHAsync_v2(other, d.out, (size_t)d.out_elements + GUARD, stream));
        CHECK(cu.StreamSynchronize(stream));
        size_t outside = 0, different = 0;
        for (size_t j = 0; j < GUARD; j++) outside += other[(size_t)d.out_elements + j] != 0xff;
        CHECK(cu.MemcpyDtoHAsync_v2(other + d.out_elements, d.epilogue.scales, (size_t)d.scale_bytes, stream));
        CHECK(cu.StreamSynchronize(stream));
        for (size_t j = 0; first != NULL && j < bytes; j++) different += first[j] != other[j];
        failures += outside > 0 || different > 0;
        printf("%-8s %-40s %6lld x %6lld x %6lld %-24s bytes unlike the first entry's %zu  outside %zu\n", outside > 0 || different > 0 ? "FAILED" : "ok", entries[i].name, (long long)p->m,
               (long long)p->n, (long long)p->k, words, different, outside);
        if (first == NULL) first = other, other = malloc(bytes + GUARD);
    }
    free(first);
    free(other);
    free_data(&d);
}

/* ---- timing ---- */

static int compare_floats(const void *a, const void *b) { return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b); }

enum { SETS = 64, REPLAYS = 12 };

static double time_entry(const problem *p, const data *sets, int set_count, const entry_row *entry, cuda_function function) {
    _Alignas(128) static matmul_wgmma_arguments g[SETS];
    cuda_event start, stop;
    CHECK(cu.EventCreate(&start, 0));
    CHECK(cu.EventCreate(&stop, 0));
    for (int i = 0; i < set_count; i++) make_arguments(p, &sets[i], entry, &g[i]);
    int calls = set_count;
    double us = 0;
    for (int round = 0; round < 2; round++) {
        cuda_graph graph;
        cuda_graph_exec exec;
        CHECK(cu.GraphCreate(&graph, 0));
        cuda_node last = NULL;
        for (int i = 0; i < calls; i++) {
            void *parameters[] = {&g[i % set_count]};
            cuda_node_params node = {.type = CUDA_NODE_KERNEL};
            node.kernel = (cuda_kernel_node){.function = function, .grid_x = grid_of(p, &sets[0], entry), .grid_y = 1, .grid_z = 1, .block_x = 384, .block_y = 1, .block_z = 1,
                                             .shared_bytes = shared_bytes_of(entry), .parameters = parameters};
            cuda_node next;
            CHECK(cu.GraphAddNode_v2(&next, graph, last == NULL ? NULL : &last, NULL, last == NULL ? 0 : 1, &node));
            last = next;
        }
        cuda_instantiate_params params = {0};
        CHECK(cu.GraphInstantiateWithParams(&exec, graph, &params));
        CHECK(cu.GraphLaunch(exec, stream));
        CHECK(cu.StreamSynchronize(stream));
        if (round == 1) usleep(40000);
        float times[REPLAYS];
        int replays = round == 0 ? 2 : REPLAYS;
        for (int i = 0; i < replays; i++) {
            CHECK(cu.EventRecord(start, stream));
            CHECK(cu.GraphLaunch(exec, stream));
            CHECK(cu.EventRecord(stop, stream));
            CHECK(cu.EventSynchronize(stop));
            CHECK(cu.EventElapsedTime(&times[i], start, stop));
        }
        qsort(times, (size_t)replays, sizeof *times, compare_floats);
        us = times[replays / 2] * 1e3 / calls;
        CHECK(cu.GraphExecDestroy(exec));
        CHECK(cu.GraphDestroy(graph));
        calls = (int)(3000 / us);
        calls = calls < set_count ? set_count : calls > 400 ? 400 : calls;
    }
    return us;
}

static void time_problem(const problem *p, const char *words, const char *only) {
    static data sets[SETS];
    int64_t bytes = (p->m + p->n) * p->k * p->format->bits / 8 + p->m * p->n * 2, count = (200 << 20) / bytes + 1;
    if (count < 2) count = 2;
    if (count > SETS) count = SETS;
    for (int i = 0; i < count; i++) make_data(p, 1000 * (uint64_t)i, &sets[i]);
    double best = 1e30;
    const char *winner = "";
    printf("%-10s %6lld x %6lld x %6lld %-12s", p->format->name, (long long)p->m, (long long)p->n, (long long)p->k, words);
    for (int i = 0; i < ENTRIES; i++) {
        const entry_row *e = &entries[i];
        if (functions[i] == NULL || &formats[e->format] != p->format || !accepts(&sets[0], e) || !is_named(e, only)) continue;
        if (e->pair > 1 && p->m <= e->tile_m) continue;
        if (e->splits > 1 && p->m > 512) continue;
        if (e->tile_n <= 64 && p->m > 1024) continue;
        double us = time_entry(p, sets, (int)count, e, functions[i]);
        const char *short_name = e->name + strlen("matmul_");
        printf(" %s %.1f", short_name, us);
        if (us < best) best = us, winner = short_name;
    }
    printf(" | best %s %.2f us %.0f TFLOP/s %.0f GB/s\n", winner, best, 2.0 * (double)p->m * (double)p->n * (double)p->k / best * 1e-6, (double)bytes / best * 1e-3);
    fflush(stdout);
    for (int i = 0; i < count; i++) free_data(&sets[i]);
}

static int step_of(const char *name) {
    static const char *const names[] = {
#define OP_POST(name, operand, halves, meaning) #name,
#include "op/post.def"
#undef OP_POST
    };
    for (int i = 0; i < MATMUL_POST_COUNT; i++)
        if (strcmp(names[i], name) == 0) return i;
    fprintf(stderr, "no step %s\n", name);
    exit(1);
}

/* "f32,bias,gelu": the format of the result where it is not bf16, or fp8_1x128 or mxfp8 for blocks of it, "odd" for rows that no map describes, steps. */
static void parse_words(const char *words, problem *p) {
    char copy[128];
    snprintf(copy, sizeof copy, "%s", words);
    p->out_format = MATMUL_bf16;
    for (char *word = strtok(copy, ","); word != NULL; word = strtok(NULL, ",")) {
        if (strcmp(word, "f32") == 0) p->out_format = MATMUL_f32;
        else if (strcmp(word, "f16") == 0) p->out_format = MATMUL_f16;
        else if (strcmp(word, "odd") == 0) p->odd_rows = true;
        else if (strcmp(word, "fp8_1x128") == 0) p->block = 128;
        else if (strcmp(word, "mxfp8") == 0) p->block = 32;
        else if (strcmp(word, "bf16") != 0) p->post[p->post_count++] = step_of(word);
    }
}

typedef struct shape { int64_t m, n, k; const char *words; } shape;

static const shape check_shapes[] = {
    {256, 512, 1024, "f32"}, {1, 128, 256, "f32"}, {100, 200, 304, "bf16"}, {129, 257, 144, "f32,bias,gelu"}, {300, 1000, 784, "odd,f32"}, {513, 768, 2048, "bias,add"},
    {64, 512, 512, "f32,swiglu"}, {384, 1024, 640, "bias,geglu,add"}, {200, 640, 272, "odd,mul,silu"}, {77, 96, 16, "f32,relu,tanh"}, {1000, 2112, 1536, "f32,gelu_tanh,sigmoid"},
    {2048, 4096, 512, "f16"}, {4100, 1032, 256, "f32"}, {1000, 2112, 1536, "fp8_1x128,bias,gelu"}, {4100, 1032, 256, "mxfp8,add"}, {300, 1000, 784, "odd,fp8_1x128"}, {300, 1024, 784, "bias,swiglu,fp8_1x128"},
};
static const shape time_shapes[] = {
    {4096, 4096, 4096, ""}, {8192, 8192, 8192, ""}, {4096, 7168, 2048, ""}, {4096, 24576, 1536, ""}, {4096, 4096, 7168, ""}, {4096, 2112, 7168, ""}, {4096, 3072, 768, ""},
    {4096, 768, 3072, ""}, {4096, 14336, 4096, ""}, {4096, 4096, 14336, ""}, {512, 7168, 2048, ""}, {512, 4096, 7168, ""}, {512, 2112, 7168, ""}, {512, 3072, 768, ""},
    {512, 24576, 1536, ""}, {128, 7168, 2048, ""}, {128, 2112, 7168, ""}, {128, 4096, 7168, ""}, {64, 7168, 2048, ""}, {64, 24576, 1536, ""}, {64, 7168, 16384, ""}, {64, 4096, 7168, ""},
    {64, 2112, 7168, ""}, {16, 7168, 2048, ""}, {16, 2112, 7168, ""}, {1, 4096, 14336, ""}, {4096, 4096, 4096, "bias,gelu"}, {4096, 4096, 4096, "add"}, {4096, 14336, 4096, "swiglu"},
};

static void run_shape(const format_row *format, const shape *s, bool timing, const char *only) {
    problem p = {.format = format, .m = s->m, .n = s->n, .k = s->k};
    parse_words(s->words, &p);
    if (timing) {
        time_problem(&p, s->words, only);
        return;
    }
    if (p.block > 0) {
        check_blocks(&p, s->words, only);
        return;
    }
    data d;
    make_data(&p, 5, &d);
    for (int i = 0; i < ENTRIES; i++)
        if (functions[i] != NULL && &formats[entries[i].format] == format && accepts(&d, &entries[i]) && is_named(&entries[i], only))
            check_entry(&p, &d, &entries[i], functions[i], s->words);
    free_data(&d);
}

/* ---- for cuda_peers.py, which loads this file as a library into PyTorch's process ---- */

int bench_open(const char *images);
int bench_entry(const char *format, int64_t m, int64_t n, int64_t k, int number);
const char *bench_entry_name(int entry);
void bench_launch(int entry, int64_t m, int64_t n, int64_t k, cuda_pointer a, cuda_pointer b, cuda_pointer a_scales, cuda_pointer b_scales, float alpha, cuda_pointer out,
                  cuda_stream on);

/* Multiprocessors of the device. */
int bench_open(const char *images) {
    open_device();
    load_kernels(images);
    return multiprocessors;
}

/* The entry that the library takes (number below 0), or number of those that could be taken; -1: none. */
int bench_entry(const char *format, int64_t m, int64_t n, int64_t k, int number) {
    for (int i = 0; i < ENTRIES; i++) {
        const format_row *f = &formats[entries[i].format];
        if (functions[i] == NULL || entries[i].blocks || strcmp(f->name, format) != 0) continue;
        bool taken = strcmp(matmul_wgmma_entry(f->element, f->scale_format == MATMUL_f32, m, n, k, 0, multiprocessors), entries[i].name) == 0;
        if (number < 0 ? taken : number-- == 0) return i;
    }
    return -1;
}

const char *bench_entry_name(int entry) { return entries[entry].name; }

/* out, bf16 [m,n] = alpha a b^T: a [m,k] and b [n,k] in the entry's format, rows without gaps. */
void bench_launch(int entry, int64_t m, int64_t n, int64_t k, cuda_pointer a, cuda_pointer b, cuda_pointer a_scales, cuda_pointer b_scales, float alpha, cuda_pointer out,
                  cuda_stream on) {
    _Alignas(128) static matmul_wgmma_arguments g;
    const entry_row *e = &entries[entry];
    problem p = {.format = &formats[e->format], .m = m, .n = n, .k = k, .out_format = MATMUL_bf16};
    data d = {.a = {.data = a, .scales = a_scales, .scale_stride = (k + 127) / 128}, .b = {.data = b, .scales = b_scales, .scale_stride = (k + 127) / 128}, .out = out, .out_bytes = 2};
    d.epilogue = (matmul_epilogue){.alpha = alpha, .halving = -1, .out_format = MATMUL_bf16, .by_tma = n % 8 == 0, .out_row_stride = n, .out = out};
    make_arguments(&p, &d, e, &g);
    void *parameters[] = {&g};
    cuda_launch_config config = {.grid_x = grid_of(&p, &d, e), .grid_y = 1, .grid_z = 1, .block_x = 384, .block_y = 1, .block_z = 1, .shared_bytes = shared_bytes_of(e), .stream = on};
    CHECK(cu.LaunchKernelEx(&config, functions[entry], parameters, NULL));
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: cuda_matmul IMAGES check|time [FORMAT [M N K [WORDS [ENTRY,..]]]]\n");
        return 2;
    }
    bool timing = strcmp(argv[2], "time") == 0;
    open_device();
    load_kernels(argv[1]);
    for (int i = 0; i < FORMATS; i++) {
        if (argc > 3 && strcmp(argv[3], formats[i].name) != 0) continue;
        if (argc > 6) {
            shape one = {atoll(argv[4]), atoll(argv[5]), atoll(argv[6]), argc > 7 ? argv[7] : ""};
            run_shape(&formats[i], &one, timing, argc > 8 ? argv[8] : NULL);
            continue;
        }
        const shape *shapes = timing ? time_shapes : check_shapes;
        size_t count = timing ? sizeof time_shapes / sizeof *time_shapes : sizeof check_shapes / sizeof *check_shapes;
        for (size_t j = 0; j < count; j++) run_shape(&formats[i], &shapes[j], timing, NULL);
    }
    if (!timing) printf("%d failures\n", failures);
    return failures > 0;
}
