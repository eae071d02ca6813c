/* The simulated machine: decoded code, memory, launches, clusters, CTAs, warps, and what the handlers of instructions work on.
 *
 * A warp's registers are rows: one value per lane side by side, so that a handler is a loop over 32 lanes. A row is named by its byte offset in the
 * registers of the frame, or, with the top bit, in the constants of the function. A predicate's row is one 32-bit mask. */
#ifndef SIM_MACHINE_MACHINE_H
#define SIM_MACHINE_MACHINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "sim/ptx/ptx.h"

enum {
    LANES = 32,
    SIM_MAX_ARGS = 8,
    SIM_BARRIERS = 16,
    SIM_MAX_WARPS = 32,              /* of a CTA */
    SIM_MAX_CLUSTER = 16,
    SIM_SHARED_RESERVED = 1024,      /* of a CTA's shared window, before its own */
};

#define SIM_ALL_LANES 0xffffffffu
#define SIM_CONSTANT_ROW 0x80000000u
#define SIM_NO_ROW 0xffffffffu

/* Where the windows of other spaces lie in generic addresses. Inside the shared one, the CTA's rank in its cluster stands from bit 24 up. */
#define SIM_SHARED_WINDOW 0x0000700000000000ull
#define SIM_LOCAL_WINDOW  0x0000710000000000ull
#define SIM_PARAM_WINDOW  0x0000720000000000ull
#define SIM_CODE_WINDOW   0x0000730000000000ull   /* of functions: 16 bytes for each of the module, which nobody can read */
#define SIM_WINDOW_BYTES  0x0000000010000000ull
#define SIM_GLOBAL_BASE   0x0000300000000000ull   /* device addresses are no host addresses: a program that mixes them up fails, as on a GPU */
#define SIM_RANK_SHIFT 24

typedef struct sim_op sim_op;
typedef struct sim_warp sim_warp;
typedef struct sim_cta sim_cta;
typedef struct sim_cluster sim_cluster;
typedef struct sim_launch sim_launch;
typedef struct sim_code sim_code;
typedef struct sim_frame sim_frame;
typedef struct sim_memory sim_memory;
struct sim_trace;

/* What becomes of the fragment that ran an instruction: it goes on; it is somewhere else (the handler set it); it repeats the instruction when
 * something has changed; the launch ends with a finding. */
typedef enum sim_flow { SIM_NEXT, SIM_JUMPED, SIM_WAIT, SIM_STOP } sim_flow;
/* mask: the active lanes whose guard holds; never 0. */
typedef sim_flow (*sim_handler)(sim_warp *w, const sim_op *op, uint32_t mask);

/* ---- decoded code ---- */

/* Every modifier that some form has, as a bit. */
typedef enum sim_modifier {
#define SIM_MODIFIER(name, word) SIM_MOD_##name,
#include "sim/ptx/modifier.def"
#undef SIM_MODIFIER
    SIM_MODIFIER_COUNT
} sim_modifier;
/* Two words: there are more than 64. */
typedef struct sim_modifiers { uint64_t bits[4]; } sim_modifiers;
struct sim_decoding;
static inline bool sim_has(const sim_modifiers *m, sim_modifier modifier) { return m->bits[modifier / 64] >> (modifier % 64) & 1; }

/* A row of ptx.def. */
typedef struct sim_form {
    const char *pattern, *types, *operands;
    sim_handler (*select)(struct sim_decoding *d);
    char evidence;                  /* H a hardware vector, P an independent kernel, I the ISA text alone */
    const char *section, *meaning;
} sim_form;

/* What offset and extra say of where an instruction may go: offset is an op; extra holds offset many (uint32_t). */
typedef enum sim_target { SIM_NO_TARGET, SIM_ONE_TARGET, SIM_TABLE_TARGET } sim_target;

