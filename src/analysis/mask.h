/* Reading attention masks: a formula over (.., q, k) taken apart into the limits that an attention op has as attributes, and the rest. */
#ifndef ANALYSIS_MASK_H
#define ANALYSIS_MASK_H

#include "analysis/value.h"

enum { MASK_MAX_PARTS = 16 };

/* Query q sees key k if all of it holds: k <= q where causal; q - k < window where not 0; k - q < ahead where not 0; every one of parts. */
typedef struct mask {
    bool causal;
    bool never;                          /* no key at all is seen */
    bool finite;                         /* what hides is a finite number: a row of nothing else averages all keys; */
    bool weak;                           /* .. one that is the lowest of f16 alone */
    int64_t window, ahead;
    int part_count;
    value_expr parts[MASK_MAX_PARTS];    /* BOOL */
    value_expr bias;                     /* REAL, added to the scores; NULL: nothing */
} mask;

/* x is BOOL (true where a key is seen) or REAL (added to the scores: hidden where it is -infinity or the lowest number of the format),
 * over the axes q = rank - 2 and k = rank - 1 of a formula of that shape. *known is false when it has too many parts. */
dw_status mask_read(value_analysis *analysis, value_expr x, int rank, const dim *dims, mask *mask, bool *known);
/* Does x vary with the query and the key, so that writing it out costs their product? */
bool mask_is_large(value_expr x, int rank);

#endif
