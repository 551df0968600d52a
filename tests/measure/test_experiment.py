#!/usr/bin/env python3
"""gac experiment against a fake GPU, a fake python3 and a fake profiler.

    test_experiment.py --gac GAC --fake FOLDER [--torch PYTHON] [CASE...]

FOLDER holds the fake plug-in. With --torch (a python3 that has torch) the real
script of the PyTorch stack runs too, on the CPU; without, that is skipped.
"""
import argparse
import importlib
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import shim  # noqa: E402
import tally  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
IDS = ["C21", "C23", "C4", "G3", "G4", "HET1", "P1", "PaLU-dist", "RAP", "S1", "S2", "direct-45"]
VERDICTS = {"reproduced", "stronger", "weaker", "contradicted", "not measured", "unpublished",
            "arithmetic", "ambiguous"}
SMALL = {
    "schema": "gac.experiment-spec/1", "id": "small", "title": "t", "question": "q", "why": "w",
    "effort": "sweep",
    "sweeps": [
        {"name": "a", "over": {"d": [16, 17]},
         "parts": [{"op": "sdpa", "batch": 1, "q_heads": 4, "kv_heads": 2, "n_q": 32,
                    "head": "d"}],
         "variants": [{"name": "auto"},
                      {"name": "efficient", "native": None, "pytorch": "efficient"}]},
        {"name": "g", "over": {"k": [16, 17]},
         "parts": [{"op": "gemm", "m": 32, "n": 32, "k": "k"},
                   {"op": "pad", "rows": 32, "from": "k", "to": "up(k, 8)", "times": 3}],
         "variants": [{"name": "linear"}]}],
    "claims": [
        {"id": "slower", "says": "17 is slower", "of": {"mean": "time.auto", "sweep": "a",
                                                        "where": "d == 17"},
         "over": {"mean": "time.auto", "sweep": "a", "where": "d == 16"}},
        {"id": "served", "says": "efficient serves", "as": "share", "lens": "pytorch",
         "of": {"share": "served.efficient", "sweep": "a"}}],
    "checks": [
        {"id": "same", "says": "same", "sizes": [[17, 24]], "native": ["auto"],
         "pytorch": ["auto", "math"],
         "part": {"op": "sdpa", "batch": 1, "q_heads": 2, "n_q": 32, "head": "d"}}],
    "counters": [{"sweep": "g"}],
}

# Answers as the real script would; MODE makes it misbehave.
FAKE_PYTHON = """#!/usr/bin/env python3
import json, os, sys
mode = os.environ.get("MODE", "")
request = json.load(open(sys.stdin.readline().rstrip()))
if mode == "crash":
    sys.exit("Traceback: it broke")
jobs = []
print("progress 0 2", file=sys.stderr)
for job in request["jobs"]:
    if job.get("path") == "efficient":
        jobs.append({"state": "declined", "reason": "efficient declined: not today"})
        continue
    odd = job.get("qk_head", job.get("k", 0)) % 8 != 0
    kernel = "void flash_fwd_kernel<1>" if odd else "cudnn_generated_fort_native_sdpa_sm90"
    jobs.append({"state": "measured", "samples_us": [30.0, 31.0, 29.0] if odd else [10.0, 10.0],
                 "n_calls": 5, "graph": True, "steady": True, "n_unsettled": 3,
                 "clock_mhz": [1950, 1980], "kernels": [{"name": kernel, "time_us": 9.0}]})
checks = [{"relative": {"wrong": 0.5, "pads": None}.get(mode, 1e-4), "forgotten": 0.1}
          for _ in request["checks"]]
if mode == "uncompared":
    checks = [{"state": "failed", "reason": "no memory"} for _ in checks]
if mode == "short":
    jobs.pop()
if mode == "negative":
    jobs[0]["samples_us"] = [-1.0]
if mode == "nonsense":
    print("hello")
print(json.dumps({"machine": {"gpu": "G", "torch": "9.9", "device": request["device"]},
                  "jobs": jobs, "checks": checks}), flush=True)
"""

FAKE_NCU = """#!/usr/bin/env python3
import os, subprocess, sys
if "--query-metrics" in sys.argv:
    print("lts__t_bytes   bytes\\ngpu__time_duration   time")
    sys.exit(0)
if os.environ.get("MODE") == "forbidden":
    print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission")
    sys.exit(1)
at = next(i for i, a in enumerate(sys.argv) if a == "experiment")
subprocess.run(sys.argv[at - 1:], check=True)
wanted = sys.argv[sys.argv.index("--metrics") + 1].split(",")
print('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"')
for i, name in enumerate(["fill", "nvjet_x"]):
    for metric in wanted:
        print(f'"{i}","{name}","{metric}","","{i + 1},000"')
"""


SLEEPING_PYTHON = """#!/usr/bin/env python3
import os, sys, time
open(sys.stdin.readline().rstrip()).read()
with open(os.environ["SAY_TO"] + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(file.name, os.environ["SAY_TO"])
time.sleep(1200)
"""


