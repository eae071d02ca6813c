/* Opens the stand-in for the driver by the name that it exports. */
#include "support/driver.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#include "kernel/kernel.h"

fake_cuda_control *fake;

const char graph_text[] = "graph mlp\n"
                          "  input x f32[s,8]\n"
                          "  input w f32[8,16]\n"
                          "  input b f32[16]\n"
                          "  %1 = matmul x, w, b {post=\"bias\"}\n"
                          "  %2 = relu %1\n"
                          "  output y %2\n";

int open_driver(void **state) {
    const char *why;
    size_t bytes;
    (void)state;
    if (kernel_image("move", &bytes, &why) == NULL) {
        print_message("skipped: %s\n", why);
        return 0;
    }
    if (access(DRIVER, F_OK) != 0) {
        print_message("skipped: a build with sanitizers has no stand-in for the driver, whose coroutines they do not follow\n");
        return 0;
    }
    void *library = dlopen(DRIVER, RTLD_NOW);
    fake = library ? dlsym(library, "fake_cuda") : NULL;
    if (fake == NULL) print_message("%s\n", dlerror());
    return fake ? 0 : -1;
}

dw_context *context_of(void) {
    dw_context *context;
    if (fake == NULL) skip();
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    return context;
}

int count_calls(const char *name) {
    int count = 0;
    for (int i = 0; i < fake->calls && i < FAKE_CUDA_LOG; i++) count += strcmp(fake->log[i], name) == 0;
    return count;
}
