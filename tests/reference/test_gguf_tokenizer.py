#!/usr/bin/env python3
"""Checks the tokenizers that gac convert writes.

    test_gguf_tokenizer.py --gac build/gac [CASE...]

Byte-level: tokenizers trained here go into a GGUF file, and what comes out must
give the same ids. Scored: what comes out must give the ids that joining the
pair of the highest score gives, computed here from that definition.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import unittest

import gguf
import numpy as np
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers,
                        processors, trainers)
from tokenizers import models as tokenizer_models

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import gguf_models as models  # noqa: E402
import llama2c_models  # noqa: E402
import tally  # noqa: E402

OPTIONS = argparse.Namespace()
NASTY = ["", " ", "   ", "\n\n\r\n\t x", "a" * 3000, "日本語のテキスト、漢字。", "🙂👩‍👩‍👧‍👦 é e\u0301 ﬁ",
         "It's I'LL we've 'tis", "x=1234567; y = 3.14e-10", "\x00\x01\x7f", "…—“quoted”",
         "<|end|> in the middle<|end|>", "tabs\tand  two  spaces ", "<s> </s> <unk> <0x41>",
         "Ünïcödé ÀÉÎ ß Ł ж Ω א ع ก", "¼ ½ ² ٣ 五", "snake_case CamelCase",
         "(It was 1984, 12345)", "\u2581x \u2581"]


def corpus(n_characters=None):
    return llama2c_models.read_text(n_characters).splitlines(keepends=True)


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LOOSE = r"\s?[^\s\p{L}\p{N}]?\p{L}+|\p{N}+|\s+|[^\s\p{L}\p{N}]+"
BYTES = pre_tokenizers.ByteLevel
SPLITS = {
    "gpt-2": BYTES(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                       BYTES(add_prefix_space=False)]),
    "llama-bpe": pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
        BYTES(add_prefix_space=False, use_regex=False)]),
    "qwen2": pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3.replace("{1,3}", "")), "isolated"),
        BYTES(add_prefix_space=False, use_regex=False)]),
}


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="gac-gguf-")
        self.addCleanup(self.folder.cleanup)
        self.out = os.path.join(self.folder.name, "out")

    def gac(self, *arguments, status=0):
        result = subprocess.run([OPTIONS.gac, "convert", *arguments, "-o", self.out, "--no-sync",
                                 "--force"], capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, status, result.stderr)
        return result.stderr

    def convert(self, tokens, vocab_size, status=0):
        file = os.path.join(self.folder.name, "model.gguf")
        layout = models.shapes("llama")
        weights = {short: np.zeros((vocab_size, *shape[1:]) if "embed" in name else shape,
                                   np.float16) for name, (short, shape) in layout.items()}
        models.write(file, "llama", weights, tokens=tokens)
        return self.gac(file, status=status)

    def read(self, name):
        with open(os.path.join(self.out, name), encoding="utf-8") as file:
            return json.load(file)

    def tokenizer(self):
        return Tokenizer.from_file(os.path.join(self.out, "tokenizer.json"))


class ByteLevelTest(Case):
    def train(self, split):
        reference = Tokenizer(tokenizer_models.BPE(ignore_merges=split == "llama-bpe"))
        # Merges learnt by a looser rule, so that what the rule forbids must show.
        reference.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(LOOSE), "isolated"),
            BYTES(add_prefix_space=False, use_regex=False)])
        reference.decoder = decoders.ByteLevel()
        if split == "qwen2":
            reference.normalizer = normalizers.NFC()
        trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=["<|start|>", "<|end|>"],
                                      initial_alphabet=BYTES.alphabet(), show_progress=False)
        lines = [line + "(It was 1984 in 2024, 12345)" for line in corpus()]
        reference.train_from_iterator(lines, trainer)
        reference.pre_tokenizer = SPLITS[split]
        # A word that no merge makes: found only where whole words skip the merges.
        text = json.loads(reference.to_str())
        text["model"]["vocab"]["Ġzyzzyva"] = len(text["model"]["vocab"])
        reference = Tokenizer.from_str(json.dumps(text))
        reference.add_tokens([AddedToken("<|mine|>", special=False, normalized=False)])
        if split == "llama-bpe":
            reference.post_processor = processors.TemplateProcessing(
                single="<|start|> $A", special_tokens=[("<|start|>", 0)])
        return reference

    @staticmethod
    def writer_of(reference, split):
        model = json.loads(reference.to_str())["model"]
        texts = [reference.id_to_token(i) for i in range(reference.get_vocab_size())]
        kinds = {"<|start|>": gguf.TokenType.CONTROL, "<|end|>": gguf.TokenType.CONTROL,
                 "<|mine|>": gguf.TokenType.USER_DEFINED}

        def add(writer):
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre(split)
            writer.add_token_list(texts)
            writer.add_token_types([kinds.get(t, gguf.TokenType.NORMAL) for t in texts])
            writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
            writer.add_bos_token_id(0)
            writer.add_eos_token_id(1)
            writer.add_chat_template("{{ messages }}")
        return add, len(texts)

    def check(self, split):
        reference = self.train(split)
        add, n = self.writer_of(reference, split)
        self.convert(add, n + 6)
        ours = self.tokenizer()
        for text in [*corpus(), *NASTY, "a<|mine|>b<|end|>", "a zyzzyva"]:
            got, expected = ours.encode(text), reference.encode(text)
            self.assertEqual(got.ids, expected.ids, repr(text))
            self.assertEqual(ours.decode(got.ids), reference.decode(expected.ids))
        config = self.read("tokenizer_config.json")
        self.assertEqual(config["bos_token"], "<|start|>")
        self.assertEqual(config["eos_token"], "<|end|>")
        self.assertEqual(config["chat_template"], "{{ messages }}")
        self.assertEqual(self.read("config.json")["eos_token_id"], 1)
        self.assertEqual(self.read("config.json")["vocab_size"], n + 6)

    def test_rules_differ(self):
        """So that taking one for another cannot pass."""
        reference, seen = self.train("gpt-2"), set()
        for split in SPLITS.values():
            reference.pre_tokenizer = split
            seen.add(tuple(tuple(reference.encode(text).ids) for text in [*corpus(), *NASTY]))
        self.assertEqual(len(seen), len(SPLITS))

    def test_gpt2(self):
        self.check("gpt-2")

    def test_smollm(self):
        self.check("smollm")

    def test_llama3(self):
        self.check("llama-bpe")

    def test_qwen2(self):
        self.check("qwen2")

    def test_refusals(self):
        reference = self.train("gpt-2")
        add, n = self.writer_of(reference, "no-such-rule")
        self.assertIn("no-such-rule", self.convert(add, n, status=3))
        add, n = self.writer_of(reference, "gpt-2")
        self.assertIn("tokens for", self.convert(add, n - 1, status=3))

        def bad_merge(writer):
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre("gpt-2")
            writer.add_token_list(["a", "b"])
            writer.add_token_merges(["a b"])
        self.assertIn('merge 0 "a b"', self.convert(bad_merge, 8, status=3))
        self.assertFalse(os.path.exists(self.out))


def join_best(text, ids, scores):
    """SentencePiece: while a pair makes a token, join the best, leftmost first."""
    parts = list("\u2581" + text.replace(" ", "\u2581")) if text else []
    while True:
        best = None
        for i in range(len(parts) - 1):
            token = ids.get(parts[i] + parts[i + 1])
            if token is not None and (best is None or scores[token] > best[0]):
                best = (scores[token], i)
        if best is None:
            break
        i = best[1]
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    out = []
    for part in parts:
        out += [ids[part]] if part in ids else [3 + b for b in part.encode()]
    return out


class ScoredTest(Case):
    def check(self, tokens, scores, texts):
        """tokens: 0 unknown, 1 and 2 marks, 3 to 258 bytes, then text."""
        ours = self.tokenizer()
        ids = {t: i for i, t in enumerate(tokens) if i > 258}
        for text in texts:
            if not any(mark in text for mark in ("<s>", "\u2581")):
                self.assertEqual(ours.encode(text).ids, [1, *join_best(text, ids, scores)],
                                 repr(text))
                self.assertEqual(ours.decode(ours.encode(text).ids), text)

    def test_gguf(self):
        tokens, scores = llama2c_models.vocabulary(1500)

        def add(writer):
            writer.add_tokenizer_model("llama")
            writer.add_token_list(tokens)
            writer.add_token_scores(scores)
            writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)])
            writer.add_bos_token_id(1)
            writer.add_eos_token_id(2)
        self.convert(add, len(tokens))
        self.check(tokens, scores, [*(t[:300] for t in corpus(60_000)), *NASTY])
        self.assertEqual(self.read("tokenizer_config.json")["unk_token"], "<unk>")

    def test_llama2c(self):
        tokens, scores = llama2c_models.vocabulary(seed=3)
        model, path = (os.path.join(self.folder.name, n) for n in ("model.bin", "tokenizer.bin"))
        llama2c_models.write_model(model, len(tokens))
        llama2c_models.write_tokenizer(path, tokens, scores)
        self.gac(model, "--tokenizer", path)
        self.check(tokens, scores, [*(t[:300] for t in corpus(60_000)), *NASTY])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gac", required=True)
    parser.add_argument("cases", nargs="*")
    parser.parse_args(namespace=OPTIONS)
    return tally.run(OPTIONS.cases)


if __name__ == "__main__":
    sys.exit(main())
