/* An ordinary program on the CUDA driver's interface, which knows of no simulator: it loads libcuda.so.1, asks for entry points by cuGetProcAddress, as the
 * toolkit's runtime does, and by their versioned names, and adds two vectors by a kernel in PTX. Prints the sum's last element. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 1000 };

static const char ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry add(.param .u64 x, .param .u64 y, .param .u64 z, .param .u32 n)\n{\n"
    " .reg .pred %p; .reg .f32 %f<3>; .reg .b32 %r<6>; .reg .b64 %d<8>;\n"
    " ld.param.u32 %r0, [n]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r1, %r2, %r3;\n"
    " setp.ge.u32 %p, %r4, %r0; @%p bra done;\n"
    " ld.param.u64 %d0, [x]; ld.param.u64 %d1, [y]; ld.param.u64 %d2, [z];\n"
    " mul.wide.u32 %d3, %r4, 4; add.u64 %d4, %d0, %d3; add.u64 %d5, %d1, %d3; add.u64 %d6, %d2, %d3;\n"
    " ld.global.f32 %f0, [%d4]; ld.global.f32 %f1, [%d5]; add.f32 %f2, %f0, %f1; st.global.f32 [%d6], %f2;\n"
    "done: ret;\n}\n";

static void *library;

static void *by_name(const char *name) {
    void *found = dlsym(library, name);
    if (found == NULL) {
        printf("no %s\n", name);
        exit(1);
    }
    return found;
}

static void *by_symbol(const char *name) {
    int (*get)(const char *, void **, int, uint64_t, int *) = NULL;
    void *found = NULL, *symbol = by_name("cuGetProcAddress_v2");
    memcpy(&get, &symbol, sizeof get);
    if (get(name, &found, 12000, 0, NULL) != 0 || found == NULL) {
        printf("cuGetProcAddress knows no %s\n", name);
        exit(1);
    }
    return found;
}

#define CALL(how, name, parameters, ...)                                  \
    do {                                                                  \
        int (*call) parameters;                                           \
        void *symbol = how(name);                                         \
        memcpy(&call, &symbol, sizeof call);                              \
        int result = call(__VA_ARGS__);                                   \
        if (result != 0) {                                                \
            printf("%s: %d\n", name, result);                             \
            return 1;                                                     \
        }                                                                 \
    } while (0)

int main(void) {
    int device, count, major, mode, n = COUNT, least, greatest;
    void *context, *module, *function, *stream;
    uint64_t x, y, z;
    size_t stack, room;
    char name[100], bus[20];
    float a[COUNT], b[COUNT], c[COUNT];
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        printf("%s\n", dlerror());
        return 1;
    }
    for (int i = 0; i < COUNT; i++) {
        a[i] = (float)i;
        b[i] = 0.5f;
    }
    CALL(by_symbol, "cuInit", (unsigned), 0);
    CALL(by_symbol, "cuDeviceGetCount", (int *), &count);
    CALL(by_symbol, "cuDeviceGet", (int *, int), &device, 0);
    CALL(by_symbol, "cuDeviceGetName", (char *, int, int), name, sizeof name, device);
    CALL(by_symbol, "cuDeviceGetAttribute", (int *, int, int), &major, 75, device);
    CALL(by_symbol, "cuDeviceGetPCIBusId", (char *, int, int), bus, sizeof bus, device);
    CALL(by_symbol, "cuModuleGetLoadingMode", (int *), &mode);
    CALL(by_name, "cuCtxCreate_v2", (void **, unsigned, int), &context, 0, device);
    CALL(by_symbol, "cuCtxGetLimit", (size_t *, int), &stack, 0);
    CALL(by_symbol, "cuCtxGetStreamPriorityRange", (int *, int *), &least, &greatest);
    CALL(by_symbol, "cuStreamCreateWithPriority", (void **, unsigned, int), &stream, 1, greatest);
    CALL(by_symbol, "cuModuleLoadData", (void **, const void *), &module, ptx);
    CALL(by_symbol, "cuModuleGetFunction", (void **, void *, const char *), &function, module, "add");
    CALL(by_symbol, "cuMemAlloc", (uint64_t *, size_t), &x, sizeof a);
    CALL(by_name, "cuMemAlloc_v2", (uint64_t *, size_t), &y, sizeof b);
    CALL(by_symbol, "cuMemAlloc", (uint64_t *, size_t), &z, sizeof c);
    CALL(by_symbol, "cuMemGetAddressRange", (uint64_t *, size_t *, uint64_t), NULL, &room, z + 4);
    CALL(by_name, "cuMemcpyHtoD_v2", (uint64_t, const void *, size_t), x, a, sizeof a);
    CALL(by_symbol, "cuMemcpyHtoDAsync", (uint64_t, const void *, size_t, void *), y, b, sizeof b, stream);
    void *parameters[] = {&x, &y, &z, &n};
    CALL(by_symbol, "cuLaunchKernel", (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **), function, (COUNT + 127) / 128, 1, 1, 128, 1,
         1, 0, stream, parameters, NULL);
    CALL(by_symbol, "cuStreamSynchronize", (void *), stream);
    CALL(by_symbol, "cuMemcpy", (uint64_t, uint64_t, size_t), (uint64_t)(uintptr_t)c, z, sizeof c);
    CALL(by_symbol, "cuMemFree", (uint64_t), x);
    CALL(by_symbol, "cuModuleUnload", (void *), module);
    CALL(by_name, "cuCtxDestroy_v2", (void *), context);
    printf("%d device, %s, compute capability %d: %.1f, %zu bytes\n", count, name, major, (double)c[COUNT - 1], room);
    return 0;
}
