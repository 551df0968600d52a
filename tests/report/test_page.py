#!/usr/bin/env python3
"""Pages in a headless Chromium: every figure is there, nothing is said on the console, no request
leaves the page, hover texts and tables work, and nothing is wider than a phone.

    test_page.py --gac GAC
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tests" / "data" / "results"
PUBLISHED = ROOT / "experiments" / "published"
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "report")]
import browser  # noqa: E402
import tally  # noqa: E402

MISSING = [name for name, there in (("Chromium", browser.find()),
                                    ("gnuplot", shutil.which("gnuplot"))) if not there]
EVIL = "</text></svg><img src=http://example.invalid/x onerror=alert(1)><script>alert(2)</script>"
options = None


@unittest.skipIf(MISSING, "there is no " + " and no ".join(MISSING))
class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="gac-page-")
        cls.addClassCleanup(holder.cleanup)
        cls.folder = pathlib.Path(holder.name)
        cls.browser = browser.Browser(browser.find(), cls.folder / "profile")
        cls.addClassCleanup(cls.browser.close)

    def report(self, name, *results):
        page = self.folder / name
        subprocess.run([options.gac, "report", *map(str, results), "-o", str(page), "--force"],
                       check=True)
        return page

    def open(self, page, **how):
        """Opens a page, and checks that it is silent and keeps to itself."""
        self.browser.open(page.as_uri(), **how)
        wanted = [e["params"]["request"]["url"] for e in self.browser.events
                  if e.get("method") == "Network.requestWillBeSent"]
        self.assertEqual([u for u in wanted if not u.startswith("data:")], [page.as_uri()])
        said = [e for e in self.browser.events if e.get("method") in
                ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")]
        self.assertEqual(said, [])

    def all_results(self):
        return self.report("all.html", *sorted(RESULTS.glob("*.json")))

    def test_figures(self):
        self.open(self.all_results())
        figures = self.browser.run("document.querySelectorAll('figure').length")
        self.assertGreater(figures, 12)
        self.assertEqual(self.browser.run(
            "document.querySelectorAll('figure svg.plot').length"), figures)
        # Each has marks, a caption, its origin, and the numbers behind it.
        empty = self.browser.run("""[...document.querySelectorAll('figure')].filter(f =>
            !f.querySelector('svg use, svg polygon') || !f.querySelector('figcaption') ||
            !f.querySelector('.stamp').textContent.includes('gac') ||
            f.querySelector('svg').getBoundingClientRect().height < 80 ||
            !f.querySelector('details tbody tr')).length""")
        self.assertEqual(empty, 0)
        for title in ("Perplexity against parameters", "What each cause costs",
                      "Sizes by layer, as they are", "Time against bytes: the exact Pareto front",
                      "Predicted time beside the dense model"):
            self.assertTrue(self.browser.run(
                f"[...document.querySelectorAll('figure h3')].some(h => h.textContent == '{title}')"),
                title)

    def test_marks_have_their_numbers(self):
        """As many hover texts as rows in the table behind a figure, in the same order."""
        self.open(self.all_results())
        pairs = self.browser.run("""[...document.querySelectorAll('figure')].map(f => [
            [...f.querySelectorAll('svg title')].map(t => t.textContent),
            [...f.querySelectorAll('details tbody tr')].map(r =>
                [...r.cells].map(c => c.textContent.trim()))])""")
        self.assertGreater(len(pairs), 12)
        for titles, rows in pairs:
            self.assertEqual(len(titles), len(rows), titles[:1])
            for title, (series, x, y, note) in zip(titles, rows):
                for part in (series, x, y, note):
                    self.assertIn(part, title)

    def test_hover_and_tables(self):
        """The mark under the mouse is the one that has the text; the table opens by a click."""
        self.open(self.all_results())
        found = self.browser.run("""(() => {
            const mark = document.querySelector('figure svg use').parentNode;
            mark.scrollIntoView({block: 'center'});
            const box = mark.querySelector('use').getBoundingClientRect();
            const x = box.x + box.width / 2, y = box.y + box.height / 2;
            const hit = document.elementFromPoint(x, y);
            return [x, y, hit.closest('g') == mark, mark.querySelector('title').textContent]})()""")
        self.browser.move_to(found[0], found[1])
        self.assertTrue(found[2])
        self.assertIn("perplexity", found[3])
        heights = self.browser.run("""(() => {
            const details = document.querySelector('figure details');
            const height = () => details.querySelector('table').getBoundingClientRect().height;
            const before = details.open ? height() : 0;
            details.querySelector('summary').click();
            return [before, height()]})()""")
        self.assertEqual(heights[0], 0)
        self.assertGreater(heights[1], 20)

    def test_light_dark_phone(self):
        page = self.all_results()
        colours = set()
        for dark in (False, True):
            self.open(page, width=390, height=844, dark=dark)
            self.assertLessEqual(self.browser.run("document.documentElement.scrollWidth"), 390)
            ink, paper = self.browser.run("""[
                getComputedStyle(document.querySelector('.plot .t text')).fill,
                getComputedStyle(document.body).backgroundColor]""")
            self.assertNotEqual(ink, paper)
            colours |= {ink, paper}
        self.assertEqual(len(colours), 4)

    def test_evil_texts(self):
        """What a hostile result says stays text, in the page and in its figures."""
        result = json.loads((RESULTS / "experiment.json").read_text(encoding="utf-8"))
        result["title"] = result["id"] = EVIL
        for case in result["cases"]:
            case["label"] = EVIL[:60] + case["label"]
            case["variants"] = {EVIL + name: {**v, "families": EVIL}
                                for name, v in case["variants"].items()}
        path = self.folder / "evil.json"
        path.write_text(json.dumps(result), encoding="utf-8")
        self.open(self.report("evil.html", path))
        self.assertEqual(self.browser.run("document.querySelectorAll('img, script').length"), 0)
        self.assertIn("<script>", self.browser.run("document.querySelector('#result-1 h2').textContent"))

    def test_all_experiments(self):
        """The page of all published experiments: small, and every claim is on it."""
        results = sorted(PUBLISHED.glob("*/h200.native.json")) + \
            sorted(PUBLISHED.glob("*/h200.pytorch.json"))
        self.assertGreater(len(results), 20)
        page = self.report("experiments.html", *results)
        self.assertLess(page.stat().st_size, 3 << 20)
        self.open(page)
        text = self.browser.run("document.body.textContent")
        for path in results:
            for claim in json.loads(path.read_text(encoding="utf-8"))["claims"]:
                self.assertIn(claim["says"], text)
        self.assertIn("published, A100", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gac", required=True, type=os.path.abspath)
    options, names = parser.parse_known_args()
    sys.exit(tally.run(names))
