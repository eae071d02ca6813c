/* Devices: memory that kernels can reach and something that runs them. One implementation per row of device.def.
 * Knows nothing of graphs, plans or models. */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H

#include "kernel/kernel.h"

typedef struct device device;
typedef struct device_graph device_graph;

enum { DEVICE_ALIGN = 16 };   /* of operands: kernels may read so many bytes at a time */

/* What a graph takes on the device, from the start of its first launch to the end of its last. whole: as it is launched. apart: with each step kept from beginning before the one in front of
 * it has ended. steps[i]: of step i, of as many as were added, so kept apart; they add up to apart, as what it costs to look at the clock between them, per_look, is taken off. */
typedef struct device_times {
    double whole, apart, per_look, *steps;
    size_t step_count;
    int launches, early;          /* all, and those that may begin before the one in front of them has ended */
} device_times;

/* A place in the order of what was started; one that is timed says when the device came by, too, by its own clock. */
typedef enum device_mark_kind { DEVICE_MARK, DEVICE_MARK_TIMED } device_mark_kind;

/* Rows of so many bytes each, pitches apart; those of the one do not overlap those of the other. */
typedef struct device_rows { void *to; const void *from; size_t to_pitch, from_pitch, bytes, count; } device_rows;

/* What an implementation provides. Addresses are the device's own; on the CPU they are host addresses. */
typedef struct device_calls {
    void (*close)(device *device);
    /* At least bytes bytes, aligned to 64 or more, uninitialised. bytes 0 gives NULL. */
    dw_status (*alloc)(device *device, size_t bytes, void **memory);
    void (*release)(device *device, void *memory, size_t bytes);
    /* Bytes that nobody has taken, by any program. NULL on the CPU. */
    dw_status (*left)(device *device, size_t *bytes);
    dw_status (*write)(device *device, void *to, const void *from_host, size_t bytes);
    dw_status (*read)(device *device, void *to_host, const void *from, size_t bytes);
    dw_status (*copy)(device *device, void *to, const void *from, size_t bytes);
    /* Pieces by one launch, in order with all that was started. Memory that pin gave may be among them. *done false: they cannot be carried, and nothing was started. NULL on the CPU. */
    dw_status (*carry)(device *device, int count, const kernel_piece *pieces, bool *done);
    dw_status (*copy_rows)(device *device, const device_rows *rows);
    dw_status (*fill)(device *device, void *to, int byte, size_t bytes);
    /* Runs one kernel on operands in device memory. May return before it is done: synchronize waits. run->pool is filled in by the CPU device. */
    dw_status (*run)(device *device, const kernel_row *row, kernel_run *run);
    /* Waits for all that was started. INVALID when a kernel has met what a host kernel would have returned as an error; fault_step says where. */
    dw_status (*synchronize)(device *device);
    /* The driver's name and version, which measurements are good for, in words; false: the device is simulated. NULL: there is no driver. */
    bool (*driver)(const device *device, char *words, size_t size);
    /* As synchronize, without waiting: what kernels are known to have met by now. */
    dw_status (*poll)(device *device);
    /* From here to lead, what is started goes to this stream of the caller's, behind what the stream holds and all that was started on the device before, and
     * nothing waits for the device. A stream that is being captured gets graphs as nodes of its own graph (*captured: it did); single kernels it gets none. NULL
     * where there are no streams. */
    dw_status (*follow)(device *device, void *stream, bool *captured);
    dw_status (*lead)(device *device);
    /* Memory of the host that copies to and from the device need not wait for; what write and read are given there is read and written later, in order with all that was started. NULL on the CPU, */
    dw_status (*pin)(device *device, size_t bytes, void **memory);
    void (*unpin)(device *device, void *memory);
    /* and so are marks: a place behind all that was started before it was set. await returns when all in front of that is done, as synchronize does. */
    dw_status (*mark_create)(device *device, device_mark_kind kind, void **mark);
    void (*mark_release)(device *device, void *mark);
    dw_status (*mark)(device *device, void *mark);
    dw_status (*await)(device *device, void *mark);
    /* Seconds from one timed mark to the other; both were set, and the second was awaited. UNSUPPORTED on a simulated device, which has no clock. */
    dw_status (*elapsed)(device *device, void *first, void *last, double *seconds);
    /* Steps as one thing to start; NULL where steps run one by one. A run records its steps: begin, add each, launch. Recording the same steps again, with
     * other addresses or sizes, changes the graph in place and allocates nothing. */
    dw_status (*graph_create)(device *device, device_graph **graph);
    dw_status (*graph_begin)(device *device, device_graph *graph);
    dw_status (*graph_add)(device *device, device_graph *graph, const kernel_row *row, kernel_run *run);
    /* All that a launch of the recorded graph needs; graph_launch does it where nobody has. */
    dw_status (*graph_ready)(device *device, device_graph *graph);
    /* Behind graph_begin and graph_add, or in a graph that stays as it was recorded: its launches from now on copy those pieces first, and these last, each by one launch of the graph, in place of those of before; see kernel_piece.
     * *done false: some cannot be carried, and nothing is. */
    dw_status (*graph_carry)(device *device, device_graph *graph, int first_count, const kernel_piece *first, int last_count, const kernel_piece *last, bool *done);
    dw_status (*graph_launch)(device *device, device_graph *graph);
    void (*graph_release)(device *device, device_graph *graph);
    /* Runs the recorded graph some times more and gives medians of seconds on the device; see device_times. UNSUPPORTED on a simulated device. */
    dw_status (*graph_time)(device *device, device_graph *graph, int runs, device_times *times);
} device_calls;

