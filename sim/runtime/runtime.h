/* The calls of CUDA's runtime that programs compiled by nvcc make, over the driver's: libcudart.so.13 for programs that run on the simulated driver, since the toolkit's own runtime
 * speaks to the vendor's driver alone. Streams and events are the driver's; there is one device. Calls that are not here are missing when the program is loaded, and
 * not quietly answered. */
#ifndef SIM_RUNTIME_RUNTIME_H
#define SIM_RUNTIME_RUNTIME_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stdint.h>

/* The driver is started and its context current, as the first call does. */
CUresult runtime_start(void);
/* Keeps a failure as the thread's last error. The numbers of errors are the same for both interfaces. */
cudaError_t runtime_note(CUresult result);
/* What the program names by an address of its own. */
CUresult runtime_function(const void *host, CUfunction *function);
CUresult runtime_variable(const void *host, CUdeviceptr *address, size_t *bytes);

/* A call of the driver as the whole of one of the runtime. */
#define DRIVER(call)                                                        \
    do {                                                                    \
        CUresult started_ = runtime_start();                                \
        return runtime_note(started_ == CUDA_SUCCESS ? (call) : started_);  \
    } while (0)

#endif
