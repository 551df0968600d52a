"""The commands as functions. docs/command-line.md and ``gac COMMAND --help`` say more about each
option; an option that is left out has the program's default.

All functions raise :class:`gac.GacError` or a class below it. Ctrl-C, or the stop button of a
notebook, ends the work, removes what is half-written and raises KeyboardInterrupt."""
from __future__ import annotations

import json
import os
import pathlib
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Union, overload

from gac import _program
from gac.errors import CheckFailed, UsageError
from gac.results import (Compression, Front, Inspection, Page, Plan, RankAdvice, Repair, Result,
                         SizeAdvice, Verification)

Path = Union[str, "os.PathLike[str]"]
Strategy = Literal["minimal", "multiple-16", "predefined", "tradeoff", "solve"]
Widths = Literal["uniform", "per_layer_config", "block_configs"]
Method = Literal["gac", "energy", "svd", "asvd", "svd-llm", "palu"]
Choice = Literal["dense", "rank", "width", "heads"]
Value = Union[str, int, float, bool, "os.PathLike[str]", Sequence[str], None]
# Options that name a file or folder.
PLACES = {"contract", "data", "figures", "html", "output", "plan", "test", "text", "tokens", "work"}


def place(path: Path) -> str:
    """The path for the program. ``~`` is the home folder, as in a shell."""
    return os.path.expanduser(os.fsdecode(path))


def arguments(command: str, *paths: Path, **options: Value) -> list[str]:
    """The program's arguments: an option per name, nothing for None and False."""
    words = [command, "--json"]
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(option)
        elif isinstance(value, (list, tuple)):
            words += [f"{option}={v}" for v in value]
        else:
            text = place(value) if name in PLACES else value  # type: ignore[arg-type]
            words.append(f"{option}={text}")
    return [*words, "--", *map(place, paths)]


def listed(names: str | Iterable[str]) -> list[str]:
    """One name is a list of one."""
    return [names] if isinstance(names, str) else list(names)


def inspect(path: Path, *, gpu: str | None = None, contract: Path | None = None,
            dtype: str | None = None, workload: str | None = None, tp: int | None = None,
            quant_group: int | None = None, places: bool = False, html: Path | None = None,
            force: bool = False, progress: bool = True) -> Inspection:
    """Says what a checkpoint is made of, which sizes the GPU serves badly and what that costs.

    Reads headers only, never the weights.

    Args:
        path: A checkpoint: a folder, or one file.
        gpu: The GPU, as "h200" (the default). The command ``gac contract list`` lists them.
        contract: A contract file, instead of ``gpu``.
        dtype: The dtype that the model will run in, as "F16". By default as stored.
        workload: As "prefill:1x2048,decode:16@1024*0.5".
        tp: Split over so many GPUs.
        quant_group: Quantisation groups along the input axis that must fit.
        places: ``document`` also says where each dimension lives, axis by axis.
        html: Also write a page with figures there, as :func:`report` does.
        force: Replace an existing ``html``.
        progress: Show bars if tqdm is installed.
    """
    return Inspection.of(_program.run(arguments(
        "inspect", path, gpu=gpu, contract=contract, dtype=dtype, workload=workload, tp=tp,
        quant_group=quant_group, places=places, html=html, force=force), progress))


def plan(path: Path, *, strategy: Strategy | None = None, max_overhead: float | None = None,
         time_target: str | None = None, time_limit: float | None = None,
         sizes: Mapping[str, int] | None = None, uniform: bool = False,
         allow_rescaled: bool = False, gpu: str | None = None, contract: Path | None = None,
         dtype: str | None = None, workload: str | None = None, tp: int | None = None,
         quant_group: int | None = None, progress: bool = True) -> Plan:
    """Chooses a size for every dimension and writes nothing.

    Args:
        path: A checkpoint: a folder, or one file.
        strategy: "minimal" (next multiple of 8; the default), "multiple-16", "predefined",
            "tradeoff" or "solve", the best by prediction with a proof.
        max_overhead: Limit of growth in percent: of all bytes for "solve", of each size for
            "tradeoff". 10 by default.
        time_target: For "solve": the fewest bytes within this time, as "12.5ms" or "0.4x".
        time_limit: Seconds that the search may take.
        sizes: Fixed sizes by name, as {"layers.*.mlp.width": 14336}.
        uniform: One MLP width for all layers.
        allow_rescaled: Also sizes that are the same up to rounding only.
        gpu, contract, dtype, workload, tp, quant_group, progress: As in :func:`inspect`.
    """
    return Plan.of(_program.run(arguments(
        "plan", path, strategy=strategy, max_overhead=max_overhead, time_target=time_target,
        time_limit=time_limit, set=fixed(sizes), uniform=uniform, allow=allowed(allow_rescaled),
        gpu=gpu, contract=contract, dtype=dtype, workload=workload, tp=tp,
        quant_group=quant_group), progress))


