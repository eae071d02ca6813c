/* Runs cases of PTX through a CUDA driver, the simulator or a real one, and holds what they write against what they say:
 *     tool_sim_ptx LIBRARY [--print] CASE.ptx ..
 * A case is a module with the kernel "test", whose parameters are (.u64 out, .u64 in), and comments:
 *     // launch: grid=2,1,1 block=64,1,1 cluster=1,1,1 preferred=2,1,1 shared=0      (all of them optional)
 *     // in: u32 1 2 0x3          what in points to, line after line: u8 u16 u32 u64 f32 f64 with values, or random COUNT: that many 32-bit words
 *     // out: 256                 bytes behind out, which begin as zeros
 *     // expect: u32 5 7          the first bytes of out, line after line; f32 and f64 may be followed by ~TOLERANCE (relative)
 *     // vector: FILE             the bytes of out are those of tests/sim/vectors/FILE, recorded on hardware
 *     // finds: TEXT              the launch must end with a finding that contains this (the simulator only)
 *     // refuses: TEXT            fetching the kernel must fail with a message that contains this (the simulator only)
 *     // map: type=7 dims=8,9,7,2 lower=-1,-1 upper=-1,-1 channels=8 pixels=32 steps=1,1,1,1 swizzle=0 fill=0
 *                              a tensor map of im2col lies in front of what in points to, 128 bytes long; its tensor is what in points to, without gaps;
 *                              type, swizzle, interleave and fill are the driver's numbers; with box=8,4,2 the map is tiled; strides=, in bytes, if there are gaps
 *     // needs: 100               compute capability; cases for others than the device's are skipped
 * --image FILE loads that image, a fatbin say, instead of the text of the case that follows; its kernel is compiled from a program that carries the
 * comments.
 * --print shows what was written, as expect lines. --record FOLDER writes out's bytes to FOLDER/FILE of its vector line. */
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda_abi.h"
#include "num/num.h"

enum { MAX_BYTES = 1 << 22, MAX_LINES = 4096 };

typedef struct driver {
    cuda_result (*Init)(unsigned);
    cuda_result (*DeviceGetAttribute)(int *, cuda_device_attribute, cuda_device);
    cuda_result (*DevicePrimaryCtxRetain)(cuda_context *, cuda_device);
    cuda_result (*DevicePrimaryCtxRelease_v2)(cuda_device);
    cuda_result (*CtxPushCurrent_v2)(cuda_context);
    cuda_result (*CtxSynchronize)(void);
    cuda_result (*LibraryLoadData)(cuda_library *, const void *, int *, void **, unsigned, int *, void **, unsigned);
    cuda_result (*LibraryUnload)(cuda_library);
    cuda_result (*LibraryGetKernel)(cuda_kernel *, cuda_library, const char *);
    cuda_result (*KernelGetFunction)(cuda_function *, cuda_kernel);
    cuda_result (*KernelSetAttribute)(cuda_function_attribute, int, cuda_kernel, cuda_device);
    cuda_result (*LaunchKernelEx)(const cuda_launch_config *, cuda_function, void **, void **);
    cuda_result (*MemAlloc_v2)(cuda_pointer *, size_t);
    cuda_result (*MemFree_v2)(cuda_pointer);
    cuda_result (*MemcpyHtoD_v2)(cuda_pointer, const void *, size_t);
    cuda_result (*MemcpyDtoH_v2)(void *, cuda_pointer, size_t);
    cuda_result (*TensorMapEncodeTiled)(cuda_tensor_map *, cuda_tensor_type, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *, cuda_tensor_interleave,
                                        cuda_tensor_swizzle, cuda_tensor_promotion, cuda_tensor_fill);
    cuda_result (*TensorMapEncodeIm2col)(cuda_tensor_map *, cuda_tensor_type, uint32_t, void *, const uint64_t *, const uint64_t *, const int *, const int *, uint32_t, uint32_t, const uint32_t *,
                                         cuda_tensor_interleave, cuda_tensor_swizzle, cuda_tensor_promotion, cuda_tensor_fill);
    cuda_result (*LogsRegisterCallback)(cuda_log_callback, void *, cuda_log_handle *);
    bool simulated;
    int arch;
} driver;

