/* Kernels: rows that say which op they run, on which device, and when they refuse; the ordered choice among them; the ways of a row, each one kernel, of which one is picked when
 * sizes are known; the arguments of a run, and the launches of one on a GPU. Choosing is pure: it looks at types, attributes and capabilities, never at a device.
 * A convolution on a GPU is computed as a product, so these call each other: registry.c (the rows), gemm_cuda.c (the convolution, which picks a way of the product's row). */
#ifndef KERNEL_H
#define KERNEL_H

#include "chip/chip.h"
#include "kernel/attend.h"
#include "op/op.h"

typedef struct kernel_row kernel_row;
typedef struct kernel_way kernel_way;

enum { KERNEL_MAX_OPERANDS = 64, KERNEL_MAX_RESULTS = 48 };   /* of one op */

/* What is asked of a kernel. */
typedef struct kernel_problem {
    dw_context *context;              /* for messages; NULL in a problem handed to kernel_choose means the arena's */
    const op_def *op;
    const op_attrs *attrs;
    op_post_list post;
    int n_in, n_out;
    const op_type *const *in;         /* NULL where absent */
    const op_type *const *out;
    unsigned constant_in;             /* bit i: operand i is known at load time, so it may be packed */
    bool invariant;                   /* the bits of a result's row may depend on nothing but what that row is made of: not on how many others there are */
    unsigned dequantised;             /* bit i: operand i comes as rows of bf16 that begin at multiples of 16 bytes, made in front of the kernel */
    dim_table *dims;
    const int64_t *symbols;           /* typical values, for cost only; refusal must hold for all values in range */
    const chip_caps *chip;
    void *user;                       /* of the row that is being asked */
} kernel_problem;

/* How a row packs a weight: what lays it out, and by which numbers. run sees nothing else beside the weight, so equal packings of one weight are equal bytes,
 * whatever product asks for them: a model keeps one of each. */
enum { KERNEL_PACKING_NUMBERS = 8 };
typedef struct kernel_packing kernel_packing;
struct kernel_packing {
    const char *name;                 /* a constant; each has one run */
    int64_t numbers[KERNEL_PACKING_NUMBERS];
    size_t bytes;                     /* of all that run writes; follows from the numbers */
    dw_status (*run)(const kernel_packing *packing, dw_context *context, pool *pool, const dw_tensor *weight, void *packed);
};

/* Which way of a row measurements found the fastest for calls of up to so many rows of the result, and which of its variants; the last one serves all beyond. way NULL: by
 * estimate; variant -1: the way chooses by itself. */
enum { KERNEL_TUNED = 8 };
typedef struct kernel_tuned { int64_t rows; const kernel_way *way; int variant; } kernel_tuned;

/* A layer_norm or rms_norm without a residual. Its rows are those of operand 0, along the last axis. */
typedef struct kernel_norm {
    const dw_tensor *columns[2];      /* weight and bias; NULL: there is none. No launch of the run writes them */
    bool centred;                     /* layer_norm's */
    double eps;
} kernel_norm;

/* ---- ranks: how a kernel of a collective reaches the operands of the others (src/comm) ---- */

/* One rank among those that run the same plan. A kernel meets the others over an axis of their mesh, reads what theirs are, and leaves. */
typedef struct kernel_comm kernel_comm;
struct kernel_run;
typedef enum kernel_meeting {
    KERNEL_MEET_WHOLE,                /* each rank reads all of the others' tensors */
    KERNEL_MEET_PARTS                 /* a tensor is as many equal parts as there are ranks, one behind another; each reads those that have its number */
} kernel_meeting;
typedef struct kernel_comm_calls {
    /* Who takes part in run's op: this rank's place among how many. INVALID or MISMATCH where the mesh has no such axis, or it has another size. */
    dw_status (*place)(kernel_comm *comm, const struct kernel_run *run, int *rank, int *count);
    /* Waits till all of them are here, with tensors of one shape, mine contiguous. theirs[i]: that of rank i of the axis, or of parts (which are in no blocks) its part as one axis of elements, in
     * memory that is read till leave. The first room bytes of run->workspace are the communicator's till then. On failure nobody reads mine. */
    dw_status (*meet)(kernel_comm *comm, const struct kernel_run *run, kernel_meeting how, const dw_tensor *mine, dw_tensor *theirs);
    /* Waits till none of them reads mine any more. Of several meetings of a run the last one's is enough; what was read in those before may then be written over. */
    dw_status (*leave)(kernel_comm *comm, const struct kernel_run *run);
    /* Bytes that a meeting of so many ranks with such tensors needs, whole or in parts; a multiple of 64. */
    size_t (*room)(const kernel_comm *comm, int count, const dw_tensor *mine);
} kernel_comm_calls;
struct kernel_comm {
    const kernel_comm_calls *calls;
    bool shares_memory;               /* theirs are the other ranks' own memory: what they write into it between two meetings is seen behind the second */
};

