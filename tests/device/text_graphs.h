/* What tests of generation and of services on the stand-in for the driver share: small graphs that make texts, of which each suite uses some. */
#ifndef DEVICE_TEXT_GRAPHS_H
#define DEVICE_TEXT_GRAPHS_H

#include "support/driver.h"
#include "support/session.h"

enum { VOCABULARY = 8 };

#define TABLE "const t f32[8,4] = 1,2,-1,3, -2,1,0.5,1, 3,-1,2,-2, 0.25,1,-3,1, -1,-1,2,1, 2,0.5,1,-2, -3,1,1,0.5, 0.5,-2,1,2"
#define HEADS "  %1 = take t, ids {axis=0}\n  %2 = reshape %1 {shape=[b,s,2,2]}\n  %3 = transpose %2 {order=[0,2,1,3]}\n  %4 = sin %3\n"
#define LOGITS "  %8 = transpose %5 {order=[0,2,1,3]}\n  %9 = reshape %8 {shape=[b,s,4]}\n  %10 = matmul %9, t {bt=true}\n  output logits %10\n"
/* Keys come out too, as exporters leave them there. */
static const char ALL[] = "graph g\n  symbol b 1..64\n  symbol s 1..16384\n  input ids i64[b,s]\n  " TABLE "\n" HEADS "  %5 = attention %3, %4, %4 {scale=1.5,causal=true}\n" LOGITS
                          "  output keys %4\n";
/* Its cache is a ring. */
static const char WINDOWED[] = "graph g\n  symbol b 1..64\n  symbol s 1..16384\n  input ids i64[b,s]\n  " TABLE "\n" HEADS
                               "  %5 = attention %3, %4, %4 {scale=1.5,causal=true,window=5}\n" LOGITS;
/* A mask of keys, which generation feeds with ones. */
static const char MASKED[] = "graph g\n  symbol b 1..64\n  symbol s 1..16384\n  input ids i64[b,s]\n  input attention_mask i64[b,s]\n  " TABLE "\n" HEADS
                             "  %6 = cast attention_mask {to=bool}\n  %7 = reshape %6 {shape=[b,1,1,s]}\n  %5 = attention %3, %4, %4, %7 {scale=1.5,causal=true}\n" LOGITS;

static inline void begin_log(void) { fake->calls = fake->launches = 0; }

static inline dw_model *open_model(dw_context *context, const char *text, const char *device) {
    return model_of_text(context, text, &(dw_model_options){.flags = DW_MODEL_GENERATE_ONLY, .device = device});
}

#endif
