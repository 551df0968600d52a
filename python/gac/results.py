"""What the functions return: the result documents of the program (``gac COMMAND --json``), typed.

Members have the names of the document's keys; ``from`` is ``from_``. ``document`` is the document
itself, with tool, time, machine and arguments. Times are milliseconds. A number that is not known
is None."""
from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, Union

from gac._table import Table

T = TypeVar("T")


def read(kind: Any, value: Any) -> Any:
    """value as kind: a dataclass, a list, a union with None, or a plain type."""
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        plain, = (k for k in typing.get_args(kind) if k is not type(None))
        return None if value is None else read(plain, value)
    if origin is list:
        inner, = typing.get_args(kind)
        return [read(inner, v) for v in value]
    if dataclasses.is_dataclass(kind):
        types_of = typing.get_type_hints(kind)
        found = {f.name: read(types_of[f.name], value[f.name.rstrip("_")])
                 for f in dataclasses.fields(kind)
                 if f.name.rstrip("_") in value or f.default is dataclasses.MISSING
                 and f.default_factory is dataclasses.MISSING}
        return kind(**found)  # type: ignore[operator]
    return value


def pattern(name: str) -> str:
    """The name with * for the number of a layer or expert."""
    return re.sub(r"(?<![^.])\d+(?=\.)", "*", name)


def common_name(dims: Sequence[Dim | SizeChange]) -> str:
    """The name of one dimension, or the pattern of several."""
    return dims[0].name if len(dims) == 1 else pattern(dims[0].name)


