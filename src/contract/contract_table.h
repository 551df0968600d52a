/* Times measured over a grid of three sizes, and what they say of the sizes
 * between: linear in the logarithms of sizes and time, because kernels are a
 * power of each size over long stretches. */
#ifndef GAC_CONTRACT_TABLE_H
#define GAC_CONTRACT_TABLE_H

#include "base/json_reader.h"

/* Limits on the numbers of a file. */
#define GAC_CONTRACT_MAX_SIZE 1000000000
#define GAC_CONTRACT_MIN_TIME_US 1e-6
#define GAC_CONTRACT_MAX_TIME_US 1e12

enum { GAC_TABLE_AXES = 3 };

typedef struct gac_table {
    int n[GAC_TABLE_AXES];
    double *log_size[GAC_TABLE_AXES]; /* rising */
    double *us;                       /* (n[0], n[1], n[2]); most are never asked for: no logs */
} gac_table;

/* How a table is spelled, and how time grows where nothing was measured. */
typedef struct gac_table_kind {
    const char *keys[GAC_TABLE_AXES];
    int extend_axis; /* a null takes the time before it along this axis (-1: is not a number), … */
    double
        power[GAC_TABLE_AXES]; /* … times the ratio of sizes to this power; so too past the end */
    bool is_straight;          /* along the last axis time itself is a line, else its logarithm */
} gac_table_kind;

/* Reads {"KEY0": […], "KEY1": […], "KEY2": […], "us": […]}, us flat with KEY0
 * outermost. Dispose of out also after a fault. */
bool gac_table_read(gac_reader *r, const json_t *value, const gac_table_kind *kind, gac_table *out);
void gac_table_dispose(gac_table *table);

bool gac_table_has(const gac_table *table, int axis, double size);
/* Time of the cell that has exactly these sizes; NULL where none has. */
const double *gac_table_cell(const gac_table *table, const double sizes[GAC_TABLE_AXES]);

/* Time at sizes. Below the first size of an axis it is that of the first: what
 * is left then is launching. */
double gac_table_us(const gac_table *table, const gac_table_kind *kind,
                    const double sizes[GAC_TABLE_AXES]);

#endif
