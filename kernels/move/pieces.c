/* A few bytes from place to place in one launch: the host half of move_pieces (move.cu), and of move_pieces_early (move_vectors.cu), which overlaps with what is in front of it. Memory of the host that is
 * pinned is such a place, where kernels reach it. */
#include "kernels/move/pieces.h"

#include <assert.h>

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

static_assert((int)PIECES == (int)KERNEL_PIECES && sizeof(piece_arguments) <= KERNEL_ARGUMENT_BYTES, "a launch holds its pieces");

static uint32_t word_of(uint64_t to, uint64_t from, size_t bytes) {
    const uint64_t all = to | from | bytes;
    return all % 16 == 0 ? 16 : all % 8 == 0 ? 8 : all % 4 == 0 ? 4 : 1;
}

bool move_pieces_launch(const chip_caps *chip, int count, const kernel_piece *pieces, bool early, kernel_launch *launch) {
    const bool overlaps = early && chip_has(chip, CHIP_tma);
    piece_arguments *arguments = cuda_launch(launch, overlaps ? "move_vectors" : "move", overlaps ? "move_pieces_early" : "move_pieces", sizeof *arguments);
    int parts = 0;
    size_t sum = 0;
    for (int i = 0; i < count; i++) {
        const uint64_t to = (uint64_t)(uintptr_t)pieces[i].to, from = (uint64_t)(uintptr_t)pieces[i].from;
        const size_t bytes = pieces[i].bytes;
        sum += bytes;
        if (bytes > KERNEL_CARRIED || sum > KERNEL_CARRIED || bytes > (size_t)(PIECES - parts) * KERNEL_PIECE_BYTES) return false;
        for (size_t at = 0; at < bytes; at += KERNEL_PIECE_BYTES) {
            const size_t part = bytes - at < KERNEL_PIECE_BYTES ? bytes - at : KERNEL_PIECE_BYTES;
            const uint32_t word = word_of(to, from, part);
            arguments->pieces[parts++] = (piece){to + at, from + at, (uint32_t)(part / word), word};
        }
    }
    launch->overlaps = overlaps;
    cuda_grid(launch, parts > 0 ? parts : 1, 1, 1);
    return true;
}
