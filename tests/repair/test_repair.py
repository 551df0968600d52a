#!/usr/bin/env python3
"""gac plan, repair, verify and repair --undo, held against a judge of our own.

    python3 tests/repair/test_repair.py --gac build/gac [--python build/venv/bin/python] [CASE...]

Random small models of every family and compressor get random plans. What a
repair must give is computed here from the original bytes, the sizes and the
places of the dimensions. With --python, the reference safetensors package of
that interpreter opens every result. Ends with a line "N passed, N failed".
"""
import fnmatch
import json
import os
import random
import shutil
import struct
import sys

import repair_support as support
from repair_case import DTYPES, main, N_ROUNDS, OPTIONS, RepairCase, RESCALED_KEYS, SEED, SIZE_KEYS, STRATEGIES
from small_models import MODELS, mk


class Property(RepairCase):
    """repair, verify, undo over random models and plans; methods are added below."""

    def hand_plan(self, graph, model):
        """Sizes of a plan as a person might write it."""
        rng, sizes = self.rng, {}
        experts = rng.randint(0, 20)  # one config key for all of them
        width = rng.randint(0, 40) if model in ("gpt2", "opt", "opt-350m") else None
        for name, dim in graph.items():
            tied = dim.get("tied_to")
            if dim["exactness"] != "exact":
                continue
            to = dim["size"] + rng.choice((0, 1, rng.randint(1, 40), -dim["size"] % 8))
            if dim["role"] == "expert_width":
                to = dim["size"] + experts
            elif dim["role"] == "mlp_width" and width is not None:
                to = dim["size"] + width
            if tied:
                to = sizes.get(tied, graph[tied]["size"])
            sizes[name] = to
        rows = {n: (graph[n]["size"], to) for n, to in sizes.items()
                if to != graph[n]["size"] or rng.random() < 0.5}
        order = list(rows.items())
        rng.shuffle(order)
        return self.write_plan(dict(order), strategy=rng.choice(("by hand, of any length at all",
                                                                 "minimal", "")))

    def choose(self, path, graph, model, round_number):
        """Arguments of a random plan, and whether gac may refuse it."""
        rng = self.rng
        if round_number % 2 == 1:
            return ["--plan", self.hand_plan(graph, model)], False
        args, may_refuse = ["--strategy", rng.choice(STRATEGIES), "--dtype", "F16"], False
        if rng.random() < 0.3:
            args += ["--tp", rng.choice((1, 2, 4))]
            may_refuse = True  # heads that cannot be divided
        if rng.random() < 0.3:
            args += ["--quant-group", rng.choice((16, 32))]
            may_refuse = True
        if rng.random() < 0.4:
            args += ["--uniform"]
        if rng.random() < 0.3:
            args += ["--widths", rng.choice(("uniform", "per_layer_config", "block_configs"))]
            may_refuse = True
        pattern = rng.choice((None, "*.rank", "*.width", "layers.0.mlp.width"))
        sizes = [d["size"] for n, d in graph.items() if pattern and fnmatch.fnmatch(n, pattern)]
        if sizes and rng.random() < 0.5:
            args += ["--set", f"{pattern}={max(sizes) + rng.randint(0, 9)}"]
            may_refuse = may_refuse or "solve" in args
        if rng.random() < 0.3 and ("solve" in args or "tradeoff" in args):
            args += ["--max-overhead", rng.choice((3, 50))]
            may_refuse = may_refuse or "solve" in args
        if rng.random() < 0.5 and not may_refuse:
            plan = self.path("made.json")
            self.ok("plan", path, *args, "-o", plan)
            args = ["--plan", plan]
        return args, may_refuse

    def check_config(self, before, after, graph, sizes, rescaled=False):
        """New sizes are stated; nothing else moved."""
        allowed = SIZE_KEYS | {k for k in before if k.startswith("num_basis_")}
        allowed |= RESCALED_KEYS if rescaled else set()
        if "block_configs" in after and "block_configs" not in before:
            allowed |= {"model_type", "architectures"}
        if "gac_modules" in after and "gac_modules" not in before:
            allowed |= {"gac_modules", "auto_map", "architectures", "model_type"}
        self.assertEqual([k for k in after if k in before], [k for k in before if k in after],
                         "order of config keys")
        for key in set(before) | set(after):
            if key not in allowed:
                self.assertEqual(after.get(key), before.get(key), key)
        for name, dim in graph.items():
            if name in sizes or dim["role"] == "mlp_width":
                stated = support.stated_size(after, dim)
                if stated not in (None, "ffn_mult"):
                    self.assertEqual(stated, sizes.get(name, dim["size"]), name)
        for key, role in (("gate_ranks", "mlp_width"), ("q_ranks", "qk_head"),
                          ("v_ranks", "v_head")):
            for i, size in enumerate(after.get(key, [])):
                name = next(n for n, d in graph.items()
                            if d["role"] == role and support.layer_of(n) == i)
                self.assertEqual(size, sizes.get(name, graph[name]["size"]), f"{key}[{i}]")

    def check_files(self, original, result, config_too):
        before, after = support.other_files(original), support.other_files(result)
        if not config_too:
            before.pop("config.json")
            after.pop("config.json")
        if "gac_modules" in support.read_config(result):
            after.pop("modeling_gac.py")
        self.assertEqual(after, before)

    def check_layout(self, original, result, same_files=True):
        if not same_files:
            return
        self.assertEqual(support.tensor_files(result), support.tensor_files(original))
        for file in support.tensor_files(original):
            a, b = (support.read_header(os.path.join(d, file))[0] for d in (original, result))
            for header in (a, b):
                header["__metadata__"].pop("gac_repair", None)
                header["__metadata__"].pop("gac_repair_xxh3", None)
            self.assertEqual(b["__metadata__"], a["__metadata__"])
            self.assertEqual(set(b), set(a))

    def check_undo(self, repaired, original, tensors, same_files=True, name="undone"):
        undone = self.path(name)
        self.ok("repair", repaired, "--undo", "-o", undone)
        got = support.read_folder(undone)
        self.assertEqual(set(got), set(tensors))
        for tensor, value in tensors.items():
            self.assertEqual(got[tensor][:2], value[:2], tensor)
            self.assertTrue(got[tensor][2] == value[2], f"{tensor}: undone to other bytes")
        self.check_files(original, undone, config_too=True)
        self.check_layout(original, undone, same_files)
        for file in support.tensor_files(undone):
            self.assertNotIn("gac_repair",
                             support.read_header(os.path.join(undone, file))[0]["__metadata__"])
        self.assertFalse(os.path.exists(os.path.join(undone, "gac_originals")))
        self.assertTrue(self.gac.json("verify", original, undone)["ok"])

    def check_verify(self, original, repaired):
        result = self.gac("verify", original, repaired, "--json")
        self.assertEqual(result.returncode, 0, result.stdout[-600:] + result.stderr)
        answer = json.loads(result.stdout)
        for key in ("ok", "lossless", "pads_zero", "config_ok", "same_tensors"):
            self.assertIs(answer[key], True, key)
        return answer

    def check_exact(self, original, tensors, graph, repaired, answer, n_files):
        sizes = {d["name"]: d["to"] for d in answer["dims"]}
        for d in answer["dims"]:
            self.assertEqual(d["from"], graph[d["name"]]["size"])
        wanted = support.enlarged(tensors, graph, sizes)
        got = support.read_folder(repaired)
        self.assertEqual(set(got), set(wanted))
        for name, value in wanted.items():
            self.assertEqual(got[name][:2], value[:2], name)
            self.assertTrue(got[name][2] == value[2], f"{name}: not the original plus zeros")
        self.assertEqual(answer["bytes_before"], sum(len(t[2]) for t in tensors.values()))
        self.assertEqual(answer["bytes_after"], sum(len(t[2]) for t in wanted.values()))
        self.assertEqual(answer["n_dims_changed"], len(sizes))
        self.assertEqual(answer["n_tensors_changed"],
                         sum(wanted[n][1] != tensors[n][1] for n in tensors))
        self.check_files(original, repaired, config_too=False)
        self.check_config(support.read_config(original), support.read_config(repaired), graph,
                          sizes)
        if n_files:
            self.check_layout(original, repaired)
        if OPTIONS.reference:
            self.assertEqual(OPTIONS.reference.shapes(repaired),
                             {n: t[1] for n, t in wanted.items()})
        return sizes

    def one_round(self, model, round_number):
        rng = self.rng
        n_files = rng.choice((1, 1, 3))
        original, tensors = self.make(model, dtype=rng.choice(DTYPES), n_files=n_files)
        before = support.other_files(original)
        graph = self.gac.graph(original)
        args, may_refuse = self.choose(original, graph, model, round_number)
        repaired = self.path("out")
        shards = ["--max-shard-size", rng.choice(("20KB", "100000", "1GB"))]
        shards = shards if rng.random() < 0.25 else []
        result = self.gac("repair", original, "-o", repaired, "--copy", "--json", *args, *shards)
        if result.returncode and may_refuse:
            self.assertIn(result.returncode, (2, 5), result.stderr)
            self.assertTrue(support.one_line(result.stderr), result.stderr)
            self.assertFalse(os.path.exists(repaired))
            Property.n_refused += 1
            return
        self.assertEqual(result.returncode, 0, f"{args}: {result.stderr[-3000:]}")
        Property.n_repaired += 1
        answer = json.loads(result.stdout)
        sizes = self.check_exact(original, tensors, graph, repaired, answer, not shards)
        if "--uniform" in args and "--plan" not in args:
            widths = {sizes.get(n, d["size"]) for n, d in graph.items() if d["role"] == "mlp_width"}
            self.assertLessEqual(len(widths), 1)
        checked = self.check_verify(original, repaired)
        self.assertEqual(checked["n_dims_changed"], len(sizes))
        self.check_undo(repaired, original, tensors, not shards)
        self.assertEqual(support.other_files(original), before, "the input was touched")

    def test_zz_most_plans_were_carried_out(self):
        """Refusals must stay the exception, or the rounds above show nothing."""
        if Property.n_repaired + Property.n_refused >= len(MODELS):
            self.assertGreater(Property.n_repaired, 4 * Property.n_refused)

    n_repaired = n_refused = 0


