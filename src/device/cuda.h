/* The CUDA device among its own files: the driver as a table of functions, and what a device keeps. */
#ifndef DEVICE_CUDA_H
#define DEVICE_CUDA_H

#include "device/cuda_abi.h"
#include "device/device.h"

/* ---- the driver (cuda_load.c) ---- */

typedef struct cuda_driver {
#define CUDA_CALL(name, since, need, parameters) cuda_result (*name) parameters;
#include "device/cuda.def"
#undef CUDA_CALL
    void *library;
    const char *path;             /* what was loaded; in the arena given to cuda_driver_open */
    int version;                  /* 13000: CUDA 13.0 */
    bool is_simulated;            /* it has options */
    bool is_named;                /* another one than the GPU's own was asked for */
} cuda_driver;

/* The library path ("libcuda.so.1"), with every call of cuda.def. UNSUPPORTED: it is not there, or too old, and which call it lacks. options go to a stand-in
 * that exports int deepwell_sim_configure(const char *), which returns 0 when it takes them; NULL: there are none. */
dw_status cuda_driver_open(arena *arena, const char *path, const char *options, cuda_driver *driver);
void cuda_driver_close(cuda_driver *driver);
/* A failed call: its name and the driver's name and words for the error. NO_MEMORY for the driver's out of memory, else UNSUPPORTED. */
dw_status cuda_fail(dw_context *context, const cuda_driver *driver, cuda_result result, const char *call);

/* Returns from the function with the driver's error when the call fails. */
#define CUDA_TRY(context, driver, call, ...)                                                                  \
    do {                                                                                                      \
        cuda_result cuda_try_ = (driver)->call(__VA_ARGS__);                                                  \
        if (cuda_try_ != CUDA_OK) return cuda_fail((context), (driver), cuda_try_, "cu" #call);               \
    } while (0)

/* ---- probing (cuda_probe.c) ---- */

/* The capabilities of a device: those of its chip's row, with what this one has more or less of. */
dw_status cuda_probe(dw_context *context, const cuda_driver *driver, cuda_device device, chip_caps *caps);

/* ---- the device (cuda.c) ---- */

/* A library of a vendor's that was found. */
typedef struct cuda_vendor { const kernel_library *library; void *own; } cuda_vendor;

typedef struct cuda_state {
    arena arena;
    cuda_driver driver;
    cuda_device ordinal;
    cuda_context primary;         /* the one that PyTorch uses, too */
    bool retained;
    cuda_stream stream;           /* its own, which is behind all that was started on others */
    cuda_stream current;          /* where work goes now: its own, or a caller's */
    cuda_event done;              /* of the last work on a caller's stream */
    cuda_graph captured;          /* that the caller's stream is being captured to; NULL: it is not */
    cuda_capture_mode mode;       /* of the caller's thread meanwhile */
    map libraries, functions;     /* by image; by entry, -> cuda_entry */
    cuda_vendor vendors[KERNEL_LIBRARIES];   /* own NULL: it is not there */
    bool carries;                 /* kernels reach pinned memory of the host at its own address */
    kernel_fault *fault;          /* in memory of the host, which kernels write, too */
    cuda_pointer counters;        /* KERNEL_SLOT_COUNTERS: zeros between launches, as those of an opened device run one behind the other, but for those that wait by themselves for the ones in front */
} cuda_state;

/* A function, and what its launches so far have needed to be allowed. */
typedef struct cuda_entry {
    cuda_kernel kernel;
    cuda_function function;
    uint32_t shared_bytes;        /* beside what the function declares itself; 0: nothing was asked for yet */
    bool large_clusters;
} cuda_entry;

static inline cuda_state *cuda_state_of(const device *device) { return device->own; }

/* ---- its context (cuda_context.c) ---- */

/* The calls of one device happen in its context; a capture that the caller has under way does not forbid them, as they are no part of it. enter fails when the
 * driver does; one enter at a time. */
dw_status cuda_enter(device *device);
void cuda_leave(device *device);

/* ---- launches (cuda_launch.c) ---- */

/* The function of a launch; its image is loaded when it is first asked for. */
dw_status cuda_find_entry(device *device, const kernel_launch *launch, cuda_function *function);
/* Writes addresses, fault place and tensor maps into launch->arguments. */
dw_status cuda_fill_slots(device *device, const kernel_run *run, uint32_t step, kernel_launch *launch);
dw_status cuda_run_row(device *device, const kernel_row *row, kernel_run *run);
dw_status cuda_carry(device *device, int count, const kernel_piece *pieces, bool *done);

/* ---- libraries of vendors (cuda_library.c) ---- */

/* Opens those that asked names: see device.def. NOT_FOUND: one that was asked for is not there. */
dw_status cuda_libraries_open(device *device, const char *asked);
void cuda_libraries_close(device *device);
/* Adds ", cuBLASLt 13.1.1" and so on to words. */
void cuda_libraries_tell(const device *device, char *words, size_t size);
/* Makes the call that a launch is, in the stream, */
dw_status cuda_library_enqueue(device *device, const kernel_launch *launch, cuda_stream stream);
/* or as a graph, which is the caller's. */
dw_status cuda_library_capture(device *device, const kernel_launch *launch, cuda_graph *graph);

/* ---- streams of callers (cuda_stream.c) ---- */

dw_status cuda_follow(device *device, void *stream, bool *captured);
dw_status cuda_lead(device *device);
/* The graph becomes a node of the one that the current stream is being captured to. */
dw_status cuda_add_captured(device *device, cuda_graph graph);

/* ---- device graphs (cuda_graph.c) ---- */

typedef struct graph_node {
    kernel_launch launch;
    cuda_function function;
    cuda_graph child;             /* of a library's call */
    cuda_node node;
    uint32_t step;                /* from 1 */
} graph_node;

struct device_graph {
    arena arena;
    graph_node **nodes;
    size_t count, capacity;       /* nodes of the executable graph, or of the one that is being made */
    graph_node *first, *last;     /* what it carries in front of its launches and behind them; NULL: it never has, else they may carry nothing */
    size_t place;                 /* the next launch is compared with this node */
    uint32_t step;
    bool differs;                 /* from exec, in more than can be patched */
    cuda_graph graph;
    cuda_graph_exec exec;
};

/* Behind before, which is previous in the graph, and before is all that may be NULL. previous NULL: behind no launch that it could overlap with. */
dw_status cuda_graph_add_node(device *device, cuda_graph graph, const graph_node *node, const graph_node *previous, const cuda_node *before, cuda_node *made);
/* May the node begin before the one in front of it has ended? */
bool cuda_graph_is_early(const graph_node *before, const graph_node *node);

dw_status cuda_graph_create(device *device, device_graph **graph);
dw_status cuda_graph_begin(device *device, device_graph *graph);
dw_status cuda_graph_add(device *device, device_graph *graph, const kernel_row *row, kernel_run *run);
dw_status cuda_graph_ready(device *device, device_graph *graph);
dw_status cuda_graph_carry(device *device, device_graph *graph, int first_count, const kernel_piece *first, int last_count, const kernel_piece *last, bool *done);
dw_status cuda_graph_launch(device *device, device_graph *graph);
void cuda_graph_release(device *device, device_graph *graph);

/* ---- times of device graphs (cuda_times.c) ---- */

dw_status cuda_graph_time(device *device, device_graph *graph, int runs, device_times *times);

#endif
