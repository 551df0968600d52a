#!/usr/bin/env python3
"""Variants of the method of `gac compress`, in PyTorch: which of them pay?

    variants.py MODEL_DIR DATA_DIR OUT.json

DATA_DIR has wiki.valid.txt (calibration), wiki.test.raw and heldout.txt (tests). Weights are
replaced by their compressed values in place: sizes are counted, not stored.
"""
import json
import math
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

MODEL, DATA, OUT = sys.argv[1:4]
WINDOW, ALIGN, UNIT = 2048, 32, 2304  # tokens; sizes; parameters in a step of the budget
N_CALIBRATION, N_TRIALS, N_GRADIENTS = 64, 4, 24  # windows
DEVICE = "cuda"
START = time.time()
PROJECTIONS = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
               "o": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj",
               "down": "mlp.down_proj"}
INPUTS = {"q": "qkv", "k": "qkv", "v": "qkv", "o": "o", "gate": "gate_up", "up": "gate_up",
          "down": "down"}

net = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).to(DEVICE).eval()
tokenizer = PreTrainedTokenizerFast(tokenizer_file=MODEL + "/tokenizer.json")
layers = net.model.layers
N_LAYERS, HIDDEN = len(layers), net.config.hidden_size
WIDTH = net.config.intermediate_size
HEADS, KV_HEADS = net.config.num_attention_heads, net.config.num_key_value_heads
HEAD, SHARED = HIDDEN // HEADS, HEADS // KV_HEADS
modules = {(i, p): layers[i].get_submodule(name)
           for i in range(N_LAYERS) for p, name in PROJECTIONS.items()}
weights = {key: m.weight.data.clone() for key, m in modules.items()}
N_PARAMS = sum(w.numel() for w in weights.values())
result = {}


def say(*what):
    print(f"[{time.time() - START:6.1f} s]", *what, flush=True)


def windows_of(path):
    """Whole windows, and what is left."""
    with open(path, encoding="utf8") as file:
        ids = tokenizer(file.read(), add_special_tokens=False, return_tensors="pt").input_ids[0]
    whole = len(ids) // WINDOW * WINDOW
    return ids[:whole].view(-1, WINDOW).to(DEVICE), ids[whole:].to(DEVICE)


text = windows_of(DATA + "/wiki.valid.txt")[0]
tests = {"wiki": windows_of(DATA + "/wiki.test.raw"), "held": windows_of(DATA + "/heldout.txt")}
calibration, trials = text[:N_CALIBRATION], text[N_CALIBRATION:N_CALIBRATION + N_TRIALS]


def identity(n):
    return torch.eye(n, device=DEVICE, dtype=torch.float64)


def root(c):
    values, vectors = torch.linalg.eigh(c)
    return (vectors * values.clamp_min(0).sqrt()) @ vectors.T


def restore(keys=None):
    for key in keys or modules:
        modules[key].weight.data.copy_(weights[key])
        modules[key].bias = None


@torch.no_grad()
def perplexity(name):
    loss = n = 0
    whole, rest = tests[name]
    for w in [*whole.split(8), rest[None]]:
        if w.shape[1] < 2:
            continue
        logits = net(w).logits[:, :-1]
        loss += F.cross_entropy(logits.flatten(0, 1).float(), w[:, 1:].flatten(),
                                reduction="sum").item()
        n += w[:, 1:].numel()
    return math.exp(loss / n)


@torch.no_grad()
def collect():
    """The mean of x x^T and of x, for each input of linear modules."""
    grams, means = {}, {}

    def hook(key):
        def add(_, inputs, __):
            x = inputs[0].flatten(0, 1).double()
            grams[key] = grams.get(key, 0) + x.T @ x
            means[key] = means.get(key, 0) + x.sum(0)
        return add
    hooks = [modules[i, p].register_forward_hook(hook((i, INPUTS[p])))
             for i in range(N_LAYERS) for p in ("q", "o", "gate", "down")]
    for w in calibration.split(4):
        net.model(w)
    for h in hooks:
        h.remove()
    n = calibration.numel()
    return {k: g / n for k, g in grams.items()}, {k: m / n for k, m in means.items()}


