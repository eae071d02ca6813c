/* The arithmetic of the op adamw, for its reference and its kernels: what is the same for all elements, and a step of one. Plain C that nvcc takes, too. */
#ifndef OP_OPTIMIZER_H
#define OP_OPTIMIZER_H

#include <math.h>

#ifdef __CUDACC__
#define OPTIMIZER_INLINE static __device__ inline
#else
#define OPTIMIZER_INLINE static inline
#endif

enum { UPDATES_ADAMW = 15, UPDATES_SUMS = 31 };   /* the most tensors that one op updates: of adamw, of accumulate */

/* What a step does to each element, in double; stays: to none. */
typedef struct adamw_step {
    double scale, keep_m, keep_v, new_m, new_v, keep_p, size, root, eps;
    int stays;
} adamw_step;

/* step is 1 for the first. Moments begin with 0, so they are too small by a share of beta^step: Kingma and Ba, "Adam", 2014, section 3. Decay that is apart from the
 * gradient: Loshchilov and Hutter, "Decoupled weight decay regularization", 2017. */
OPTIMIZER_INLINE adamw_step adamw_step_of(double beta1, double beta2, double eps, double decay, double rate, double step, double scale) {
    const double small1 = 1 - pow(beta1, step), small2 = 1 - pow(beta2, step);
    const adamw_step made = {scale, beta1, beta2, 1 - beta1, 1 - beta2, 1 - rate * decay, rate / small1, 1 / sqrt(small2), eps, scale != scale};
    return made;
}

/* One element: p, m and v become those after the step with the gradient g. REAL: float or double, whose root is sqrt_of. */
#define ADAMW_ELEMENT(REAL, sqrt_of, s, p, m, v, g)                                                       \
    do {                                                                                                  \
        const REAL gradient = (REAL)(g) * (REAL)(s)->scale;                                               \
        (m) = (REAL)(s)->keep_m * (m) + (REAL)(s)->new_m * gradient;                                      \
        (v) = (REAL)(s)->keep_v * (v) + (REAL)(s)->new_v * gradient * gradient;                           \
        (p) = (p) * (REAL)(s)->keep_p - (REAL)(s)->size * (m) / (sqrt_of(v) * (REAL)(s)->root + (REAL)(s)->eps); \
    } while (0)

#endif
