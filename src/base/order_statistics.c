#include "base/order_statistics.h"

#include <math.h>
#include <stdlib.h>

int gac_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double gac_median(double *values, int n)
{
    if (n == 0)
        return 0;
    qsort(values, (size_t)n, sizeof *values, gac_by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double gac_percentile(const double *sorted, int n, double part)
{
    double at = part * (n - 1);
    int low = (int)at;
    int high = low + 1 < n ? low + 1 : low;
    return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
}

double gac_four_digits(double value)
{
    if (!isfinite(value) || value == 0)
        return value;
    double scale = pow(10, 3 - floor(log10(fabs(value))));
    return round(value * scale) / scale;
}
