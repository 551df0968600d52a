#!/usr/bin/env python3
"""The programs of examples/, compiled against an installed library as a user would, answer
as the command does."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import tally  # pylint: disable=wrong-import-position

TINY = ROOT / "models/tiny"
GPU = "h200"
ARGS = None


def run(*command, env=None):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          check=False, env=env)


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.work = pathlib.Path(cls.folder.name)
        prefix = cls.work / "usr"
        made = run("cmake", "--install", ARGS.build, "--prefix", prefix)
        assert made.returncode == 0, made.stderr
        package = next(prefix.rglob("gac.pc")).parent
        flags = run("pkg-config", "--cflags", "--libs", "gac",
                    env=dict(os.environ, PKG_CONFIG_PATH=str(package)))
        assert flags.returncode == 0, flags.stderr
        cls.env = dict(os.environ, LD_LIBRARY_PATH=str(package.parent))
        for source in sorted((ROOT / "examples").glob("*.c")):
            made = run("cc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", source, "-o",
                       cls.work / source.stem, *flags.stdout.split())
            assert made.returncode == 0, made.stderr
        made = run(sys.executable, ROOT / "tools/make_checkpoint.py", "--fill", 1, "svdllm",
                   cls.work / "model")
        assert made.returncode == 0, made.stderr

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def example(self, name, *arguments, status=0):
        result = run(self.work / name, *arguments, env=self.env)
        self.assertEqual(result.returncode, status, result.stderr)
        return result

    def gac(self, *arguments):
        result = run(ARGS.gac, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_length(self):
        for source in (ROOT / "examples").glob("*.c"):
            self.assertLess(len(source.read_text(encoding="utf-8").splitlines()), 80, source)

    def test_inspect(self):
        lines = self.example("inspect", self.work / "model", GPU).stdout.splitlines()
        told = json.loads(self.gac("inspect", self.work / "model", "--gpu", GPU, "--json"))
        summary = told["summary"]
        self.assertIn(f": {summary['n_misaligned_all']} of {summary['n_dims_all']} sizes", lines[0])
        phases = [f"{p['phase']}: {p['now_ms']:.3f} ms now, {p['repaired_ms']:.3f} ms repaired"
                  for p in summary["phases"]]
        self.assertEqual(lines[1:1 + len(phases)], phases)
        pays = summary["advice"].startswith("repair pays:")
        self.assertEqual(lines[1 + len(phases)].startswith("repair: pays,"), pays)
        wrong = [f"  {d['name']} {d['size']}, better {d['suggest']}" for d in told["dims"]
                 if not d["aligned"]]
        self.assertGreater(len(wrong), 0)
        self.assertEqual(lines[2 + len(phases):], wrong)

    def test_plan_repair(self):
        ours, theirs = self.work / "ours", self.work / "theirs"
        said = self.example("plan_repair", self.work / "model", ours, GPU).stdout
        told = json.loads(self.gac("repair", self.work / "model", "-o", theirs, "--strategy",
                                   "minimal", "--gpu", GPU, "--json"))
        self.assertGreater(told["n_dims_changed"], 0)
        self.assertIn(f"{told['n_dims_changed']} sizes changed, {told['bytes_before']} bytes "
                      f"before, {told['bytes_after']} after", said)
        self.gac("verify", self.work / "model", ours)
        self.gac("verify", self.work / "model", theirs)
        self.assertEqual((ours / "config.json").read_bytes(),
                         (theirs / "config.json").read_bytes())
        again = self.example("plan_repair", self.work / "model", ours, GPU, status=1)
        self.assertIn("plan_repair: ", again.stderr)

    def test_generate(self):
        prompt = "Once upon a time"
        said = self.example("generate", TINY, prompt, 24).stdout
        self.assertGreater(len(said.strip()), 10)
        self.assertEqual(said, self.gac("generate", TINY, prompt, "--max-tokens", 24))

    def test_errors(self):
        for name, arguments in (("inspect", ["/nowhere", GPU]), ("generate", ["/nowhere", "a", 1]),
                                ("plan_repair", ["/nowhere", self.work / "out", GPU])):
            result = self.example(name, *arguments, status=3)
            self.assertRegex(result.stderr, rf"^{name}: .*/nowhere.*\n$")
            self.example(name, status=2)
        self.example("generate", TINY, "a", "none", status=2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True, help="build directory to install from")
    parser.add_argument("--gac", required=True)
    parser.add_argument("cases", nargs="*")
    ARGS = parser.parse_args()
    sys.exit(tally.run(ARGS.cases))
