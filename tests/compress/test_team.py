#!/usr/bin/env python3
"""gac compress on several processes: the same choices as one, and one end for all.

    python3 tests/compress/test_team.py --gac build/gac --plugin build/libgac_mpi.so

Skipped where there is no mpirun that works, or no plug-in.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "support"))
import tally  # noqa: E402
from test_compress import first_layers, write_model  # noqa: E402

TINY = ROOT / "models" / "tiny"
TEXT = TINY / "heldout.txt"
NUMBER = "OMPI_COMM_WORLD_RANK"
# As root, on fewer cores than processes, in containers that allow no copies between processes.
ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
       "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
       "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}


def choices(result):
    return [(m["name"], m["choice"], m["size"], m["params"]) for m in result["modules"]]


def find_process(out, number):
    """The process that compresses to out under this number, or None."""
    for entry in pathlib.Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if (words[0] == OPTIONS.gac.encode() and str(out).encode() in words
                and f"{NUMBER}={number}".encode() in environment):
            return int(entry.name)
    return None


class Team(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.path.exists(OPTIONS.plugin):
            raise unittest.SkipTest("no MPI plug-in was built")
        if not shutil.which("mpirun"):
            raise unittest.SkipTest("no mpirun")
        cls.env = {**os.environ, **ENV, "GAC_MPI_PATH": OPTIONS.plugin}
        tried = subprocess.run(["mpirun", "-n", "2", "true"], env=cls.env, capture_output=True,
                               text=True, check=False, timeout=300)
        if tried.returncode:
            raise unittest.SkipTest(f"mpirun does not work here: {tried.stderr.strip()[:200]}")

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="gac-team-")
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        self.out = self.folder / "out"
        self.model = TINY

    def use_fewer_layers(self):
        self.model = self.folder / "model"
        write_model(self.model, first_layers(3), num_hidden_layers=3)

    def words(self, *args, text=TEXT):
        return [OPTIONS.gac, "compress", str(self.model), "-o", str(self.out), "--text", str(text),
                "--no-sync", "-q", "--ratio", "0.3", "--threads", "1", "--calib-tokens", "4096",
                *map(str, args)]

    def run_all(self, words, status=0, env=None):
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600,
                              env=env or self.env)
        self.assertEqual(done.returncode, status, f"{words}\n{done.stdout}\n{done.stderr}")
        return done

    def compress(self, n, *args):
        """What it reports, its files, and the perplexity of the result."""
        words = ["mpirun", "-n", str(n)] if n > 1 else []
        report = json.loads(self.run_all(words + self.words("--json", *args)).stdout)
        files = sorted(os.listdir(self.out))
        done = self.run_all([OPTIONS.gac, "eval", str(self.out), "--perplexity", str(TEXT),
                             "--max-windows", "12", "--json", "-q"])
        self.assertEqual([n for n in os.listdir(self.folder) if n.startswith("out")], ["out"])
        shutil.rmtree(self.out)
        return report, files, json.loads(done.stdout)["perplexity"]["value"]

    def assert_same(self, one, other):
        self.assertEqual(choices(other[0]), choices(one[0]))
        self.assertAlmostEqual(other[0]["objective"], one[0]["objective"], delta=1e-7)
        for a, b in zip(one[0]["modules"], other[0]["modules"]):
            self.assertAlmostEqual(a["loss"], b["loss"], delta=1e-7)
        self.assertEqual(other[1], one[1])
        self.assertLess(abs(other[2] / one[2] - 1), 1e-5)

    def test_the_same_as_one_process(self):
        self.use_fewer_layers()
        one = self.compress(1)
        self.assert_same(one, self.compress(2))
        self.assert_same(one, self.compress(3))
        self.assertTrue(one[0]["objective"] > 0)

    def test_published_methods(self):
        """They share other numbers: all trial cuts, parts of matrices."""
        self.use_fewer_layers()
        for args in (["--method", "asvd"], ["--method", "palu", "--ratio", "0.02"]):
            with self.subTest(args=args):
                self.assert_same(self.compress(1, *args), self.compress(2, *args))

    def refused(self, words, status, message, env=None):
        """One line of ours, from one process, and nothing is left."""
        done = self.run_all(words, status, env)
        ours = [line for line in done.stderr.split("\n") if line.startswith("gac:")]
        self.assertEqual(len(ours), 1, done.stderr)
        self.assertIn(message, ours[0])
        self.assertEqual([n for n in os.listdir(self.folder) if n.startswith("out")], [])

    def test_one_that_fails(self):
        none, other = self.folder / "none.txt", self.folder / "other.txt"
        other.write_text(TEXT.read_text().replace("the", "a"))
        good = ["-n", "1", *self.words()]
        self.refused(["mpirun", "-n", "3", *self.words(text=none)], 3, f"gac: {none}")
        self.refused(["mpirun", *good, ":", "-n", "1", *self.words(text=none)], 3,
                     f"gac: process 1: {none}")
        self.refused(["mpirun", "-n", "1", *self.words(text=none), ":", *good], 3, f"gac: {none}")
        self.refused(["mpirun", *good, ":", *good, ":", "-n", "1", *self.words(text=other)], 2,
                     "process 2: its model, text, options or version is not that of process 0")

    def test_no_plug_in(self):
        env = {**self.env, "GAC_MPI_PATH": "/nowhere"}
        self.refused(["mpirun", "-n", "2", *self.words()], 4,
                     "2 processes cannot work together: no MPI plug-in", env)
        self.compress(1)  # alone it needs none

    def test_an_mpirun_of_another_kind(self):
        env = {**self.env, "OMPI_COMM_WORLD_SIZE": "4", NUMBER: "0"}
        self.refused(self.words(), 4, "the MPI plug-in sees 1", env)

    def start(self, n, *args):
        """Starts processes, and returns once three layers are measured."""
        child = subprocess.Popen(["mpirun", "-n", str(n), *self.words(*args)], env=self.env,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + 600
        while not (self.folder / "out.work" / "layer-002").exists() and child.poll() is None:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        return child

    def end(self, child, at, sent):
        os.kill(find_process(self.out, at), sent)
        said = child.communicate(timeout=300)[1]
        self.assertNotEqual(child.returncode, 0)
        for other in range(3):
            self.assertIsNone(find_process(self.out, other))
        self.assertFalse(self.out.exists())
        return [line for line in said.split("\n") if line.startswith("gac:")]

    def test_one_that_is_interrupted(self):
        for at in (0, 1):
            said = self.end(self.start(3), at, signal.SIGTERM)
            self.assertEqual(len(said), 1)
            self.assertIn("interrupted", said[0])
            self.assertEqual(os.listdir(self.folder), [])

    def test_one_that_is_killed(self):
        for at in (0, 1):
            self.assertLess(len(self.end(self.start(2), at, signal.SIGKILL)), 2)
            shutil.rmtree(self.folder / "out.work", ignore_errors=True)

    def test_resume(self):
        one = self.compress(1)
        self.end(self.start(2, "--resume"), 1, signal.SIGKILL)
        kept = self.folder / "out.work" / "layer-000" / "model.safetensors"
        inode = kept.stat().st_ino
        work = self.folder / "work"
        os.rename(self.folder / "out.work", work)  # to look at it afterwards
        self.assert_same(one, self.compress(2, "--work", work))
        self.assertEqual((work / "layer-000" / "model.safetensors").stat().st_ino, inode)
        self.assertEqual(len(os.listdir(work)), 16)
        self.assert_same(one, self.compress(1, "--work", work))
        self.assert_same(one, self.compress(3, "--work", work))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gac", required=True)
    parser.add_argument("--plugin", required=True)
    OPTIONS, rest = parser.parse_known_args()
    OPTIONS.plugin = os.path.abspath(OPTIONS.plugin)
    sys.exit(tally.run(rest))
