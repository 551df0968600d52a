#include "cuda_internal.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* Own declarations of the NVML functions used here: the library comes with the driver,
 * but not every toolkit has its header. Only functions that read are used. */
typedef struct nvml_device *nvml_device;

enum {
    NVML_OK = 0,
    NVML_CLOCK_SM = 1,
    NVML_CLOCK_MEMORY = 2,
    NVML_SENSOR_GPU = 0,
};

/* Bits of nvmlClocksEventReasons. */
#define REASON_POWER_CAP 0x04ull
#define REASON_HARDWARE_SLOWDOWN 0x08ull
#define REASON_SOFTWARE_THERMAL 0x20ull
#define REASON_HARDWARE_THERMAL 0x40ull
#define REASON_POWER_BRAKE 0x80ull

struct gac_nvml {
    void *library;
    nvml_device device;
    int (*shutdown)(void);
    int (*driver_version)(char *, unsigned);
    int (*clock_info)(nvml_device, int, unsigned *);
    int (*temperature)(nvml_device, int, unsigned *);
    int (*power_usage)(nvml_device, unsigned *);
    int (*reasons)(nvml_device, unsigned long long *);
    gac_telemetry last;
    int64_t read_ns; /* when last was read; 0 if never */
};

gac_nvml *gac_nvml_load(const char *pci_bus_id)
{
    int (*init)(void) = NULL;
    int (*by_bus_id)(const char *, nvml_device *) = NULL;
    gac_nvml *nvml = calloc(1, sizeof *nvml);
    if (!nvml)
        return NULL;
    nvml->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!nvml->library || !gac_cuda_find(nvml->library, "nvmlInit_v2", &init) ||
        !gac_cuda_find(nvml->library, "nvmlDeviceGetHandleByPciBusId_v2", &by_bus_id) ||
        init() != NVML_OK)
        goto fail;
    gac_cuda_find(nvml->library, "nvmlShutdown", &nvml->shutdown);
    if (by_bus_id(pci_bus_id, &nvml->device) != NVML_OK)
        goto fail;
    gac_cuda_find(nvml->library, "nvmlSystemGetDriverVersion", &nvml->driver_version);
    gac_cuda_find(nvml->library, "nvmlDeviceGetClockInfo", &nvml->clock_info);
    gac_cuda_find(nvml->library, "nvmlDeviceGetTemperature", &nvml->temperature);
    gac_cuda_find(nvml->library, "nvmlDeviceGetPowerUsage", &nvml->power_usage);
    if (!gac_cuda_find(nvml->library, "nvmlDeviceGetCurrentClocksEventReasons", &nvml->reasons))
        gac_cuda_find(nvml->library, "nvmlDeviceGetCurrentClocksThrottleReasons", &nvml->reasons);
    return nvml;
fail:
    gac_nvml_unload(nvml);
    return NULL;
}

void gac_nvml_unload(gac_nvml *nvml)
{
    if (!nvml)
        return;
    if (nvml->shutdown)
        nvml->shutdown();
    if (nvml->library)
        dlclose(nvml->library);
    free(nvml);
}

void gac_nvml_driver(gac_nvml *nvml, char *text, unsigned size)
{
    if (!nvml || !nvml->driver_version || nvml->driver_version(text, size) != NVML_OK)
        text[0] = 0;
}

static int clock_mhz(gac_nvml *nvml, int which)
{
    unsigned value;
    return nvml->clock_info && nvml->clock_info(nvml->device, which, &value) == NVML_OK ? (int)value
                                                                                        : -1;
}

static void read_now(gac_nvml *nvml, gac_telemetry *out)
{
    unsigned value;
    unsigned long long reasons;
    *out = (gac_telemetry){ -1, -1, -1, -1, 0 };
    if (!nvml)
        return;
    out->clock_mhz = clock_mhz(nvml, NVML_CLOCK_SM);
    out->memory_clock_mhz = clock_mhz(nvml, NVML_CLOCK_MEMORY);
    if (nvml->temperature && nvml->temperature(nvml->device, NVML_SENSOR_GPU, &value) == NVML_OK)
        out->temperature_c = (int)value;
    if (nvml->power_usage && nvml->power_usage(nvml->device, &value) == NVML_OK)
        out->power_w = value / 1000.0;
    if (nvml->reasons && nvml->reasons(nvml->device, &reasons) == NVML_OK) {
        if (reasons & REASON_POWER_CAP)
            out->throttle |= GAC_THROTTLE_POWER;
        if (reasons & (REASON_SOFTWARE_THERMAL | REASON_HARDWARE_THERMAL))
            out->throttle |= GAC_THROTTLE_THERMAL;
        if (reasons & (REASON_HARDWARE_SLOWDOWN | REASON_POWER_BRAKE))
            out->throttle |= GAC_THROTTLE_HARDWARE;
    }
}

/* A reading is reused for this long. The driver's numbers are up to 100 ms old anyway,
 * and reading all of them takes longer than a short measurement. */
#define FRESH_NS 50000000

void gac_nvml_read(gac_nvml *nvml, gac_telemetry *out)
{
    int64_t now = gac_now_ns();
    if (nvml && nvml->read_ns > 0 && now - nvml->read_ns < FRESH_NS) {
        *out = nvml->last;
        return;
    }
    read_now(nvml, out);
    if (nvml) {
        nvml->last = *out;
        nvml->read_ns = now;
    }
}