def pareto(path: Path, *, time_limit: float | None = None,
           sizes: Mapping[str, int] | None = None, uniform: bool = False,
           allow_rescaled: bool = False, gpu: str | None = None, contract: Path | None = None,
           dtype: str | None = None, workload: str | None = None, tp: int | None = None,
           quant_group: int | None = None, data: Path | None = None, force: bool = False,
           progress: bool = True) -> Front:
    """Finds all plans that no other plan beats in both time and bytes. It writes no model.

    Args:
        path: A checkpoint: a folder, or one file.
        data: Also write the points there, as columns for gnuplot.
        force: Replace an existing ``data``.
        time_limit, sizes, uniform, allow_rescaled, gpu, contract, dtype, workload, tp,
            quant_group, progress: As in :func:`plan`.
    """
    return Front.of(_program.run(arguments(
        "plan", path, pareto=True, time_limit=time_limit, set=fixed(sizes), uniform=uniform,
        allow=allowed(allow_rescaled), gpu=gpu, contract=contract, dtype=dtype, workload=workload,
        tp=tp, quant_group=quant_group, data=data, force=force), progress))


def fixed(sizes: Mapping[str, int] | None) -> list[str]:
    if sizes is not None and not isinstance(sizes, Mapping):
        raise TypeError('sizes must be a dict, as {"layers.*.mlp.width": 14336}, '
                        f"not {type(sizes).__name__}")
    return [f"{name}={size}" for name, size in (sizes or {}).items()]


def allowed(rescaled: bool) -> str | None:
    return "rescaled" if rescaled else None


def repair(path: Path, output: Path, *, plan: Plan | Path | None = None,
           strategy: Strategy | None = None, max_overhead: float | None = None,
           time_target: str | None = None, time_limit: float | None = None,
           sizes: Mapping[str, int] | None = None, uniform: bool = False,
           allow_rescaled: bool = False, gpu: str | None = None, contract: Path | None = None,
           dtype: str | None = None, workload: str | None = None, tp: int | None = None,
           quant_group: int | None = None, widths: Widths | None = None,
           max_shard_size: str | None = None, copy: bool = False, dry_run: bool = False,
           force: bool = False, sync: bool = True, progress: bool = True) -> Repair:
    """Writes the checkpoint with larger sizes, zeros at every place of a dimension. The model
    computes the same function. ``output`` appears complete or not at all.

    Args:
        path: A checkpoint: a folder, or one file.
        output: The new folder. Nothing is written where no size changes, unless ``copy``.
        plan: A result of :func:`plan` or its file. It excludes all options that choose sizes.
        strategy, max_overhead, time_target, time_limit, sizes, uniform, allow_rescaled, gpu,
            contract, dtype, workload, tp, quant_group: Choose sizes as in :func:`plan`. With a
            plan, ``allow_rescaled`` still says whether it may have such sizes.
        widths: How config.json states MLP widths that differ between layers.
        max_shard_size: Bytes per file, as "5GB". By default the files of the input.
        copy: Copy the model even if there is nothing to change.
        dry_run: Say what would change, write nothing.
        force: Replace an existing ``output``.
        sync: Wait until ``output`` is on disk.
        progress: As in :func:`inspect`.
    """
    with tempfile.TemporaryDirectory(prefix="gac-plan-") as folder:
        if isinstance(plan, Plan):
            plan.save(pathlib.Path(folder, "plan.json"))
        file = pathlib.Path(folder, "plan.json") if isinstance(plan, Plan) else plan
        return Repair.of(_program.run(arguments(
            "repair", path, output=output, plan=file, strategy=strategy, max_overhead=max_overhead,
            time_target=time_target, time_limit=time_limit, set=fixed(sizes), uniform=uniform,
            allow=allowed(allow_rescaled), gpu=gpu, contract=contract, dtype=dtype,
            workload=workload, tp=tp, quant_group=quant_group, widths=widths,
            max_shard_size=max_shard_size, copy=copy, dry_run=dry_run, force=force,
            no_sync=not sync), progress))


