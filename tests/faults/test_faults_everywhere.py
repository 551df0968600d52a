#!/usr/bin/env python3
"""Every command, with every allocation or system call failing once, or from then on.

    python3 tests/faults/test_faults_everywhere.py --gac build/gac
        [--positions N] [--jobs N] [--out RESULT.json] [--kinds alloc,read] [CASE...]

A run must end in one of two ways: the right result with exit 0; or exit 1 or 4, one
line on stderr that says what failed, nothing under the target's name and nothing
left behind. Commands that make more calls than --positions are sampled evenly. Ends
with a line "N passed, N failed", where each case of a kind counts once.
"""
import argparse
import concurrent.futures
import errno
import hashlib
import json
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests", "repair"), os.path.join(ROOT, "tests", "bad")]
import make_bad_gguf as made  # noqa: E402
import repair_support as support  # noqa: E402
import shim  # noqa: E402
import torch_files  # noqa: E402
from small_models import MODELS  # noqa: E402

KINDS = ("alloc", "read", "write", "open", "stat", "readdir", "mmap", "sync", "rename", "close",
         "unlink", "mkdir", "truncate", "chmod", "thread")
TIMEOUT_S = 60
# What a run prints that differs from run to run: times, dates, speeds.
MASKS = [(re.compile(rb'"time": "[^"]*"'), b'"time": ""'),
         (re.compile(rb'"(arguments)": \[[^]]*\]'), b'"arguments": []')]


class Case:
    """A command, and how to prepare and to judge what it leaves in its folder."""

    def __init__(self, name, *arguments, target=None, setup=None, loose=False,
                 blas=False, fake=False, honest=lambda folder: False):
        self.name = name
        self.arguments = arguments
        self.target = target      # what it writes
        self.setup = setup        # called with the folder and the program
        self.loose = loose        # stdout holds measured times
        self.blas = blas          # allocations may fail inside OpenBLAS
        self.fake = fake          # needs the GPU that is not there
        self.honest = honest      # whether a result that differs says that memory was short


def put_model(folder, name, model, n_files=2):
    rng = support.seeded(1, "faults")
    ck = MODELS[model](rng)
    support.write_folder(os.path.join(folder, name), support.fill(ck, rng), json.dumps(ck.config),
                         n_files, carried={"tokenizer.json": b"{}", "extra/notes.txt": b"x"})


def call(gac, folder, *arguments):
    subprocess.run([gac, *arguments], cwd=folder, check=True, capture_output=True)


def with_svdllm(folder, gac):
    del gac
    put_model(folder, "in", "svdllm")


def with_plan(folder, gac):
    with_svdllm(folder, gac)
    call(gac, folder, "plan", "in", "-o", "plan.json")


def with_repaired(folder, gac):
    with_svdllm(folder, gac)
    call(gac, folder, "repair", "in", "-o", "fit", "-q")


def with_rescaled(folder, gac):
    del gac
    put_model(folder, "in", "llama", 1)


def with_old_target(folder, gac):
    with_repaired(folder, gac)
    os.rename(os.path.join(folder, "fit"), os.path.join(folder, "out"))


def with_tiny(folder, gac):
    del gac
    os.symlink(os.path.join(ROOT, "models", "tiny"), os.path.join(folder, "tiny"))
    with open(os.path.join(folder, "text"), "w", encoding="utf-8") as file:
        file.write("Once upon a time there was a little dog. " * 6)


def with_gguf(folder, gac):
    del gac
    with open(os.path.join(folder, "m.gguf"), "wb") as file:
        file.write(made.llama(made.tokens(), kind=made.TYPE_Q4_0, fill=b"\x35"))


def with_torch(folder, gac):
    """A whole model in a zip file, and a state dict of transposed tensors in a legacy one."""
    del gac
    rng = support.seeded(1, "faults")
    ck = MODELS["svdllm"](rng)
    state = {name: torch_files.tensor(*tensor) for name, tensor in support.fill(ck, rng).items()}
    turned = {name: torch_files.transposed(t) if len(t.shape) == 2 else t
              for name, t in state.items()}
    for name, content in (("zip", torch_files.zip_file(torch_files.as_model(state))),
                          ("legacy", torch_files.legacy_file(turned))):
        os.makedirs(os.path.join(folder, name))
        with open(os.path.join(folder, name, "pytorch_model.bin"), "wb") as file:
            file.write(content)
        with open(os.path.join(folder, name, "config.json"), "w", encoding="utf-8") as file:
            json.dump(ck.config, file)


