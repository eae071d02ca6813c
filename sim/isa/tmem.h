/* Tensor memory, and the operations that work on it behind their threads' backs (PTX ISA 9.7.16.1 and 9.7.16.6). */
#ifndef SIM_ISA_TMEM_H
#define SIM_ISA_TMEM_H

#include "decode.h"
#include "umma_descriptor.h"

enum { TMEM_LANES = 128, TMEM_COLUMNS = 512, TMEM_UNIT = 32, TMEM_UNITS = TMEM_COLUMNS / TMEM_UNIT, TMEM_PARTITION = 32 };

static inline int tmem_lane(uint32_t address) { return (int)(address >> 16); }
static inline int tmem_column(uint32_t address) { return (int)(address & 0xffff); }

/* Cells: these lanes, columns [first, end). */
typedef struct tmem_area { uint64_t lanes[2]; int first, end; } tmem_area;

static inline tmem_area tmem_columns(int first, int count) { return (tmem_area){{UINT64_MAX, UINT64_MAX}, first, first + count}; }
/* count lanes from first on, which do not cross lane 64, or begin at 0. */
tmem_area tmem_area_of(int lane, int lanes, int column, int columns);
bool tmem_overlap(const tmem_area *a, const tmem_area *b);

/* A tcgen05.ld or .st that its warp has not waited for. */
typedef struct tmem_access { tmem_area area; int warp; bool store; } tmem_access;

/* Who touched a partition's column last, for the order that tcgen05.fence makes between threads (PTX ISA 9.7.16.6.3): times are the cluster's tensor_time. */
typedef struct tmem_touch {
    uint64_t written, read;              /* when a tensor core was known to have written it, or read it: a commit was waited for */
    const sim_warp *written_for, *read_for;   /* whose commit that was; NULL: none has been */
    uint32_t written_at, read_at;        /* the time of that commit by its warp's clock (order.h); 0: not watched */
    const sim_warp *warp;                /* who loaded or stored it last, and when; NULL: nobody */
    uint64_t time;
    uint32_t number;                     /* the same by its warp's clock (order.h); 0: not watched */
    bool stored;
} tmem_touch;

/* One CTA's, from its first allocation on. */
typedef struct sim_tmem {
    uint32_t cells[TMEM_LANES][TMEM_COLUMNS];
    bool written[TMEM_LANES][TMEM_COLUMNS];
    uint16_t columns_at[TMEM_UNITS];     /* of the allocation that begins at a unit; 0: none does */
    uint16_t taken;                      /* units, as bits */
    uint16_t last_columns;               /* of the last allocation; 0: there was none */
    bool relinquished;
    int group;                           /* .cta_group of every instruction: 1, 2; 0: not seen yet */
    uint64_t collective;                 /* operations of both CTAs of a pair that this one has come to */
    tmem_access *accesses;
    size_t access_count, access_capacity;
    tmem_touch touches[TMEM_LANES / TMEM_PARTITION][TMEM_COLUMNS];
} sim_tmem;

void tmem_free(sim_cta *cta);
/* The CTA's, made when it is not there; NULL: no host memory, and a finding. */
sim_tmem *tmem_of(sim_warp *w, const sim_op *op, sim_cta *cta);
/* The other CTA of the pair; NULL: there is none, and a finding. */
sim_cta *tmem_peer(sim_warp *w, const sim_op *op, int lane);
/* Is .cta_group what all instructions of the CTA say? Else a finding, and false. */
bool tmem_check_group(sim_warp *w, const sim_op *op, int lane);
/* Are these columns in bounds and allocated? Else a finding, and false. what names the operand. */
bool tmem_check_area(sim_warp *w, const sim_op *op, int lane, sim_cta *cta, const tmem_area *area, const char *what);
/* Does a ld (where writes) or st that was not waited for touch them? Then a finding, and false. */
bool tmem_check_accesses(sim_warp *w, const sim_op *op, int lane, const sim_cta *cta, const tmem_area *area, bool writes, const char *what);
/* Did tcgen05.fence order what a warp does now with these cells behind what others did? Else a finding, and false. tensor: it is a tensor core that does it. Of a
 * kernel that has no such fence at all the ordinary order of waits and barriers counts, as the ISA allows and production compilers rely on. */
