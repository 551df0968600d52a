"""Runs and times tasks on the GPU through libgac.so, as `gac probe` does."""
import ctypes
import re

DTYPES = {"I8": 5, "F8_E4M3": 7, "F16": 13, "BF16": 14, "F32": 17}  # gac_dtype


# The structures of include/gac/device.h

class GemmShape(ctypes.Structure):
    _fields_ = [(x, ctypes.c_int64) for x in ("m", "n", "k")] + [("row_major", ctypes.c_bool)]


class SdpaShape(ctypes.Structure):
    _fields_ = [(x, ctypes.c_int64) for x in ("batch", "n_q_heads", "n_kv_heads", "n_q", "n_kv",
                                              "qk_head", "v_head")] + [("causal", ctypes.c_bool)]


class SdpaCall(ctypes.Structure):
    _fields_ = [("shape", SdpaShape), ("path", ctypes.c_int), ("stored_head", ctypes.c_int64),
                ("scale", ctypes.c_double)]


class PadShape(ctypes.Structure):
    _fields_ = [(x, ctypes.c_int64) for x in ("n_rows", "n_from", "n_to")]


class TaskSpec(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("dtype", ctypes.c_int), ("gemm", GemmShape),
                ("sdpa", SdpaCall), ("pad", PadShape), ("copy_bytes", ctypes.c_int64),
                ("n_sets", ctypes.c_int)]


class Telemetry(ctypes.Structure):
    _fields_ = [("clock_mhz", ctypes.c_int), ("memory_clock_mhz", ctypes.c_int),
                ("temperature_c", ctypes.c_int), ("power_w", ctypes.c_double),
                ("throttle", ctypes.c_uint)]


class Kernel(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 256), ("time_us", ctypes.c_double),
                ("grid", ctypes.c_int64 * 3), ("block", ctypes.c_int64 * 3)]


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("text", ctypes.c_char * 768)]


class Info(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 96), ("arch", ctypes.c_char * 16)] + \
               [(x, ctypes.c_char * 32) for x in ("driver", "runtime", "blas", "dnn")] + \
               [(x, ctypes.c_int64) for x in ("n_units", "l2_bytes", "memory_bytes",
                                              "max_clock_mhz")]


class Refused(Exception):
    """libgac.so returned an error; the text is its message."""


class Gac:
    """A device of libgac.so, and tasks on it."""

    def __init__(self, library):
        self.lib = ctypes.CDLL(str(library))
        self.lib.gac_device_describe.restype = ctypes.POINTER(Info)
        self.lib.gac_task_free.restype = None
        self.device = ctypes.c_void_p()
        self.ask("gac_device_open", b"cuda", ctypes.byref(self.device))
        info = self.lib.gac_device_describe(self.device).contents
        self.info = {name: getattr(info, name).decode() if kind is not ctypes.c_int64
                     else getattr(info, name) for name, kind in Info._fields_}

    def ask(self, name, *arguments):
        error = Error()
        if getattr(self.lib, name)(*arguments, ctypes.byref(error)):
            raise Refused(error.text.decode())

    def create(self, job, n_sets):
        spec = TaskSpec(dtype=DTYPES[job["dtype"]], n_sets=n_sets)
        if job["op"] == "gemm":
            spec.gemm = GemmShape(job["m"], job["n"], job["k"], job["row_major"])
        else:
            spec.kind = 1
            spec.sdpa.shape = SdpaShape(*(job[x] for x in (
                "batch", "q_heads", "kv_heads", "n_q", "n_kv", "qk_head", "v_head", "causal")))
            spec.sdpa.scale = job["scale"]
            spec.sdpa.path = job.get("gac_path", 0)
            spec.sdpa.stored_head = job.get("stored_head", 0)
        task = ctypes.c_void_p()
        self.ask("gac_task_create", self.device, ctypes.byref(spec), ctypes.byref(task))
        return task

    def time(self, task, n_calls):
        """Returns the microseconds per call of one sample, replayed as a graph. The library
        rounds n_calls up to a multiple of the number of operand sets."""
        time_us, n_made = ctypes.c_double(), ctypes.c_int(n_calls)
        self.ask("gac_task_time", task, ctypes.byref(n_made), ctypes.c_bool(True),
                 ctypes.byref(time_us))
        return time_us.value

    def run(self, task):
        self.ask("gac_task_run", task)

    def kernels(self, task):
        """Returns the name and the grid of each kernel that one call launches."""
        found, n = (Kernel * 8)(), ctypes.c_int()
        self.ask("gac_task_kernels", task, found, len(found), ctypes.byref(n))
        return [(x.name.decode(), list(x.grid)) for x in found[:min(n.value, len(found))]]

    def free(self, task):
        self.lib.gac_task_free(task)

    def look(self):
        now = Telemetry()
        self.ask("gac_device_telemetry", self.device, ctypes.byref(now))
        return now


def loaded_library(pattern):
    """Returns the path of a library that this process has loaded, or None."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        found = re.search(r"(/\S*" + pattern + r"\S*)", maps.read())
    return found.group(1) if found else None
