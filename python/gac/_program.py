"""Runs the program that is inside this package.

The program is the one place that makes the result documents (``--json``), and every signal, failed
allocation and full disk in it is tested. It runs as a process of its own, so that neither its
memory nor its threads nor a lost file touch the caller's."""
from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any, Protocol

from gac.errors import BY_STATUS, CheckFailed, GacError, GacWarning

PROGRAM = pathlib.Path(__file__).resolve().parent / "bin" / "gac"
# What gac_progress_step writes where there is no terminal (src/base/progress.c).
PROGRESS = re.compile(r"(?P<what>[^:]+): (?P<done>\d+) of (?P<total>\d+) (?P<unit>\S+) \(")
PREFIX = "gac: "  # of the line that says why the program failed


class Bar(Protocol):
    """The part of tqdm that is used."""

    n: float
    total: float | None

    def refresh(self) -> Any: ...
    def close(self) -> None: ...


def cuda_folders() -> list[str]:
    """Where NVIDIA's packages for Python have their libraries. The loader does not look there."""
    if not (PROGRAM.parent.parent / "lib" / "gac" / "libgac_cuda.so").exists():
        return []
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec else None
    return sorted(str(found) for place in places or [] for found in pathlib.Path(place).glob("*/lib"))


def environment() -> dict[str, str]:
    """The environment of the program."""
    before = os.environ.get("LD_LIBRARY_PATH")
    folders = cuda_folders() + ([before] if before else [])
    return {**os.environ, **({"LD_LIBRARY_PATH": ":".join(folders)} if folders else {})}


def main() -> None:
    """The command ``gac``: becomes the program."""
    os.execve(PROGRAM, ["gac", *sys.argv[1:]], environment())


def make_bar(what: str, unit: str, done: int, total: int) -> Bar | None:
    """A bar of tqdm, or None where there is no tqdm."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a notebook without ipywidgets gets a bar of text
            from tqdm.auto import tqdm
    except ImportError:
        return None
    bar: Bar = tqdm(initial=done, total=total, desc=what, unit=" " + unit, unit_scale=True,
                    leave=False)
    return bar


class Watcher:
    """Reads what the program says while it works: progress becomes bars, and all else is kept."""

    def __init__(self, progress: bool) -> None:
        self.progress = progress
        self.lines: list[str] = []
        self.bar: Bar | None = None
        self.what = ""

    def read(self, stream: Iterator[str]) -> None:
        for line in stream:
            found = PROGRESS.match(line)
            if found and self.progress:
                try:
                    self.show(found["what"], int(found["done"]), int(found["total"]), found["unit"])
                except Exception:  # a bar that fails must not stop the reading
                    self.progress = False
            elif not found:
                self.lines.append(line.rstrip("\n"))
        self.close()

    def show(self, what: str, done: int, total: int, unit: str) -> None:
        if what != self.what:
            self.close()
            self.bar, self.what = make_bar(what, unit, done, total), what
        if self.bar:
            self.bar.n, self.bar.total = done, total
            self.bar.refresh()

    def close(self) -> None:
        if self.bar:
            self.bar.close()
        self.bar, self.what = None, ""


def wait(process: subprocess.Popen[str], watcher: Watcher) -> str:
    """Returns what the process prints. An interrupt is passed on, and raised when the process has
    tidied up and ended."""
    assert process.stdout and process.stderr
    interrupted = None
    text = ""
    reader = threading.Thread(target=watcher.read, args=(process.stderr,), daemon=True)
    reader.start()
    while process.returncode is None or reader.is_alive():
        try:
            text += process.stdout.read()
            process.wait()
            reader.join()
        except KeyboardInterrupt as error:
            interrupted = error
            process.send_signal(signal.SIGINT)
    if interrupted:
        raise interrupted
    return text


def explain(status: int, lines: list[str]) -> GacError:
    """The exception for a program that ended with status."""
    if status < 0:
        name = signal.Signals(-status).name
        return GacError(f"the program was ended by {name}"
                        + (": the machine may be out of memory" if name == "SIGKILL" else ""))
    reason = next((line for line in reversed(lines) if line.startswith(PREFIX)), "")
    return BY_STATUS.get(status, GacError)(reason.removeprefix(PREFIX) or f"gac ended with {status}")


def run(arguments: list[str], progress: bool = True,
        folder: str | None = None) -> dict[str, Any]:
    """Runs a command, by default in the current folder, and returns its result document."""
    watcher = Watcher(progress)
    # A session of its own: Ctrl-C in a terminal reaches the program once, from wait(). It ends
    # with this process nevertheless (GAC_PARENT).
    process = subprocess.Popen([PROGRAM, *arguments], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
                               errors="backslashreplace", start_new_session=True, cwd=folder,
                               env={**environment(), "GAC_PARENT": str(os.getpid())})
    with process:
        text = wait(process, watcher)
    status = process.returncode
    document: dict[str, Any] = json.loads(text) if text and status in (0, CheckFailed.status) else {}
    if status != 0:
        error = explain(status, watcher.lines)
        error.document = document
        raise error
    for line in watcher.lines:
        warnings.warn(line.removeprefix("note: "), GacWarning, stacklevel=3)
    return document
