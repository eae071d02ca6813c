/* What a test sees of the stand-in for the driver, and how it makes it fail. Found by the name fake_cuda in the library. */
#ifndef TESTS_CUDA_CONTROL_H
#define TESTS_CUDA_CONTROL_H

#include <stddef.h>

enum { FAKE_CUDA_LOG = 65536 };

typedef struct fake_cuda_control {
    const char *name;             /* of its only GPU: "NVIDIA A100-SXM4-80GB" */
    int major, minor, units, version;
    size_t memory_bytes;
    int fail_at;                  /* this call, counted from 1, fails with CUDA_UNKNOWN; 0: none */
    int lost_at;                  /* from this call on all fail with it, as when a kernel's fault takes the context; 0: none */
    int calls;                    /* so far */
    int launches;                 /* of kernels, in graphs or not */
    void *stream;                 /* where the last graph was launched */
    void *capturing, *captured;   /* a stream that is being captured, and the graph that it is captured to; NULL: none */
    int flip;                     /* these bits of the first byte of what is read from device memory are turned round */
    unsigned late;                /* a seed: work is done some time before it is waited for; 0: when it is asked for */
    int apart;                    /* kernels do not reach memory of the host */
    int is_full;                  /* nobody gets memory of it */
    int refuses_pitches;          /* copies of rows that lie apart fail with CUDA_INVALID_VALUE */
    double kernel_ms, event_ms;   /* what a kernel, and recording an event, take by the clock of events */
    int full_edges;               /* in graphs: between nodes of which the second waits for the end of the first */
    int live;                     /* allocations, graphs, streams, contexts and whatever else has to be given back */
    const char *log[FAKE_CUDA_LOG];   /* the calls by name, from log[0] on */
    int library_version;          /* of the stand-in for cuBLASLt: 130000 */
    int cudnn_version;            /* of the stand-in for cuDNN: 91900 */
    int library_refuses;          /* they propose nothing for any call */
    int library_asked;            /* how often it was asked what there is for a product */
    int library_calls;            /* products and attentions that they have run */
    int library_over;             /* products whose results of 16 bits went over what was added to them */
    int library_live;             /* their handles, descriptions, layouts and preferences */
} fake_cuda_control;

/* For stand-ins of libraries, in the same file: run becomes work of the stream, or of the graph that the stream is captured to. */
void fake_cuda_put(void *stream, void (*run)(const void *arguments), const void *arguments, size_t bytes);

#endif
