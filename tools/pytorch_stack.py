#!/usr/bin/env python3
"""Measures operator calls through PyTorch, as its users would make them.

    pytorch_stack.py [REQUEST.json]

Without an argument it reads the paths of requests from stdin, one per line.
A request lists calls (attention, GEMM, padding), timing rules and checks of outputs.
Each answer is a line of JSON on stdout. Progress goes to stderr. Timing follows the
rules of gac's own timing: warm-up, operand sets of three times the L2 cache, replay
of a CUDA graph for short calls, CUDA events, raw samples.
Exit status 4: torch or the GPU is missing. The device "cpu" is for testing this script.
"""
import contextlib
import json
import math
import os
import statistics
import sys
import time
import warnings

MAX_SETS = 64  # the limit of gac too
MAX_SET_BYTES = 24 << 30
MAX_CALLS = 2000  # per sample
PROFILE_CHUNK = 64
HOLD_US = 200  # at least: events are up to 1 us late, which blurs the clock reading
REST_S = 0.025  # how long a card below FULL_CLOCK rests
HOLD_CYCLES_PER_US = 2000  # about a GPU's clock in MHz
FULL_CLOCK = 0.98  # fraction of the highest clock


def leave(status, line):
    print(line, file=sys.stderr, flush=True)
    sys.exit(status)


try:
    import torch
    import torch.nn.functional as F
except Exception as e:  # a broken installation counts as a missing one
    leave(4, f"no usable torch in {sys.executable}: {type(e).__name__}: {' '.join(str(e).split())}")

try:
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    leave(4, f"torch {torch.__version__} is too old: no torch.nn.attention.sdpa_kernel")

BACKENDS = {"flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION",
            "cudnn": "CUDNN_ATTENTION", "math": "MATH"}
DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16}


class Declined(Exception):
    """No backend serves the call; the text says why."""


def short(error):
    """Returns an exception's text as one line."""
    return " ".join(str(error).split())[:280] or type(error).__name__


