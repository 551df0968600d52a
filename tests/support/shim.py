"""The preloaded library that makes system calls of a program fail (fault_shim.c)."""
import os
import subprocess
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))


def build(folder, *flags):
    """Compiles it into folder and returns its path; without a compiler tests are skipped."""
    path = os.path.join(folder, "fault_shim.so")
    built = subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-w", *flags,
                            "-o", path, os.path.join(HERE, "fault_shim.c"), "-ldl"],
                           capture_output=True, text=True, check=False)
    if built.returncode:
        raise unittest.SkipTest("cannot build the shim: " + built.stderr)
    return path


def environment(path, **settings):
    """What a program is run with: call="write", at=3 become GAC_FAULT_CALL, GAC_FAULT_AT."""
    asan = os.environ.get("ASAN_OPTIONS", "")
    return {**os.environ, "LD_PRELOAD": path,
            "ASAN_OPTIONS": asan + ":verify_asan_link_order=0",
            **{"GAC_FAULT_" + name.upper(): str(value) for name, value in settings.items()}}
