/* Shared by the checks of Gram matrices and of factors on a GPU. */
#ifndef TEST_FACTOR_GPU_H
#define TEST_FACTOR_GPU_H

#include "test_pair.h"

void check_grams(pair *p, bool small);

#endif
