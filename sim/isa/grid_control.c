/* griddepcontrol: a launch waits for those in front of it (machine/early.c). */
#include "decode.h"

static sim_flow do_wait(sim_warp *w, const sim_op *op, uint32_t mask) {
    (void)op;
    w->waited |= mask;
    w->launch->waited = true;
    return SIM_NEXT;
}

sim_handler select_grid_control(sim_decoding *d) { return sim_mod(d, SIM_MOD_wait) ? do_wait : select_nothing(d); }