@dataclass(repr=False)
class Result:
    """A result that shows itself as a table, at the prompt, in a notebook and by ``print``."""

    document: dict[str, Any] = field(kw_only=True, default_factory=dict)

    @classmethod
    def of(cls: type[T], document: dict[str, Any]) -> T:
        return typing.cast(T, read(cls, {**document, "document": document}))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the document as JSON, as ``gac COMMAND --json`` prints it."""
        text = json.dumps(self._saved(), indent=1) + "\n"
        pathlib.Path(path).write_text(text, encoding="utf-8")

    def _saved(self) -> dict[str, Any]:
        return self.document

    def _table(self) -> Table:
        raise NotImplementedError

    def __str__(self) -> str:
        return self._table().text()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self._table().html()


# inspect.


@dataclass
class Checkpoint:
    """The files of a model, and what they were understood to be."""

    path: str
    family: str
    compressor: str
    dtype: str
    n_layers: int
    n_tensors: int
    n_params: int
    bytes: int
    n_files: int


@dataclass
class Contract:
    """What the sizes were judged by. Sizes of a provisional contract are assumed."""

    name: str
    gpu: str
    dtype: str
    provisional: bool
    sources: list[str]


@dataclass
class PhaseTimes:
    """Predicted times of one phase of the workload. ``rescaled_ms`` is with sizes that are the same
    up to rounding only; ``ratio`` is ``repaired_ms`` over ``now_ms``."""

    phase: str
    rest_ms: float | None
    now_ms: float | None
    repaired_ms: float | None
    ratio: float | None
    rescaled_ms: float | None


@dataclass
class Summary:
    """``n_dims`` and ``n_misaligned`` count the sizes that a compressor chose if there are any
    (``counts`` is "compressed"), else all. ``advice`` says whether repair pays."""

    n_dims: int
    n_misaligned: int
    misaligned_pct: float
    counts: str
    n_dims_all: int
    n_misaligned_all: int
    overhead_pct: float
    advice: str
    phases: list[PhaseTimes]


@dataclass
class Dim:
    """One dimension. ``exactness`` is "exact", "rescaled" or "refused", for ``reason``; ``penalty``
    is how many times longer its worst operator takes than with the suggested size."""

    name: str
    role: str
    size: int
    aligned: bool
    suggest: int
    exactness: str
    reason: str
    compressed: bool
    penalty: float | None
    lost_ms: float | None
    seen_by: list[str]
    kernel: str | None
    family: str | None
    rule: str | None
    tied_to: str | None
    config_key: str | None
    tensors: list[str]


@dataclass(repr=False)
class Inspection(Result):
    """What :func:`gac.inspect` found. ``unexplained`` names tensors that were not understood."""

    checkpoint: Checkpoint
    contract: Contract
    workload: str
    summary: Summary
    dims: list[Dim]
    unexplained: list[str]
    notes: list[str]

    @property
    def misaligned(self) -> list[Dim]:
        """The misaligned dimensions, those that lose most time first."""
        return sorted((d for d in self.dims if not d.aligned), key=lambda d: -(d.lost_ms or 0))

    def _table(self) -> Table:
        s = self.summary
        table = Table(f"{self.checkpoint.family}, {self.checkpoint.compressor}: {s.n_misaligned} of "
                      f"{s.n_dims} sizes misaligned on {self.contract.name}; {s.advice}",
                      ["dimension", "count", "size", "suggested", "padding", "times slower",
                       "lost ms"])
        alike: dict[tuple[Any, ...], list[Dim]] = {}
        for d in self.misaligned:
            alike.setdefault((pattern(d.name), d.size, d.suggest, d.exactness), []).append(d)
        lost = {key: sum(d.lost_ms or 0 for d in dims) for key, dims in alike.items()}
        for key, dims in sorted(alike.items(), key=lambda item: -lost[item[0]]):
            known = [d.penalty for d in dims if d.penalty is not None]
            table.add(common_name(dims), len(dims), *key[1:], max(known, default=None),
                      lost[key] if known else None)
        return table


# plan, repair, verify.


@dataclass
class SizeChange:
    """The size of a dimension before and after."""

    name: str
    from_: int
    to: int


def table_of_changes(caption: str, dims: list[SizeChange]) -> Table:
    table = Table(caption, ["dimension", "count", "from", "to"])
    alike: dict[tuple[str, int, int], list[SizeChange]] = {}
    for d in dims:
        if d.to != d.from_:
            alike.setdefault((pattern(d.name), d.from_, d.to), []).append(d)
    for (_, before, after), same in alike.items():
        table.add(common_name(same), len(same), before, after)
    return table


@dataclass(repr=False)
class Plan(Result):
    """Sizes that :func:`gac.plan` chose. ``dims`` has every dimension that may change; a caller may
    change ``to`` before :func:`gac.repair`. ``bound`` is proved: no possible choice has a lower
    ``objective``, which is ``planned_ms``, or bytes with ``time_target``."""

    contract: str
    workload: str
    strategy: str
    n_dims_changed: int
    overhead_pct: float
    now_ms: float | None
    planned_ms: float | None
    dims: list[SizeChange]
    optimal: bool = False
    objective: float | None = None
    bound: float | None = None
    objective_unit: str = "ms"
    margin_pct: float | None = None
    note: str = ""

    def _saved(self) -> dict[str, Any]:
        """The document with the sizes of ``dims``, which the caller may have changed."""
        return {**self.document, "dims": [{"name": d.name, "from": d.from_, "to": d.to}
                                          for d in self.dims]}

    def _table(self) -> Table:
        caption = f"{self.strategy} on {self.contract}: {self.n_dims_changed} sizes change, " \
                  f"{self.overhead_pct:+.2f} % bytes"
        if self.now_ms is not None and self.planned_ms is not None:
            caption += f"; predicted {self.now_ms:.4g} ms now, {self.planned_ms:.4g} ms then"
        return table_of_changes(caption, self.dims)


@dataclass
class FrontPoint:
    """One plan of the front: its bytes beyond those of the model, and its predicted time."""

    extra_bytes: int
    overhead_pct: float
    time_ms: float


@dataclass(repr=False)
class Front(Result):
    """The front of time against bytes, by :func:`gac.pareto`, smallest first. ``complete``: it
    has every point; otherwise those at 64 limits of growth. ``n_unproved`` points may not be the
    fastest of their size."""

    contract: str
    workload: str
    complete: bool
    n_unproved: int
    points: list[FrontPoint]

    def _table(self) -> Table:
        table = Table(f"{len(self.points)} plans for {self.workload} on {self.contract}"
                      + ("" if self.complete else "; there are more"),
                      ["extra bytes", "overhead %", "predicted ms"])
        for p in self.points:
            table.add(p.extra_bytes, p.overhead_pct, p.time_ms)
        return table


@dataclass
class LoadsIn:
    """A runtime, and how it loads a model (``how``) or why not (``why``)."""

    runtime: str
    name: str
    loads: bool
    how: str = ""
    why: str = ""


@dataclass(repr=False)
class Repair(Result):
    """What :func:`gac.repair` or :func:`gac.undo` did. ``proved``: what undo wrote has the checksums
    of the original."""

    n_dims_changed: int
    n_tensors_changed: int
    bytes_before: int
    bytes_after: int
    overhead_pct: float
    undo: bool
    dry_run: bool
    written: bool
    dims: list[SizeChange]
    proved: bool | None = None
    loads_in: list[LoadsIn] = field(default_factory=list)

    def _table(self) -> Table:
        done = "restored" if self.undo else "would change" if self.dry_run else "changed"
        runtimes = ", ".join(r.name for r in self.loads_in if r.loads)
        return table_of_changes(f"{done} {self.n_dims_changed} sizes in {self.n_tensors_changed} "
                                f"tensors, {self.overhead_pct:+.2f} % bytes"
                                + (f"; loads in {runtimes}" if runtimes else ""), self.dims)


@dataclass
class Forward:
    """Whether the logits of both models are equal. ``promised``: they had to have the same bits."""

    ran: bool
    bit_exact: bool | None = None
    promised: bool | None = None
    finite: bool | None = None
    device: str | None = None
    dtype: str | None = None
    n_tokens: int | None = None
    max_abs_diff: float | None = None
    relative: float | None = None


@dataclass(repr=False)
class Verification(Result):
    """Whether two checkpoints are the same model. ``difference`` is the first difference."""

    ok: bool
    lossless: bool
    pads_zero: bool
    config_ok: bool
    same_tensors: bool
    same_files: bool
    has_record: bool
    record_ok: bool
    rescaled: bool
    n_tensors: int
    n_dims_changed: int
    difference: str
    forward: Forward

    def _table(self) -> Table:
        table = Table("the same model" if self.ok else f"NOT the same model: {self.difference}",
                      ["check", "holds"])
        for name in ("lossless", "pads_zero", "config_ok", "same_tensors", "same_files",
                     "record_ok"):
            table.add(name.replace("_", " "), getattr(self, name), mark=not getattr(self, name))
        if self.forward.ran:
            table.add("forward pass bit-exact", self.forward.bit_exact)
        return table


# compress.


@dataclass
class Ratio:
    """Shares removed: of the blocks' linear weights, and of the whole model (``_total``)."""

    asked: float
    asked_total: float
    reached: float
    reached_total: float


