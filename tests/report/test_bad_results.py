#!/usr/bin/env python3
"""gac report on results with wrong values: exit 3 and one line, or a page. Never a crash, and no
page after a failure.

    test_bad_results.py --gac GAC
"""
import argparse
import copy
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tests" / "data" / "results"
sys.path.insert(0, str(ROOT / "tests" / "support"))
import tally  # noqa: E402

N_CHANGES = 14  # of each result
WRONG = [None, True, -1, 1e308, 2**63, "x" * 5000, "\u0001\u001b[31m<b>&\"'`$(x)", [], {}, [[]],
         [{}], {"": {"": []}}]
options = None


def paths(value, at=()):
    """The way to every value in a document."""
    inside = value.items() if isinstance(value, dict) else \
        enumerate(value) if isinstance(value, list) else ()
    for key, child in inside:
        yield at + (key,)
        yield from paths(child, at + (key,))


def change(document, path, value):
    changed = copy.deepcopy(document)
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return changed


class BadResults(unittest.TestCase):
    def report(self, folder, content):
        path = os.path.join(folder, "r.json")
        page = os.path.join(folder, "page.html")
        with open(path, "wb") as file:
            file.write(content)
        # Without gnuplot: test_page.py has it.
        result = subprocess.run([options.gac, "report", path, "-o", page], capture_output=True,
                                env={**os.environ, "PATH": folder}, timeout=120, check=False)
        said = result.stderr.decode(errors="replace")
        if result.returncode == 0:
            with open(page, encoding="utf-8") as file:
                text = file.read()
            self.assertNotIn("<script", text)
            self.assertNotIn("\x1b", text)
            self.assertTrue(text.endswith("</html>\n"))
            os.unlink(page)
        else:
            self.assertEqual(result.returncode, 3, said)
            self.assertEqual(said.count("\n"), 1, said)
            self.assertIn("r.json", said)
            self.assertNotIn("\x1b", said)
        self.assertEqual(os.listdir(folder), ["r.json"])
        return result.returncode

    def test_changed_values(self):
        """Values of other types and sizes, at places drawn at random but always the same."""
        draw = random.Random(27)
        ends = set()
        with tempfile.TemporaryDirectory() as folder:
            for path in sorted(RESULTS.glob("*.json")):
                document = json.loads(path.read_text(encoding="utf-8"))
                self.assertEqual(self.report(folder, path.read_bytes()), 0, path)
                for at in draw.sample(list(paths(document)), N_CHANGES):
                    changed = change(document, at, draw.choice(WRONG))
                    with self.subTest(file=path.name, at=at):
                        ends.add(self.report(folder, json.dumps(changed).encode()))
        self.assertEqual(ends, {0, 3})

    def test_no_results(self):
        for content in (b"", b"[]", b"{}", b"{", b"\xff\xfe", b"7", b'{"schema":"gac.plan/1"}',
                        b'{"schema":"gac.front/9","points":[]}', b"[" * 100000):
            with tempfile.TemporaryDirectory() as folder, self.subTest(content=content[:40]):
                self.assertEqual(self.report(folder, content), 3)

    def test_many_entries(self):
        """Lists as long as a file allows cost seconds at most."""
        front = {"schema": "gac.front/1", "points": [
            {"overhead_pct": i / 1000, "time_ms": 9 / (i + 1)} for i in range(200000)]}
        dims = {"schema": "gac.plan/1", "strategy": "x" * 300, "dims": [
            {"name": f"a{i}b{i * 7919 % 1000003}", "from": i, "to": i + 1} for i in range(100000)]}
        compress = json.loads((RESULTS / "compress.json").read_text(encoding="utf-8"))
        compress["modules"] = [{**compress["modules"][0], "name": f"layers.{i % 7}.m{i}"}
                               for i in range(20000)]
        experiment = json.loads((RESULTS / "experiment.json").read_text(encoding="utf-8"))
        case = experiment["cases"][0]
        cell = next(iter(case["variants"].values()))
        experiment["cases"] = [{**case, "label": f"c{i}", "variables": {"d": i, f"v{i}": i}}
                               for i in range(5000)]
        experiment["cases"].append({**case, "variants": {f"v{i}": cell for i in range(5000)}})
        for document in (front, dims, compress, experiment):
            with tempfile.TemporaryDirectory() as folder:
                self.assertEqual(self.report(folder, json.dumps(document).encode()), 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gac", required=True, type=os.path.abspath)
    options, names = parser.parse_known_args()
    sys.exit(tally.run(names))
