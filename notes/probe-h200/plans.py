#!/usr/bin/env python3
"""How long does cuDNN take to plan attention, and do threads help?

    python3 notes/probe-h200/plans.py build/libgac.so      # with GAC_BACKEND_PATH and GAC_CUDNN

Milliseconds to create a task, nearly all of it cuDNN's plan: per head, four lengths without and with a causal
mask, then decoding at four; then many shapes by one thread, and by several, each with a device of its own.
"""
import pathlib
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from native_stack import Gac, Refused  # noqa: E402

HEADS = (64, 80, 88, 96, 104, 112, 120, 128)


def job(batch, heads, n_q, n_kv, head, causal):
    return {"op": "sdpa", "dtype": "F16", "batch": batch, "q_heads": heads, "kv_heads": heads, "n_q": n_q,
            "n_kv": n_kv, "qk_head": head, "v_head": head, "causal": causal, "scale": 0}


def make(gac, spec):
    start = time.monotonic()
    try:
        gac.free(gac.create(spec, 1))
    except Refused as e:
        print("refused", str(e)[:100])
    return time.monotonic() - start


def prefills(batch):
    return [job(batch, 16, n, n, head, causal)
            for head in HEADS for n in (256, 512, 1024) for causal in (False, True)]


def main():
    library = sys.argv[1]
    gac = Gac(library)
    print("first", make(gac, job(1, 8, 128, 128, 64, False)))
    for head in (64, 72, 128):
        print("head", head, [round(1e3 * make(gac, job(1, 8, n, n, head, causal)), 1)
                             for n in (256, 512, 520, 1024) for causal in (False, True)],
              "decode", [round(1e3 * make(gac, job(4, 8, 1, n, head, False)), 1)
                         for n in (256, 768, 1024, 2048)], flush=True)
    start = time.monotonic()
    each = [make(gac, spec) for spec in prefills(2)[:24]]
    print("1 thread: 24 in", time.monotonic() - start, "mean", sum(each) / len(each))
    for n_threads in (4, 12):
        devices, specs = [Gac(library) for _ in range(n_threads)], prefills(3 + n_threads)

        def work(i, devices=devices, specs=specs, n_threads=n_threads):
            for spec in specs[i::n_threads]:
                make(devices[i], spec)
        for device in devices:
            make(device, job(1, 8, 128, 128, 64, False))
        threads = [threading.Thread(target=work, args=(i,)) for i in range(n_threads)]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(n_threads, "threads:", len(specs), "in", time.monotonic() - start, flush=True)


if __name__ == "__main__":
    main()
