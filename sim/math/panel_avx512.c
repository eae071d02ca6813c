/* Sums of products for AVX-512. */
#define PANEL_ISA panel_isa_avx512
#define PANEL_NAME "avx512"
#define WIDTH 16
#include "panel_loops.h"