def undo(path: Path, output: Path, *, force: bool = False, sync: bool = True,
         progress: bool = True) -> Repair:
    """Writes the original of a repaired checkpoint, from that checkpoint alone.

    Args:
        path: A folder that :func:`repair` wrote.
        output, force, sync, progress: As in :func:`repair`.
    """
    return Repair.of(_program.run(arguments("repair", path, undo=True, output=output, force=force,
                                            no_sync=not sync), progress))


def verify(original: Path, repaired: Path, *, forward: bool = False, tokens: Path | None = None,
           n_tokens: int | None = None, seed: int | None = None, device: str | None = None,
           progress: bool = True) -> Verification:
    """Checks that a repaired checkpoint is the same model as its original.

    Args:
        original: The checkpoint before the repair: a folder, or one file.
        repaired: The folder that :func:`repair` wrote.
        forward: Also run both and compare every logit.
        tokens: A text file to compare over. By default random tokens.
        n_tokens: How many. 64 by default.
        seed: Of the random tokens.
        device: "reference" (the default), "cpu", "cuda" or "cuda:N".
        progress: As in :func:`inspect`.

    Raises:
        CheckFailed: It is not the same model. ``result`` of the exception is the Verification.
    """
    try:
        return Verification.of(_program.run(arguments(
            "verify", original, repaired, forward=forward, tokens=tokens, n_tokens=n_tokens,
            seed=seed, device=device), progress))
    except CheckFailed as error:
        error.result = Verification.of(error.document) if error.document else None
        raise


def compress(path: Path, output: Path, *, text: Path, ratio: float | None = None,
             total_ratio: float | None = None, target_ms: float | None = None,
             test: Path | None = None, method: Method | None = None, align: str | None = None,
             choices: Choice | Sequence[Choice] | None = None, layers: str | None = None,
             exclude: str | Sequence[str] = (), calib_tokens: int | None = None,
             gradients: bool = True, seed: int | None = None, gpu: str | None = None,
             contract: Path | None = None, workload: str | None = None, device: str | None = None,
             threads: int | None = None, resume: bool = False, work: Path | None = None,
             dry_run: bool = False, force: bool = False, sync: bool = True,
             progress: bool = True) -> Compression:
    """Writes a smaller model, every size one that the GPU serves well. ``output`` appears complete
    or not at all. The page ``report.html`` in it shows the result.

    Args:
        path: A dense checkpoint: a folder.
        output: The new folder.
        text: Raw text that shows what the model is used for (calibration).
        ratio: Share of the blocks' linear weights to remove, as 0.2. One of ``ratio``,
            ``total_ratio`` and ``target_ms`` is needed.
        total_ratio: Share of the whole model to remove, embeddings included.
        target_ms: Least loss with the workload within this predicted time.
        test: Raw text over which the perplexity of the original and of the result is measured.
        method: "gac" (the default); "energy", "svd", "asvd", "svd-llm" and "palu" to compare with.
        align: Sizes to choose from: "gac" (the default), "none" or "round:N".
        choices: What a module may become, as ["rank", "width"]. By default all.
        layers: Only these layers may change, as "3-20", counted from 0.
        exclude: Modules that stay dense, as ["layers.0.*"].
        calib_tokens: Tokens of the text to use. 131072 by default.
        gradients: Measure by gradients which outputs matter. False is faster, and the result is
            worse.
        seed: Draws parts of the text at random. 0, the default: its beginning.
        device: Where the model runs: "cpu" (the default), "cuda" or "cuda:N".
        threads: CPUs to use. By default all.
        resume: Keep measured layers if interrupted, and go on from there.
        work: A folder in which measured layers stay, for other ratios of the same model.
        dry_run: Choose and report, and write nothing.
        gpu, contract, workload, progress: As in :func:`inspect`.
        force, sync: As in :func:`repair`.
    """
    return Compression.of(_program.run(arguments(
        "compress", path, output=output, text=text, ratio=ratio, total_ratio=total_ratio,
        target_ms=target_ms, test=test, method=method, align=align,
        choices=",".join(listed(choices)) if choices else None, layers=layers,
        exclude=listed(exclude), calib_tokens=calib_tokens, no_gradients=not gradients, seed=seed,
        gpu=gpu, contract=contract, workload=workload, device=device, threads=threads,
        resume=resume, work=work, dry_run=dry_run, force=force, no_sync=not sync), progress))