def collect_gradients():
    """The mean of g g^T over gradients g at the outputs, labels drawn from the model."""
    sums = {}

    def hook(key):
        def watch(_, __, output):
            def add(gradient):
                g = gradient.flatten(0, 1).double()
                sums[key] = sums.get(key, 0) + g.T @ g
            output.register_hook(add)
        return watch
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    net.model.embed_tokens.weight.requires_grad_(True)
    hooks = [modules[i, p].register_forward_hook(hook((i, p)))
             for i in range(N_LAYERS) for p in ("q", "k", "v", "o", "down")]
    for w in text[:N_GRADIENTS].split(2):
        logits = net(w).logits[:, :-1].flatten(0, 1).float()
        with torch.no_grad():
            labels = torch.multinomial(F.softmax(logits, -1), 1)[:, 0]
        F.cross_entropy(logits, labels, reduction="sum").backward()
        net.zero_grad(set_to_none=True)
    for h in hooks:
        h.remove()
    net.model.embed_tokens.weight.requires_grad_(False)
    return {k: g / text[:N_GRADIENTS].numel() for k, g in sums.items()}


@torch.no_grad()
def order_channels(grams, outputs):
    """Greedy order of all layers at once. grams (layers, n, n), outputs (layers, out, n). Returns
    the order (layers, n) and what the first k leave unexplained (layers, n + 1)."""
    n = grams.shape[-1]
    rest = grams + 1e-7 * grams.diagonal(dim1=1, dim2=2).mean(-1)[:, None, None] * identity(n)
    seen = outputs @ rest
    left = (seen * outputs).sum((1, 2))
    every = torch.arange(len(grams), device=DEVICE)
    taken = torch.zeros(grams.shape[:2], dtype=torch.bool, device=DEVICE)
    order, losses = [], [left.clone()]
    for _ in range(n):
        gain = (seen * seen).sum(1) / rest.diagonal(dim1=1, dim2=2).clamp_min(1e-300)
        gain[taken] = -1
        j = gain.argmax(1)
        taken[every, j] = True
        order.append(j)
        left = left - gain[every, j].clamp_min(0)
        losses.append(left.clamp_min(0))
        column, output = rest[every, :, j], seen[every, :, j]
        scale = column[every, j].clamp_min(1e-300)[:, None, None]
        seen.baddbmm_(output[:, :, None] / scale, column[:, None, :], alpha=-1)
        rest.baddbmm_(column[:, :, None] / scale, column[:, None, :], alpha=-1)
    return torch.stack(order, 1), torch.stack(losses, 1).cpu()


