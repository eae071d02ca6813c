/* The simulator's form of a tensor map: it fits the 128 bytes that programs carry around. */
#ifndef SIM_MACHINE_TENSOR_MAP_H
#define SIM_MACHINE_TENSOR_MAP_H

#include <stdint.h>

#define SIM_TENSOR_MAP 0x44575431u

/* Sizes and box count elements, innermost first; strides[i] is the distance in bytes along dimension i + 1. Of im2col: box[0] channels of each of so many pixels, which lie, along
 * dimension i + 1, from lower[i] on to upper[i] behind the last one (PTX ISA 5.5.4). */
typedef struct sim_tensor_map {
    uint32_t magic;
    uint8_t type, rank, interleave, swizzle, fill;
    uint8_t steps[5];
    uint16_t box[5];
    uint64_t address;
    uint64_t dims[5];
    uint64_t strides[4];
    int16_t lower[3], upper[3];
    uint16_t pixels;
    uint8_t im2col;
} sim_tensor_map;

_Static_assert(sizeof(sim_tensor_map) <= 128, "a tensor map has 128 bytes");

#endif
