#!/usr/bin/env python3
"""The commands of docs/tutorial.md work: each ends with 0, in the order of the page.

    python3 tests/house/tutorial.py BUILD [--compare]

Commands that fetch from the network, and those after them in the same block, are left out.
--compare prints each line of the page that the command did not print, and fails if there is one.
make check does not compare: last digits depend on the machine.
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
    """What stands after "$ " in the fenced blocks, each with the lines below it."""
    fence, local, found = None, True, []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fence, local = line if fence is None else None, True
        elif fence == "```" and line.startswith("$ "):
            local = local and not line.startswith("$ tools/get_")
            if local:
                found.append((line[2:], []))
        elif fence == "```" and local and found and line not in ("", "…"):
            found[-1][1].append(line.rstrip())
    return found


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    env = dict(os.environ, PATH=f"{build}:{os.environ['PATH']}")
    n_other = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in LINKED:
            os.symlink(ROOT / name, os.path.join(folder, name))
        os.mkdir(os.path.join(folder, "work"))
        for command, shown in commands():
            done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=folder, env=env,
                                  capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{command}: ends with {done.returncode}: {done.stderr}")
            printed = [line.rstrip() for line in done.stdout.splitlines()]
            other = [line for line in shown if line not in printed]
            if other and "--compare" in sys.argv:
                print(f"$ {command}\nthe page has:", *other, "printed:", done.stdout, sep="\n")
            n_other += len(other)
    if "--compare" in sys.argv and n_other:
        sys.exit(f"{n_other} lines of the tutorial are not what the commands print")
    print(f"{len(commands())} commands of the tutorial work")
    sys.exit(0 if commands() else 1)


if __name__ == "__main__":
    main()
