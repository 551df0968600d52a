#!/usr/bin/env python3
"""Puts faults into the code, one at a time, and expects the tests to catch each of them.

    python3 tests/mutants/run.py --build build/check --release build [--out RESULT.json]
        [--short | NAME...]

A fault (a "mutant") is tests/mutants/NAME.patch. The lines above its diff say what is wrong:

    Fault: the last window of two tokens is dropped
    Tests: unit/test_running engine/run

Tests lists the ctest names that are tried, in this order, until one fails. The source tree
is not touched: the changed files are compiled from a copy and linked in place of the
originals, into programs of their own. Both builds must be complete and their tests pass.

Each mutant ends as
    caught     a test failed
    survived   every test passed
    invalid    it does not apply, does not compile, or a test of it fails without it, too
Exit 1 if any mutant survived or is invalid. A survivor that is known has a line
"Survives: why" above its diff; it must survive, and is counted apart. --short tries one
mutant of every room, one that a unit test catches.
"""
import argparse
import concurrent.futures
import functools
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TIMEOUT_S = 900
# Which library holds the objects of a target.
LIBRARIES = {"CMakeFiles/gac_core": "libgac.a", "CMakeFiles/gac_objects": "libgac.a",
             "CMakeFiles/gac_experiment": "libgac_experiment.a"}
SKIPPED = 77


class Invalid(Exception):
    pass


class Mutant:
    def __init__(self, path):
        self.name = os.path.basename(path)[:-len(".patch")]
        self.path = path
        with open(path, encoding="utf-8") as file:
            text = file.read()
        head = text.split("\n--- ", 1)[0] + "\n"
        self.fault = self.field(head, "Fault")
        self.tests = self.field(head, "Tests").split()
        self.survives = self.field(head, "Survives", "")
        self.files = re.findall(r"^\+\+\+ b/(\S+)", text, re.M)
        if not self.files or not all(name.endswith(".c") for name in self.files):
            raise Invalid(f"{self.name}: a mutant changes .c files, and at least one")

    def field(self, head, key, default=None):
        found = re.search(rf"^{key}: (.+)$", head, re.M)
        if not found and default is None:
            raise Invalid(f"{self.name}: no line \"{key}: ...\"")
        return found.group(1).strip() if found else default


class Build:
    """A finished build, and how it made its programs."""

    def __init__(self, folder):
        self.folder = os.path.abspath(folder)
        with open(os.path.join(self.folder, "compile_commands.json"), encoding="utf-8") as file:
            # A file may be compiled for several programs: {file: [(object, command)]}
            self.compile = {}
            for entry in json.load(file):
                name = os.path.relpath(entry["file"], ROOT)
                made = re.search(r" -o (\S+)", entry["command"]).group(1)
                self.compile.setdefault(name, []).append((made, entry["command"]))

    @functools.lru_cache(None)
    def link_command(self, program):
        """The command that links a program, given relative to the build folder; None if it has none."""
        done = subprocess.run(["ninja", "-C", self.folder, "-t", "commands", "-s", program],
                              capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if f" -o {program} " in line]
        return lines[-1] if done.returncode == 0 and lines else None

    def mutate(self, program, mutant, copy, out):
        """Links the mutant's version of a program to out. False if the program does not hold its files."""
        command = self.link_command(program)
        if not command:
            return False
        objects, replaced = [], False
        for name in mutant.files:
            for index, (made, compiled) in enumerate(self.compile.get(name, [])):
                inside = f" {made} " in command
                library = LIBRARIES.get(made.split(".dir/")[0])
                in_library = library and f" {library}" in command
                if not inside and not in_library:
                    continue
                target = os.path.join(copy, f"{os.path.basename(name)}.{index}.o")
                self.compile_copy(compiled, name, made, copy, target)
                if inside:
                    command = command.replace(f" {made} ", f" {target} ")
                else:
                    objects.append(target)
                replaced = True
        if not replaced:
            return False
        # Objects before a library take the place of its members.
        command = re.sub(r" (\S*libgac\w*\.a)", f" {' '.join(objects)} \\1", command, count=1)
        command = command.replace(f" -o {program} ", f" -o {out} ")
        done = subprocess.run(command, shell=True, cwd=self.folder, capture_output=True, text=True,
                              check=False)
        if done.returncode:
            raise Invalid(f"does not link: {(done.stderr or done.stdout).strip()[-300:]}")
        return True

    def compile_copy(self, command, name, made, copy, target):
        if os.path.exists(target):
            return
        source = os.path.join(ROOT, name)
        command = command.replace(f" -o {made}", f" -o {target}").replace(
            source, os.path.join(copy, name))
        command += f" -iquote {os.path.dirname(source)}"
        done = subprocess.run(command, shell=True, cwd=self.folder, capture_output=True, text=True,
                              check=False)
        if done.returncode:
            raise Invalid(f"does not compile: {done.stderr.strip()[-300:]}")