class Variant:
    """One variant of the method: statistics, curves, effects, choices."""

    def __init__(self, name, statistics, centred=False, gradients=None, vo=False, qk=False):
        self.name, self.centred, self.vo, self.qk = name, centred, vo, qk
        self.grams, self.means = statistics
        if centred:  # a bias takes what the mean inputs give
            self.grams = {k: g - torch.outer(self.means[k], self.means[k])
                          for k, g in self.grams.items()}
        self.metric = {k: root(g + 1e-3 * g.diagonal().mean() * identity(len(g)))
                       for k, g in (gradients or {}).items()}
        self.make_curves()
        self.measure_effects()

    # What cuts lose, relative to all.

    def make_curves(self):
        self.bases, self.energy = {}, {}
        for i in range(N_LAYERS):
            for p in "qkvo":
                w = self.weigh((i, p), weights[i, p].double())
                values, vectors = torch.linalg.eigh(w @ self.grams[i, INPUTS[p]] @ w.T)
                self.energy[i, p] = values.flip(0).clamp_min(0).cpu()
                self.bases[i, p] = vectors.flip(1)
        self.order, self.width_losses = order_channels(
            torch.stack([self.grams[i, "down"] for i in range(N_LAYERS)]),
            torch.stack([self.weigh((i, "down"), weights[i, "down"].double())
                         for i in range(N_LAYERS)]))
        self.value_losses = [self.value_curve(i) if self.vo else {} for i in range(N_LAYERS)]
        self.pairs = [self.pair_curve(i) if self.qk else (None, {}) for i in range(N_LAYERS)]

    def weigh(self, key, w):
        return self.metric[key] @ w if key in self.metric else w

    def value_basis(self, i, size):
        """(heads x HEAD, heads x size): the numbers of each head that stay, when the heads of a
        group lose the same directions of their values."""
        c, o = self.grams[i, "o"], weights[i, "o"].double()
        basis = torch.zeros(HEADS * HEAD, HEADS * size, device=DEVICE, dtype=torch.float64)
        for g in range(KV_HEADS):
            slices = [slice(h * HEAD, (h + 1) * HEAD) for h in range(g * SHARED, (g + 1) * SHARED)]
            inputs = sum(c[s, s] for s in slices)
            scale = root(inputs + 1e-9 * inputs.diagonal().mean() * identity(HEAD))
            _, turn = torch.linalg.eigh(scale @ sum(o[:, s].T @ o[:, s] for s in slices) @ scale)
            kept = torch.linalg.solve(scale, turn.flip(1)[:, :size])
            for h, s in zip(range(g * SHARED, (g + 1) * SHARED), slices):
                basis[s, h * size:(h + 1) * size] = kept
        return basis

    def fit_values(self, i, size):
        """The output projection for values of another size, and what it loses."""
        c, o, s = self.grams[i, "o"], weights[i, "o"].double(), self.value_basis(i, size)
        inner = s.T @ c @ s
        inner += 1e-9 * inner.diagonal().mean() * identity(len(inner))
        fit = torch.linalg.solve(inner, s.T @ c @ o.T).T
        full = torch.trace(o @ c @ o.T)
        return fit @ s.T, float((full - torch.trace(fit @ s.T @ c @ o.T)).clamp_min(0) / full)

    def value_curve(self, i):
        return {size: self.fit_values(i, size)[1] for size in range(8, HEAD, 8)}

    def pair_curve(self, i):
        """Rotary pairs of q and k by the product of their energies: order, and losses by size."""
        wq, wk, c = weights[i, "q"].double(), weights[i, "k"].double(), self.grams[i, "qkv"]
        q = ((wq @ c) * wq).sum(1).view(KV_HEADS, SHARED, 2, HEAD // 2).sum((1, 2))
        k = ((wk @ c) * wk).sum(1).view(KV_HEADS, 2, HEAD // 2).sum(1)
        order = (q * k).argsort(1, descending=True)
        ranked = (q * k).gather(1, order)
        return order, {2 * n: float(ranked[:, n:].sum() / ranked.sum())
                       for n in range(4, HEAD // 2, 4)}

    def rank_loss(self, key, rank):
        return float(self.energy[key][rank:].sum() / self.energy[key].sum())

    def width_loss(self, i, width):
        return float(self.width_losses[i, width] / self.width_losses[i, 0])

    # Making cuts.

    def put(self, key, w):
        modules[key].weight.data.copy_(w.float())
        if self.centred:
            lost = (weights[key].double() - w) @ self.means[key[0], INPUTS[key[1]]]
            modules[key].bias = torch.nn.Parameter(lost.float(), requires_grad=False)

    def make(self, cut):
        kind, i, size = cut[0], cut[1], cut[-1]
        if kind == "rank":
            key = i, cut[2]
            u = self.bases[key][:, :size]
            w = u @ (u.T @ self.weigh(key, weights[key].double()))
            self.put(key, torch.linalg.solve(self.metric[key], w) if key in self.metric else w)
        elif kind == "width":
            kept, c, w = self.order[i, :size], self.grams[i, "down"], weights[i, "down"].double()
            square = c[kept][:, kept] + 1e-8 * c.diagonal().mean() * identity(size)
            made = torch.zeros_like(w)
            made[:, kept] = torch.linalg.solve(square, c[kept] @ w.T).T
            self.put((i, "down"), made)
        elif kind == "vo":
            self.put((i, "o"), self.fit_values(i, size)[0])
        else:
            for p, heads in (("q", HEADS), ("k", KV_HEADS)):
                mask = torch.zeros(heads, 2, HEAD // 2, device=DEVICE)
                for h in range(heads):
                    mask[h, :, self.pairs[i][0][h // (heads // KV_HEADS)][:size // 2]] = 1
                modules[i, p].weight.data.copy_(weights[i, p] * mask.view(-1, 1))

    # What cuts do to the output.

    @torch.no_grad()
    def log_probabilities(self):
        hidden = net.model(trials).last_hidden_state[:, WINDOW // 8::2]
        return F.log_softmax(net.lm_head(hidden).float(), -1)

    def divergence(self):
        now = self.log_probabilities()
        return max(1e-9, sum(float((a.exp() * (a - b)).sum(-1).mean())
                             for a, b in zip(self.dense, now)) / N_TRIALS)

    def measure_effects(self):
        restore()
        self.dense, self.scales = self.log_probabilities(), {}

        def measure(key, cut, loss):
            self.make(cut)
            self.scales[key] = self.divergence() / max(loss, 1e-12)
            restore([k for k in modules if k[0] == cut[1]])
        for i in range(N_LAYERS):
            for p in "qkvo":
                n_out, n_in = weights[i, p].shape
                rank = int(0.5 * n_out * n_in / (n_out + n_in))
                measure((i, p), ("rank", i, p, rank), self.rank_loss((i, p), rank))
            measure((i, "mlp"), ("width", i, WIDTH * 2 // 3), self.width_loss(i, WIDTH * 2 // 3))
            for kind, losses in (("vo", self.value_losses[i]), ("qk", self.pairs[i][1])):
                if losses:
                    size = min(losses, key=lambda s: abs(s - 0.625 * HEAD))
                    measure((i, kind), (kind, i, size), losses[size])

    # Choosing.

    def choices_of(self, i):
        """The choices for q and k, for v and o, and for the MLP: (parameters, effect, cuts)."""
        def ranks(p):
            n_out, n_in = weights[i, p].shape
            return [(n_out * n_in, 0.0, ())] + [
                (r * (n_out + n_in), self.scales[i, p] * self.rank_loss((i, p), r),
                 (("rank", i, p, r),))
                for r in range(ALIGN, min(n_out, n_in), ALIGN) if r * (n_out + n_in) < n_out * n_in]

        def both(a, b):
            return [(x[0] + y[0], x[1] + y[1], x[2] + y[2]) for x in ranks(a) for y in ranks(b)]

        def heads(kind, losses):
            return [(s * KV_HEADS * HIDDEN * (1 + SHARED), self.scales[i, kind] * loss,
                     ((kind, i, s),)) for s, loss in losses.items()]
        widths = [(3 * HIDDEN * w, self.scales[i, "mlp"] * self.width_loss(i, w),
                   (("width", i, w),)) for w in range(ALIGN, WIDTH, ALIGN)]
        return [both("q", "k") + heads("qk", self.pairs[i][1]),
                both("v", "o") + heads("vo", self.value_losses[i]),
                [(3 * HIDDEN * WIDTH, 0.0, ())] + widths]

    def allocate(self, keep):
        """The exact knapsack: cuts, and the sum of their effects."""
        budget = int(keep * N_PARAMS // UNIT)
        value, steps = np.zeros(budget + 1), []
        for choices in [c for i in range(N_LAYERS) for c in self.choices_of(i)]:
            best = {}
            for cost, effect, cuts in choices:
                units = -(-cost // UNIT)
                if units <= budget and effect < best.get(units, (np.inf,))[0]:
                    best[units] = effect, cuts
            now, pick = np.full(budget + 1, np.inf), np.zeros(budget + 1, np.int32)
            for units, (effect, _) in best.items():
                tried = np.full(budget + 1, np.inf)
                tried[units:] = value[:budget + 1 - units] + effect
                better = tried < now
                now[better], pick[better] = tried[better], units
            value = now
            steps.append((best, pick))
        at, cuts = int(np.argmin(value)), []
        for best, pick in reversed(steps):
            cuts += best[int(pick[at])][1]
            at -= int(pick[at])
        return cuts, float(value.min())

    def run(self, keeps=(0.8, 0.6)):
        for keep in keeps:
            restore()
            cuts, effect = self.allocate(keep)
            for cut in cuts:
                self.make(cut)
            kinds = [cut[0] for cut in cuts]
            record(f"{self.name} {keep}", {
                "wiki": perplexity("wiki"), "held": perplexity("held"), "expected": effect,
                "measured": self.divergence(), "cuts": {k: kinds.count(k) for k in set(kinds)}})


def record(name, row):
    result[name] = row
    say(name, json.dumps(row))
    with open(OUT, "w", encoding="utf8") as file:
        json.dump(result, file, indent=1)


@torch.no_grad()
def refit_in_sequence(variant, keep, share, target):
    """Refits down projections layer by layer to the inputs that they have in the compressed
    model. target "same": to give W times these inputs; "dense": to give what the dense model
    gives. share: the weight of these statistics, the rest is the dense model's."""
    restore()
    cuts, _ = variant.allocate(keep)
    angles = None
    dense = net.model.embed_tokens(calibration)
    compressed = dense.clone()
    angles = net.model.rotary_emb(dense[:1], torch.arange(WINDOW, device=DEVICE)[None])
    for i in range(N_LAYERS):
        caught = {}
        hook = modules[i, "down"].register_forward_hook(
            lambda _, inputs, __, caught=caught: caught.__setitem__("x", inputs[0]))

        def run(hidden, i=i, caught=caught):
            outputs, inputs = [], []
            for part in hidden.split(8):
                out = layers[i](part, position_embeddings=angles)
                outputs.append(out[0] if isinstance(out, tuple) else out)
                inputs.append(caught["x"])
            return torch.cat(outputs), torch.cat(inputs)
        next_dense, dense_inputs = run(dense)
        mine = [cut for cut in cuts if cut[1] == i]
        for cut in mine:
            if cut[0] != "width":
                variant.make(cut)
        inputs = run(compressed)[1]
        for cut in mine:
            if cut[0] == "width":
                kept, c = variant.order[i, :cut[2]], variant.grams[i, "down"]
                square, cross = c[kept][:, kept] * (1 - share), c[kept] * (1 - share)
                wanted = inputs if target == "same" else dense_inputs
                for x, y in zip(inputs.split(16), wanted.split(16)):
                    x, y = x.flatten(0, 1).double(), y.flatten(0, 1).double()
                    square += share / calibration.numel() * x[:, kept].T @ x[:, kept]
                    cross += share / calibration.numel() * x[:, kept].T @ y
                square += 1e-8 * square.diagonal().mean() * identity(len(kept))
                w = weights[i, "down"].double()
                made = torch.zeros_like(w)
                made[:, kept] = torch.linalg.solve(square, cross @ w.T).T
                modules[i, "down"].weight.data.copy_(made.float())
        hook.remove()
        dense = next_dense
        compressed = torch.cat([o[0] if isinstance(o, tuple) else o for o in (
            layers[i](part, position_embeddings=angles) for part in compressed.split(8))])
    record(f"refit {target} {share} {keep}", {"wiki": perplexity("wiki"),
                                              "held": perplexity("held"),
                                              "measured": variant.divergence()})


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    record("dense", {"wiki": perplexity("wiki"), "held": perplexity("held")})
    statistics = collect()
    base = Variant("base", statistics)
    base.run((0.9, 0.8, 0.7, 0.6))
    Variant("vo", statistics, vo=True).run()
    Variant("centred", statistics, centred=True).run()
    Variant("gradients", statistics, gradients=collect_gradients()).run()
    for keep, share, target in ((0.8, 1, "same"), (0.8, 0.25, "dense"), (0.8, 0.5, "dense"),
                                (0.6, 0.5, "dense"), (0.6, 1, "same")):
        refit_in_sequence(base, keep, share, target)
    Variant("qk and vo", statistics, vo=True, qk=True).run()


if __name__ == "__main__":
    main()
