#!/usr/bin/env python3
"""The commands of docs/tutorial.md work: each ends with 0, in the order of the page.

    python3 tests/house/tutorial.py BUILD

Commands that fetch from the network, and those after them in the same block, are left out.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/tutorial.md"
LINKED = "tools", "models", "docs"


def commands():
    """What stands after "$ " in the fenced blocks."""
    fenced, local = False, True
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fenced, local = not fenced, True
        elif fenced and line.startswith("$ "):
            local = local and not line.startswith("$ tools/get_")
            if local:
                yield line[2:]


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    env = dict(os.environ, PATH=f"{build}:{os.environ['PATH']}")
    n_run = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in LINKED:
            os.symlink(ROOT / name, os.path.join(folder, name))
        os.mkdir(os.path.join(folder, "work"))
        for command in commands():
            done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=folder, env=env,
                                  capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{command}: ends with {done.returncode}: {done.stderr}")
            n_run += 1
    print(f"{n_run} commands of the tutorial work")
    sys.exit(0 if n_run else 1)


if __name__ == "__main__":
    main()
