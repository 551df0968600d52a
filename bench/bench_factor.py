#!/usr/bin/env python3
"""Factoring weights on a GPU: gac's SPECTRUM job against torch.linalg.svd of W S, S S^T = G.

    python3 bench/bench_factor.py --bench build/bench_factor --out FILE [--budget 400]

Both find the best directions of a weight W (n_out, n_in) whose inputs have the Gram matrix G, of
random correlated inputs with a falling spectrum and noise. Ours is in F64, from arrays in host
memory to arrays in host memory; the peer's time is its decomposition alone, of what is already on
the device. Truncation errors tr((W - W') G (W - W')^T) of W' = U_r U_r^T W are computed in F64.
Needs PyTorch with CUDA. A peer that takes more than 10 s is run once; one over the limit of 60 s
is not run on the shapes that follow, and none once the budget is spent. Exit 5 if ours is not 4
times as fast as the fastest peer, or loses more. --small is a quick trial of the script.
"""
import argparse
import json
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

import torch

SHAPES = [(1024, 4096), (4096, 4096), (4096, 14336), (14336, 4096)]
SMALL = [(64, 256), (256, 256), (256, 512), (512, 256)]
PEERS = [(torch.float32, None), (torch.float64, None), (torch.float32, "gesvd"),
         (torch.float64, "gesvd")]
FASTER, WORSE = 4, 1e-6


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def clock(device, work):
    """The result of work() and its seconds."""
    synchronize(device)
    start = time.perf_counter()
    result = work()
    synchronize(device)
    return result, time.perf_counter() - start


def make_gram(n, device):
    """The Gram matrix of 1.25 n inputs: mixed directions with a falling spectrum, and noise."""
    mix = torch.randn(n, n, device=device) / n ** 0.5
    scale = 1 / (1 + torch.arange(n, device=device)) ** 0.5
    gram = torch.zeros(n, n, dtype=torch.float64, device=device)
    left = n + n // 4
    while left > 0:
        rows = min(left, 2048)
        x = (torch.randn(rows, n, device=device) * scale * n ** 0.5) @ mix
        x = (x + 0.1 * torch.randn(rows, n, device=device)).double()
        gram += x.T @ x
        left -= rows
    return gram


def root_of(gram):
    return torch.linalg.cholesky(gram)


def errors(weight, root, basis, ranks):
    """|(1 - U_r U_r^T) W S|^2 of each rank, over |W S|^2."""
    outputs = weight.double() @ root
    whole = outputs.square().sum()
    skew = basis.double().T @ basis.double()
    skew = (skew - torch.eye(len(skew), dtype=skew.dtype, device=skew.device)).abs().max().item()
    found = []
    for rank in ranks:
        u = basis[:, :rank].double()
        rest = outputs - u @ (u.T @ outputs)
        found.append((rest.square().sum() / whole).item())
    return found, skew


def run_ours(args, kind, shape, files, runs):
    done = subprocess.run([args.bench, args.device, kind, *map(str, shape), *files[:2], str(runs),
                           files[2]], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"bench_factor {kind} {shape}: {done.stderr.strip()}")
    return json.loads(done.stdout)["times_s"]


def transfer_time(args, arrays, result_bytes):
    """Seconds of the transfers in ours, done by PyTorch from and to pageable memory."""
    result = torch.empty(result_bytes, dtype=torch.uint8, device=args.device)
    times = []
    for _ in range(3):
        _, seconds = clock(args.device, lambda: ([a.to(args.device) for a in arrays],
                                                 result.cpu()))
        times.append(seconds)
    return min(times)


def run_peer(args, weight, root, dtype, driver):
    """The left singular vectors, and the seconds of each run."""
    outputs = (weight.double() @ root).to(dtype)
    more = {"driver": driver} if driver and args.device == "cuda" else {}
    times, basis = [], None
    while not times or (times[-1] < 10 and len(times) < 3):
        (basis, _, _), seconds = clock(
            args.device, lambda: torch.linalg.svd(outputs, full_matrices=False, **more))
        times.append(seconds)
    return basis, times


