#!/usr/bin/env python3
"""Our chat prompts against those that transformers makes of the same templates.

    test_chat.py CHAT_PROMPT CASES          CASES is tests/data/chat/cases.json
    test_chat.py --write CASES TEMPLATES    makes CASES by transformers from a JSON
                                            object: name -> template

A case has a template and what apply_chat_template gives for messages with it; null where it
refuses them, and so must we. DATE stands for today's date. A template that uses what is not
known here has "refused", which is part of what we say; it never gets a prompt.
"""
import datetime
import json
import pathlib
import subprocess
import sys
import tempfile

MESSAGES = [{"user": "Hi"}, {"user": "What is 2 + 2?\n\nSay why: \u00e9\u4f60"},
            {"user": "Hi", "system": "Be brief."},
            {"user": "  Hi \n", "system": " Be brief. "},
            {"user": "{{ 'a' }} {% if %} \\n \"'<s>", "system": ""}]
TOKENS = ["<s>", "</s>"]


def today():
    return datetime.date.today().strftime("%d %b %Y")


def write_tokenizer(folder):
    vocab = {token: i for i, token in enumerate(TOKENS + ["a"])}
    added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, token in enumerate(TOKENS)]
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
              "use_regex": False}
    tokenizer = {"version": "1.0", "added_tokens": added, "normalizer": None,
                 "pre_tokenizer": bytes_, "post_processor": None, "decoder": bytes_,
                 "model": {"type": "BPE", "vocab": vocab, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")


def write_config(folder, template):
    config = {"bos_token": TOKENS[0], "eos_token": TOKENS[1]}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def find_end(tokenizer):
    """The token with which the template ends an answer, or None."""
    messages = [{"role": "user", "content": "Question"}, {"role": "assistant", "content": "Answer"}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception:  # pylint: disable=broad-exception-caught
        return None
    after = text.partition("Answer")[2].lstrip()
    ends = [token for token in tokenizer.all_special_tokens if after.startswith(token)]
    return ends[0] if ends else None


def make_cases(target, source):
    import jinja2
    from transformers import PreTrainedTokenizerFast
    cases = []
    for name, entry in json.loads(pathlib.Path(source).read_text(encoding="utf-8")).items():
        entry = {"template": entry} if isinstance(entry, str) else entry
        with tempfile.TemporaryDirectory() as scratch:
            write_tokenizer(pathlib.Path(scratch))
            tokenizer = PreTrainedTokenizerFast(
                tokenizer_file=scratch + "/tokenizer.json", bos_token=TOKENS[0],
                eos_token=TOKENS[1], chat_template=entry["template"])
            entry["end"] = None if "refused" in entry else find_end(tokenizer)
            rows = [{**MESSAGES[0], "prompt": None}] if "refused" in entry else []
            for m in [] if rows else MESSAGES:
                messages = [{"role": "system", "content": m["system"]}] if "system" in m else []
                messages.append({"role": "user", "content": m["user"]})
                try:
                    prompt = tokenizer.apply_chat_template(messages, tokenize=False,
                                                           add_generation_prompt=True)
                except (jinja2.exceptions.TemplateError, TypeError):
                    prompt = None
                rows.append({**m, "prompt": prompt and prompt.replace(today(), "DATE")})
            cases.append({"name": name, **entry, "cases": rows})
    pathlib.Path(target).write_text(json.dumps(cases, indent=1) + "\n", encoding="utf-8")


def check(program, folder, entry, message):
    """Returns what is wrong, or None."""
    system = [message["system"]] if "system" in message else []
    result = subprocess.run([program, folder, message["user"], *system], capture_output=True,
                            check=False, encoding="utf-8")
    expected = message["prompt"]
    if "refused" in entry:
        said = result.returncode == 3 and "its chat template is not known here" in result.stderr \
            and entry["refused"] in result.stderr
        return None if said and result.stderr.count("\n") == 1 else \
            f"is not refused: {result.stderr}{result.stdout}"
    if expected is None:
        said = result.returncode in (2, 3) and "its chat template" in result.stderr
        return None if said else f"messages are not refused: {result.stdout}"
    if result.returncode != 0:
        return result.stderr
    answer = json.loads(result.stdout)
    expected = expected.replace("DATE", today())
    if answer["prompt"] != expected or answer["end"] != entry.get("end"):
        return f"{answer}, not {expected!r} and {entry.get('end')}"
    return None


def run(program, cases):
    n_run = n_failed = 0
    for entry in json.loads(pathlib.Path(cases).read_text(encoding="utf-8")):
        for in_file in (False, True):
            with tempfile.TemporaryDirectory() as scratch:
                folder = pathlib.Path(scratch)
                write_tokenizer(folder)
                # A template in a file of its own goes before that of the config.
                write_config(folder, "{{ 'another' }}" if in_file else entry["template"])
                if in_file:
                    (folder / "chat_template.jinja").write_text(entry["template"],
                                                                encoding="utf-8")
                for message in entry["cases"]:
                    wrong = check(program, folder, entry, message)
                    n_run += 1
                    n_failed += wrong is not None
                    if wrong:
                        print(f"FAIL {entry['name']}: {wrong}")
    with tempfile.TemporaryDirectory() as scratch:
        write_tokenizer(pathlib.Path(scratch))
        write_config(pathlib.Path(scratch), None)
        result = subprocess.run([program, scratch, "Hi"], capture_output=True, check=False)
        n_run += 1
        if result.returncode != 0 or json.loads(result.stdout)["prompt"] is not None:
            n_failed += 1
            print("FAIL a directory without a template")
    print(f"{n_run} prompts, {n_failed} failed")
    return 1 if n_failed or n_run < 400 else 0


def main():
    if sys.argv[1] == "--write":
        make_cases(*sys.argv[2:])
        return 0
    return run(*sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
