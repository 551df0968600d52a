#!/usr/bin/env python3
"""Holds the rooms to the design: who may include whom, and how long files get.

The table of rooms in docs/architecture.md says which rooms a room uses. A room
includes the public headers of these, <gac/ROOM.h>. The inner headers of base are
for all rooms of the library and for experiment/; no other inner header leaves its
room. cli/ includes public headers, and those of experiment/. First the script
proves to itself that it catches forbidden edges.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:<gac/(\w+)\.h>|"([\w./]+)")', re.M)
ROW = re.compile(r"^\| (\w+) \|[^|]*\|[^|]*\| ([^|]*) \|$", re.M)
MAX_LINES = 600
PATTERNS = ("src/*/*.[ch]", "src/*/*/*.[ch]", "src/*/*/*.cu", "src/*/*/*.cuh", "include/gac/*.h",
            "experiment/*.[ch]", "cli/*.[ch]")


def read_rooms(text):
    """{room: rooms it uses} from the table, and what is wrong with the table."""
    table = text.split("## Rooms\n", 1)[1].split("\n## ", 1)[0]
    rooms = {room: set(uses.split(", ")) - {"nothing"} for room, uses in ROW.findall(table)
             if room != "room"}
    wrong = [f"docs/architecture.md: {room} uses {use}, which is no room above it"
             for at, room in enumerate(rooms) for use in rooms[room]
             if use not in list(rooms)[:at]]
    return rooms, wrong


def edges(text):
    """What a text includes: a room, and whether through its public header."""
    for public, private in INCLUDE.findall(text):
        if public:
            yield public, True
        elif "/" in private:
            yield private.split("/")[0], False


def faults(path, text, room, rooms):
    """What is wrong with one file of a room, or of cli."""
    for to, public in edges(text):
        if to in (room, "gac"):
            continue
        if not public and to not in ("base", "experiment"):
            yield f"{path}: an inner header of {to}"
        elif not public and room == "cli" and to == "base":
            yield f"{path}: an inner header of base"
        elif to == "experiment" and room != "cli":
            yield f"{path}: {room} must not include experiment"
        elif room != "cli" and to not in rooms.get(room, set()):
            yield f"{path}: {room} must not include {to}"
    if text.count("\n") > MAX_LINES:
        yield f"{path}: {text.count(chr(10))} lines, more than {MAX_LINES}"


def room_of(path):
    if path.parts[0] == "src":
        return path.parts[1]
    return path.stem if path.parts[0] == "include" else path.parts[0]


def self_test():
    rooms = {"base": set(), "plan": {"base"}}
    bad = '#include "plan/plan_internal.h"\n'
    assert list(faults("src/base/x.c", bad, "base", rooms)), "an upward edge was not caught"
    assert list(faults("cli/x.c", bad, "cli", rooms)), "an inner header in cli was not caught"
    assert list(faults("src/base/x.c", "#include <gac/plan.h>\n", "base", rooms))
    assert not list(faults("src/plan/x.c", bad + '#include "base/arena.h"\n', "plan", rooms))
    assert list(faults("x", "\n" * (MAX_LINES + 1), "base", rooms))


def main():
    self_test()
    rooms, found = read_rooms((ROOT / "docs/architecture.md").read_text(encoding="utf-8"))
    n_files, names = 0, {}
    for pattern in PATTERNS:
        for full in sorted(ROOT.glob(pattern)):
            path = full.relative_to(ROOT)
            room = room_of(path)
            if room not in rooms and room not in ("cli", "gac"):
                found.append(f"{path}: {room} is no room of docs/architecture.md")
            if room != "gac":  # the header of all rooms
                found += faults(path, full.read_text(encoding="utf-8"), room, rooms)
            if path.parts[0] != "include":
                names.setdefault(path.name, []).append(path)
            n_files += 1
    found += [f"{' and '.join(map(str, p))}: same file name" for p in names.values() if len(p) > 1]
    for line in found:
        print(line)
    print(f"{n_files} files, {len(found)} faults")
    return 1 if found or n_files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