struct sim_op {
    sim_handler run;
    uint32_t guard;                 /* row of the predicate; SIM_NO_ROW: none */
    bool guard_negated;
    uint8_t space;                  /* ptx_space */
    uint8_t bytes;                  /* of one element in memory */
    uint8_t count;                  /* elements of a vector */
    uint8_t small;                  /* whatever a family needs: a comparison, a rounding */
    uint8_t type, type2;
    uint16_t shape[3];              /* m, n, k of a product */
    uint8_t target;                 /* sim_target */
    bool of_cluster;                /* the space is .shared::cluster: rank 0 is CTA 0, and not the own one */
    bool address_wide;              /* the base of the address is a 64-bit row */
    uint8_t arg_count;
    uint32_t arg[SIM_MAX_ARGS];
    const uint32_t *rows;           /* of a vector operand; of two, one behind the other */
    int64_t offset;                 /* added to an address; the target of a branch */
    const void *extra;              /* of the family */
    sim_modifiers mods;
    int instruction;                /* index into the function's */
};

/* An instruction reads or writes a register. */
typedef struct sim_use { uint32_t instruction, reg; bool writes; } sim_use;

/* A register that has a value when a function begins: a special register, or an address in local memory. */
typedef struct sim_given { int what; uint32_t row; int64_t value; } sim_given;

struct sim_code {
    const ptx_module *module;
    const ptx_function *function;
    sim_op *ops;                    /* op_count; the last one is a return that nobody wrote */
    size_t op_count;
    uint8_t *constants;
    size_t constant_bytes, register_bytes;
    size_t shared_rows_at, shared_rows_end;   /* of the register_bytes: rows that are written before they are read; all others are 0 at the beginning */
    sim_given *given;
    size_t given_count;
    uint32_t *watched;              /* rows that asynchronous products read or write (isa/wgmma.c), by number; their states lie in the registers at watch_at */
    size_t watched_count, watch_at;
    const uint32_t *rows;           /* of the function's registers, some of which share one (decode/rows.c) */
    const sim_use *uses;            /* of registers, in the order of the instructions */
    size_t use_count;
    size_t local_bytes;             /* of its own frame: .local and .param variables */
    size_t stack_bytes;             /* with the deepest chain of calls */
    /* of entries: */
    size_t param_bytes, shared_bytes;
    bool shared_dynamic;
    bool talks;                     /* its CTAs may talk to each other: atomics, volatile or ordered accesses, fences */
    bool mbarriers;                 /* it makes some */
    bool cancels;                   /* it takes over clusters that were not launched yet */
    bool tensor_fences;             /* it has some tcgen05.fence */
    bool decoding;
};

/* Decodes a kernel and all that it calls, on first use. UNSUPPORTED names the first instruction or form that no row of ptx.def describes, with its
 * lines. *code stays the module's. */
dw_status sim_decode(dw_context *context, ptx_module *module, ptx_function *function, sim_code **code);
/* The address of a module's function in generic addresses, and the function of an address; NULL: there is none. */
uint64_t sim_function_address(const ptx_module *module, const ptx_function *function);
ptx_function *sim_function_at(const ptx_module *module, uint64_t address);
/* Lays out a module's global and constant variables in memory and writes their values. */
dw_status sim_place_variables(dw_context *context, ptx_module *module, sim_memory *memory);
const sim_form *sim_forms(size_t *count);

/* ---- memory (mem.c) ---- */

/* Of a byte: it has a value; was written by ordinary stores since the last proxy fence; may still be written, or read, asynchronously; belongs to an mbarrier;
 * may still be read by a tensor core; came as a response of cluster launch control, and was read by ordinary loads since the last proxy fence. */
enum { SHADOW_WRITTEN = 1, SHADOW_GENERIC = 2, SHADOW_FLIGHT = 4, SHADOW_SOURCE = 8, SHADOW_MBARRIER = 16, SHADOW_TENSOR = 32, SHADOW_RESPONSE = 64, SHADOW_READ = 128 };

/* What any of a few bytes has, and what all have; bytes is at least 1. */
typedef struct sim_shadows { uint8_t any, all; } sim_shadows;
static inline sim_shadows sim_shadows_of(const uint8_t *shadow, size_t bytes) {
    sim_shadows s = {shadow[0], shadow[0]};
    if (bytes >= 8) {
        uint64_t any = 0, all = UINT64_MAX, word;
        size_t i = 0;
        for (; i + 8 <= bytes; i += 8) {
            memcpy(&word, shadow + i, 8);
            any |= word;
            all &= word;
        }
        memcpy(&word, shadow + bytes - 8, 8);
        any |= word;
        all &= word;
        any |= any >> 32;
        any |= any >> 16;
        all &= all >> 32;
        all &= all >> 16;
        return (sim_shadows){(uint8_t)(any | any >> 8), (uint8_t)(all & all >> 8)};
    }
    for (size_t i = 1; i < bytes; i++) {
        s.any |= shadow[i];
        s.all &= shadow[i];
    }
    return s;
}

