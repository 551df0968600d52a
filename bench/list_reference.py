"""Lists names, dtypes and shapes of a checkpoint with the reference safetensors package.

    python list_reference.py DIR > tensors.json

The other side of bench_inspect.py. Standard error gets the seconds spent
without interpreter start and imports.
"""
import glob
import json
import os
import sys
import time

from safetensors import safe_open


def list_tensors(directory):
    tensors = {}
    for path in sorted(glob.glob(os.path.join(directory, "*.safetensors"))):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():
                part = file.get_slice(name)
                tensors[name] = [part.get_dtype(), part.get_shape()]
    return tensors


if __name__ == "__main__":
    start = time.perf_counter()
    json.dump(list_tensors(sys.argv[1]), sys.stdout)
    sys.stdout.flush()
    print(time.perf_counter() - start, file=sys.stderr)