typedef struct test_case {
    char *text;
    const char *name;
    unsigned grid[3], block[3], cluster[3], preferred[3];   /* preferred: zeros where the launch has clusters of one size */
    unsigned shared;
    uint8_t in[MAX_BYTES], expected[MAX_BYTES];
    size_t in_bytes, out_bytes, expected_bytes;
    struct { size_t at, bytes; double tolerance; } close[MAX_LINES];   /* stretches of floats compared with a tolerance */
    int close_count;
    char finds[256], refuses[256], vector[128], map[256];
    int needs;
} test_case;

static char message[4096];

static void hear(void *user, cuda_log_level level, char *text, size_t length) {
    (void)user;
    (void)level;
    snprintf(message, sizeof message, "%.*s", (int)length, text);
}

static bool load_driver(const char *path, driver *d) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return false;
    }
#define FIND(name)                                                                                                    \
    do {                                                                                                              \
        void *symbol = dlsym(library, "cu" #name);                                                                    \
        if (symbol == NULL && strcmp(#name, "LogsRegisterCallback") != 0) {                                           \
            fprintf(stderr, "%s has no cu" #name "\n", path);                                                         \
            return false;                                                                                             \
        }                                                                                                             \
        memcpy(&d->name, &symbol, sizeof symbol);                                                                     \
    } while (0)
    FIND(Init); FIND(DeviceGetAttribute); FIND(DevicePrimaryCtxRetain); FIND(DevicePrimaryCtxRelease_v2); FIND(CtxPushCurrent_v2); FIND(CtxSynchronize);
    FIND(LibraryLoadData); FIND(LibraryUnload); FIND(LibraryGetKernel); FIND(KernelGetFunction); FIND(KernelSetAttribute); FIND(LaunchKernelEx);
    FIND(MemAlloc_v2); FIND(MemFree_v2); FIND(MemcpyHtoD_v2); FIND(MemcpyDtoH_v2); FIND(TensorMapEncodeTiled); FIND(TensorMapEncodeIm2col); FIND(LogsRegisterCallback);
#undef FIND
    d->simulated = dlsym(library, "deepwell_sim_configure") != NULL;
    cuda_context context;
    int major, minor;
    if (d->LogsRegisterCallback != NULL) d->LogsRegisterCallback(hear, NULL, NULL);
    if (d->Init(0) != CUDA_OK || d->DevicePrimaryCtxRetain(&context, 0) != CUDA_OK || d->CtxPushCurrent_v2(context) != CUDA_OK ||
        d->DeviceGetAttribute(&major, CUDA_DEVICE_CAPABILITY_MAJOR, 0) != CUDA_OK || d->DeviceGetAttribute(&minor, CUDA_DEVICE_CAPABILITY_MINOR, 0) != CUDA_OK) {
        fprintf(stderr, "%s: no device: %s\n", path, message);
        return false;
    }
    d->arch = major * 10 + minor;
    return true;
}

/* ---- reading a case ---- */

static bool fail(const char *name, const char *what, const char *detail) {
    fprintf(stderr, "%s: %s%s%s\n", name, what, detail[0] != '\0' ? ": " : "", detail);
    return false;
}

static int type_bytes(const char *type) { return atoi(type + 1) / 8; }

/* "u32 1 2 3": appends the values. */
static bool read_values(test_case *c, char *line, uint8_t *bytes, size_t *used, bool expected) {
    char *rest = NULL, *type = strtok_r(line, " \t", &rest);
    size_t begin = *used;
    double tolerance = 0;
    if (type == NULL) return fail(c->name, "a line of values without a type", "");
    if (strcmp(type, "random") == 0) {
        char *count = strtok_r(NULL, " \t", &rest);
        for (long i = 0; count != NULL && i < atol(count) && *used + 4 <= MAX_BYTES; i++, *used += 4) {
            uint32_t word = (uint32_t)num_random(7, (uint64_t)i);
            memcpy(bytes + *used, &word, 4);
        }
        return true;
    }
    int size = type_bytes(type);
    if (size != 1 && size != 2 && size != 4 && size != 8) return fail(c->name, "no type of values", type);
    for (char *word = strtok_r(NULL, " \t", &rest); word != NULL; word = strtok_r(NULL, " \t", &rest)) {
        if (word[0] == '~') {
            tolerance = atof(word + 1);
            continue;
        }
        uint64_t bits = strtoull(word, NULL, 0);
        if (word[0] == '-') bits = (uint64_t)strtoll(word, NULL, 0);
        double real = strtod(word, NULL);
        float narrow = (float)real;
        if (type[0] == 'f' && strncmp(word, "0x", 2) != 0) {
            if (size == 4) memcpy(&bits, &narrow, 4);
            else memcpy(&bits, &real, 8);
        }
        if (*used + (size_t)size > MAX_BYTES) return fail(c->name, "too many values", "");
        memcpy(bytes + *used, &bits, (size_t)size);
        *used += (size_t)size;
    }
    if (expected && tolerance > 0 && c->close_count < MAX_LINES) {
        c->close[c->close_count].at = begin;
        c->close[c->close_count].bytes = *used - begin;
        c->close[c->close_count++].tolerance = tolerance;
    }
    return true;
}

static void read_three(const char *line, const char *name, unsigned values[3]) {
    const char *at = strstr(line, name);
    if (at == NULL) return;
    values[0] = values[1] = values[2] = 1;
    (void)sscanf(at + strlen(name), "%u,%u,%u", &values[0], &values[1], &values[2]);
}

static bool read_directives(test_case *c) {
    char *copy = strdup(c->text), *rest = NULL;
    bool good = copy != NULL;
    for (char *line = copy != NULL ? strtok_r(copy, "\n", &rest) : NULL; line != NULL && good; line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, "// launch:", 10) == 0) {
            const char *shared = strstr(line, "shared=");
            read_three(line, "grid=", c->grid);
            read_three(line, "block=", c->block);
            read_three(line, "cluster=", c->cluster);
            read_three(line, "preferred=", c->preferred);
            if (shared != NULL) c->shared = (unsigned)atoi(shared + 7);
        } else if (strncmp(line, "// in: ", 7) == 0) {
            good = read_values(c, line + 7, c->in, &c->in_bytes, false);
        } else if (strncmp(line, "// expect: ", 11) == 0) {
            good = read_values(c, line + 11, c->expected, &c->expected_bytes, true);
        } else if (strncmp(line, "// out: ", 8) == 0) {
            c->out_bytes = (size_t)strtoull(line + 8, NULL, 0);
        } else if (strncmp(line, "// finds: ", 10) == 0) {
            snprintf(c->finds, sizeof c->finds, "%s", line + 10);
        } else if (strncmp(line, "// refuses: ", 12) == 0) {
            snprintf(c->refuses, sizeof c->refuses, "%s", line + 12);
        } else if (strncmp(line, "// vector: ", 11) == 0) {
            snprintf(c->vector, sizeof c->vector, "%s", line + 11);
        } else if (strncmp(line, "// map: ", 8) == 0) {
            snprintf(c->map, sizeof c->map, "%s", line + 8);
        } else if (strncmp(line, "// needs: ", 10) == 0) {
            c->needs = atoi(line + 10);
        }
    }
    free(copy);
    if (c->out_bytes < c->expected_bytes) c->out_bytes = c->expected_bytes;
    if (c->out_bytes == 0) c->out_bytes = 4;
    return good && c->out_bytes <= MAX_BYTES;
}

