/* Where the tokens of a block go in a cache: found by all of its threads, for the plain kernel and for that in words. */
#ifndef KERNELS_MOVE_CACHE_CUH
#define KERNELS_MOVE_CACHE_CUH

#include "kernels/gpu/plain/device.cuh"
#include "kernels/move/move_cuda.h"

/* row: -1 where it or the position does not lie in the cache. */
typedef struct cache_token { int64_t row, position; } cache_token;

DEVICE cache_token cache_token_at(const cache_arguments *a, int64_t token) {
    cache_token t = {load_int(&a->row, token * a->row_step), load_int(&a->position, token * a->position_step)};
    if (t.row >= a->rows || t.position < 0) t.row = -1;
    return t;
}

/* Do both take one slot of one row? Positions that differ by less than the slots do not, which is nearly always what decides. */
DEVICE int cache_same_slot(const cache_token *a, const cache_token *b, int64_t slots) {
    int64_t apart = a->position - b->position;
    if (a->row != b->row) return 0;
    if (apart == 0) return 1;
    return apart > -slots && apart < slots ? 0 : apart % slots == 0;
}

DEVICE void cache_raise(const cache_arguments *a, int64_t token) {
    int64_t row = load_int(&a->row, token * a->row_step), position = load_int(&a->position, token * a->position_step);
    int outside = row < 0 || row >= a->rows;
    fault_raise(&a->fault, CUDA_FAULT_INDEX, outside ? row : position, outside ? a->rows : a->slots);
}

/* The first element of each of the CACHE_TOKENS tokens from first on in out, into shared memory; -1: the token is written nowhere, as it lies outside of the cache, or a later
 * one of the run takes its slot. A barrier ends it. */
DEVICE const int64_t *cache_places(const cache_arguments *a, int64_t first) {
    __shared__ cache_token tokens[CACHE_TOKENS];
    __shared__ int64_t places[CACHE_TOKENS];
    __shared__ unsigned overtaken;
    unsigned seen = 0;
    int64_t mine = first + threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) overtaken = 0;
    if (threadIdx.x < CACHE_TOKENS) {
        cache_token t = {-1, 0};
        if (mine < a->tokens) t = cache_token_at(a, mine);
        if (mine < a->tokens && t.row < 0) cache_raise(a, mine);
        tokens[threadIdx.x] = t;
    }
    __syncthreads();
    for (int64_t later = mine + 1; later < a->tokens; later += CUDA_THREADS) {
        cache_token other = cache_token_at(a, later);
        for (int k = 0; k < CACHE_TOKENS; k++)
            if (first + k < later && other.row >= 0 && cache_same_slot(&tokens[k], &other, a->slots)) seen |= 1u << k;
    }
    if (seen != 0) atomicOr(&overtaken, seen);
    __syncthreads();
    if (threadIdx.x < CACHE_TOKENS) {
        cache_token t = tokens[threadIdx.x];
        int stays = t.row >= 0 && (overtaken >> threadIdx.x & 1) == 0;
        places[threadIdx.x] = stays ? t.row * a->out_strides[0] + t.position % a->slots * a->out_strides[2] : -1;
    }
    __syncthreads();
    return places;
}

#endif
