"""What is asked of libgac itself, the C library inside this package."""
from __future__ import annotations

import ctypes
import functools
import pathlib

from gac.errors import BY_STATUS, GacError


class Error(ctypes.Structure):
    """gac_error (gac/base.h)"""

    _fields_ = [("status", ctypes.c_int), ("text", ctypes.c_char * 768)]


@functools.cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL(str(pathlib.Path(__file__).resolve().parent / "lib" / "libgac.so"))


def modeling_code(family: str) -> str:
    """The modelling code that gac writes beside models of a family (gac_model_code)."""
    code = ctypes.c_char_p()
    error = Error()
    status = library().gac_model_code(family.encode(), ctypes.byref(code), ctypes.byref(error))
    if status != 0 or code.value is None:
        raise BY_STATUS.get(status, GacError)(error.text.decode())
    text = code.value.decode()
    ctypes.CDLL(None).free(code)
    return text
