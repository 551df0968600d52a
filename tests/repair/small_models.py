"""Small models of every family and compressor with random sizes."""
from repair_support import mk


def resize(ck, old, new):
    """Every axis of size old (or twice old, fused) becomes new, and so does the config."""
    for name, (dtype, shape) in ck.tensors.items():
        ck.tensors[name] = (dtype, tuple(new if n == old else 2 * new if n == 2 * old else n
                                         for n in shape))
    for key, value in ck.config.items():
        if value == old and not isinstance(value, bool):
            ck.config[key] = new
    return ck


def llama(rng, **changes):
    return mk.llama_like(n_layers=rng.randint(1, 3), mlp=rng.randint(33, 150),
                         hidden=rng.choice((64, 96)), **changes)


def mistral(rng):
    return llama(rng, model_type="mistral", architecture="MistralForCausalLM", head_dim=24)


def qwen2(rng):
    return llama(rng, model_type="qwen2", architecture="Qwen2ForCausalLM", qkv_bias=True)


def qwen3(rng):
    return llama(rng, model_type="qwen3", architecture="Qwen3ForCausalLM", head_dim=32,
                 qk_norm=True)


def gemma(rng):
    return llama(rng, model_type="gemma", architecture="GemmaForCausalLM", head_dim=32,
                 n_kv_heads=1, tied=True, hidden_activation="gelu_pytorch_tanh")


def resized(recipe, old, low, high):
    return lambda rng: resize(mk.build(recipe), old, rng.randint(low, high))


def gpt2(rng):
    ck = resize(mk.build("gpt2", prefix=rng.random() < 0.5), 50257, 90)
    if rng.random() < 0.7:
        width = rng.randint(130, 300)
        resize(ck, 256, width).config["n_inner"] = width
    return ck


def base(rng, **changes):
    return mk.small_base(**{**dict(n_layers=2, mlp=rng.randint(90, 190)), **changes})


def palu(rng, **changes):
    ck = base(rng, n_kv_heads=4, **changes)
    ranks = {m: [rng.randint(9, 60) for _ in range(2)] for m in mk.palu_modules(2)}
    return mk.palu_modify(ck, ranks)


def palu_qwen2(rng):
    return palu(rng, model_type="qwen2", architecture="Qwen2ForCausalLM", qkv_bias=True)


def svdllm(rng):
    return mk.svdllm_modify(base(rng, dtype="F16"), rng.uniform(0.3, 0.9))


def factored(rng, first, second):
    """Every linear as a pair of a random rank, and the ranks by module."""
    ck = base(rng)
    ranks = {}
    for _, module in list(mk.layer_linears(ck)):
        ranks[module] = rng.randint(9, 60)
        mk.low_rank(ck, module, ranks[module], f"{module}.{first}.weight",
                    f"{module}.{second}.weight")
    return ck, ranks


def asvd(rng):
    ck, ranks = factored(rng, "BLinear", "ALinear")
    ranks["lm_head"] = rng.randint(9, 60)
    mk.low_rank(ck, "lm_head", ranks["lm_head"], "lm_head.BLinear.weight",
                "lm_head.ALinear.weight")
    ck.config.update(truncation_ranks=ranks, architectures=["ASVDLlamaForCausalLM"])
    return ck


def dobi(rng):
    return factored(rng, "ALinear", "BLinear")[0]


def lowrank_generic(rng):
    return factored(rng, "first", "second")[0]


def basis_sharing(rng):
    ck = mk.build("basis-sharing")
    for old in (37, 21, 35, 51, 50):
        resize(ck, old, rng.choice([n for n in range(9, 60) if n not in mk.SMALL_RANKS]))
    return ck


def pruned_mlp(rng):
    ck = base(rng, n_layers=3, mlp=192)
    for i in range(3):
        mk.set_mlp(ck, i, rng.randint(60, 191))
    return ck


def per_layer_config(rng):
    ck = base(rng, n_layers=3)
    widths = {i: rng.randint(60, 190) for i in rng.sample(range(3), 2)}
    for i, width in widths.items():
        mk.set_mlp(ck, i, width)
    ck.config["per_layer_config"] = {str(i): {"intermediate_size": w} for i, w in widths.items()}
    return ck


def as_is(recipe):
    return lambda rng: mk.build(recipe)


MODELS = {
    "llama": llama, "mistral": mistral, "qwen2": qwen2, "qwen3": qwen3, "gemma": gemma,
    "phi3": resized("phi3", 172, 65, 120), "mixtral": resized("mixtral", 100, 33, 60),
    "qwen3-moe": resized("qwen3-moe", 44, 17, 30),
    "qwen3-moe-fused": resized("qwen3-moe-fused", 44, 17, 30), "gpt2": gpt2,
    "opt": resized("opt", 252, 65, 200), "opt-350m": resized("opt-350m", 252, 65, 200),
    "palu": palu, "palu-qwen2": palu_qwen2, "svdllm": svdllm, "asvd": asvd, "dobi": dobi,
    "lowrank-generic": lowrank_generic, "basis-sharing": basis_sharing, "pruned-mlp": pruned_mlp,
    "pruned-heads": as_is("pruned-heads"), "direct": as_is("direct"),
    "modegpt-like": as_is("modegpt-like"), "flap": as_is("flap"), "deci": as_is("deci"),
    "per-layer-config": per_layer_config,
    **{name: resized(name, 172, 130, 190) for name in (
        "gpt-neox", "falcon", "phi", "starcoder2", "olmo2", "glm4", "arcee")},
    **{name: resized(name, 44, 33, 60) for name in (
        "deepseek-v3", "glm4-moe", "olmoe", "gpt-oss", "llama4", "granite-moe")},
    "bloom": as_is("bloom"), "bitnet": as_is("bitnet"),
}
missing = {r for r in mk.RECIPES if not r.endswith(("-8b", "-405b"))} - set(MODELS)
assert not missing, f"recipes without a test: {missing}"