/* What a run is given. */
typedef struct kernel_run {
    op_call call;                     /* tensors and attributes; a packed operand's tensor has data NULL */
    op_post_list post;
    unsigned constant_in;             /* bit i: operand i is a weight, or computed from weights at load: no launch of the run writes it */
    unsigned given_in;                /* bit i: operand i is an input of the run, or a view of one: it is there before the first launch, and none writes it */
    bool adds_tokens;                 /* of attention: keys and values are caches, into which launches of the run write its tokens alone, those of operands row, position and table, each into its slot */
    const dw_tensor *came[2];         /* of operands that come as rows of bf16, made in front of the kernel: what they were made of, whose factors of rows, columns and tensors are still to
                                       * be applied; NULL: they come as they are */
    bool quantises;                   /* operand 0 comes plain: the kernel quantises it itself, to this format, which is what the product is of */
    dw_format quantised;
    bool searches;                    /* and it searches for the scales */
    bool leaves_plain;                /* its result is meant in blocks, and its reader quantises it: it is made in the format before that */
    bool passes;                      /* a quantize, a norm or a cache_update whose reader does it, or whose operand's maker did: nothing is launched */
    bool quantises_beside;            /* a norm, whose result 0 is then in blocks, and result 1 the plain one */
    const kernel_norm *norm;          /* operand 0 comes as it was before this norm, which the kernel does itself, its result in the operand's format; NULL: none. Before it quantises */
    const kernel_norm *heads[2];      /* of cache_update: keys and queries come as they were before these norms over their last axis, in front of what turns them; NULL: none */
    const struct kernel_run *write;   /* of attention that adds_tokens: the cache_update that makes its keys, values and, if it turns any, queries, which passes: the kernel does that itself, too; NULL: none */
    int64_t first_group;              /* operand 1 of a grouped product holds the matrices from this one on */
    bool is_packed;                   /* the row packs an operand and it comes packed: known before packed is, as workspace() needs it */
    const void *packed;               /* the packed operand, when the row packs one */
    void *workspace;                  /* at least workspace() bytes, aligned to 64, uninitialised */
    pool *pool;
    kernel_comm *comm;                /* of collectives: the ranks; NULL: there is one rank */
    uint32_t step;                    /* of its plan, from 1: what all ranks are at; 0: of none */
    const chip_caps *chip;
    void *user;                       /* the row's */
    bool invariant;                   /* as of the problem: how its sums are divided may not follow from the number of rows (kernel_rows_beside) */
    uint32_t ways;                    /* of a row with ways: which may be picked, by bits of their places in its table (kernel_choice.ways) */
    const kernel_tuned *tuned;        /* in ascending rows; NULL: all by estimate */
    int tuned_count;
    int variant;                      /* of the way that was picked: 1 + the variant that was measured to be the fastest; 0: by estimate */
} kernel_run;
/* By how many rows, of those that there are, a kernel divides the sums of one: beyond counting where it is to be invariant, as then none is divided for want of others. */
static inline int64_t kernel_rows_beside(const kernel_run *run, int64_t rows) { return run->invariant ? INT64_C(1) << 24 : rows; }
/* Rows of the first result: all of its axes but the last. */
int64_t kernel_result_rows(const op_call *call);

/* ---- launches: a run on a GPU, in data ---- */

enum { KERNEL_ARGUMENT_BYTES = 3072, KERNEL_SLOTS = 64, KERNEL_COUNTER_BYTES = 65536 };

/* What the device writes into a launch's arguments, as addresses change from run to run while all else stays. */
typedef enum kernel_slot_kind {
    KERNEL_SLOT_DATA,                 /* the address of an operand's elements, */
    KERNEL_SLOT_SCALES,               /* of its scales, */
    KERNEL_SLOT_SECOND,               /* of its second-level scales */
    KERNEL_SLOT_WORKSPACE,            /* the address of the run's workspace */
    KERNEL_SLOT_COUNTERS,             /* the address of KERNEL_COUNTER_BYTES zeros, which every launch that counts in them leaves as zeros. They are the device's that was opened, and each session opens one: a
                                       * session's runs are in order, by itself or, of graphs that were captured, by the caller, so no two such launches are under way together */
    KERNEL_SLOT_FAULT,                /* a kernel_fault_place */
    KERNEL_SLOT_MAP                   /* a tensor map: 128 bytes, of launch->maps[index] */
} kernel_slot_kind;

/* index: operand index of the call; its result index - KERNEL_RESULT from there on; from KERNEL_NORM on columns of the run's norm, and from KERNEL_HEADS on two of each of those of heads; from KERNEL_WRITE on
 * the same of the run's write; of maps also the workspace. */