/* Whose memory: the device's; the host's, pinned or registered by it, which kernels reach at its own address; managed: of both. What the host writes is not seen, so only the
 * device's is ever uninitialised. */
typedef enum sim_origin { SIM_OF_DEVICE, SIM_OF_HOST, SIM_REGISTERED, SIM_MANAGED } sim_origin;

typedef struct sim_allocation {
    uint64_t address;
    size_t bytes;
    sim_origin origin;
    uint8_t *host, *shadow;
    void *owned;                     /* what holds the bytes; NULL of registered memory */
    struct sim_cell *cells;          /* per 4 bytes: who wrote and read them (race.h); NULL until a launch looks for races */
    _Atomic uint32_t *writers;       /* per 16 bytes: the last launch that wrote there, of those that overlap (early.c); NULL until there is one */
    bool read_only;
    char name[48];                   /* of a variable, or "" */
} sim_allocation;

struct sim_memory {
    dw_context *context;
    sim_allocation **allocations;    /* by address */
    size_t count, capacity;
    uint64_t next;
    size_t used, used_most, limit;
};

void sim_memory_init(sim_memory *memory, dw_context *context, size_t limit);
void sim_memory_free(sim_memory *memory);
/* NO_MEMORY beyond the limit. Uninitialised, and zeros for those who read it nevertheless. Alignment 512; a gap no access may touch follows. */
dw_status sim_memory_alloc(sim_memory *memory, size_t bytes, uint64_t *address);
/* Of the host's addresses: pinned or managed memory, zeros; with the same alignment. */
dw_status sim_memory_alloc_host(sim_memory *memory, size_t bytes, sim_origin origin, void **host);
/* The caller's own bytes. INVALID where some of them are known already. */
dw_status sim_memory_register(sim_memory *memory, void *host, size_t bytes);
bool sim_memory_release(sim_memory *memory, uint64_t address);
sim_allocation *sim_memory_find(const sim_memory *memory, uint64_t address);   /* the one that holds this byte; NULL */
/* The allocation that holds all of these bytes; NULL. */
sim_allocation *sim_memory_range(const sim_memory *memory, uint64_t address, size_t bytes);

/* Where an access lands. */
typedef struct sim_place { uint8_t *bytes, *shadow; sim_allocation *allocation; sim_cta *cta; ptx_space space; uint64_t offset; } sim_place;   /* cta: of shared memory */
typedef enum sim_access { SIM_READ, SIM_WRITE, SIM_ATOMIC } sim_access;
/* Checks bounds and alignment; false: a finding was made. */
bool sim_reach(sim_warp *w, const sim_op *op, int lane, ptx_space space, uint64_t address, size_t bytes, size_t align, sim_access access, sim_place *place);
/* Are these bytes written? Else a finding, and false. */
bool sim_check_written(sim_warp *w, const sim_op *op, int lane, const sim_place *place, size_t bytes, uint64_t address);
/* Did another CTA touch these bytes of global memory in this launch, with nothing that orders the two (race.c)? Else notes that this one did. false: a finding. */
bool sim_check_race(sim_warp *w, const sim_op *op, int lane, const sim_place *place, size_t bytes, uint64_t address, sim_access access, bool same_value);
/* The same of a read, without a finding. */
bool sim_may_read(sim_warp *w, const sim_place *place, size_t bytes);
/* Makes room for the marks of launches that overlap (early.c). */
bool sim_early_watch(sim_allocation *a);
/* Of global memory in a launch that overlaps others; early: the thread has not passed griddepcontrol.wait. May it? Else a finding, and false. Notes who writes. */
bool sim_check_early(sim_warp *w, const sim_op *op, int lane, const sim_place *place, size_t bytes, uint64_t address, sim_access access, bool early);
/* At the end of a launch: has it waited for those in front of it? Else a finding. */
void sim_check_waited(sim_launch *launch);
/* Did a fence.proxy.tensormap of the CTA come since this launch wrote the tensor map there (isa/tensormap.c)? Else a finding, and false. */
bool sim_check_map(sim_warp *w, const sim_op *op, int lane, uint64_t address);

