"""Small models in llama2.c's first format, with random weights, and vocabularies with scores."""

import os
import random
import struct

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TEXT = os.path.join(ROOT, "models", "tiny", "heldout.txt")
DIM, WIDTH, N_LAYERS, N_HEADS, N_KV_HEADS, CONTEXT = 32, 44, 3, 4, 2, 16
HEAD = DIM // N_HEADS
TABLE_BYTES = 2 * CONTEXT * HEAD // 2 * 4  # cosines and sines, which are not taken over


def read_text(n_characters=None):
    with open(TEXT, encoding="utf-8") as file:
        return file.read(n_characters)


def blocks(vocab, tied):
    """(name, shape) in the order of the file; None: cosines and sines."""
    kv = HEAD * N_KV_HEADS
    return [("embed", (vocab, DIM)), ("att_norm", (N_LAYERS, DIM)), ("q", (N_LAYERS, DIM, DIM)),
            ("k", (N_LAYERS, kv, DIM)), ("v", (N_LAYERS, kv, DIM)), ("o", (N_LAYERS, DIM, DIM)),
            ("mlp_norm", (N_LAYERS, DIM)), ("gate", (N_LAYERS, WIDTH, DIM)),
            ("down", (N_LAYERS, DIM, WIDTH)), ("up", (N_LAYERS, WIDTH, DIM)), ("norm", (DIM,)),
            (None, (2 * CONTEXT, HEAD // 2))] + ([] if tied else [("lm_head", (vocab, DIM))])


def write_model(path, vocab, tied=True, seed=1):
    """Returns the weights by name as float64; those of layers have a leading axis."""
    rng = np.random.default_rng(seed)
    weights = {}
    with open(path, "wb") as file:
        file.write(struct.pack("<7i", DIM, WIDTH, N_LAYERS, N_HEADS, N_KV_HEADS,
                               vocab if tied else -vocab, CONTEXT))
        for name, shape in blocks(vocab, tied):
            values = rng.standard_normal(shape).astype("<f4")
            if name and name.endswith("norm"):
                values = np.abs(values) + np.float32(0.5)
            elif name != "embed":
                values *= np.float32(1.5 / np.sqrt(shape[-1]))
            file.write(values.tobytes())
            if name:
                weights[name] = values.astype(np.float64)
    return weights


def vocabulary(n_pieces=700, seed=2):
    """(tokens, scores): unknown, two marks, 256 bytes, then pieces of words whose order has
    nothing to do with their scores. Spaces are SentencePiece's mark."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(read_text().splitlines(keepends=True), trainers.BpeTrainer(
        vocab_size=n_pieces, show_progress=False))
    pieces = [trained.id_to_token(i) for i in range(trained.get_vocab_size())]
    pieces.sort(key=lambda piece: len(piece) == 1)  # characters have the lowest scores
    scored = [(piece, -float(rank)) for rank, piece in enumerate(pieces)]
    random.Random(seed).shuffle(scored)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)),
              *(piece for piece, _ in scored)]
    return tokens, [0.0] * 259 + [score for _, score in scored]


def write_tokenizer(path, tokens, scores):
    with open(path, "wb") as file:
        file.write(struct.pack("<i", max(len(t.encode()) for t in tokens)))
        for i, (token, score) in enumerate(zip(tokens, scores)):
            data = f"\n{token}\n" if i in (1, 2) else token.replace("\u2581", " ")
            file.write(struct.pack("<fi", score, len(data.encode())) + data.encode())
