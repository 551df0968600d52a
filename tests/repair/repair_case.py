"""What the tests of plan, repair and verify stand on."""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

import repair_support as support
import tally
from small_models import MODELS

OPTIONS = argparse.Namespace()
SEED = 20261
N_ROUNDS = 3
STRATEGIES = ("minimal", "multiple-16", "predefined", "tradeoff", "solve")
DTYPES = (None, "F32", "F64", "F16", "BF16", "F8_E4M3", "I8")
# Keys that a repair may change; everything else stays, in its order.
SIZE_KEYS = {"intermediate_size", "ffn_dim", "n_inner", "per_layer_config", "block_configs",
             "head_wise_ranks", "truncation_ranks", "moe_intermediate_size", "gate_ranks",
             "v_ranks", "o_ranks", "v_head_dim", "ffn_hidden_size", "intermediate_size_mlp",
             "shared_intermediate_size"}
RESCALED_KEYS = {"hidden_size", "head_dim", "rms_norm_eps", "rope_scaling", "rope_theta",
                 "rope_parameters", "q_ranks", "k_ranks"}
UNKNOWN = {"zz_unknown": {"b": [1, 2.5, None, True, "ä\n\u2028"], "a": 1e-300}, "_x": 2 ** 53 + 1,
           "null_key": None, "big": 123456789012345678}

REFERENCE = """
import glob, json, sys
from safetensors import safe_open
for line in sys.stdin:
    shapes = {}
    for path in sorted(glob.glob(glob.escape(line.rstrip("\\n")) + "/*.safetensors")):
        with safe_open(path, "np") as file:
            for name in file.keys():
                shapes[name] = file.get_slice(name).get_shape()
    print(json.dumps(shapes), flush=True)
"""


class Reference:
    """The reference package in a process of its own: a folder in, shapes out."""

    def __init__(self, python):
        self.child = subprocess.Popen([python, "-c", REFERENCE], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True)

    def shapes(self, folder):
        self.child.stdin.write(folder + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line:
            raise AssertionError(f"the reference package could not open {folder}")
        return {name: tuple(shape) for name, shape in json.loads(line).items()}

    def close(self):
        self.child.stdin.close()
        self.child.wait()
        self.child.stdout.close()


class RepairCase(unittest.TestCase):
    maxDiff = 2000

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="gac-repair-", dir=support.scratch_folder())
        self.addCleanup(holder.cleanup)
        self.folder = holder.name
        self.gac = OPTIONS.gac
        self.rng = support.seeded(SEED, self.id())

    def path(self, name):
        return os.path.join(self.folder, name)

    def fresh(self):
        """Empties the folder, for the next of several parts."""
        shutil.rmtree(self.folder)
        os.mkdir(self.folder)

    def make(self, model, folder="in", dtype=None, n_files=1, rng=None, **options):
        """A model on disk: its path and tensors."""
        rng = rng or self.rng
        ck = MODELS[model](rng)
        items = list(ck.config.items())
        for item in UNKNOWN.items():
            items.insert(rng.randint(0, len(items)), item)
        config = json.dumps(dict(items), indent=rng.choice((None, 1, 3)),
                            ensure_ascii=rng.random() < 0.5) + rng.choice(("", "\n", " \n"))
        tensors = support.fill(ck, rng, dtype)
        path = self.path(folder)
        support.write_folder(path, tensors, config, n_files, {"made by": "a \"test\""}, **options)
        return path, tensors

    def write_plan(self, dims, name="plan.json", **changes):
        """dims: {name: (from, to)} or a list of entries."""
        if isinstance(dims, dict):
            dims = [{"name": n, "from": a, "to": b} for n, (a, b) in dims.items()]
        with open(self.path(name), "w", encoding="utf-8") as file:
            json.dump({"schema": "gac.plan/1", "dims": dims, **changes}, file)
        return self.path(name)

    def ok(self, *args):
        result = self.gac(*args)
        self.assertEqual(result.returncode, 0, f"gac {args}: {result.stderr[-3000:]}")
        return result

    def refused(self, code, *args, says=None):
        """gac must answer with code, one line, and leave no result."""
        result = self.gac(*args, "-q")
        self.assertEqual(result.returncode, code, f"gac {args}: {result.stdout} {result.stderr}")
        self.assertTrue(support.one_line(result.stderr), result.stderr)
        for word in [says] if isinstance(says, str) else says or []:
            self.assertIn(word, result.stderr)
        return result.stderr

    def nothing_left(self, allowed):
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(allowed))


def main(doc):
    """Takes the options of a test program and runs its cases."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--gac", required=True)
    parser.add_argument("--python", help="an interpreter that has the safetensors package")
    parser.add_argument("cases", nargs="*")
    args = parser.parse_args()
    OPTIONS.gac = support.Gac(os.path.abspath(args.gac))
    OPTIONS.reference = Reference(args.python) if args.python else None
    status = tally.run(args.cases)
    if OPTIONS.reference:
        OPTIONS.reference.close()
    return status