enum { KERNEL_RESULT = 64, KERNEL_WORKSPACE = 128, KERNEL_NORM = 192, KERNEL_HEADS = KERNEL_NORM + 2, KERNEL_WRITE = 256 };
static inline const dw_tensor *kernel_norm_column(const kernel_run *run, int index) {
    const kernel_norm *norm = index < KERNEL_HEADS ? run->norm : run->heads[(index - KERNEL_HEADS) / 2];
    return norm->columns[index % 2];
}
/* The tensor of such an index; NULL: it is absent. */
static inline const dw_tensor *kernel_operand(const kernel_run *run, int index) {
    if (index >= KERNEL_WRITE) return kernel_operand(run->write, index - KERNEL_WRITE);
    if (index >= KERNEL_NORM) return kernel_norm_column(run, index);
    if (index >= KERNEL_RESULT) return run->call.out[index - KERNEL_RESULT];
    return index < run->call.n_in ? run->call.in[index] : NULL;
}
typedef struct kernel_slot {
    uint16_t kind, index;
    uint32_t at;                      /* where in the arguments */
    int64_t offset;                   /* bytes added to the address */
} kernel_slot;

/* What tensor maps are made of, by the numbers of the driver interface, which the device asserts. */
typedef enum kernel_map_type { KERNEL_MAP_BYTE = 0, KERNEL_MAP_F16 = 6, KERNEL_MAP_F32 = 7, KERNEL_MAP_BF16 = 9, KERNEL_MAP_PADDED_4 = 14 } kernel_map_type;   /* PADDED_4: 16 elements of 4 bits to 16 bytes of shared memory, of which the first 8 have them */
enum { KERNEL_SWIZZLE_NONE = 0, KERNEL_SWIZZLE_64 = 2, KERNEL_SWIZZLE_128 = 3, KERNEL_PROMOTION_NONE = 0, KERNEL_PROMOTION_128 = 2, KERNEL_PROMOTION_256 = 3 };

/* A tensor map of a view of an operand or of the workspace: innermost axis first, as the hardware counts them. Strides in bytes, of axes 1 to rank - 1. fill 1: elements
 * out of bounds are NaN, else 0. */
enum { KERNEL_MAP_RANK = 5, KERNEL_MAPS = 5 };
typedef struct kernel_map {
    uint16_t operand;                 /* as kernel_slot.index */
    bool of_scales;                   /* it views the operand's scales */
    int64_t offset;                   /* bytes from its first element, or scale */
    kernel_map_type type;
    int rank, swizzle, promotion, fill;
    uint64_t dims[KERNEL_MAP_RANK], strides[KERNEL_MAP_RANK];
    uint32_t box[KERNEL_MAP_RANK];
} kernel_map;

/* A library of a vendor's, loaded at run time where it is found; one row of kernels/library.def. */
typedef struct kernel_library {
    const char *name;
    chip_feature feature;             /* what rows need that call it */
    const char *files[4];             /* the names that it goes by, the newest first, NULL behind the last */
    /* Looks up in loaded, a handle of dlopen, what rows call. The thread is in the context of the GPU. UNSUPPORTED: a call is missing, or one failed. */
    dw_status (*open)(dw_context *context, void *loaded, void **own);
    void (*close)(dw_context *context, void *own);
    void (*tell_version)(const void *own, char *words, size_t size);   /* "cuBLASLt 13.1.1" */
} kernel_library;
/* NULL past the last, of KERNEL_LIBRARIES at most. */
const kernel_library *kernel_library_at(int index);
enum { KERNEL_LIBRARIES = 4 };

/* What a launch of a library's is started with. */
typedef struct kernel_library_call {
    dw_context *context;
    void *own;                        /* what open gave */
    void *stream;                     /* a CUstream, where all of it goes; it may be under capture, so nothing may wait */
    const void *arguments;            /* of the launch, with its addresses */
} kernel_library_call;

typedef struct kernel_launch {
    const char *image, *entry;        /* which row of image.def, and which of its functions; constants. Of a library's call: NULL, and a name for messages */
    const char *library;              /* not NULL: a call of this library, which enqueue makes; its arguments and slots alone say what it is */
    dw_status (*enqueue)(const kernel_library_call *call);
    dw_status (*prepare)(const kernel_library_call *call);   /* before it, outside of any capture and without a stream: what is built once for such a call. NULL: nothing */
    uint32_t grid[3], block[3];
    uint32_t cluster[3];              /* zeros: none */
    uint32_t preferred[3];            /* of clusters that take the place of several such, wherever the chip has room for them; multiples of cluster, and divisors of grid; zeros: none */
    uint32_t shared_bytes;            /* dynamic */
    bool overlaps;                    /* in a graph it begins before the launches in front of it have ended, and waits for them by itself: kernels/gpu/README.md */
    int slot_count, map_count;
    kernel_slot slots[KERNEL_SLOTS];
    kernel_map maps[KERNEL_MAPS];
    uint32_t argument_bytes;
    _Alignas(128) uint8_t arguments[KERNEL_ARGUMENT_BYTES];   /* as structures that hold tensor maps need */
} kernel_launch;

