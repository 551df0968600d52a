#!/usr/bin/env python3
"""Runs the tutorial notebook with the installed package. Cells that need torch say that they are
skipped where it is missing.

    PYTHONPATH=build/wheel/site build/venv/bin/python tests/python/test_tutorial.py [--write]

--write keeps the outputs in the notebook."""
import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NOTEBOOK = ROOT / "docs" / "python-tutorial.ipynb"

try:
    import gac  # noqa: F401
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


def outputs(notebook, kind):
    """The outputs of one kind, as "text/html"."""
    return [o["data"][kind] for cell in notebook.cells for o in cell.get("outputs", [])
            if kind in o.get("data", {})]


def printed(notebook):
    return "".join(o["text"] for cell in notebook.cells for o in cell.get("outputs", [])
                   if o["output_type"] == "stream" and o["name"] == "stdout")


def main():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    n_tables = len(outputs(notebook, "text/html"))
    with tempfile.TemporaryDirectory() as home:
        # The kernel runs in another folder, so that it needs whole paths.
        path = os.pathsep.join(str(pathlib.Path(p).absolute()) for p in
                               os.environ.get("PYTHONPATH", "").split(os.pathsep) if p)
        os.environ.update(IPYTHONDIR=home, JUPYTER_RUNTIME_DIR=home, TQDM_DISABLE="1",
                          PYTHONPATH=path)
        client = NotebookClient(notebook, timeout=600,
                                resources={"metadata": {"path": str(NOTEBOOK.parent)}})
        try:
            client.execute()
        except CellExecutionError as error:
            sys.exit(str(error))
    if sys.argv[1:] == ["--write"]:
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # times of day
        nbformat.write(notebook, NOTEBOOK)
        return 0
    tables = outputs(notebook, "text/html")
    # A page has a caption and no rows.
    empty = sum("<td" not in t for t in tables)
    if len(tables) != n_tables or empty != 1 or not all("<caption" in t for t in tables):
        sys.exit(f"{len(tables)} tables, {empty} of them empty, and {n_tables} are in the notebook: "
                 "run it with --write")
    for line in printed(notebook).splitlines():
        if line.startswith("skipped"):
            print(line)
    print(f"{len([c for c in notebook.cells if c.cell_type == 'code'])} cells, {n_tables} tables")
    return 0


if __name__ == "__main__":
    sys.exit(main())
