/* Tiles by tcgen05 of one kind of operands: the entries of tiles.def, by the constants of the image's row: ENTRIES: their names are matmul_<ENTRIES>_..; KIND: one of tiles.cuh; DENSE,
 * SCALED, PROMOTED or TURNED: which tiles there are. */
#include "kernels/gemm/tcgen05/tiles.cuh"

#define JOIN(entries, name) matmul_##entries##_##name
#define NAMED(entries, name) JOIN(entries, name)
#define TILES_NAMED(name, ...) MATMUL_TILES_ENTRY(name, __VA_ARGS__)
#define SHARED_NAMED(name, ...) MATMUL_TILES_SHARED_ENTRY(name, __VA_ARGS__)

#if defined(DENSE)
#define TILES_DENSE(name, ...) TILES_NAMED(NAMED(ENTRIES, name), 0, KIND, __VA_ARGS__)
#define TILES_DENSE_BLOCKS(name, ...) TILES_NAMED(NAMED(ENTRIES, name##_blocks), FOR_BLOCKS, KIND, __VA_ARGS__)
#define TILES_DENSE_GROUPS(name, ...) TILES_NAMED(NAMED(ENTRIES, name##_groups), FOR_GROUPS, KIND, __VA_ARGS__)
#define TILES_DENSE_SWAPPED_GROUPS(name, ...) TILES_NAMED(NAMED(ENTRIES, name##_swapped_groups), SWAPPED | FOR_GROUPS, KIND, __VA_ARGS__)
#define TILES_DENSE_PARTS(name, ...) TILES_NAMED(NAMED(ENTRIES, name##_parts), FOR_PARTS, KIND, __VA_ARGS__)
#define TILES_DENSE_SHARED(name, ...) SHARED_NAMED(NAMED(ENTRIES, name##_shared), SHARED_A, KIND, __VA_ARGS__) SHARED_NAMED(NAMED(ENTRIES, name##_shared_parts), SHARED_A | FOR_PARTS, KIND, __VA_ARGS__)
#define TILES_DENSE_SWAPPED(name, ...)                                                              \
    TILES_NAMED(NAMED(ENTRIES, name##_swapped), SWAPPED, KIND, __VA_ARGS__)                          \
    TILES_NAMED(NAMED(ENTRIES, name##_swapped_parts), SWAPPED | FOR_PARTS, KIND, __VA_ARGS__)
#elif defined(SCALED)
#define TILES_SCALED(name, ...) TILES_NAMED(NAMED(ENTRIES, name), 0, KIND, __VA_ARGS__)
#define TILES_SCALED_BLOCKS(name, ...) TILES_NAMED(NAMED(ENTRIES, name##_blocks), FOR_BLOCKS, KIND, __VA_ARGS__)
#define TILES_SCALED_GROUPS(name, ...) TILES_NAMED(NAMED(ENTRIES, name##_groups), FOR_GROUPS, KIND, __VA_ARGS__)
#define TILES_SCALED_SWAPPED_GROUPS(name, ...) TILES_NAMED(NAMED(ENTRIES, name##_swapped_groups), SWAPPED | FOR_GROUPS, KIND, __VA_ARGS__)
#define TILES_SCALED_PARTS(name, ...) TILES_NAMED(NAMED(ENTRIES, name##_parts), FOR_PARTS, KIND, __VA_ARGS__)
#define TILES_SCALED_SHARED(name, ...) SHARED_NAMED(NAMED(ENTRIES, name##_shared), SHARED_A, KIND, __VA_ARGS__) SHARED_NAMED(NAMED(ENTRIES, name##_shared_parts), SHARED_A | FOR_PARTS, KIND, __VA_ARGS__)
#define TILES_SCALED_SWAPPED(name, ...)                                                              \
    TILES_NAMED(NAMED(ENTRIES, name##_swapped), SWAPPED, KIND, __VA_ARGS__)                          \
    TILES_NAMED(NAMED(ENTRIES, name##_swapped_parts), SWAPPED | FOR_PARTS, KIND, __VA_ARGS__)
#elif defined(PROMOTED)
#define TILES_PROMOTED(name, ...) TILES_NAMED(NAMED(ENTRIES, name), 0, KIND, __VA_ARGS__)
#define TILES_PROMOTED_BLOCKS(name, ...) TILES_NAMED(NAMED(ENTRIES, name##_blocks), FOR_BLOCKS, KIND, __VA_ARGS__)
#define TILES_PROMOTED_GROUPS(name, ...) TILES_NAMED(NAMED(ENTRIES, name##_groups), FOR_GROUPS, KIND, __VA_ARGS__)
#elif defined(TURNED)
#define TILES_TURNED(name, a_turned, b_turned, ...)                                                                        \
    TILES_NAMED(NAMED(ENTRIES, name), (a_turned) * TURNED_A | (b_turned) * TURNED_B, KIND, __VA_ARGS__)                     \
    TILES_NAMED(NAMED(ENTRIES, name##_parts), FOR_PARTS | (a_turned) * TURNED_A | (b_turned) * TURNED_B, KIND, __VA_ARGS__)
#endif
#include "kernels/gemm/tcgen05/tiles.def"
