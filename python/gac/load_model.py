"""Loading a checkpoint in transformers."""
from __future__ import annotations

import json
import os
import pathlib
import warnings
from typing import Any, Union

from gac._library import modeling_code
from gac.errors import BadInput, GacError, GacWarning, UsageError

CODE = "modeling_gac"  # the file that repair and compress write where a config cannot state all


def read_config(folder: pathlib.Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{file}: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(config, dict):
        raise BadInput(f"{file}: not an object")
    return config


def check_code(folder: pathlib.Path, config: dict[str, Any]) -> None:
    """Refuses code that is not exactly what this version of gac writes."""
    modules = {str(name).split(".")[0] for name in config["auto_map"].values()} \
        if isinstance(config["auto_map"], dict) else set()
    if modules != {CODE}:
        raise UsageError(f"{folder}: config.json names modelling code that gac did not write; "
                         "trust_remote_code=True runs it")
    file = folder / f"{CODE}.py"
    try:
        found = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadInput(f"{file}: {getattr(error, 'strerror', None) or error}") from error
    if found != modeling_code(str(config.get("model_type"))):
        raise UsageError(f"{file} is not the code that gac writes; trust_remote_code=True runs it")


def load(path: Union[str, "os.PathLike[str]"], *, trust_remote_code: bool | None = None,
         **options: Any) -> Any:
    """Returns the transformers model of a checkpoint, as
    ``AutoModelForCausalLM.from_pretrained(path, **options)``. Needs torch and transformers.

    A model with sizes that a plain config cannot state has modelling code beside it, which
    transformers runs only with ``trust_remote_code=True``. By default this function compares that
    code with what gac writes: if it is the same, it is run, and a :class:`gac.GacWarning` says so;
    other code is refused.

    Args:
        path: A folder with a config.json.
        trust_remote_code: True runs any modelling code of the folder, False none.
        options: For ``from_pretrained``, as dtype="auto" or device_map="cuda".
    """
    folder = pathlib.Path(path).expanduser()
    config = read_config(folder)
    if trust_remote_code is None and config.get("auto_map"):
        check_code(folder, config)
        warnings.warn(f"{folder / CODE}.py is the modelling code that gac writes; running it",
                      GacWarning, stacklevel=2)
        trust_remote_code = True
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise GacError("gac.load needs torch and transformers: pip install torch transformers") \
            from error
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=bool(trust_remote_code),
                                                **options)