/* What red does with two values of the op's type, by the modifier in op->small. */
uint64_t sim_combine(const sim_op *op, uint64_t old, uint64_t value, ptx_space space);

/* ---- warps ---- */

/* A row that asynchronous products use: how many under way write it, and read it; whether wgmma.fence came since ordinary instructions touched it. */
typedef struct sim_watch { uint16_t written, read; bool fenced; } sim_watch;

typedef enum sim_wait { SIM_READY, SIM_WAIT_LANES, SIM_WAIT_BARRIER, SIM_WAIT_CLUSTER, SIM_WAIT_REGISTERS, SIM_WAIT_POLL } sim_wait;

/* Lanes that are at one place. */
typedef struct sim_fragment {
    uint32_t pc, mask;
    sim_frame *frame;
    sim_wait wait;
    uint32_t wait_mask;           /* WAIT_LANES: those that must come */
    int barrier;                  /* WAIT_BARRIER */
    bool wants_result, has_result;   /* WAIT_BARRIER: of bar.red, which reads what the barrier gathered when it has opened */
    bool passed_over;             /* it spins: others first */
    uint64_t polled;              /* WAIT_POLL: the mbarrier's offset with its CTA's rank above (SIM_RANK_SHIFT); 0: no mbarrier */
    uint32_t polled_phase;
} sim_fragment;

/* One activation of a function by some lanes of a warp. */
struct sim_frame {
    sim_code *code;
    sim_frame *parent;
    uint32_t return_pc, lanes;    /* lanes still in it */
    const struct sim_call *call;
    size_t local_base;            /* of its variables in each lane's local memory */
    int depth;
    uint8_t *registers;
    size_t room;
};

struct sim_warp {
    uint8_t *base[2];             /* of the rows: registers of the running frame, constants of its function */
    sim_fragment *now;            /* the running fragment */
    sim_cta *cta;
    sim_launch *launch;
    int index;
    uint32_t lanes, live;         /* threads that exist; that have not left */
    sim_fragment fragments[LANES];
    int fragment_count;
    int spins;
    uint8_t *local, *local_shadow;   /* LANES times local_bytes */
    size_t local_bytes;
    sim_frame *free_frames;
    uint64_t executed;            /* warp instructions */
    uint64_t thread_instructions;
    sim_allocation *last;         /* the allocation found last */
    struct sim_copy *copies;      /* cp.async of this warp's lanes that were not waited for */
    size_t copy_count, copy_capacity;
    uint64_t copy_serial;
    uint32_t async_group[LANES];
    uint32_t bulk_group[LANES];   /* bulk groups committed by the lane */
    struct sim_source *sources;   /* of bulk stores that were done and not waited for (async.c) */
    size_t source_count, source_capacity;
    struct sim_product *products; /* wgmma that was not waited for */
    size_t product_count, product_capacity;
    uint32_t product_group;
    uint64_t products_issued;     /* in all */
    uint64_t cluster_phase[LANES];   /* of the cluster's barrier, when the lane last arrived, plus 1 */
    struct sim_trace *trace;      /* who prints what this warp does; NULL: nobody (trace.h) */
    uint32_t waited;              /* lanes that have passed griddepcontrol.wait */
    uint64_t collective;          /* number of the operation of a pair of CTAs that the warp is in; 0: none */
    int registers;                /* a thread has; 0: not known (isa/registers.c) */
    uint32_t register_changes;    /* setmaxnreg executed, and the last of them */
    const sim_op *register_change;
    uint64_t tensor_before, tensor_after;   /* when it last executed tcgen05.fence::before_thread_sync, ::after_thread_sync (tmem.h) */
};

/* arrived counts threads; expected 0: all that live. red_*: what was gathered, and what it was when the barrier last opened. */
typedef struct sim_barrier {
    int arrived, expected;
    uint32_t count, count_before;
    bool all, all_before, any, any_before;
} sim_barrier;