static bool read_file(const char *path, uint8_t *bytes, size_t room, size_t *length) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) return false;
    *length = fread(bytes, 1, room, file);
    fclose(file);
    return true;
}

/* ---- running ---- */

static bool compare(const test_case *c, const uint8_t *out) {
    for (size_t i = 0; i < c->expected_bytes; i++) {
        double tolerance = 0;
        size_t begin = i;
        for (int k = 0; k < c->close_count; k++) {
            if (i >= c->close[k].at && i < c->close[k].at + c->close[k].bytes) {
                tolerance = c->close[k].tolerance;
                begin = i - (i - c->close[k].at) % 4;
            }
        }
        if (tolerance > 0) {
            float got, want;
            memcpy(&got, out + begin, 4);
            memcpy(&want, c->expected + begin, 4);
            if (fabsf(got - want) <= tolerance * fabsf(want) || (isnan(got) && isnan(want)) || got == want) continue;
            fprintf(stderr, "%s: float %zu of out is %.9g, expected %.9g within %g\n", c->name, begin / 4, (double)got, (double)want, tolerance);
            return false;
        }
        if (out[i] != c->expected[i]) {
            uint32_t got, want;
            memcpy(&got, out + i / 4 * 4, 4);
            memcpy(&want, c->expected + i / 4 * 4, 4);
            fprintf(stderr, "%s: word %zu of out is 0x%08x, expected 0x%08x (byte %zu)\n", c->name, i / 4, got, want, i);
            return false;
        }
    }
    return true;
}

