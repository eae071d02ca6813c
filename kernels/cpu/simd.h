/* The few compiler extensions that the SIMD files need. Only files under kernels/ whose names end in an instruction set include it. */
#ifndef KERNELS_CPU_SIMD_H
#define KERNELS_CPU_SIMD_H

#if defined(__clang__)
#define SIMD_UNROLL _Pragma("clang loop unroll(full)")
#define SIMD_ROLL _Pragma("clang loop unroll(disable)")
#else
#define SIMD_UNROLL _Pragma("GCC unroll 32")
#define SIMD_ROLL _Pragma("GCC unroll 1")
#endif
#define SIMD_INLINE static inline __attribute__((always_inline))

#endif
