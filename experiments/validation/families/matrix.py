#!/usr/bin/env python3
"""Does gac repair every text-generation architecture of transformers, or refuse it with a reason?

    matrix.py GAC OUT.json [--only NAME,NAME] [--variation NAME] [--keep DIR]

For each architecture, transformers makes tiny random models with odd sizes: one size at a time, and
all together (architectures.py). gac inspects, plans and repairs each with every strategy, with and
without rescaled sizes, and verifies the result. transformers loads it, and its logits are compared
with those of the original in float32. An architecture fails if

- gac ends with exit 0 and the result does not load without missing, unexpected or mismatched tensors;
- logits differ by more than 1e-5;
- an odd size is neither repaired, nor refused with a reason, nor is the model "not judged";
- repair says of a result that loads that transformers does not load it (loads_in);
- inspect, plan and repair contradict each other; verify or undo does not hold; something crashes.

Exit 1 if an architecture fails. supported.py turns the result into docs/supported.md.
"""
import argparse
import hashlib
import json
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from transformers.models.auto.modeling_auto import (  # noqa: E402
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import architectures  # noqa: E402

WITHIN = 1e-5
STRATEGIES = ("minimal", "multiple-16", "predefined", "tradeoff", "solve")
# These promise a multiple of something for every size. The other two may decide against it.
PROMISING = ("minimal", "multiple-16", "predefined")
# Experts one by one: the default of transformers refuses odd widths, so that it cannot be compared.
HOW = {"attn_implementation": "eager", "experts_implementation": "eager"}
ROLES = {"mlp": ("mlp_width", "expert_width"), "expert": ("expert_width", "mlp_width"),
         "head": ("qk_head", "v_head"), "hidden": ("hidden",), "vocab": ("vocab",)}


class Failed(Exception):
    """What gac did is wrong."""


def run_gac(gac, *args):
    """Returns (exit status, JSON or None, last line of stderr)."""
    done = subprocess.run([gac, *args, "--json", "-q"], capture_output=True, text=True, timeout=120)
    if done.returncode not in (0, 2, 3, 5) or "Sanitizer" in done.stderr:
        raise Failed(f"{args[0]}: exit {done.returncode}: {done.stderr.strip()[-200:]}")
    lines = done.stderr.strip().splitlines()
    if done.returncode and not lines and args[0] != "verify":
        raise Failed(f"{args[0]}: exit {done.returncode} without a reason")
    return (done.returncode, json.loads(done.stdout) if done.stdout.strip() else None,
            lines[-1] if lines else "")


def without_paths(line, *folders):
    """A message without temporary names and without the name of the program."""
    for folder in folders:
        line = line.replace(folder + "/", "").replace(folder, "MODEL")
    return line.removeprefix("gac: ").removeprefix("error: ")


def randomise(model, seed):
    """Norms start at 1 and biases at 0, which would hide errors."""
    random = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            one_axis = sum(n > 1 for n in tensor.shape) < 2
            with torch.no_grad():
                tensor.copy_(torch.randn(tensor.shape, generator=random) * (0.2 if one_axis else 0.15)
                             + (0.5 if one_axis and not name.endswith("bias") else 0))


def load(folder, remote):
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, trust_remote_code=remote, output_loading_info=True,
        ignore_mismatched_sizes=True, **HOW)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(what):
            raise Failed(f"{len(info[what])} {what.replace('_', ' ')}: {sorted(map(str, info[what]))[0]}")
    return model.eval()


