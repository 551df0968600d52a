#include <gac/timing.h>

#include "base/order_statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_EXACT 400 /* up to so many pairs the rank test is exact */
#define SIGNIFICANCE 0.01

/* For normal samples the standard deviation is spread / 0.6745, and that of the
 * median is 1.2533 / sqrt(n) times as much. Timings have outliers, which hardly
 * change the median and the spread, but do change a mean. */
void gac_timing_summarise(gac_timing *timing)
{
    double sorted[GAC_MAX_SAMPLES];
    int n = timing->n_samples;
    memcpy(sorted, timing->samples_us, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, gac_by_value);
    timing->median_us = gac_percentile(sorted, n, 0.5);
    timing->spread_us = (gac_percentile(sorted, n, 0.75) - gac_percentile(sorted, n, 0.25)) / 2;
    double error_us = 1.2533 / 0.6745 * timing->spread_us / sqrt(n);
    timing->noise = timing->median_us > 0 ? error_us / timing->median_us : 0;
}

const char *gac_comparison_name(gac_comparison comparison)
{
    switch (comparison) {
    case GAC_FASTER:
        return "faster";
    case GAC_SLOWER:
        return "slower";
    case GAC_AMBIGUOUS:
        break;
    }
    return "ambiguous";
}

/* Counts the pairs in which b is above a; ties count one half. If both have one
 * distribution, the expected count is n_a n_b / 2. */
static double count_pairs(const gac_timing *a, const gac_timing *b)
{
    double pairs = 0;
    for (int i = 0; i < a->n_samples; i++) {
        for (int j = 0; j < b->n_samples; j++) {
            double p = a->samples_us[i], q = b->samples_us[j];
            pairs += q > p ? 1 : q < p ? 0 : 0.5;
        }
    }
    return pairs;
}

/* Returns the fraction of all orders of n_a and n_b samples that have at most
 * limit pairs. The number of orders with u pairs is the coefficient of q^u in
 * the Gaussian binomial, the product over i of (1 - q^(n_b + i)) / (1 - q^i).
 * All coefficients are integers below 2^53. Ties only narrow the distribution,
 * so the test stays conservative. */
static double exact_tail(int n_a, int n_b, int limit)
{
    double ways[MAX_EXACT + 1] = { 1 };
    int last = n_a * n_b;
    for (int i = 1; i <= n_a; i++) {
        for (int u = last; u >= n_b + i; u--)
            ways[u] -= ways[u - n_b - i];
        for (int u = i; u <= last; u++)
            ways[u] += ways[u - i];
    }
    double total = 0, tail = 0;
    for (int u = 0; u <= last; u++) {
        total += ways[u];
        tail += u <= limit ? ways[u] : 0;
    }
    return tail / total;
}

/* Returns the sum of t^3 - t over groups of t equal samples, which the variance
 * needs. */
static double tie_sum(const gac_timing *a, const gac_timing *b)
{
    double all[2 * GAC_MAX_SAMPLES], sum = 0;
    int n = a->n_samples + b->n_samples;
    memcpy(all, a->samples_us, (size_t)a->n_samples * sizeof *all);
    memcpy(all + a->n_samples, b->samples_us, (size_t)b->n_samples * sizeof *all);
    qsort(all, (size_t)n, sizeof *all, gac_by_value);
    for (int first = 0, next; first < n; first = next) {
        next = first + 1;
        while (next < n && !(all[next] > all[first]))
            next++;
        double t = next - first;
        sum += t * t * t - t;
    }
    return sum;
}

/* Returns the two-sided p-value of the Mann-Whitney test. It is exact for few
 * samples. Otherwise it uses the normal approximation with corrections for ties
 * and continuity. */
static double rank_test(const gac_timing *a, const gac_timing *b, double pairs)
{
    double n_a = a->n_samples, n_b = b->n_samples, n = n_a + n_b;
    double fewer = fmin(pairs, n_a * n_b - pairs);
    if (n_a * n_b <= MAX_EXACT)
        return fmin(1, 2 * exact_tail(a->n_samples, b->n_samples, (int)ceil(fewer)));
    double variance = n_a * n_b / 12 * (n + 1 - tie_sum(a, b) / (n * (n - 1)));
    double distance = n_a * n_b / 2 - fewer - 0.5;
    if (variance <= 0 || distance <= 0)
        return 1;
    return erfc(distance / sqrt(2 * variance));
}

gac_comparison gac_timing_compare(const gac_timing *a, const gac_timing *b, double min_difference)
{
    if (a->n_samples < 1 || b->n_samples < 1)
        return GAC_AMBIGUOUS;
    double difference = b->median_us - a->median_us; /* positive: a is faster */
    if (fabs(difference) < min_difference * fmin(a->median_us, b->median_us) || difference == 0)
        return GAC_AMBIGUOUS;
    double pairs = count_pairs(a, b);
    double half = (double)a->n_samples * b->n_samples / 2;
    const bool agree = difference > 0 ? pairs > half : pairs < half;
    if (!agree || rank_test(a, b, pairs) > SIGNIFICANCE)
        return GAC_AMBIGUOUS;
    return difference > 0 ? GAC_FASTER : GAC_SLOWER;
}
