/* Kernels: rows that say which op they run, on which device, and when they refuse; the ordered choice among them; the arguments of a run, and the launches of one on a GPU.
 * Choosing is pure: it looks at types, attributes and capabilities, never at a device. */
#ifndef KERNEL_H
#define KERNEL_H

#include "chip/chip.h"
#include "op/op.h"

typedef struct kernel_row kernel_row;

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
    dim_table *dims;
    const int64_t *symbols;           /* typical values, for cost only; refusal must hold for all values in range */
    const chip_caps *chip;
    bool named;                       /* the row was asked for by name: it runs its own kernel, or refuses where another row's would have to run */
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

/* Which of a row's variants measurements found the fastest for calls of up to so many rows of the result; the last one serves all beyond. -1: by estimate. */
enum { KERNEL_TUNED = 8 };
typedef struct kernel_tuned { int64_t rows; int variant; } kernel_tuned;

/* What a run is given. */
typedef struct kernel_run {
    op_call call;                     /* tensors and attributes; a packed operand's tensor has data NULL */
    op_post_list post;
    unsigned constant_in;             /* bit i: operand i is a weight, or computed from weights at load: no launch of the run writes it */
    bool is_packed;                   /* the row packs an operand and it comes packed: known before packed is, as workspace() needs it */
    const void *packed;               /* the packed operand, when the row packs one */
    void *workspace;                  /* at least workspace() bytes, aligned to 64, uninitialised */
    pool *pool;
    const chip_caps *chip;
    bool named;                       /* as of the problem */
    void *user;                       /* the row's */
    const kernel_tuned *tuned;        /* in ascending rows; NULL: all by estimate */
    int tuned_count;
} kernel_run;
/* The variant for this many rows; -1: by estimate. */
int kernel_tuned_variant(const kernel_run *run, int64_t rows);

/* ---- launches: a run on a GPU, in data ---- */

enum { KERNEL_ARGUMENT_BYTES = 3072, KERNEL_SLOTS = 40 };

/* What the device writes into a launch's arguments, as addresses change from run to run while all else stays. */
typedef enum kernel_slot_kind {
    KERNEL_SLOT_DATA,                 /* the address of an operand's elements, */
    KERNEL_SLOT_SCALES,               /* of its scales, */
    KERNEL_SLOT_SECOND,               /* of its second-level scales */
    KERNEL_SLOT_WORKSPACE,            /* the address of the run's workspace */
    KERNEL_SLOT_FAULT,                /* a kernel_fault_place */
    KERNEL_SLOT_MAP                   /* a tensor map: 128 bytes, of launch->maps[index] */
} kernel_slot_kind;

/* index: operand index of the call; its result index - KERNEL_RESULT from there on; of maps also the workspace. */
enum { KERNEL_RESULT = 64, KERNEL_WORKSPACE = 128 };
typedef struct kernel_slot {
    uint16_t kind, index;
    uint32_t at;                      /* where in the arguments */
    int64_t offset;                   /* bytes added to the address */
} kernel_slot;

/* What tensor maps are made of, by the numbers of the driver interface, which the device asserts. */
typedef enum kernel_map_type { KERNEL_MAP_BYTE = 0, KERNEL_MAP_F16 = 6, KERNEL_MAP_F32 = 7, KERNEL_MAP_BF16 = 9 } kernel_map_type;
enum { KERNEL_SWIZZLE_NONE = 0, KERNEL_SWIZZLE_128 = 3, KERNEL_PROMOTION_NONE = 0, KERNEL_PROMOTION_256 = 3 };

/* A tensor map of a view of an operand or of the workspace: innermost axis first, as the hardware counts them. Strides in bytes, of axes 1 to rank - 1. fill 1: elements
 * out of bounds are NaN, else 0. */
enum { KERNEL_MAP_RANK = 5, KERNEL_MAPS = 4 };
typedef struct kernel_map {
    uint16_t operand;                 /* as kernel_slot.index */
    int64_t offset;                   /* bytes from its first element */
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
    uint32_t shared_bytes;            /* dynamic */
    bool overlaps;                    /* in a graph it begins before the launches in front of it have ended, and waits for them by itself: kernels/common/cuda/README.md */
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

/* Why the chip has no room for the launch: shared memory (what a kernel declares by itself comes on top), threads, blocks of a cluster. NULL: it has; may be written to why. */
const char *kernel_launch_refusal(const kernel_launch *launch, const chip_caps *chip, text *why);
/* UNSUPPORTED with that reason. */
dw_status kernel_launch_check(dw_context *context, const kernel_launch *launch, const chip_caps *chip);

/* Hands a run over to the shape of another row, since this one's kernel cannot run it for a reason that is known only now that the sizes are. Of a row that was asked
 * for by name: UNSUPPORTED with that reason, unless there is nothing to launch. row, to: their names. */
dw_status kernel_hand_over(const kernel_run *run, kernel_launcher *launcher, const char *row, const char *to, const char *because,
                           dw_status (*shape)(const kernel_run *run, kernel_launcher *launcher));

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
    /* The name of a variant, that run->tuned may ask for: "" where it does not run the problem, NULL past the last. NULL: there are none. */
    const char *(*variant)(const kernel_problem *problem, int index);
    bool reference;                   /* the op's plain meaning rather than a kernel of its own */
    bool by_name;                     /* taken where it is asked for or measurements found it the fastest, never by estimate */
    bool registered;                  /* the caller's: taken wherever it accepts */
    void *user;                       /* of registered kernels */
};

