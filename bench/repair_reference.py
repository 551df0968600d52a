"""The obvious Python: pads every rank with NumPy and saves with the reference package.

    python repair_reference.py DIR OUT

The other side of bench_repair.py: each tensor whose rank axis is not a multiple
of 8 gets zeros there, file by file.
"""
import glob
import json
import os
import re
import shutil
import sys

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

RANK_AXIS = ((re.compile(r"_v_proj\.weight$"), 0), (re.compile(r"_u_proj\.weight$"), 1))


def padded(name, array):
    for pattern, axis in RANK_AXIS:
        if pattern.search(name):
            grow = -array.shape[axis] % 8
            if grow:
                return np.pad(array, [(0, grow if a == axis else 0) for a in range(array.ndim)])
    return array


def main(source, target):
    os.mkdir(target)
    for path in sorted(glob.glob(os.path.join(source, "*"))):
        if not path.endswith(".safetensors"):
            shutil.copy(path, target)
            continue
        with safe_open(path, framework="numpy") as file:
            tensors = {name: padded(name, file.get_tensor(name)) for name in file.keys()}
            save_file(tensors, os.path.join(target, os.path.basename(path)), file.metadata())
    index = os.path.join(target, "model.safetensors.index.json")
    if os.path.exists(index):  # a careful user would correct total_size; it costs nothing
        with open(index) as stream:
            json.load(stream)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