/* Who receives the launches of a run, in the order in which they happen. The launch is copied. */
typedef struct kernel_launcher {
    dw_status (*add)(struct kernel_launcher *launcher, const kernel_launch *launch);
} kernel_launcher;

/* Why the chip has no room for the launch: shared memory (what a kernel declares by itself comes on top), threads, blocks of a cluster. NULL: it has; why may be NULL. */
const char *kernel_launch_refusal(const kernel_launch *launch, const chip_caps *chip, text *why);
/* Such a reason in words, in why; where that is NULL, as nobody reads it, nothing is written and no memory taken. */
const char *kernel_because(text *why, const char *format, ...) BASE_PRINTF(2, 3);
/* UNSUPPORTED with that reason. */
dw_status kernel_launch_check(dw_context *context, const kernel_launch *launch, const chip_caps *chip);

/* Bytes that one launch copies from place to place, wherever kernels reach: a few, that a copy of the driver's would take longer to begin and to end than to move. */
typedef struct kernel_piece { void *to; const void *from; size_t bytes; } kernel_piece;
enum { KERNEL_PIECES = 64, KERNEL_PIECE_BYTES = 4096, KERNEL_CARRIED = 32768 };   /* in a launch: pieces, of so many bytes; and bytes together */
/* Pieces, none of which overlaps what another one is copied to; longer ones become several. 0 pieces are a launch that does nothing. early: it overlaps with the launches in front of it. false, and no launch:
 * they are too many, or too long (kernels/move/pieces.c). */
bool kernel_carry(const chip_caps *chip, int count, const kernel_piece *pieces, bool early, kernel_launch *launch);

/* Where a kernel reports what a host would return as an error: the first of a run stays. */
typedef enum kernel_fault_kind {
    KERNEL_FAULT_NONE,
#define FAULT(name, words) KERNEL_FAULT_##name,
#include "kernel/fault.def"
#undef FAULT
} kernel_fault_kind;
typedef struct kernel_fault { uint32_t kind, step; int64_t value, limit; } kernel_fault;
typedef struct kernel_fault_place { uint64_t fault; uint32_t step, unused; } kernel_fault_place;
/* "index 57 is outside its axis of size 50" */
void kernel_fault_print(text *text, const kernel_fault *fault);

/* GPU code that this build has: the fatbin of a row of image.def, or NULL with *why when there is none. */
const void *kernel_image(const char *stem, size_t *bytes, const char **why);
int kernel_image_count(void);
/* NULL, or why this build has no GPU code at all. */
const char *kernel_lacks_images(void);
const char *kernel_image_name(int index);

struct kernel_row {
    const char *name;                 /* "matmul_f32_avx512" */
    op_id op;
    chip_kind device;
    uint64_t needs;                   /* features, bit mask */
    uint64_t strided_in;              /* bit i: operand i may have any strides (others: contiguous; block formats always are) */
    bool strided_out;                 /* the first result may have any strides with the last axis contiguous (else: contiguous) */
    int in_place;                     /* operand whose memory the first result may take over when it dies there; -1: none */
    int packs;                        /* operand that is repacked once at load when it is constant; -1: none */
    /* NULL: accepted. Else the reason, a sentence without a full stop ("k is not known at plan time"); may be written to why. */
    const char *(*reject)(const kernel_problem *problem, text *why);
    /* Seconds at the typical sizes, by roofline: see kernel_roofline. */
    double (*cost)(const kernel_problem *problem);
    /* The packed form of a weight of this shape, whose data is not looked at. false: its bytes overflow. Only with packs >= 0. */
    bool (*packing)(const kernel_problem *problem, const dw_tensor *weight, kernel_packing *packing);
    /* Bytes of scratch for a call of this shape; NULL: none. Over ranges of sizes it is largest at an end of each: sessions reserve by that. */
    size_t (*workspace)(const kernel_run *run);
    dw_status (*run)(const kernel_run *run);      /* of rows for CPUs: writes every element of every result */
    /* Of rows for GPUs: hands over the launches that do. Looks at shapes and attributes, never at data. */
    dw_status (*shape)(const kernel_run *run, kernel_launcher *launcher);
    /* Of a row with ways, which has none of the functions above: its table. Those that do not take any strides are no ways of a row that does. */
    const kernel_way *ways;
    int way_count;
    bool reference;                   /* the op's plain meaning rather than a kernel of its own */
    bool registered;                  /* the caller's: taken wherever it accepts */
    void *user;                       /* of registered kernels */
};