def compare(args, shape, folder, slow):
    """One shape: ours first, then the peers that time allows."""
    n_out, n_in = shape
    n = min(shape)
    ranks = [n // 8, n // 4, n // 2]
    weight = torch.randn(n_out, n_in, device=args.device) / n_in ** 0.5
    gram = make_gram(n_in, args.device)
    files = [str(folder / name) for name in ("weight", "gram", "result")]
    host = [weight.cpu(), gram.cpu()]
    for file, array in zip(files, host):
        array.numpy().tofile(file)
    times = run_ours(args, "spectrum", shape, files, 5)
    moved = transfer_time(args, host, n_out * n * 4)
    root = root_of(gram)
    basis = torch.from_file(files[2], size=n_out * n, dtype=torch.float32)
    lost, skew = errors(weight, root, basis.reshape(n_out, n).to(args.device), ranks)
    ours = {"times_s": times, "median_s": statistics.median(times), "transfers_s": moved,
            "without_transfers_s": statistics.median(times) - moved, "errors": lost, "skew": skew}
    peers = []
    for dtype, driver in PEERS:
        name = f"{str(dtype).removeprefix('torch.')} {driver or 'default'}"
        if name in slow or time.monotonic() > args.end:
            peers.append({"name": name, "skipped": "slow before" if name in slow else "no time"})
            continue
        try:
            basis, seconds = run_peer(args, weight, root, dtype, driver)
        except RuntimeError as error:
            peers.append({"name": name, "failed": str(error).splitlines()[0]})
            continue
        lost, skew = errors(weight, root, basis, ranks)
        peers.append({"name": name, "times_s": seconds, "median_s": statistics.median(seconds),
                      "errors": lost, "skew": skew})
        if max(seconds) > args.limit:
            slow.add(name)
        print(f"  peer {name}: {peers[-1]['median_s']:.3f} s", flush=True)
    return {"n_out": n_out, "n_in": n_in, "ranks": ranks, "ours": ours, "peers": peers,
            **judge(ours, peers)}


def judge(ours, peers):
    """How much faster than the fastest peer, and how the errors compare with the best peer's."""
    run = [p for p in peers if "median_s" in p]
    if not run:
        return {"faster": None, "error_ratio": None, "ok": False}
    faster = min(p["median_s"] for p in run) / ours["median_s"]
    ratio = max(mine / min(p["errors"][i] for p in run) for i, mine in enumerate(ours["errors"]))
    return {"faster": faster, "error_ratio": ratio, "ok": faster >= FASTER and ratio <= 1 + WORSE}


def channels(args, folder):
    """The order of all channels of an MLP."""
    shape = (256, 512) if args.small else (4096, 14336)
    files = [str(folder / name) for name in ("weight", "gram", "result")]
    (torch.randn(*shape) / shape[1] ** 0.5).numpy().tofile(files[0])
    make_gram(shape[1], args.device).cpu().numpy().tofile(files[1])
    return {"n_out": shape[0], "n_in": shape[1],
            "times_s": run_ours(args, "channels", shape, files, 2)}


def said(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def describe(args):
    cuda = args.device == "cuda"
    return {"gpu": torch.cuda.get_device_name() if cuda else "none",
            "driver": said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
            "cpu": platform.processor() or platform.machine(), "torch": torch.__version__,
            "cuda": torch.version.cuda, "python": platform.python_version(),
            "commit": said("git", "describe", "--always", "--dirty")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", required=True, help="the bench_factor program")
    parser.add_argument("--out", metavar="FILE", help="write the result as JSON")
    parser.add_argument("--device", default="cuda", help="cuda (the default) or cpu, for a trial")
    parser.add_argument("--limit", type=float, default=60, help="seconds for a peer (default 60)")
    parser.add_argument("--budget", type=float, default=400,
                        help="seconds after which no peer is started (default 400)")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    args.end = time.monotonic() + args.budget
    torch.manual_seed(1)
    slow, results = set(), []
    result = {"machine": describe(args), "arguments": sys.argv[1:], "spectrum": results}
    with tempfile.TemporaryDirectory(prefix="gac-bench-") as name:
        folder = pathlib.Path(name)
        result["channels"] = channels(args, folder)
        print(f"channels: {min(result['channels']['times_s']):.3f} s", flush=True)
        for shape in SMALL if args.small else SHAPES:
            results.append(compare(args, shape, folder, slow))
            print(f"{shape}: {results[-1]['ours']['median_s']:.3f} s, faster by "
                  f"{results[-1]['faster']}, errors {results[-1]['error_ratio']}", flush=True)
            if args.out:  # what is done is kept if the rest runs out of time
                pathlib.Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(r["ok"] for r in results) else 5


if __name__ == "__main__":
    sys.exit(main())
