#!/usr/bin/env python3
"""Do real chat templates give our prompts and those of transformers alike?

    python3 compare.py --chat-prompt build/tests/chat_prompt --out result.json FOLDER...

A FOLDER holds templates, *.jinja. --unindent FOLDER: a folder whose templates are indented for
readers; published ones are not, so four spaces and line ends are taken out of them. Each template
gets nine kinds of messages. "same": all prompts are the same, and where transformers refuses,
so do we. "neither": nobody makes any prompt (the template needs tools). "refused": we refuse a
prompt that transformers makes. "differs": anything else.
Exit 5 if one differs.
"""
import argparse
import json
import logging
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "engine"))
import test_chat  # noqa: E402  pylint: disable=wrong-import-position

MESSAGES = test_chat.MESSAGES + [{"user": "Hi /no_think"}, {"user": "", "system": ""},
                                 {"user": "Hi", "system": ""}, {"user": " \u00e9 "}]


def theirs(tokenizer, message):
    messages = [{"role": "user", "content": message["user"]}]
    if "system" in message:
        messages.insert(0, {"role": "system", "content": message["system"]})
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception:  # pylint: disable=broad-exception-caught
        return None


def compare(args, text):
    """What became of a template, and why."""
    import transformers
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        test_chat.write_tokenizer(folder)
        test_chat.write_config(folder, None)
        (folder / "chat_template.jinja").write_text(text, encoding="utf-8")
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=scratch + "/tokenizer.json", bos_token=test_chat.TOKENS[0],
            eos_token=test_chat.TOKENS[1], chat_template=text)
        verdict, why, n_made = "same", None, 0
        for message in MESSAGES:
            expected = theirs(tokenizer, message)
            n_made += expected is not None
            system = [message["system"]] if "system" in message else []
            result = subprocess.run([args.chat_prompt, scratch, message["user"], *system],
                                    capture_output=True, check=False, encoding="utf-8")
            if result.returncode == 0 and json.loads(result.stdout)["prompt"] != expected:
                return "differs", message
            if result.returncode not in (0, 2, 3):
                return "differs", f"exit status {result.returncode}"
            if result.returncode != 0 and expected is not None:
                verdict, why = "refused", result.stderr.strip().split(": ", 1)[1]
    return ("neither", why) if n_made == 0 else (verdict, why)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chat-prompt", required=True, help="the program tests/chat_prompt")
    parser.add_argument("--unindent", action="append", default=[])
    parser.add_argument("--out", required=True)
    parser.add_argument("folders", nargs="*")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    import transformers
    rows = []
    for folder in args.folders + args.unindent:
        for path in sorted(pathlib.Path(folder).glob("*.jinja")):
            text = path.read_text(encoding="utf-8")
            if folder in args.unindent:
                text = text.replace("    ", "").replace("\n", "")
            verdict, why = compare(args, text)
            rows.append({"template": path.name, "verdict": verdict, "why": why})
            print(f"{verdict:8s} {path.name}{': ' + str(why) if why else ''}", flush=True)
    counts = {verdict: sum(r["verdict"] == verdict for r in rows)
              for verdict in ("same", "neither", "refused", "differs")}
    result = {"schema": "gac.chat-check/1", "command": sys.argv, "messages": MESSAGES,
              "transformers": transformers.__version__, **counts, "rows": rows}
    pathlib.Path(args.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(counts)
    return 5 if counts["differs"] else 0


if __name__ == "__main__":
    sys.exit(main())
