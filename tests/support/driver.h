/* The stand-in for the CUDA driver (tests/cuda) in tests of the device: opening it, what it was called for, and a small graph to run. */
#ifndef SUPPORT_DRIVER_H
#define SUPPORT_DRIVER_H

#include "support/support.h"
#include "tests/cuda/control.h"

#define DRIVER TEST_BUILD_DIR "/tests/libfake_cuda.so"
#define DEVICE_NAME "cuda:0,driver=" DRIVER

/* NULL where the build has no GPU code or no stand-in. */
extern fake_cuda_control *fake;

/* relu(x w + b): inputs x f32[s,8], w f32[8,16], b f32[16], output y. */
extern const char graph_text[];

/* A group's setup: says why there is no stand-in, where there is none. */
int open_driver(void **state);
/* A context to destroy; skips the test where there is no stand-in. */
dw_context *context_of(void);
/* Calls of this name in the log. */
int count_calls(const char *name);

#endif
