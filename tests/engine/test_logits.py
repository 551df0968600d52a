#!/usr/bin/env python3
"""Our logits against those that transformers gave for small models of every
family and rotary type: tests/data/logits, made by compare_transformers.py.

    test_logits.py DUMP_LOGITS DATA
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy

LIMIT = 1e-5


def ours(dump, folder, device, per_pass, ids, vocab):
    with tempfile.TemporaryDirectory() as scratch:
        source, target = pathlib.Path(scratch) / "ids", pathlib.Path(scratch) / "logits"
        numpy.asarray(ids, dtype=numpy.int32).tofile(source)
        subprocess.run([dump, folder, device, "-", str(per_pass), source, target], check=True)
        return numpy.fromfile(target, dtype=numpy.float32).reshape(len(ids), vocab)


def main():
    dump, data = sys.argv[1], pathlib.Path(sys.argv[2])
    n_failed = n_run = 0
    for folder in sorted(p for p in data.iterdir() if p.is_dir()):
        expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
        theirs = numpy.asarray(expected["logits"], dtype=numpy.float64)
        once = {}
        for device in ("reference", "cpu"):
            for per_pass in (0, 1, 5):
                mine = ours(dump, folder, device, per_pass, expected["ids"], theirs.shape[1])
                error = (numpy.linalg.norm(mine - theirs, axis=1) /
                         numpy.linalg.norm(theirs, axis=1)).max()
                once.setdefault(device, mine)
                same = device != "reference" or numpy.array_equal(once[device], mine)
                n_run += 1
                if not error < LIMIT or not same:
                    n_failed += 1
                    print(f"FAIL {folder.name} {device} {per_pass} at a time: {error:.2e}"
                          f"{'' if same else ', other bits than all at once'}")
    print(f"{n_run} runs, {n_failed} failed")
    return 1 if n_failed or n_run < 240 else 0


if __name__ == "__main__":
    sys.exit(main())