def with_llama2c(folder, gac):
    """dim 8, hidden 12, one layer, 2 heads, 4 tokens, 16 positions; tokens a to d."""
    del gac
    sizes = (8, 12, 1, 2, 2, 4, 16)
    n = 4 * 8 + 8 + 4 * 64 + 8 + 3 * 96 + 8 + 2 * 16 * 2
    with open(os.path.join(folder, "m.bin"), "wb") as file:
        file.write(struct.pack("<7i", *sizes) + struct.pack(f"<{n}f", *([0.5] * n)))
    with open(os.path.join(folder, "t.bin"), "wb") as file:
        file.write(struct.pack("<i", 1) + b"".join(
            struct.pack("<fi", -i, 1) + bytes([97 + i]) for i in range(4)))


def with_small(folder, gac):
    """That model as a directory, and a text of its tokens."""
    with_llama2c(folder, gac)
    call(gac, folder, "convert", "m.bin", "-o", "small", "--tokenizer", "t.bin", "-q")
    with open(os.path.join(folder, "text"), "w", encoding="utf-8") as file:
        file.write("abcddcba" * 12)


def tells_of_memory(folder):
    """A probe leaves out shapes for which there is no memory, and counts them."""
    with open(os.path.join(folder, "out.json"), encoding="utf-8") as file:
        return re.search(r'"n_no_memory": [1-9]', file.read()) is not None


def names_failed_calls(folder):
    """A call without memory is a hole in the result, with its reason."""
    with open(os.path.join(folder, "out.json"), encoding="utf-8") as file:
        return "out of memory" in file.read()


RESULTS = os.path.join(ROOT, "tests", "data", "results")
SMALL = os.path.join(ROOT, "tests", "data", "contracts", "small.json")
CASES = [
    Case("help", "--help"),
    Case("dim", "dim", "107", "--json"),
    Case("contract-list", "contract", "list"),
    Case("contract-show", "contract", "show", "a100"),
    Case("contract-diff", "contract", "diff", "a100", SMALL),
    Case("inspect", "inspect", "in", "--contract", SMALL, setup=with_svdllm),
    Case("inspect-json", "inspect", "in", "--json", setup=with_svdllm),
    Case("inspect-md", "inspect", "in", "--format", "md", "--contract", SMALL, setup=with_svdllm),
    Case("contract-csv", "contract", "show", "a100", "--format", "csv"),
    Case("front", "plan", "in", "--pareto", "--contract", SMALL, setup=with_svdllm),
    Case("plan", "plan", "in", "-o", "out.json", "--contract", SMALL, setup=with_svdllm,
         target="out.json"),
    Case("plan-solve", "plan", "in", "--strategy", "solve", "--json", "--contract", SMALL,
         setup=with_svdllm),
    Case("repair", "repair", "in", "-o", "out", setup=with_svdllm, target="out"),
    Case("repair-json", "repair", "in", "-o", "out", "--json", setup=with_svdllm, target="out"),
    Case("repair-plan", "repair", "in", "-o", "out", "--plan", "plan.json", "--max-shard-size",
         "20000", setup=with_plan, target="out"),
    Case("repair-force", "repair", "in", "-o", "out", "--force", "--set",
         "layers.*.self_attn.q_proj.rank=64", setup=with_old_target, target="out"),
    Case("repair-rescaled", "repair", "in", "-o", "out", "--allow", "rescaled", "--set",
         "hidden=160", setup=with_rescaled, target="out"),
    Case("undo", "repair", "fit", "-o", "out", "--undo", setup=with_repaired, target="out"),
    Case("verify", "verify", "in", "fit", "--json", setup=with_repaired),
    Case("verify-forward", "verify", "in", "fit", "--forward", "--n-tokens", "3",
         setup=with_repaired),
    Case("convert", "convert", "m.gguf", "-o", "out", setup=with_gguf, target="out"),
    Case("inspect-torch", "inspect", "zip", "--json", setup=with_torch),
    Case("repair-torch", "repair", "legacy", "-o", "out", setup=with_torch, target="out"),
    Case("convert-torch", "convert", "legacy", "-o", "out", setup=with_torch, target="out"),
    Case("convert-llama2c", "convert", "m.bin", "-o", "out", "--tokenizer", "t.bin",
         setup=with_llama2c, target="out"),
    Case("compress", "compress", "small", "-o", "out", "--ratio", "0.3", "--align", "none", "--text",
         "text", "--calib-tokens", "32", "--threads", "2", setup=with_small, target="out", blas=True),
    Case("compress-json", "compress", "small", "-o", "out", "--ratio", "0.3", "--align", "round:2",
         "--text", "text", "--calib-tokens", "32", "--threads", "2", "--json", setup=with_small,
         target="out", blas=True),
    Case("eval", "eval", "tiny", "--perplexity", "text", "--device", "reference", "--json",
         setup=with_tiny, loose=True),
    Case("eval-cpu", "eval", "tiny", "--perplexity", "text", "--device", "cpu", "--threads", "2",
         "--json", setup=with_tiny, loose=True, blas=True),
    Case("generate", "generate", "tiny", "Once upon", "--max-tokens", "8", "--device", "reference",
         setup=with_tiny, loose=True),
    Case("probe", "probe", "-o", "out.json", "--quick", "--attention", "own", "--dtype", "F16",
         target="out.json", loose=True, fake=True, honest=tells_of_memory),
    Case("report", "report", os.path.join(RESULTS, "front.json"),
         os.path.join(RESULTS, "inspect.json"), "-o", "out.html", target="out.html"),
    Case("inspect-html", "inspect", "in", "--html", "out.html", "--json", setup=with_svdllm,
         target="out.html"),
    Case("experiment", "experiment", "S1", "--quick", "-o", "out.json", target="out.json",
         loose=True, fake=True, honest=names_failed_calls),
]