bool tmem_check_order(sim_warp *w, const sim_op *op, int lane, const sim_cta *cta, const tmem_area *area, bool writes, bool tensor);
/* The warp loads or stores them; a tensor core has written or read them, and a wait showed it. */
void tmem_touched(sim_warp *w, const tmem_area *area, bool stores);
void tmem_finished(sim_cta *cta, const tmem_area *area, bool writes, const sim_warp *warp, uint32_t at);   /* warp, at: whose commit, and when by its clock */
/* Moves 8 columns of lanes from first_lane, a multiple of 32, on to the lane before, but of the last lane of each partition, which keeps its own. */
void tmem_shift(sim_tmem *tmem, int first_lane, int column);
/* Columns that were never given back; 0: none. */
int tmem_leaked(const sim_cta *cta);
/* For select functions: does the module's target have tcgen05? Else NULL's reason is set. exact: only an "a" target has the form. */
bool tmem_has_target(sim_decoding *d, bool exact);

/* ---- operations under way (tensor_queue.c) ---- */

enum { TENSOR_MAX_USES = 5 };

typedef struct tensor_use { tmem_area area; bool writes; } tensor_use;
typedef struct tensor_task tensor_task;

/* An mma, cp, shift or commit. Those of one CTA, or pair, are done in the order of their issue. One that is done is still not to be relied upon until a
 * commit behind it has arrived at its mbarrier. */
struct tensor_task {
    bool (*run)(tensor_task *task);      /* false: a finding was made. NULL: a commit */
    void (*hold)(tensor_task *task, int change);   /* counts (1) or discounts (-1) what it reads in shared memory; NULL: nothing */
    sim_warp *warp;
    const sim_op *op;
    int lane;
    sim_cta *ctas[2];                    /* [0] the CTA, or the even one of the pair; [1] the odd one, or NULL */
    bool done;
    int delay;
    tensor_use uses[TENSOR_MAX_USES];
    int use_count;
    uint32_t d, a_tmem, scale_a, scale_b, metadata;   /* addresses in tensor memory */
    uint64_t a, b;                       /* descriptors */
    umma_product product;
    umma_column_mask mask;               /* of B */
    bool accumulate;
    uint32_t disabled[8];                /* lanes that keep their values */
    int scale_d;                         /* D is multiplied by 2^-scale_d first */
    uint64_t mbarrier;                   /* of a commit: the offset */
    uint32_t *since;                     /* of a commit: what came before it (order.h); its own */
    sim_cta *mbarrier_cta;
    uint32_t multicast;
};

/* Who issues it and whose memories it works on, by .cta_group; false: a finding was made. */
bool tensor_begin(sim_warp *w, const sim_op *op, int lane, tensor_task *task);
/* May it work on its uses: are they allocated, and free of loads and stores that nobody waited for? false: a finding was made. */
bool tensor_check_uses(const tensor_task *task);
/* May it read 16 bytes of shared memory now? false: a finding was made. */
bool tensor_check_chunk(const tensor_task *task, const sim_cta *cta, uint32_t offset, const char *what);
/* Takes the task; false: a finding was made. */
bool tensor_issue(const tensor_task *task);
void sim_tensor_free(sim_cluster *cluster);
/* The operation under way that writes these cells, or (where writes) reads them; NULL: none. */
const tensor_task *tensor_conflict(const sim_cta *cta, const tmem_area *area, bool writes);
/* The cells that hold the metadata of a sparse A. */
tmem_area tensor_metadata_area(const tensor_task *task);
/* Lays a row's stored elements out at the places that the metadata says; there: which these are. false: a finding was made. */
bool tensor_place_sparse(const tensor_task *task, const sim_cta *cta, int row, const uint32_t *stored, uint32_t *code, uint64_t there[2]);
/* Counts 16 bytes of shared memory as read by an operation under way, or no more. */
void tensor_hold_chunk(sim_cta *cta, uint32_t offset, int change);

#endif