/* A commit, or a response of cluster launch control, that came to an mbarrier: the last one. */
typedef struct sim_awaited { uint64_t mbarrier; const sim_op *by; bool of_launch; } sim_awaited;

/* An mbarrier that other CTAs arrive at: the last one's instruction, and the phase of the cluster's barrier that comes behind it. */
typedef struct sim_reached { uint64_t mbarrier, phase; const sim_op *by; } sim_reached;

struct sim_cta {
    sim_launch *launch;
    sim_cluster *cluster;
    int rank;                     /* in the cluster */
    uint32_t id[3];
    uint64_t linear;
    uint8_t *shared, *shared_shadow;
    size_t shared_bytes;          /* with the reserved part */
    sim_warp *warps;
    int warp_count, warps_live;
    sim_barrier barriers[SIM_BARRIERS];
    int registers_free;           /* that its warps gave back: so many for each lane of one warp */
    struct sim_order *order;      /* of its warps (order.c), or NULL */
    struct sim_cta_race *race;    /* of it and other CTAs in global memory (race.c), or NULL */
    struct sim_tmem *tmem;        /* NULL until it is used (tmem.c) */
    bool untold;                  /* it has initialised mbarriers, which other CTAs do not know yet */
    bool declined;                /* it has seen that a request of cluster launch control was declined */
    sim_awaited *awaited;         /* mbarriers that somebody has to wait for before it ends */
    size_t awaited_count, awaited_capacity;
    uint64_t met, made;           /* phases of the cluster's barrier: the last one that one of its warps has waited for; the one behind which its mbarriers were initialised */
    sim_reached *reached;
    size_t reached_count;
    size_t maps_seen;             /* so many of the launch's written tensor maps came before the last fence.proxy.tensormap */
    uint16_t *tensor_reads;       /* per 16 bytes of shared memory: operations of tensor cores that may still read them; NULL until there is one */
};

struct sim_cluster {
    sim_launch *launch;
    sim_cta *ctas;
    int cta_count;
    uint32_t size[3];             /* CTAs along each dimension: clusters of one launch may have two sizes */
    uint64_t index;               /* of its first CTA's cluster, were all of the smaller size */
    uint32_t arrived;             /* threads at the cluster's barrier */
    uint64_t phase;
    uint32_t released[SIM_MAX_CLUSTER];   /* the times of its CTAs when they last released what they did to the others (race.c) */
    uint64_t order;               /* of the seeded choices */
    uint64_t executed;
    bool done, stopped;
    uint64_t changes;             /* of memory and barriers: what those who poll may be waiting for */
    uint64_t seen, quiet;         /* changes at the last pass, and passes since without any */
    struct sim_async *async;      /* copies under way, in order of issue (async.c) */
    size_t async_count, async_capacity;
    struct sim_tensor_queue *tensor;   /* operations of tensor cores under way (tensor_queue.c); NULL until there is one */
    uint64_t tensor_time;         /* counts what tensor memory's order depends on (tmem.h) */
};

/* ---- launches (launch/launch.c) ---- */

/* Which size of clusters a launch takes that names two: now one and now the other, or the same everywhere. */
typedef enum sim_cluster_choice { SIM_CLUSTERS_MIXED, SIM_CLUSTERS_PREFERRED, SIM_CLUSTERS_REGULAR } sim_cluster_choice;

typedef struct sim_options {
    uint64_t seed;
    uint64_t budget;              /* warp instructions of a launch */
    bool races, uninitialised;    /* findings of those kinds are made */
    bool lanes_routed;            /* a warp's loads and stores of tensor memory go to its own lanes, whatever lane their address says */
    bool loads_done, stores_done; /* loads, and stores, of tensor memory are done when they are issued, so nobody need wait for them */
    bool exit_early;              /* a CTA may end while its stores still read its shared memory, or a barrier awaits some of its threads */
    bool phases_unseen;           /* phases of mbarriers may end that nobody waits for, and a CTA in the middle of one */
    bool registers_unlimited;     /* setmaxnreg has no effect */
    bool registers_by_warp;       /* the warps of a warpgroup may execute different ones */
    bool inits_unfenced;          /* copies may use mbarriers with no fence behind their initialisation */
    bool proxies_one;             /* products and bulk copies see what ordinary stores wrote, with no fence.proxy.async between */
    bool fences_implied;          /* waits and barriers order tensor memory by themselves, in kernels that have tcgen05.fence, too */
    int declines;                 /* of a hundred requests of cluster launch control for which there is a cluster, so many are declined; -1: as the seed has it */
    sim_cluster_choice clusters;  /* where a launch names two sizes */
    int sm_count, arch;
    size_t shared_limit;          /* bytes of shared memory a CTA may have */
    int threads;
} sim_options;