class Stack:
    def __init__(self, request):
        self.device = torch.device(request["device"])
        self.cuda = self.device.type == "cuda"
        self.dtype = DTYPES[request["dtype"]]
        self.rules = request["rules"]
        if self.cuda:
            if not torch.cuda.is_available():
                leave(4, f"torch {torch.__version__} in {sys.executable} sees no GPU")
            if (self.device.index or 0) >= torch.cuda.device_count():
                leave(4, f"torch sees no GPU number {self.device.index}")
            torch.cuda.set_device(self.device)
            properties = torch.cuda.get_device_properties(self.device)
            self.l2_bytes = getattr(properties, "L2_cache_size", 0) or (64 << 20)
            self.mhz = self.top_mhz = 0
            for _ in range(200):  # raises an idle card to its highest clock, to learn what it is
                self.clock_behind_hold(lambda: None, 0)
        else:
            self.l2_bytes = 1 << 20
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.manual_seed(20260107)

    def random(self, *shape):
        return torch.randn(*shape, device=self.device, dtype=self.dtype)

    def operands(self, job):
        """Makes one set of operands."""
        if job["op"] == "gemm":
            m, n, k = job["m"], job["n"], job["k"]
            scale = k ** -0.25
            weight = (k, n) if job["row_major"] else (n, k)
            return self.random(m, k).mul_(scale), self.random(*weight).mul_(scale)
        if job["op"] == "pad":
            return (self.random(job["rows"], job["from"]),)
        b, h, g = job["batch"], job["q_heads"], job["kv_heads"]
        return (self.random(b, h, job["n_q"], job["qk_head"]),
                self.random(b, g, job["n_kv"], job["qk_head"]),
                self.random(b, g, job["n_kv"], job["v_head"]))

    @staticmethod
    def set_bytes(job):
        """Returns the bytes of all operands and the result of one call, in 16-bit elements."""
        if job["op"] == "gemm":
            return 2 * (job["m"] * job["k"] + job["n"] * job["k"] + job["m"] * job["n"])
        if job["op"] == "pad":
            return 2 * job["rows"] * (job["from"] + job["to"])
        b, h, g, d, v = (job[x] for x in ("batch", "q_heads", "kv_heads", "qk_head", "v_head"))
        return 2 * b * (h * job["n_q"] * (d + v) + g * job["n_kv"] * (d + v))

    @staticmethod
    def call(job):
        """Returns the function that makes the call on one set of operands."""
        if job["op"] == "gemm":
            return torch.matmul if job["row_major"] else F.linear
        if job["op"] == "pad":
            grow = job["to"] - job["from"]
            return lambda x: F.pad(x, (0, grow))
        if job["causal"] and job["n_q"] != job["n_kv"]:
            # PyTorch aligns the mask with the first key, gac with the last.
            raise Declined("causal with n_q other than n_kv means something else in PyTorch")
        options = {"is_causal": job["causal"], "scale": job["scale"] or None}
        if job["q_heads"] != job["kv_heads"]:
            options["enable_gqa"] = True

        def attention(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, **options)
        return attention

    @staticmethod
    def backend(job):
        """Returns a context that forces the backend of a call."""
        path = job.get("path", "auto")
        if path == "auto":
            return contextlib.nullcontext()
        if not hasattr(SDPBackend, BACKENDS[path]):
            raise Declined(f"torch {torch.__version__} has no backend {path}")
        return sdpa_kernel(getattr(SDPBackend, BACKENDS[path]))

    def try_call(self, job, function, operands):
        """Makes one call. Raises Declined if no backend serves it."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                out = function(*operands)
                self.wait()
                return out
            except RuntimeError as e:
                text = str(e)
                if "out of memory" in text.lower():
                    raise
                if job["op"] == "sdpa" and job.get("path", "auto") != "auto":
                    reasons = [short(w.message) for w in said]
                    # The last warnings are about the backend that was forced.
                    why = next((r for r in reasons if "head" in r.lower() or "dim" in r.lower()),
                               reasons[-1] if reasons else short(e))
                    raise Declined(f"{job['path']} declined: {why}"[:280]) from None
                raise

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def clock(self, work):
        """Returns the microseconds that work takes on the device."""
        if not self.cuda:
            start = time.perf_counter()
            work()
            return (time.perf_counter() - start) * 1e6
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3

    def clock_behind_hold(self, work, n_calls):
        """Returns the microseconds that work, which makes n_calls, takes on the device.
        A sleep of known cycles keeps the device busy until the work is queued, so that
        the launch from the host does not count. Its duration shows the clock."""
        if not self.cuda:
            return self.clock(work)
        cycles = HOLD_CYCLES_PER_US * max(HOLD_US, min(20 + 0.25 * n_calls, 500))
        before, start, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        torch.cuda._sleep(HOLD_US * HOLD_CYCLES_PER_US)  # hides the time of the launch
        before.record()
        torch.cuda._sleep(int(cycles))
        start.record()
        work()
        end.record()
        end.synchronize()
        self.mhz = cycles / (before.elapsed_time(start) * 1e3)
        self.top_mhz = max(self.top_mhz, self.mhz)
        return start.elapsed_time(end) * 1e3

    def repeat(self, function, sets, n_calls):
        """Returns work that makes n_calls over the sets. Each result lives until its
        set is used again, so that results rotate as operands do."""
        results = [None] * len(sets)

        def work():
            for i in range(n_calls):
                results[i % len(sets)] = function(*sets[i % len(sets)])
        return work

    def capture(self, work):
        """Captures the work as a graph. Returns None if that is not possible."""
        if not self.cuda:
            return None
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(side):
                work()
                # Not torch.cuda.graph(): it collects garbage and empties the
                # allocator's cache on every capture, which costs more than
                # most measurements here.
                graph.capture_begin()
                try:
                    work()
                finally:
                    graph.capture_end()
        except RuntimeError:
            graph = None
        torch.cuda.current_stream().wait_stream(side)
        self.wait()
        return graph

    @staticmethod
    def noise(samples):
        """Returns the standard error of the median, from the quartiles, over the median."""
        if len(samples) < 3:
            return math.inf
        low, middle, high = statistics.quantiles(samples, n=4)
        sigma = (high - low) / 2 / 0.6745
        return 1.2533 * sigma / math.sqrt(len(samples)) / middle

    def measure(self, job):
        rules = self.rules
        with self.backend(job):
            function = self.call(job)
            first = self.operands(job)
            self.try_call(job, function, first)
            n_sets = max(1, math.ceil(3 * self.l2_bytes / self.set_bytes(job)))
            n_sets = min(n_sets, MAX_SETS, max(1, MAX_SET_BYTES // self.set_bytes(job)))
            sets = [first] + [self.operands(job) for _ in range(n_sets - 1)]
            one = self.repeat(function, sets, 1)
            one()
            call_us = max(0.5, min(self.clock(one) for _ in range(3)))
            n_calls, graph = self.calls_for(call_us, n_sets), None
            if self.cuda and call_us < rules["graph_below_us"]:
                n_calls, graph = self.prepare_replay(function, sets, n_calls)
            work = graph.replay if graph is not None else self.repeat(function, sets, n_calls)
            return {"state": "measured", "n_calls": n_calls, "graph": graph is not None,
                    **self.sample(lambda: self.clock_behind_hold(work, n_calls), n_calls)}

    def calls_for(self, call_us, n_sets):
        """Returns the number of calls in a sample, a multiple of the number of sets."""
        n_calls = max(1, min(MAX_CALLS, math.ceil(self.rules["sample_us"] / call_us)))
        return math.ceil(n_calls / n_sets) * n_sets

    def prepare_replay(self, function, sets, n_calls):
        """Returns the calls per sample, and their graph or None. Replayed calls are
        shorter than launched ones, so a sample may need more of them."""
        while True:
            graph = self.capture(self.repeat(function, sets, n_calls))
            if graph is None:
                return n_calls, None
            took_us = self.clock_behind_hold(graph.replay, n_calls)
            wanted = self.calls_for(took_us / n_calls, len(sets))
            if wanted <= 1.1 * n_calls:
                return n_calls, graph
            n_calls = wanted

    def sample(self, take, n_calls):
        """Takes samples until they agree. take() returns the microseconds of one sample."""
        rules = self.rules
        spent_us = 0.0
        while spent_us < rules["warmup_us"]:
            spent_us += max(1.0, take())
        samples, clocks, spent_us, rested_s = [], [], 0.0, 0.0
        n_unsettled, steady, held_down = 0, False, False
        while len(samples) < min(256, rules["max_samples"]):
            took_us = take()
            if self.cuda and not held_down and self.mhz < FULL_CLOCK * self.top_mhz:
                if rested_s * 1e6 < rules["settle_us"]:
                    time.sleep(REST_S)
                    rested_s += REST_S
                    n_unsettled += 1
                    continue
                if rules["settle_us"] > 0:  # resting did not help: measure at this clock
                    n_unsettled, held_down = n_unsettled + len(samples), True
                    samples, clocks = [], []
            spent_us += took_us
            samples.append(took_us / n_calls)
            clocks.append(self.mhz if self.cuda else -1)
            if len(samples) < rules["min_samples"]:
                continue
            steady = self.noise(samples) <= rules["max_noise"]
            if steady or spent_us > rules["max_time_us"]:
                break
        return {"samples_us": samples, "steady": steady, "n_unsettled": n_unsettled,
                "clock_mhz": [round(min(clocks)), round(max(clocks))]}

    def kernels(self, jobs):
        """Returns for each job the kernels of one call, in order; or None if the
        recording lost some. One recording serves all jobs, and marker kernels
        separate their calls."""
        from torch.profiler import ProfilerActivity, profile
        made = []
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            for job in jobs:
                operands = self.operands(job)
                with self.backend(job):
                    function = self.call(job)
                    self.wait()
                    torch.cuda._sleep(1)
                    made.append(function(*operands))
                    torch.cuda._sleep(1)
                    self.wait()
                made.clear()
        events = [e for e in recorded.events()
                  if "CUDA" in str(e.device_type) and not e.name.startswith("cuda")]
        events.sort(key=lambda e: e.time_range.start)
        between = [[]]
        for event in events:
            if "spin_kernel" in event.name:
                between.append([])
            else:
                between[-1].append({"name": event.name[:255],
                                    "time_us": float(event.time_range.elapsed_us())})
        return between[1::2] if len(between) == 2 * len(jobs) + 1 else None

    def add_kernels(self, jobs, answers):
        served = [i for i, a in enumerate(answers) if a["state"] == "measured"]
        for at in range(0, len(served) if self.cuda else 0, PROFILE_CHUNK):
            chunk = served[at:at + PROFILE_CHUNK]
            found = None
            for _ in range(3):
                try:
                    found = found or self.kernels([jobs[i] for i in chunk])
                except Exception as e:
                    print(f"kernels: {short(e)}", file=sys.stderr, flush=True)
            for i, names in zip(chunk, found or []):
                answers[i]["kernels"] = names

    @staticmethod
    def reference(q, k, v, scale):
        """Computes softmax(scale q k^T) v per head, in FP32."""
        repeats = q.shape[1] // k.shape[1]
        k, v = (x.float().repeat_interleave(repeats, dim=1) for x in (k, v))
        return torch.softmax(scale * (q.float() @ k.transpose(-1, -2)), dim=-1) @ v

    def check(self, jobs):
        """Compares heads in wider rows with heads of their own size. All jobs share
        one launch. It has one softmax scale, so with several jobs each q is multiplied
        by its missing factor."""
        stored, together = jobs[0]["stored"], len(jobs) > 1
        operands = [self.operands(job) for job in jobs]
        wanted = [self.reference(*x, x[0].shape[-1] ** -0.5) for x in operands]
        answers = [{} for _ in jobs]

        def differences(key, scale, fold):
            wide = []
            for q, k, v in operands:
                by = math.sqrt(stored / q.shape[-1]) if fold else 1.0
                wide.append([F.pad(x, (0, stored - x.shape[-1]))
                             for x in ((q.float() * by).to(q.dtype), k, v)])
            launch = [torch.cat(x, dim=1) for x in zip(*wide)]
            call = {**jobs[0], "qk_head": stored, "v_head": stored, "scale": scale,
                    "q_heads": launch[0].shape[1], "kv_heads": launch[1].shape[1]}
            with self.backend(call):
                out = self.try_call(call, self.call(call), launch).float()
            parts = out.split([job["q_heads"] for job in jobs], dim=1)
            for answer, part, one in zip(answers, parts, wanted):
                d = one.shape[-1]
                distance = float((part[..., :d] - one).norm() / one.norm())
                if part[..., d:].abs().sum().item() != 0 or not math.isfinite(distance):
                    answer[key] = None
                    answer["reason"] = ("pad columns of the output are not zero, "
                                        "or the output is no number")
                else:
                    answer[key] = distance

        d = jobs[0]["qk_head"]
        differences("relative", (stored if together else d) ** -0.5, together)
        if any(job["qk_head"] != stored for job in jobs):
            differences("forgotten", stored ** -0.5, False)
        return answers

    def check_all(self, jobs):
        answers = []
        while len(answers) < len(jobs):
            launch = jobs[len(answers):][:jobs[len(answers)]["n_in_launch"]]
            said = self.guarded(self.check, launch)
            answers += said if isinstance(said, list) else [said] * len(launch)
        return answers

    def guarded(self, what, job):
        """Returns what(job), or the reason why the job was declined or failed."""
        try:
            return what(job)
        except Declined as e:
            return {"state": "declined", "reason": short(e)}
        except (RuntimeError, ValueError, TypeError) as e:
            return {"state": "failed", "reason": short(e)}
        finally:
            if self.cuda and torch.cuda.memory_reserved(self.device) > (16 << 30):
                torch.cuda.empty_cache()

    def machine(self):
        facts = {"python": sys.version.split()[0], "torch": torch.__version__,
                 "device": str(self.device)}
        if self.cuda:
            properties = torch.cuda.get_device_properties(self.device)
            facts.update(gpu=properties.name, arch=f"sm_{properties.major}{properties.minor}",
                         cuda=torch.version.cuda, cudnn=str(torch.backends.cudnn.version()),
                         sms=properties.multi_processor_count, l2_bytes=self.l2_bytes,
                         memory_bytes=properties.total_memory, max_clock_mhz=round(self.top_mhz))
        return facts


def answer(request):
    stack = Stack(request)
    jobs, answers = request["jobs"], []
    print(f"progress 0 {len(jobs)}", file=sys.stderr, flush=True)
    with torch.inference_mode():
        for i, job in enumerate(jobs):
            answers.append(stack.guarded(stack.measure, job))
            print(f"progress {i + 1} {len(jobs)}", file=sys.stderr, flush=True)
        if request["names"]:
            stack.add_kernels(jobs, answers)
        checks = stack.check_all(request["checks"])
    if stack.cuda:  # gac may need the memory until the next request
        torch.cuda.empty_cache()
    return {"machine": stack.machine(), "jobs": answers, "checks": checks}


def main():
    if len(sys.argv) > 2:
        leave(2, "usage: pytorch_stack.py [REQUEST.json]")
    # Only answers go to stdout. What libraries print there goes to stderr.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for path in sys.argv[1:] or map(str.rstrip, sys.stdin):
        with open(path) as file:
            request = json.load(file)
        print(json.dumps(answer(request)), file=out, flush=True)
    out.close()


if __name__ == "__main__":
    main()
