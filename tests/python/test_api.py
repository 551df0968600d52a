#!/usr/bin/env python3
"""The Python functions, as test_wheel.py has installed them. Results are compared with what the
program prints.

    PYTHONPATH=build/wheel/site python3 tests/python/test_api.py"""
import ctypes
import inspect
import json
import os
import pathlib
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
import warnings

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "support"))
import tally  # noqa: E402

try:
    import gac
    from gac import _program, _table
except ImportError:
    print("skipped: the package gac is not installed here (test_wheel.py installs it)")
    sys.exit(tally.SKIPPED)

TINY = ROOT / "models" / "tiny"
TEXT = TINY / "heldout.txt"


def printed(command, *arguments):
    """What the program prints as JSON, without what differs between runs."""
    done = subprocess.run([_program.PROGRAM, command, "--json", *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    return lasting(json.loads(done.stdout))


def lasting(document):
    return {k: v for k, v in document.items() if k not in ("time", "arguments")}


def is_running(pid):
    """Whether a process is there that has not ended; who has to wait for it may not have done so."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="gac-python-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.svd = cls.folder / "svd"
        subprocess.run([sys.executable, ROOT / "tools" / "make_checkpoint.py", "svdllm", cls.svd,
                        "--fill", "1"], check=True, stdout=subprocess.DEVNULL)


class Functions(unittest.TestCase):
    """The functions and the program have the same options."""

    # Options that are spelt otherwise in Python; those that all commands have; and those whose
    # work Python does by itself: Plan.save writes plans, and results have members to test.
    SPELT = {"set": "sizes", "allow": "allow_rescaled", "no-sync": "sync",
             "no-gradients": "gradients"}
    GENERAL = {"json", "format", "quiet", "verbose", "color", "help"}
    ELSEWHERE = {"inspect": {"fail-on"}, "plan": {"output", "pareto", "data", "force"},
                 "repair": {"undo"}}

    def options(self, command):
        said = subprocess.run([_program.PROGRAM, "help", command], stdout=subprocess.PIPE, text=True,
                              check=True).stdout
        return set(re.findall(r"^ +(?:-\w, )?--([a-z-]+)", said, re.M)) - self.GENERAL

    def test_every_option_is_a_keyword(self):
        for command in ("inspect", "plan", "repair", "verify", "compress", "dim", "report"):
            keywords = set(inspect.signature(getattr(gac, command)).parameters)
            wanted = {self.SPELT.get(name, name.replace("-", "_"))
                      for name in self.options(command) - self.ELSEWHERE.get(command, set())}
            self.assertTrue(wanted)
            self.assertLessEqual(wanted, keywords, command)

    def test_options_of_undo_and_pareto(self):
        plan = self.options("plan")
        self.assertLessEqual({"undo", "force", "no-sync"}, self.options("repair"))
        self.assertLessEqual({"pareto", "data"}, plan)
        spelt = {self.SPELT.get(name, name.replace("-", "_")) for name in plan}
        self.assertLessEqual(set(inspect.signature(gac.pareto).parameters),
                             spelt | {"path", "progress"})

    def test_help_explains_every_keyword(self):
        for name in gac.__all__:
            if not inspect.isfunction(function := getattr(gac, name)):
                continue
            text = inspect.getdoc(function)
            arguments = text.partition("Args:\n")[2].partition("\n\n")[0]
            explained = set(re.findall(r"\w+", " ".join(
                re.findall(r"^ {4}(\w+(?:,\s+\w+)*):", arguments, re.M))))
            wanted = set(inspect.signature(function).parameters)
            self.assertEqual(explained, wanted, name)


class Inspect(Case):
    def test_says_what_the_program_says(self):
        found = gac.inspect(self.svd, gpu="a100", tp=2)
        expected = printed("inspect", "--gpu", "a100", "--tp", "2", "--", str(self.svd))
        self.assertEqual(lasting(found.document), expected)
        self.assertEqual(found.summary.n_misaligned, expected["summary"]["n_misaligned"])
        self.assertEqual([(d.name, d.size, d.aligned) for d in found.dims],
                         [(d["name"], d["size"], d["aligned"]) for d in expected["dims"]])
        self.assertEqual({d.name for d in found.misaligned},
                         {d["name"] for d in expected["dims"] if not d["aligned"]})

    def test_places(self):
        self.assertIn("places", gac.inspect(self.svd, places=True).document["dims"][0])

    def test_shows_a_table(self):
        found = gac.inspect(self.svd)
        self.assertIn(found.summary.advice, str(found))
        self.assertIn(found.misaligned[0].name.split(".")[-1], repr(found))
        shown = found._repr_html_()
        self.assertEqual(shown.count("<tr"), shown.count("</tr>"))
        self.assertEqual(sum(int(row[1]) for row in found._table().rows), len(found.misaligned))
        self.assertIn("<td", shown)

    def test_table_quotes_names_from_files(self):
        table = _table.Table("<b>", ["a&b"], [["<script>"]])
        self.assertIn("&lt;b&gt;", table.html())
        self.assertIn("&lt;script&gt;", table.html())
        self.assertNotIn("<script>", table.html())

    def test_tables_without_rows_have_no_head(self):
        table = _table.Table("nothing changes", ["from", "to"])
        self.assertEqual(table.text(), "nothing changes")
        self.assertNotIn("<th", table.html().replace("<thead>", ""))
        self.assertIn("nothing changes", table.html())

    def test_places_are_named_as_python_names_them(self):
        odd = self.folder / "ünï 模型"
        shutil.copytree(self.svd, odd)
        home, os.environ["HOME"] = os.environ.get("HOME", "/"), str(self.folder)
        self.addCleanup(os.environ.__setitem__, "HOME", home)
        for path in (odd, str(odd), os.fsencode(odd), f"~/{odd.name}", pathlib.Path("~", odd.name)):
            self.assertEqual(gac.inspect(path).checkpoint.path, str(odd))
        gac.repair(f"~/{odd.name}", "~/ünï fit")
        self.assertTrue((self.folder / "ünï fit" / "config.json").exists())
        self.assertTrue(gac.verify(odd, "~/ünï fit").ok)

    def test_results_can_be_pickled(self):
        found = gac.inspect(self.svd)
        self.assertEqual(pickle.loads(pickle.dumps(found)), found)

    def test_threads(self):
        found = []
        threads = [threading.Thread(target=lambda: found.append(gac.inspect(self.svd)))
                   for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(found), 4)
        for other in found[1:]:
            self.assertEqual(lasting(other.document), lasting(found[0].document))

    def test_long_tables_end(self):
        table = _table.Table("", ["n"])
        for n in range(_table.MAX_ROWS + 3):
            table.add(n)
        self.assertIn("and 3 more", table.text())
        self.assertIn("and 3 more", table.html())


class Repair(Case):
    def test_plan_repair_verify_undo(self):
        plan = gac.plan(self.svd, strategy="solve", max_overhead=5)
        self.assertEqual(lasting(plan.document),
                         printed("plan", "--strategy", "solve", "--max-overhead", "5", "--",
                                 str(self.svd)))
        changed = plan.dims[0]
        changed.to = changed.from_ - changed.from_ % 8 + 16
        fit, back = self.folder / "fit", self.folder / "back"
        done = gac.repair(self.svd, fit, plan=plan)
        self.assertIn((changed.name, changed.to), [(d.name, d.to) for d in done.dims])
        self.assertTrue(done.written)
        self.assertTrue(all(r.how or r.why for r in done.loads_in))
        self.assertIn("gac", done.loads_in[0].runtime)
        now = {d.name: d.size for d in gac.inspect(fit).dims}
        self.assertEqual(now[changed.name], changed.to)
        found = gac.verify(self.svd, fit, forward=True)
        self.assertTrue(found.ok and found.lossless and found.forward.bit_exact)
        self.assertTrue(gac.undo(fit, back).proved)
        self.assertTrue(gac.verify(self.svd, back).ok)
        self.assertEqual((back / "config.json").read_bytes(),
                         (self.svd / "config.json").read_bytes())

    def test_options_reach_the_program(self):
        plan = gac.plan(self.svd, sizes={"layers.0.mlp.down_proj.rank": 1024})
        self.assertIn(1024, [d.to for d in plan.dims])
        file = self.folder / "plan.json"
        plan.save(file)
        preview = gac.repair(self.svd, self.folder / "no", plan=file, dry_run=True)
        self.assertFalse(preview.written)
        self.assertIn("would change", str(preview))
        self.assertFalse((self.folder / "no").exists())

    def test_pareto(self):
        data = self.folder / "front.dat"
        found = gac.pareto(self.svd, workload="prefill:4x512", data=data)
        self.assertEqual(lasting(found.document)["points"],
                         printed("plan", "--pareto", "--workload", "prefill:4x512", "--",
                                 str(self.svd))["points"])
        self.assertGreater(len(found.points), 2)
        self.assertGreater(found.points[0].time_ms, found.points[-1].time_ms)
        self.assertTrue(data.exists())
        self.assertIn(f"{len(found.points)} plans", found._repr_html_())

    def test_what_is_not_the_same(self):
        fit = self.folder / "other"
        gac.repair(self.svd, fit)
        file = fit / "model.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        with self.assertRaises(gac.CheckFailed) as caught:
            gac.verify(self.svd, fit)
        self.assertFalse(caught.exception.result.ok)
        self.assertEqual(str(caught.exception), caught.exception.result.difference)
        self.assertIn("NOT the same", str(caught.exception.result))


class Errors(Case):
    def check(self, kind, status, call):
        with self.assertRaises(kind) as caught:
            call()
        self.assertIs(type(caught.exception), kind)
        self.assertEqual(caught.exception.status, status)
        self.assertTrue(str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))
        return str(caught.exception)

    def test_each_status_has_its_class(self):
        missing = self.check(gac.BadInput, 3, lambda: gac.inspect(self.folder / "missing"))
        said = subprocess.run([_program.PROGRAM, "inspect", self.folder / "missing"],
                              stderr=subprocess.PIPE, text=True).stderr
        self.assertEqual(said, f"gac: {missing}\n")
        self.check(gac.UsageError, 2, lambda: gac.inspect(self.svd, gpu="no-such"))
        taken = self.folder / "taken"
        taken.mkdir()
        self.check(gac.GacError, 1, lambda: gac.repair(self.svd, taken))
        os.environ["GAC_BACKEND_PATH"] = "/nonexistent"
        self.addCleanup(os.environ.pop, "GAC_BACKEND_PATH")
        self.check(gac.NoDevice, 4, lambda: gac.compress(TINY, self.folder / "c", ratio=0.2,
                                                         text=TEXT, device="cuda"))
        self.assertTrue(issubclass(gac.UsageError, ValueError))

    def test_names_that_look_like_options(self):
        self.check(gac.BadInput, 3, lambda: gac.inspect("--help"))
        self.check(gac.UsageError, 2, lambda: gac.dim("107"))

    def test_wrong_types(self):
        for path in (None, 5, ["a"]):
            with self.assertRaises(TypeError):
                gac.inspect(path)
        with self.assertRaisesRegex(TypeError, "dict"):
            gac.plan(self.svd, sizes=["mlp"])
        for ratio in (2, -0.2, float("nan"), "many", True):
            self.assertIn("ratio", self.check(gac.UsageError, 2, lambda: gac.compress(
                TINY, self.folder / "c", ratio=ratio, text=TEXT)))
        self.assertIn("ratio", self.check(gac.UsageError, 2, lambda: gac.compress(
            TINY, self.folder / "c", text=TEXT)))
        self.assertFalse((self.folder / "c").exists())

    def test_errors_can_be_pickled(self):
        with self.assertRaises(gac.BadInput) as caught:
            gac.inspect(self.folder / "missing")
        again = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((type(again), str(again)), (gac.BadInput, str(caught.exception)))

    def test_a_killed_program(self):
        out = self.folder / "killed"
        work = out.with_name("killed.work")

        def kill():
            while not work.exists():
                time.sleep(0.01)
            for task in pathlib.Path("/proc/self/task").iterdir():
                for child in (task / "children").read_text().split():
                    os.kill(int(child), signal.SIGKILL)

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        self.assertIn("SIGKILL", self.check(gac.GacError, 1, lambda: gac.compress(
            TINY, out, ratio=0.2, text=TEXT)))
        self.assertFalse(out.exists())

    def test_notes_become_warnings(self):
        with self.assertWarns(gac.GacWarning) as caught:
            gac.inspect(self.svd, gpu="sm_90")
        self.assertIn("assumed", str(caught.warning))
        self.assertEqual(caught.filename, __file__)


class Dim(unittest.TestCase):
    def test_one_size(self):
        found = gac.dim(107)
        self.assertEqual((found.from_, found.to, found.places), (107, 112, []))
        judged = gac.dim(107, gpu="h200", strategy="multiple-16")
        self.assertEqual(lasting(judged.document),
                         printed("dim", "107", "--gpu", "h200", "--strategy", "multiple-16"))
        self.assertFalse(judged.places[0].aligned)
        self.assertIn("gemm_n", judged._repr_html_())

    def test_matrix(self):
        found = gac.dim((4096, 14336), keep=0.8)
        self.assertEqual(gac.dim([4096, 14336], keep=0.8).to, found.to)
        suggested, = (r for r in found.candidates if r.suggested)
        self.assertEqual(found.to, suggested.rank)
        self.assertEqual((found.out, found.in_), (4096, 14336))


class Compress(Case):
    def test_smaller_and_aligned(self):
        out = self.folder / "small"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gac.GacWarning)
            done = gac.compress(TINY, out, ratio=0.2, text=TEXT, calib_tokens=1024,
                                method="svd-llm", exclude=["layers.0.*"])
        self.assertLess(done.total_after, done.total_before)
        self.assertEqual(done.aligned_pct, 100)
        self.assertEqual({m.choice for m in done.modules if m.name.startswith("layers.0.")},
                         {"dense"})
        self.assertEqual(gac.inspect(out).checkpoint.n_params, done.total_after)
        self.assertIn("svd-llm", done._repr_html_())

    def test_options_reach_the_program(self):
        done = gac.compress(TINY, self.folder / "no", ratio=0.2, text=TEXT, calib_tokens=512,
                            choices="rank", exclude="layers.0.*", gradients=False, dry_run=True)
        words = done.document["arguments"]
        for word in ("--choices=rank", "--exclude=layers.0.*", "--no-gradients", "--dry-run"):
            self.assertIn(word, words)
        self.assertLessEqual({m.choice for m in done.modules}, {"dense", "rank"})

    def stop(self, name, number):
        """Sends a signal to a Python process while its compression runs. Returns what Python said
        after the program has ended."""
        out = self.folder / name
        work = out.with_name(name + ".work")
        script = f"import gac; gac.compress({str(TINY)!r}, {str(out)!r}, ratio=0.2, " \
                 f"text={str(TEXT)!r})"
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        while not work.exists() and process.poll() is None:
            time.sleep(0.01)
        child, = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children") \
            .read_text().split()
        process.send_signal(number)
        said = process.communicate()[1]
        self.assertNotEqual(process.returncode, 0)
        while is_running(child):
            time.sleep(0.01)
        self.assertEqual([p.name for p in self.folder.iterdir() if name in p.name], [])
        return said

    def test_interrupt_leaves_nothing(self):
        self.assertIn("KeyboardInterrupt", self.stop("interrupted", signal.SIGINT))

    def test_the_program_ends_with_python(self):
        self.stop("killed", signal.SIGKILL)


class Report(Case):
    def test_page_of_results_and_files(self):
        page, file = self.folder / "page.html", self.folder / "front.json"
        gac.pareto(self.svd).save(file)
        found = gac.inspect(self.svd, html=self.folder / "inspect.html")
        plan = gac.plan(self.svd)
        done = gac.report([found, plan, plan, file], page, title="Mine <&>")
        self.assertEqual(done.page, str(page))
        self.assertEqual(done.drawn, shutil.which("gnuplot") is not None)
        text = page.read_text(encoding="utf-8")
        self.assertIn("Mine &lt;&amp;&gt;", text)
        self.assertEqual(text.count("<svg") > 0, done.drawn)
        self.assertIn("written", done._repr_html_())
        for shown in ("svd.plan.json", "svd.plan.2.json", "front.json"):
            self.assertIn(shown, text)
        self.assertNotIn("gac-report-", text)
        self.assertIn("</html>", (self.folder / "inspect.html").read_text(encoding="utf-8"))
        with self.assertRaisesRegex(gac.GacError, "exists"):
            gac.report(found, page)
        gac.report(found, page, force=True)
        with self.assertRaisesRegex(gac.BadInput, "config.json"):
            gac.report(self.svd / "config.json", self.folder / "other.html")
        with self.assertRaises(gac.UsageError):
            gac.report([], self.folder / "other.html")
        with self.assertRaises(TypeError):
            gac.report([{}], self.folder / "other.html")
        self.assertFalse((self.folder / "other.html").exists())


class Progress(unittest.TestCase):
    def test_a_bar_that_fails(self):
        watcher = _program.Watcher(progress=True)
        watcher.show = None
        watcher.read(["reading: 1 of 2 files (50 %)\n"] * 2 + ["note\n"])
        self.assertEqual(watcher.lines, ["note"])

    def test_lines_of_the_library_become_bars(self):
        """The library writes a line to a pipe after two seconds."""
        made = []

        class Bar:
            def __init__(self, **options):
                self.options, self.n, self.closed = options, 0, False
                made.append(self)

            def refresh(self):
                pass

            def close(self):
                self.closed = True

        modules = {"tqdm": types.ModuleType("tqdm"), "tqdm.auto": types.ModuleType("tqdm.auto")}
        modules["tqdm.auto"].tqdm = Bar
        sys.modules.update(modules)
        self.addCleanup(lambda: [sys.modules.pop(name) for name in modules])
        libc = ctypes.CDLL(None)
        from gac._library import library
        lib = library()
        libc.fdopen.restype = lib.gac_progress_create.restype = ctypes.c_void_p
        reading, writing = os.pipe()
        stream = ctypes.c_void_p(libc.fdopen(writing, b"w"))
        progress = ctypes.c_void_p(lib.gac_progress_create(stream))
        lib.gac_progress_start(progress, b"measuring layers", b"passes", ctypes.c_uint64(40))
        time.sleep(2.2)
        lib.gac_progress_step(progress, ctypes.c_uint64(10))
        lib.gac_progress_free(progress)
        libc.fclose(stream)
        watcher = _program.Watcher(progress=True)
        with os.fdopen(reading) as lines:
            watcher.read(lines)
        self.assertEqual([(b.options["desc"], b.n, b.total, b.closed) for b in made],
                         [("measuring layers", 10, 40, True)])
        self.assertEqual(watcher.lines, [])


class Load(Case):
    def setUp(self):
        try:
            import transformers  # noqa: F401
        except ImportError:
            return
        self.skipTest("transformers is here; the tutorial loads models")

    def code(self, folder):
        return folder / "modeling_gac.py"

    def test_says_what_is_missing(self):
        with self.assertRaisesRegex(gac.GacError, "torch and transformers"):
            gac.load(TINY)

    def test_runs_the_code_of_gac_and_no_other(self):
        fit = self.folder / "fit"
        gac.repair(self.svd, fit)
        with self.assertWarns(gac.GacWarning), self.assertRaisesRegex(gac.GacError, "needs torch"):
            gac.load(fit)
        self.code(fit).write_text(self.code(fit).read_text() + "\nprint('hello')\n")
        with self.assertRaisesRegex(gac.UsageError, "is not the code"):
            gac.load(fit)
        self.code(fit).unlink()
        with self.assertRaises(gac.BadInput):
            gac.load(fit)
        config = json.loads((fit / "config.json").read_text())
        config["auto_map"]["AutoModelForCausalLM"] = "modeling_other.Model"
        (fit / "config.json").write_text(json.dumps(config))
        with self.assertRaisesRegex(gac.UsageError, "did not write"):
            gac.load(fit)
        with self.assertRaisesRegex(gac.GacError, "needs torch"):
            gac.load(fit, trust_remote_code=True)
        (fit / "config.json").write_text("[]")
        with self.assertRaises(gac.BadInput):
            gac.load(fit)
        with self.assertRaises(gac.BadInput):
            gac.load(self.folder / "missing")


if __name__ == "__main__":
    sys.exit(tally.run(sys.argv[1:]))
