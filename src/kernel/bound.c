/* What a call cannot be faster than on its chip: its bytes and FLOPs, which the op counts from its real shapes, at the chip's rates. The same counts are what kernels' estimates are made of
 * (roofline.c). No efficiency, no launch, no measurement. */
#include "kernel/kernel.h"

dw_format kernel_multiplies(const op_call *call, const chip_caps *chip) {
    const bool is_product = (call->op->traits & OP_TRAIT_CONTRACTION) != 0 && call->n_in > 1 && call->in[0] != NULL && call->in[1] != NULL;
    if (!is_product) return DW_FORMAT_f32;
    const dw_format a = call->in[0]->format, b = call->in[1]->format;
    return chip_flops(chip, a) <= chip_flops(chip, b) ? a : b;
}

/* Bytes that come from main memory, whatever was run before. */
static double far_bytes(const op_call *call, const op_work *work, uint64_t far) {
    double bytes = 0;
    for (int i = 0; i < call->n_in; i++)
        if (i < 64 && (far >> i & 1) != 0) bytes += op_bytes_read(call, work, i);
    return bytes;
}

void kernel_bound_of(const kernel_run *run, uint64_t far, kernel_bound *bound) {
    const chip_caps *chip = run->chip;
    *bound = (kernel_bound){.multiplies = kernel_multiplies(&run->call, chip)};
    run->call.op->work(&run->call, &bound->work);
    const double all = bound->work.bytes_read + bound->work.bytes_written, cache = chip->rates[CHIP_RATE_l2].expected, from_far = far_bytes(&run->call, &bound->work, far);
    const bool near = cache > 0 && all - from_far <= (double)chip->cache_bytes;
    bound->far_bytes = from_far;
    bound->products_s = bound->work.flops / chip_flops(chip, bound->multiplies);
    bound->memory_s = (near ? from_far : all) / chip_bytes_per_s(chip);
    bound->cache_s = near ? all / cache : 0;
    bound->limit = bound->cache_s > bound->memory_s ? KERNEL_LIMIT_CACHE : KERNEL_LIMIT_MEMORY;
    bound->seconds = bound->limit == KERNEL_LIMIT_CACHE ? bound->cache_s : bound->memory_s;
    if (bound->products_s <= bound->seconds) return;
    bound->limit = KERNEL_LIMIT_PRODUCTS;
    bound->seconds = bound->products_s;
}

const char *kernel_limit_name(kernel_limit limit) {
    static const char *const names[] = {[KERNEL_LIMIT_MEMORY] = "memory", [KERNEL_LIMIT_CACHE] = "cache", [KERNEL_LIMIT_PRODUCTS] = "operations"};
    return names[limit];
}
