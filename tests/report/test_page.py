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
        titles = self.titles()
        for title in ("Perplexity against parameters", "What each cause costs",
                      "Sizes by layer, as they are", "Sizes by layer, as gac repair would make them",
                      "Sizes by layer, before", "Sizes by layer, after",
                      "Time against bytes: the exact Pareto front",
                      "Predicted time of each phase, now and repaired",
                      "Predicted time beside the dense model", "Attention time against head size, F16"):
            self.assertIn(title, titles)
        # Machine, versions and date.
        for stamp in self.browser.run(
                "[...document.querySelectorAll('figure .stamp')].map(s => s.textContent)"):
            self.assertRegex(stamp, r"^.+ · gac \d+\.\d+\.\d+ · \d{4}-\d\d-\d\d$")
        bars = self.browser.run("""[...[...document.querySelectorAll('figure')].find(f =>
            f.querySelector('h3').textContent == 'Predicted time beside the dense model'
            ).querySelectorAll('tbody td:first-child')].map(c => c.textContent)""")
        self.assertEqual(set(bars), {"dense", "as compressed", "rounded", "gac"})

    def titles(self):
        return self.browser.run(
            "[...document.querySelectorAll('figure h3')].map(h => h.textContent)")

    def check_texts(self):
        """On the page that is open, no text of a figure is too small, cut off, or on another."""
        wrong = self.browser.run("""[...document.querySelectorAll('figure svg.plot')].map(svg => {
            const box = svg.getBoundingClientRect(), wrong = [];
            const texts = [...svg.querySelectorAll('text')].filter(t => t.textContent.trim());
            const boxes = texts.map(t => t.getBoundingClientRect());
            const tilted = texts.map(t => /rotate\\((?!-90)/.test(t.parentNode.getAttribute('transform')));
            texts.forEach((t, i) => {
                const a = boxes[i], scale = box.width / svg.viewBox.baseVal.width;
                if (parseFloat(getComputedStyle(t).fontSize) * scale < 8) wrong.push('small');
                if (a.left < box.left - 1 || a.right > box.right + 1 ||
                    a.top < box.top - 1 || a.bottom > box.bottom + 1) wrong.push('cut');
                for (let k = 0; k < i; k++) {
                    const b = boxes[k], x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
                    const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
                    if (x > 1 && y > 4 && !tilted[i] && !tilted[k])
                        wrong.push(texts[k].textContent + ' on');
                }
                if (wrong.length) wrong.push(t.textContent);
            });
            return wrong.length ? [svg.getAttribute('aria-label'), ...wrong.slice(0, 4)] : null;
        }).filter(w => w)""")
        self.assertEqual(wrong, [])

    def test_texts_of_figures(self):
        for width in (390, 1280):
            self.open(self.all_results(), width=width)
            self.check_texts()

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

    def test_commands_leave_pages(self):
        """inspect --html and compress write such a page."""
        tiny, cut = ROOT / "models" / "tiny", self.folder / "cut"
        text = self.folder / "text.txt"
        text.write_bytes((tiny / "heldout.txt").read_bytes()[:3000])
        small = self.folder / "small"
        for command in ([sys.executable, ROOT / "tools" / "cut_mlp.py", tiny, cut],
                        [options.gac, "inspect", cut, "--html", self.folder / "inspect.html"],
                        [options.gac, "compress", tiny, "-o", small, "--ratio", "0.3", "--text",
                         text, "-q"]):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for page, title in ((self.folder / "inspect.html", "What each cause costs"),
                            (small / "report.html", "Predicted time beside the dense model")):
            self.open(page, width=390)
            self.assertIn(title, self.titles())
            self.assertGreater(self.browser.run("document.querySelectorAll('svg title').length"), 4)
            self.check_texts()

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
        titles = " ".join(self.titles())
        for start in ("Attention time against head size d (S1, ", "GEMM time against inputs k (G3, ",
                      "GEMM time against outputs n (G4, "):
            self.assertIn(start, titles)
        # A family of kernels has one colour, and attention has several.
        colours = self.browser.run("""[...[...document.querySelectorAll('figure')].find(f =>
            f.querySelector('h3').textContent.includes('(S1, ')).querySelectorAll('svg title')].map(t =>
                [t.textContent.split(' \u00b7 ')[1].split('\\n')[0].split(': ').pop(),
                 getComputedStyle(t.parentNode.querySelector('use')).color])""")
        found = {}
        for family, colour in colours:
            found.setdefault(family, set()).add(colour)
        self.assertTrue(all(len(c) == 1 for c in found.values()), found)
        self.assertGreaterEqual(len({next(iter(c)) for c in found.values()}), 3)
        # A published time lies over the bar of its case and variant.
        marks = self.browser.run("""[...[...document.querySelectorAll('figure')].find(f =>
            f.querySelector('h3').textContent.includes('(S2, ')).querySelectorAll('svg title')].map(t => {
                const box = t.parentNode.getBoundingClientRect();
                return [t.parentNode.tagName, ...t.textContent.split('\\n'), box.left, box.right]})""")
        bars = {m[1]: m[-2:] for m in marks if m[0] == "polygon"}
        over = 0
        for tag, head, _, note, left, right in (m for m in marks if m[0] == "g"):
            case, series = head.split(" · ")
            self.assertEqual(series, "published, A100")
            if f"{case} · {note}" in bars:
                start, end = bars[f"{case} · {note}"]
                self.assertTrue(start < (left + right) / 2 < end, (head, note))
                over += 1
        self.assertGreater(over, 6)
        for width in (390, 1280):
            self.open(page, width=width)
            self.check_texts()
            self.assertLessEqual(self.browser.run("document.documentElement.scrollWidth"), width)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gac", required=True, type=os.path.abspath)
    options, names = parser.parse_known_args()
    sys.exit(tally.run(names))
