#!/usr/bin/env python3
"""Collects the licences of the libraries that a wheel holds beside gac. Part of the wheel's build.

    python3 python/licences.py --out FOLDER PROGRAM|LIBRARY...

The libraries are those that the given files need, and the given ones that a package owns. Debian's
packages say which licence each has: FOLDER gets one copyright file per package, and README.txt,
which names each library with its package and the package's source."""
import argparse
import pathlib
import platform
import shutil
import subprocess
import sys

# Every Linux that can install the wheel has these (PEP 600).
EVERYWHERE = {"libc6", "libgcc-s1", "libstdc++6"}
HEAD = """Libraries in this wheel that are not part of gac

They are copies of those of {system}, under other names. Each
package's copyright file is beside this one, and its source is the source package of the version
below. Each is a shared library of its own, so that another version can take its place.

"""


def fail(text):
    sys.exit(f"licences: {text}")


def output_of(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return done.stdout if done.returncode == 0 else ""


def needed_by(file):
    """The paths of the libraries that a file needs, those of its libraries included."""
    words = [line.split() for line in output_of("ldd", file).splitlines()]
    return {w[2] for w in words if len(w) > 2 and w[1] == "=>" and w[2].startswith("/")}


def owner(library):
    """The package that a file is part of, or None. Where /lib is a link, packages may name either
    path."""
    real = str(pathlib.Path(library).resolve())
    for path in (real, real.removeprefix("/usr")):
        found = output_of("dpkg", "-S", path)
        if found:
            return found.split(":")[0]
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    if not shutil.which("dpkg"):
        fail("no dpkg, which says what licence a library has; wheels are made on Debian or Ubuntu")
    packages = {}
    for library in sorted({*args.files, *(n for f in args.files for n in needed_by(f))}):
        package = owner(library)
        if package:
            packages.setdefault(package, set()).add(pathlib.Path(library).name)
        elif library not in args.files:
            fail(f"no package owns {library}, so that its licence is not known")
    system = platform.freedesktop_os_release()["PRETTY_NAME"]
    args.out.mkdir(parents=True, exist_ok=True)
    lines = []
    for package in sorted(packages.keys() - EVERYWHERE):
        copyright_file = pathlib.Path("/usr/share/doc", package, "copyright")
        if not copyright_file.is_file():
            fail(f"{copyright_file} is missing")
        shutil.copyfile(copyright_file, args.out / f"{package}.copyright")
        source = output_of("dpkg-query", "-W", "-f", "${source:Package} ${source:Version}", package)
        lines.append(f"{', '.join(sorted(packages[package]))}: {package}, source {source}\n")
    (args.out / "README.txt").write_text(HEAD.format(system=system) + "".join(lines))


if __name__ == "__main__":
    main()
