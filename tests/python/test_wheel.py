#!/usr/bin/env python3
"""The Python wheel: made of the release build, it works in an empty virtual environment and uses no
library of this machine but the C library's.

    python3 tests/python/test_wheel.py --wheel-python build/venv-wheel/bin/python --out FOLDER

Leaves the environment in FOLDER/venv and its packages as FOLDER/site, for the other tests."""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import unittest
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "support"))
import tally  # noqa: E402

# What the loader itself and the C library are made of.
C_LIBRARY = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "libgcc_s.so.1",
             "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
LIMIT_BYTES = 100 << 20  # a wheel that most package registries take


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not (args.wheel_python.parent.parent / "requirements.txt").exists():
            raise unittest.SkipTest(f"no {args.wheel_python}: tools/setup.sh wheel makes it")
        made = run(args.wheel_python, ROOT / "python" / "make_wheel.py")
        cls.wheel = ROOT / made.stdout.strip()
        cls.venv = args.out.resolve() / "venv"
        run(sys.executable, "-m", "venv", "--clear", cls.venv)
        # Nothing but this one file: no index, no dependencies.
        run(cls.venv / "bin" / "pip", "install", "-q", "--no-index", "--disable-pip-version-check",
            cls.wheel)
        cls.site, = cls.venv.glob("lib/python3*/site-packages")
        link = args.out.resolve() / "site"
        link.unlink(missing_ok=True)
        link.symlink_to(cls.site)

    def names(self):
        with zipfile.ZipFile(self.wheel) as archive:
            return archive.namelist()

    def test_holds_program_library_and_types(self):
        names = self.names()
        for wanted in ("gac/bin/gac", "gac/lib/libgac.so", "gac/py.typed", "gac/__init__.py"):
            self.assertIn(wanted, names)
        self.assertEqual("gac/lib/gac/libgac_cuda.so" in names,
                         (ROOT / "build" / "libgac_cuda.so").exists())
        self.assertLess(self.wheel.stat().st_size, LIMIT_BYTES)

    def test_tag_is_of_a_glibc_not_newer_than_ours(self):
        """No binary may ask for a newer glibc than the tag names; ours is the newest possible."""
        major, minor = map(int, re.search(r"-py3-none-manylinux_(\d+)_(\d+)_\w+\.whl$",
                                          self.wheel.name).groups())
        asked = {(2, 0)}
        for folder, pattern in (("gac/bin", "gac"), ("gac/lib", "*.so"), ("gac.libs", "*.so*")):
            for file in self.site.glob(f"{folder}/{pattern}"):
                asked |= {tuple(map(int, v)) for v in
                          re.findall(rb"GLIBC_(\d+)\.(\d+)", file.read_bytes())}
        self.assertGreater(len(asked), 1)
        self.assertEqual(max(asked), (major, minor))
        ours = tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")))
        self.assertLessEqual((major, minor), ours)

    def test_says_the_licence_of_each_library(self):
        with zipfile.ZipFile(self.wheel) as archive:
            names = archive.namelist()
            folder = next(n for n in names if n.endswith("/licenses/libraries/README.txt"))[:-10]
            told = archive.read(folder + "README.txt").decode()
        stated = dict(re.findall(r"^(lib[^:]+): (\S+), source", told, re.M))
        for library in ("libjansson", "libpcre2-8", "libunistring", "libxxhash", "libopenblas",
                        "libgfortran"):
            self.assertTrue([n for n in names if n.startswith(f"gac.libs/{library}")], library)
            package = next(p for l, p in stated.items() if l.startswith(library))
            self.assertIn(f"{folder}{package}.copyright", names)
        self.assertIn(folder.replace("libraries/", "LICENSE"), names)

    def test_uses_its_own_libraries(self):
        program = self.site / "gac" / "bin" / "gac"
        said = run(program, "--version", env={"LD_DEBUG": "libs"})
        self.assertIn("\nOpenBLAS ", said.stdout)
        started = [pathlib.Path(p) for p in re.findall(r"calling init: (\S+)", said.stderr)]
        ours = {p.name.split("-")[0] for p in started if self.site in p.resolve().parents}
        self.assertLessEqual({"libjansson", "libpcre2", "libunistring", "libxxhash", "libgfortran",
                              "libopenblas.so.0"}, ours)
        foreign = {p.name for p in started if self.site not in p.resolve().parents}
        self.assertLessEqual(foreign, C_LIBRARY)

    def test_command_is_the_program(self):
        version = re.search(r'GAC_VERSION "([^"]+)"',
                            (ROOT / "include/gac/base.h").read_text())[1]
        gac = self.venv / "bin" / "gac"
        self.assertTrue(run(gac, "--version").stdout.startswith(f"gac {version} "))
        self.assertEqual(run(gac, "dim", "107").stdout, "112\n")
        done = subprocess.run([gac, "dim", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 2)

    def test_types_reach_the_user(self):
        mypy = ROOT / "build" / "venv" / "bin" / "mypy"
        if not mypy.exists():
            self.skipTest(f"no {mypy}")
        said = run(mypy, "--strict", "--cache-dir", args.out / "mypy", "--python-executable",
                   self.venv / "bin" / "python", HERE / "typed_user.py")
        self.assertIn("no issues", said.stdout)

    def test_imports_nothing_else(self):
        found = run(self.venv / "bin" / "python", "-c", "import gac, sys; print(gac.__version__);"
                    "print([m for m in ('numpy', 'torch', 'tqdm', 'cffi') if m in sys.modules])")
        self.assertRegex(found.stdout, r"^\d+\.\d+\.\d+\n\[\]\n$")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--wheel-python", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    sys.exit(tally.run(args.names))
