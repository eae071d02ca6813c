/* dropout: a thread for four elements, which take one call of Philox (op/dropping.h). Speed: README.md. */
#include "kernels/dropout/dropout_cuda.h"
#include "kernels/gpu/plain/device.cuh"
#include "op/dropping.h"

KERNEL(dropout_elements, dropout_arguments) {
    const uint64_t seed = (uint64_t)load_int(&arguments.draw, 0), step = (uint64_t)load_int(&arguments.draw, 1);
    const int64_t groups = (arguments.count + DROPPING_GROUP - 1) / DROPPING_GROUP;
    for (int64_t group = item_first(); group < groups; group += item_step()) {
        const philox_words words = dropping_words(seed, step, arguments.site, (uint64_t)group);
        for (int i = 0; i < DROPPING_GROUP; i++) {
            const int64_t at = group * DROPPING_GROUP + i;
            if (at >= arguments.count) break;
            const double value = load_double(&arguments.x, at), factor = words.word[i] >= arguments.threshold ? arguments.factor : 0;
            store_double(&arguments.out, at, arguments.is_double ? value * factor : (double)((float)value * (float)factor));
        }
    }
}