static bool expect_message(const test_case *c, const char *text, cuda_result result) {
    if (result == CUDA_OK) return fail(c->name, "nothing was said, expected", text);
    if (strstr(message, text) == NULL) {
        fprintf(stderr, "%s: said '%s', expected '%s'\n", c->name, message, text);
        return false;
    }
    return true;
}

static bool launch(const driver *d, const test_case *c, cuda_kernel kernel, cuda_pointer out, cuda_pointer in, cuda_result *result) {
    cuda_function function;
    void *parameters[] = {&out, &in};
    cuda_launch_attribute sizes[] = {{.id = CUDA_LAUNCH_CLUSTER, .value = {.cluster = {c->cluster[0], c->cluster[1], c->cluster[2]}}},
                                     {.id = CUDA_LAUNCH_PREFERRED_CLUSTER, .value = {.cluster = {c->preferred[0], c->preferred[1], c->preferred[2]}}}};
    const bool two = c->preferred[0] > 0, clustered = two || c->cluster[0] * c->cluster[1] * c->cluster[2] > 1;
    const cuda_launch_config config = {.grid_x = c->grid[0], .grid_y = c->grid[1], .grid_z = c->grid[2], .block_x = c->block[0], .block_y = c->block[1], .block_z = c->block[2],
                                       .shared_bytes = c->shared, .attributes = sizes, .attribute_count = (unsigned)(clustered + two)};
    if (c->shared > 48 * 1024) d->KernelSetAttribute(CUDA_FUNCTION_MAX_DYNAMIC_SHARED_BYTES, (int)c->shared, kernel, 0);
    if (d->KernelGetFunction(&function, kernel) != CUDA_OK) return fail(c->name, "no function of the kernel", "");
    *result = d->LaunchKernelEx(&config, function, parameters, NULL);
    if (*result == CUDA_OK) *result = d->CtxSynchronize();
    return true;
}

/* Of a line "name=1,2,3 ..": how many numbers stand behind the name. */
static uint32_t read_list(const char *line, const char *name, long long values[5]) {
    const char *at = strstr(line, name);
    uint32_t count = 0;
    for (at = at != NULL ? at + strlen(name) : ""; count < 5 && *at != '\0' && *at != ' '; at += *at == ',') {
        char *end;
        values[count++] = strtoll(at, &end, 0);
        if (end == at) return 0;
        at = end;
    }
    return count;
}