/* Frames of warps that ended, for the next ones. */
typedef struct sim_spares { pthread_mutex_t lock; sim_frame *first; size_t bytes; } sim_spares;
void sim_spares_free(sim_spares *spares);

typedef struct sim_finding {
    char text[1500];
    uint64_t cluster;
    bool made;
} sim_finding;

struct sim_launch {
    dw_context *context;
    sim_code *code;
    sim_memory *memory;
    const sim_options *options;
    sim_spares *spares;
    uint32_t grid[3], block[3];
    uint32_t cluster[3], preferred[3];   /* sizes of its clusters: a multiple of cluster where it may have two, else the same */
    size_t dynamic_shared;
    int registers;                /* of each thread when it begins; 0: not fixed */
    const uint8_t *params;
    uint64_t grid_barrier;        /* of a cooperative launch: global memory whose second word the toolkit's grid barrier counts in; else 0 */
    uint64_t epoch;               /* number of the launch: 1, 2, .. */
    uint64_t chain;               /* of launches that overlap: the number of the first of them; else 0 */
    bool early;                   /* it begins before the one in front of it has ended */
    _Atomic bool waited;          /* some thread has passed griddepcontrol.wait */
    sim_finding finding;
    _Atomic uint64_t stop_at;     /* clusters from this index on need not go on: one before them has a finding */
    _Atomic uint64_t executed, thread_instructions;
    uint64_t *maps;               /* addresses of tensor maps that the launch wrote to global memory, in the order of writing; guarded by lock */
    size_t map_count;
    bool digests;                 /* digest is made: of what products read, and where they write */
    _Atomic uint64_t digest;
    uint64_t next, count;         /* places, each of a cluster of the preferred size: how many were launched, and how many there are */
    uint64_t split_place, split, parts;   /* a place that has become smaller clusters: how many of them were launched, and how many a place has; the same: none is left */
    uint64_t room;                /* CTAs that the chip holds at a time */
    uint64_t requests;            /* of cluster launch control, for which there was a cluster */
    uint64_t outside;             /* changes of global memory; counted where CTAs talk, which run in one thread */
    void (*print)(void *user, const char *text);
    void *print_user;
    struct sim_trace *trace;      /* of one of its warps; NULL: of none */
    struct sim_race *race;        /* what ordered accesses hand on (race.c); NULL until there is something */
    pthread_mutex_t lock;         /* of the finding, and of maps */
};

/* Where a cluster is: its first CTA, its size, its index. */
typedef struct sim_cluster_place { uint32_t first[3], size[3]; uint64_t index; } sim_cluster_place;
/* The place that is launched as the n-th, as one cluster or as part `part` of it. The seed changes the order among as many as the chip holds at a time: the first ones never wait
 * for a later one alone. */
sim_cluster_place sim_launch_place(const sim_launch *launch, uint64_t number, bool whole, uint64_t part);
/* Is that place to be one cluster, where so many CTAs are free? */
bool sim_launch_whole(const sim_launch *launch, uint64_t number, uint64_t free);
/* The next cluster to launch, of clusters that run by turns; false: there is none for which so many CTAs are enough, now (sim_launch_pending) or at all. */
bool sim_launch_next(sim_launch *launch, uint64_t free, sim_cluster_place *place);
bool sim_launch_pending(const sim_launch *launch);
/* The next one of that size is not launched; false: there is none. */
bool sim_launch_cancel(sim_launch *launch, const uint32_t size[3], sim_cluster_place *place);
static inline uint64_t sim_ctas_of(const uint32_t size[3]) { return (uint64_t)size[0] * size[1] * size[2]; }
/* Runs to the end. UNSUPPORTED, LIMIT: the launch is not possible. INVALID: a finding ended it, whose text is the message. */
dw_status sim_run(sim_launch *launch);

