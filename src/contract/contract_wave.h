/* What tiles and waves of them waste: work done over work asked for. */
#ifndef GAC_CONTRACT_WAVE_H
#define GAC_CONTRACT_WAVE_H

/* Of a GEMM: tiles, lying the better way, are cut down to the rows where these are
 * fewer, and units of them are worked on at a time. */
double gac_tile_waste(double tile_rows, double tile_columns, double units, double m, double n);

/* Of prefill: a started wave of tiles takes as long as a full one. */
double gac_length_waste(double tile, double units, double rows, double length);

#endif
