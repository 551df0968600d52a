#!/usr/bin/env python3
"""Times the library's tokenizer against the `tokenizers` package, one thread each.

    bench_tokenizer.py --tokenize build/tokenize [--text FILE] [--runs 9] [--out FILE]

Run it with the Python of build/venv. The text is the test split of WikiText-2, whole and line by
line. Both encode the same text in turn, with the same tokenizers, small ones trained by
tests/engine/reference_tokenizers.py; the ids must be the same. Neither time includes opening the
tokenizer; both have warm caches of words. The package is given its faster way, encode_batch_fast,
which does not compute offsets.
"""
import argparse
import json
import os
import platform
import statistics
import struct
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "engine"))
import tokenizers  # noqa: E402
import reference_tokenizers as reference  # noqa: E402

STYLES = ("gpt2", "llama3", "qwen2", "smollm", "llama2")
WIKITEXT = os.path.join(ROOT, "..", "shared", "data", "wikitext-2", "wiki.test.raw")


def put(path, data):
    with open(path, "wb") as file:
        file.write(data)
    return path


def ours(tokenize, directory, texts, times):
    command = [tokenize, "--special", *(["--time", str(times)] if times else []), directory, texts]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    lines = done.stdout.decode().split("\n")[:-1]
    return [float(line) for line in lines] if times else [[int(i) for i in line.split()] for line in lines]


def theirs(tokenizer, texts, times):
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        tokenizer.encode_batch_fast(texts)
        seconds.append(time.perf_counter() - start)
    return seconds


def case(options, directory, tokenizer, texts, name):
    path = put(os.path.join(directory, "texts"),
               b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in texts))
    wanted = [e.ids for e in tokenizer.encode_batch_fast(texts)]
    if ours(options.tokenize, directory, path, 0) != wanted:
        sys.exit(f"{name}: other ids than the reference's")
    n_bytes = sum(len(t.encode()) for t in texts)
    samples = {"gac": [], "tokenizers": []}
    for _ in range(options.runs):  # in turn; the first of two warms up
        samples["gac"].append(ours(options.tokenize, directory, path, 2)[1])
        samples["tokenizers"].append(theirs(tokenizer, texts, 2)[1])
    median = {who: statistics.median(s) for who, s in samples.items()}
    return {"style": name, "n_texts": len(texts), "n_bytes": n_bytes, "n_tokens": sum(map(len, wanted)),
            "gac_s": median["gac"], "tokenizers_s": median["tokenizers"],
            "gac_mb_per_s": n_bytes / 1e6 / median["gac"],
            "tokenizers_mb_per_s": n_bytes / 1e6 / median["tokenizers"],
            "times_faster": median["tokenizers"] / median["gac"], "samples_s": samples}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenize", required=True)
    parser.add_argument("--text", default=WIKITEXT)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--out")
    options = parser.parse_args()
    if not os.path.exists(options.text):
        sys.exit(f"{options.text}: no such file; name a text with --text")
    with open(options.text, "rb") as file:
        text = file.read().decode()
    results = []
    for style in STYLES:
        with tempfile.TemporaryDirectory() as directory:
            made, tokenizer = reference.make(style, tuple(text.split("\n")))
            put(os.path.join(directory, "tokenizer.json"), made.encode())
            for texts in ([text], text.splitlines(keepends=True)):
                result = case(options, directory, tokenizer, texts, style)
                results.append(result)
                print(f"{style:8} {len(texts):5} texts: gac {result['gac_mb_per_s']:6.1f} MB/s, "
                      f"tokenizers {result['tokenizers_mb_per_s']:6.1f} MB/s, "
                      f"{result['times_faster']:.1f} times as fast", flush=True)
    report = {"schema": "gac.bench-tokenizer/1", "text": os.path.basename(options.text),
              "tokenizers": tokenizers.__version__, "python": platform.python_version(),
              "machine": {"arch": platform.machine(), "cores": os.cpu_count(), "system": platform.system(),
                          "release": platform.release()},
              "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "runs": options.runs,
              "results": results}
    if options.out:
        put(options.out, (json.dumps(report, indent=1) + "\n").encode())


main()