/* Makes a finding about an instruction of one lane (-1: of all); returns SIM_STOP. */
sim_flow sim_find(sim_warp *w, const sim_op *op, int lane, const char *format, ...) BASE_PRINTF(4, 5);

/* ---- flow (flow.c) ---- */

/* Runs a warp until it waits, ends or has executed quantum instructions. true: something happened. false: it can do nothing now. */
bool sim_warp_run(sim_warp *w, uint64_t quantum);
void sim_warp_start(sim_warp *w);
void sim_warp_free(sim_warp *w);
/* For instructions that all of members (and not more) execute together: true when they are all here, else the fragment waits: return SIM_WAIT. */
bool sim_together(sim_warp *w, uint32_t members, uint32_t mask);
/* Of an instruction whose lanes each name the lanes that do it together, run for each group of lanes with one mask: groups side by side do not know of each other. Of a group
 * completes says whether all that its mask names (live ones) have come; else it waits. A lane that its own mask leaves out, or another lane's names wrongly, is a finding. */
typedef bool (*sim_completes)(sim_warp *w, const sim_op *op, uint32_t group, uint32_t members);
sim_flow sim_in_groups(sim_warp *w, const sim_op *op, uint32_t mask, const uint32_t *masks, sim_completes completes, sim_handler run);
/* Frees those who wait at a barrier of the CTA. */
void sim_release_barrier(sim_cta *cta, int barrier);
/* The same after threads left: whoever waits for all that live may go on. */
void sim_barriers_after_exit(sim_cta *cta);
void sim_given_fill(sim_warp *w, sim_frame *frame, uint32_t lanes);   /* what the frame's function is given (special.c) */
void sim_release_cluster(sim_cluster *cluster);
/* The frame's state of its watched rows. */
static inline sim_watch *sim_watches(const sim_frame *frame) { return (sim_watch *)(void *)(frame->registers + frame->code->watch_at); }

/* ---- registers (isa/registers.c) ---- */

/* Those of each thread when a CTA of the kernel begins; 0: nothing fixes them. */
int sim_registers_at_launch(const ptx_function *f);
/* CTAs of so many threads that a multiprocessor has registers for; INT_MAX where no machine code says how many the kernel uses. */
int sim_blocks_by_registers(const ptx_function *f, uint64_t threads);
/* The warp ends: a finding when others of its warpgroup executed a setmaxnreg that it did not. */
void sim_registers_at_end(sim_warp *w);
/* What a warp that waits at its setmaxnreg waits for. */
void sim_registers_describe(const sim_warp *w, const sim_op *op, char *text, size_t room);

/* ---- the asynchronous machinery (isa/async.c, isa/async_copy.c, isa/tensor_queue.c, isa/mbarrier.c) ---- */

/* Finishes some of the copies that are under way: which ones, the seed decides. all: every one of them. true: something was finished. */
bool sim_async_step(sim_cluster *cluster, bool all);
void sim_async_free(sim_cluster *cluster);
/* 16 bytes arrive in shared memory some time later, of all CTAs of the cluster or the one, and its mbarrier counts them. false: a finding. */
bool sim_async_respond(sim_warp *w, const sim_op *op, int lane, uint64_t address, uint64_t mbarrier, const uint32_t words[4], bool all);
/* bytes of a transaction arrive at the mbarrier at that offset of the CTA's shared memory. false: a finding, made for w. */
bool sim_mbarrier_complete(sim_warp *w, const sim_op *op, sim_cta *cta, uint64_t offset, uint32_t bytes);
/* Who waits for what, of a fragment that polls: sim_fragment.polled. */
void sim_mbarrier_describe(const sim_cluster *cluster, uint64_t polled, uint32_t phase, char *text, size_t room);
/* The CTA of w ends: findings about bytes that mbarriers still expect, and about copies from and to its shared memory that are under way. */
void sim_mbarriers_at_end(sim_warp *w);
void sim_async_at_end(sim_warp *w);
/* What CTAs of a cluster know of each other's mbarriers (isa/mbarrier_cluster.c). A warp has waited for that phase of the cluster's barrier; initialises an mbarrier of the CTA; uses one, which was initialised before, or
 * else there is a finding, and false; arrives at one; is its CTA's last. */