def tree(folder, loose=False):
    """What is below folder: {path: content digest and mode}."""
    found = {}
    for base, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(base, name)
            key = os.path.relpath(path, folder)
            mode = os.lstat(path).st_mode
            if os.path.islink(path):
                found[key] = os.readlink(path)
            elif name in folders:
                found[key] = oct(mode)
            else:
                with open(path, "rb") as file:
                    data = file.read()
                for mask, instead in MASKS if name.endswith(".json") else ():
                    data = mask.sub(instead, data)
                if loose and name.startswith("out"):
                    data = re.sub(rb"[0-9.e+-]+", b"#", data)
                    data = re.sub(rb"\s+", b" ", data)  # where lines end depends on the digits
                found[key] = oct(mode) + hashlib.sha1(data).hexdigest()
    return found


def plain(case, output):
    for mask, instead in MASKS:
        output = mask.sub(instead, output)
    # Measured figures: only that the same keys and lines are there.
    return re.sub(rb"[0-9.e+-]+", b"#", output) if case.loose else output


class Harness:
    def __init__(self, options, case):
        self.options = options
        self.case = case
        self.holder = tempfile.TemporaryDirectory(prefix="gac-everywhere-",
                                                  dir=support.scratch_folder())
        self.pristine = os.path.join(self.holder.name, "pristine")
        os.mkdir(self.pristine)
        if case.setup:
            case.setup(self.pristine, options.gac)
        self.before = tree(self.pristine)
        self.folders = []
        self.n_inside = 0  # runs that ended inside OpenBLAS
        folder = self.new_folder()
        result = self.run(folder, "none", 0, False)
        if result.returncode != 0:
            raise SystemExit(f"{case.name}: fails by itself: {result.stderr.decode()}")
        self.expected = plain(case, result.stdout)
        self.after = tree(folder, case.loose)
        self.clean(folder)

    def new_folder(self):
        """A folder like the pristine one; reused, since commands leave their input alone."""
        if self.folders:
            return self.folders.pop()
        folder = tempfile.mkdtemp(dir=self.holder.name)
        shutil.copytree(self.pristine, folder, symlinks=True, dirs_exist_ok=True)
        return folder

    def clean(self, folder):
        """Puts a folder back to what it was, and keeps it for another run."""
        if self.case.name == "repair-force":
            shutil.rmtree(folder)
            return
        for name in os.listdir(folder):
            if name not in self.before:
                path = os.path.join(folder, name)
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        self.folders.append(folder)

    def run(self, folder, kind, at, on, count=None):
        settings = {"count": count} if count else {}
        env = shim.environment(self.options.shim, call=kind, at=at, on=int(on), errno=errno.EIO,
                               **settings)
        env["GAC_BACKEND_PATH"] = self.options.fake
        env["PATH"] = self.holder.name  # no gnuplot, which would fail too
        return subprocess.run([self.options.gac, *self.case.arguments], cwd=folder, env=env,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S,
                              check=False)

    def count(self, kind):
        folder = self.new_folder()
        path = os.path.join(self.holder.name, "count")
        self.run(folder, kind, 0, False, path)
        self.clean(folder)
        with open(path, encoding="ascii") as file:
            return int(file.read())

    def attempt(self, kind, at, on, again=False):
        """What is wrong with a run, or None. What is measured may differ once: on a busy machine a
        probe leaves shapes out."""
        folder = self.new_folder()
        try:
            result = self.run(folder, kind, at, on)
        except subprocess.TimeoutExpired:
            return "hangs"
        wrong = self.judge(result, folder, kind, on)
        self.clean(folder)
        if wrong and self.case.loose and not again:
            return self.attempt(kind, at, on, again=True)
        return wrong

    def judge(self, result, folder, kind, on):
        found = tree(folder, self.case.loose)
        said = result.stderr.decode(errors="replace")
        if self.case.blas and kind == "alloc" and result.returncode not in (0, 4):
            # The runtime library that OpenBLAS needs ends the process itself, or crashes.
            self.n_inside += 1
            return None if found == self.before else "left files behind"
        if result.returncode < 0:
            return f"killed by signal {-result.returncode}: {said[-300:]}"
        if result.returncode == 0:
            if kind == "alloc" and self.case.honest(folder):
                return None
            if plain(self.case, result.stdout) != self.expected:
                return "exit 0 with another result"
            if kind == "unlink" and on:  # the hidden file of trying out the target
                found = {k: v for k, v in found.items() if not k.startswith(".out")}
            if found == self.after:
                return None
            return "exit 0 with other files"
        if not support.one_line(said):
            return f"exit {result.returncode} with {said[-300:]!r}"
        if result.returncode not in (1, 4):
            return f"exit {result.returncode}: {said[-300:]}"
        # When no file can be removed and no folder opened any more, what was being written stays
        # under its hidden name or in the work folder, until the next run removes it.
        if kind in ("unlink", "open") and on:
            hidden = {k for k in found if k.startswith((".out", "out.work"))}
            found = {k: v for k, v in found.items() if k not in hidden}
            if hidden and found == self.after and "could not be removed" in said:
                return None
        # What fails after the work, as printing the result, must not leave that in doubt.
        # Nor must a page that cannot be written.
        done = {k: v for k, v in self.after.items() if k != "out/report.html"}
        if "is complete" in said and found in (self.after, done):
            return None
        if found != self.before:
            left = sorted(set(found) ^ set(self.before))
            return f"exit {result.returncode} ({said.strip()}), and left behind: {left[:3]}"
        return None


