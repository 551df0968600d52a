#!/usr/bin/env python3
"""gac repair under faults: kills, signals, full disks, failing calls, shrinking input.

    python3 tests/repair/test_faults.py --gac build/gac [--kills N | --quick] [CASE...]

Whatever happens, afterwards either the complete new directory exists or none
under that name, the input is as it was, and a rerun succeeds. Ends with a line
"N passed, N failed".
"""
import argparse
import errno
import filecmp
import hashlib
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import repair_support as support
import shim
import tally
from small_models import MODELS, mk

OPTIONS = argparse.Namespace()
SEED = 20263
WAIT_S = 600  # ends a test that hangs


def checksum(folder):
    """{path: digest} of everything below folder, and the folders themselves."""
    found = {}
    for base, folders, files in os.walk(folder):
        for name in folders:
            found[os.path.relpath(os.path.join(base, name), folder)] = "folder"
        for name in files:
            path = os.path.join(base, name)
            if os.path.islink(path):
                found[os.path.relpath(path, folder)] = "link to " + os.readlink(path)
                continue
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = hashlib.file_digest(file, "sha1").hexdigest()
    return found


def stamps(folder):
    """What changes as soon as anybody writes: cheap enough for every kill."""
    return {e.name: (e.stat().st_size, e.stat().st_mtime_ns, e.inode())
            for e in os.scandir(folder)}


def same_folders(a, b):
    names = sorted(os.listdir(a))
    return names == sorted(os.listdir(b)) and all(
        filecmp.cmp(os.path.join(a, n), os.path.join(b, n), shallow=False) for n in names)


def tree_bytes(folder):
    return sum(os.lstat(os.path.join(base, f)).st_blocks * 512
               for base, _, files in os.walk(folder) for f in files)


