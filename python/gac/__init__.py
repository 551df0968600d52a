"""GAC: makes compressed language models fast on the GPU they run on.

    >>> import gac
    >>> found = gac.inspect("./my-model", gpu="h200")
    >>> gac.repair("./my-model", "./my-model-fit", strategy="solve", max_overhead=2)
    >>> gac.verify("./my-model", "./my-model-fit")
    >>> model = gac.load("./my-model-fit")

Each function but :func:`load` is one command of the program ``gac``, which is inside this package,
and takes that command's options by keyword. Results are dataclasses that show themselves as tables.
Failures are exceptions below :class:`GacError`, whose text is the one line that the program prints.
The guide is docs/python.md of the project.
"""
from gac._version import __version__
from gac.commands import compress, dim, inspect, pareto, plan, repair, report, undo, verify
from gac.errors import BadInput, CheckFailed, GacError, GacWarning, NoDevice, UsageError
from gac.load_model import load
from gac.results import (Compression, Front, Inspection, Page, Plan, RankAdvice, Repair, SizeAdvice,
                         Verification)

__all__ = [
    "BadInput", "CheckFailed", "Compression", "Front", "GacError", "GacWarning", "Inspection",
    "NoDevice", "Page", "Plan", "RankAdvice", "Repair", "SizeAdvice", "UsageError", "Verification",
    "__version__", "compress", "dim", "inspect", "load", "pareto", "plan", "repair", "report",
    "undo", "verify",
]
