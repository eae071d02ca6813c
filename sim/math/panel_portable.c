/* Sums of products for any processor. */
#define PANEL_ISA panel_isa_portable
#define PANEL_NAME "portable"
#define WIDTH 4
#include "panel_loops.h"
