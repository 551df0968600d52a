"""What can go wrong. The status of each exception is the program's exit status."""
from __future__ import annotations

from typing import Any


class GacError(Exception):
    """A failure, as a full disk or a target that exists. ``str(error)`` is one line that names the
    file, tensor and offset where there are any. ``status`` is the program's exit status."""

    status = 1
    document: dict[str, Any] = {}  # the result that the program printed nevertheless


class UsageError(GacError, ValueError):
    """The arguments make no sense, or not together."""

    status = 2


class BadInput(GacError):
    """A file breaks a rule of its format, or is missing."""

    status = 3


class NoDevice(GacError):
    """There is no such device, or not enough memory."""

    status = 4


class CheckFailed(GacError):
    """Everything worked, but a check did not hold. ``result`` is what was found, where there is
    a result: a :class:`gac.Verification`."""

    status = 5
    result: Any = None


class GacWarning(UserWarning):
    """A note of the program about work that succeeded."""


BY_STATUS: dict[int, type[GacError]] = {
    kind.status: kind for kind in (GacError, UsageError, BadInput, NoDevice, CheckFailed)
}