/* What is said of a way: */
typedef enum kernel_way_flag {
    KERNEL_WAY_STRIDES = 1,           /* it takes any strides of all operands and of the result; else they are dense */
    KERNEL_WAY_QUANTISED = 2,         /* a result in blocks is made of its plain one, by a quantiser behind it; else it makes it, or refuses */
    KERNEL_WAY_NAMED = 4,             /* picked where it is asked for or was measured to be the fastest, never by estimate */
    KERNEL_WAY_APART = 8,             /* its seconds are those of a launch apart from others; kernel_in_step says what it takes between those of a run */
    KERNEL_WAY_QUANTISES = 16,        /* its kernel can quantise operand 0 itself (kernel_run.quantises), where it takes such a run */
    KERNEL_WAY_NORMALISES = 32,       /* and normalise it (kernel_run.norm) */
    KERNEL_WAY_WRITES = 512,          /* its kernel can do the write of caches in front of it (kernel_run.write), where it takes such a run */
    KERNEL_WAY_VARIES = 128,          /* how it divides a row's sums follows from how many rows there are: it refuses what is to be invariant */
    KERNEL_WAY_UNALIASED = 256,       /* a result of 16 bits has no memory in common with what is added to it: over it the product would be rounded before the sum */
    KERNEL_WAY_TILED = 64             /* a product that takes block scales in tiles (tile128x4) alone: where it would take one, plans have those of both operands so */
} kernel_way_flag;
/* Seconds between the launches of a run of what takes so many apart from others: code, maps and arguments come from memory again each time, and the clock is that of a chip at its limit of power.
 * Fitted to the products of 14 models' runs on an H200, 4 to 900 us long (bench/results/h200/models.md). Skinny products let what they read once give way, and were measured in a step. */
double kernel_in_step(double apart_s);

/* One kernel of a GPU that a row may be run by: a line of a family's ways.def. A problem and a run come to its functions with what lies around the kernel taken away (compose.c): operands
 * that it wants dequantised are rows of bf16, and where its result in blocks is quantised behind it, the result is the plain one. */
struct kernel_way {
    const char *name;                 /* "cuda_matmul_wgmma" */
    uint64_t needs;                   /* features, bit mask */
    unsigned flags;
    size_t shared_bytes;              /* of shared memory that its launches ask for at least: chips that have less are refused. What more a call of some sizes asks for its launches say */
    int rank;                         /* the least first: ways of a higher rank are for what no way of a lower one takes */
    /* Which of the operands of a product it wants as rows of bf16, bit i: operand i. rows: how many elements a row of each has: k, or m and n of operands in bf16 that lie turned. */
    unsigned (*dequantised)(const dw_format formats[2], const int64_t rows[2]);
    /* NULL, or why it runs no call of the problem, whatever the sizes in range. */
    const char *(*refuses)(const kernel_problem *problem, text *why);
    /* NULL, or why it does not run this call of a problem that it does not refuse: sizes, strides, the first byte's alignment. why may be NULL (kernel_because). */
    const char *(*takes)(const kernel_run *run, text *why);
    double (*seconds)(const kernel_run *run);     /* estimated, of a call that it takes */
    /* Rows of the result up to which it may be picked by estimate at these sizes or smaller ones; beside other ways its workspace is for so many at most. The run comes as it is. */
    int64_t (*most_rows)(const kernel_run *run);
    size_t (*workspace)(const kernel_run *run);   /* of its own, also for calls that it does not take */
    dw_status (*shape)(const kernel_run *run, kernel_launcher *launcher);
    /* The name of a variant, which measurements may ask for: "" where it does not run the problem, NULL past the last. */
    const char *(*variant)(const kernel_problem *problem, int index);
};

static inline bool kernel_way_is(const kernel_way *way, kernel_way_flag flag) { return (way->flags & flag) != 0; }
/* The name of a variant of a way for a problem as it comes. */
const char *kernel_way_variant(const kernel_way *way, const kernel_problem *problem, int index);

/* What ways say that have nothing to say. */
unsigned kernel_as_they_lie(const dw_format formats[2], const int64_t rows[2]);
int64_t kernel_any_rows(const kernel_run *run);
size_t kernel_no_workspace(const kernel_run *run);
const char *kernel_no_variants(const kernel_problem *problem, int index);

/* The operand whose memory that result may take over: the row's; of a paired op (OP_TRAIT_PAIRED) the one behind it for the second result, of an op that updates
 * (OP_TRAIT_UPDATES) the one that the result is the new value of. -1: none, as of a row that may be run by a way that says so (KERNEL_WAY_UNALIASED). ways: of the row; format: of the result. */
int kernel_in_place(const kernel_row *row, uint32_t ways, dw_format format, int result);

