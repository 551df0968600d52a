#!/usr/bin/env python3
"""How OpenBLAS is started, and that it cannot hang the program where memory is short.

    python3 tests/engine/test_blas.py --gac build/gac --fake FOLDER --no-mmap FILE [CASE...]

FOLDER has tests/support/fake_openblas.c as libopenblas.so.0, FILE is tests/support/no_mmap.c.
"""
import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
import tally  # noqa: E402

OPTIONS = argparse.Namespace()
MODEL = os.path.join(ROOT, "models", "tiny")
MIB = 1 << 20
HANG_S = 20  # of CPU time; a whole run takes a fraction of a second


class BlasCase(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="gac-blas-")
        self.addCleanup(holder.cleanup)
        self.folder = holder.name
        self.text = self.path("text.txt")
        with open(os.path.join(MODEL, "heldout.txt"), encoding="utf-8") as file:
            start = file.read(1500)
        with open(self.text, "w", encoding="utf-8") as file:
            file.write(start)

    def path(self, name):
        return os.path.join(self.folder, name)

    def eval(self, n_threads=2, limit=None, **env):
        def limits():
            resource.setrlimit(resource.RLIMIT_CPU, (HANG_S, HANG_S))
            if limit:
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

        clean = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
        return subprocess.run([OPTIONS.gac, "eval", MODEL, "--device", "cpu", "--perplexity",
                               self.text, "--threads", str(n_threads), "-q"], capture_output=True,
                              env={**clean, **env}, preexec_fn=limits, encoding="utf-8",
                              check=False)

    def value(self, result):
        self.assertEqual(result.returncode, 0, result.stderr)
        return float(re.search(r"PPL = ([0-9.]+)", result.stdout).group(1))

    def right_or_refused(self, result, expected):
        """Whether it gave the right answer; if not, that it said why in one line."""
        if result.returncode == 0:
            self.assertAlmostEqual(self.value(result), expected, delta=1e-4 * expected)
            return True
        self.assertIn(result.returncode, (1, 4), result.stderr)
        self.assertRegex(result.stderr, r"\Agac: [^\n]*\n\Z")
        return False


class ShortMemory(BlasCase):
    def test_limits(self):
        """Address space from too little to start, to enough."""
        expected = self.value(self.eval())
        found = []
        for mib in (*range(24, 480, 24), 2048):
            with self.subTest(mib=mib):
                found.append(self.right_or_refused(self.eval(limit=mib * MIB), expected))
        self.assertFalse(found[0])
        self.assertTrue(found[-1])

    def test_single_calls(self):
        """Every call of mmap fails once, and from then on."""
        count = self.path("count")
        preload = {"LD_PRELOAD": OPTIONS.no_mmap, "GAC_MMAP_COUNT": count}
        expected = self.value(self.eval(**preload))
        with open(count, encoding="ascii") as file:
            n_calls = int(file.read())
        self.assertGreater(n_calls, 2, "the calls are not seen")
        for at in range(1, n_calls + 1):
            for on in ({}, {"GAC_MMAP_ON": "1"}):
                with self.subTest(at=at, on=bool(on)):
                    result = self.eval(**preload, GAC_MMAP_AT=str(at), **on)
                    self.right_or_refused(result, expected)


class Loading(BlasCase):
    """With an OpenBLAS of our own."""

    def load(self, **env):
        """What it saw: [(core type, threads) of each load], buffers at a time."""
        log = self.path("log")
        result = self.eval(n_threads=3, LD_LIBRARY_PATH=OPTIONS.fake, FAKE_BLAS_LOG=log, **env)
        self.value(result)
        with open(log, encoding="utf-8") as file:
            lines = [line.split() for line in file]
        os.unlink(log)
        return [tuple(x[1:]) for x in lines if x[0] == "load"], lines[-1][1:]

    def best_core(self):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            flags = re.search(r"^flags\s*:(.*)$", file.read(), re.M)
        flags = set(flags.group(1).split()) if flags else set()
        if flags >= {"avx512f", "avx512bw", "avx512dq", "avx512vl"}:
            return "SkylakeX"
        return "Haswell" if flags >= {"avx2", "fma", "f16c"} else None

    def test_unknown_processor(self):
        """It is loaded again with a core type where it fell back to an old one."""
        core = self.best_core()
        expected = [("-", "1"), (core, "1")] if core else [("-", "1")]
        for fallback in ("Prescott", "Barcelona"):
            self.assertEqual(self.load(FAKE_BLAS_CORE=fallback)[0], expected)

    def test_known_processor(self):
        for core in ("Zen", "Haswell", "SkylakeX", "Neoverse"):
            self.assertEqual(self.load(FAKE_BLAS_CORE=core)[0], [("-", "1")])

    def test_user_decides_on_the_core(self):
        found, _ = self.load(FAKE_BLAS_CORE="Zen", OPENBLAS_CORETYPE="Prescott",
                             OPENBLAS_NUM_THREADS="7")
        self.assertEqual(found, [("Prescott", "1")])

    def test_buffers(self):
        """One for each thread, before any of them needs it."""
        self.assertEqual(self.load(FAKE_BLAS_CORE="Zen")[1], ["3"])

    def test_stuck(self):
        result = self.eval(LD_LIBRARY_PATH=OPTIONS.fake, FAKE_BLAS_STUCK="1")
        self.assertEqual(result.returncode, 4, result.stderr)
        self.assertRegex(result.stderr, r"\Agac: cpu: no memory for OpenBLAS[^\n]*\n\Z")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gac", required=True)
    parser.add_argument("--fake", required=True)
    parser.add_argument("--no-mmap", required=True)
    parser.add_argument("cases", nargs="*")
    parser.parse_args(namespace=OPTIONS)
    return tally.run(OPTIONS.cases)


if __name__ == "__main__":
    sys.exit(main())