def add_round(model, number):
    def test(self):
        self.one_round(model, number)
    setattr(Property, f"test_{model.replace('-', '_')}_{number}", test)


for _model in MODELS:
    for _number in range(N_ROUNDS):
        add_round(_model, _number)


class Rescaled(Property):
    """Heads and hidden size: values change by a factor, originals are kept."""

    def rescale(self, model, sizes, dtype="F32", **options):
        original, tensors = self.make(model, dtype=dtype, **options)
        graph = self.gac.graph(original)
        movable = [n for n, d in graph.items() if d["exactness"] == "rescaled" and d["role"] in sizes]
        if not movable:
            self.skipTest(f"{model}: nothing to rescale")
        args = []
        for role, to in sizes.items():
            args += ["--set", f"*{role}={to}"]
        repaired = self.path("out")
        needs = self.refused(2, "repair", original, "-o", repaired, *args)
        self.assertTrue(any(n in needs for n in graph), needs)
        answer = self.gac.json("repair", original, "-o", repaired, *args, "--allow", "rescaled",
                               "--strategy", "minimal")
        new = {d["name"]: d["to"] for d in answer["dims"]}
        self.assertTrue(all(new.get(n) == sizes[graph[n]["role"]] for n in movable))
        self.check_rescaled(original, tensors, graph, repaired, new)
        return original, tensors, repaired

    def check_scaled(self, name, original, rows, wanted, got):
        """Every row times its factor; a row is found again by its first value."""
        dtype, shape, data = wanted
        form, step, least = {"F32": ("f", 1e-7, 3e-45), "F64": ("d", 1e-15, 0),
                             "F16": ("e", 1e-3, 6e-8)}[dtype]
        width = struct.calcsize(form)
        inner = len(original[2]) // width // original[1][0] if original[1][0] else 0
        new_inner = len(data) // width // shape[0]
        factor_of = {original[2][r * inner * width:(r + 1) * inner * width]: rows.get(r, 1)
                     for r in range(original[1][0])}
        self.assertTrue(new_inner >= inner)
        for r in range(shape[0]):
            at = slice(r * new_inner * width, (r + 1) * new_inner * width)
            if not any(data[at]):
                self.assertFalse(any(got[2][at]), name)
                continue
            candidates = {f for row, f in factor_of.items() if row[:width] == data[at][:width]}
            old = struct.unpack(f"<{new_inner}{form}", data[at])
            new = struct.unpack(f"<{new_inner}{form}", got[2][at])
            self.assertTrue(any(all(abs(a * f - b) <= step * abs(a) + least
                                    for a, b in zip(old, new)) for f in candidates), (name, r))

    def check_rescaled(self, original, tensors, graph, repaired, sizes):
        rows = support.scaled_rows(graph, sizes)
        kept = support.read_tensors(os.path.join(repaired, "gac_originals", "model.safetensors"))
        self.assertEqual(kept, {n: tensors[n] for n in rows})
        wanted = support.enlarged(tensors, graph, sizes)
        got = support.read_folder(repaired)
        self.assertEqual(set(got), set(wanted))
        for name, (dtype, shape, data) in wanted.items():
            self.assertEqual(got[name][:2], (dtype, shape), name)
            if name in rows:
                self.check_scaled(name, tensors[name], rows[name], wanted[name], got[name])
            else:
                self.assertTrue(got[name][2] == data, name)
        self.check_config(support.read_config(original), support.read_config(repaired), graph,
                          sizes, rescaled=True)
        self.assertTrue(self.check_verify(original, repaired)["rescaled"])
        self.check_undo(repaired, original, tensors)

    def test_head(self):
        for model in ("llama", "mistral", "qwen2", "gemma", "palu", "palu-qwen2", "svdllm", "asvd",
                      "dobi", "lowrank-generic", "basis-sharing", "phi3", "pruned-heads", "flap",
                      "deci", "mixtral"):
            with self.subTest(model):
                self.fresh()
                self.rescale(model, {"qk_head": 40}, rng=support.seeded(SEED, model))

    def test_hidden(self):
        for model in ("llama", "qwen2", "qwen3", "qwen3-moe", "qwen3-moe-fused", "mixtral", "palu",
                      "svdllm", "asvd", "basis-sharing", "phi3", "pruned-mlp", "deci"):
            with self.subTest(model):
                self.fresh()
                self.rescale(model, {"hidden": 144}, rng=support.seeded(SEED, model))

    def test_both_in_half_precision_and_shards(self):
        _, _, repaired = self.rescale("llama", {"qk_head": 48, "hidden": 128}, dtype="F16",
                                      n_files=3)
        self.refused(2, "repair", repaired, "-o", self.path("again"), "--strategy", "optimal",
                     says="undo")

    def test_a_changed_kept_original_is_found(self):
        original, _, repaired = self.rescale("llama", {"hidden": 128})
        path = os.path.join(repaired, "gac_originals", "model.safetensors")
        kept = support.read_tensors(path)
        name = sorted(kept)[0]
        dtype, shape, data = kept[name]
        kept[name] = (dtype, shape, bytes([data[0] ^ 1]) + data[1:])
        support.write_tensors(path, kept)
        self.refused(5, "verify", original, repaired, says=name)
        shutil.rmtree(os.path.dirname(path))
        self.assertIn(self.gac("verify", original, repaired).returncode, (3, 5))
        self.refused(3, "repair", repaired, "--undo", "-o", self.path("no"))


