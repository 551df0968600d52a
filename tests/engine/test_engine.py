#!/usr/bin/env python3
"""A real model end to end on the CPU: eval, generate, verify --forward.

    python test_engine.py --gac build/gac [--model models/tiny] [--text FILE] [CASE...]

Exits with 77, skipped, where there is no such model.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
import numpy_llama  # noqa: E402
import tally  # noqa: E402

OPTIONS = argparse.Namespace()


class EngineCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = OPTIONS.model
        cls.judge = numpy_llama.Llama(cls.model)
        with open(OPTIONS.text, encoding="utf-8") as file:
            cls.text = file.read()[:6000]

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="gac-engine-")
        self.addCleanup(holder.cleanup)
        self.folder = holder.name
        self.text_file = self.path("text.txt")
        with open(self.text_file, "w", encoding="utf-8", newline="") as file:
            file.write(self.text)

    def path(self, name):
        return os.path.join(self.folder, name)

    def gac(self, *args):
        return subprocess.run([OPTIONS.gac, *map(str, args)], capture_output=True, timeout=600,
                              check=False, encoding="utf-8")

    def ok(self, *args):
        result = self.gac(*args)
        self.assertEqual(result.returncode, 0, f"{args}: {result.stderr}")
        return result.stdout

    def json(self, *args):
        return json.loads(self.ok(*args, "--json", "-q"))

    def refused(self, code, says, *args):
        """One line on stderr that says so, nothing on stdout."""
        result = self.gac(*args)
        self.assertEqual((result.returncode, result.stdout), (code, ""), result.stderr)
        self.assertRegex(result.stderr, r"\Agac: [^\n]*\n\Z")
        for part in says:
            self.assertIn(part, result.stderr)

    def variant(self, name, change):
        numpy_llama.write_variant(self.model, self.path(name), change)
        return self.path(name)


class Perplexity(EngineCase):
    def test_against_numpy(self):
        """Protocol and value, for windows that leave a rest and for the usual one."""
        ids = self.judge.encode(self.text)
        for window in (97, None):
            args = ["--window", window] if window else []
            expected = self.judge.perplexity(ids, window or min(2048, self.judge.limit))
            for device in ("reference", "cpu"):
                with self.subTest(window=window, device=device):
                    found = self.json("eval", self.model, "--perplexity", self.text_file,
                                      "--device", device, *args)["perplexity"]
                    self.assertEqual(found["n_tokens"], expected[2])
                    self.assertLess(abs(found["value"] / expected[0] - 1), 1e-5)
                    self.assertLess(abs(found["stderr"] / expected[1] - 1), 1e-4)

    def test_devices_agree(self):
        values = [self.json("eval", self.model, "--perplexity", self.text_file, "--device",
                            device)["perplexity"]["value"] for device in ("reference", "cpu")]
        self.assertLess(abs(values[0] / values[1] - 1), 1e-5)

    def test_max_windows(self):
        found = self.json("eval", self.model, "--perplexity", self.text_file, "--window", 20,
                          "--max-windows", 3)["perplexity"]
        self.assertEqual((found["n_windows"], found["n_tokens"], found["window"]), (3, 57, 20))

    def test_text_too_short(self):
        with open(self.text_file, "w", encoding="utf-8"):
            pass
        self.refused(3, [self.text_file, "perplexity needs two"], "eval", self.model,
                     "--perplexity", self.text_file)


class Speed(EngineCase):
    def test_shapes(self):
        found = self.json("eval", self.model, "--prefill", "1x16,3x9", "--decode", "1@8,2@40",
                          "--device", "cpu")
        for key, length, n in (("prefill", "length", None), ("decode", "context", 1)):
            for run in found[key]:
                tokens = run["batch"] * (n or run[length])
                self.assertAlmostEqual(run["tokens_per_s"] * run["ms"] / 1000 / tokens, 1, 6)
                self.assertEqual(len(run["samples_ms"]), run["n_samples"])
                self.assertGreaterEqual(run["n_samples"], 3)
        self.assertEqual([r["context"] for r in found["decode"]], [8, 40])
        self.assertEqual([r["length"] for r in found["prefill"]], [16, 9])
        memory = found["memory"]
        self.assertEqual(found["memory_bytes"], sum(memory.values()))
        self.assertGreater(min(memory.values()), 0)

    def test_room(self):
        """The longest pass and the largest batch need not meet in one."""
        apart = self.json("eval", OPTIONS.model, "--prefill", "1x512", "--decode", "16@8")
        both = self.json("eval", OPTIONS.model, "--prefill", "16x512")
        self.assertLess(4 * apart["memory"]["work"], both["memory"]["work"])

    def test_last_place_of_the_context(self):
        self.ok("eval", self.model, "--decode", f"1@{self.judge.limit}", "-q")


class Tasks(EngineCase):
    QUESTIONS = [("How to open a door?", "Turn the handle and push.", "Eat the handle."),
                 ("keep bread fresh", "Put it into a bag.", "Put it into the sea, for a week."),
                 ("café", "ééé ü", "coffee and milk")]

    def likelihood(self, context, choice, most=1 << 30):
        """Of at most so many tokens, the last ones."""
        whole = self.judge.encode(context + " " + choice)
        n = len(whole) - len(self.judge.encode(context))
        return -self.judge.losses(whole[-most:])[-n:].sum()

    def test_piqa(self):
        path, out = self.path("q.jsonl"), self.path("lm.json")
        right = {"acc": 0, "acc_norm": 0}
        with open(path, "w", encoding="utf-8") as file:
            for i, (goal, *choices) in enumerate(self.QUESTIONS):
                sums = [self.likelihood(f"Question: {goal}\nAnswer:", c) for c in choices]
                norms = [s / len(c) for s, c in zip(sums, choices)]
                right["acc"] += int((sums[1] > sums[0]) == (i % 2 == 1))
                right["acc_norm"] += int((norms[1] > norms[0]) == (i % 2 == 1))
                file.write(json.dumps({"goal": goal, "sol1": choices[0], "sol2": choices[1],
                                       "label": i % 2}) + "\n")
        found = self.json("eval", self.model, "--tasks", "piqa", "--task-data", path, "--lm-eval",
                          out, "--device", "reference")["tasks"]
        for key, n in right.items():
            p = n / len(self.QUESTIONS)
            self.assertAlmostEqual(found["results"]["piqa"][key + ",none"], p, 6)
            self.assertAlmostEqual(found["results"]["piqa"][key + "_stderr,none"],
                                   (p * (1 - p) / (len(self.QUESTIONS) - 1)) ** 0.5, 6)
        with open(out, encoding="utf-8") as file:
            written = json.load(file)
        self.assertEqual(written["n-samples"], {"piqa": {"original": 3, "effective": 3}})
        self.assertEqual(written.keys(), found.keys())
        self.refused(1, [out], "eval", self.model, "--tasks", "piqa", "--task-data", path,
                     "--lm-eval", out)


    def test_longer_than_the_context(self):
        """The last token is predicted and need not fit, as lm-evaluation-harness has it."""
        limit, words, path, n_differ = 8, self.text.split(), self.path("q.jsonl"), 0
        pieces = [" ".join(words[at:at + 4]) for at in range(0, 400, 4)]
        context = "Question: What now?\nAnswer:"
        n_context = len(self.judge.encode(context))
        lengths = [len(self.judge.encode(context + " " + p)) - n_context for p in pieces]
        full, less = ([p for p, n in zip(pieces, lengths) if n == k] for k in (limit, limit - 1))
        with open(path, "w", encoding="utf-8") as file:
            for choices in list(zip(full, less))[:8]:
                sums = [[self.likelihood(context, c, most) for c in choices]
                        for most in (limit, limit + 1)]
                label = int(sums[1][1] > sums[1][0])
                n_differ += label != int(sums[0][1] > sums[0][0])
                file.write(json.dumps({"goal": "What now?", "sol1": choices[0],
                                       "sol2": choices[1], "label": label}) + "\n")
        self.assertGreater(n_differ, 0)
        folder = self.variant("short",
                              lambda _, config: config.update(max_position_embeddings=limit))
        found = self.json("eval", folder, "--tasks", "piqa", "--task-data", path, "--device",
                          "reference")["tasks"]["results"]["piqa"]
        self.assertEqual(found["acc,none"], 1)


class Generate(EngineCase):
    PROMPT = "The first thing is"

    def test_greedy(self):
        """Deterministic, and the tokens that numpy finds likeliest."""
        args = ("generate", self.model, self.PROMPT, "--max-tokens", 16, "--device")
        for device in ("reference", "cpu"):
            found = self.json(*args, device)
            self.assertEqual(found["prompt_ids"], self.judge.encode(self.PROMPT))
            n = len(found["ids"])
            expected = self.judge.greedy(found["prompt_ids"], n)
            self.assertEqual(found["ids"], expected)
            self.assertEqual(self.json(*args, device)["ids"], found["ids"])
            self.assertEqual(self.ok(*args, device), found["text"] + "\n")
            whole = self.judge.tokenizer.decode(found["prompt_ids"] + found["ids"])
            self.assertTrue(whole.endswith(found["text"]), (whole, found["text"]))

    def test_sampled(self):
        args = ("generate", self.model, self.PROMPT, "--max-tokens", 24, "--temperature", 1.2,
                "--top-k", 200, "--top-p", 0.95, "--seed")
        texts = [self.ok(*args, seed, "-q") for seed in (1, 1, 2)]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])

    CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
              "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
              "{{ '<|im_start|>assistant\\n' }}")

    def chat_model(self, name, template=CHATML):
        folder = self.variant(name, lambda tensors, config: None)
        with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as file:
            file.write(template)
        return folder

    def test_chat(self):
        folder = self.chat_model("chat")
        text = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello\n<|im_end|>\n" \
               "<|im_start|>assistant\n"
        found = self.json("generate", folder, "Hello\n", "--chat", "--system", "Be kind.")
        encode = self.judge.tokenizer.encode
        self.assertIs(found["chat"], True)
        self.assertEqual(found["prompt_ids"], encode(text, add_special_tokens=False).ids)

    def test_chat_ends_with_the_turn(self):
        """The tokenizer's " the" is made the token that ends a turn."""
        folder = self.chat_model("turn")
        end = self.judge.tokenizer.encode(" the", add_special_tokens=False).ids
        self.assertEqual(len(end), 1)
        path = os.path.join(folder, "tokenizer.json")
        with open(path, encoding="utf-8") as file:
            tokenizer = json.load(file)
        model = tokenizer["model"]
        piece = self.judge.tokenizer.id_to_token(end[0])
        pairs = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
        model["merges"] = [[a, b] for a, b in pairs if piece not in (a, b, a + b)]
        model["vocab"]["<|im_end|>"] = model["vocab"].pop(piece)
        tokenizer["added_tokens"].append(
            {"id": end[0], "content": "<|im_end|>", "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": True})
        with open(path, "w", encoding="utf-8") as file:
            json.dump(tokenizer, file)
        for seed in range(40):  # until the model says so
            draw = ("--temperature", 2, "--seed", seed, "--max-tokens", 60)
            chat = self.json("generate", folder, "The file system is", "--chat", *draw)
            ids = ",".join(map(str, chat["prompt_ids"]))
            plain = self.json("generate", folder, "--ids", ids, *draw)
            self.assertEqual((chat["chat"], plain["chat"]), (True, False))
            if end[0] in plain["ids"]:
                break
        self.assertEqual(chat["ids"], plain["ids"][:plain["ids"].index(end[0])])
        self.assertEqual(chat["stop"], "eos")

    def test_chat_hint(self):
        """On stderr, where a chat model gets a plain prompt; not with -q or --json."""
        hint = "hint: this model has a chat template; --chat puts the prompt into it\n"
        other = "hint: this model has a chat template that cannot be used here; "
        known, not_known = self.chat_model("hint"), self.chat_model("hint-no", "{{ messages }}")
        for folder, args, told in ((known, (), hint), (self.model, (), None),
                                   (known, ("--chat",), None), (known, ("-q",), None),
                                   (known, ("--json",), None), (not_known, (), other),
                                   (not_known, ("--json",), None),
                                   (self.chat_model("hint-bad", "{% for %}"), (), other)):
            with self.subTest(folder=folder, args=args):
                result = self.gac("generate", folder, "Hi", "--max-tokens", 2, *args)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertNotIn("hint:", result.stdout)
                self.assertEqual(result.stderr.count("hint:"), 1 if told else 0, result.stderr)
                self.assertIn(told or "", result.stderr)

    def test_chat_refused(self):
        other = self.chat_model("other", "{{ messages }}")
        self.refused(3, ["its chat template is not known here: it prints a list"], "generate",
                     other, "Hi", "--chat")
        strict = self.chat_model("strict", "{{ raise_exception('No ' ~ messages[0].role) }}")
        self.refused(2, ["its chat template refuses the message: No user"], "generate",
                     strict, "Hi", "--chat")
        self.refused(3, ["it has no chat template"], "generate", self.model, "Hi", "--chat")
        self.refused(2, ["--system goes with --chat"], "generate", other, "Hi", "--system", "a")
        self.refused(2, ["not with --ids"], "generate", other, "--ids", "1", "--chat")

    def test_full_context(self):
        ids = [5 + i % 50 for i in range(self.judge.limit - 2)]
        found = self.json("generate", self.model, "--ids", ",".join(map(str, ids)), "--max-tokens",
                          99)
        self.assertLessEqual(len(found["ids"]), 3)
        self.assertEqual(found["stop"], "context" if len(found["ids"]) == 3 else "eos")
        ids += [5, 5, 5]
        self.refused(2, [f"{len(ids)} tokens", str(self.judge.limit)], "generate", self.model,
                     "--ids", ",".join(map(str, ids)))

    def test_end_by_generation_config(self):
        """Its eos_token_id, one or many, takes the place of the config's where it has any."""
        args = ("generate", self.model, "--ids", "5,6", "--max-tokens", 6)
        made = self.json(*args)["ids"]
        self.assertEqual(len(set(made)), 6)
        folder = self.variant("ends", lambda _, config: config.update(eos_token_id=made[5]))
        for text, n in (("{}", 5), ('{"eos_token_id": null}', 5),
                        (f'{{"eos_token_id": {made[3]}}}', 3), ('{"eos_token_id": []}', 6),
                        (f'{{"eos_token_id": [2047, {made[4]}, {made[2]}]}}', 2), (None, 5)):
            path = os.path.join(folder, "generation_config.json")
            os.remove(path)
            if text:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            found = self.json("generate", folder, *args[2:])
            self.assertEqual(found["ids"], made[:n], text)
            self.assertEqual(found["stop"], "length" if n == 6 else "eos")

    def test_token_out_of_range(self):
        vocab = len(self.judge.tensors["model.embed_tokens.weight"])
        self.ok("generate", self.model, "--ids", vocab - 1, "--max-tokens", 1)
        self.refused(2, [str(vocab)], "generate", self.model, "--ids", vocab)

    def test_without_tokenizer(self):
        folder = self.variant("plain", lambda tensors, config: None)
        os.remove(os.path.join(folder, "tokenizer.json"))
        ids = self.json("generate", self.model, "--ids", "5,6", "--max-tokens", 4)["ids"]
        self.assertEqual(self.ok("generate", folder, "--ids", "5,6", "--max-tokens", 4).split(),
                         [str(i) for i in ids])
        self.refused(3, ["tokenizer.json"], "generate", folder, "hello")


