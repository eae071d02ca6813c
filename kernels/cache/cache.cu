/* Tokens into caches, and rotation on the way: a thread block for each few tokens, one thread for an element, or for a pair that is turned, in double. Any format, any strides. Speed: not
 * measured. */
#include "kernels/cache/places.cuh"

/* A pair of the width, or an element behind it. */
DEVICE void turn_unit(const cache_arguments *a, const cache_part *p, const cache_item *item, int64_t token) {
    const int64_t half = a->width / 2;
    if (item->unit >= half) {
        copy_element(&p->to, item->to + (item->unit + half) * p->to_step, &p->from, item->from + (item->unit + half) * p->from_step);
        return;
    }
    const int64_t i = a->interleaved ? 2 * item->unit : item->unit, j = a->interleaved ? i + 1 : i + half, cosine = token * a->cosine_token, sine = token * a->sine_token;
    const double x = load_double(&p->from, item->from + i * p->from_step), y = load_double(&p->from, item->from + j * p->from_step);
    const double cos_i = load_double(&a->cosine, cosine + i * a->cosine_step), cos_j = load_double(&a->cosine, cosine + j * a->cosine_step);
    const double sin_i = load_double(&a->sine, sine + i * a->sine_step), sin_j = load_double(&a->sine, sine + j * a->sine_step);
    store_double(&p->to, item->to + i * p->to_step, x * cos_i - y * sin_i);
    store_double(&p->to, item->to + j * p->to_step, y * cos_j + x * sin_j);
}

KERNEL(cache_elements, cache_arguments) {
    const int64_t first = (int64_t)blockIdx.x * arguments.together;
    const cache_found found = cache_places(&arguments, first);
    if (threadIdx.x < (unsigned)arguments.together && found.places[threadIdx.x].row < 0) cache_raise_outside(&arguments, first + threadIdx.x);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < arguments.together * arguments.units; i += CUDA_THREADS) {
        const int64_t token = i / arguments.units;
        if (first + token >= arguments.tokens) break;
        const cache_place place = cache_place_of(&found, (int)token);
        const cache_item item = cache_item_at(&arguments, first + token, &place, i % arguments.units);
        const cache_part *p = &arguments.parts[item.part];
        if (item.to < 0) continue;
        if (p->turned) turn_unit(&arguments, p, &item, first + token);
        else copy_element(&p->to, item.to + item.unit * p->to_step, &p->from, item.from + item.unit * p->from_step);
    }
}