@dataclass
class Module:
    """A linear module and what became of it: "dense", "rank", "width" or "heads". ``loss`` is what
    that is expected to change the output by, in nats."""

    name: str
    choice: str
    size: int
    params: int
    loss: float | None


@dataclass
class RowPhase:
    """Times of one phase of the workload."""

    phase: str
    batch: int
    length: int
    predicted_ms: float | None
    measured_ms: float | None


@dataclass
class Row:
    """One model of the table: "dense", "unaligned", "rounded" or the result."""

    row: str
    params: int
    bytes: int
    aligned_pct: float | None
    loss: float | None
    phases: list[RowPhase]
    perplexity: float | None = None


@dataclass
class Predicted:
    """The predicted time of the workload, before and after."""

    workload: str
    now_ms: float | None
    compressed_ms: float | None


@dataclass(repr=False)
class Compression(Result):
    """What :func:`gac.compress` did. ``optimal``: no choice of these sizes has a smaller sum of
    losses (``objective``)."""

    method: str
    align: str
    ratio: Ratio
    params_before: int
    params_after: int
    total_before: int
    total_after: int
    aligned_pct: float | None
    optimal: bool
    objective: float | None
    bound: float | None
    modules: list[Module]
    table: list[Row]
    predicted: Predicted
    loads_in: list[LoadsIn] = field(default_factory=list)

    def _table(self) -> Table:
        removed = 100 * (1 - self.total_after / self.total_before)
        phases = [f"{p.phase} {p.batch}x{p.length}, ms" for p in self.table[0].phases] \
            if self.table else []
        table = Table(f"{self.method}, align {self.align}: {self.total_after:,} of "
                      f"{self.total_before:,} parameters, {removed:.1f} % removed",
                      ["model", "parameters", "aligned %", *phases, "loss", "perplexity"])
        for r in self.table:
            times = [p.predicted_ms if p.measured_ms is None else p.measured_ms for p in r.phases]
            table.add(r.row, r.params, r.aligned_pct, *times, r.loss, r.perplexity)
        return table


# dim.


@dataclass
class SizePlace:
    """One size as an operator sees it. ``basis`` says whether ``penalty`` was measured."""

    seen: str
    n_rows: int
    aligned: bool
    served: bool
    runs_as: str
    penalty: float | None
    kernel: str | None
    family: str | None
    basis: str


@dataclass(repr=False)
class SizeAdvice(Result):
    """The size that fits, by :func:`gac.dim`. ``places`` are there where a GPU was named."""

    from_: int
    to: int
    strategy: str
    overhead_pct: float
    contract: str | None = None
    places: list[SizePlace] = field(default_factory=list)

    def _table(self) -> Table:
        on = f" on {self.contract}" if self.contract else ""
        table = Table(f"{self.from_} → {self.to} ({self.strategy}, {self.overhead_pct:+.2f} %){on}",
                      ["seen as", "rows", "aligned", "times slower", "kernel", "basis"])
        for p in self.places:
            table.add(p.seen, p.n_rows, p.aligned, p.penalty, p.family, p.basis, mark=not p.aligned)
        return table


@dataclass
class Rank:
    """A rank for a matrix. Ratios are times of both factors over that of the dense matrix."""

    rank: int
    multiple: int
    kept: float
    aligned: bool
    prefill_ratio: float | None
    decode_ratio: float | None
    within: bool
    suggested: bool


@dataclass(repr=False)
class RankAdvice(Result):
    """Which rank keeps a share of a matrix. ``to`` is the suggested rank."""

    from_: int
    to: int
    contract: str
    dtype: str
    out: int
    in_: int
    keep: float
    candidates: list[Rank]

    def _table(self) -> Table:
        table = Table(f"{self.out}x{self.in_}, keep {self.keep:g}: rank {self.to} on "
                      f"{self.contract}, {self.dtype}",
                      ["rank", "kept", "prefill", "decode", "aligned"])
        for r in self.candidates:
            table.add(r.rank, r.kept, r.prefill_ratio, r.decode_ratio, r.aligned, mark=r.suggested)
        return table


# report.


@dataclass(repr=False)
class Page(Result):
    """A page that :func:`gac.report` wrote. ``drawn``: it has figures, because gnuplot was there."""

    page: str
    drawn: bool

    def _table(self) -> Table:
        return Table(f"written {self.page}" + ("" if self.drawn else "; without figures, because "
                                               "there is no gnuplot"), [])