/* Does the row do norms whose bits are those of products that normalise their operand, and, where rows are few, of writes of caches that normalise keys and queries? */
bool kernel_is_norm_of_products(const kernel_row *row);

/* May the row do norms of keys and queries (kernel_run.heads), and does it those of this run? */
bool kernel_may_normalise_heads(const kernel_row *row);
bool kernel_normalises_heads(const kernel_row *row, const kernel_run *run);

/* Can the row's run write its result in blocks besides, bit for bit as the quantising row makes them of it? */
bool kernel_writes_both(const kernel_row *row, const kernel_run *run, const kernel_row *quantising);

/* The rows of kernels/kernel.def that belong to this build, best first for equal cost; references last. */
int kernel_count(void);
const kernel_row *kernel_at(int index);

/* A user's additions to the rows, looked at first. Per compile, never global. */
typedef struct kernel_registry { const kernel_row *rows; int count; } kernel_registry;

/* The reason why the row, or a way of it (NULL: each of its ways), does not run the problem on its chip, NULL when it does; may be written to why. */
const char *kernel_refusal(const kernel_row *row, const kernel_way *way, const kernel_problem *problem, text *why);
/* The way of the row that has this name; NULL: it has none. */
const kernel_way *kernel_find_way(const kernel_row *row, const char *name);
/* Is it the name of the row, or of one of its ways? */
bool kernel_is_named(const kernel_row *row, const char *name);
/* The ways of the row that do not refuse the problem, as kernel_choose has them: without those that are by name alone. */
uint32_t kernel_accepted_ways(const kernel_row *row, const kernel_problem *problem);

/* One considered row or way: its cost, or why not. A way that several rows have is considered once, of the first. */
typedef struct kernel_verdict {
    const kernel_row *row;
    const kernel_way *way;
    double seconds;                   /* at the typical sizes */
    const char *reason;               /* NULL: it runs the problem at the typical sizes, */
    bool refuses;                     /* else: at no sizes */
} kernel_verdict;
static inline uint32_t kernel_verdict_ways(const kernel_verdict *verdict) { return verdict->way != NULL ? UINT32_C(1) << (verdict->way - verdict->row->ways) : 0; }
static inline const char *kernel_verdict_name(const kernel_verdict *verdict) { return verdict->way != NULL ? verdict->way->name : verdict->row->name; }
static inline bool kernel_calls_library(const kernel_verdict *verdict) { return ((verdict->way != NULL ? verdict->way->needs : verdict->row->needs) & CHIP_LIBRARIES) != 0; }
typedef struct kernel_choice {
    const kernel_row *row;
    uint32_t ways;                    /* of a row with ways: those that may be picked when sizes are known; one alone where it was asked for by name */
    const kernel_way *way;            /* of these, what is picked at the typical sizes; NULL: the row has none */
    double seconds;
    int verdict_count;
    kernel_verdict *verdicts;         /* all that were considered, in the arena given */
} kernel_choice;

/* The accepted row of least cost; UNSUPPORTED lists every row's reason. registry and only may be NULL; only: the name of a row or way that must be taken, or the reason it
 * cannot be is the error. */
dw_status kernel_choose(arena *arena, const kernel_problem *problem, const kernel_registry *registry, const char *only, kernel_choice *choice);

/* ---- ways, once sizes are known (pick.c) ---- */

/* The way that a run of the row takes: what was measured, else the one of least estimated seconds among those of run->ways that take the call and whose launches its chip has room
 * for. UNSUPPORTED lists every way's reason. NULL in *way: the results are empty. */
dw_status kernel_pick(const kernel_row *row, const kernel_run *run, const kernel_way **way);
/* The name of what runs it: the way that is picked, or the row. */
const char *kernel_runs_as(const kernel_row *row, const kernel_run *run);
/* What goes around the kernel that runs it, in words: "operands 0, 1 dequantised in front, result quantised behind"; nothing where it does all by itself. */
void kernel_describe_parts(const kernel_row *row, const kernel_run *run, text *words);
/* Seconds at the typical sizes, of a row with ways by those of them. */
double kernel_seconds(const kernel_row *row, uint32_t ways, const kernel_problem *problem);
/* The same of a run as it is bound: nothing where its reader does it. problem: the run's, at its sizes. */
double kernel_run_seconds(const kernel_row *row, const kernel_problem *problem, const kernel_run *run);
/* Bytes of scratch for a run of this or smaller sizes: the most over the ways that may be picked. */
size_t kernel_workspace(const kernel_row *row, const kernel_run *run);
/* Runs on a CPU, and hands over a GPU's launches. */
dw_status kernel_execute(const kernel_row *row, const kernel_run *run);
dw_status kernel_shape(const kernel_row *row, const kernel_run *run, kernel_launcher *launcher);
/* Does a quantiser behind the row, which has no ways, make its results in blocks? */
bool kernel_is_quantised(const kernel_row *row, const op_def *op);
/* A value between two calls may stay what it is made of, so that a launch is saved: where a launch behind the first would quantise its result, or the first is a quantize or a norm, and the kernel
 * that is picked for the second, whose operand 0 it is, does that itself. These say so of calls whose tensors are as the graph has them. */