def logits_of(model, n_tokens=17):
    vocab = min(model.config.get_text_config().vocab_size, architectures.EVEN["vocab"])
    tokens = torch.randint(3, vocab, (2, n_tokens), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return model(tokens, use_cache=False).logits.double()


def checksum(folder):
    sums = hashlib.sha256()
    for path, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            with open(os.path.join(path, name), "rb") as file:
                sums.update(name.encode() + file.read())
    return sums.hexdigest()


class Case:
    """One model, and what gac makes of it."""

    def __init__(self, gac, name, variation, work):
        self.gac, self.name, self.variation, self.work = gac, name, variation, work
        self.source = os.path.join(work, "source")
        config, self.odd = architectures.make(name, variation)
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config, **HOW).float().eval()
        randomise(model, 1)
        self.model_class = type(model).__name__
        self.n_params = sum(p.numel() for p in model.parameters())
        model.save_pretrained(self.source)
        with open(os.path.join(self.source, "config.json"), encoding="utf-8") as file:
            self.remote = "auto_map" in json.load(file)
        self.logits = logits_of(load(self.source, False))
        if not torch.isfinite(self.logits).all():
            raise RuntimeError("logits of the original are not finite")
        self.loaded = {}  # checksum of a result: relative error
        self.undone = False
        self.dims = {}
        self.understood = None
        self.advice = ""

    def inspect(self):
        """Reads the dimensions. Returns the reason if gac refuses the model as a whole."""
        rc, found, line = run_gac(self.gac, "inspect", self.source)
        if rc:
            return without_paths(line, self.source)
        self.understood = found["checkpoint"].get("understood_pct")
        self.advice = found["summary"]["advice"]
        self.family = found["checkpoint"]["family"]
        self.dims = {d["name"]: d for d in found["dims"]}
        for dim in self.dims.values():
            if dim["exactness"] == "refused" and not dim["reason"]:
                raise Failed(f"inspect: {dim['name']} is refused without a reason")
        return None

    def odd_dims(self, kind):
        return [d for d in self.dims.values()
                if d["size"] == self.odd[kind] and d["role"] in ROLES[kind]]

    def check_loads(self, out):
        """Loads a repaired directory and compares logits."""
        key = checksum(out)
        if key not in self.loaded:
            rc, verdict, line = run_gac(self.gac, "verify", self.source, out)
            if rc or not verdict["ok"]:
                raise Failed(f"verify: {line or verdict}"[:200])
            with open(os.path.join(out, "config.json"), encoding="utf-8") as file:
                remote = "auto_map" in json.load(file)
            try:
                after = logits_of(load(out, remote))
            except Exception as error:
                raise Failed(f"does not load: {' '.join(str(error).split())[:200]}") from error
            error = ((after - self.logits).norm() / self.logits.norm()).item()
            if not error <= WITHIN:  # also if it is not a number
                raise Failed(f"logits differ by {error:.1e}")
            self.loaded[key] = error
            self.check_undo(out)
        return self.loaded[key]

    def check_undo(self, out):
        """Once per model is enough: undo proves its own result."""
        if self.undone:
            return
        back = os.path.join(self.work, "back")
        rc, _, line = run_gac(self.gac, "repair", out, "--undo", "-o", back, "--no-sync")
        if rc:
            raise Failed(f"undo: {line}")
        shutil.rmtree(back)
        self.undone = True

    def check_dims(self, changed, strategy, rescaled):
        """Does repair do what inspect says?"""
        for name, (size, _) in changed.items():
            kind = self.dims[name]["exactness"]
            if kind == "refused" or (kind == "rescaled" and not rescaled):
                raise Failed(f"repair: {name} changed, though inspect calls it {kind}")
            if self.dims[name]["size"] != size:
                raise Failed(f"repair: {name} had size {size}, not {self.dims[name]['size']}")
        if strategy not in PROMISING:
            return
        for kind in self.odd:
            for dim in self.odd_dims(kind):
                can = dim["exactness"] == "exact" or (rescaled and dim["exactness"] == "rescaled")
                if can and dim["size"] % 8 and dim["name"] not in changed:
                    raise Failed(f"repair: {dim['name']} can grow and did not")

    def repair(self, strategy, rescaled):
        """Returns (outcome, dims by role or reason, relative error)."""
        options = ["--strategy", strategy] + (["--allow", "rescaled"] if rescaled else [])
        out = os.path.join(self.work, "out")
        rc_plan, plan, line_plan = run_gac(self.gac, "plan", self.source, *options)
        rc, done, line = run_gac(self.gac, "repair", self.source, "-o", out, "--no-sync", *options)
        try:
            if (rc == 0) != (rc_plan == 0):
                raise Failed(f"plan: exit {rc_plan}, repair: exit {rc}: {line or line_plan}")
            if rc:
                return "refused", without_paths(line, self.source, out), None
            changed = {d["name"]: (d["from"], d["to"]) for d in done["dims"] if d["from"] != d["to"]}
            planned = {d["name"]: (d["from"], d["to"]) for d in plan["dims"] if d["from"] != d["to"]}
            if planned != changed:
                raise Failed("plan and repair differ")
            self.check_dims(changed, strategy, rescaled)
            if not changed:
                if os.path.exists(out):
                    raise Failed("repair: wrote a model that needs nothing")
                return "nothing", {}, None
            error = self.check_loads(out)
            if not any(r["runtime"] == "transformers" and r["loads"] for r in done["loads_in"]):
                raise Failed("repair: says that transformers does not load what it loads")
            sizes = {}
            for name, (size, to) in changed.items():
                sizes.setdefault(self.dims[name]["role"], set()).add(f"{size} to {to}")
            return "repaired", {role: ", ".join(sorted(s)) for role, s in sizes.items()}, error
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def check_seen(self):
        """Every odd size is a dimension, or the verdict says that it is not judged."""
        for kind, size in self.odd.items():
            if not self.odd_dims(kind) and not self.advice.startswith("not judged"):
                raise Failed(f"inspect: {kind} size {size} is in no dimension, and the advice is "
                             f"\"{self.advice}\"")


