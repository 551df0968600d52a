#!/usr/bin/env python3
"""Times gac on torch files against the same tensors in safetensors.

    bench_torch.py --gac build/gac [--runs 15] [--folder DIR] [--out FILE]

Two measurements, each run in turn on both formats as whole processes with warm
caches, each with the peak of resident memory:

- headers: gac inspect on the shape of Llama-3.1-405B (191 files, sparse);
- data: gac repair on a model of about 1 GB, and gac verify of its result.

The torch files are zip archives as torch.save writes them (tests/support/
torch_files.py), and for the data also the legacy format.
"""
import argparse
import json
import os
import shutil
import struct
import sys
import tempfile
import time

BENCH = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(BENCH)
sys.path[:0] = [BENCH, os.path.join(ROOT, "tools"), os.path.join(ROOT, "tests", "support")]
import bench_inspect as common  # noqa: E402
import make_checkpoint as mk  # noqa: E402
import synthetic_checkpoint  # noqa: E402
import torch_files as tf  # noqa: E402


class Writer:
    """Writes the data of tensors to a file: from a safetensors file, or a hole."""

    def __init__(self, ck, source):
        self.ck, self.source = ck, source
        if source:
            with open(source, "rb") as file:
                (n,) = struct.unpack("<Q", file.read(8))
                self.header, self.start = json.loads(file.read(n)), 8 + n

    def put(self, out, name):
        if not self.source:
            out.seek(self.ck.tensor_bytes(name), os.SEEK_CUR)
            return
        begin, end = self.header[name]["data_offsets"]
        with open(self.source, "rb") as file:
            file.seek(self.start + begin)
            while begin < end:
                begin += out.write(file.read(min(end - begin, 16 << 20)))


def state_of(ck, names):
    made = {}
    for i, name in enumerate(names):
        dtype, shape = ck.tensors[name]
        n = ck.tensor_bytes(name) // tf.BYTES[dtype]
        made[name] = tf.Tensor(tf.Storage(dtype, b"", key=str(i), numel=n), shape)
    return made


def write_zip(path, ck, names, source=None):
    """One archive; sizes and offsets beyond 4 GiB are in 64-bit fields, as torch has them."""
    data, _ = tf.dump(state_of(ck, names))
    members = [("archive/data.pkl", data), ("archive/byteorder", b"little")]
    members += [(f"archive/data/{i}", name) for i, name in enumerate(names)]
    writer, entries = Writer(ck, source), []
    with open(path, "wb") as out:
        for name, content in members + [("archive/version", b"3\n")]:
            at, size = out.tell(), len(content) if isinstance(content, bytes) else \
                ck.tensor_bytes(content)
            pad = -(at + 34 + len(name)) % 64
            out.write(struct.pack("<IHHHHHIIIHH", 0x04034B50, 0, 0x808, 0, 0, 0, 0, 0, 0, len(name),
                                  pad + 4) + name.encode() + b"FB" + struct.pack("<H", pad) +
                      b"Z" * pad)
            if isinstance(content, bytes):
                out.write(content)
            else:
                writer.put(out, content)
            out.write(struct.pack("<IIQQ", 0x08074B50, 0, size, size))
            extra = struct.pack("<HHQQQ", 1, 24, size, size, at)
            full = 0xFFFFFFFF
            entries.append(struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 0, 0, 0x808, 0, 0, 0, 0,
                                       full, full, len(name), len(extra), 0, 0, 0, 0, full) +
                           name.encode() + extra)
        start, listed, n = out.tell(), b"".join(entries), len(entries)
        out.write(listed + struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 0, 45, 0, 0, n, n,
                                       len(listed), start))
        out.write(struct.pack("<IIQI", 0x07064B50, 0, start + len(listed), 1))
        out.write(struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, n, n, len(listed),
                              min(start, 0xFFFFFFFF), 0))


def write_legacy(path, ck, names, source=None):
    state = state_of(ck, names)
    data, _ = tf.dump(state, legacy=True)
    order = sorted(range(len(names)), key=str)
    writer = Writer(ck, source)
    with open(path, "wb") as out:
        out.write(b"\x80\x02\x8a\x0a" + tf.MAGIC.to_bytes(10, "little") + b"." +
                  tf.dump(tf.PROTOCOL)[0] + tf.dump({"little_endian": True})[0] + data +
                  tf.dump([str(i) for i in order])[0])
        for i in order:
            out.write(struct.pack("<q", state[names[i]].storage.numel))
            writer.put(out, names[i])


