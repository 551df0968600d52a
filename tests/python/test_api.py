#!/usr/bin/env python3
"""The Python functions, as test_wheel.py has installed them. Results are compared with what the
program prints.

    PYTHONPATH=build/wheel/site python3 tests/python/test_api.py"""
import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
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
        shown = found._repr_html_()
        self.assertEqual(shown.count("<tr"), shown.count("</tr>"))
        self.assertEqual(sum(int(row[1]) for row in found._table().rows), len(found.misaligned))
        self.assertIn("<td", shown)

    def test_table_quotes_names_from_files(self):
        table = _table.Table("<b>", ["a&b"], [["<script>"]])
        self.assertIn("&lt;b&gt;", table.html())
        self.assertIn("&lt;script&gt;", table.html())
        self.assertNotIn("<script>", table.html())

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

    def test_a_killed_program(self):
        self.assertIn("SIGKILL", str(_program.explain(-signal.SIGKILL, [])))

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
