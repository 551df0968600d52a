"""Small tokenizers of every style that the library reads, made by the `tokenizers` package.

Each is trained here and written as a Hugging Face directory has it. `styles` gives name ->
function of (trainer text) -> JSON object of a tokenizer.json.
"""
import functools
import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers import processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve"
         r"|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def added_tokens():
    """One of every kind; nasty.txt has them."""
    return [AddedToken("[LEFT]", lstrip=True, normalized=False),
            AddedToken("[RIGHT]", rstrip=True, normalized=False),
            AddedToken("[BOTH]", lstrip=True, rstrip=True, normalized=False),
            AddedToken("[WORD]", single_word=True, normalized=False),
            AddedToken("[NORM]", normalized=True), AddedToken("[ABC]", normalized=False),
            AddedToken("[ABCDE]", normalized=False), AddedToken("\u00e9t\u00e9", normalized=True),
            AddedToken("  ", normalized=True)]


def byte_level(text, split, special, normalizer=None, vocab=3000, **model):
    t = Tokenizer(models.BPE(**model))
    t.pre_tokenizer = split
    if normalizer:
        t.normalizer = normalizer
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=special, show_progress=False,
        initial_alphabet=sorted(pre.ByteLevel.alphabet())))
    return t


@functools.lru_cache
def trained_gpt2(text):
    return byte_level(text, pre.ByteLevel(add_prefix_space=False), ["<|endoftext|>"]).to_str()


def gpt2(text):
    return Tokenizer.from_str(trained_gpt2(text))


def gpt2_prefix(text):
    """With a space in front, added tokens, and merges as the older "a b"."""
    t = gpt2(text)
    t.pre_tokenizer = pre.ByteLevel(add_prefix_space=True)
    t.add_tokens(added_tokens())
    made = json.loads(t.to_str())
    made["model"]["merges"] = [" ".join(pair) for pair in made["model"]["merges"]]
    return made


def split_then_bytes(pattern):
    return pre.Sequence([pre.Split(Regex(pattern), "isolated"),
                         pre.ByteLevel(add_prefix_space=False, use_regex=False)])


def llama3(text):
    t = byte_level(text, split_then_bytes(LLAMA3), ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"],
                   ignore_merges=True)
    bos = t.token_to_id("<|begin_of_text|>")
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A",
                                      pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                                      special_tokens=[("<|begin_of_text|>", bos)])])
    return t


def llama3_holes(text):
    """ignore_merges matters: words that merges do not reach."""
    made = json.loads(llama3(text).to_str())
    made["model"]["merges"] = made["model"]["merges"][::2]
    kept, vocab = [], made["model"]["vocab"]
    for a, b in made["model"]["merges"]:
        if a in vocab and b in vocab and a + b in vocab:
            kept.append([a, b])
    made["model"]["merges"] = kept
    return made


def qwen2(text):
    t = byte_level(text, split_then_bytes(QWEN2), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
                   normalizer=normalizers.NFC())
    t.add_tokens(added_tokens())
    return t


def o200k(text):
    return byte_level(text, split_then_bytes(O200K), ["<|endoftext|>"])


def smollm(text):
    return byte_level(text, pre.Sequence([pre.Digits(individual_digits=True),
                                          pre.ByteLevel(add_prefix_space=False, use_regex=True)]),
                      ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])


def digits_together(text):
    return byte_level(text, pre.Sequence([pre.Digits(individual_digits=False),
                                          pre.ByteLevel(add_prefix_space=True, use_regex=False)]), [],
                      normalizer=normalizers.Sequence([normalizers.NFKC(),
                                                       normalizers.Replace(Regex(r"\s+"), " ")]))


@functools.lru_cache
def trained_sentencepiece(text, vocab=2000):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.Replace(" ", "\u2581")
    t.pre_tokenizer = pre.Metaspace(replacement="\u2581", prepend_scheme="always")
    t.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=vocab, limit_alphabet=150, show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>"]))
    return t.to_str()


def sentencepiece(text, byte_fallback=True, fuse_unk=True):
    """Llama-2's tokenizer.json: no pre-tokenizer, so that the whole text is one word."""
    t = Tokenizer.from_str(trained_sentencepiece(text))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                   decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", t.token_to_id("<s>"))])
    made = json.loads(t.to_str())
    made["pre_tokenizer"] = None
    made["model"]["fuse_unk"] = fuse_unk
    if byte_fallback:
        made["model"]["byte_fallback"] = True
        vocab = made["model"]["vocab"]
        for byte in range(256):
            vocab.setdefault(f"<0x{byte:02X}>", len(vocab))
    return made


def llama2(text):
    return sentencepiece(text)


