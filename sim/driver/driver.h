/* The simulated driver's state and what its files share. One process has one driver, as it has one libcuda; a lock makes its calls take turns. All
 * work is done when it is asked for, or with option late=N some time later (late.c). */
#ifndef SIM_DRIVER_DRIVER_H
#define SIM_DRIVER_DRIVER_H

#include "chip/chip.h"
#include "sim/machine/machine.h"
#include "other_calls.h"
#include "sim/machine/trace.h"

#define SIM_EXPORT __attribute__((visibility("default")))

#define CUDA_CALL(name, since, needed, parameters) SIM_EXPORT cuda_result cu##name parameters;
#include "device/cuda.def"
#undef CUDA_CALL
#define SIM_CALL(name, parameters) SIM_EXPORT cuda_result cu##name parameters;
#include "other_calls.def"
#undef SIM_CALL

/* The chip and its options, "h200,seed=3", before cuInit; the variable DEEPWELL_SIM says the same where nobody calls this. Another chip can be asked for
 * once all memory and code is given back. 0: taken; 1: the text is too long, or memory or code of another chip or other options is in use. What the
 * text means, cuInit says. */
SIM_EXPORT int deepwell_sim_configure(const char *options);

typedef struct driver {
    pthread_mutex_t lock;
    bool started;
    char configured[1024];
    char replacement[256];             /* the file of option ptx=, or "" */
    char digest[256];                  /* the file of option digest=, or "" */
    dw_context *context;
    chip_caps chip;
    sim_options options;
    sim_memory memory;
    sim_spares spares;
    uint64_t epoch;
    int64_t fail_alloc, fail_launch;   /* the n-th from now fails; 0: none */
    bool late;                         /* what is asked of streams is put off, */
    uint64_t late_seed;                /* .. and by this done by itself */
    bool times_zero;                   /* between events lies no time, instead of none that is known */
    sim_trace trace;
    cuda_result broken;                /* what a finding left behind: every later call returns it */
    cuda_log_callback log;
    void *log_user;
    int contexts;                      /* pushed */
    uint64_t thread_instructions, warp_instructions;
} driver;

extern driver sim_driver;

struct cuda_function_st {
    ptx_function *function;
    sim_code *code;
    struct cuda_library_st *library;
    int max_dynamic_shared;            /* 0: the default of 48 KiB with the static part */
    bool non_portable_cluster;
    struct cuda_function_st *next;
};

struct cuda_library_st {
    ptx_module *module;
    struct cuda_function_st *functions;
};

/* A launch as it was asked for, with the parameters' bytes. */
typedef struct driver_launch {
    cuda_function function;
    uint32_t grid[3], block[3], cluster[3];
    uint32_t preferred[3];             /* of the clusters that take the place of several; zeros: there are none */
    size_t shared_bytes;
    uint8_t *params;
    bool sized;                        /* it says the clusters' size */
    bool cooperative;
} driver_launch;
/* Of launches that overlap others: whether it begins early, and the number of the first of them, 0 if it is the first. */
typedef struct driver_overlap { bool early; uint64_t chain; } driver_overlap;

/* Something asked of a stream. drop: gives data back, also of what is never run; NULL: there is nothing to give back. */
typedef struct driver_work {
    cuda_result (*run)(void *data);
    void (*drop)(void *data);
    void *data;
} driver_work;
/* Under the lock (late.c). Does it, or puts it off. */
cuda_result driver_ask(const driver_work *work);
/* Does some of what was put off, as a device does that nobody waits for. */
void driver_go_on(void);
/* How much was asked for so far; is so much done? Does so much, or all, and returns what came of it. */
uint64_t driver_ticket(void);
bool driver_is_done(uint64_t ticket);
cuda_result driver_wait(uint64_t ticket);
cuda_result driver_finish(void);

/* Takes the lock; the call goes on only with CUDA_OK. */
cuda_result driver_enter(void);
cuda_result driver_leave(cuda_result result);
/* Tells the message to whoever listens, and returns the result. */
cuda_result driver_say(cuda_result result, const char *format, ...) BASE_PRINTF(2, 3);
/* The context's last message. */
cuda_result driver_fail(dw_status status, cuda_result result);
/* One of a launch's attributes; those that are not modelled change nothing. */
void driver_set_attribute(driver_launch *launch, cuda_launch_attribute_id id, const cuda_launch_value *value);
cuda_result driver_prepare(const cuda_launch_config *config, cuda_function function, void **parameters, void **extra, driver_launch *launch);
/* overlap NULL: it overlaps no other. */
cuda_result driver_execute(const driver_launch *launch, const driver_overlap *overlap);
/* Under the lock. One of each pair is given: the device's address, or the host's. */
cuda_result driver_copy(cuda_pointer to_device, void *to_host, cuda_pointer from_device, const void *from_host, size_t bytes);
/* Addresses whose type is unified may be of the host, too. */
cuda_result driver_copy_box(const cuda_copy *copy);
cuda_result driver_set(cuda_pointer to, uint32_t value, int element_bytes, size_t count);
cuda_result driver_set_rows(const cuda_memset_node *set);

#endif