void sim_cluster_met(sim_cta *cta, uint64_t phase);
void sim_mbarrier_made(const sim_warp *w, int lane, sim_cta *cta);
bool sim_mbarrier_known(sim_warp *w, const sim_op *op, int lane, const sim_cta *cta, uint64_t offset);
bool sim_mbarrier_reached(sim_warp *w, const sim_op *op, int lane, sim_cta *cta, uint64_t offset);
void sim_reached_at_end(sim_warp *w);
/* Did a phase of the mbarrier end that nobody has waited for? */
bool sim_mbarrier_unseen(const sim_cta *cta, uint64_t offset);
/* What becomes of the arrival that a lane's copies cause: one more is awaited, or one has come. false: a finding. */
/* Other CTAs know from here on that the CTA's mbarriers were initialised. */
void sim_mbarriers_tell(sim_cta *cta);
bool sim_mbarrier_await(sim_warp *w, const sim_op *op, int lane, sim_cta *cta, uint64_t offset);
bool sim_mbarrier_arrive(sim_warp *w, const sim_op *op, int lane, sim_cta *cta, uint64_t offset, const uint32_t *since);   /* since: order_now() when it was issued; NULL: now */
/* The lane's copies of single threads that were issued before the serial number are done. */
void sim_copies_finish(sim_warp *w, int lane, uint64_t serial);

/* The line of an instruction of the kernel itself. */
static inline int sim_line(const sim_warp *w, const sim_op *op) { return w->launch->code->function->instructions[op->instruction].line; }

/* A product is done: number stands for its own place and all places that it read. The order of products does not count. */
static inline void sim_digest(sim_launch *l, uint64_t number) { atomic_fetch_add_explicit(&l->digest, number * 0x9e3779b97f4a7c15ull ^ number >> 29, memory_order_relaxed); }
static inline uint64_t sim_mix(uint64_t number, uint64_t next) { return (number ^ next) * 0xff51afd7ed558ccdull ^ number >> 31; }

/* What those who poll may be waiting for has changed. */
static inline void sim_changed(sim_warp *w) {
    w->cta->cluster->changes++;
    w->launch->outside += w->launch->code->talks;
}

/* ---- rows ---- */

static inline void *sim_row(sim_warp *w, uint32_t row) { return w->base[row >> 31] + (row & 0x7fffffffu); }
#define ROW(type, index) ((type *)sim_row(w, op->arg[index]))

/* values of the lanes in mask to the row of argument index. */
#define STORE_ROW(type, index, values, mask)                              \
    do {                                                                  \
        type *row_ = ROW(type, index);                                    \
        if ((mask) == SIM_ALL_LANES) {                                    \
            memcpy(row_, (values), LANES * sizeof(type));                 \
        } else {                                                          \
            for (int lane_ = 0; lane_ < LANES; lane_++) {                 \
                if ((mask) >> lane_ & 1) row_[lane_] = (values)[lane_];   \
            }                                                             \
        }                                                                 \
    } while (0)

static inline void sim_store_mask(sim_warp *w, uint32_t row, uint32_t value, uint32_t mask) {
    uint32_t *bits = sim_row(w, row);
    *bits = (*bits & ~mask) | (value & mask);
}

/* ---- decoding, as the families see it (decode.c) ---- */

typedef struct sim_decoding {
    dw_context *context;
    ptx_module *module;
    ptx_function *function;
    const ptx_instruction *instruction;
    const sim_form *form;
    ptx_type type, type2, type3;
    sim_modifiers mods;
    sim_code *code;
    sim_op *op;
    struct sim_decoder *decoder;
    const char *why;                /* set by a family that returns NULL: what is wrong */
    bool any_order;                 /* match.c: no row has the modifiers in the order in which they stand */
} sim_decoding;

static inline bool sim_mod(const sim_decoding *d, sim_modifier modifier) { return sim_has(&d->mods, modifier); }

#endif