class Repaired(EngineCase):
    def setUp(self):
        super().setUp()
        self.odd = self.variant("odd", numpy_llama.make_odd)
        self.fit = self.path("fit")
        self.ok("repair", self.odd, "-o", self.fit, "-q")

    def perplexity_line(self, folder):
        text = self.ok("eval", folder, "--perplexity", self.text_file, "--device", "reference",
                       "--max-windows", 2, "-q")
        return [line for line in text.split("\n") if "PPL" in line]

    def test_same_bits(self):
        changed = self.json("verify", self.odd, self.fit)["n_dims_changed"]
        self.assertGreater(changed, 7 * self.judge.config["num_hidden_layers"])
        for args in ((), ("--tokens", self.text_file, "--n-tokens", 100), ("--seed", 9)):
            found = self.json("verify", self.odd, self.fit, "--forward", *args)
            forward = found["forward"]
            self.assertEqual((found["ok"], forward["ran"], forward["bit_exact"]), (True,) * 3)
            self.assertEqual(forward["max_abs_diff"], 0)
            self.assertEqual(forward["n_tokens"], 100 if "--tokens" in args else 64)
        self.assertEqual(self.perplexity_line(self.odd), self.perplexity_line(self.fit))

    def test_close_on_cpu(self):
        found = self.json("verify", self.odd, self.fit, "--forward", "--device", "cpu")
        self.assertTrue(found["ok"])
        self.assertFalse(found["forward"]["promised"])
        self.assertLess(found["forward"]["relative"], 1e-5)

    def test_judged_by_numpy(self):
        """The repaired model is the odd one also to someone else."""
        ids = self.judge.encode(self.text)[:80]
        odd, fit = numpy_llama.Llama(self.odd), numpy_llama.Llama(self.fit)
        self.assertLess(abs(odd.losses(ids) - fit.losses(ids)).max(), 1e-9)

    def test_damage_is_seen(self):
        def damage(tensors, _):
            tensors["model.layers.0.mlp.up_u_proj.weight"][0, 0] += 1
        bad = self.path("bad")
        numpy_llama.write_variant(self.fit, bad, damage)
        result = self.gac("verify", self.odd, bad, "--forward", "--json", "-q")
        self.assertEqual(result.returncode, 5, result.stderr)
        found = json.loads(result.stdout)
        self.assertEqual((found["ok"], found["forward"]["bit_exact"]), (False, False))
        self.assertGreater(found["forward"]["max_abs_diff"], 0)


