"""Tiny configs of the text-generation architectures of transformers, with sizes to choose.

make(name, variation) gives a config, or None where the architecture has no such size. Every key of
KEYS that the config class has gets a small value. EXTRA has what an architecture needs beyond that.
"""
import copy

from transformers import CONFIG_MAPPING

# The sizes that a GPU serves well, and the odd ones. Each odd size is another number, so that a
# dimension of gac can be told by it. Heads are even, because odd ones cannot be rotated.
EVEN = dict(hidden=64, heads=4, kv=2, head=16, mlp=96, expert=48, vocab=128)
ODD = dict(mlp=101, head=12, expert=51, hidden=60, vocab=131)
VARIATIONS = ("mlp", "head", "expert", "hidden", "vocab", "together")

# key of a config: name of a size, or a value
KEYS = {
    "vocab_size": "vocab", "text_vocab_size": "vocab", "vocab_size_per_layer_input": "vocab",
    "hidden_size": "hidden", "n_embd": "hidden", "d_model": "hidden", "word_embed_proj_dim": "hidden",
    "intermediate_size": "mlp", "n_inner": "mlp", "ffn_dim": "mlp", "ffn_hidden_size": "mlp",
    "dff": "mlp", "intermediate_size_mlp": "mlp",
    "moe_intermediate_size": "expert", "shared_expert_intermediate_size": "expert",
    "shared_intermediate_size": "expert", "moe_shared_expert_intermediate_size": "expert",
    "expert_ffn_hidden_size": "expert",
    "num_attention_heads": "heads", "n_head": "heads", "n_heads": "heads", "num_heads": "heads",
    "attention_heads": "heads", "num_key_value_heads": "kv", "num_kv_heads": "kv",
    "head_dim": "head", "qk_nope_head_dim": "head", "v_head_dim": "head", "kv_channels": "head",
    "qk_rope_head_dim": 8, "kv_lora_rank": 24, "q_lora_rank": 32,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2,
    "max_position_embeddings": 128, "n_positions": 128, "max_seq_len": 128, "n_ctx": 128,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "num_experts_per_token": 2, "moe_k": 2, "moe_topk": 2,
    "n_group": 1, "topk_group": 1, "num_expert_group": 1, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "num_dense_layers": 1, "moe_layer_start_index": 0,
    "moe_layer_end_index": 1, "num_nextn_predict_layers": 0, "mlp_only_layers": [],
    "sliding_window": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_dt_rank": 4,
    "mamba_d_ssm": 128, "mamba_chunk_size": 8, "state_size": 8, "time_step_rank": 4,
    "chunk_size": 8, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 8,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "hidden_dropout": 0.0, "attention_dropout": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    "attn_pdrop": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0, "activation_dropout": 0.0,
    "dropout": 0.0, "embed_dropout": 0.0, "classifier_dropout": 0.0, "layerdrop": 0.0,
    "router_jitter_noise": 0.0, "input_jitter_noise": 0.0, "use_mamba_kernels": False,
}

# Half of each head is rotated; the default of a quarter makes an odd number of a head of 12.
HALF = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                            "partial_rotary_factor": 0.5}}
EXPERTS = {"intermediate_size": "expert"}  # the expert width has the name of the MLP width
# latent attention: head_dim is the part that is rotated
LATENT = {"head_dim": 8, "num_key_value_heads": "heads"}

INDEXED = dict(LATENT, index_n_heads=2, index_head_dim=16, index_topk=8)

HYBRID = {"layer_types": ["linear_attention", "full_attention"]}

