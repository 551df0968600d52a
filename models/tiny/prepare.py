#!/usr/bin/env python3
"""Trains the tiny model's tokenizer and turns its text into token ids.

    prepare.py [--data build/tiny] [--keep-tokenizer]

Reads DATA/train.txt and DATA/valid.txt (from get_text.py) and heldout.txt here. Writes here
tokenizer.json and tokenizer_config.json, and DATA/tokens/{train,valid,heldout}.npy (uint16).
A document is <|begin_of_text|> text <|end_of_text|>; heldout.npy is what the tokenizer gives for
the whole file: <|begin_of_text|> and the text. With --keep-tokenizer the committed one is used.
"""
import argparse
import json
import os

import numpy
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
VOCAB_SIZE = 2048
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def read_documents(path):
    with open(path, encoding="utf-8") as file:
        return file.read().split("\x0c")


def train_tokenizer(documents):
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(documents, trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=[BOS, EOS], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{BOS} $A", pair=f"{BOS} $A {BOS}:1 $B:1",
                                      special_tokens=[(BOS, tokenizer.token_to_id(BOS))])])
    return tokenizer


def write_tokenizer(tokenizer, folder):
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS,
              "clean_up_tokenization_spaces": False, "model_max_length": 512,
              "model_input_names": ["input_ids", "attention_mask"]}
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
        json.dump(config, file, indent=2)
        file.write("\n")


def encode(tokenizer, documents):
    """One array of uint16: every document with its begin and end."""
    end, parts = tokenizer.token_to_id(EOS), []
    for i in range(0, len(documents), 256):
        for encoding in tokenizer.encode_batch(documents[i:i + 256]):
            parts.append(numpy.array(encoding.ids + [end], dtype=numpy.uint16))
    return numpy.concatenate(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.path.join(ROOT, "build", "tiny"))
    parser.add_argument("--keep-tokenizer", action="store_true")
    options = parser.parse_args()
    texts = {name: read_documents(os.path.join(options.data, name + ".txt")) for name in ("train", "valid")}
    if options.keep_tokenizer:
        tokenizer = Tokenizer.from_file(os.path.join(HERE, "tokenizer.json"))
    else:
        tokenizer = train_tokenizer(texts["train"])
        write_tokenizer(tokenizer, HERE)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE, tokenizer.get_vocab_size()
    folder = os.path.join(options.data, "tokens")
    os.makedirs(folder, exist_ok=True)
    arrays = {name: encode(tokenizer, documents) for name, documents in texts.items()}
    with open(os.path.join(HERE, "heldout.txt"), encoding="utf-8", newline="") as file:
        heldout = file.read()
    arrays["heldout"] = numpy.array(tokenizer.encode(heldout).ids, dtype=numpy.uint16)
    sizes = {name: sum(len(d.encode()) for d in documents) for name, documents in texts.items()}
    sizes["heldout"] = len(heldout.encode())
    for name, tokens in arrays.items():
        numpy.save(os.path.join(folder, name + ".npy"), tokens)
        print(f"{name}: {len(tokens)} tokens, {sizes[name] / len(tokens):.3f} bytes per token")


if __name__ == "__main__":
    main()
