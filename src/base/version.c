#include <gac/base.h>

const char *gac_version(void)
{
    return GAC_VERSION;
}
