#include "sim/plan/stats.h"

#include "engine/core/error.h"

#include <math.h>

static const double PI = 3.14159265358979323846;

double bt_student_cdf(double t, int32_t n)
{
    BT_ASSERT(n >= 1);
    double theta = atan(fabs(t) / sqrt((double)n));
    double c = cos(theta), s = sin(theta);
    double a = 0; /* P(|T| <= |t|) */
    if (n % 2 == 1) {
        double sum = 0, term = c;
        for (int32_t k = 3; k <= n; k += 2) {
            sum += term;
            term *= c * c * (double)(k - 1) / (double)k;
        }
        a = 2.0 / PI * (theta + s * sum);
    } else {
        double sum = 0, term = 1;
        for (int32_t k = 2; k <= n; k += 2) {
            sum += term;
            term *= c * c * (double)(k - 1) / (double)k;
        }
        a = s * sum;
    }
    return t >= 0 ? 0.5 + 0.5 * a : 0.5 - 0.5 * a;
}

double bt_student_quantile(double p, int32_t n)
{
    BT_ASSERT(p > 0.5 && p < 1);
    double low = 0, high = 1;
    while (bt_student_cdf(high, n) < p) {
        high *= 2;
    }
    while (high - low > 1e-10 * high) {
        double mid = 0.5 * (low + high);
        if (bt_student_cdf(mid, n) < p) {
            low = mid;
        } else {
            high = mid;
        }
    }
    return 0.5 * (low + high);
}

double bt_mean_half_width(double sd, int32_t n, double alpha)
{
    BT_ASSERT(n >= 2);
    return bt_student_quantile(1 - alpha / 2, n - 1) * sd / sqrt((double)n);
}