for _name in [n for n in dir(Property) if n.startswith("test_")]:
    setattr(Rescaled, _name, None)  # inherited rounds run once


class Edges(RepairCase):
    """Sizes at which a graph could be read another way, and other corners."""

    check_undo, check_verify = Property.check_undo, Property.check_verify
    check_files, check_layout = Property.check_files, Property.check_layout

    def there_and_back(self, model, sizes, *args):
        """A repair to just these sizes either works in full or is refused in full."""
        original, tensors = self.make(model)
        graph = self.gac.graph(original)
        plan = self.write_plan({n: (graph[n]["size"], to) for n, to in sizes.items()})
        repaired = self.path("out")
        result = self.gac("repair", original, "-o", repaired, "--plan", plan, *args)
        if result.returncode:
            self.assertEqual(result.returncode, 2, result.stderr[-2000:])
            self.assertTrue(support.one_line(result.stderr), result.stderr)
            self.assertFalse(os.path.exists(repaired))
            return None
        wanted = support.enlarged(tensors, graph, sizes)
        self.assertEqual(support.read_folder(repaired), wanted)
        self.check_verify(original, repaired)
        self.check_undo(repaired, original, tensors)
        return repaired

    def test_rank_as_large_as_the_matrix(self):
        """Square factors, whose order shapes no longer tell."""
        for model in ("dobi", "asvd", "lowrank-generic", "svdllm", "basis-sharing"):
            for to in (64, 128, 200):
                with self.subTest(model=model, to=to):
                    self.fresh()
                    sizes = {f"layers.{i}.self_attn.{p}_proj.rank": to
                             for i in range(2) for p in "qkvo"}
                    if model == "basis-sharing":
                        sizes = {"layers.0.self_attn.q_proj.rank": to,
                                 "layers.2.self_attn.q_proj.rank": to}
                    self.there_and_back(model, sizes)

    def test_width_of_one_layer(self):
        """Families with one key for all layers change all; others may change one."""
        both = ("layers.0.mlp.width", "layers.1.mlp.width")
        for model, names in (("gpt2", ("h.0.mlp.width", "h.1.mlp.width")), ("opt", both),
                             ("opt-350m", both), ("phi3", both),
                             ("qwen3-moe", ("layers.0.mlp.width",)),
                             ("deci", ("layers.3.mlp.width",)),
                             ("per-layer-config", ("layers.1.mlp.width",))):
            with self.subTest(model):
                self.fresh()
                self.there_and_back(model, dict.fromkeys(names, 304))

    def test_width_statements(self):
        """The three ways to state widths, from every kind of input."""
        for model in ("llama", "pruned-mlp", "per-layer-config", "deci", "svdllm", "pruned-heads"):
            for form in ("uniform", "per_layer_config", "block_configs"):
                with self.subTest(model=model, form=form):
                    self.fresh()
                    original, tensors = self.make(model)
                    graph = self.gac.graph(original)
                    args = ["--uniform"] if form == "uniform" else []
                    if form == "per_layer_config" and model == "deci":
                        continue
                    out = self.path("out")
                    self.ok("repair", original, "-o", out, "--strategy", "optimal", "--widths",
                            form, *args, "--set", f"layers.0.mlp.width=400")
                    config = support.read_config(out)
                    after = self.gac.graph(out)
                    for name, dim in graph.items():
                        if dim["role"] == "mlp_width":
                            self.assertEqual(support.stated_size(config, dim),
                                             after[name]["size"], name)
                    if form == "uniform":
                        self.assertEqual({d["size"] for d in after.values()
                                          if d["role"] == "mlp_width"}, {400})
                        if model != "deci":
                            self.assertEqual(config["intermediate_size"], 400)
                    self.assertEqual("block_configs" in config,
                                     form == "block_configs" or model == "deci")
                    self.check_verify(original, out)
                    self.check_undo(out, original, tensors)

    def test_twice_then_undo(self):
        for model in ("palu", "svdllm", "pruned-mlp", "asvd", "basis-sharing"):
            with self.subTest(model):
                self.fresh()
                original, tensors = self.make(model, n_files=2)
                self.ok("repair", original, "-o", self.path("one"), "--strategy", "minimal")
                self.ok("repair", self.path("one"), "-o", self.path("two"), "--strategy",
                        "predefined")
                self.check_verify(original, self.path("two"))
                self.check_verify(self.path("one"), self.path("two"))
                self.check_undo(self.path("two"), original, tensors)

    def test_nothing_to_do(self):
        original, tensors = self.make("llama")
        plan = self.write_plan({})
        answer = self.gac.json("repair", original, "-o", self.path("out"), "--plan", plan)
        self.assertEqual((answer["n_dims_changed"], answer["written"]), (0, False))
        self.assertFalse(os.path.exists(self.path("out")))
        answer = self.gac.json("repair", original, "-o", self.path("out"), "--plan", plan, "--copy")
        self.assertTrue(answer["written"])
        self.assertEqual((answer["n_dims_changed"], answer["overhead_pct"]), (0, 0))
        self.assertEqual(support.read_folder(self.path("out")), tensors)
        self.check_files(original, self.path("out"), config_too=True)
        self.check_undo(self.path("out"), original, tensors)

    def test_one_file_without_config(self):
        """A bare .safetensors file needs no directory around it."""
        original, tensors = self.make("svdllm")
        file = os.path.join(original, "model.safetensors")
        result = self.gac("repair", file, "-o", self.path("out"), "--strategy", "minimal")
        if result.returncode == 0:
            self.assertTrue(self.gac.json("verify", file, self.path("out"))["ok"])
            self.ok("repair", self.path("out"), "--undo", "-o", self.path("back"))
            self.assertEqual(support.read_folder(self.path("back")), tensors)
        else:
            self.assertTrue(support.one_line(result.stderr), result.stderr)

    def test_packed_dtypes(self):
        """F4 and F6: exact where whole bytes move, refused where not."""
        for dtype, to, code in (("F4", 64, 0), ("F4", 61, 2), ("F6_E2M3", 64, 0),
                                ("F6_E2M3", 62, 2)):
            with self.subTest(dtype=dtype, to=to):
                self.fresh()
                ck = mk.llama_like(n_layers=1, mlp=48)
                tensors = support.fill(ck, self.rng, dtype)
                original = self.path("in")
                support.write_folder(original, tensors, json.dumps(ck.config))
                args = ("repair", original, "-o", self.path("out"), "--plan",
                        self.write_plan({"layers.0.mlp.width": (48, to)}))
                if code:
                    self.refused(code, *args, says="tensor")
                    self.nothing_left(["in", "plan.json"])
                    continue
                self.ok(*args)
                graph = self.gac.graph(original)
                self.assertEqual(support.read_folder(self.path("out")),
                                 support.enlarged(tensors, graph, {"layers.0.mlp.width": to}))
                self.check_verify(original, self.path("out"))
                self.check_undo(self.path("out"), original, tensors)

    def test_max_shard_size(self):
        original, tensors = self.make("svdllm")
        out = self.path("out")
        self.ok("repair", original, "-o", out, "--strategy", "minimal", "--max-shard-size", "50KB")
        files = support.tensor_files(out)
        self.assertGreater(len(files), 5)
        self.assertEqual(files, [f"model-{i + 1:05}-of-{len(files):05}.safetensors"
                                 for i in range(len(files))])
        for file in files:
            held = support.read_tensors(os.path.join(out, file))
            self.assertTrue(len(held) == 1 or sum(len(t[2]) for t in held.values()) <= 50000)
        self.check_verify(original, out)
        self.check_undo(out, original, tensors, same_files=False)
        for bad in ("0", "-5", "x", "5XB", "nan", "inf", "1e30", ""):
            with self.subTest(bad):
                self.refused(2, "repair", original, "-o", self.path("no"), "--max-shard-size", bad)

    def test_dry_run(self):
        original, _ = self.make("palu")
        args = ("repair", original, "--strategy", "optimal")
        dry = self.gac.json(*args, "--dry-run")
        self.nothing_left(["in"])
        dry_out = self.gac.json(*args, "--dry-run", "-o", self.path("out"))
        self.nothing_left(["in"])
        real = self.gac.json(*args, "-o", self.path("out"))
        keys = ("n_dims_changed", "n_tensors_changed", "bytes_before", "bytes_after",
                "overhead_pct", "dims")
        for answer in (dry, dry_out):
            self.assertEqual([answer[k] for k in keys], [real[k] for k in keys])
        self.assertEqual((dry["dry_run"], real["dry_run"]), (True, False))
        self.refused(2, "repair", original, "--dry-run", "--widths", "uniform", "--set",
                     "layers.0.mlp.width=400")

    def test_dry_run_of_undo(self):
        original, _ = self.make("palu")
        self.ok("repair", original, "-o", self.path("out"), "--strategy", "optimal")
        for out in ([], ["-o", self.path("back")]):
            with self.subTest(out):
                result = self.gac("repair", self.path("out"), "--undo", "--dry-run", *out)
                self.assertIn(result.returncode, (0, 2), result.stderr[-500:])
                self.assertNotIn("runtime error", result.stderr)
                self.assertFalse(os.path.exists(self.path("back")))

    def test_existing_target(self):
        original, _ = self.make("llama")
        out = self.path("out")
        os.mkdir(out)
        self.refused(1, "repair", original, "-o", out, says="exists")
        self.assertEqual(os.listdir(out), [])
        with open(os.path.join(out, "old"), "w", encoding="utf-8") as file:
            file.write("old")
        self.refused(1, "repair", original, "-o", out, "--force", says="no checkpoint")
        self.assertEqual(os.listdir(out), ["old"])
        with open(os.path.join(out, "model.safetensors"), "w", encoding="utf-8") as file:
            file.write("a checkpoint by its name only")
        self.refused(1, "repair", original, "-o", out, "--force", says="no checkpoint")
        support.write_tensors(os.path.join(out, "model.safetensors"), {})
        self.ok("repair", original, "-o", out, "--force")
        self.assertNotIn("old", os.listdir(out))
        self.check_verify(original, out)
        self.ok("repair", out, "--undo", "-o", self.path("back"))
        self.refused(1, "repair", out, "--undo", "-o", self.path("back"), says="exists")
        self.nothing_left(["in", "out", "back"])

    def test_undo_of_what_was_not_repaired(self):
        original, _ = self.make("llama")
        self.refused(3, "repair", original, "--undo", "-o", self.path("out"), says="repaired")
        self.nothing_left(["in"])

    def test_undo_of_a_record_that_lies(self):
        """The record is input like any other."""
        original, _ = self.make("llama")
        out = self.path("out")
        self.ok("repair", original, "-o", out, "--set", "layers.0.mlp.width=304")
        path = os.path.join(out, "model.safetensors")
        header, _ = support.read_header(path)
        tensors = support.read_tensors(path)
        true = json.loads(header["__metadata__"]["gac_repair"])
        # Without checksums, as version 0.1 wrote it, so that all else is looked at.
        true["schema"] = "gac.record/1"
        del header["__metadata__"]["gac_repair_xxh3"]
        row = true["dims"][0]
        twice = {**true, "dims": [row, {**row, "from": row["from"] + 1}]}
        lies = [{**true, "dims": [{**row, **change}]} for change in (
            {"places": []}, {"from": 0}, {"from": -1}, {"from": 10 ** 15}, {"from": "7"},
            {"to": 5}, {"from": None})]
        lies += [{}, [], 7, {**true, "dims": {}}, {**true, "schema": "gac.record/9"},
                 {**true, "dims": [7]}, twice,
                 {**true, "dims": [{"name": "vocab", "from": 3, "to": 80}]}]
        texts = [json.dumps(x) for x in lies] + ["", "{", "[" * 100000]
        for i, text in enumerate(texts):
            with self.subTest(text[:200]):
                header["__metadata__"]["gac_repair"] = text
                support.write_tensors(path, tensors, header["__metadata__"])
                self.refused(3, "repair", out, "--undo", "-o", self.path(f"no{i}"))
                self.assertFalse(os.path.exists(self.path(f"no{i}")))

    def test_set(self):
        original, _ = self.make("llama")
        self.refused(2, "repair", original, "-o", self.path("no"), "--set", "nosuch=32",
                     says="nosuch")
        for bad in ("x", "=5", "a=", "a=b", "a=0", "a=-5", "a=1e9", "a=99999999999999999999"):
            with self.subTest(bad):
                self.refused(2, "repair", original, "-o", self.path("no"), "--set", bad)
        self.refused(2, "repair", original, "-o", self.path("no"), "--set", "vocab=96",
                     says="vocab")
        self.refused(2, "repair", original, "-o", self.path("no"), "--set",
                     "layers.0.mlp.width=8", says="layers.0.mlp.width")
        self.nothing_left(["in"])

    def test_a_made_plan_can_be_carried_out(self):
        """What gac plan writes, gac repair takes, with the same flags."""
        for model in MODELS:
            for flags in ([], ["--allow", "rescaled"], ["--uniform"], ["--tp", "2"]):
                with self.subTest(model=model, flags=flags):
                    self.fresh()
                    original, _ = self.make(model, rng=support.seeded(SEED, model), carried={})
                    plan = self.path("plan.json")
                    made = self.gac("plan", original, *flags, "-o", plan)
                    if made.returncode:
                        self.assertEqual(made.returncode, 2, made.stderr)
                        self.assertTrue(support.one_line(made.stderr), made.stderr)
                        continue
                    allow = flags if "--allow" in flags else []
                    result = self.gac("repair", original, "--plan", plan, *allow, "--dry-run")
                    self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    sys.exit(main(__doc__))