# What an architecture needs beyond KEYS.
EXTRA = {
    "mixtral": EXPERTS, "phimoe": EXPERTS, "olmoe": EXPERTS, "granitemoe": EXPERTS,
    "gpt_oss": EXPERTS, "flex_olmo": EXPERTS, "minimax": EXPERTS, "minimax_m2": EXPERTS,
    "hunyuan_v1_moe": EXPERTS, "jetmoe": EXPERTS,
    "llama4_text": {"intermediate_size": "expert", "intermediate_size_mlp": "mlp",
                    "interleave_moe_layer_step": 2},
    "granitemoeshared": {"intermediate_size": "expert", "shared_intermediate_size": "mlp"},
    "granitemoehybrid": {"intermediate_size": "expert", "shared_intermediate_size": "mlp",
                         "layer_types": ["linear_attention", "full_attention"],
                         "mamba_d_head": "ssm_head"},
    "bamba": {"attn_layer_indices": [1], "mamba_n_groups": 1, "mamba_d_head": "ssm_head"},
    "falcon_h1": {"mamba_n_groups": 1},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "mamba2": {"num_heads": 8, "head_dim": "ssm_head", "n_groups": 1},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": "hidden"},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "qwen2_moe": {"decoder_sparse_step": 2}, "qwen3_moe": {"decoder_sparse_step": 2, "head_dim": "head"},
    "qwen3_next": dict(HALF, decoder_sparse_step=2,
                       layer_types=["linear_attention", "full_attention"]),
    "ernie4_5_moe": {"moe_layer_start_index": 1, "moe_layer_end_index": 1,
                     "moe_num_shared_experts": 1},
    "deepseek_v2": LATENT, "deepseek_v3": LATENT, "glm4_moe_lite": LATENT, "minicpm3": LATENT,
    "youtu": LATENT, "axk1": LATENT, "longcat_flash": dict(LATENT, expert_ffn_hidden_size="expert"),
    "deepseek_v32": INDEXED, "glm_moe_dsa": INDEXED,
    "exaone_moe": {"head_dim": "head"}, "granite_swa": {"head_dim": "head"},
    "granitemoe_swa": {"intermediate_size": "expert", "shared_intermediate_size": "mlp"},
    "mellum": {"intermediate_size": 96},  # no layer has a dense MLP
    "cohere2_moe": {"intermediate_size": "expert", "num_shared_experts": 2, "first_k_dense_replace": 1,
                    "prefix_dense_intermediate_size": "mlp"},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    # experts beside the MLP, layers without keys and values, and MLPs of twice the width
    "gemma4_text": {"hidden_size_per_layer_input": 8, "global_head_dim": 16, "enable_moe_block": True,
                    "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": "expert",
                    "num_hidden_layers": 12, "num_kv_shared_layers": 6, "use_double_wide_mlp": True},
    "qwen3_5_text": HYBRID, "qwen3_5_moe_text": HYBRID, "olmo_hybrid": HYBRID,
    "nemotron_h": {"num_hidden_layers": 4, "n_groups": 1,
                   "layers_block_type": ["mamba", "moe", "attention", "mlp"],
                   "moe_shared_expert_intermediate_size": "expert", "moe_latent_size": None},
    "phi": dict(HALF, num_key_value_heads="heads"),
    "persimmon": dict(HALF, num_key_value_heads="heads"),
    "stablelm": HALF, "glm": HALF, "glm4": HALF,
    "glm4_moe": dict(HALF, head_dim="head"), "nemotron": HALF,
    "gpt_neox": HALF, "gptj": {"rotary_dim": 8}, "codegen": {"rotary_dim": 8},
    "falcon": {"num_kv_heads": "heads", "multi_query": False},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
}
# The head size is the hidden size divided by the heads. Some of these classes would read head_dim.
DIVIDED = set("""
qwen2 qwen2_moe phi phi3 phimoe stablelm cohere cohere2 gpt2 opt gpt_neox gptj gpt_neo gpt_bigcode
falcon bloom mpt starcoder2 olmo olmo2 olmo3 olmoe granite granitemoe granitemoeshared
granitemoehybrid bitnet persimmon codegen xglm biogpt exaone4 bamba jamba lfm2 flex_olmo doge
internlm3 ctrl openai-gpt recurrent_gemma diffllama apertus nanochat helium smollm3
ernie4_5_moe falcon_h1 dots1 lfm2_moe granitemoe_swa
""".split())


def sizes_of(name, variation):
    """The sizes of a variation, and which of them are odd."""
    sizes, odd = dict(EVEN), {}
    for kind in ODD:
        if kind == variation or (variation == "together" and kind != "hidden"):
            odd[kind] = sizes[kind] = ODD[kind]
    if name in DIVIDED:
        if "hidden" in odd:
            sizes.update(heads=5, kv=1, head=12)
        sizes["hidden"] = sizes["heads"] * sizes["head"]
    sizes["ssm_head"] = 2 * sizes["hidden"] // 8  # of 8 heads that share twice the hidden size
    return sizes, odd


def make(name, variation):
    """Returns (config, odd sizes), or None where the architecture has no such size."""
    config_class = CONFIG_MAPPING[name]
    known = config_class().to_dict()
    sizes, odd = sizes_of(name, variation)
    named = {key: value for key, value in KEYS.items() if key in known and value is not None}
    named.update(copy.deepcopy(EXTRA.get(name, {})))
    config = config_class(**{key: sizes[value] if isinstance(value, str) and value in sizes else value
                             for key, value in named.items()})
    # A class may compute a size itself, so that it is not odd.
    stated = config.to_dict()
    made = {value for key, value in named.items()
            if isinstance(value, str) and stated.get(key) == sizes.get(value)}
    if name in DIVIDED:
        made.add("head")
    odd = {kind: size for kind, size in odd.items() if kind in made}
    return (config, odd) if odd and (variation in odd or variation == "together") else None


NAMES = """
llama mistral qwen2 qwen3 qwen2_moe qwen3_moe mixtral gemma gemma2 gemma3_text phi phi3 phimoe olmo
olmo2 olmo3 olmoe granite granitemoe granitemoeshared granitemoehybrid stablelm cohere cohere2 smollm3
gpt2 opt gpt_neox gptj gpt_neo gpt_bigcode falcon bloom mpt nemotron starcoder2 deepseek_v2
deepseek_v3 glm glm4 glm4_moe gpt_oss llama4_text bitnet exaone4 ernie4_5 ernie4_5_moe seed_oss
hunyuan_v1_dense hunyuan_v1_moe apertus arcee helium jamba mamba mamba2 falcon_mamba falcon_h1 lfm2
minimax minimax_m2 dots1 diffllama jetmoe persimmon codegen xglm biogpt recurrent_gemma rwkv
bamba qwen3_next internlm3 ministral ministral3 flex_olmo doge cwm vaultgemma
afmoe solar_open nanochat ctrl openai-gpt
gemma4_text qwen3_5_text qwen3_5_moe_text nemotron_h olmo_hybrid lfm2_moe deepseek_v32 glm_moe_dsa
glm4_moe_lite axk1 youtu minicpm3 hy_v3 laguna mellum cohere2_moe granite_swa granitemoe_swa exaone_moe
jais2 hyperclovax iquestcoder kimi_linear gpt_neox_japanese mimo_v2_flash longcat_flash xlstm cpmant
""".split()
