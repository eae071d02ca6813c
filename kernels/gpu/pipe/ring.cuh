/* A ring of stages in shared memory, with two mbarriers a stage:
 *
 *   writers    wait for empty[stage] -> fill the stage -> arrive at full[stage], perhaps with bytes that TMA brings
 *   readers    wait for full[stage]  -> read the stage -> arrive at empty[stage]
 *
 * Each side keeps a turn: its next stage, and the parity of the phase that it waits for there. At the start all stages are empty: writers begin with the
 * parity of the phase before the first, which has ended. The number of stages is a constant of the entry. What a stage holds, and where, is up to the
 * kernel. */
#ifndef KERNELS_GPU_PIPE_RING_CUH
#define KERNELS_GPU_PIPE_RING_CUH

#include "kernels/gpu/ptx/mbarrier.cuh"

#define INLINE static __device__ __forceinline__

enum { BARRIER_BYTES = 8 };

/* Addresses of full[stages] and empty[stages]. empty is 0 where the readers fill the stages again themselves and need no barrier for it. */
typedef struct ring_barriers { uint32_t full, empty; } ring_barriers;

typedef struct ring_turn {
    int stage;
    uint32_t phase;
} ring_turn;

/* ---- places ---- */

INLINE uint32_t ring_full(const ring_barriers ring, int stage) { return ring.full + BARRIER_BYTES * stage; }
INLINE uint32_t ring_empty(const ring_barriers ring, int stage) { return ring.empty + BARRIER_BYTES * stage; }

/* The barriers of a ring that begin at base; what lies behind them begins at ring_end. */
INLINE ring_barriers ring_at(uint32_t base, const int stages) {
    const ring_barriers ring = {base, base + BARRIER_BYTES * stages};
    return ring;
}
INLINE uint32_t ring_end(const ring_barriers ring, const int stages) { return ring.empty + BARRIER_BYTES * stages; }

/* By one thread. writers, readers: arrivals that fill a stage, and that empty it; 0 readers: there is no empty. The caller makes the barriers visible
 * (fence_mbarrier_init). */
INLINE void ring_init(const ring_barriers ring, const int stages, int writers, int readers) {
    for (int i = 0; i < stages; i++) {
        mbarrier_init(ring_full(ring, i), writers);
        if (readers > 0) mbarrier_init(ring_empty(ring, i), readers);
    }
}

/* ---- turns ---- */

INLINE ring_turn ring_writer(void) {
    const ring_turn turn = {0, 1};
    return turn;
}
INLINE ring_turn ring_reader(void) {
    const ring_turn turn = {0, 0};
    return turn;
}

INLINE void ring_next(ring_turn *turn, const int stages) {
    if (stages == 2) {
        turn->stage ^= 1;
        turn->phase ^= turn->stage == 0;
    } else if (++turn->stage == stages) {
        turn->stage = 0;
        turn->phase ^= 1;
    }
}

/* The same where moves is true, without a branch. */
INLINE void ring_next_if(ring_turn *turn, const int stages, bool moves) {
    turn->stage = moves ? (int)((uint32_t)(turn->stage + 1) % (uint32_t)stages) : turn->stage;
    turn->phase ^= moves && turn->stage == 0;
}

/* Turn number `number` of a side that counts its turns from 0. */
INLINE ring_turn ring_writer_turn(uint32_t number, const int stages) {
    const ring_turn turn = {(int)(number % (uint32_t)stages), ~(number / (uint32_t)stages) & 1};
    return turn;
}
INLINE ring_turn ring_reader_turn(uint32_t number, const int stages) {
    const ring_turn turn = {(int)(number % (uint32_t)stages), number / (uint32_t)stages & 1};
    return turn;
}

/* ---- events ---- */

INLINE void ring_wait_empty(const ring_barriers ring, ring_turn turn) { mbarrier_wait(ring_empty(ring, turn.stage), turn.phase); }
INLINE void ring_wait_full(const ring_barriers ring, ring_turn turn) { mbarrier_wait(ring_full(ring, turn.stage), turn.phase); }
/* Asks without waiting. */
INLINE bool ring_is_full(const ring_barriers ring, ring_turn turn) { return mbarrier_test_wait(ring_full(ring, turn.stage), turn.phase); }

/* A writer's arrival; or one with bytes that TMA loads bring, which name the barrier that is returned. */
INLINE void ring_arrive_full(const ring_barriers ring, ring_turn turn) { mbarrier_arrive(ring_full(ring, turn.stage)); }
INLINE uint32_t ring_expect_full(const ring_barriers ring, ring_turn turn, uint32_t bytes) {
    const uint32_t full = ring_full(ring, turn.stage);
    mbarrier_arrive_expect(full, bytes);
    return full;
}

/* A reader's arrival. */
INLINE void ring_arrive_empty(const ring_barriers ring, ring_turn turn) { mbarrier_arrive(ring_empty(ring, turn.stage)); }

#endif