def llama2_added(text):
    t = Tokenizer.from_str(json.dumps(sentencepiece(text)))
    t.add_tokens(added_tokens())
    return t


def llama2_metaspace(text):
    """As newer conversions have it: Metaspace instead of the normalizer."""
    made = sentencepiece(text)
    made["normalizer"] = None
    made["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first",
                             "split": False}
    return made


def metaspace_split(text):
    made = sentencepiece(text)
    made["normalizer"] = None
    made["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always",
                             "split": True}
    made["decoder"] = dict(made["pre_tokenizer"])
    return made


def unknown_fused(text):
    return sentencepiece(text, byte_fallback=False)


def unknown_apart(text):
    return sentencepiece(text, byte_fallback=False, fuse_unk=False)


def half_the_bytes(text):
    """Some bytes have tokens: those of a character must all have one."""
    made = sentencepiece(text)
    vocab = made["model"]["vocab"]
    for byte in range(0x90, 0xb0):
        vocab[f"gone {byte}"] = vocab.pop(f"<0x{byte:02X}>")
    return made


def merged_bytes(text):
    """Bytes and the unknown token take part in merges."""
    made = half_the_bytes(text)
    vocab, merges = made["model"]["vocab"], made["model"]["merges"]
    for a, b in (("<0xC3>", "<0x89>"), ("<0xE2>", "<0x80>"), ("<0xE2><0x80>", "<0x8A>"), ("<unk>", "e"),
                 ("\u2581", "<unk>"), ("<0xCC>", "<0x81>"), ("t", "<0xCC>")):
        vocab.setdefault(a + b, len(vocab))
        merges.insert(len(merges) // 2, [a, b])
    return made


def gemma(text):
    """Llama-2's, cut at spaces; a text has no space in front."""
    made = sentencepiece(text)
    made["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    made["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "},
                             "behavior": "MergedWithPrevious", "invert": False}
    made["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"}]}
    t = Tokenizer.from_str(json.dumps(made))
    t.add_tokens([AddedToken("<start_of_turn>", normalized=False),
                  AddedToken("\n\n\n", normalized=False)])
    return t


def cohere(text):
    t = byte_level(text, pre.Sequence([pre.Digits(individual_digits=True),
                                       pre.ByteLevel(add_prefix_space=False, use_regex=True)]),
                   ["<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>"], normalizer=normalizers.NFC())
    t.post_processor = processors.TemplateProcessing(
        single="<BOS_TOKEN> $A", pair="<BOS_TOKEN> $A <BOS_TOKEN>:1 $B:1",
        special_tokens=[("<BOS_TOKEN>", t.token_to_id("<BOS_TOKEN>"))])
    return t


def opt(text):
    """GPT-2's with a token in front."""
    t = byte_level(text, pre.ByteLevel(add_prefix_space=False), ["</s>", "<pad>"])
    t.post_processor = processors.TemplateProcessing(
        single="</s> $A", pair="</s> $A </s>:1 $B:1",
        special_tokens=[("</s>", t.token_to_id("</s>"))])
    return t


def phi3(text):
    """Llama-2's, whose added tokens take the white space behind them."""
    t = Tokenizer.from_str(json.dumps(sentencepiece(text)))
    t.add_tokens([AddedToken(name, rstrip=True, normalized=False)
                  for name in ("<|end|>", "<|user|>", "<|assistant|>")])
    return t


def split_behavior(behavior, invert, pattern):
    def make(text):
        t = gpt2(text)
        t.pre_tokenizer = pre.Sequence([pre.Split(pattern, behavior, invert),
                                        pre.ByteLevel(add_prefix_space=False, use_regex=False)])
        return t
    return make


def no_decoder(text):
    made = json.loads(smollm(text).to_str())
    made["decoder"] = None
    return made


styles = {f.__name__: f for f in (
    gpt2, gpt2_prefix, gemma, cohere, opt, phi3, llama3, llama3_holes, qwen2, o200k, smollm, digits_together, llama2, llama2_added,
    llama2_metaspace, metaspace_split, unknown_fused, unknown_apart, half_the_bytes, merged_bytes,
    no_decoder)}
for _behavior in ("isolated", "removed", "contiguous", "merged_with_previous", "merged_with_next"):
    for _invert in (False, True):
        styles[f"split_{_behavior}_{_invert}"] = split_behavior(_behavior, _invert, Regex(r"\s|[aeiou]+|\w(?=\d)"))
styles["split_string"] = split_behavior("merged_with_next", False, " t")


def make(style, text):
    """The tokenizer.json of a style as text, and the reference that reads it; text is a tuple."""
    made = styles[style](text)
    text = json.dumps(made, ensure_ascii=False) if isinstance(made, dict) else made.to_str()
    return text, Tokenizer.from_str(text)
