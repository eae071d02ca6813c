/* Handlers as one expression over a lane's operands: LANES_n(name, result type, operand types.., expression of a, b, c) defines the handler name.
 * All lanes are computed, those that are active are stored: an expression must be defined for any bits. */
#ifndef SIM_MACHINE_LANES_H
#define SIM_MACHINE_LANES_H

#include "machine.h"

#define LANES_1(name, R, A, expression)                                                \
    static sim_flow name(sim_warp *w, const sim_op *op, uint32_t mask) {               \
        const A *as = ROW(A, 1);                                                       \
        R results[LANES];                                                              \
        for (int i = 0; i < LANES; i++) {                                              \
            A a = as[i];                                                               \
            results[i] = (R)(expression);                                              \
        }                                                                              \
        STORE_ROW(R, 0, results, mask);                                                \
        return SIM_NEXT;                                                               \
    }

#define LANES_2(name, R, A, B, expression)                                             \
    static sim_flow name(sim_warp *w, const sim_op *op, uint32_t mask) {               \
        const A *as = ROW(A, 1);                                                       \
        const B *bs = ROW(B, 2);                                                       \
        R results[LANES];                                                              \
        for (int i = 0; i < LANES; i++) {                                              \
            A a = as[i];                                                               \
            B b = bs[i];                                                               \
            results[i] = (R)(expression);                                              \
        }                                                                              \
        STORE_ROW(R, 0, results, mask);                                                \
        return SIM_NEXT;                                                               \
    }

#define LANES_3(name, R, A, B, C, expression)                                          \
    static sim_flow name(sim_warp *w, const sim_op *op, uint32_t mask) {               \
        const A *as = ROW(A, 1);                                                       \
        const B *bs = ROW(B, 2);                                                       \
        const C *cs = ROW(C, 3);                                                       \
        R results[LANES];                                                              \
        for (int i = 0; i < LANES; i++) {                                              \
            A a = as[i];                                                               \
            B b = bs[i];                                                               \
            C c = cs[i];                                                               \
            results[i] = (R)(expression);                                              \
        }                                                                              \
        STORE_ROW(R, 0, results, mask);                                                \
        return SIM_NEXT;                                                               \
    }

/* A select function that chooses by the type: case per bits, signed and unsigned apart. */
#define SELECT_BITS(family, of16, of32, of64)                                          \
    sim_handler select_##family(sim_decoding *d) {                                     \
        switch (ptx_types[d->type].bits) {                                             \
        case 16: return of16;                                                          \
        case 32: return of32;                                                          \
        default: return of64;                                                          \
        }                                                                              \
    }

#define SELECT_INTEGER(family, u16, u32, u64, s16, s32, s64)                           \
    sim_handler select_##family(sim_decoding *d) {                                     \
        switch (d->type) {                                                             \
        case PTX_u16: case PTX_b16: return u16;                                        \
        case PTX_u32: case PTX_b32: return u32;                                        \
        case PTX_u64: case PTX_b64: return u64;                                        \
        case PTX_s16: return s16;                                                      \
        case PTX_s32: return s32;                                                      \
        default: return s64;                                                           \
        }                                                                              \
    }

#endif
