/* Which keys the queries of a tile see, and what of a chunk of keys that leaves: shared by the kernels by tiles. */
#ifndef KERNELS_MQA_LOGITS_VIEW_CUH
#define KERNELS_MQA_LOGITS_VIEW_CUH

#include "kernels/gpu/plain/device.cuh"
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/ldst.cuh"
#include "kernels/gpu/ptx/math.cuh"
#include "kernels/gpu/ptx/tma.cuh"
#include "kernels/gpu/ptx/warp.cuh"
#include "kernels/mqa_logits/arguments.h"
#include "kernels/gpu/pipe/ring.cuh"

/* A tile of queries and a chunk of positions, [begin, end). */
typedef struct mqa_item { int batch, first, begin, end; } mqa_item;

/* Blocks of `block` keys from block `first` on that some query sees; positions [low, high) are seen by all. */
typedef struct mqa_work { int first, count, low, high; } mqa_work;

/* The positions of a query, [begin, end). */
typedef struct mqa_range { int begin, end; } mqa_range;

/* Tiles of one chunk follow each other, so that the thread blocks of the chip read the same keys at a time. */
INLINE mqa_item mqa_item_at(const mqa_arguments *p, int tiles, int chunks, int chunk, int queries, int number) {
    const int rest = number / tiles, batch = rest / chunks, begin = (rest - batch * chunks) * chunk;
    const mqa_item item = {batch, (number - rest * tiles) * queries, begin, min(begin + chunk, (int)p->keys)};
    return item;
}

INLINE int mqa_bound(const cuda_array *array, const int64_t *strides, int has, int batch, int query, int otherwise, int keys) {
    if (!has) return otherwise;
    const int64_t value = load_int(array, batch * strides[0] + query * strides[1]);
    return value < 0 ? 0 : value > keys ? keys : (int)value;
}

INLINE mqa_range mqa_range_of(const mqa_arguments *p, int batch, int query) {
    const int keys = (int)p->keys, there = query < (int)p->queries;
    mqa_range range = {0, 0};
    if (there) range.begin = mqa_bound(&p->start, p->start_strides, p->has_start, batch, query, 0, keys);
    if (there) range.end = mqa_bound(&p->end, p->end_strides, p->has_end, batch, query, keys, keys);
    return range;
}

/* By a warp: of an item whose queries are at most 32; *range: of the query of each lane, empty behind the last. */
INLINE mqa_work mqa_find_work(const mqa_arguments *p, mqa_item item, const int queries, const int block, mqa_range *range) {
    const int lane = (int)threadIdx.x % 32, query = item.first + lane;
    const bool there = lane < queries && query < (int)p->queries;
    const mqa_range none = {0, 0};
    *range = there ? mqa_range_of(p, item.batch, query) : none;
    const bool sees = range->begin < range->end;
    const int first = max((int)redux_min(sees ? (uint32_t)range->begin : INT32_MAX), item.begin), last = min((int)redux_max(sees ? (uint32_t)range->end : 0), item.end);
    mqa_work work = {0, 0, 0, 0};
    work.low = (int)redux_max(there ? (uint32_t)range->begin : 0);
    work.high = (int)redux_min(there ? (uint32_t)range->end : INT32_MAX);
    if (first < last) work.first = first / block, work.count = (last + block - 1) / block - work.first;
    return work;
}

/* The page of a block of keys, which lies in one; the batch where there are no pages; -1: its page is not there. */
INLINE int mqa_page_of(const mqa_arguments *p, int batch, int position) {
    if (!p->has_table) return batch;
    const int64_t page = load_int(&p->table, batch * p->table_strides[0] + position / (int)p->page * p->table_strides[1]);
    if (page >= -1 && page < p->pages) return (int)page;
    fault_raise(&p->fault, CUDA_FAULT_INDEX, page, p->pages);
    return -1;
}

/* Positions [begin, end) of the item's queries have no key: by `threads` threads, of which this is number `thread`. */
INLINE void mqa_clean(const mqa_arguments *p, mqa_item item, const int queries, int begin, int end, int thread, const int threads) {
    const int count = min(queries, (int)p->queries - item.first);
    for (int i = 0; i < count; i++) {
        const int64_t at = item.batch * p->out_strides[0] + (item.first + i) * p->out_strides[1];
        int key = begin;
        if (p->out.format == CUDA_f32 && p->out_strides[2] == 1) {
            float *row = (float *)p->out.data + at;
            for (; key < end && (uint64_t)(row + key) % 16 != 0; key++)
                if (thread == 0) row[key] = -INFINITE;
            const int vectors = (end - key) / 4;
            for (int j = thread; j < vectors; j += threads) ((float4 *)(row + key))[j] = make_float4(-INFINITE, -INFINITE, -INFINITE, -INFINITE);
            key += max(vectors, 0) * 4;
        }
        for (key += thread; key < end; key += threads) store_float(&p->out, at + key * p->out_strides[2], -INFINITE);
    }
}

/* What no block of the item has a key for. */
INLINE void mqa_clean_item(const mqa_arguments *p, mqa_item item, mqa_work work, const int queries, const int block, int thread, const int threads) {
    const int first = work.count > 0 ? max(work.first * block, item.begin) : item.end, last = (work.first + work.count) * block;
    mqa_clean(p, item, queries, item.begin, first, thread, threads);
    if (work.count > 0) mqa_clean(p, item, queries, last, item.end, thread, threads);
}

#endif
