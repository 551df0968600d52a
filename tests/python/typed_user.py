"""A user's script. `mypy --strict` takes it with the installed package (test_wheel.py)."""
from pathlib import Path

import gac


def fit(model: Path, out: str) -> str:
    found = gac.inspect(model, gpu="h200", html=out + ".html")
    plan: gac.Plan = gac.plan(model, strategy="solve", sizes={"layers.*.mlp.width": 14336})
    for dim in plan.dims:
        dim.to = max(dim.to, dim.from_)
    done: gac.Repair = gac.repair(model, out, plan=plan)
    same: bool = gac.verify(model, out, forward=True).ok
    front: list[float] = [point.time_ms for point in gac.pareto(model).points]
    page: gac.Page = gac.report([found, plan, done, Path("other.json")], "page.html")
    return f"{found.misaligned[0].name} {same} {front} {page.page}"


def smaller(model: str, text: Path) -> int:
    done: gac.Compression = gac.compress(model, "out", ratio=0.2, text=text, choices=["rank"],
                                         exclude="layers.0.*", gradients=False)
    size: gac.SizeAdvice = gac.dim(107)
    rank: gac.RankAdvice = gac.dim((4096, 14336), keep=0.8)
    return done.total_after + size.to + rank.to


def careful(model: str) -> int:
    try:
        gac.plan(model, strategy="best")  # type: ignore[arg-type]
        gac.inspect(5)  # type: ignore[arg-type]
        gac.dim(107, keep=0.5)  # type: ignore[call-overload]
    except gac.CheckFailed as error:
        return error.status
    return 0