def write_big(folder, n_layers, n_files):
    """Llama layers by SVD-LLM with odd ranks, about 30 MB each, not compressible."""
    ck = mk.svdllm_modify(mk.llama_like(n_layers=n_layers, hidden=1536, n_heads=12, n_kv_heads=4,
                                        mlp=4096, vocab=2000, dtype="F16"), 0.83)
    block = os.urandom((1 << 20) + 3)
    tensors = {}
    for name, (dtype, shape) in ck.tensors.items():
        size = support.n_bytes(dtype, shape)
        tensors[name] = (dtype, shape, (block * (size // len(block) + 1))[:size])
    support.write_folder(folder, tensors, json.dumps(ck.config), n_files,
                         carried={"tokenizer.json": b"{}"})


class FaultCase(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="gac-faults-", dir=self.scratch(),
                                             ignore_cleanup_errors=True)
        self.addCleanup(holder.cleanup)
        self.folder = holder.name
        os.chmod(self.folder, 0o755)
        self.gac = OPTIONS.gac
        self.rng = support.seeded(SEED, self.id())

    def scratch(self):
        return support.scratch_folder()

    def path(self, name):
        return os.path.join(self.folder, name)

    def small(self, name="in", model="svdllm", n_files=2):
        rng = support.seeded(SEED, "small")
        ck = MODELS[model](rng)
        support.write_folder(self.path(name), support.fill(ck, rng), json.dumps(ck.config), n_files)
        return self.path(name)

    def failed_cleanly(self, result, codes=(1,)):
        self.assertIn(result.returncode, codes, result.stdout + result.stderr[-2000:])
        self.assertTrue(support.one_line(result.stderr), result.stderr[-2000:])

    def left(self):
        return sorted(os.listdir(self.folder))

    def rerun(self, original, out, *args):
        result = self.gac("repair", original, "-o", out, "-q", *args)
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])
        self.assertTrue(self.gac.json("verify", original, out)["ok"])


class Big(FaultCase):
    """Faults in the middle of a repair that takes a while."""

    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory(prefix="gac-faults-", ignore_cleanup_errors=True)
        cls.big = os.path.join(cls.holder.name, "in")
        cls.wanted = os.path.join(cls.holder.name, "wanted")
        n_layers = 3
        while True:  # larger until a repair takes long enough to be hit
            write_big(cls.big, n_layers, 3)
            began = time.monotonic()
            subprocess.run([OPTIONS.gac.path, "repair", cls.big, "-o", cls.wanted, "-q",
                            "--strategy", "minimal"], check=True, stdout=subprocess.DEVNULL)
            cls.duration = time.monotonic() - began
            if cls.duration > 0.2 or n_layers >= 24:
                break
            shutil.rmtree(cls.big)
            shutil.rmtree(cls.wanted)
            n_layers *= 2
        cls.sums = checksum(cls.big)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def scratch(self):
        return self.holder.name  # where the input is

    def start(self, original=None, **options):
        return subprocess.Popen([self.gac.path, "repair", original or self.big, "-o",
                                 self.path("out"), "-q", "--strategy", "minimal"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                **options)

    def wait_until_writing(self, child):
        """Returns once the first tensors are being written."""
        end = time.monotonic() + WAIT_S
        while child.poll() is None and time.monotonic() < end:
            for name in os.listdir(self.folder):
                if name.startswith(".out.gac-"):
                    if tree_bytes(self.path(name)) > 1 << 20:
                        return True
            time.sleep(0.002)
        return False

    def start_writing(self, original=None):
        """A repair that has begun to write; on a busy machine it may end before that is seen."""
        for _ in range(20):
            child = self.start(original)
            if self.wait_until_writing(child):
                return child
            child.communicate(timeout=WAIT_S)
            shutil.rmtree(self.path("out"))
        self.fail("no repair was seen while it wrote")

    def kill(self, source, *arguments):
        """SIGKILL at random moments of a command that reads source and writes out."""
        whole, wanted = [self.gac.path, *arguments, "-q", "-o"], self.path("wanted")
        began = time.monotonic()
        subprocess.run([*whole, wanted], check=True, stdout=subprocess.DEVNULL)
        duration = time.monotonic() - began
        counts = {"before": 0, "inside": 0, "after": 0}
        sums, at_first = checksum(source), stamps(source)
        known = set()  # leftovers of kills before
        for i in range(OPTIONS.kills):
            child = subprocess.Popen([*whole, self.path("out")], stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
            time.sleep(self.rng.uniform(0, 1.15 * duration))
            child.kill()
            child.wait(timeout=WAIT_S)
            left = [n for n in self.left() if n not in ("out", "wanted")]
            self.assertTrue(all(n.startswith(".out.gac-") for n in left), left)
            complete = os.path.exists(self.path("out"))
            counts["after" if complete else "inside" if set(left) - known else "before"] += 1
            if complete:
                self.assertEqual(checksum(self.path("out")), checksum(wanted), f"kill {i}")
                shutil.rmtree(self.path("out"))
            known = set(left)
            self.assertEqual(stamps(source), at_first, "the input was touched")
            if len(left) >= 4 or i % 10 == 9 or i + 1 == OPTIONS.kills:
                subprocess.run([*whole, self.path("out")], check=True, stdout=subprocess.DEVNULL)
                self.assertEqual(checksum(self.path("out")), checksum(wanted))
                shutil.rmtree(self.path("out"))
                self.assertEqual(self.left(), ["wanted"], "outlived a rerun")
                known = set()
        print(f"gac {arguments[0]} {arguments[-1]}: {OPTIONS.kills} kills over {duration:.2f} s: "
              f"{counts['before']} before, {counts['inside']} inside, {counts['after']} after",
              file=sys.stderr)
        self.assertEqual(checksum(source), sums)
        self.assertGreater(counts["inside"], 0)

    def test_kill_repair(self):
        self.kill(self.big, "repair", self.big, "--strategy", "minimal")

    def test_kill_undo(self):
        self.kill(self.wanted, "repair", self.wanted, "--undo")

    def test_kill_convert(self):
        """A file of llama2.c: 8 layers of 512, with a vocabulary of 4."""
        dim, width, n_layers = 512, 1536, 8
        n = 4 * dim + n_layers * (2 * dim + 4 * dim * dim + 3 * dim * width) + dim + 16 * 64
        source = os.path.join(self.holder.name, "llama2c")
        os.makedirs(source, exist_ok=True)
        with open(os.path.join(source, "m.bin"), "wb") as file:
            file.write(struct.pack("<7i", dim, width, n_layers, 8, 8, 4, 16))
            block = struct.pack("<1024f", *(i / 1024 for i in range(1024)))
            file.write((block * (n // 1024 + 1))[:4 * n])
        with open(os.path.join(source, "t.bin"), "wb") as file:
            file.write(struct.pack("<i", 1) + b"".join(
                struct.pack("<fi", -i, 1) + bytes([97 + i]) for i in range(4)))
        self.kill(source, "convert", os.path.join(source, "m.bin"), "--tokenizer",
                  os.path.join(source, "t.bin"))

    def test_kill_while_replacing(self):
        """With --force an existing target is there, old or new, whole, at any moment."""
        out = self.path("out")
        small = self.small("small")
        self.rerun(small, out)
        old = checksum(out)
        for _ in range(max(3, OPTIONS.kills // 10)):
            child = subprocess.Popen([self.gac.path, "repair", self.big, "-o", out, "-q", "--force",
                                      "--strategy", "minimal"], stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
            time.sleep(self.rng.uniform(0.3, 1.3) * self.duration)
            child.kill()
            child.wait(timeout=WAIT_S)
            self.assertTrue(checksum(out) == old or same_folders(out, self.wanted))
            for name in self.left():
                if name.startswith(".out.gac-"):
                    shutil.rmtree(self.path(name))

    def test_at_the_same_time(self):
        """Of several repairs to one target one wins; none disturbs another."""
        children = [self.start() for _ in range(3)]
        said = [child.communicate(timeout=WAIT_S)[1] for child in children]
        self.assertEqual(sorted(c.returncode for c in children), [0, 1, 1], said)
        self.assertEqual(sum("exists" in s for s in said), 2, said)
        self.assertEqual(self.left(), ["out"])
        self.assertTrue(same_folders(self.path("out"), self.wanted))

    def test_signals(self):
        """Ctrl-C and its like leave nothing behind."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number.name):
                child = self.start_writing()
                child.send_signal(number)
                _, said = child.communicate(timeout=WAIT_S)
                left = self.left()
                for name in left:
                    shutil.rmtree(self.path(name))
                self.assertNotEqual(child.returncode, 0)
                self.assertEqual(left, [], f"exit {child.returncode}, said {said!r}")
        self.assertEqual(checksum(self.big), self.sums)

    def test_input_that_changes(self):
        """A shard that shrinks, or vanishes, while it is read."""
        def shrink(path):
            os.truncate(path, os.path.getsize(path) // 2)

        def empty(path):
            os.truncate(path, 0)
        for change in (shrink, empty, os.unlink):
            with self.subTest(change.__name__):
                original = self.path("copy")
                shutil.copytree(self.big, original)
                child = self.start_writing(original)
                child.send_signal(signal.SIGSTOP)
                change(os.path.join(original, support.tensor_files(original)[-1]))
                child.send_signal(signal.SIGCONT)
                _, said = child.communicate(timeout=WAIT_S)
                shutil.rmtree(original)
                left = self.left()
                whole = left == ["out"] and same_folders(self.path("out"), self.wanted)
                for name in left:
                    shutil.rmtree(self.path(name))
                if child.returncode == 0 and change is os.unlink:  # it was open already
                    self.assertTrue(whole)
                    continue
                self.assertIn(child.returncode, (1, 3), said)
                self.assertTrue(support.one_line(said) and ".safetensors" in said, said)
                self.assertEqual(left, [])

    def test_file_size_limit(self):
        """A write that fails half way through a shard."""
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 20, 20 << 20))
        child = self.start(preexec_fn=limit)
        _, said = child.communicate(timeout=WAIT_S)
        self.assertEqual(child.returncode, 1, said)
        self.assertTrue(support.one_line(said) and "large" in said.lower(), said)
        self.assertEqual(self.left(), [])


class Disk(FaultCase):
    """Disks that are full, read-only or not there."""

    def mount(self, size):
        point = self.path("disk")
        os.makedirs(point, exist_ok=True)
        result = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", point],
                                capture_output=True, text=True, check=False)
        if result.returncode:
            self.skipTest("cannot mount: " + result.stderr.strip())
        self.addCleanup(subprocess.run, ["umount", "-q", point], check=False, capture_output=True)
        return point

    def test_full(self):
        """From a disk that holds nothing to one that lacks a page."""
        original = self.small()
        sums = checksum(original)
        self.rerun(original, self.path("wanted"))
        needed = tree_bytes(self.path("wanted"))
        point = self.mount("4k")
        n_failed = 0
        for size in [4096 * k for k in (1, 2, 3, 4, 8)] + [needed * k // 8 for k in range(1, 9)] + \
                [needed - 4096, needed + 65536, needed * 2]:
            with self.subTest(size):
                subprocess.run(["mount", "-o", f"remount,size={size}", point], check=True)
                out = os.path.join(point, "out")
                result = self.gac("repair", original, "-o", out, "-q")
                if result.returncode == 0:
                    self.assertTrue(checksum(out) == checksum(self.path("wanted")))
                    shutil.rmtree(out)
                    continue
                n_failed += 1
                self.failed_cleanly(result)
                self.assertIn(os.strerror(errno.ENOSPC), result.stderr)
                self.assertEqual(os.listdir(point), [])
        self.assertGreater(n_failed, 8)
        self.assertEqual(checksum(original), sums)
        self.rerun(original, os.path.join(point, "out"))

    def test_full_while_undoing(self):
        original = self.small()
        self.rerun(original, self.path("repaired"))
        point = self.mount("128k")
        result = self.gac("repair", self.path("repaired"), "--undo", "-o",
                          os.path.join(point, "out"), "-q")
        self.failed_cleanly(result)
        self.assertEqual(os.listdir(point), [])

    def test_no_more_inodes(self):
        original = self.small()
        point = self.mount("64m,nr_inodes=4")
        result = self.gac("repair", original, "-o", os.path.join(point, "out"), "-q")
        self.failed_cleanly(result)
        self.assertEqual(os.listdir(point), [])

    def test_read_only(self):
        original = self.small()
        point = self.mount("64m")
        subprocess.run(["mount", "-o", "remount,ro", point], check=True)
        self.failed_cleanly(self.gac("repair", original, "-o", os.path.join(point, "out"), "-q"))

    def test_not_allowed(self):
        """A folder of somebody else, as an ordinary user."""
        original = self.small()
        os.mkdir(self.path("theirs"), 0o755)
        user = {}
        if os.getuid() == 0:
            user = {"user": 65534, "group": 65534, "extra_groups": []}
        else:
            os.chmod(self.path("theirs"), 0o555)
        # Its own folder may be closed to others, as root's home is.
        holder = tempfile.TemporaryDirectory(prefix="gac-program-")
        self.addCleanup(holder.cleanup)
        gac = support.Gac(shutil.copy(self.gac.path, os.path.join(holder.name, "gac")))
        os.chmod(holder.name, 0o755)
        os.chmod(gac.path, 0o755)
        self.failed_cleanly(gac("repair", original, "-o", self.path("theirs/out"), "-q", **user))
        self.assertEqual(os.listdir(self.path("theirs")), [])

    def test_missing_parent(self):
        original = self.small()
        result = self.gac("repair", original, "-o", self.path("no/such/out"), "-q")
        self.failed_cleanly(result)
        self.assertEqual(self.left(), ["in"])


class Targets(FaultCase):
    """Targets that cannot be, and those that would cost the input."""

    def refuse(self, original, out, *args, codes=(1, 2)):
        before = checksum(self.folder)
        result = self.gac("repair", original, "-o", out, "-q", *args)
        after = checksum(self.folder)
        self.failed_cleanly(result, codes)
        self.assertEqual(after, before)

    def test_names(self):
        original = self.small()
        with open(self.path("file"), "w", encoding="utf-8") as file:
            file.write("mine")
        os.symlink("nowhere", self.path("dangling"))
        os.symlink("in", self.path("link"))
        for out in ("file", "file/out", "dangling", "link", "in", "in/", "in/.", ".", "..", "",
                    "x" * 300):
            with self.subTest(out):
                self.refuse(original, self.path(out) if out else "")
        self.refuse(original, "/")

    def test_long_name(self):
        """A name the file system takes, though its temporary one is longer."""
        original = self.small()
        out = self.path("y" * 250)
        result = self.gac("repair", original, "-o", out, "-q")
        if result.returncode:
            self.failed_cleanly(result)
        self.assertEqual(len(self.left()), 1 + (result.returncode == 0))

    def test_odd_names_work(self):
        original = self.small()
        for out in ("with space", "trailing/", "-dash", "ä\u2028", "new\nline", "%s%n", "a" * 200):
            with self.subTest(out):
                self.rerun(original, self.path(out))

    def test_file_is_not_replaced(self):
        original = self.small()
        with open(self.path("file"), "w", encoding="utf-8") as file:
            file.write("mine")
        self.refuse(original, self.path("file"), "--force")

    def test_input_is_never_the_target(self):
        original = self.small()
        os.symlink("in", self.path("link"))
        for out in ("in", "in/", "link", "link/", "./in", "in/../in"):
            with self.subTest(out):
                self.refuse(original, os.path.join(self.folder, out), "--force")

    def test_input_inside_the_target(self):
        """Replacing a folder that holds the input would remove the input."""
        os.mkdir(self.path("models"))
        original = self.small("models/in")
        self.refuse(original, self.path("models"), "--force")

    def test_target_inside_the_input(self):
        original = self.small()
        self.refuse(original, os.path.join(original, "out"))
        self.refuse(original, os.path.join(original, "extra", "out"))

    def test_replacing(self):
        original = self.small()
        out = self.path("out")
        self.rerun(original, out)
        os.mkdir(os.path.join(out, "old"))
        self.rerun(original, out, "--force", "--strategy", "optimal")
        self.assertEqual(self.left(), ["in", "out"])
        self.assertNotIn("old", os.listdir(out))


class FailingCalls(FaultCase):
    """Every system call of a small repair fails once, one at a time."""

    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory(prefix="gac-faults-")
        cls.shim = shim.build(cls.holder.name)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def fault(self, kind, at, code, *args):
        env = shim.environment(self.shim, call=kind, at=at, errno=code,
                               count=os.path.join(self.holder.name, "count"))
        return self.gac(*args, "-q", env=env)

    def n_calls(self):
        with open(os.path.join(self.holder.name, "count"), encoding="utf-8") as file:
            return int(file.read())

    def fail_each(self, kind, code, original, *args, most=9):
        """Each call of a kind, or a sample of them: whole, or nothing and one line."""
        out = self.path("out")
        self.assertEqual(self.fault(kind, 0, code, "repair", original, "-o", out, *args).returncode,
                         0)
        wanted, n = checksum(out), self.n_calls()
        shutil.rmtree(out)
        before = self.left()
        self.assertGreater(n, 0, "the shim sees no calls")
        for at in sorted(self.rng.sample(range(1, n + 1), min(n, most))):
            with self.subTest(kind=kind, at=at, of=n, error=errno.errorcode[code]):
                result = self.fault(kind, at, code, "repair", original, "-o", out, *args)
                left = self.left()
                whole = checksum(out) == wanted if os.path.exists(out) else False
                for name in left:
                    if name not in before:
                        shutil.rmtree(self.path(name))
                if result.returncode == 0:
                    self.assertTrue(whole, "said done, and the result is not whole")
                    continue
                self.failed_cleanly(result, (1, 3))
                # A whole result stays if the rename came first, or if only its report failed.
                if not (whole and (kind in ("sync", "open") or "is complete" in result.stderr)):
                    self.assertEqual(left, before)

    def test_reading(self):
        original = self.small()
        self.fail_each("read", errno.EIO, original)

    def test_writing(self):
        original = self.small()
        self.fail_each("write", errno.ENOSPC, original)
        self.fail_each("write", errno.EINTR, original, most=3)

    def test_the_rest(self):
        original = self.small()
        for kind, code in (("sync", errno.EIO), ("rename", errno.EIO), ("rename", errno.EINVAL),
                           ("mkdir", errno.EACCES), ("truncate", errno.EFBIG),
                           ("open", errno.EMFILE), ("close", errno.EIO)):
            self.fail_each(kind, code, original, most=5)

    def test_undo(self):
        original = self.small()
        self.rerun(original, self.path("repaired"))
        for kind, code in (("read", errno.EIO), ("write", errno.ENOSPC), ("sync", errno.EIO)):
            self.fail_each(kind, code, self.path("repaired"), "--undo", most=6)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gac", required=True)
    parser.add_argument("--kills", type=int, default=100, metavar="N")
    parser.add_argument("--quick", action="store_true", help="15 kills")
    parser.add_argument("cases", nargs="*")
    args = parser.parse_args()
    OPTIONS.gac = support.Gac(os.path.abspath(args.gac))
    OPTIONS.kills = 15 if args.quick else args.kills
    return tally.run(args.cases)


if __name__ == "__main__":
    sys.exit(main())