enum { KERNEL_QUANTISES_ROWS = 64 };
typedef struct kernel_plain {
    const dw_tensor *operand;         /* what operand 0 comes as, at most so many rows */
    bool quantises, searches;         /* it is quantised to the format that it has in the call; its scales are searched for */
    const kernel_norm *norm;          /* NULL: none */
    double saved;                     /* seconds that the product may take longer for it */
} kernel_plain;
bool kernel_quantises_behind(const kernel_row *row, const kernel_run *run);
bool kernel_takes_plain(const kernel_row *row, const kernel_run *run, const kernel_plain *plain);
/* May any call of the row, with these ways, do it? flag: KERNEL_WAY_QUANTISES, KERNEL_WAY_NORMALISES or KERNEL_WAY_WRITES. */
bool kernel_may_quantise_behind(const kernel_row *row, uint32_t ways, const op_def *op);
bool kernel_may_take_plain(const kernel_row *row, uint32_t ways, kernel_way_flag flag);
/* Is there a way of the run, an attention, that does write in front of it, and takes no longer than the one that is picked without and saved seconds? */
bool kernel_does_write(const kernel_row *row, const kernel_run *run, const kernel_run *write, double saved);
/* Why a way that does not refuse the problem does not run this call of it; NULL: it does. why may be NULL. */
const char *kernel_size_refusal(const kernel_way *way, const kernel_run *run, text *why);
/* A chip's reason against any of the launches of a row without ways or of a way; NULL: it has room for all, or what they are is not known. */
const char *kernel_launches_refusal(const kernel_row *row, const kernel_way *way, const kernel_run *run, text *why);
/* Bits of a row's ways by their names; count of them. */
uint32_t kernel_ways_of(const kernel_row *row, const char *const *names, int count);
/* What a problem at its typical sizes is as a run; in and out are where its tensors are kept. */
typedef struct kernel_typical {
    dw_tensor in[KERNEL_MAX_OPERANDS], out[KERNEL_MAX_RESULTS];
    const dw_tensor *in_pointers[KERNEL_MAX_OPERANDS], *out_pointers[KERNEL_MAX_RESULTS];
    kernel_run run;
} kernel_typical;
/* false: the sizes are not known. */
bool kernel_at_typical(const kernel_problem *problem, uint32_t ways, kernel_typical *typical);

/* ---- bounds (bound.c) ---- */

typedef enum kernel_limit { KERNEL_LIMIT_MEMORY, KERNEL_LIMIT_CACHE, KERNEL_LIMIT_PRODUCTS } kernel_limit;
/* The least time of a call on its chip: the longest of what main memory, the cache and the arithmetic need for it at the expected rates. */
typedef struct kernel_bound {
    op_work work;
    dw_format multiplies;             /* whose rate the FLOPs go at */
    double far_bytes;                 /* read of the operands that are far */
    double memory_s, cache_s, products_s, seconds;
    kernel_limit limit;               /* which of them it is */
} kernel_bound;
/* far: bit i: operand i comes from main memory, as weights do. What else the call reads and writes is at the rate of the last-level cache where that is known and all of it fits, else at
 * that of the memory. */
void kernel_bound_of(const kernel_run *run, uint64_t far, kernel_bound *bound);
/* Of a product the slower of its factors' formats, else f32. */
dw_format kernel_multiplies(const op_call *call, const chip_caps *chip);
const char *kernel_limit_name(kernel_limit limit);
/* What bounds the kernel that is picked for the run, if its way says so (bounded_ways.def of its family) and the chip's rates are known; else false. */
bool kernel_pick_bound(const kernel_row *row, const kernel_run *run, kernel_tiles_bound *bound);

/* max(flops / (rate of the format * efficiency), bytes / (bandwidth * efficiency)) + launch, for the problem at its typical sizes, and for a run. */
double kernel_run_roofline(const kernel_run *run, dw_format multiplies, double compute_efficiency, double memory_efficiency);
double kernel_roofline(const kernel_problem *problem, dw_format multiplies, double compute_efficiency, double memory_efficiency);
/* Concrete tensors (no data) of the problem at its typical sizes, for cost functions. */
dw_status kernel_problem_call(const kernel_problem *problem, dw_tensor *in, dw_tensor *out, const dw_tensor **in_pointers, const dw_tensor **out_pointers, op_call *call);

/* ---- cases (case.c) ---- */

