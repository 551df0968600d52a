#!/usr/bin/env python3
"""Quantised checkpoints: recognised, counted, judged by groups and kernels, never changed.

    python3 tests/families/test_quantised.py --gac build/gac

The tensors have the names, shapes and dtypes that GPTQ, AWQ, bitsandbytes, llm-compressor and
modelopt write. There must be no all-clear while sizes are odd or weights are not understood.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tools"), os.path.join(ROOT, "tests", "support")]
import make_checkpoint as mk  # noqa: E402
import tally  # noqa: E402

GAC = None  # set by main
mk.DTYPE_BYTES.update(F8_E4M3=1)


def ceil(n, by):
    return -(-n // by)


def gptq(ck, module, out, inn, group):
    ck.add(module + ".qweight", inn // 8, out, dtype="I32")
    ck.add(module + ".qzeros", ceil(inn, group), out // 8, dtype="I32")
    ck.add(module + ".scales", ceil(inn, group), out, dtype="F16")
    ck.add(module + ".g_idx", inn, dtype="I32")


def awq(ck, module, out, inn, group):
    ck.add(module + ".qweight", inn, out // 8, dtype="I32")
    ck.add(module + ".qzeros", ceil(inn, group), out // 8, dtype="I32")
    ck.add(module + ".scales", ceil(inn, group), out, dtype="F16")


def packed(ck, module, out, inn, group):
    """compressed-tensors, pack-quantized"""
    ck.add(module + ".weight_packed", out, inn // 8, dtype="I32")
    ck.add(module + ".weight_scale", out, ceil(inn, group), dtype="F16")
    ck.add(module + ".weight_shape", 2, dtype="I64")


def nvfp4(ck, module, out, inn, _):
    ck.add(module + ".weight_packed", out, inn // 2, dtype="U8")
    ck.add(module + ".weight_scale", out, ceil(inn, 16), dtype="F8_E4M3")
    ck.add(module + ".weight_global_scale", 1, dtype="F32")


def modelopt(ck, module, out, inn, _):
    """the same by NVIDIA's modelopt"""
    ck.add(module + ".weight", out, inn // 2, dtype="U8")
    ck.add(module + ".weight_scale", out, ceil(inn, 16), dtype="F8_E4M3")
    ck.add(module + ".weight_scale_2", dtype="F32")
    ck.add(module + ".input_scale", dtype="F32")


def bnb4(ck, module, out, inn, _):
    ck.add(module + ".weight", out * inn // 2, 1, dtype="U8")
    ck.add(module + ".weight.absmax", ceil(out * inn, 64), dtype="U8")
    ck.add(module + ".weight.quant_map", 16, dtype="F32")
    ck.add(module + ".weight.nested_absmax", 1, dtype="F32")
    ck.add(module + ".weight.nested_quant_map", 256, dtype="F32")
    ck.add(module + ".weight.quant_state.bitsandbytes__nf4", 97, dtype="U8")


def bnb8(ck, module, out, inn, _):
    ck.add(module + ".weight", out, inn, dtype="I8")
    ck.add(module + ".SCB", out, dtype="F32")
    ck.add(module + ".weight_format", dtype="U8")


def fp8(ck, module, out, inn, _):
    """compressed-tensors, one scale per output"""
    ck.add(module + ".weight", out, inn, dtype="F8_E4M3")
    ck.add(module + ".weight_scale", out, 1, dtype="F16")
    ck.add(module + ".input_scale", 1, dtype="F32")


def fp8_blocks(ck, module, out, inn, _):
    """DeepSeek: a scale for each block of 128 by 128"""
    ck.add(module + ".weight", out, inn, dtype="F8_E4M3")
    ck.add(module + ".weight_scale_inv", ceil(out, 128), ceil(inn, 128), dtype="F32")


def unknown(ck, module, out, inn, _):
    """AQLM, which gac does not read"""
    ck.add(module + ".codes", out, inn // 8, 2, dtype="I8")
    ck.add(module + ".codebooks", 2, 256, 1, 8, dtype="F16")


def mxfp4(ck, module, out, inn, _):
    """compressed-tensors, whose scales are powers of two; gac does not read it"""
    ck.add(module + ".weight_packed", out, inn // 2, dtype="U8")
    ck.add(module + ".weight_scale", out, inn // 32, dtype="U8")


def hqq(ck, module, out, inn, _):
    """bytes only, which gac does not read"""
    ck.add(module + ".W_q", out * inn // 2, dtype="U8")
    ck.add(module + ".scale", out * inn // 64, dtype="F16")


def eetq(ck, module, out, inn, _):
    """inputs first, which gac does not read"""
    ck.add(module + ".weight", inn, out, dtype="I8")
    ck.add(module + ".weight_scales", out, dtype="F16")


# compressor, how a module is stored, quantization_config, a part of the reason
KINDS = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 32}, "GPTQ, groups of 32"),
    "awq": (awq, {"quant_method": "awq", "w_bit": 4, "q_group_size": 32}, "AWQ, groups of 32"),
    "compressed-tensors": (packed, {"quant_method": "compressed-tensors", "config_groups": {
        "group_0": {"weights": {"num_bits": 4, "group_size": 32}}}},
        "compressed-tensors, groups of 32"),
    "fp4": (nvfp4, {"quant_method": "compressed-tensors"}, "NVFP4, groups of 16"),
    "fp4, modelopt": (modelopt, {"quant_method": "modelopt"}, "NVFP4, groups of 16"),
    "bitsandbytes": (bnb4, {"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
    "int8": (bnb8, {"quant_method": "bitsandbytes", "load_in_8bit": True}, "is quantised with scales"),
    "fp8": (fp8, {"quant_method": "compressed-tensors"}, "8-bit floats"),
    "fp8, blocks": (fp8_blocks, {"quant_method": "fp8", "weight_block_size": [128, 128]},
                    "8-bit floats"),
}


def quantised(store, settings, group=32, **sizes):
    """A Llama of two layers with every linear module but the head stored so."""
    ck = mk.llama_like(dtype="F16", **{**dict(hidden=256, n_heads=4, n_kv_heads=2, mlp=384, vocab=128),
                                       **sizes})
    for _, module in list(mk.layer_linears(ck)):
        out, inn = ck.shape(module + ".weight")
        ck.drop(module + ".weight")
        store(ck, module, out, inn, group)
    if settings:
        ck.config["quantization_config"] = settings
    return ck


class Quantised(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def inspect(self, ck, *args):
        self.path = os.path.join(self.folder.name, "model")
        ck.write(self.path)
        done = subprocess.run([GAC, "inspect", self.path, "--json", "-q", *args],
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def check_kept(self):
        """No strategy changes anything."""
        for strategy in ("minimal", "predefined"):
            done = subprocess.run([GAC, "repair", self.path, "-o", self.path + "-out", "--json", "-q",
                                   "--allow", "rescaled", "--strategy", strategy, "--dtype", "F16"],
                                  capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertFalse(json.loads(done.stdout)["written"])

    def test_recognised(self):
        """Every tensor is explained, every size is the matrix's, and none may change."""
        for kind, (store, settings, reason) in KINDS.items():
            with self.subTest(kind):
                found = self.inspect(quantised(store, settings))
                self.assertEqual(found["checkpoint"]["compressor"], kind.split(",")[0])
                self.assertEqual((found["checkpoint"]["understood_pct"], found["unexplained"]),
                                 (100, []))
                self.assertTrue(any("quantised" in note for note in found["notes"]))
                dims = {d["name"]: d for d in found["dims"]}
                self.assertEqual({n: d["size"] for n, d in dims.items()},
                                 {"vocab": 128, "hidden": 256,
                                  **{f"layers.{i}.{n}": s for i in range(2) for n, s in
                                     (("self_attn.qk_head", 64), ("self_attn.v_head", 64),
                                      ("mlp.width", 384))}})
                self.assertEqual({d["exactness"] for d in dims.values()}, {"refused"})
                for name in ("hidden", "layers.1.mlp.width", "layers.0.self_attn.qk_head"):
                    self.assertIn(reason, dims[name]["reason"])
                self.assertTrue(found["summary"]["advice"].startswith("no gain: every size"))
                self.check_kept()

    def test_judged(self):
        """Sizes that groups or kernels do not like are misaligned, though F16 would take them."""
        wanted = {"gptq": 400, "awq": 400, "compressed-tensors": 400, "fp4": 376, "fp4, modelopt": 376,
                  "int8": 376, "fp8": 376, "fp8, blocks": 400}
        for kind, width in wanted.items():
            with self.subTest(kind):
                store, settings, _ = KINDS[kind]
                found = self.inspect(quantised(store, settings, mlp=width))
                dims = {d["name"]: d for d in found["dims"]}
                self.assertEqual(found["checkpoint"]["understood_pct"], 100)
                self.assertFalse(dims["layers.0.mlp.width"]["aligned"])
                # contracts know what 8-bit floats ask
                self.assertEqual(dims["layers.0.mlp.width"]["rule"],
                                 "contract" if kind.startswith("fp8") else "quant-group")
                self.assertTrue(dims["hidden"]["aligned"])
                self.assertNotIn("every size is aligned", found["summary"]["advice"])
                self.check_kept()

    def test_odd(self):
        """A width that no kernel likes, in weights that are unpacked to 16 bits."""
        store, settings, _ = KINDS["bitsandbytes"]
        found = self.inspect(quantised(store, settings, mlp=378))
        dims = {d["name"]: d for d in found["dims"]}
        self.assertEqual((dims["layers.0.mlp.width"]["size"], dims["layers.0.mlp.width"]["aligned"]),
                         (378, False))

    def test_groups_across_gpus(self):
        """Two groups of 128 and a half for each of two GPUs."""
        ck = quantised(gptq, {"quant_method": "gptq", "bits": 4, "group_size": 128}, 128, mlp=640)
        self.assertTrue(self.inspect(ck)["summary"]["advice"].startswith("no gain: every size"))
        found = self.inspect(ck, "--tp", "2")
        self.assertFalse({d["name"]: d for d in found["dims"]}["layers.0.mlp.width"]["aligned"])

    def test_without_settings(self):
        """The tensors alone say it."""
        found = self.inspect(quantised(gptq, None))
        self.assertEqual((found["checkpoint"]["compressor"], found["checkpoint"]["understood_pct"]),
                         ("gptq", 100))

    def test_not_understood(self):
        """No all-clear: the model is not judged, and a note names the method."""
        for store, method, width in ((unknown, "aqlm", 384), (unknown, "aqlm", 381),
                                     (mxfp4, "compressed-tensors", 384), (hqq, "hqq", 384)):
            with self.subTest(method, width=width):
                found = self.inspect(quantised(store, {"quant_method": method}, mlp=width))
                self.assertTrue(found["summary"]["advice"].startswith("not judged"), found["summary"])
                self.assertTrue(any(method in note for note in found["notes"]))
                self.check_kept()

    def test_the_method_is_blamed(self):
        quantised(eetq, {"quant_method": "eetq"}).write(os.path.join(self.folder.name, "bad"))
        done = subprocess.run([GAC, "inspect", os.path.join(self.folder.name, "bad"), "-q"],
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (3, 1), done.stderr)
        self.assertIn("(quantization_config states eetq, whose weights gac does not read)", done.stderr)

    def test_not_run(self):
        self.inspect(quantised(gptq, None))
        done = subprocess.run([GAC, "eval", self.path, "--prefill", "1x4"], capture_output=True,
                              text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 3)
        self.assertIn("is quantised", done.stderr)

    def test_contradictions(self):
        """Packed tensors that do not fit each other, or the model, are one line and exit 3."""
        def shape(name, *sizes):
            return lambda ck: ck.reshape("model.layers.0.mlp.down_proj." + name, *sizes)
        for change, store in ((shape("scales", 12, 257), gptq), (shape("qweight", 0, 256), gptq),
                              (shape("qweight", 384, 0), awq), (shape("weight_packed", 8, 48), packed),
                              (shape("weight", 100, 1), bnb4), (shape("qweight", 3, 256), awq)):
            ck = quantised(store, None)
            change(ck)
            path = os.path.join(self.folder.name, "bad")
            ck.write(path)
            done = subprocess.run([GAC, "inspect", path, "--json", "-q"], capture_output=True,
                                  text=True, timeout=60, check=False)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (3, 1), done.stderr)


def main():
    global GAC
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gac", required=True)
    parser.add_argument("cases", nargs="*")
    args = parser.parse_args()
    GAC = os.path.abspath(args.gac)
    return tally.run(args.cases)


if __name__ == "__main__":
    sys.exit(main())