static bool make_map(const driver *d, const test_case *c, cuda_pointer tensor, cuda_tensor_map *map) {
    static const int sizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    enum { TYPE, DIMS, LOWER, UPPER, CHANNELS, PIXELS, STEPS, SWIZZLE, FILL, BOX, INTERLEAVE, STRIDES, FIELDS };
    static const char *const names[FIELDS] = {"type=", "dims=", "lower=", "upper=", "channels=", "pixels=", "steps=", "swizzle=", "fill=", "box=", "interleave=", "strides="};
    long long numbers[FIELDS][5] = {{0}};
    uint32_t counts[FIELDS];
    uint64_t dims[5], strides[5];
    int lower[3], upper[3];
    uint32_t steps[5], box[5];
    for (int i = 0; i < FIELDS; i++) counts[i] = read_list(c->map, names[i], numbers[i]);
    const uint32_t rank = counts[DIMS];
    if (numbers[TYPE][0] < 0 || numbers[TYPE][0] > 12) return fail(c->name, "no type of a map", c->map);
    for (uint32_t i = 0; i < rank; i++) {
        dims[i] = (uint64_t)numbers[DIMS][i];
        strides[i] = (i == 0 ? (uint64_t)sizes[numbers[TYPE][0]] : strides[i - 1]) * dims[i];
        if (i < counts[STRIDES]) strides[i] = (uint64_t)numbers[STRIDES][i];
        steps[i] = (uint32_t)numbers[STEPS][i];
        box[i] = (uint32_t)numbers[BOX][i];
    }
    for (int i = 0; i < 3; i++) lower[i] = (int)numbers[LOWER][i], upper[i] = (int)numbers[UPPER][i];
    const cuda_tensor_type type = (cuda_tensor_type)numbers[TYPE][0];
    const cuda_tensor_interleave interleave = (cuda_tensor_interleave)numbers[INTERLEAVE][0];
    const cuda_tensor_swizzle swizzle = (cuda_tensor_swizzle)numbers[SWIZZLE][0];
    const cuda_tensor_fill fill = (cuda_tensor_fill)numbers[FILL][0];
    void *address = (void *)(uintptr_t)tensor;
    const cuda_result result = counts[BOX] > 0 ? d->TensorMapEncodeTiled(map, type, rank, address, dims, strides, box, steps, interleave, swizzle, CUDA_PROMOTION_NONE, fill)
                                               : d->TensorMapEncodeIm2col(map, type, rank, address, dims, strides, lower, upper, (uint32_t)numbers[CHANNELS][0], (uint32_t)numbers[PIXELS][0], steps,
                                                                          interleave, swizzle, CUDA_PROMOTION_NONE, fill);
    return c->refuses[0] != '\0' ? expect_message(c, c->refuses, result) : result == CUDA_OK || fail(c->name, "the map cannot be made", message);
}

static bool run_loaded(const driver *d, const test_case *c, cuda_library library, uint8_t *out) {
    cuda_kernel kernel;
    cuda_pointer out_device = 0, in_memory = 0, in_device = 0;
    cuda_tensor_map map;
    const size_t map_bytes = c->map[0] != '\0' ? sizeof map : 0;
    cuda_result result = d->LibraryGetKernel(&kernel, library, "test");
    if (c->refuses[0] != '\0' && c->map[0] == '\0') return expect_message(c, c->refuses, result);
    if (result != CUDA_OK) return fail(c->name, "the kernel cannot be fetched", message);
    memset(out, 0, c->out_bytes);
    if (d->MemAlloc_v2(&out_device, c->out_bytes) != CUDA_OK || d->MemAlloc_v2(&in_memory, (c->in_bytes > 0 ? c->in_bytes : 4) + map_bytes) != CUDA_OK) return fail(c->name, "no device memory", message);
    in_device = in_memory + map_bytes;
    if (d->MemcpyHtoD_v2(out_device, out, c->out_bytes) != CUDA_OK || d->MemcpyHtoD_v2(in_device, c->in, c->in_bytes) != CUDA_OK) return fail(c->name, "no device memory", message);
    bool good = c->map[0] == '\0' || make_map(d, c, in_device, &map), refused = c->refuses[0] != '\0';
    if (good && !refused && c->map[0] != '\0') good = d->MemcpyHtoD_v2(in_memory, &map, sizeof map) == CUDA_OK || fail(c->name, "no device memory", message);
    bool ran = good && !refused && launch(d, c, kernel, out_device, in_device, &result);
    if (!ran) good &= refused;
    else if (c->finds[0] != '\0') good = expect_message(c, c->finds, result);
    else if (result != CUDA_OK || d->MemcpyDtoH_v2(out, out_device, c->out_bytes) != CUDA_OK) good = fail(c->name, "the launch failed", message);
    else good = compare(c, out);
    if (ran && d->simulated && result != CUDA_OK) d->DevicePrimaryCtxRelease_v2(0);   /* forgets the finding */
    d->MemFree_v2(out_device);
    d->MemFree_v2(in_memory);
    return good;
}

