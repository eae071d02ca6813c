/* Launches before a device sees them: whether a chip has room for one, and handing a run over to another row. Starts nothing. */
#include "kernel/kernel.h"

enum { MOST_THREADS = 1024 };         /* of a block, on every chip so far */

static uint64_t product(const uint32_t sizes[3]) { return (uint64_t)sizes[0] * sizes[1] * sizes[2]; }

const char *kernel_launch_refusal(const kernel_launch *launch, const chip_caps *chip, text *why) {
    const uint64_t threads = product(launch->block), blocks = product(launch->cluster);
    const int most_blocks = chip_cluster_blocks(chip);
    if (launch->library != NULL) return NULL;
    if (launch->shared_bytes > chip->shared_bytes) text_printf(why, "it needs %u bytes of shared memory, and %s has %zu for a block", launch->shared_bytes, chip->name, chip->shared_bytes);
    else if (threads == 0 || threads > MOST_THREADS) text_printf(why, "it needs blocks of %llu threads, and there are 1 to %d", (unsigned long long)threads, MOST_THREADS);
    else if (blocks > (uint64_t)most_blocks) text_printf(why, "it needs clusters of %llu blocks, and %s has room for %d", (unsigned long long)blocks, chip->name, most_blocks);
    else return NULL;
    return text_string(why);
}

dw_status kernel_launch_check(dw_context *context, const kernel_launch *launch, const chip_caps *chip) {
    text why;
    text_init(&why, context);
    const char *reason = kernel_launch_refusal(launch, chip, &why);
    dw_status status = reason != NULL ? base_fail(context, DW_UNSUPPORTED, "kernel %s cannot be launched on %s: %s", launch->entry, chip->name, reason) : DW_OK;
    text_free(&why);
    return status;
}

/* ---- another row's ---- */

typedef struct refuser {
    kernel_launcher launcher;
    dw_context *context;
    const char *op, *row, *to, *because;
} refuser;

static dw_status refuse(kernel_launcher *launcher, const kernel_launch *launch) {
    const refuser *r = (const refuser *)launcher;
    (void)launch;
    return base_fail(r->context, DW_UNSUPPORTED, "%s: kernel '%s', which was asked for, cannot run this: %s; %s would", r->op, r->row, r->because, r->to);
}

dw_status kernel_hand_over(const kernel_run *run, kernel_launcher *launcher, const char *row, const char *to, const char *because,
                           dw_status (*shape)(const kernel_run *run, kernel_launcher *launcher)) {
    refuser refuser = {{refuse}, run->call.context, run->call.op->name, row, to, because};
    return shape(run, run->named ? &refuser.launcher : launcher);
}