class Runner:
    def __init__(self, options):
        self.builds = [Build(options.build), Build(options.release)]
        done = subprocess.run(["ctest", "--test-dir", options.build, "--show-only=json-v1"],
                              capture_output=True, text=True, check=True)
        self.tests = {test["name"]: test["command"] for test in json.loads(done.stdout)["tests"]
                      if "command" in test}

    @functools.lru_cache(None)
    def passes_alone(self, name):
        return self.run(self.tests[name])[0] == 0

    @staticmethod
    def run(command):
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace",
                                  timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return 1, f"no end after {TIMEOUT_S} s"
        return done.returncode, done.stdout + done.stderr

    def mutated(self, command, mutant, copy):
        """A test's command with the mutant's programs in it; None if none of them holds its files."""
        changed, found = [], False
        for word in command:
            for build in self.builds:
                program = os.path.relpath(word, build.folder)
                if not os.path.isfile(word) or program.startswith("..") or found == word:
                    continue
                # A script may look for files beside its program, so the name stays.
                folder = os.path.join(copy, os.path.basename(build.folder))
                os.makedirs(folder, exist_ok=True)
                out = os.path.join(folder, os.path.basename(program))
                if os.path.exists(out) or build.mutate(program, mutant, copy, out):
                    word, found = out, out
                    break
            changed.append(word)
        return changed if found else None

    def attempt(self, mutant):
        """What became of a mutant, and by which test."""
        with tempfile.TemporaryDirectory(prefix="gac-mutant-") as copy:
            for name in mutant.files:
                os.makedirs(os.path.join(copy, os.path.dirname(name)), exist_ok=True)
                shutil.copy(os.path.join(ROOT, name), os.path.join(copy, name))
            done = subprocess.run(["patch", "-p1", "-s", "-i", mutant.path], cwd=copy,
                                  capture_output=True, text=True, check=False)
            if done.returncode:
                raise Invalid(f"does not apply: {done.stdout.strip()[:200]}")
            n_ran = 0
            for test in mutant.tests:
                if test not in self.tests:
                    raise Invalid(f"there is no test {test}")
                command = self.mutated(self.tests[test], mutant, copy)
                if not command:
                    raise Invalid(f"{test} does not run the changed file")
                if not self.passes_alone(test):
                    raise Invalid(f"{test} fails without the fault, too (or is skipped)")
                code, output = self.run(command)
                if code not in (0, SKIPPED):
                    lines = [line for line in output.splitlines() if line.strip()]
                    return "caught", test, (lines[-1] if lines else f"exit {code}")[:200]
                n_ran += code == 0
            return "survived", "", f"{n_ran} tests passed"


def try_one(runner, mutant):
    began = time.time()
    try:
        verdict, test, said = runner.attempt(mutant)
    except Invalid as error:
        verdict, test, said = "invalid", "", str(error)
    if verdict == "survived" and mutant.survives:
        verdict = "known survivor"
    elif verdict == "caught" and mutant.survives:
        verdict, said = "invalid", f"it is caught by {test}; remove its line \"Survives\""
    return {"name": mutant.name, "fault": mutant.fault, "verdict": verdict, "test": test, "said": said,
            "seconds": round(time.time() - began, 1)}


def main():
    # Under nohup, tests that send SIGHUP would fail without a fault, too.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="the build with tests")
    parser.add_argument("--release", required=True, help="the release build that some tests use")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", help="where the result goes, as JSON")
    parser.add_argument("--short", action="store_true", help="one mutant of every room")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    names = options.names or sorted(name[:-len(".patch")] for name in os.listdir(HERE)
                                    if name.endswith(".patch"))
    mutants = [Mutant(os.path.join(HERE, name + ".patch")) for name in names]
    if options.short:  # a name starts with its room
        quick = [m for m in mutants if all(test.startswith("unit/") for test in m.tests)]
        mutants = list({m.name.split("-")[0]: m for m in reversed(quick)}.values())[::-1]
    runner = Runner(options)
    rows = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda m: try_one(runner, m), mutants):
            rows.append(row)
            print(f"{row['verdict']:9} {row['name']:44} {row['test']:24} {row['seconds']:6} s", flush=True)
            if row["verdict"] != "caught":
                print(f"          {row['fault']}: {row['said']}", flush=True)
    count = {v: sum(r["verdict"] == v for r in rows)
             for v in ("caught", "survived", "known survivor", "invalid")}
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump({"schema": "gac.mutants/1", "command": shlex.join(sys.argv),
                       "machine": platform.platform(), "count": count, "mutants": rows}, file, indent=1)
            file.write("\n")
    print(", ".join(f"{n} {verdict}" for verdict, n in count.items()))
    return 1 if count["survived"] or count["invalid"] or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
