#!/usr/bin/env python3
"""Every relative link in our Markdown files leads to a file, and every #anchor to a heading.

    python3 tests/house/links.py [ROOT]
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2])
LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)|<(?:img|source|a)\b[^>]*\b(?:src|srcset|href)=\"([^\"]+)\"")
ELSEWHERE = re.compile(r"[a-z]+:")


def pages():
    for path in sorted(ROOT.rglob("*.md")):
        parts = path.relative_to(ROOT).parts
        if parts[0] != "build" and not any(part.startswith(".") for part in parts):
            yield path


def prose(path):
    """Lines outside fenced code, with their numbers."""
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def anchors(path):
    """The names that headings get: lower case, no punctuation, dashes for spaces."""
    found, seen = set(), {}
    for _, line in prose(path):
        if heading := re.match(r"#{1,6} +(.*?)[ #]*$", line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            found.add(f"{name}-{seen[name]}" if name in seen else name)
            seen[name] = seen.get(name, 0) + 1
    return found


def fault(page, target):
    file, _, anchor = target.partition("#")
    path = (page.parent / file) if file else page
    if not path.exists():
        return "leads nowhere"
    if ROOT.resolve() not in path.resolve().parents and path.resolve() != ROOT.resolve():
        return "leads out of the tree"
    if anchor and path.suffix == ".md" and anchor not in anchors(path):
        return f"{path.name} has no heading of this name"
    return None


def main():
    n_links, faults = 0, []
    for page in pages():
        for number, line in prose(page):
            for match in LINK.finditer(re.sub(r"`[^`]*`", "", line)):
                target = match[1] or match[2]
                if ELSEWHERE.match(target):
                    continue
                n_links += 1
                if said := fault(page, target):
                    faults.append(f"{page.relative_to(ROOT)}:{number}: {target}: {said}")
    print("\n".join(faults) or f"{n_links} links lead somewhere")
    sys.exit(1 if faults or not n_links else 0)


if __name__ == "__main__":
    main()