@overload
def dim(size: int, *, strategy: Strategy | None = None, max_overhead: float | None = None,
        gpu: str | None = None, contract: Path | None = None,
        dtype: str | None = None) -> SizeAdvice: ...
@overload
def dim(size: tuple[int, int], *, keep: float, gpu: str | None = None,
        contract: Path | None = None, dtype: str | None = None) -> RankAdvice: ...
def dim(size: int | tuple[int, int], *, keep: float | None = None,
        strategy: Strategy | None = None, max_overhead: float | None = None,
        gpu: str | None = None, contract: Path | None = None,
        dtype: str | None = None) -> SizeAdvice | RankAdvice:
    """Says which size to take instead of one, or which rank keeps a share of a matrix.

    Args:
        size: One size, or (outputs, inputs) of a matrix.
        keep: For a matrix: the share of its parameters to keep, above 0 and at most 1.
        strategy: For one size: "minimal" (the default), "multiple-16", "predefined", "tradeoff".
        max_overhead: Limit of "tradeoff", in percent.
        gpu: Also say what the size costs on this GPU. For a matrix "h200" is the default.
        contract: The same by a contract file.
        dtype: Of the operators: "F16" by default.

    Returns:
        SizeAdvice for one size, RankAdvice for a matrix.
    """
    if isinstance(size, str):
        raise UsageError(f"{json.dumps(size)} is neither a size nor (outputs, inputs)")
    of_matrix = isinstance(size, (tuple, list))
    what = "x".join(map(str, size)) if isinstance(size, (tuple, list)) else str(size)
    document = _program.run(arguments(
        "dim", what, keep=keep, strategy=strategy, max_overhead=max_overhead, gpu=gpu,
        contract=contract, dtype=dtype))
    return RankAdvice.of(document) if of_matrix else SizeAdvice.of(document)


def report(results: Result | Path | Iterable[Result | Path], output: Path, *,
           figures: Path | None = None, title: str | None = None, force: bool = False,
           progress: bool = True) -> Page:
    """Writes one HTML page of figures and tables. It needs no network and no other file. gnuplot
    draws the figures; without it the page has the tables.

    Args:
        results: One or several, in any mix: results of these functions, or JSON files with results
            of the program, contracts and experiments.
        output: The page to write, as "page.html".
        figures: A folder: also write every figure there, as SVG, PNG and PDF.
        title: The heading of the page.
        force: Replace existing files.
        progress: As in :func:`inspect`.
    """
    many = [results] if isinstance(results, (Result, str, bytes, os.PathLike)) else results
    with tempfile.TemporaryDirectory(prefix="gac-report-") as folder:
        files: list[str] = []
        for result in many:
            if isinstance(result, Result):
                files.append(save_for_page(result, pathlib.Path(folder), len(files)))
            else:
                files.append(os.path.abspath(place(result)))
        return Page.of(_program.run(arguments(
            "report", *files, output=os.path.abspath(place(output)), title=title, force=force,
            figures=None if figures is None else os.path.abspath(place(figures))), progress, folder))


def save_for_page(result: Result, folder: pathlib.Path, number: int) -> str:
    """Writes the result and returns the file's name in folder. The page shows that name, so that
    it says which model and what kind of result."""
    model = pathlib.PurePath(result.document["arguments"][-1]).name[:50]
    name = f"{model}.{type(result).__name__.lower()}"
    if (folder / f"{name}.json").exists():
        name += f".{number}"
    result.save(folder / f"{name}.json")
    return f"{name}.json"
