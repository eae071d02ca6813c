/* Sums of products for AVX2. */
#define PANEL_ISA panel_isa_avx2
#define PANEL_NAME "avx2"
#define WIDTH 8
#include "panel_loops.h"