/* One call as a line of text, which conformance checks, bench times and a bug report quotes: an op, its operands and attributes.
 *     matmul f32[7,96] f32[64,96] bt=true post=bias f32[64] pack=1 strided=0
 * Operands are types with numbers for dimensions, or '-'. What has the form key=value is an attribute of the op (lists with commas), or one of
 *     pack=I         operand I is constant, so rows that pack it get it packed
 *     strided=I,..   these operands lie with gaps between elements and rows, where the row allows it
 *     pitched=I,..   these operands lie with gaps of whole 16-byte words between rows, and others between what further axes count, where the row allows it; elements of a row are side by side
 *     turned=I,..    memory of these operands runs along the last axis but one first, then along the last, as of a transpose; with the gaps that the line asks for besides
 *     reversed=I,..  it runs along the first axis first, and along the last one last
 *     plain=F        operand 0, in blocks, is what quantize makes of one in the element format F; kernels that quantise it themselves are held to that. plain=F,search: it searches for scales
 *     norm=OP        operand 0, or what it is quantised from, and of cache_update keys and queries, is what this norm, rms_norm or layer_norm, makes of one in its format; kernels that do norms themselves are held to that
 *     range=I:LO:HI  integers (and bools) of operand I from LO to HI; floats uniform in it
 *     ascending=I,.. the numbers of these operands ascend
 *     special=I,..   these floating-point operands hold NaN, infinities and both zeros now and then
 *     choice=I:X,..  each element of operand I is one of these numbers, nan and inf among them; beyond its format they are the largest or lowest there is
 *     column=I:C:X,.. the same of column C of operand I alone, behind what else is said of it
 *     tail=I:X       rows of operand I end in X: from anywhere on; of four rows one has nothing else, one no such end
 *     bound=X        of the error beside the largest result, where 1e-5 is not it
 *     world=N        of a collective: all ranks there are, which lie apart as in a mesh whose outermost axis is its own; absent: those that take part
 *     variant=N,..   it is for these variants alone, which are named by the ends of their names: m256n256 is matmul_tcgen05_half_m256n256 */
enum { KERNEL_CASE_OPERANDS = 16, KERNEL_CASE_ATTRS = 16, KERNEL_CASE_RESULTS = 9, KERNEL_CASE_CHOICES = 8, KERNEL_CASE_COLUMNS = 8 };

typedef struct kernel_range { bool given; double low, high; } kernel_range;
typedef struct kernel_choices { int count; double values[KERNEL_CASE_CHOICES]; } kernel_choices;
typedef struct kernel_column { long operand, column; kernel_choices choices; } kernel_column;
typedef struct kernel_tail { bool given; double value; } kernel_tail;

typedef struct kernel_case {
    const char *line, *source;
    int number;                   /* of the line in source */
    const op_def *op;
    dim_table *dims;
    int n_in, n_out, n_attrs;
    op_type types[KERNEL_CASE_OPERANDS], results[KERNEL_CASE_RESULTS];
    const op_type *in[KERNEL_CASE_OPERANDS], *out[KERNEL_CASE_RESULTS];
    op_attr items[KERNEL_CASE_ATTRS];
    op_attrs attrs;
    op_post_list post;
    unsigned constant, ascending, strided, pitched, turned, reversed, special;
    int world;                    /* 0: as many as take part */
    kernel_range ranges[KERNEL_CASE_OPERANDS];
    kernel_choices choices[KERNEL_CASE_OPERANDS];
    kernel_tail tails[KERNEL_CASE_OPERANDS];
    int column_count;
    kernel_column columns[KERNEL_CASE_COLUMNS];
    dw_format plain;              /* DW_FORMAT_COUNT: nothing is said */
    bool plain_searches;
    op_id norm;                   /* OP_COUNT: nothing is said */
    double bound;
    const char *variants;         /* as the line has them; NULL: nothing is said */
} kernel_case;

/* Parses and infers; everything lives in arena and dims. */
dw_status kernel_case_parse(arena *arena, dim_table *dims, const char *source, int number, const char *line, kernel_case *result);
/* Is a variant of this name among those of the line? */
bool kernel_case_has_variant(const kernel_case *c, const char *name);
/* The strides of an operand that the line has lie in its own way (strided, pitched, turned, reversed), from its sizes; how many elements it then reaches over. 0: it lies as it is. */
int64_t kernel_case_set_apart(const kernel_case *c, int operand, dw_tensor *tensor);
/* Element i of an operand with choices, columns or a tail, whose rows have cols elements, as random numbers of the seed decide; else *value stays as it is. */
void kernel_case_element(const kernel_case *c, int operand, uint64_t seed, int64_t i, int64_t cols, double *value);
/* The problem at its typical sizes as such a line, with ranges for integers that say which rows or places of another operand are read; NULL, or why it has none. */
const char *kernel_case_print(const kernel_problem *problem, text *line);

#endif
