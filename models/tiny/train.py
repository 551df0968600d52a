#!/usr/bin/env python3
"""Trains the tiny Llama on one GPU in a given time.

    train.py --out DIR [--data build/tiny/tokens] [--minutes 4]
    train.py --out DIR --device cpu --steps 20 --batch 4     (a trial without a GPU)

Reads DATA/{train,valid,heldout}.npy (from prepare.py) and tokenizer.json here. Writes to DIR
config.json, generation_config.json, model.safetensors (F16) and training.json: the loss curve, the
losses of the weights as saved, and the perplexity of heldout.txt that transformers gives.

The learning rate follows the clock (or the steps, with --steps), so a run is not repeatable to
the bit. What is saved are the weights with the lowest validation loss; heldout.npy is only read
at the end. Exit 1 with one line when there is no GPU, no data, or the loss is not finite.
"""
import argparse
import json
import math
import os
import sys
import time

START = time.monotonic()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

SHAPE = {"vocab_size": 2048, "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 8,
         "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512,
         "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 1}
CONTEXT = SHAPE["max_position_embeddings"]
RESERVE_S = 15          # of --minutes, for the last evaluation and for saving
EVALUATIONS = 16        # of the validation loss, over the run
PROGRESS_S = 10
PROMPTS = ["The database", "If you want to install a package, you", "A function that"]


def elapsed():
    return time.monotonic() - START


def say(text):
    print(f"[{elapsed():6.1f} s] {text}", flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--data", default=os.path.join(ROOT, "build", "tiny", "tokens"))
    parser.add_argument("--minutes", type=float, default=4.0, help="wall clock of the whole program")
    parser.add_argument("--steps", type=int, help="stop after so many steps instead of by the clock")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--batch", type=int, default=128, help="windows of 512 tokens per step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="torch.compile; its time counts")
    options = parser.parse_args()
    if options.device == "cpu" and not options.steps:
        parser.error("--device cpu needs --steps")
    if not options.steps and options.minutes * 60 <= 3 * RESERVE_S:
        parser.error(f"--minutes must be more than {3 * RESERVE_S / 60}")
    return options


def load_tokens(folder, device):
    import numpy
    import torch
    tokens = {}
    for name in ("train", "valid", "heldout"):
        path = os.path.join(folder, name + ".npy")
        if not os.path.exists(path):
            sys.exit(f"train: {path} is missing; run get_text.py and prepare.py first")
        array = numpy.load(path)
        if array.dtype != numpy.uint16 or array.max() >= SHAPE["vocab_size"] or len(array) < 2 * CONTEXT:
            sys.exit(f"train: {path} does not hold token ids below {SHAPE['vocab_size']}")
        tokens[name] = torch.from_numpy(array.astype(numpy.int32)).to(device)
    return tokens


def window_losses(model, tokens, batch=32):
    """Losses of non-overlapping windows in F32, (n_windows, CONTEXT - 1): the first token of a
    window is not predicted, what is left after the last whole window is not used."""
    import torch
    n = len(tokens) // CONTEXT
    windows = tokens[:n * CONTEXT].long().view(n, CONTEXT)
    losses = []
    with torch.no_grad():
        for some in windows.split(batch):
            logits = model(input_ids=some, use_cache=False).logits.float()
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), some[:, 1:].flatten(),
                                                     reduction="none")
            losses.append(loss.view(len(some), CONTEXT - 1))
    return torch.cat(losses)


def mean_loss(model, tokens):
    return window_losses(model, tokens).double().mean().item()


def perplexity(model, tokens):
    """What `gac eval` is compared with, and the same with the part of a window at the end."""
    import torch
    losses = window_losses(model, tokens).double()
    per_window = losses.mean(dim=1)
    mean = losses.mean().item()
    total, count = losses.sum().item(), losses.numel()
    rest = tokens[len(tokens) // CONTEXT * CONTEXT:].long()
    if len(rest) > 1:
        with torch.no_grad():
            logits = model(input_ids=rest[None], use_cache=False).logits[0].float()
        total += torch.nn.functional.cross_entropy(logits[:-1], rest[1:], reduction="sum").item()
        count += len(rest) - 1
    error = per_window.std().item() / math.sqrt(len(per_window))
    return {"protocol": "text tokenised once, with <|begin_of_text|> first; non-overlapping windows of 512; mean "
            "loss of tokens 2 to 512 of each; F16 weights widened to F32, arithmetic in F32",
            "tokens": len(tokens), "windows": len(per_window), "mean_loss": mean,
            "standard_error_of_mean_loss": error, "perplexity": math.exp(mean),
            "with_last_part": {"predicted": count, "mean_loss": total / count, "perplexity": math.exp(total / count)}}


def make_optimizer(model, options):
    import torch
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": options.decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95), fused=options.device == "cuda")


def rate(progress):
    """Share of the highest learning rate: a short warm-up, then a cosine to 2 %."""
    if progress < 0.02:
        return (progress + 0.0005) / 0.0205
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min((progress - 0.02) / 0.98, 1.0)))


