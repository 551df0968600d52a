/* Order statistics of measured values. */
#ifndef GAC_BASE_ORDER_STATISTICS_H
#define GAC_BASE_ORDER_STATISTICS_H

int gac_by_value(const void *a, const void *b); /* for qsort of double */

/* Sorts values. 0 when there are none. */
double gac_median(double *values, int n);

/* Interpolates between neighbours in rank: part 0.95 is the 95th percentile. n is at least 1. */
double gac_percentile(const double *sorted, int n, double part);

/* value to four significant digits. */
double gac_four_digits(double value);

#endif
