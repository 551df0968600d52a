#!/usr/bin/env python3
"""gac repair and gac convert that are interrupted leave nothing, and what they finish is on disk.

    python3 tests/repair/test_interrupted.py --gac build/gac [CASE...]
"""
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile

import repair_support as support
import shim
from repair_case import main, RepairCase
from small_models import mk


def write_llama2c(folder, n_layers=2, dim=32, width=48, n_heads=4, n_kv_heads=2, vocab=300, n=16):
    """A model of llama2.c and its tokenizer, of random weights: the paths of both."""
    kv = dim // n_heads * n_kv_heads
    per_layer = 2 * dim + 2 * dim * dim + 2 * kv * dim + 3 * dim * width
    n_floats = vocab * dim + n_layers * per_layer + dim + n * dim // n_heads
    rng = support.seeded("llama2c")
    model, tokenizer = (os.path.join(folder, name) for name in ("model.bin", "tokenizer.bin"))
    with open(model, "wb") as file:
        file.write(struct.pack("<7i", dim, width, n_layers, n_heads, n_kv_heads, vocab, n))
        file.write(struct.pack(f"<{n_floats}f", *(rng.uniform(-1, 1) for _ in range(n_floats))))
    with open(tokenizer, "wb") as file:
        file.write(struct.pack("<i", 8))
        for i in range(vocab):
            text = f"<0x{i - 3:02X}>" if 3 <= i < 259 else f"t{i}"
            file.write(struct.pack("<fi", -i, len(text)) + text.encode())
    return model, tokenizer


TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "tiny")


class ShimCase(RepairCase):
    """Cases that watch system calls, or act at one of them."""

    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory(prefix="gac-shim-")
        cls.addClassCleanup(cls.holder.cleanup)
        cls.shim = shim.build(cls.holder.name)

    def setUp(self):
        super().setUp()
        self.log = os.path.join(self.holder.name, "log")
        with open(self.log, "w", encoding="utf-8"):
            pass

    def watched(self, *args, **settings):
        return self.gac(*args, "-q", env=shim.environment(self.shim, **settings))

    def checkpoint(self):
        ck = mk.svdllm_modify(mk.small_base(mlp=150), 0.8)
        support.write_folder(self.path("in"), support.fill(ck, self.rng), None, 2)
        return self.path("in")

    def jobs(self):
        """Commands that write a folder "out"."""
        model, tokenizer = write_llama2c(self.folder)
        return {"repair": ("repair", self.checkpoint(), "-o", self.path("out")),
                "convert": ("convert", model, "--tokenizer", tokenizer, "-o", self.path("out"))}


class Interrupted(ShimCase):
    def test_signals(self):
        """Ctrl-C and its like in the middle of writing."""
        for name, job in self.jobs().items():
            before = sorted(os.listdir(self.folder))
            count = os.path.join(self.holder.name, "count")
            self.assertEqual(self.watched(*job, call="write", at=0, count=count).returncode, 0)
            with open(count, encoding="utf-8") as file:
                n_writes = int(file.read())
            self.assertGreater(n_writes, 9)
            shutil.rmtree(self.path("out"))
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                for at in (1, n_writes // 2):
                    with self.subTest(name, signal=number.name, write=at, of=n_writes):
                        result = self.watched(*job, call="write", at=at, signal=int(number))
                        self.nothing_left(before)
                        self.assertEqual(result.returncode, 1, result.stderr)
                        self.assertTrue(support.one_line(result.stderr), result.stderr)
                        self.assertIn("interrupted", result.stderr)

    def test_signals_while_a_file_is_written(self):
        """gac plan and gac eval, in the middle of each of their files."""
        out = self.path("out")
        source = self.checkpoint()
        with open(self.path("q.jsonl"), "w", encoding="utf-8") as file:
            file.write('{"goal": "To read", "sol1": "open it", "sol2": "burn it", "label": 0}\n')
        before = sorted(os.listdir(self.folder))
        for n_writes, job in (
                (2, ("plan", source, "-o", out)),
                (2, ("plan", source, "--pareto", "--data", out)),
                (1, ("eval", TINY, "--tasks", "piqa", "--task-data", self.path("q.jsonl"),
                     "--lm-eval", out))):
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                for call, at in (("write", 1), ("write", 2))[:n_writes]:
                    with self.subTest(job[2:], signal=number.name, call=call, at=at):
                        result = self.watched(*job, call=call, at=at, signal=int(number))
                        self.nothing_left(before)
                        self.assertEqual(result.returncode, 1, result.stderr)
                        self.assertTrue(support.one_line(result.stderr), result.stderr)
                        self.assertIn("interrupted", result.stderr)

    def test_ignored_signals(self):
        """As under nohup: a signal that was ignored when gac began stays so."""
        for name, job in {**self.jobs(), "plan": ("plan", self.path("in"), "-o",
                                                  self.path("out"))}.items():
            with self.subTest(name):
                result = self.gac(*job, "-q", env=shim.environment(
                    self.shim, call="write", at=1, signal=int(signal.SIGHUP)),
                    preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
                self.assertEqual(result.returncode, 0, result.stderr)
                if os.path.isdir(self.path("out")):
                    shutil.rmtree(self.path("out"))

    def test_file_size_limit(self):
        """The signal of a file that grows too large would end the program half way."""
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (40 << 10, 40 << 10))
        for name, job in self.jobs().items():
            before = sorted(os.listdir(self.folder))
            with self.subTest(name):
                result = self.gac(*job, "-q", preexec_fn=limit)
                self.nothing_left(before)
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertTrue(support.one_line(result.stderr), result.stderr)
                self.assertIn("large", result.stderr.lower())


class Flushed(ShimCase):
    """What is to survive a power cut is flushed before it gets its name, and the name after."""

    def events(self, *args):
        """(paths flushed before the renaming, the path renamed, those flushed after it)"""
        result = self.watched(*args, log=self.log)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.log, encoding="utf-8") as file:
            events = [line.rstrip("\n").split(" ", 1) for line in file]
        self.assertEqual([what for what, _ in events].count("rename"), 1, events)
        at = [what for what, _ in events].index("rename")
        paths = [path for _, path in events]
        return paths[:at], paths[at], paths[at + 1:]

    def test_a_directory(self):
        """Each file and folder in it, itself, and the folder that it is in."""
        for name, job in self.jobs().items():
            with self.subTest(name):
                before, renamed, after = self.events(*job)
                out = self.path("out")
                there = {out} | {os.path.join(base, n) for base, folders, files in os.walk(out)
                                 for n in folders + files}
                self.assertGreater(len(there), 3)
                self.assertEqual({p.replace(renamed, out) for p in before}, there)
                self.assertEqual(after, [self.folder])
                shutil.rmtree(out)
                os.truncate(self.log, 0)

    def test_a_file(self):
        before, renamed, after = self.events("plan", self.checkpoint(), "-o", self.path("p.json"))
        self.assertEqual((before, after), ([renamed], [self.folder]))

    def test_not_where_it_is_not_wanted(self):
        before, _, after = self.events(*self.jobs()["repair"], "--no-sync")
        self.assertEqual((before, after), ([], []))


if __name__ == "__main__":
    sys.exit(main(__doc__))