def wait_for(condition):
    """True as soon as condition holds, False if it does not within five minutes."""
    end = time.monotonic() + 300
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def runs(pid):
    """Whether there is such a process, and not only what is left of one."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rsplit(")", 1)[1].split()[0] not in "ZX"


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def gac(self, *args, status=0, **env):
        """Runs gac experiment; returns its stdout and stderr."""
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        done = subprocess.run([options.gac, "experiment", *map(str, args)], capture_output=True,
                              text=True, cwd=self.folder, timeout=600,
                              env={**os.environ, "GAC_BACKEND_PATH": options.fake,
                                   "TMPDIR": str(temporary), **env})
        self.assertEqual(done.returncode, status, f"{args}\n{done.stdout}\n{done.stderr}")
        self.assertEqual(list(temporary.iterdir()), [], "temporary files were left")
        return done.stdout, done.stderr

    def json(self, *args, **more):
        return json.loads(self.gac(*args, "--json", "-q", **more)[0])

    def spec(self, changed=None, **replaced):
        path = self.folder / "small.json"
        path.write_text(json.dumps({**SMALL, **(changed or {}), **replaced}))
        return path

    def program(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)


class Native(Case):
    def test_the_example(self):
        """examples/experiment, which docs/extending.md explains."""
        result = self.json("--spec", ROOT / "examples" / "experiment" / "spec.json")
        claim, = result["claims"]
        self.assertEqual(len(result["cases"]), 4)
        self.assertEqual((claim["id"], claim["published"]), ("odd", 2.1))
        self.assertGreater(claim["ours"], 1)

    def test_all_twelve(self):
        out, _ = self.gac("all", "-o", "results/")
        files = sorted(p.name for p in (self.folder / "results").iterdir())
        self.assertEqual(files, sorted([f"{i}.native.json" for i in IDS] + ["report.html"]))
        for id_ in IDS:
            result = json.loads((self.folder / "results" / f"{id_}.native.json").read_text())
            self.assertEqual((result["schema"], result["id"], result["stack"]),
                             ("gac.experiment/1", id_, "native"))
            self.assertEqual(result["device_facts"]["gpu"], "NVIDIA H200 (fake)")
            self.assertTrue(result["checks_hold"])
            self.assertTrue(result["claims"] and result["cases"] and result["calls"])
            for claim in result["claims"]:
                self.assertIn(claim["verdict"], VERDICTS - {"not measured"})
                self.assertTrue(claim["reason"])
                self.assertEqual(claim["verdict"] == "unpublished", claim["published"] is None)
            for call in result["calls"]:
                self.assertIn(call["state"], ("measured", "declined"))
                if call["state"] == "measured":
                    self.assertGreaterEqual(len(call["timing"]["samples_us"]), 5)
                    self.assertTrue(call["kernels"][0]["family"])
            self.assertIn(f"\n{id_}: {result['summary']['verdict']} (", out)

    def test_path_served_and_why(self):
        result = self.json("S1", "--quick")
        by_label = {c["label"]: c["variants"]["auto"] for c in result["cases"]}
        self.assertEqual(by_label["d=112"]["served_by"], "library")
        self.assertNotIn("declined", by_label["d=112"])
        self.assertEqual(by_label["d=107"]["served_by"], "own flash")
        self.assertIn("cuDNN declined heads of 107", by_label["d=107"]["declined"])
        self.assertEqual(by_label["d=107"]["published_ms"], 2.147)
        claim = next(c for c in result["claims"] if c["id"] == "cliff_107_vs_112")
        ratio = by_label["d=107"]["time_us"] / by_label["d=112"]["time_us"]
        self.assertAlmostEqual(claim["ours"], (ratio - 1) * 100, places=4)
        self.assertIn("numerator ran gac-flash in 1 case", claim["reason"])
        self.assertIn("cuDNN declined", claim["reason"])

    def test_parts_add_up(self):
        result = self.json("--spec", self.spec())
        for case in result["cases"]:
            if case["sweep"] != "g":
                continue
            cell = case["variants"]["linear"]
            total = sum(use["times"] * result["calls"][use["call"]]["timing"]["median_us"]
                        for use in cell["calls"])
            self.assertAlmostEqual(cell["time_us"], total, places=6)
            self.assertEqual([u["times"] for u in cell["calls"]], [1, 3])

    def test_forgotten_scale_is_another_function(self):
        result = self.json("P1")
        padded = [c for c in result["checks"] if c["stored"] > c["head"]]
        self.assertTrue(padded)
        for check in padded:
            self.assertLessEqual(check["relative"], check["tolerance"])
            self.assertGreater(check["relative_with_forgotten_scale"], 5 * check["tolerance"])

    def test_sizes_together_are_one_launch(self):
        checks = self.json("HET1", "--quick")["checks"]
        self.assertEqual([c["head"] for c in checks], [114, 116, 117, 118, 121, 122, 124, 125])
        for check in checks:
            self.assertEqual((check["n_sizes_in_launch"], check["stored"]), (8, 128))
            self.assertTrue(check["scale_folded_into_q"])
            self.assertLessEqual(check["relative"], check["tolerance"])
            self.assertGreater(check["relative_with_forgotten_scale"], 5 * check["tolerance"])
        # The last element of every output is changed: of one output, that is.
        out, _ = self.gac("HET1", "--quick", "--json", "-q", status=5, GAC_FAKE="wrong")
        self.assertEqual([c["holds"] for c in json.loads(out)["checks"]], [True] * 7 + [False])

    def test_sizes_together_in_batches_and_groups(self):
        part = {"op": "sdpa", "batch": 2, "q_heads": 4, "kv_heads": 2, "n_q": 8, "n_kv": 24,
                "head": "d"}
        checks = [{**SMALL["checks"][0], "sizes": [[17, 24], [24, 24], [9, 24]], "part": part,
                   "together": True, "native": ["auto", "flash"]}]
        found = self.json("--spec", self.spec(checks=checks))["checks"]
        self.assertEqual([(c["path"], c["head"]) for c in found],
                         [(p, d) for p in ("auto", "flash") for d in (17, 24, 9)])
        for check in found:
            self.assertTrue(check["holds"], check)

    def test_arithmetic_does_not_count(self):
        result = self.json("PaLU-dist")
        self.assertEqual([c["verdict"] for c in result["claims"]],
                         ["arithmetic"] * 4 + ["unpublished"] * 2)
        self.assertEqual(result["summary"]["verdict"], "unpublished")
        self.assertAlmostEqual(result["claims"][2]["ours"], 3.72, places=2)

    def test_wrong_outputs_are_an_exit_status(self):
        for mode in ("wrong", "silent"):
            out, err = self.gac("P1", status=5, GAC_FAKE=mode)
            self.assertIn("DOES NOT HOLD", out)
            self.assertIn("P1, native stack: a check of outputs does not hold", err)

    def test_holes(self):
        result = self.json("S1", GAC_FAKE="out-of-memory")
        states = {c["state"] for c in result["calls"]}
        self.assertEqual(states, {"measured", "failed"})
        missing = [c for c in result["claims"] if c["verdict"] == "not measured"]
        self.assertTrue(missing)
        self.assertIn("out of memory", missing[0]["reason"])
        self.assertTrue(0 < result["summary"]["measured"] < len(result["claims"]))
        _, err = self.gac("S1", "--quick", "-q", status=4, GAC_FAKE="out-of-memory")
        self.assertRegex(err, "^gac: S1, native stack: nothing was measured: .*out of memory.*\n$")

    def test_throttled(self):
        for id_ in ("P1", "C4", "C23", "C21"):
            out, err = self.gac(id_, "--quick", "--json", "-q", status=1, GAC_FAKE="hot")
            self.assertRegex(err, f"^gac: {id_}, native stack: nothing was measured: .*throttled")
            self.assertEqual(len(err.splitlines()), 1)
            result = json.loads(out)
            self.assertEqual(result["summary"]["verdict"], "not measured")
            self.assertEqual(result["summary"]["measured"], 1 if id_ == "C21" else 0)
            self.assertTrue({c["state"] for c in result["calls"]} <= {"throttled", "declined"})
            for call in result["calls"]:
                self.assertEqual(call["state"] == "throttled", "throttled" in call["reason"])
        served = [c for c in result["claims"] if c["id"] == "cudnn_aligned"]
        self.assertEqual((served[0]["verdict"], served[0]["ours"]), ("not measured", None))
        out, _ = self.gac("P1", "--quick", status=1, GAC_FAKE="hot")
        self.assertIn(" throttled ", out)
        self.assertIn("\nP1: not measured (5 not measured, 2 arithmetic)\n", out)

    def test_checks_that_could_not_run(self):
        out, err = self.gac("P1", "--quick", "-q", status=4, GAC_FAKE="out-of-memory")
        self.assertRegex(err, "^gac: P1, native stack: a check of outputs could not run: .*memory")
        self.assertEqual(len(err.splitlines()), 1)
        self.assertIn("not run: ", out)
        self.assertNotIn("DOES NOT HOLD", out)

    def test_noise_is_ambiguous(self):
        out, _ = self.gac("C23", "-o", "c.json", GAC_FAKE="noisy")
        claims = {c["id"]: c for c in json.loads((self.folder / "c.json").read_text())["claims"]}
        self.assertEqual(claims["h1_k8_vs_k16"]["verdict"], "ambiguous")
        self.assertIn("  ambiguous ", out)

    def test_kernels_unknown(self):
        result = self.json("S1", "--quick", GAC_FAKE="blind")
        self.assertTrue(all(c["kernels"] == [] for c in result["calls"]))
        self.assertIn("no case whose kernels are known", result["claims"][0]["reason"])

    def test_no_gpu(self):
        for env in ({"GAC_FAKE": "no-gpu"}, {"GAC_BACKEND_PATH": "/no/such"}):
            out, err = self.gac("S1", status=4, **env)
            self.assertEqual((out, len(err.splitlines())), ("", 1))
        self.gac("S1", "--device", "cuda:7", status=4)
        self.gac("S1", "--device", "gpu", status=2)
        _, err = self.gac("G4", "--quick", "--device", "cpu", status=2)
        self.assertEqual(err, "gac: --device: cpu is no GPU, and only these are measured: "
                              "cuda, cuda:N\n")

    def test_output_file_and_lists(self):
        self.gac("PaLU-dist", "-o", "one.json")
        one = json.loads((self.folder / "one.json").read_text())
        self.assertEqual(one["id"], "PaLU-dist")
        many = self.json("PaLU-dist", "RAP")
        self.assertEqual(many["schema"], "gac.experiments/1")
        self.assertEqual([r["id"] for r in many["results"]], ["PaLU-dist", "RAP"])
        listed = self.json("--list")["experiments"]
        self.assertEqual([e["id"] for e in listed], IDS)


class Quick(Case):
    def test_a_part_is_no_whole(self):
        out, _ = self.gac("direct-45", "--quick", "-o", "quick.json")
        self.assertIn("15 of 45 cases measured; falls ran", out)
        claims = {c["id"]: c for c in json.loads((self.folder / "quick.json").read_text())["claims"]}
        for id_, claim in claims.items():
            self.assertEqual((claim["n_cases"], claim["n_cases_left_out"]), (15, 30))
            # a mean of some is an estimate; least, most and how many are of all
            self.assertEqual(claim["verdict"] == "not measured", id_ != "mean", id_)
        for claim in self.json("direct-45")["claims"]:
            self.assertEqual(claim["n_cases"], 45)
            self.assertNotIn("n_cases_left_out", claim)
            self.assertNotEqual(claim["verdict"], "not measured")

    def test_both_sides(self):
        sweeps = [{**SMALL["sweeps"][1], "over": {"k": [16, 17, 24, 25]}, "quick": "k != 25"}]
        claim = {"id": "c", "says": "s", "of": {"mean": "time", "where": "k % 2 == 1"},
                 "over": {"mean": "time", "where": "k % 2 == 0"}}
        spec = self.spec(sweeps=sweeps, claims=[claim], counters=[])
        claim = self.json("--spec", spec, "--quick")["claims"][0]
        self.assertEqual(claim["n_cases_left_out"], 1)
        self.assertRegex(claim["reason"], "^1 of 2 cases measured over 2 of 2; numerator ran ")


class Judge(Case):
    def test_committed_results(self):
        """What the program says today of what was measured is what is written there."""
        paths = [p for i in IDS for p in sorted((ROOT / "experiments" / "published" / i).glob("h200*.json"))]
        self.assertGreaterEqual(len(paths), 2 * len(IDS))
        for path in paths:
            with self.subTest(path.relative_to(ROOT)):
                # The results on record are older than the word "stack".
                text = path.read_text().replace("under this lens", "under this stack")
                self.assertEqual(self.json("--judge", path), json.loads(text))

    def test_committed_checks(self):
        """They are those of the specification."""
        for id_ in IDS:
            spec = json.loads((ROOT / "experiments" / "published" / id_ / "spec.json").read_text())
            for path in sorted((ROOT / "experiments" / "published" / id_).glob("h200*.json")):
                result = json.loads(path.read_text())
                asked = {(c["id"], way, *size, len(c["sizes"]) if c.get("together") else 1)
                         for c in spec.get("checks", []) for way in c[result["lens"]]
                         for size in c["sizes"]}
                ran = {(c["id"], c["path"], c["head"], c["stored"], c.get("n_sizes_in_launch", 1))
                       for c in result["checks"]}
                self.assertEqual(ran, asked, path)

    def test_anew(self):
        """Verdicts, reasons and summary are replaced, in the form they were written in."""
        self.gac("P1", "-o", "good.json")
        good = (self.folder / "good.json").read_text()
        result = json.loads(good)
        result["summary"] = {}
        for claim in result["claims"]:
            claim.update(verdict="reproduced", reason="")
        (self.folder / "bad.json").write_text(json.dumps(result))
        self.gac("--judge", "bad.json", "-o", "new.json", GAC_BACKEND_PATH="/no/such")
        self.assertEqual((self.folder / "new.json").read_text(), good)
        self.gac("--judge", "bad.json", "-o", "new.json", status=1)
        self.gac("--judge", "bad.json", "P1", status=2)
        self.gac("--judge", "bad.json", "--quick", status=2)

    def test_another_specification(self):
        """Claims and cases are those of the specification as it is now."""
        spec = self.spec(checks=[], counters=[])
        self.gac("--spec", spec, "-o", "good.json")
        good = json.loads((self.folder / "good.json").read_text())
        old = json.loads(json.dumps(good))
        gone = {**old["claims"][0], "id": "gone"}
        old["claims"] = [gone, *old["claims"][1:]]
        old["calls"].reverse()
        for case in old["cases"]:
            case["variants"].pop("auto", None)
        (self.folder / "old.json").write_text(json.dumps(old))
        self.assertEqual(self.json("--judge", "old.json", "--spec", spec), good)

    def test_contradicted_claims_are_counted(self):
        path = ROOT / "experiments" / "published" / "S2" / "h200.pytorch.json"
        out, _ = self.gac("--judge", path)
        counts = json.loads(path.read_text())["summary"]["claims"]
        self.assertGreater(counts["contradicted"], 0)
        self.assertRegex(out, rf"\nS2: contradicted \({counts['contradicted']} contradicted, ")

    def test_the_most_names_its_case(self):
        sweeps = [{**SMALL["sweeps"][1], "over": {"k": [16, 17, 24]}}]
        claims = [{"id": how, "says": "s", "of": {how: "time"}} for how in ("min", "max")]
        spec = self.spec(sweeps=sweeps, claims=claims, counters=[])
        result = self.json("--spec", spec)
        times = {c["label"]: next(iter(c["variants"].values()))["time_us"]
                 for c in result["cases"]}
        for claim, word, pick in zip(result["claims"], ("least", "most"), (min, max)):
            label = pick(times, key=times.get)
            self.assertEqual(claim["reason"].split(";")[0], f"{word} at {label}")

    def test_what_does_not_follow(self):
        result = self.json("P1")

        def refused(wanted):
            (self.folder / "r.json").write_text(json.dumps(result))
            _, err = self.gac("--judge", "r.json", status=3)
            self.assertRegex(err, f"^gac: r.json: {wanted}[^\n]*\n$")
        calls, claims = result["calls"], result["claims"]
        result["claims"] = [{**claims[0], "ours": claims[0]["ours"] * 1.001}, *claims[1:]]
        refused(r"claims\[0\] does not follow")
        cases = result["cases"]
        result["claims"] = claims
        cell = next(iter(cases[0]["variants"].values()))
        result["cases"] = [{**cases[0], "variants": {
            **cases[0]["variants"],
            next(iter(cases[0]["variants"])): {**cell, "time_us": cell["time_us"] * 1.001}}},
            *cases[1:]]
        refused(r"cases\[0\] does not follow")
        result["cases"], result["calls"] = cases, calls[1:]
        refused("has no call \"sdpa ")
        result["calls"] = [{**calls[0], "state": "guessed"}, *calls[1:]]
        refused(r"calls\[0\] makes no sense")
        result["calls"], result["schema"] = calls, "gac.experiments/1"
        refused("is no result of P1")
        result["schema"], result["question"] = "gac.experiment/1", "\x1b[31m"
        refused("has text with control characters")
        result = []
        refused("is no result of an experiment")
        result = {"results": [{}]}
        refused("has several results, which -o FOLDER/ writes")


class Output(Case):
    # The fake GPU that is not there shows that the target is looked at first.
    def refused(self, *args, wanted, status=1):
        before = sorted(self.folder.rglob("*"))
        _, err = self.gac("PaLU-dist", "-q", *args, status=status, GAC_FAKE="no-gpu")
        self.assertIn(wanted, err)
        self.assertEqual(len(err.splitlines()), 1)
        self.assertEqual(sorted(self.folder.rglob("*")), before)

    def test_bad_targets_are_refused_first(self):
        (self.folder / "tmp").mkdir()
        (self.folder / "dir").mkdir()
        (self.folder / "old.json").write_text("{}")
        (self.folder / "dir" / "PaLU-dist.native.json").write_text("{}")
        self.refused("-o", "nonexist/r.json", wanted="nonexist/r.json: No such file")
        self.refused("-o", "nonexist/r/", wanted="nonexist/r/: No such file")
        self.refused("-o", "dir", wanted="dir: is a directory")
        self.refused("-o", "dir", "--force", wanted="dir: is a directory")
        self.refused("-o", "old.json", wanted="old.json: already exists")
        self.refused("-o", "old.json/", wanted="Not a directory")
        self.refused("-o", "dir/", wanted="PaLU-dist.native.json: already exists")
        self.refused("PaLU-dist", "-o", "new/", wanted="PaLU-dist is there twice", status=2)
        # good ones, and nothing left of them
        self.refused("-o", "old.json", "--force", wanted="no GPU", status=4)
        self.refused("-o", "dir/", "--force", wanted="no GPU", status=4)
        self.refused("-o", "new/", wanted="no GPU", status=4)

    def test_force(self):
        for target, name in (("a.json", "a.json"), ("r/", "r/PaLU-dist.native.json")):
            self.gac("PaLU-dist", "-o", target)
            path = self.folder / name
            path.write_text("{}")
            self.gac("PaLU-dist", "-o", target, status=1)
            self.assertEqual(path.read_text(), "{}")
            self.gac("PaLU-dist", "-o", target, "--force")
            self.assertEqual(json.loads(path.read_text())["id"], "PaLU-dist")


class Specs(Case):
    def refused(self, text, *wanted):
        (self.folder / "bad.json").write_text(text)
        out, err = self.gac("--spec", "bad.json", status=3)
        self.assertEqual((out, len(err.splitlines())), ("", 1))
        for part in ("bad.json", *wanted):
            self.assertIn(part, err)

    def test_bad_specifications(self):
        self.refused("{", "bad JSON")
        self.refused(json.dumps({**SMALL, "schema": "x"}), "$.schema")
        self.refused(json.dumps({**SMALL, "id": "../../x"}), "$.id")
        self.refused(json.dumps({**SMALL, "title": "a\x1b[31m"}), "$.title")
        big = {"name": "s", "over": {c: {"from": 1, "to": 400} for c in "ab"},
               "parts": SMALL["sweeps"][0]["parts"], "variants": [{"name": "v"}]}
        self.refused(json.dumps({**SMALL, "sweeps": [big]}), "$.sweeps[0]", "no such name")
        big["parts"] = [{"op": "gemm", "m": "a", "n": "b", "k": 8}]
        self.refused(json.dumps({**SMALL, "sweeps": [big]}), "more than 20000 cases")
        huge = {**big, "over": {"d": [2000000000]}, "parts": [{"op": "gemm", "m": "d", "n": "d",
                                                              "k": "d"}]}
        self.refused(json.dumps({**SMALL, "sweeps": [huge]}), "operands of more than")
        self.refused(json.dumps({**SMALL, "claims": [{"id": "c", "says": "s", "published": "p",
                                                      "of": {"mean": "time"}}]}), "$.claims[0]")

    def test_bad_checks(self):
        check = {**SMALL["checks"][0], "together": True}
        for sizes, native, wanted in (([[17, 24]], ["auto"], "two sizes or more"),
                                      ([[17, 24], [18, 32]], ["auto"], "stored alike"),
                                      ([[17, 24], [18, 24]], ["padded"], "not several together")):
            checks = [{**check, "sizes": sizes, "native": native}]
            self.refused(json.dumps({**SMALL, "checks": checks}), "$.checks[0]", wanted)

    def test_bad_published(self):
        self.spec()
        for text, wanted in (("[]", "$"), ('{"schema":"x","source":"s"}', "$.schema"),
                             ('{"schema":"gac.published/1"}', "$.source")):
            (self.folder / "published.json").write_text(text)
            _, err = self.gac("--spec", "small.json", status=3)
            self.assertIn("published.json: " + wanted, err)

    def test_usage(self):
        self.gac(status=2)
        self.gac("S3", status=2)
        self.gac("S1", "--stack", "jax", status=2)
        self.gac("S1", "--lens", "jax", status=2)
        self.gac("S1", "--spec", self.spec(), status=2)
        self.gac("--list", "S1", status=2)
        self.gac("S1", "--one-case", "gemm linear m=1 n=1 k=1", status=2)
        _, err = self.gac("--spec", "missing.json", status=3)
        self.assertIn("missing.json", err)
        out, _ = self.gac("--help")
        self.assertIn("example: gac experiment", out)


class Pytorch(Case):
    def stack(self, *args, mode="", status=0):
        return self.gac("--spec", self.spec(), "--stack", "pytorch", *args, status=status,
                        MODE=mode, GAC_PYTHON=self.program("python", FAKE_PYTHON))

    def test_result(self):
        result = json.loads(self.stack("--json", "--device", "cuda:3")[0])
        self.assertEqual(result["device_facts"], {"gpu": "G", "torch": "9.9", "device": "cuda:3"})
        auto = {c["label"]: c["variants"]["auto"] for c in result["cases"] if c["sweep"] == "a"}
        self.assertEqual([auto[x]["served_by"] for x in ("d=16", "d=17")], ["cudnn", "flash"])
        self.assertEqual(auto["d=17"]["time_us"], 30)
        claims = {c["id"]: c for c in result["claims"]}
        self.assertEqual(claims["slower"]["ours"], 3)
        self.assertIn("numerator ran fa2", claims["slower"]["reason"])
        self.assertEqual(claims["served"]["ours"], 0)
        self.assertIn("not today", claims["served"]["reason"])
        self.assertFalse(result["counters"]["available"])
        timing = next(c["timing"] for c in result["calls"] if c["state"] == "measured")
        self.assertEqual([timing[x] for x in ("n_unsettled", "clock_mhz_min", "clock_mhz_max")],
                         [3, 1950, 1980])

    def test_few_samples_are_ambiguous(self):
        (self.folder / "published.json").write_text(json.dumps(
            {"schema": "gac.published/1", "source": "s",
             "values": {"p": {"value": 3, "from": "f"}}}))
        spec = self.spec(claims=[{**SMALL["claims"][0], "published": "p"}])
        result = self.json("--spec", spec, "--stack", "pytorch",
                           GAC_PYTHON=self.program("python", FAKE_PYTHON))
        self.assertEqual(result["claims"][0]["ours"], 3)
        self.assertEqual(result["claims"][0]["verdict"], "ambiguous")
        self.assertIn("do not tell them apart", result["claims"][0]["reason"])
        self.assertEqual(result["summary"]["verdict"], "ambiguous")

    def test_misbehaviour(self):
        self.assertIn("not as many results", self.stack(mode="short", status=1)[1])
        self.assertIn("jobs[0] makes no sense", self.stack(mode="negative", status=1)[1])
        self.assertIn("bad JSON", self.stack(mode="nonsense", status=3)[1])
        self.assertIn("it broke", self.stack(mode="crash", status=1)[1])
        self.assertIn("does not hold", self.stack(mode="wrong", status=5)[1])
        self.assertIn("does not hold", self.stack(mode="pads", status=5)[1])
        self.assertIn("could not run: no memory", self.stack(mode="uncompared", status=4)[1])

    def test_interrupted(self):
        """However gac ends, python3 ends too, and nothing is left."""
        sleeper = self.program("sleeper", SLEEPING_PYTHON)
        said, temporary = self.folder / "pid", self.folder / "tmp"
        temporary.mkdir()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with self.subTest(number.name):
                child = subprocess.Popen(
                    [options.gac, "experiment", "--spec", self.spec(), "--stack", "pytorch", "-q"],
                    env={**os.environ, "GAC_PYTHON": sleeper, "TMPDIR": str(temporary),
                         "SAY_TO": str(said)})
                self.assertTrue(wait_for(said.exists))
                python = int(said.read_text())
                self.assertTrue(runs(python))
                child.send_signal(number)
                self.assertEqual(child.wait(60), -number)
                self.assertTrue(wait_for(lambda: not runs(python)))
                self.assertEqual(list(temporary.iterdir()), [])
                said.unlink()

    def test_a_signal_while_the_result_is_written(self):
        with tempfile.TemporaryDirectory() as holder:
            library = shim.build(holder)
            before = sorted(os.listdir(self.folder))
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                with self.subTest(number.name):
                    done = subprocess.run(
                        [options.gac, "experiment", "direct-45", "--quick", "-q", "-o", "r.json"],
                        cwd=self.folder, capture_output=True, text=True,
                        env={**shim.environment(library, call="write", at=1, signal=int(number)),
                             "GAC_BACKEND_PATH": str(options.fake)})
                    self.assertEqual(done.returncode, 1, done.stderr)
                    self.assertIn("interrupted", done.stderr)
                    self.assertEqual(sorted(os.listdir(self.folder)), before)

    def test_a_wrong_output_is_worse_than_a_hole(self):
        checks = [{**SMALL["checks"][0], "native": ["auto", "flash", "math"]}]
        _, err = self.gac("--spec", self.spec(checks=checks), "-q", status=4,
                          GAC_FAKE="out-of-memory")
        self.assertIn("small, native stack: a check of outputs could not run", err)
        _, err = self.gac("--spec", self.spec(checks=checks), "--stack", "both", "-q", status=5,
                          GAC_FAKE="out-of-memory", MODE="wrong",
                          GAC_PYTHON=self.program("python", FAKE_PYTHON))
        self.assertEqual(err, "gac: small, PyTorch stack: a check of outputs does not hold\n")

    def test_no_python_no_torch(self):
        spec = self.spec()
        _, err = self.gac("--spec", spec, "--stack", "pytorch", "-q", status=4,
                          GAC_PYTHON="/no/such/python")
        self.assertEqual(err, "gac: PyTorch: /no/such/python: No such file or directory\n")
        bare = self.program("bare", f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
        out, err = self.gac("--spec", spec, "--stack", "pytorch", "-q", status=4, GAC_PYTHON=bare)
        self.assertEqual((out, len(err.splitlines())), ("", 1))
        self.assertIn("no usable torch", err)

    def test_both_keep_what_was_measured(self):
        out, _ = self.gac("--spec", self.spec(), "--stack", "both", "--json", status=4,
                          GAC_PYTHON="/no/such/python")
        self.assertEqual(json.loads(out)["stack"], "native")

    def test_real_script(self):
        if not options.torch or not os.path.exists(options.torch):
            self.skipTest("no python with torch (--torch)")
        together = {**SMALL["checks"][0], "sizes": [[17, 32], [20, 32], [31, 32]], "together": True,
                    "pytorch": ["math"]}
        spec = self.spec(checks=[*SMALL["checks"], together])
        result = self.json("--spec", spec, "--stack", "pytorch", "--device", "cpu",
                           GAC_PYTHON=options.torch)
        self.assertTrue(result["checks_hold"])
        self.assertEqual([c["n_sizes_in_launch"] for c in result["checks"]], [1, 1, 3, 3, 3])
        for check in result["checks"]:
            self.assertGreater(check["relative_with_forgotten_scale"], check["tolerance"])
        states = {c["call"].split()[1]: c["state"] for c in result["calls"]}
        self.assertEqual((states["auto"], states["efficient"]), ("measured", "declined"))
        _, err = self.gac("--spec", self.spec(), "--lens", "pytorch", "-q", "--device", "cuda:77",
                          status=4, GAC_PYTHON=options.torch)
        self.assertIn("sees no GPU", err)


class Sampling(unittest.TestCase):
    """How the PyTorch stack takes samples, of a card whose clock it is told."""
    RULES = {"warmup_us": 0, "min_samples": 5, "max_samples": 9, "max_noise": 1, "max_time_us": 1e6,
             "settle_us": 300e3}

    def sample(self, clocks, **rules):
        """The answer where samples find these clocks; the last one stays."""
        names = ("torch", "torch.nn", "torch.nn.functional", "torch.nn.attention")
        stubs = {name: unittest.mock.MagicMock() for name in names}
        path = [str(ROOT / "tools"), *sys.path]
        with unittest.mock.patch.dict(sys.modules, stubs), unittest.mock.patch("sys.path", path):
            sys.modules.pop("pytorch_stack", None)
            module = importlib.import_module("pytorch_stack")
            sys.modules.pop("pytorch_stack")
        stack = module.Stack.__new__(module.Stack)
        stack.cuda, stack.top_mhz, stack.rules = True, 1953.0, {**self.RULES, **rules}
        left = list(clocks)

        def take():
            stack.mhz = left.pop(0) if len(left) > 1 else left[0]
            return 2e6 / stack.mhz
        with unittest.mock.patch.object(module.time, "sleep") as slept:
            return stack.sample(take, 2), slept.call_count

    def test_full_clock(self):
        answer, n_rests = self.sample([1950])
        self.assertEqual((len(answer["samples_us"]), answer["n_unsettled"], n_rests), (5, 0, 0))
        self.assertEqual(answer["clock_mhz"], [1950, 1950])

    def test_dip_is_rested_through(self):
        answer, n_rests = self.sample([1950, 1700, 1700, 1953])
        self.assertEqual((answer["n_unsettled"], n_rests), (2, 2))
        self.assertEqual(answer["clock_mhz"], [1950, 1953])
        self.assertLess(max(answer["samples_us"]), 1e6 / 1940)

    def test_clock_that_stays_down_counts_alone(self):
        answer, n_rests = self.sample([1950, 1950, 1700])
        self.assertEqual((n_rests, answer["clock_mhz"]), (12, [1700, 1700]))
        self.assertEqual(answer["n_unsettled"], 12 + 2)  # those at the full clock, too
        self.assertGreater(min(answer["samples_us"]), 1e6 / 1710)

    def test_without_waiting(self):
        answer, n_rests = self.sample([1700], settle_us=0)
        self.assertEqual((answer["n_unsettled"], n_rests, len(answer["samples_us"])), (0, 0, 5))


class Counters(Case):
    def counted(self, **env):
        self.program("ncu", FAKE_NCU)
        return self.json("--spec", self.spec(), "--counters",
                         PATH=f"{self.folder}:{os.environ['PATH']}", **env)["counters"]

    def test_last_launch_counts(self):
        counters = self.counted()
        self.assertTrue(counters["available"], counters)
        self.assertEqual([c["case"] for c in counters["calls"]], ["k=16", "k=17"])
        for call in counters["calls"]:
            self.assertEqual([k["kernel"] for k in call["kernels"]], ["nvjet_x"])
            self.assertEqual(call["kernels"][0]["metrics"],
                             {"gpu__time_duration.sum": 2000, "lts__t_bytes.sum": 2000})
        self.assertIn("dram__bytes_read.sum", counters["unknown_metrics"])

    def test_why_not(self):
        counters = self.counted(MODE="forbidden")
        self.assertFalse(counters["available"])
        self.assertIn("ERR_NVGPUCTRPERM", counters["reason"])
        result = self.json("--spec", self.spec(), "--counters", PATH="/no/such")
        self.assertIn("ncu: No such file", result["counters"]["reason"])
        result = self.json("--spec", self.spec())
        self.assertIn("--counters", result["counters"]["reason"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gac", required=True)
    parser.add_argument("--fake", required=True)
    parser.add_argument("--torch", default=os.environ.get("GAC_TEST_TORCH", ""))
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    options.gac = os.path.abspath(options.gac)
    options.fake = os.path.abspath(options.fake)
    options.torch = options.torch and os.path.abspath(options.torch)
    sys.exit(tally.run(options.cases))
