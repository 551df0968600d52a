#!/usr/bin/env python3
"""Language models inside of vision-language models: does gac pad their MLPs and experts?

    nested.py GAC OUT.json

transformers makes tiny random models with odd widths in the language model. gac repairs them,
transformers loads the results, and the logits of a text are compared in float32. Exit 1 if a result
does not load or differs by more than 1e-5.
"""
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import architectures  # noqa: E402
import matrix  # noqa: E402

NAMES = """
gemma3 gemma4 mistral3 qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5 qwen3_5_moe glm4v glm4v_moe
llava llava_next paligemma internvl aya_vision idefics3 smolvlm lfm2_vl deepseek_vl mllama
""".split()
SIZES = dict(architectures.EVEN, mlp=architectures.ODD["mlp"], expert=architectures.ODD["expert"])
# Parts of each head that rotate by time, height and width.
ROTATED = {name: [2, 3, 3] for name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe",
                                        "qwen3_5", "qwen3_5_moe", "glm4v")}
ROTATED["glm4v_moe"] = [2, 1, 1]
VISION = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, depth=1, num_heads=2,
              num_attention_heads=2, embed_dim=32, image_size=28, patch_size=14, out_hidden_size=64,
              projection_dim=32, fullatt_block_indexes=[0], deepstack_visual_indexes=[0])
MORE = {"block_auto_adjust_ff_dim": False, "layer_types": None}


def plain(config):
    skip = ("transformers_version", "model_type", "architectures", "per_layer_config")
    return {k: v for k, v in config.to_dict().items() if k not in skip}


def make(name):
    whole = CONFIG_MAPPING[name]()
    text = whole.get_text_config()
    stated = plain(text)
    for key, value in {**architectures.KEYS, **MORE}.items():
        if key in stated and not isinstance(stated[key], dict):
            stated[key] = SIZES.get(value, value) if isinstance(value, str) else value
    if name in ROTATED:
        stated["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0,
                                     "mrope_section": ROTATED[name]}
    if name == "glm4v_moe":
        stated["rope_parameters"]["partial_rotary_factor"] = 0.5
    if name.startswith("qwen3_5"):
        stated["layer_types"] = ["linear_attention", "full_attention"]
    parts = {"text_config": type(text)(**stated).to_dict()}
    if whole.vision_config is not None:
        vision = plain(whole.vision_config)
        vision.update({k: v for k, v in VISION.items() if k in vision})
        if name == "qwen2_vl":
            vision["hidden_size"] = 64  # the tower's output
        parts["vision_config"] = vision
    config = CONFIG_MAPPING[name](**parts)
    return AutoModelForImageTextToText.from_config(config, experts_implementation="eager").eval()


def run(gac, name, work):
    source, out = work + "/source", work + "/out"
    try:
        model = make(name)
        matrix.randomise(model, 1)
        model.save_pretrained(source)
        tokens = torch.arange(5, 22)[None]
        with torch.no_grad():
            before = model(input_ids=tokens).logits.double()
    except Exception as error:  # gac is not at fault
        return {"model_type": name, "not_made": " ".join(str(error).split())[:160]}
    done = subprocess.run([gac, "repair", source, "-o", out, "--no-sync", "--strategy", "minimal",
                           "--json", "-q"], capture_output=True, text=True)
    if done.returncode:
        return {"model_type": name, "outcome": "refused",
                "reason": matrix.without_paths(done.stderr.strip().splitlines()[-1], source)}
    said = json.loads(done.stdout)
    sizes = sorted({f"{d['from']} to {d['to']}" for d in said["dims"] if d["from"] != d["to"]})
    row = {"model_type": name, "understood_pct": said["understood_pct"], "sizes": sizes}
    if not sizes:
        return {**row, "outcome": "nothing"}
    try:
        loaded, info = AutoModelForImageTextToText.from_pretrained(
            out, dtype=torch.float32, output_loading_info=True, experts_implementation="eager")
        wrong = {k: len(v) for k, v in info.items() if v}
        with torch.no_grad():
            after = loaded.eval()(input_ids=tokens).logits.double()
        error = ((after - before).norm() / before.norm()).item()
    except Exception as problem:
        return {**row, "outcome": "FAILED", "reason": " ".join(str(problem).split())[:200]}
    if wrong or not error <= matrix.WITHIN:
        return {**row, "outcome": "FAILED", "reason": f"{wrong}, logits differ by {error:.1e}"}
    return {**row, "outcome": "repaired", "error": f"{error:.0e}" if error else "0"}


def main(gac, out):
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(1)
    rows = []
    for name in NAMES:
        with tempfile.TemporaryDirectory() as work:
            rows.append(run(gac, name, work))
        print(rows[-1]["model_type"], rows[-1].get("outcome", "not made"),
              rows[-1].get("reason", ""), flush=True)
    failed = sum(r.get("outcome") == "FAILED" for r in rows)
    result = {"schema": "gac.experiment/1", "id": "families-nested",
              "command": "nested.py " + " ".join(map(os.path.relpath, (gac, out))),
              "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
              "machine": {"torch": torch.__version__, "transformers": transformers.__version__,
                          "device": "cpu"}, "n_failed": failed, "rows": rows}
    with open(out, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1, allow_nan=False)
        file.write("\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