static void print_out(const test_case *c, const uint8_t *out) {
    for (size_t i = 0; i + 4 <= c->out_bytes; i += 4) {
        uint32_t word;
        memcpy(&word, out + i, 4);
        printf("%s0x%08x%s", i % 32 == 0 ? "// expect: u32 " : " ", word, i % 32 == 28 || i + 8 > c->out_bytes ? "\n" : "");
    }
}

typedef struct options { bool print; const char *record, *vectors, *image; } options;

/* 1 done, 0 failed, -1 skipped. */
static int run_case(const driver *d, const char *path, const options *o) {
    static test_case c;
    static uint8_t out[MAX_BYTES];
    static char text[MAX_BYTES + 1];
    char file[512];
    size_t length;
    memset(&c, 0, sizeof c);
    c.name = path;
    c.text = text;
    for (int i = 0; i < 3; i++) c.grid[i] = c.block[i] = c.cluster[i] = 1;
    c.block[0] = 32;
    if (!read_file(path, (uint8_t *)text, MAX_BYTES, &length)) return fail(path, "cannot be read", "");
    text[length] = '\0';
    if (!read_directives(&c)) return 0;
    if ((c.needs != 0 && c.needs != d->arch) || (!d->simulated && (c.finds[0] != '\0' || c.refuses[0] != '\0'))) return -1;
    snprintf(file, sizeof file, "%s/%s", o->vectors, c.vector);
    if (c.vector[0] != '\0' && o->record == NULL && !read_file(file, c.expected, MAX_BYTES, &c.expected_bytes)) return fail(path, "has no vector", file);
    if (c.expected_bytes > c.out_bytes) return fail(path, "the vector is longer than out", file);
    cuda_library library;
    static uint8_t image[MAX_BYTES];
    message[0] = '\0';
    if (o->image != NULL && !read_file(o->image, image, MAX_BYTES, &length)) return fail(o->image, "cannot be read", "");
    cuda_result result = d->LibraryLoadData(&library, o->image != NULL ? (void *)image : (void *)text, NULL, NULL, 0, NULL, NULL, 0);
    if (result != CUDA_OK) {
        char number[16];
        snprintf(number, sizeof number, " %d", result);
        return c.refuses[0] != '\0' ? expect_message(&c, c.refuses, result) : fail(path, "the module cannot be loaded", message[0] != '\0' ? message : number);
    }
    bool good = run_loaded(d, &c, library, out);
    d->LibraryUnload(library);
    if (o->print && c.finds[0] == '\0' && c.refuses[0] == '\0') print_out(&c, out);
    if (good && o->record != NULL && c.vector[0] != '\0') {
        snprintf(file, sizeof file, "%s/%s", o->record, c.vector);
        FILE *recorded = fopen(file, "wb");
        if (recorded == NULL) return fail(path, "cannot write", file);
        fwrite(out, 1, c.out_bytes, recorded);
        fclose(recorded);
    }
    return good;
}

int main(int argc, char **argv) {
    static driver d;
    options o = {.vectors = "tests/sim/vectors"};
    int done = 0, failed = 0, skipped = 0;
    if (argc < 3) {
        fprintf(stderr, "usage: tool_sim_ptx LIBRARY [--print] [--record FOLDER] CASE.ptx ..\n");
        return 2;
    }
    if (!load_driver(argv[1], &d)) return 1;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--print") == 0) {
            o.print = true;
            continue;
        }
        if (strcmp(argv[i], "--record") == 0 && i + 1 < argc) {
            o.record = argv[++i];
            continue;
        }
        if (strcmp(argv[i], "--image") == 0 && i + 1 < argc) {
            o.image = argv[++i];
            continue;
        }
        int result = run_case(&d, argv[i], &o);
        o.image = NULL;
        done += result == 1;
        failed += result == 0;
        skipped += result < 0;
    }
    printf("%d cases right, %d wrong, %d skipped (of another chip, or of the simulator only)\n", done, failed, skipped);
    return failed > 0 || done == 0;
}
