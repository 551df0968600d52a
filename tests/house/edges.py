#!/usr/bin/env python3
"""Holds the rooms to the design: who may include whom, and how long files get.

An include of <gac/ROOM.h> or "ROOM/file.h" is an edge from the room of the
including file. cli/ sees include/gac/ only. Run with --self-test, it proves
that a forbidden edge is caught.
"""
import pathlib
import re
import sys

# room: the rooms it may include (DESIGN.md, "Rooms"; docs/architecture.md).
ALLOWED = {
    "base": set(),
    "checkpoint": {"base"},
    "contract": {"base", "checkpoint"},  # checkpoint for the names of dtypes
    "device": {"base", "checkpoint", "contract"},  # names of dtypes, shapes of operators
    "engine": {"base", "checkpoint", "contract", "device", "model"},
    "measure": {"base", "checkpoint", "contract", "device", "engine"},
    "model": {"base", "checkpoint", "contract"},
    "plan": {"base", "checkpoint", "contract", "model"},
    "repair": {"base", "checkpoint", "model"},  # told sizes, not how they were chosen
}
ROOMS = set(ALLOWED) | {"compress", "report"}
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:<gac/(\w+)\.h>|"([\w./]+)")', re.M)
MAX_LINES = 600
PATTERNS = ("src/*/*.[ch]", "src/*/*/*.[ch]", "src/*/*/*.cu", "include/gac/*.h", "cli/*.[ch]")


def edges(text):
    """The rooms a text includes, with whether through the public header."""
    for public, private in INCLUDE.findall(text):
        if public:
            yield public, True
        elif private.split("/")[0] in ROOMS:
            yield private.split("/")[0], False


def faults(path, text, room):
    """What is wrong with one file of a room; room None is the program."""
    for to, public in edges(text):
        if room is None and not public:
            yield f"{path}: cli includes {to} past its public header"
        elif room is not None and to != room and to not in ALLOWED.get(room, set()):
            yield f"{path}: {room} must not include {to}"
    if text.count("\n") > MAX_LINES:
        yield f"{path}: {text.count(chr(10))} lines, more than {MAX_LINES}"


def room_of(path):
    parts = path.parts
    if parts[0] == "src":
        return parts[1]
    if parts[0] == "include":
        return path.stem
    return None


def self_test():
    bad = '#include "plan/plan_internal.h"\n'
    assert list(faults("src/base/x.c", bad, "base")), "an upward edge was not caught"
    assert list(faults("cli/x.c", bad, None)), "a private header in cli was not caught"
    assert not list(faults("src/plan/x.c", bad, "plan"))
    assert list(faults("x", "\n" * (MAX_LINES + 1), "base"))


def main():
    self_test()
    root = pathlib.Path(__file__).resolve().parents[2]
    found, n_files, names = [], 0, {}
    for pattern in PATTERNS:
        for full in sorted(root.glob(pattern)):
            path = full.relative_to(root)
            room = room_of(path)
            if room is not None and room not in ROOMS:
                found.append(f"{path}: {room} is no room of the design")
            found += faults(path, full.read_text(), room)
            if path.parts[0] != "include":
                names.setdefault(path.name, []).append(path)
            n_files += 1
    found += [f"{' and '.join(map(str, p))}: same file name" for p in names.values() if len(p) > 1]
    for line in found:
        print(line)
    print(f"{n_files} files, {len(found)} faults")
    return 1 if found or n_files == 0 else 0


sys.exit(main())
