/* The loops of backward.h for the compiler to vectorise; each backward_<instruction set>.c defines NORM_BACKWARD, the name of its table, and includes this. Sums are kept in LANES parts. */
#include "kernels/norm/backward.h"

enum { LANES = 32 };

/* In halves, so that no addition waits for all in front of it. */
static double fold(const float lanes[LANES]) {
    double total[LANES / 2];
    for (int j = 0; j < LANES / 2; j++) total[j] = (double)lanes[j] + (double)lanes[j + LANES / 2];
    for (int width = LANES / 4; width > 0; width /= 2)
        for (int j = 0; j < width; j++) total[j] += total[j + width];
    return total[0];
}

static void sums(const norm_row *row, const float *restrict x, const float *restrict dy, const float *restrict weight, int64_t count, double of[2]) {
    float plain[LANES] = {0}, along[LANES] = {0};
    const float mean = row->mean, low = row->low, rstd = row->rstd;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            const float g = dy[i + j] * weight[i + j];
            plain[j] += g;
            along[j] += g * ((x[i + j] - mean - low) * rstd);
        }
    }
    for (int j = 0; i < count; i++, j++) {
        const float g = dy[i] * weight[i];
        plain[j] += g;
        along[j] += g * ((x[i] - mean - low) * rstd);
    }
    of[0] += fold(plain);
    of[1] += fold(along);
}

static void write(const norm_row *row, const norm_backward_block *block, float *restrict dx, float *restrict dweight, float *restrict dbias, int64_t count) {
    const float mean = row->mean, low = row->low, rstd = row->rstd, shift = row->shift, along = row->along;
    const float *restrict x = block->x, *restrict dy = block->dy, *restrict weight = block->weight, *restrict plus = block->plus;
    for (int64_t i = 0; i < count; i++) {
        const float n = (x[i] - mean - low) * rstd;
        dx[i] = rstd * (dy[i] * weight[i] - shift - n * along) + plus[i];
        dweight[i] += dy[i] * n;
        dbias[i] += dy[i];
    }
}

static void add(const float *restrict from, int64_t count, double *restrict to) {
    for (int64_t i = 0; i < count; i++) to[i] += (double)from[i];
}

const norm_backward_loops NORM_BACKWARD = {.sums = sums, .write = write, .add = add};
