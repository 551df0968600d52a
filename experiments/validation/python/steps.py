"""What a new user does with the wheel, in a root that has Python and nothing else. Run by
clean_root.sh; writes result.json beside itself."""
import json
import pathlib
import platform
import subprocess
import sys
import time

import gac

TINY, WORK = pathlib.Path("/tiny"), pathlib.Path("/tmp/work")
TEXT = TINY / "heldout.txt"
steps = []


def step(name, call):
    started = time.monotonic()
    found = call()
    steps.append({"step": name, "found": found, "seconds": round(time.monotonic() - started, 2)})
    print(f"{name}: {found}", flush=True)


def command(*words):
    done = subprocess.run([pathlib.Path(sys.prefix, "bin", "gac"), *words], check=True,
                          stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def compress():
    return repr(gac.compress(TINY, WORK / "svd", ratio=0.2, text=TEXT, calib_tokens=2048,
                             method="svd-llm", align="none"))


def load():
    try:
        import torch
        import transformers
    except ImportError as missing:
        return f"skipped: {missing}"
    before, after = (gac.load(WORK / name, dtype="float32") for name in ("svd", "fit"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(WORK / "fit")
    prompt = tokenizer("The file system", return_tensors="pt")
    with torch.no_grad():
        difference = (before(**prompt).logits - after(**prompt).logits).abs().max().item()
    made = after.generate(**prompt, max_new_tokens=16, do_sample=False)
    return {"torch": torch.__version__, "transformers": transformers.__version__,
            "largest_difference_of_a_logit": difference, "text": tokenizer.decode(made[0])}


WORK.mkdir(parents=True)
step("gac --version", lambda: command("--version"))
step("gac inspect", lambda: command("inspect", str(TINY)).splitlines()[-1])
step("compress", compress)
step("inspect", lambda: repr(gac.inspect(WORK / "svd")))
step("repair", lambda: repr(gac.repair(WORK / "svd", WORK / "fit")))
step("verify", lambda: repr(gac.verify(WORK / "svd", WORK / "fit", forward=True)))
step("dim", lambda: repr(gac.dim((4096, 14336), keep=0.8)))
step("gac generate", lambda: command("generate", str(WORK / "fit"), "The file system",
                                     "--max-tokens", "16", "--temperature", "0"))
step("load and generate", load)
result = {"python": platform.python_version(), "glibc": platform.libc_ver()[1],
          "system": platform.freedesktop_os_release()["PRETTY_NAME"], "gac": gac.__version__,
          "steps": steps}
pathlib.Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=1) + "\n")