class BadInput(EngineCase):
    def refuses(self, folder, *says):
        for args in (("eval", folder, "--prefill", "1x4"), ("generate", folder, "--ids", "1")):
            self.refused(3, [folder, *says], *args)

    def test_nan(self):
        name = "model.layers.1.self_attn.q_proj.weight"

        def damage(tensors, _):
            tensors[name][3, 2] = float("nan")
        self.refuses(self.variant("nan", damage), name)

    def test_missing(self):
        for name in ("model.norm.weight", "model.layers.0.mlp.down_proj.weight"):
            folder = self.variant(name, lambda tensors, _, n=name: tensors.pop(n))
            self.refuses(folder, name.rsplit(".", 1)[0].replace("_proj", ""))

    def test_wrong_shape(self):
        name = "model.layers.1.self_attn.k_proj.weight"

        def damage(tensors, _):
            tensors[name] = tensors[name][:, :-8]
        self.refuses(self.variant("shape", damage), name)

    def test_no_gpu(self):
        result = self.gac("eval", self.model, "--prefill", "1x4", "--device", "cuda:4095")
        self.assertEqual(result.returncode, 4, result.stderr)
        self.assertRegex(result.stderr, r"\Agac: [^\n]*\n\Z")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gac", required=True)
    parser.add_argument("--model", default=os.path.join(ROOT, "models", "tiny"))
    parser.add_argument("--text")
    options, rest = parser.parse_known_args()
    options.text = options.text or os.path.join(options.model, "heldout.txt")
    vars(OPTIONS).update(vars(options))
    for path in (os.path.join(options.model, "model.safetensors"), options.text):
        if not os.path.exists(path):
            print(f"skipped: {path} is not there")
            return tally.SKIPPED
    return tally.run(rest)


if __name__ == "__main__":
    sys.exit(main())
