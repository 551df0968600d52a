#!/usr/bin/env python3
"""What gac verify must notice, and what plan files gac must refuse.

    python3 tests/repair/test_verify.py --gac build/gac [CASE...]
"""
import json
import os
import sys

import repair_support as support
from repair_case import main, RepairCase, SEED
from small_models import MODELS, mk


class Detects(RepairCase):
    """verify finds every kind of damage and names the tensor."""

    def setUp(self):
        super().setUp()
        self.original, _ = self.make("svdllm", dtype="F32")
        self.out = self.path("out")
        self.ok("repair", self.original, "-o", self.out, "--set", "*.rank=72", "--set",
                "*.mlp.width=208")
        self.file = os.path.join(self.out, "model.safetensors")
        self.metadata = support.read_header(self.file)[0]["__metadata__"]
        self.tensors = support.read_tensors(self.file)

    def damaged(self, tensors, *says, code=5):
        support.write_tensors(self.file, tensors, self.metadata)
        self.refused(code, "verify", self.original, self.out, says=says)
        answer = self.gac("verify", self.original, self.out, "--json")
        if code == 5:
            self.assertIs(json.loads(answer.stdout)["ok"], False)
            return json.loads(answer.stdout)
        return None

    def flip(self, name, at, value=None):
        dtype, shape, data = self.tensors[name]
        data = bytearray(data)
        data[at] = data[at] ^ 1 if value is None else value
        return {**self.tensors, name: (dtype, shape, bytes(data))}

    def test_one_flipped_byte(self):
        for name in sorted(self.tensors)[::5]:
            _, shape, data = self.tensors[name]
            if len(data) == 0:
                continue
            with self.subTest(name):
                self.damaged(self.flip(name, 0), name)

    def test_every_position_of_a_row(self):
        """Weights and pads, first to last byte of the first, a middle and the last row."""
        name = "model.layers.1.mlp.gate_u_proj.weight"  # (208 of fewer rows, 72 of fewer ranks)
        _, (n_rows, n_columns), data = self.tensors[name]
        row = len(data) // n_rows
        before = support.read_tensors(os.path.join(self.original, "model.safetensors"))[name][1]
        for r, c in ((0, 0), (0, n_columns - 1), (before[0] - 1, before[1] - 1),
                     (before[0] - 1, before[1]), (before[0], 0), (n_rows - 1, n_columns - 1)):
            with self.subTest(row=r, column=c):
                pad = r >= before[0] or c >= before[1]
                answer = self.damaged(self.flip(name, r * row + c * 4 + 3, 1 if pad else None), name)
                self.assertEqual((answer["pads_zero"], answer["lossless"]), (not pad, pad))

    def test_missing_and_extra(self):
        name = "model.layers.0.input_layernorm.weight"
        answer = self.damaged({n: t for n, t in self.tensors.items() if n != name}, name)
        self.assertEqual((answer["same_tensors"], answer["lossless"]), (False, False))
        inv_freq = "model.layers.0.self_attn.rotary_emb.inv_freq"
        self.damaged({n: t for n, t in self.tensors.items() if n != inv_freq}, inv_freq)
        answer = self.damaged({**self.tensors, "extra.weight": ("F32", (1,), bytes(4))},
                              "extra.weight")
        self.assertEqual((answer["same_tensors"], answer["lossless"]), (False, True))

    def test_swapped(self):
        a, b = (f"model.layers.{i}.self_attn.q_u_proj.weight" for i in range(2))
        self.damaged({**self.tensors, a: self.tensors[b], b: self.tensors[a]}, "q_u_proj")

    def test_changed_dtype(self):
        name = "model.layers.0.self_attn.q_u_proj.weight"
        _, shape, data = self.tensors[name]
        self.damaged({**self.tensors, name: ("I32", shape, data)}, name)

    def test_other_shape(self):
        name = "model.layers.0.self_attn.rotary_emb.inv_freq"
        dtype, shape, data = self.tensors[name]
        self.damaged({**self.tensors, name: (dtype, (shape[0] // 2, 2), data)}, name)

    def test_a_model_of_another_kind(self):
        other, _ = self.make("gpt2", folder="other")
        self.assertIn(self.gac("verify", self.original, other).returncode, (3, 5))
        self.assertIn(self.gac("verify", other, self.original).returncode, (3, 5))


class Large(RepairCase):
    """Tensors and rows of more than the 4 MiB that are held in memory at a time."""

    def setUp(self):
        super().setUp()
        self.width, self.wider, hidden = 8300, 8320, 64

        def mlp(ck, _, layer):
            ck.add(layer + ".mlp.gate.weight", 2, hidden)
            ck.add(layer + ".mlp.experts.gate_up_proj", 2, 2 * self.width, hidden)
            ck.add(layer + ".mlp.experts.down_proj", 2, hidden, self.width)
        ck = mk.llama_like(model_type="qwen3_moe", architecture="Qwen3MoeForCausalLM", n_layers=1,
                           hidden=hidden, qk_norm=True, add_mlp=mlp, num_experts=2, tied=True,
                           vocab=36900, num_experts_per_tok=1, mlp_only_layers=[],
                           moe_intermediate_size=self.width, dtype="F32")
        # Random where it matters: no two rows are alike.
        block = self.rng.randbytes((1 << 20) + 3)
        self.tensors = {name: (dtype, shape, (block * (1 + support.n_bytes(dtype, shape) //
                                                       len(block)))[:support.n_bytes(dtype, shape)])
                        for name, (dtype, shape) in ck.tensors.items()}
        self.original, self.out = self.path("in"), self.path("out")
        support.write_folder(self.original, self.tensors, json.dumps(ck.config))
        self.graph = self.gac.graph(self.original)
        self.dims = {n: self.wider for n, d in self.graph.items() if d["size"] == self.width}
        self.ok("repair", self.original, "-o", self.out, "--no-sync", "--plan", self.write_plan(
            {n: (self.width, self.wider) for n in self.dims}))
        self.file = os.path.join(self.out, "model.safetensors")
        self.fused = next(n for n in self.tensors if n.endswith("gate_up_proj"))

    def damaged(self, name, at):
        """Changes one byte of a tensor of the repair, and back again: what verify says."""
        header, start = support.read_header(self.file)
        with open(self.file, "r+b") as file:
            file.seek(start + header[name]["data_offsets"][0] + at)
            old = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([old ^ 1]))
            file.flush()
            answer = self.gac("verify", self.original, self.out, "--json")
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([old]))
        self.assertEqual(answer.returncode, 5, answer.stdout)
        self.assertIn(name, answer.stderr)
        return json.loads(answer.stdout)

    def test_long_rows(self):
        row = 2 * self.wider * 64 * 4
        self.assertGreater(row, 4 << 20)
        wanted = support.enlarged(self.tensors, self.graph, self.dims)
        found = support.read_folder(self.out)
        for name, tensor in wanted.items():  # not assertEqual, which would print it
            self.assertTrue(found[name] == tensor, name)
        self.ok("verify", self.original, self.out)
        gap = self.width * 64 * 4  # behind the gate's rows of an expert
        for at, pad in ((gap, True), (row + gap, True), (row - 1, True), (2 * row - 1, True),
                        (0, False), (gap - 1, False), (row, False), (row + gap - 1, False),
                        (row + self.wider * 64 * 4, False)):
            with self.subTest(byte=at):
                answer = self.damaged(self.fused, at)
                self.assertEqual((answer["pads_zero"], answer["lossless"]), (not pad, pad))
        self.ok("repair", self.out, "-o", self.path("back"), "--undo", "--no-sync")
        self.assertTrue(support.read_folder(self.path("back")) == self.tensors)

    def test_unchanged(self):
        name = "model.embed_tokens.weight"
        size = len(self.tensors[name][2])
        self.assertGreater(size, 9_000_000)
        for at in (0, 4 << 20, 8 << 20, size - 1):
            with self.subTest(byte=at):
                self.assertFalse(self.damaged(name, at)["lossless"])


class ConfigDetects(RepairCase):
    """verify finds a config that states another size."""

    def check(self, model, change, *says):
        self.fresh()
        original, _ = self.make(model)
        out = self.path("out")
        self.ok("repair", original, "-o", out, "--strategy", "optimal", "--set",
                "layers.0.mlp.width=400")
        config = support.read_config(out)
        change(config)
        with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        result = self.gac("verify", original, out, "-q")
        self.assertEqual(result.returncode, 5, f"{model}: {result.stdout}{result.stderr}")
        for word in says:
            self.assertIn(word, result.stderr)

    def test_wrong_sizes(self):
        def put(*path):
            def change(config):
                at = config
                for key in path[:-2]:
                    at = at[key]
                self.assertIn(path[-2], at if isinstance(at, dict) else range(len(at)))
                at[path[-2]] = path[-1]
            return change
        attn = "model.layers.0.self_attn."
        cases = [("llama", put("intermediate_size", 8), "intermediate_size"),
                 ("pruned-mlp", put("gac_modules", "layers.1.mlp.up_proj", "linear", 0, 8),
                  "gac_modules"),
                 ("svdllm", put("gac_modules", "layers.1.mlp.up_proj", "factors", 1, 8),
                  "gac_modules"),
                 ("deci", put("block_configs", 0, "ffn", "intermediate_size", 8),
                  "intermediate_size"),
                 ("palu", put("head_wise_ranks", attn + "k_proj", 1, 3), "head_wise_ranks"),
                 ("asvd", put("truncation_ranks", attn + "q_proj", 3), "truncation_ranks"),
                 ("basis-sharing", put("num_basis_q", 3), "num_basis_q")]
        for model, change, *says in cases:
            with self.subTest(model):
                self.check(model, change, *says)


class WithoutRecord(RepairCase):
    """Sizes that no repair gives are found in a directory without a record, too."""

    def enlarged(self, ck, role, more):
        """A model, and the same with every dimension of a role grown by hand."""
        self.fresh()
        tensors = support.fill(ck, self.rng)
        support.write_folder(self.path("in"), tensors, json.dumps(ck.config))
        graph = self.gac.graph(self.path("in"))
        sizes = {n: d["size"] + more for n, d in graph.items() if d["role"] == role}
        self.assertTrue(sizes)
        support.write_folder(self.path("out"), support.enlarged(tensors, graph, sizes),
                             json.dumps(ck.config))

    def test_heads_that_no_repair_changes(self):
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
        for what, ck, roles in (
                ("yarn", mk.llama_like(n_layers=1, head_dim=24, rope_scaling=yarn), ("v_head",)),
                ("qwen3", MODELS["qwen3"](self.rng), ("v_head",)),
                ("opt", MODELS["opt"](self.rng), ("v_head",)),
                ("direct", MODELS["direct"](self.rng), ("v_head",)),
                ("odd", mk.llama_like(n_layers=1, head_dim=21), ("v_head", "qk_head"))):
            for role in roles:
                with self.subTest(what, role=role):
                    self.enlarged(ck, role, 8)
                    result = self.gac("verify", self.path("in"), self.path("out"), "-q")
                    self.assertIn(result.returncode, (3, 5), result.stdout + result.stderr)
                    self.assertTrue(support.one_line(result.stderr), result.stderr)

    def test_odd_heads_are_a_difference(self):
        self.enlarged(mk.llama_like(n_layers=1, head_dim=21), "qk_head", 3)
        for pair in (("in", "out"), ("out", "in")):
            self.refused(5, "verify", *map(self.path, pair), says="head")

    def test_what_a_repair_gives(self):
        self.enlarged(mk.llama_like(n_layers=1, mlp=100), "mlp_width", 12)
        config = support.read_config(self.path("in"))
        with open(self.path("out/config.json"), "w", encoding="utf-8") as file:
            json.dump({**config, "intermediate_size": 112}, file)
        self.ok("verify", self.path("in"), self.path("out"))


class PlanFiles(RepairCase):
    """A hand-edited plan is validated as strictly as any input."""

    def setUp(self):
        super().setUp()
        self.original, _ = self.make("llama", rng=support.seeded(SEED, "plan files"))
        self.size = self.gac.graph(self.original)["layers.0.mlp.width"]["size"]

    def bad(self, plan, code=3, says=()):
        result = self.refused(code, "repair", self.original, "-o", self.path("out"), "--plan", plan,
                              says=says)
        self.assertFalse(os.path.exists(self.path("out")))
        return result

    def entry(self, **changes):
        row = {"name": "layers.0.mlp.width", "from": self.size, "to": self.size + 9, **changes}
        return {k: v for k, v in row.items() if v is not ...}

    def test_the_entry_itself_is_fine(self):
        self.ok("repair", self.original, "-o", self.path("out"), "--plan",
                self.write_plan([self.entry()]))

    def test_bad_entries(self):
        wrong = {"unknown name": dict(name="layers.9.mlp.width"), "no name": dict(name=...),
                 "name is a number": dict(name=7), "name with NUL": dict(name="a\0b"),
                 "wrong from": {"from": 7}, "no from": {"from": ...}, "smaller": dict(to=8),
                 "no to": dict(to=...), "text": dict(to="304"), "real": dict(to=304.0),
                 "zero": dict(to=0), "negative": dict(to=-8), "huge": dict(to=2 ** 31),
                 "huger": dict(to=2 ** 63), "null": dict(to=None), "bool": dict(to=True)}
        for what, changes in wrong.items():
            with self.subTest(what):
                self.bad(self.write_plan([self.entry(**changes)]))

    def test_says_which(self):
        says = ("dims[1]", "layers.1.mlp.width")
        self.bad(self.write_plan([self.entry(), self.entry(name="layers.1.mlp.width", to=3)])
                 if "layers.1.mlp.width" in self.gac.graph(self.original) else
                 self.write_plan([self.entry(), self.entry(name="layers.1.mlp.width")]), says=says)

    def test_duplicate(self):
        self.bad(self.write_plan([self.entry(), self.entry()]), says="twice")

    def test_bad_files(self):
        good = {"schema": "gac.plan/1", "dims": [self.entry()]}
        texts = {"no JSON": "hello", "empty": "", "cut off": json.dumps(good)[:-3],
                 "array": json.dumps([good]), "number": "7", "deep": "[" * 200000,
                 "no schema": json.dumps({"dims": []}),
                 "other schema": json.dumps({**good, "schema": "gac.plan/2"}),
                 "schema is a number": json.dumps({**good, "schema": 1}),
                 "no dims": json.dumps({"schema": "gac.plan/1"}),
                 "dims is an object": json.dumps({**good, "dims": {}}),
                 "entry is a number": json.dumps({**good, "dims": [7]}),
                 "duplicate key": '{"schema":"gac.plan/1","dims":[],"dims":[]}',
                 "trailing": json.dumps(good) + "x", "NUL": json.dumps(good) + "\0",
                 "bad UTF-8": b'{"schema":"gac.plan/1","dims":[{"name":"\xff"}]}'}
        for what, text in texts.items():
            with self.subTest(what):
                with open(self.path("plan.json"), "wb") as file:
                    file.write(text if isinstance(text, bytes) else text.encode())
                self.bad(self.path("plan.json"))

    def test_not_a_file(self):
        for plan in (self.path("missing.json"), self.folder, "/dev/null"):
            with self.subTest(plan):
                result = self.gac("repair", self.original, "-o", self.path("out"), "--plan", plan)
                self.assertIn(result.returncode, (1, 3), result.stderr)
                self.assertTrue(support.one_line(result.stderr), result.stderr)

    def test_too_large_for_any_disk(self):
        """Sizes within int32 whose product is beyond any file fail at once and leave nothing."""
        hidden = self.gac.graph(self.original)["hidden"]["size"]
        plan = self.write_plan([self.entry(to=2 ** 31 - 1),
                                {"name": "hidden", "from": hidden, "to": 2 ** 31 - 2}])
        for extra in ([], ["--dry-run"]):
            result = self.gac("repair", self.original, "-o", self.path("out"), "--plan", plan,
                              "--allow", "rescaled", *extra)
            self.assertIn(result.returncode, (1, 2, 3), result.stdout)
            self.assertTrue(support.one_line(result.stderr), result.stderr)
        self.nothing_left(["in", "plan.json"])

    def test_refused_and_rescaled_dimensions(self):
        graph = self.gac.graph(self.original)
        for name, says in (("vocab", "vocab"), ("hidden", "--allow rescaled")):
            with self.subTest(name):
                plan = self.write_plan({name: (graph[name]["size"], graph[name]["size"] + 16)})
                self.bad(plan, says=("plan.json", says))
        self.nothing_left(["in", "plan.json"])

    def test_tied_dimensions(self):
        original, _ = self.make("basis-sharing", folder="basis")
        graph = self.gac.graph(original)
        name, tied = next((n, d["tied_to"]) for n, d in graph.items()
                          if d["tied_to"] and d["role"] == "rank")
        size = graph[name]["size"]
        plan = self.write_plan({tied: (size, size + 8), name: (size, size + 16)})
        self.refused(3, "repair", original, "-o", self.path("out"), "--plan", plan, says=name)
        plan = self.write_plan({tied: (size, size + 8)})  # the others follow
        self.ok("repair", original, "-o", self.path("out"), "--plan", plan)
        self.assertEqual(self.gac.graph(self.path("out"))[name]["size"], size + 8)

    def test_plan_and_strategy_exclude_each_other(self):
        plan = self.write_plan([self.entry()])
        for extra in (["--strategy", "minimal"], ["--undo"], ["--set", "*=304"], ["--uniform"],
                      ["--tp", "2"]):
            with self.subTest(extra):
                self.bad_usage(plan, extra)

    def bad_usage(self, plan, extra):
        self.refused(2, "repair", self.original, "-o", self.path("out"), "--plan", plan, *extra)


if __name__ == "__main__":
    sys.exit(main(__doc__))
