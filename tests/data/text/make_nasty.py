#!/usr/bin/env python3
"""Writes nasty.txt beside itself: text that breaks tokenizers.

The file is binary, with bytes that are not UTF-8; texts are separated by the
line "%%". tests/engine/test_tokenizer.py checks that it is what this writes.
"""
import os
import random

TEXTS = [
    "Plain words, and don't they're we've I'm he'll she'd it's. DON'T THEY'RE IT'S",
    "tabs\tand\t\ttabs  double   triple    quadruple     spaces ",
    " leading", "  two leading", "trailing ", "trailing two  ", " ", "  ", "\n", "\n\n", " \n ",
    "\r\n windows \r\n\r\n lines\r", "line\n\n\nbreaks \n \n with spaces\n", "\t\n\v\f\r\x1c\x1d\x1e\x1f",
    "1 12 123 1234 12345 3.14159 1,000,000 0x1F 1e-9 ١٢٣٤ ४५६ Ⅷ ½ ² ₃ ①②③ 一二三 𝟘𝟙𝟚",
    "!!! ... ??? ---- ==== #### @@ $$ %% ^^ && ** (( )) [[ ]] {{ }} << >> // \\\\ || ~~ `` '' \"\"",
    "emoji 😀 😃😄 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 ❤️ ☕️ 🧑🏿‍🚀 1️⃣ ™️ 🫠",
    "漢字とひらがなとカタカナ、句読点。全角　スペース！ 한국어 텍스트 조합 中文字符，没有空格",
    "한글 자모 ㅎㅏㄴ 한 각 각", "ไทย ภาษาไทยไม่มีช่องว่าง ລາວ မြန်မာ ខ្មែរ",
    "עברית مع العربية, ‏RTL‏ and ‎LTR‎ marks, فارسی‌ها, שָׁלוֹם",
    "Ελληνικά Кириллица ქართული Հայերեն አማርኛ ᏣᎳᎩ ᚠᚢᚦ 𐌰𐌱𐌲 𒀀𒁀 𓀀𓂀",
    "NFC: \u00e9 e\u0301 \u00f1 n\u0303 \u00c5 A\u030a \u212b \u1ec7 e\u0323\u0302 e\u0302\u0323 \ufb01 \ufb02 \u017f \u01c6 \u03a9 \u2126 K \u212a",
    "\u1100\u1161 \u1100\u1161\u11a8 \uac00\u11a8 \ud7a3 \u1112\u1175\u11c2 \u0958 \u2adc \U0001d15e \u0344 \u0f73",
    "q\u0307\u0323 q\u0323\u0307 a\u0328\u0301 a\u0301\u0328 \u1ea1\u0301 \u00e1\u0323 \u0301 starts with a mark",
    "a" + "\u0301\u0323\u0327" * 40 + " zalgo " + "".join("z" + "\u0315\u0300\u0317\u035f" for _ in range(9)),
    "spaces: [\u00a0][\u1680][\u2000][\u2003][\u2009][\u200a][\u2028][\u2029][\u202f][\u205f][\u3000]",
    "no spaces: [\u180e][\u200b][\u200c][\u200d][\u2060][\ufeff][\u00ad][\u034f][\u061c]",
    "\u00a0\u00a0nbsp \u3000\u3000ideographic \u2003\u2003em\u2028line\u2029para\u0085next",
    "\ufeffbyte order mark", "controls: " + "".join(map(chr, range(1, 32))) + "\x7f" + "".join(map(chr, range(0x80, 0xa0))),
    "nul \x00 inside \x00\x00", "\x00", "\x7f\x7f",
    "private \ue000\uf8ff\U000f0000\U0010fffd non \ufdd0\ufffe\uffff\U0001ffff\U0010ffff",
    "replacement � �� itself", "tags \U000e0001\U000e0041 variation \ufe0e\ufe0f\U000e0100",
    "ıİ ß ẞ ŉ ǰ ΐ ﬀ ſt ﬆ Ⅷ ⅷ İ'S I'ſ 'ſ 'K it'ſ IT'LL it'Ll",
    "<|endoftext|>", "a<|endoftext|>b <|endoftext|> c", "<|im_start|>user\nhi<|im_end|>\n",
    "<|begin_of_text|>text<|eot_id|>", "<s>one</s><s> two </s> <unk> <0x41> <0x0A> < s> <s", "<|endoftext", "|>",
    "  [LEFT]  [RIGHT]  [BOTH]  x[WORD]y [WORD] _[WORD] [WORD]é -[WORD]-  [NORM]x[NORM] [LEFT][RIGHT]  [LEFT]",
    "[LEFT\u3000[LEFT]\u2003\n [RIGHT]\n\t [BOTH]\u00a0[BOTH] ABC[ABCDE]ABCD[ABC] e\u0301t\u00e9 \u00e9te\u0301",
    "▁ ▁▁ ▁a ▁ b a▁b ▁<s>▁", "Ġ ĠĠ Ġhello Ċ Ã© Ā ł Ń", "snake_case camelCase kebab-case path/to/file.txt C:\\x",
    "def f(x):\n    if x:\n\t\treturn [i**2 for i in range(10)]\n\n\n    # done\n",
    "{\"key\": [1, 2, {\"nested\": null}], \"esc\": \"\\u00e9\\n\"}", "https://example.org/?q=a+b&c=%20#frag me@example.org",
    "Ünïcödé çàfé naïve coöperate Ærøskøbing Łódź Đà Nẵng İstanbul", "𝒽ℯ𝓁𝓁ℴ 𝕨𝕠𝕣𝕝𝕕 ｆｕｌｌ ｗｉｄｔｈ ⓒⓘⓡⓒⓛⓔ",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "hahahahahahahahahahahahahahahahahahahahaha abababababababababab theththethethethe", "=" * 300, " " * 200 + "x",
    "\n" * 100, "\t" * 77 + "\n", "é" * 150, "😀" * 60, "漢" * 90, "' 's 't '' ''s ' s I' 're're 'll'll'd",
]

BROKEN = [
    b"\xff", b"\xfe\xff", b"\x80", b"\xbf\x80\xbf", b"a\x80b", b"\xc3", b"\xc3(", b"\xc0\x80", b"\xc1\xbf", b"\xe2\x82",
    b"\xe2\x82 \xe2(\xa1", b"\xe0\x80\x80", b"\xe0\x9f\xbf", b"\xed\xa0\x80\xed\xb0\x80", b"\xed\x9f\xbf ok",
    b"\xf0\x9f\x98", b"\xf0\x9f\x98\xf0\x9f\x98\x80", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80",
    b"\xf8\x88\x80\x80\x80", b"word\xe9word \xa0 latin-1 caf\xe9", b" \xff \xff\xff  \xff\n", b"ends in half \xe6\xbc",
    b"<|endoftext|>\xff<|endoftext|>", b"[LEFT]\xc3[RIGHT]\xc3 [WORD]\xc3",
]


def nasty():
    rng = random.Random(20240611)
    texts = [text.encode("utf-8", "surrogatepass") for text in TEXTS] + BROKEN
    for _ in range(12):
        texts.append(bytes(rng.randrange(256) for _ in range(rng.randrange(1, 200))))
    for _ in range(12):
        texts.append("".join(chr(rng.choice((rng.randrange(1, 0x250), rng.randrange(0x300, 0x2000),
                                             rng.randrange(0x3000, 0xa000), 32)))
                             for _ in range(rng.randrange(1, 120))).encode())
    return b"\n%%\n".join(texts)


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "nasty.txt"), "wb") as out:
        out.write(nasty())
