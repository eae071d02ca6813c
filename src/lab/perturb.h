/* What a perturbation does to a value: by 1e-7 of itself, or by as much as a device's kernel was seen to be off. */
#ifndef LAB_PERTURB_H
#define LAB_PERTURB_H

#include "lab/lab.h"

/* How far a result is from another, and how large that is: root mean squares over finite elements. */
typedef struct perturb_distance { double by, of; } perturb_distance;

perturb_distance perturb_measure(const dw_tensor *x, const dw_tensor *reference);
/* Contiguous floating-point numbers, each by 1e-7 of itself; where that is no place of the format, by a last place, as rarely as makes up for it. */
void perturb(const dw_tensor *tensor, uint64_t seed);
/* A contiguous result as another order of its sums would make it: as above, or as far as `off` says, if that is more. Of blocks the codes move, by one each, as many as make
 * up for `off`. */
void perturb_sum(const dw_tensor *tensor, const perturb_distance *off, uint64_t seed);

#endif