def write_folder(folder, ck, write, plain=None):
    """A directory of torch files; plain: the safetensors directory to take the data from."""
    os.makedirs(folder)
    shards, places = ck.shards(), {}
    for i, names in enumerate(shards):
        file = "pytorch_model.bin" if len(shards) == 1 else \
            f"pytorch_model-{i + 1:05}-of-{len(shards):05}.bin"
        places.update(dict.fromkeys(names, file))
        write(os.path.join(folder, file), ck, names,
              plain and os.path.join(plain, "model.safetensors"))
    if len(shards) > 1:
        synthetic_checkpoint.write_json(os.path.join(folder, "pytorch_model.bin.index.json"),
                                        {"metadata": {"total_size": ck.size_bytes}, "weight_map": places})
    synthetic_checkpoint.write_json(os.path.join(folder, "config.json"), ck.config)


def measure(args, scratch, commands, out=None):
    """commands: {name: command}. Times and peaks of each, in turn."""
    samples = {name: [] for name in commands}
    for i in range(args.runs + 1):  # the first warms the caches
        for name in sorted(commands, reverse=i % 2 == 1):
            if out:
                shutil.rmtree(out, ignore_errors=True)
            seconds, _, _ = common.run(commands[name], scratch)
            if i:
                samples[name].append(seconds)
    result = {}
    for name, command in commands.items():
        if out:
            shutil.rmtree(out, ignore_errors=True)
        result[name] = {"command": " ".join(os.path.basename(c) for c in command),
                        "time_s": common.statistics_of(samples[name]),
                        "peak_resident_bytes": common.peak_bytes(command)}
        base = result["safetensors"]["time_s"]["median"]
        result[name]["over_safetensors_pct"] = \
            100 * (result[name]["time_s"]["median"] / base - 1)
    return result


def show(title, result):
    print(title)
    for name, one in result.items():
        stats = one["time_s"]
        low, high = stats["quartiles"]
        print(f"  {name:12} {1e3 * stats['median']:8.1f} ms ({1e3 * low:.1f}-{1e3 * high:.1f}), "
              f"{one['over_safetensors_pct']:+6.1f} %, peak "
              f"{one['peak_resident_bytes'] / 2**20:.1f} MiB")


def headers(args, scratch):
    ck = mk.build("llama-405b")
    plain, torch = os.path.join(scratch, "safetensors"), os.path.join(scratch, "zip")
    ck.write(plain)
    write_folder(torch, ck, write_zip)
    return measure(args, scratch, {name: [args.gac, "inspect", folder, "--json"] for name, folder
                                   in (("safetensors", plain), ("zip", torch))})


def data(args, scratch):
    ck = mk.llama_like(n_layers=16, hidden=2048, n_heads=16, n_kv_heads=8, mlp=4003, vocab=32000)
    folders = {name: os.path.join(scratch, "data-" + name)
               for name in ("safetensors", "zip", "legacy")}
    out, fixed = os.path.join(scratch, "made"), os.path.join(scratch, "fixed")
    plain = folders["safetensors"]
    ck.write(plain, seed=1)
    write_folder(folders["zip"], ck, write_zip, plain)
    write_folder(folders["legacy"], ck, write_legacy, plain)
    repair = {name: [args.gac, "repair", folder, "-o", out, "--strategy", "minimal", "--no-sync"]
              for name, folder in folders.items()}
    made = {"bytes": ck.size_bytes, "repair": measure(args, scratch, repair, out)}
    common.run([args.gac, "repair", plain, "-o", fixed, "--strategy", "minimal", "--no-sync"],
               scratch)
    verify = {name: [args.gac, "verify", folder, fixed] for name, folder in folders.items()}
    made["verify"] = measure(args, scratch, verify)
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gac", required=True)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--folder", help="where to make the files; 4 GB are needed")
    parser.add_argument("--out", metavar="FILE", help="write the result as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        result = {"schema": "gac.bench_torch/1",
                  "command": " ".join(["bench/bench_torch.py", *sys.argv[1:]]),
                  "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                  "machine": common.machine(),
                  "versions": {"gac": common.one_line(args.gac, "--version"),
                               "commit": common.one_line("git", "-C", BENCH, "describe", "--always",
                                                         "--dirty")},
                  "n_runs": args.runs, "headers": headers(args, scratch)}
        show("inspect, llama-405b shape", result["headers"])
        result["data"] = data(args, scratch)
        show("repair, 1 GB", result["data"]["repair"])
        show("verify, 1 GB", result["data"]["verify"])
    if args.out:
        with open(args.out, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
