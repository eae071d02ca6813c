/* The arguments of convolutions by wgmma, and what is laid out for them in the workspace. Plain C that nvcc takes, too. */
#ifndef KERNELS_CONV_WGMMA_H
#define KERNELS_CONV_WGMMA_H

#include "kernels/conv/conv_cuda.h"

#ifdef __CUDACC__
#define CONV_ALIGNED(bytes) __align__(bytes)
#else
#define CONV_ALIGNED(bytes) _Alignas(bytes)
#endif

enum { CONV_WGMMA_THREADS = 384, CONV_K = 64 };   /* CONV_K: elements of k in a row of a stage, 128 bytes */
/* Results on their way: of each of eight warps 16 rows of 128 columns, 16 bytes apart more, so that no two rows lie in the same banks. */
enum { CONV_STAGED_COLS = 128, CONV_STAGED_PITCH = 2 * CONV_STAGED_COLS + 16, CONV_STAGING_BYTES = 8 * 16 * CONV_STAGED_PITCH };
/* Behind the ring of stages and the staging: two barriers a stage. */
#define CONV_WGMMA_BYTES(tile_m, tile_n, stages) ((stages) * (((tile_m) + (tile_n)) * 128 + 16) + CONV_STAGING_BYTES)

/* x as [groups, batches, lines, cols, depth], channels of a group side by side and rounded up to 8, zeros in the padding; and w as [groups outputs, segments, length]. A segment is what of a window lies side
 * by side: a line of taps with its channels, or, where steps of taps are longer than 1, one tap. */
enum { LAYOUT_CHANNELS = 64, LAYOUT_PLACES = 64 };
typedef struct conv_layout_arguments {
    conv_arguments conv;
    uint64_t lines_at, weights_at;    /* in the workspace */
    int32_t groups, channels, depth;  /* of a group: channels, and those rounded up */
    int32_t lines, cols;
    int32_t place_tiles, channel_tiles, x_blocks;      /* of an image of a group; blocks that lay out x, in front of those for w */
    int32_t segments, length, taps_of_segment;
    int32_t in_words;                 /* eight channels lie side by side in x, at 16 bytes */
} conv_layout_arguments;

/* A tile: outputs [tile_m] of a group by places [box_images, box_lines, box_cols], which lie side by side in an output's plane of the result. Map of w: [groups outputs][segments][length];
 * of x: [groups batches][line of taps][lines of results][places of a line][length]. */
typedef struct conv_wgmma_arguments {
    CONV_ALIGNED(128) uint64_t map_w[16];
    uint64_t map_x[16];
    cuda_array out, bias;
    int64_t bias_step;
    int32_t has_bias;
    int32_t units, tiles_m, tiles_x, tiles_y, tiles_b;
    int32_t outputs, groups, batches, places_x, places_y;
    int32_t box_cols, box_lines, box_images;
    int32_t segments, blocks;         /* blocks of CONV_K of a segment */
    int32_t line_segments, step_x;    /* segments of a line of taps, and places from one to the next */
    int32_t run;                      /* results that are stored as one: 8, 2 or 1 */
} conv_wgmma_arguments;

#endif
