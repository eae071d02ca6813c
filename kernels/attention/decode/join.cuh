/* What the parts of a row's keys have come to, added up over the thread blocks of a cluster: what the kernels of this folder share. Each keeps its own order of parts, which is always the same. */
#ifndef KERNELS_ATTENTION_DECODE_JOIN_CUH
#define KERNELS_ATTENTION_DECODE_JOIN_CUH

#include "kernels/attention/scores.cuh"
#include "kernels/gpu/ptx/cluster.cuh"

/* Addresses in the shared memory of each block: of its parts and their rows the largest score and the sum of weights, [parts][rows][2], and sums [parts][rows][pitch]. */
typedef struct decode_sums { uint32_t ends, sums; int parts, rows, pitch; } decode_sums;

/* What a part has come to for four columns of a row: its largest score and sum of weights, and sums. */
typedef struct decode_part { float2 end; float4 sums; } decode_part;

INLINE void barrier_of_blocks(int splits) {
    if (splits > 1) {
        cluster_arrive();
        cluster_wait();
    } else {
        __syncthreads();
    }
}

/* from: of all parts of the cluster. */
INLINE uint32_t end_of_part(const decode_sums *left, int from, int row) { return cluster_map(left->ends + (uint32_t)(from % left->parts * left->rows + row) * 8, (uint32_t)from / left->parts); }

INLINE decode_part part_of(const decode_sums *left, int from, int row, int col) {
    const int at = from % left->parts * left->rows + row;
    decode_part part;
    part.end = ld_cluster_f32x2(end_of_part(left, from, row));
    part.sums = ld_cluster_f32x4(cluster_map(left->sums + (uint32_t)(at * left->pitch + col) * 4, (uint32_t)from / left->parts));
    return part;
}

INLINE void add_part(decode_part *all, const decode_part *part, float max, float unit) {
    const float down = shrink(part->end.x, max, unit);
    all->end.y = fmaf(down, part->end.y, all->end.y);
    all->sums = make_float4(fmaf(down, part->sums.x, all->sums.x), fmaf(down, part->sums.y, all->sums.y), fmaf(down, part->sums.z, all->sums.z), fmaf(down, part->sums.w, all->sums.w));
}

#endif
