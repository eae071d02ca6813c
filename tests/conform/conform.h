/* The parts of the conformance program (test_kernels.c says what it does): operands and results of a line (operands.c), runs on a device and oracles of quantised results (runs.c), one line on
 * one kernel (row.c), attention that writes its token (write.c), collectives (ranks.c), and which kernels run which lines (test_kernels.c). */
#ifndef CONFORM_H
#define CONFORM_H

#include "support/support.h"

#include "device/device.h"
#include "kernel/kernel.h"

enum { GUARD = 256, THREADS = 2 };

/* What the command line said. */
typedef struct options_of_command {
    const char *device, *kernel;  /* NULL: the CPU; all */
    uint64_t first_seed, seeds;   /* the first, and how many */
    int64_t part, parts;          /* every parts-th line is run, from the part-th on */
    int runs_each;                /* 1: --once */
    bool times, bits, unwritten;
} options_of_command;
extern options_of_command options;

typedef struct program {
    dw_context *context;
    pool *pools[THREADS];         /* of 1, 2, .. threads */
    chip_caps levels[8];
    int level_count;
    device *device;               /* with memory of its own, whose rows run instead of the CPU's; NULL: the CPU */
    bool only_looks;              /* the line is of another part: which rows and ways it reaches is noted, and nothing is run */
    bool *reached;                /* by row, */
    uint32_t *ways_reached;       /* and of a row by way */
    const kernel_way *way;        /* that runs; NULL: the row, or what it picks */
    uint32_t ways;                /* of its row */
    kernel_tuned tuned;           /* the variant that runs; way NULL: none was asked for */
    int64_t lines, runs, plain_runs, left, failures;   /* lines: of files, those of other parts too; left: runs of slow ways, to smaller lines */
    double lost;                  /* what results of the line may lack, of the seed that runs */
} program;

/* ---- operands and results ---- */

/* Memory with a watched end. */
typedef struct block { uint8_t *bytes; size_t length; } block;

block block_create(size_t length, int fill);
bool block_is_whole(const block *b);

/* dense: as it is; strided: with gaps (strided= or pitched=), where the line asks for that; plain: what it is quantised from, where the line says it. Those that are not there have no data. */
typedef struct operand { dw_tensor dense, strided, plain; block memory, gaps, of_plain; } operand;

void operand_create(const kernel_case *c, int index, uint64_t seed, operand *o);
void operand_destroy(operand *o);

/* Its memory is the owner's to free. gap: elements behind each row, which nobody may write. */
typedef struct result { dw_tensor tensor; block memory; } result;

void result_create(const kernel_case *c, int index, int64_t gap, result *r);
bool gaps_are_whole(const result *r);
/* The first difference beyond the line's bound, as text; false when there is none. */
bool differs(const program *p, const kernel_case *c, const result *got, const result *reference, char *text, size_t room);

/* ---- runs ---- */

/* What kernel_execute does on the CPU, on the device: operands go there with results, and results come back. operands may be NULL where in is dense in its own block. */
dw_status run_on_device(program *p, const kernel_row *row, kernel_run *run, int n_in, operand *operands, result *results, block *workspace);
/* The same with the columns of the run's norm, which lie in blocks of their own. */
dw_status run_there(program *p, const kernel_row *row, kernel_run *run, int n_in, operand *operands, result *results, block *workspace);
/* Was it one of the row's ways by itself that was run, and does it refuse the call? */
bool is_refused(const program *p, const kernel_row *row, const kernel_run *run, dw_status status);

/* Is it a norm, a product or attention with a result in a block format? */
bool is_quantised(const kernel_case *c);
/* What quantize makes of the call's plain result: by row on level, or by the op's reference when row is NULL. The oracle is created. */
void quantised_oracle(program *p, const kernel_case *c, const kernel_row *row, const chip_caps *level, const dw_tensor *const *in, operand *operands, const void *packed, result *oracle);

/* ---- a token that attention writes (write.c) ---- */

/* The line with other queries, and a token that is written, by both: of a way that can. */
void run_writing(program *p, const kernel_case *c, const kernel_row *row, const kernel_run *given, const operand *operands, uint64_t seed);

/* ---- one line ---- */

void report(program *p, const kernel_case *c, const kernel_row *row, const char *level, uint64_t seed, int threads, const char *what);
/* The line on row, or on p's way of it, beside the references of its results. */
void run_row(program *p, const kernel_case *given, const kernel_row *row, const chip_caps *level, const kernel_problem *problem, operand *operands, const result *references, uint64_t seed);

kernel_problem problem_of(program *p, const kernel_case *c, int level);
/* Does row i this way, or the row itself, take the line? Then p says which. */
bool takes(program *p, int i, const kernel_way *way, const kernel_problem *problem);
/* A line of a collective, by ranks. */
void run_collective(program *p, const kernel_case *c);

#endif