struct device {
    const device_calls *calls;
    dw_context *context;
    chip_caps caps;
    bool host_memory;             /* the host may read and write device memory directly, and device kernels the host's */
    pool *pool;                   /* of the CPU device; else NULL */
    char place[64];               /* the name of its memory: "cuda:0", "sim:h200" */
    uint32_t fault_step;          /* of the last fault: the number of the step in its graph, from 1; 0: outside of one */
    void *own;                    /* of the implementation */
};

/* "cpu", "cpu:avx2", ..: NOT_FOUND lists the kinds. The context's number of threads is the CPU's. */
dw_status device_open(dw_context *context, const char *name, device **device);
void device_close(device *device);                  /* NULL is allowed */
/* Is it one whose times say nothing? NULL, the CPU of a model without a device, is none. */
bool device_is_simulated(const device *device);
/* Is it the device of that name? "cuda" is "cuda:0"; what follows a comma are options. */
bool device_is_named(const device *device, const char *name);
int device_kind_count(void);
const char *device_kind_name(int index);
const char *device_kind_meaning(int index);

/* Capabilities without opening anything: of the machine's CPU (level "" or a CPU row's name without "cpu-": the row's features only; UNSUPPORTED
 * when the machine lacks them), threads as given. */
dw_status device_probe_cpu(dw_context *context, const char *level, int threads, chip_caps *caps);
/* Replaces bandwidth and rates by measured ones: a tenth of a second. Plans made for the row keep their hash only without it. */
dw_status device_measure_cpu(dw_context *context, pool *pool, chip_caps *caps);
/* The same of reading what the last-level cache holds. */
dw_status device_measure_cpu_cache(dw_context *context, pool *pool, chip_caps *caps);

/* The CPU's copy_rows, for memory of the host that no device was opened for. */
void device_copy_host_rows(const device_rows *rows);

/* Implementations, named by device.def. detail is what follows the colon, "" without one. */
dw_status device_cpu_open(dw_context *context, const char *detail, device **device);
dw_status device_cuda_open(dw_context *context, const char *detail, device **device);
dw_status device_sim_open(dw_context *context, const char *detail, device **device);

#endif
