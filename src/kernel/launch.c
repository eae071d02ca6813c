/* Launches before a device sees them: whether a chip has room for one, and those that no op asks for. Starts nothing. */
#include "kernel/kernel.h"

#include <stdarg.h>

#include "kernels/kernels.h"

enum { MOST_THREADS = 1024 };         /* of a block, on every chip so far */

static uint64_t product(const uint32_t sizes[3]) { return (uint64_t)sizes[0] * sizes[1] * sizes[2]; }

const char *kernel_because(text *why, const char *format, ...) {
    va_list arguments;
    if (why == NULL) return "refused";
    va_start(arguments, format);
    text_vprintf(why, format, arguments);
    va_end(arguments);
    return text_string(why);
}

const char *kernel_launch_refusal(const kernel_launch *launch, const chip_caps *chip, text *why) {
    const uint64_t threads = product(launch->block), blocks = product(launch->preferred[0] > 0 ? launch->preferred : launch->cluster);
    const int most_blocks = chip_cluster_blocks(chip);
    if (launch->library != NULL) return NULL;
    if (launch->shared_bytes > chip->shared_bytes) return kernel_because(why, "it needs %u bytes of shared memory, and %s has %zu for a block", launch->shared_bytes, chip->name, chip->shared_bytes);
    if (threads == 0 || threads > MOST_THREADS) return kernel_because(why, "it needs blocks of %llu threads, and there are 1 to %d", (unsigned long long)threads, MOST_THREADS);
    if (blocks > (uint64_t)most_blocks) return kernel_because(why, "it needs clusters of %llu blocks, and %s has room for %d", (unsigned long long)blocks, chip->name, most_blocks);
    return NULL;
}

dw_status kernel_launch_check(dw_context *context, const kernel_launch *launch, const chip_caps *chip) {
    text why;
    text_init(&why, context);
    const char *reason = kernel_launch_refusal(launch, chip, &why);
    dw_status status = reason != NULL ? base_fail(context, DW_UNSUPPORTED, "kernel %s cannot be launched on %s: %s", launch->entry, chip->name, reason) : DW_OK;
    text_free(&why);
    return status;
}

bool kernel_carry(const chip_caps *chip, int count, const kernel_piece *pieces, bool early, kernel_launch *launch) { return move_pieces_launch(chip, count, pieces, early, launch); }
