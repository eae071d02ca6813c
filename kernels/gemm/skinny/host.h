/* What host halves of skinny products, and of others that do the norm in front of them, share. Pure: knows no driver. */
#ifndef KERNELS_GEMM_SKINNY_HOST_H
#define KERNELS_GEMM_SKINNY_HOST_H

#include "kernel/kernel.h"
#include "kernels/gemm/skinny/ring.h"

/* Of weight and bias; f32 where there is neither. */
dw_format skinny_column_format(const kernel_norm *norm);
/* Why weight and bias are not read: NULL, they are. */
const char *skinny_columns_refusal(const kernel_run *run, text *why);
/* at: where rows lie in shared memory. */
void skinny_take_norm(kernel_launch *launch, const kernel_run *run, int64_t at, skinny_norm *norm);

/* Of one row and 16 bits: k that a block's threads have a piece of 8 of each. */
enum { SKINNY_VECTOR_PIECES = SKINNY_VECTOR_WARPS * 32 * 8 };
/* Do the rows lie in whole units of 16 bytes? */
bool skinny_is_in_units(const dw_tensor *x);
/* What all entries are told alike. */
void skinny_take_product(kernel_launch *launch, const kernel_run *run, int64_t m, skinny_arguments *g);

/* Microseconds that a norm of one row takes in the product. */
double skinny_norm_us(const kernel_run *run);

/* ---- rings of one row (ring.c) ---- */

/* Columns of the result that a warp has at least, warps that have one more; blocks: one for each multiprocessor, or fewer where there are few columns. */
typedef struct ring_share { int each, rest; int64_t blocks; } ring_share;
ring_share ring_share_of(const kernel_run *run);
/* Has a warp more rows of b than lanes? */
bool ring_is_full(const kernel_run *run, const ring_share *share);
/* Bytes for rings and a in half of a multiprocessor's shared memory, so that the next launch's block finds room beside; and stages of so many bytes for each warp in what is left of them, as many as a ring may have. */
int64_t ring_room(const chip_caps *chip);
int ring_stages(int64_t room, int64_t stage_bytes);
/* The product and its share; blocks, threads. stage_bytes, stages: of a warp's ring; chunks: pieces of a row of b. */
void ring_take(kernel_launch *launch, const kernel_run *run, const ring_share *share, int chunks, int64_t stage_bytes, int stages, ring_arguments *r);

/* ---- panels of 2 to 16 rows (panel.c) ---- */

/* Is a call for them: 2 to 16 rows, operands in one format of 16 bits as they are, rows in whole units, no norm? */
bool panel_may_take(const kernel_run *run);
/* What they read of b and write, over the bandwidth. */
double panel_bytes_seconds(const kernel_run *run);
/* The product; threads. */
void panel_take(kernel_launch *launch, const kernel_run *run, skinny_arguments *g);

/* ---- kernels for few of the calls ---- */

/* Of one row by weights of 4 bits, of 16 (ring.c) and of 8, and of 2 to 16 rows in 16 bits without a norm: is a call that skinny products take one for the kernel, what it takes, the launch. */
bool ring_nibbles_takes(const kernel_run *run);
double ring_nibbles_seconds(const kernel_run *run);
dw_status ring_nibbles_launch(const kernel_run *run, kernel_launcher *launcher);
bool ring_takes(const kernel_run *run);
double ring_seconds(const kernel_run *run);
dw_status ring_launch(const kernel_run *run, kernel_launcher *launcher);
bool ring_codes_takes(const kernel_run *run);
double ring_codes_seconds(const kernel_run *run);
dw_status ring_codes_launch(const kernel_run *run, kernel_launcher *launcher);
bool panel_takes(const kernel_run *run);
double panel_seconds(const kernel_run *run);
dw_status panel_launch(const kernel_run *run, kernel_launcher *launcher);
bool panels_takes(const kernel_run *run);
double panels_seconds(const kernel_run *run);
dw_status panels_launch(const kernel_run *run, kernel_launcher *launcher);

#endif