class Run:
    """One training: the weights, the best copy of them, the curve."""

    def __init__(self, model, tokens, options):
        self.model, self.tokens, self.options = model, tokens, options
        self.optimizer = make_optimizer(model, options)
        self.curve, self.best_loss, self.best, self.step = [], math.inf, None, 0

    def progress(self):
        if self.options.steps:
            return self.step / self.options.steps
        return elapsed() / (self.options.minutes * 60 - RESERVE_S)

    def batch(self):
        import torch
        train = self.tokens["train"]
        starts = torch.randint(0, len(train) - CONTEXT, (self.options.batch, 1), device=train.device)
        window = train[starts + torch.arange(CONTEXT + 1, device=train.device)].long()
        return window[:, :-1], window[:, 1:]

    def train_step(self, forward, progress):
        import torch
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.lr * rate(progress)
        inputs, targets = self.batch()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.options.device == "cuda"):
            logits = forward(input_ids=inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.detach()

    def evaluate(self, train_loss):
        self.model.eval()
        valid = mean_loss(self.model, self.tokens["valid"])
        self.model.train()
        self.curve.append({"step": self.step, "seconds": round(elapsed(), 1),
                           "tokens": self.step * self.options.batch * CONTEXT,
                           "train_loss": train_loss, "valid_loss": valid})
        if valid < self.best_loss:
            self.best_loss = valid
            self.best = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        say(f"step {self.step}: train loss {train_loss:.4f}, validation loss {valid:.4f}")

    def train(self, forward):
        """Until the clock or the steps run out; gives the seconds spent."""
        begin, said, evaluated = elapsed(), elapsed(), 0
        recent, first = [], True
        while self.progress() < 1:
            progress = self.progress()
            recent.append(self.train_step(forward, progress))
            if first or self.step % 10 == 0:    # waits for the GPU, so that the clock means something
                if not math.isfinite(recent[-1].item()):
                    sys.exit(f"train: the loss is not finite at step {self.step}")
                first = False
            if elapsed() - said > PROGRESS_S:
                said = elapsed()
                speed = self.step * self.options.batch * CONTEXT / (elapsed() - begin)
                say(f"step {self.step}, {100 * progress:.0f} %, loss {recent[-1].item():.4f}, "
                    f"{speed / 1e6:.3f} M tokens/s")
            if progress * EVALUATIONS >= evaluated + 1:
                evaluated = int(progress * EVALUATIONS)
                self.evaluate(sum(r.item() for r in recent) / len(recent))
                recent = []
        if recent:
            self.evaluate(sum(r.item() for r in recent) / len(recent))
        return elapsed() - begin


def save(run, out):
    """The best weights in F16, as transformers writes them."""
    import torch
    model = run.model
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(run.best[name])
    model.half()
    for name, p in model.named_parameters():
        if not torch.isfinite(p).all():
            sys.exit(f"train: {name} is not finite in F16")
    model.config.use_cache = True
    model.save_pretrained(out)
    size = os.path.getsize(os.path.join(out, "model.safetensors"))
    say(f"saved, model.safetensors has {size} bytes")
    return size


def continuations(model, device):
    """Greedy continuations of a few prompts, for the reader."""
    import torch
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(os.path.join(HERE, "tokenizer.json"))
    texts = []
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt).ids
        for _ in range(40):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0, -1]
            ids.append(int(logits.argmax()))
            if ids[-1] == SHAPE["eos_token_id"]:
                break
        texts.append(tokenizer.decode(ids))
    return texts


def main():
    options = parse()
    import torch
    import transformers
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("train: no CUDA device; for a trial use --device cpu --steps N")
    os.makedirs(options.out, exist_ok=True)
    torch.manual_seed(options.seed)
    tokens = load_tokens(options.data, options.device)
    config = transformers.LlamaConfig(**SHAPE)
    model = transformers.LlamaForCausalLM(config).float().to(options.device).train()
    n_parameters = sum(p.numel() for p in model.parameters())
    gpu = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    say(f"{n_parameters} parameters, {len(tokens['train'])} training tokens, {gpu}")

    run = Run(model, tokens, options)
    seconds = run.train(torch.compile(model) if options.compile else model)
    trained = run.step * options.batch * CONTEXT
    size = save(run, options.out)

    # The losses that count are those of the file, read back.
    model = transformers.LlamaForCausalLM.from_pretrained(options.out, dtype=torch.float32)
    model = model.to(options.device).eval()
    valid = mean_loss(model, tokens["valid"])
    train = mean_loss(model, tokens["train"][:len(tokens["valid"])])
    heldout = perplexity(model, tokens["heldout"])
    report = {"command": " ".join(["train.py"] + sys.argv[1:]), "seed": options.seed, "shape": SHAPE,
              "parameters": n_parameters, "file_bytes": size, "gpu": gpu,
              "versions": {"python": sys.version.split()[0], "torch": torch.__version__,
                           "transformers": transformers.__version__, "cuda": torch.version.cuda},
              "batch_tokens": options.batch * CONTEXT, "lr": options.lr, "weight_decay": options.decay,
              "training_tokens": len(tokens["train"]), "validation_tokens": len(tokens["valid"]),
              "steps": run.step, "tokens_seen": trained, "epochs": trained / len(tokens["train"]),
              "seconds_training": seconds, "tokens_per_second": trained / seconds,
              "curve": run.curve, "f16": {"train_loss": train, "validation_loss": valid},
              "heldout_txt": heldout, "continuations": continuations(model, options.device),
              "seconds_total": elapsed()}
    with open(os.path.join(options.out, "training.json"), "w") as file:
        json.dump(report, file, indent=1)
        file.write("\n")
    say(f"F16 weights: train loss {train:.4f}, validation loss {valid:.4f}, "
        f"heldout.txt perplexity {heldout['perplexity']:.4f} ± {100 * heldout['standard_error_of_mean_loss']:.1f} %")
    for text in report["continuations"]:
        say("sample: " + text.replace("\n", " "))


if __name__ == "__main__":
    main()
