#!/usr/bin/env python3
"""Makes the figures of the documents from committed results, with gac report --figures.

    python3 docs/figures/make.py build/gac

The line of gac is from results of gac eval, on a CPU. The other lines are from methods.py, on an H200.
Its results become documents of gac eval here: the parameters of a model are those of the dense one
without the removed share of the linear weights.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
METHODS = ROOT / "experiments/validation/compress/h200.methods.json"
TEXT = "wiki.test.raw"
N_PARAMS = 134515008  # of SmolLM2-135M
N_LINEAR = 30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536)  # in its blocks
SHOWN = {"asvd": "ASVD", "svd-llm": "SVD-LLM",
         "svd-llm, rounded to 64": "SVD-LLM, rounded to 64"}


def evaluations():
    """The rows of methods.py as documents of gac eval."""
    found = json.loads(METHODS.read_text(encoding="utf-8"))

    def document(name, compressor, share, perplexity):
        return {"schema": "gac.eval/1", "tool": {"version": found["gac"][0].split()[1]},
                "time": found["time"], "device_facts": {"gpu": "NVIDIA H200"},
                "checkpoint": {"path": name, "compressor": compressor,
                               "n_params": round(N_PARAMS - (1 - share) * N_LINEAR)},
                "device": "cuda", "dtype": "F16", "perplexity": {**perplexity, "file": "WikiText-2"}}

    yield document("dense", "dense", 1, found["dense"][TEXT])
    for row in found["rows"]:
        if row["name"] in SHOWN:
            yield document(SHOWN[row["name"]], "gac", row["kept"], row["perplexity"][TEXT])
    for percent in (60, 70, 80, 90):  # with gradients, measured on a CPU
        result = json.loads((METHODS.parent / f"smollm2-k{percent}-wiki.json").read_text("utf-8"))
        result["checkpoint"]["path"] = "gac, all aligned"
        result["perplexity"]["file"] = "WikiText-2"
        yield result


def main():
    gac = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        results = [folder / "eval.json", ROOT / "experiments/published/S1/h200.pytorch.json",
                   ROOT / "experiments/published/G3/h200.native.json"]
        results[0].write_text(json.dumps(list(evaluations())), encoding="utf-8")
        subprocess.run([gac, "report", *results, "-o", folder / "page.html", "--figures",
                        folder / "figures"], check=True, stdout=subprocess.DEVNULL)
        for figure, file in (("S1-pytorch-heads", "attention.png"), ("G3-native-short", "gemm.png"),
                             ("perplexity", "perplexity.png")):
            made, = (folder / "figures").glob(f"*-{figure}.png")
            (ROOT / "docs/figures" / file).write_bytes(made.read_bytes())


if __name__ == "__main__":
    main()