def positions(n_calls, wanted):
    """Evenly spread, and all of the last hundred (or as many as wanted): results are printed there."""
    if n_calls <= wanted:
        return list(range(1, n_calls + 1))
    last = range(n_calls - min(100, wanted) + 1, n_calls + 1)
    return sorted({1 + i * n_calls // wanted for i in range(wanted)} | set(last))


def run_case(options, case, kinds, pool):
    harness = Harness(options, case)
    rows = []
    for kind in kinds:
        n_calls = harness.count(kind)
        chosen = positions(n_calls, options.positions)
        jobs = [(at, on) for on in (False, True) for at in chosen]
        wrong = []
        for (at, on), result in zip(jobs, pool.map(lambda j, k=kind: harness.attempt(k, *j), jobs)):
            if result:
                wrong.append({"at": at, "on": on, "what": result})
        rows.append({"case": case.name, "call": kind, "calls": n_calls, "runs": len(jobs),
                     "wrong": wrong[:20], "n_wrong": len(wrong), "n_inside_blas": harness.n_inside})
        harness.n_inside = 0
        if jobs:
            print(f"{'ok' if not wrong else 'WRONG':6}{case.name:18}{kind:9}{n_calls:7} calls"
                  f"{len(jobs):7} runs{len(wrong):6} wrong", flush=True)
        for entry in wrong[:5]:
            print(f"      at {entry['at']}{' and on' if entry['on'] else ''}: {entry['what']}",
                  flush=True)
    harness.holder.cleanup()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gac", required=True, type=os.path.abspath)
    parser.add_argument("--positions", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--out")
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        options.shim = shim.build(folder, "-DFAULT_ALLOC")
        options.fake = os.path.join(folder, "libgac_cuda.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-D_GNU_SOURCE",
                        "-I" + os.path.join(ROOT, "include"), "-I" + os.path.join(ROOT, "src"),
                        os.path.join(ROOT, "tests", "support", "fake_backend.c"),
                        os.path.join(ROOT, "tests", "support", "fake_model.c"),
                        os.path.join(os.path.dirname(options.gac), "libgac.a"), "-o", options.fake,
                        "-ljansson", "-lpcre2-8", "-lxxhash", "-lunistring", "-lm"], check=True)
        cases = [c for c in CASES if not options.cases or c.name in options.cases]
        rows = []
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for case in cases:
                rows += run_case(options, case, options.kinds.split(","), pool)
    if options.out:
        result = {"schema": "gac.faults/1", "command": " ".join(sys.argv), "seconds":
                  round(time.time() - began), "machine": platform.platform(), "rows": rows}
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    failed = sum(bool(r["wrong"]) for r in rows)
    print(f"{sum(r['runs'] for r in rows)} runs in {time.time() - began:.0f} s")
    print(f"{len(rows) - failed} passed, {failed} failed")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
