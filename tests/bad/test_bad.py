#!/usr/bin/env python3
"""Runs gac on hostile checkpoints (make_bad.py, make_bad_gguf.py and make_bad_torch.py say which).

    test_bad.py --gac build/gac [--rewrite build/tests/rewrite] [--big]
                [--slack N] [CASE…]

A bad checkpoint must give exit code 3, nothing on stdout and one line on
stderr. Big ones must stay within 10 s of CPU time, which other programs on the
machine hardly change, and 1 GiB; --slack multiplies both, for builds with
sanitizers. With --rewrite, good ones are opened by it too.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading

import make_bad
import make_bad_big
import make_bad_gguf
import make_bad_torch

MAX_SECONDS = 10  # of CPU time; the slowest takes 3
MAX_BYTES = 1 << 30
# A hang must end the test; a slow machine must not.
KILL_SECONDS = 900
SMALL_BYTES = 256 << 20
SANITIZER_WORDS = ("Sanitizer", "runtime error", "SUMMARY:", "ERROR:")


class Result:
    def __init__(self, command, folder):
        out_path, err_path = os.path.join(folder, ".out"), os.path.join(folder, ".err")
        with open(out_path, "wb") as out, open(err_path, "wb") as err:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            killer = threading.Timer(KILL_SECONDS, process.kill)
            killer.start()
            _, status, usage = os.wait4(process.pid, 0)
            killer.cancel()
        process.returncode = self.code = os.waitstatus_to_exitcode(status)
        self.seconds = usage.ru_utime + usage.ru_stime
        self.max_bytes = usage.ru_maxrss * 1024
        with open(out_path, "rb") as file:
            self.out = file.read(1 << 20)
        with open(err_path, "rb") as file:
            self.err = file.read(1 << 20).decode("utf-8", "backslashreplace")


def refusal_faults(result, words):
    """What is wrong with a refusal; an empty list when nothing is."""
    faults = []
    if result.code != 3:
        faults.append(f"exit code {result.code}, expected 3")
    if result.out:
        faults.append(f"{len(result.out)} bytes on stdout")
    if result.err.count("\n") != 1 or not result.err.endswith("\n"):
        faults.append(f"{result.err.count(chr(10))} lines on stderr, expected 1")
    if any(ord(c) < 32 or ord(c) == 127 for c in result.err.rstrip("\n")):
        faults.append("control bytes on stderr")
    faults += [f"no {word!r} in the message" for word in words if word not in result.err]
    return faults + common_faults(result)


def common_faults(result):
    faults = [f"{word!r} on stderr" for word in SANITIZER_WORDS if word in result.err]
    if result.code < 0:
        faults.append(f"ended by signal {-result.code}")
    return faults


class Suite:
    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.n_passed = self.n_failed = 0

    def wanted(self, name):
        return not self.options.cases or name in self.options.cases

    def run(self, *command):
        return Result(command, self.folder)

    def note(self, name, result, faults):
        if not faults:
            self.n_passed += 1
            if self.options.verbose:
                print(f"ok   {name}: {result.err.strip()}")
            return
        self.n_failed += 1
        print(f"FAIL {name}: {'; '.join(faults)}\n     exit {result.code}, "
              f"stderr: {result.err[:600].strip()}")

    def bad(self):
        for name, content, fragments in make_bad.BAD:
            if not self.wanted(name):
                continue
            path = make_bad.write_case(self.folder, name, content)
            result = self.run(self.options.gac, "inspect", path)
            words = (fragments,) if isinstance(fragments, str) else fragments
            faults = refusal_faults(result, (os.path.basename(name), *words))
            if result.max_bytes > SMALL_BYTES * self.options.slack:
                faults.append(f"{result.max_bytes >> 20} MiB")
            self.note(name, result, faults)

    def missing(self):
        """Paths that are nothing to begin with."""
        for path in ("not_there", "not_there.safetensors", "/dev/null", "/dev/zero",
                     "/proc/self/mem"):
            if self.wanted("missing"):
                result = self.run(self.options.gac, "inspect", path)
                self.note(f"missing {path}", result, refusal_faults(result, (path,)))

    def good(self):
        for name, content, n_tensors in make_bad.GOOD:
            if not self.wanted(name):
                continue
            path = make_bad.write_case(self.folder, name, content)
            if not name.endswith(".safetensors"):
                result = self.run(self.options.gac, "inspect", path)
                faults = [] if result.code == 0 else [f"exit code {result.code}, expected 0"]
                self.note(f"{name} (inspect)", result, faults + common_faults(result))
            if self.options.rewrite:
                result = self.run(self.options.rewrite, "--list", path)
                faults = [] if result.code == 0 else [f"exit code {result.code}, expected 0"]
                if result.out.count(b"\n") != n_tensors:
                    faults.append(f"{result.out.count(10)} tensors, expected {n_tensors}")
                self.note(f"{name} (open)", result, faults + common_faults(result))

    def big(self):
        cases = [(name, codes, make_bad_big.write_big, (name + ".safetensors",), pieces)
                 for name, pieces, codes in make_bad_big.BIG]
        cases += [(name, codes, make_bad_big.write_big_file, (name, file), pieces)
                  for name, file, pieces, codes in make_bad_big.BIG_FILES]
        slowest = largest = 0
        for name, codes, write, (first, *rest), pieces in cases:
            if not self.wanted(name):
                continue
            path = write(os.path.join(self.folder, first), *rest, pieces())
            result = self.run(self.options.gac, "inspect", path)
            faults = refusal_faults(result, (name,)) if result.code else common_faults(result)
            if result.code not in codes:
                faults.append(f"exit code {result.code}, expected one of {codes}")
            if result.seconds > MAX_SECONDS * self.options.slack:
                faults.append(f"{result.seconds:.1f} s")
            if result.max_bytes > MAX_BYTES * self.options.slack:
                faults.append(f"{result.max_bytes >> 20} MiB")
            print(f"{name}: exit {result.code}, {result.seconds:.2f} s, "
                  f"{result.max_bytes >> 20} MiB: {result.err[-200:].strip()}")
            self.note(name, result, faults)
            slowest, largest = max(slowest, result.seconds), max(largest, result.max_bytes)
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        print(f"big: at most {slowest:.2f} s and {largest >> 20} MiB")


    def convert(self, name, content):
        """gac convert on a GGUF file; what it wrote, or what it must not have."""
        path = make_bad_gguf.write(self.folder, name, content)
        out = os.path.join(self.folder, "converted")
        result = self.run(self.options.gac, "convert", path, "-o", out, "--no-sync")
        left = [f for f in os.listdir(self.folder) if "converted" in f]
        faults = [f"left behind: {left}"] if result.code and left else []
        shutil.rmtree(out, ignore_errors=True)
        os.unlink(path)
        return result, faults

    def gguf(self):
        for name, content, fragments in make_bad_gguf.BAD:
            if self.wanted(name):
                result, faults = self.convert(name, content)
                words = (fragments,) if isinstance(fragments, str) else fragments
                faults += refusal_faults(result, (name + ".gguf", *words))
                if result.max_bytes > SMALL_BYTES * self.options.slack:
                    faults.append(f"{result.max_bytes >> 20} MiB")
                self.note(f"gguf {name}", result, faults)
        for name, content in make_bad_gguf.GOOD:
            if self.wanted(name):
                result, faults = self.convert(name, content)
                faults += [] if result.code == 0 else [f"exit code {result.code}, expected 0"]
                self.note(f"gguf {name}", result, faults + common_faults(result))

    def torch(self):
        for name, content, fragments in make_bad_torch.BAD:
            if not self.wanted(name):
                continue
            path = make_bad_torch.write(self.folder, name, content)
            result = self.run(self.options.gac, "inspect", path)
            words = (fragments,) if isinstance(fragments, str) else fragments
            faults = refusal_faults(result, (name + ".pt", *words))
            faults += [] if " offset " in result.err else ["no offset in the message"]
            if result.max_bytes > SMALL_BYTES * self.options.slack:
                faults.append(f"{result.max_bytes >> 20} MiB")
            if os.path.exists("/tmp/gac-was-here"):
                faults.append("it ran code")
            self.note(f"torch {name}", result, faults)
            os.unlink(path)

    def big_torch(self):
        for name, content, codes in make_bad_torch.BIG:
            if not self.wanted(name):
                continue
            path = make_bad_torch.write(self.folder, name, content())
            result = self.run(self.options.gac, "inspect", path)
            faults = refusal_faults(result, (name,)) if result.code else common_faults(result)
            if result.code not in codes:
                faults.append(f"exit code {result.code}, expected one of {codes}")
            if result.seconds > MAX_SECONDS * self.options.slack:
                faults.append(f"{result.seconds:.1f} s")
            if result.max_bytes > MAX_BYTES * self.options.slack:
                faults.append(f"{result.max_bytes >> 20} MiB")
            print(f"{name}: exit {result.code}, {result.seconds:.2f} s, "
                  f"{result.max_bytes >> 20} MiB: {result.err[-200:].strip()}")
            self.note(f"torch {name}", result, faults)
            os.unlink(path)

    def big_gguf(self):
        for name, pieces, codes in make_bad_gguf.BIG:
            if not self.wanted(name):
                continue
            result, faults = self.convert(name, pieces())
            faults += refusal_faults(result, (name,)) if result.code else common_faults(result)
            if result.code not in codes:
                faults.append(f"exit code {result.code}, expected one of {codes}")
            if result.seconds > MAX_SECONDS * self.options.slack:
                faults.append(f"{result.seconds:.1f} s")
            if result.max_bytes > MAX_BYTES * self.options.slack:
                faults.append(f"{result.max_bytes >> 20} MiB")
            print(f"{name}: exit {result.code}, {result.seconds:.2f} s, "
                  f"{result.max_bytes >> 20} MiB: {result.err[-200:].strip()}")
            self.note(name, result, faults)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gac", required=True)
    parser.add_argument("--rewrite")
    parser.add_argument("--big", action="store_true", help="the 100 MB headers too")
    parser.add_argument("--slack", type=float, default=1)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    options.gac = os.path.abspath(options.gac)
    if options.rewrite:
        options.rewrite = os.path.abspath(options.rewrite)
    return options


def main():
    options = parse_options()
    with tempfile.TemporaryDirectory(prefix="gac-bad-") as folder:
        make_bad.write_targets(folder)
        suite = Suite(options, folder)
        suite.bad()
        suite.missing()
        suite.good()
        suite.gguf()
        suite.torch()
        if options.big or options.cases:
            suite.big()
            suite.big_gguf()
            suite.big_torch()
    skipped = "" if options.big or options.cases else ", big ones skipped (--big runs them)"
    print(f"{suite.n_passed} passed, {suite.n_failed} failed{skipped}")
    return 1 if suite.n_failed or not suite.n_passed else 0


if __name__ == "__main__":
    sys.exit(main())
