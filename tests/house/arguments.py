#!/usr/bin/env python3
"""Every public function that returns a status has a case in tests/unit/test_arguments.c
for each pointer that it refuses, and every options structure has an _INIT macro that
C++ takes too."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Errors and teams take NULL; what frees takes NULL; the solver has its own tests.
EXEMPT = re.compile(r"gac_(error_|team_agree|memory_check|tensor_hash_finish|solve$|pareto$)")
COMMENT = re.compile(r"/\*.*?\*/", re.S)


def headers():
    for path in sorted((ROOT / "include/gac").glob("*.h")):
        yield path, COMMENT.sub("", path.read_text(encoding="utf-8"))


def refused():
    """{function: pointers that it refuses} by its first lines."""
    found = {}
    body = re.compile(r"^gac_status (gac_\w+)\([^;{]*?\)\n\{\n(.*?)^\}", re.M | re.S)
    for path in (ROOT / "src").glob("*/*.c"):
        for name, text in body.findall(path.read_text(encoding="utf-8")):
            for named, plain in re.findall(
                    r'GAC_REFUSE_NULL(?:_AS\(\s*\w+,\s*"([^"]+)"|\(\w+, ([^)]+)\))', text):
                found[name] = re.split(r",\s*", named or plain)
    return found


def faults():
    test = (ROOT / "tests/unit/test_arguments.c").read_text(encoding="utf-8")
    refuses, n = refused(), 0
    for path, text in headers():
        for name in re.findall(r"^gac_status (gac_\w+)\(", text, re.M):
            if EXEMPT.match(name):
                continue
            n += 1
            if name not in refuses:
                yield f"{path.name}: {name} refuses no NULL"
            for pointer in refuses.get(name, []):
                if not re.search(rf"NEEDS\({name},\s+{pointer},", test):
                    yield f"test_arguments.c: {name} without {pointer} is not tested"
        for name in re.findall(r"^\} (gac_\w*(?:options|target|rules))\;", text, re.M):
            if f"#define {name.upper()}_INIT" not in text:
                yield f"{path.name}: {name} has no _INIT"
    if n < 50:
        yield f"{n} functions found: this script is out of date"


def initialisers():
    """A program that makes one structure by each _INIT macro."""
    lines = ["#include <gac/gac.h>", "int main() {"]
    for at, (_, text) in enumerate(headers()):
        for macro in re.findall(r"^#define (GAC_\w+_INIT)\b", text, re.M):
            kind = re.sub(r"_(sweep|pass)(?=_init$)", "", macro.lower())[:-len("_init")]
            lines.append(f"{kind} v{at}_{macro} = {macro}; (void)v{at}_{macro};")
    return "\n".join(lines + ["return 0; }", ""])


def main():
    found = list(faults())
    for compiler in (["gcc", "-x", "c", "-std=c11"], ["g++", "-x", "c++", "-std=c++11"]):
        made = subprocess.run(compiler + ["-I", str(ROOT / "include"), "-Wall", "-Wextra",
                                          "-Wpedantic", "-Werror", "-fsyntax-only", "-"],
                              input=initialisers(), text=True, capture_output=True, check=False)
        if made.returncode:
            found.append(f"_INIT macros fail with {compiler[0]}: {made.stderr}")
    for line in found:
        print(line)
    print(f"{len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