def verdicts_of(case, outcomes):
    """What happened to each odd size: exact, rescaled, or refused with a reason."""
    verdicts = {}
    for kind in case.odd:
        dims = case.odd_dims(kind)
        refused = sorted({d["reason"] for d in dims if d["exactness"] == "refused"})
        names = {d["exactness"] for d in dims}
        if not dims:
            verdicts[kind] = {"verdict": "not judged"}
        elif refused:
            verdicts[kind] = {"verdict": "refused", "reason": refused[0]}
        else:
            verdicts[kind] = {"verdict": "rescaled" if "rescaled" in names else "exact"}
    return verdicts


def run_case(gac, name, variation, work):
    """Returns a row of the result."""
    try:
        made = architectures.make(name, variation)
        case = Case(gac, name, variation, work) if made else None
    except Exception as error:  # transformers has no such model; gac is not at fault
        return {"variation": variation, "not_made": " ".join(str(error).split())[:160]}
    if not case:
        return None
    row = {"variation": variation, "odd": case.odd, "class": case.model_class,
           "n_params": case.n_params}
    try:
        reason = case.inspect()
        if reason:
            row.update(outcome="refused", reason=reason)
            for rescaled in (False, True):
                outcome, why, _ = case.repair("minimal", rescaled)
                if outcome != "refused":
                    raise Failed(f"inspect refuses the model, repair does not: {why}")
            return row
        row.update(family=case.family, understood_pct=case.understood)
        repairs = {}
        for rescaled in (False, True):
            for strategy in STRATEGIES:
                outcome, what, error = case.repair(strategy, rescaled)
                key = json.dumps([outcome, what])
                entry = repairs.setdefault(key, {"outcome": outcome, "what": what, "options": []})
                entry["options"].append(strategy + (" rescaled" if rescaled else ""))
                if error is not None:
                    # to one digit: sums may run in another order on another processor
                    entry["error"] = f"{error:.0e}" if error else "0"
        row["repairs"] = list(repairs.values())
        case.check_seen()
        row["sizes"] = verdicts_of(case, repairs)
        kinds = {r["outcome"] for r in row["repairs"]}
        row["outcome"] = "repaired" if "repaired" in kinds else (
            "refused" if "refused" in kinds or
            any(v["verdict"] == "refused" for v in row["sizes"].values()) else "nothing")
    except (Failed, subprocess.TimeoutExpired) as error:
        row.update(outcome="FAILED", reason=without_paths(str(error), case.source, work))
    return row


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("gac")
    parser.add_argument("out")
    parser.add_argument("--only")
    parser.add_argument("--variation", choices=architectures.VARIATIONS)
    parser.add_argument("--keep", help="a folder for the models of failed cases")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    names = args.only.split(",") if args.only else architectures.NAMES
    rows, start = [], time.monotonic()
    for name in names:
        if name not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            print(f"{name}: not in this transformers", flush=True)
            continue
        cases = []
        for variation in [args.variation] if args.variation else architectures.VARIATIONS:
            with tempfile.TemporaryDirectory() as work:
                row = run_case(args.gac, name, variation, work)
                if row:
                    cases.append(row)
                if args.keep and row and row.get("outcome") == "FAILED":
                    shutil.copytree(os.path.join(work, "source"),
                                    os.path.join(args.keep, f"{name}-{variation}"), dirs_exist_ok=True)
        rows.append({"architecture": name, "cases": cases})
        print(f"{name}: " + ", ".join(f"{c['variation']} {c.get('outcome', 'not made')}"
                                      for c in cases), flush=True)
        for case in cases:
            if case.get("outcome") == "FAILED":
                print(f"    {case['variation']}: {case['reason']}", flush=True)
    failed = sum(any(c.get("outcome") == "FAILED" for c in r["cases"]) for r in rows)
    result = {"schema": "gac.experiment/1", "id": "families",
              "command": "matrix.py " + " ".join(os.path.relpath(a) if os.path.exists(a) else a
                                                 for a in sys.argv[1:]),
              "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
              "seconds": round(time.monotonic() - start),
              "machine": {"system": platform.platform(), "torch": torch.__version__,
                          "transformers": transformers.__version__, "device": "cpu"},
              "n_architectures": len(rows), "n_failed": failed, "rows": rows}
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1, allow_nan=False)
        file.write("\n")
    print(f"{len(rows)} architectures, {failed} fail, {result['seconds']} s", flush=True)
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
