/* What a function is given in registers, by number: special registers, and its local and shared memory. */
#ifndef SIM_MACHINE_SPECIAL_H
#define SIM_MACHINE_SPECIAL_H

#include "machine.h"

enum { GIVEN_LOCAL = 1000, GIVEN_SHARED, GIVEN_SHARED_32 };   /* of sim_given.what; below it a special register */

typedef enum sim_special {
    SPECIAL_NONE,
#define SIM_SPECIAL(name, text, type) SPECIAL_##name,
#include "special.def"
#undef SIM_SPECIAL
    SPECIAL_COUNT
} sim_special;
void sim_special_fill(sim_warp *w, int what, void *row, uint32_t lanes);

#endif
