/* Random numbers as a function of a seed and a counter: no state, so any thread can make any of them, and the same on every
 * machine, so only operations that IEEE 754 defines exactly (no libm but sqrt). */
#include "num/num.h"

#include <math.h>

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t num_random(uint64_t seed, uint64_t counter) {
    return mix(mix(seed) + (counter + 1) * UINT64_C(0x9e3779b97f4a7c15));
}

float num_random_uniform(uint64_t seed, uint64_t counter) { return (float)(num_random(seed, counter) >> 40) * 0x1p-24f; }

/* Natural logarithm of a normal number, to a few units of the last place: 2 atanh((m - 1) / (m + 1)) + e ln 2, 0.7 < m < 1.5. */
static double log_exactly_defined(double x) {
    int exponent;
    double m = frexp(x, &exponent);
    if (m < 0.70710678118654752) {
        m *= 2;
        exponent--;
    }
    double z = (m - 1) / (m + 1), square = z * z, sum = 0;
    for (int k = 21; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
    return 2 * z * sum + exponent * 0.69314718055994531;
}

static double horner(const double *coefficients, int count, double x) {
    double sum = 0;
    for (int i = count - 1; i >= 0; i--) sum = sum * x + coefficients[i];
    return sum;
}

/* Wichura, AS 241 (PPND16), lowest power first: |q| <= 0.425, then r = sqrt(-log(tail)) up to 5, then above. */
static const double centre_above[] = {3.3871328727963666080e0, 1.3314166789178437745e+2, 1.9715909503065514427e+3, 1.3731693765509461125e+4,
                                      4.5921953931549871457e+4, 6.7265770927008700853e+4, 3.3430575583588128105e+4, 2.5090809287301226727e+3};
static const double centre_below[] = {1.0, 4.2313330701600911252e+1, 6.8718700749205790830e+2, 5.3941960214247511077e+3,
                                      2.1213794301586595867e+4, 3.9307895800092710610e+4, 2.8729085735721942674e+4, 5.2264952788528545610e+3};
static const double near_above[] = {1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
                                    1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4};
static const double near_below[] = {1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
                                    1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9};
static const double far_above[] = {6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
                                   2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7};
static const double far_below[] = {1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
                                   7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15};

float num_random_normal(uint64_t seed, uint64_t counter) {
    double p = ((double)(num_random(seed, counter) >> 11) + 0.5) * 0x1p-53;
    double q = p - 0.5;
    if (fabs(q) <= 0.425) {
        double r = 0.180625 - q * q;
        return (float)(q * horner(centre_above, 8, r) / horner(centre_below, 8, r));
    }
    double r = sqrt(-log_exactly_defined(q < 0 ? p : 1 - p));
    double value = r <= 5 ? horner(near_above, 8, r - 1.6) / horner(near_below, 8, r - 1.6)
                          : horner(far_above, 8, r - 5) / horner(far_below, 8, r - 5);
    return (float)(q < 0 ? -value : value);
}