/* The rows of kernels/kernel.def that belong to this build, best first for equal cost; references last. */
int kernel_count(void);
const kernel_row *kernel_at(int index);

/* A user's additions to the rows, looked at first. Per compile, never global. */
typedef struct kernel_registry { const kernel_row *rows; int count; } kernel_registry;

/* The reason why the row does not run the problem on its chip, NULL when it does; may be written to why. */
const char *kernel_refusal(const kernel_row *row, const kernel_problem *problem, text *why);

/* One considered row: its cost, or why not. */
typedef struct kernel_verdict { const kernel_row *row; double seconds; const char *reason; } kernel_verdict;
typedef struct kernel_choice {
    const kernel_row *row;
    double seconds;
    int verdict_count;
    kernel_verdict *verdicts;         /* all that were considered, in the arena given */
} kernel_choice;

/* The accepted row of least cost; UNSUPPORTED lists every row's reason. registry and only may be NULL; only: a kernel's name that must be taken,
 * or the reason it cannot be is the error. problem->named is of that row alone. */
dw_status kernel_choose(arena *arena, const kernel_problem *problem, const kernel_registry *registry, const char *only, kernel_choice *choice);

/* max(flops / (rate of the format * efficiency), bytes / (bandwidth * efficiency)) + launch, for the problem at its typical sizes. */
double kernel_roofline(const kernel_problem *problem, dw_format multiplies, double compute_efficiency, double memory_efficiency);
/* Concrete tensors (no data) of the problem at its typical sizes, for cost functions. */
dw_status kernel_problem_call(const kernel_problem *problem, dw_tensor *in, dw_tensor *out, const dw_tensor **in_pointers, const dw_tensor **out_pointers, op_call *call);
enum { KERNEL_MAX_OPERANDS = 64, KERNEL_MAX_RESULTS = 4 };   /* of one op */

/* ---- cases (case.c) ---- */

/* One call as a line of text, which conformance checks, bench times and a bug report quotes: an op, its operands and attributes.
 *     matmul f32[7,96] f32[64,96] bt=true post=bias f32[64] pack=1 strided=0
 * Operands are types with numbers for dimensions, or '-'. What has the form key=value is an attribute of the op (lists with commas), or one of
 *     pack=I         operand I is constant, so rows that pack it get it packed
 *     strided=I,..   these operands lie with gaps between elements and rows, where the row allows it
 *     range=I:LO:HI  integers (and bools) of operand I from LO to HI; floats uniform in it
 *     ascending=I,.. the integers of these operands ascend
 *     special=I,..   these floating-point operands hold NaN, infinities and both zeros now and then
 *     choice=I:X,..  each element of operand I is one of these numbers, nan and inf among them; beyond its format they are the largest or lowest there is
 *     tail=I:X       rows of operand I end in X: from anywhere on; of four rows one has nothing else, one no such end
 *     bound=X        of the error beside the largest result, where 1e-5 is not it */
enum { KERNEL_CASE_OPERANDS = 16, KERNEL_CASE_ATTRS = 16, KERNEL_CASE_RESULTS = 4, KERNEL_CASE_CHOICES = 8 };

typedef struct kernel_range { bool given; double low, high; } kernel_range;
typedef struct kernel_choices { int count; double values[KERNEL_CASE_CHOICES]; } kernel_choices;
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
    unsigned constant, ascending, strided, special;
    kernel_range ranges[KERNEL_CASE_OPERANDS];
    kernel_choices choices[KERNEL_CASE_OPERANDS];
    kernel_tail tails[KERNEL_CASE_OPERANDS];
    double bound;
} kernel_case;

/* Parses and infers; everything lives in arena and dims. */
dw_status kernel_case_parse(arena *arena, dim_table *dims, const char *source, int number, const char *line, kernel_case *result);
/* Element i of an operand with choices or a tail, whose rows have cols elements, as random numbers of the seed decide; else *value stays as it is. */
void kernel_case_element(const kernel_case *c, int operand, uint64_t seed, int64_t i, int64_t cols, double *value);
/* The problem at its typical sizes as such a line, with ranges for integers that say which rows or places of another operand are read; NULL, or why it has none. */
const char *kernel_case_print(const kernel_problem *problem, text *line);

#endif
