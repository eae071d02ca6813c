/* Time as durations are measured by. */
#include "base/base.h"

#include <time.h>

double base_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
