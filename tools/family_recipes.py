"""Recipes of families, with small odd sizes and the names of transformers."""
from synthetic_checkpoint import Checkpoint, gated_mlp, llama_like, recipe


@recipe("llama")
def llama():
    """small Llama, MLP width 172"""
    return llama_like()


@recipe("mistral")
def mistral():
    """small Mistral, head_dim stated in the config"""
    return llama_like(model_type="mistral", architecture="MistralForCausalLM", head_dim=24, mlp=192,
                      sliding_window=None)


@recipe("qwen2")
def qwen2():
    """small Qwen2: biases on q, k and v"""
    return llama_like(model_type="qwen2", architecture="Qwen2ForCausalLM", qkv_bias=True)


@recipe("qwen3")
def qwen3():
    """small Qwen3: a norm over each head of q and k"""
    return llama_like(model_type="qwen3", architecture="Qwen3ForCausalLM", head_dim=32, mlp=192,
                      qk_norm=True)


@recipe("gemma")
def gemma():
    """small Gemma: tied embeddings, one kv head"""
    return llama_like(model_type="gemma", architecture="GemmaForCausalLM", head_dim=32,
                      n_kv_heads=1, tied=True, hidden_activation="gelu_pytorch_tanh")


@recipe("phi3")
def phi3():
    """small Phi-3: fused qkv_proj and gate_up_proj"""
    ck = llama_like(model_type="phi3", architecture="Phi3ForCausalLM")
    for i in range(2):
        attn, mlp = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
        ck.drop(attn + "k_proj.weight", attn + "v_proj.weight", mlp + "up_proj.weight")
        ck.replace(attn + "q_proj.weight", {attn + "qkv_proj.weight": ((4 + 2 + 2) * 16, 64)})
        ck.replace(mlp + "gate_proj.weight", {mlp + "gate_up_proj.weight": (2 * 172, 64)})
    return ck


@recipe("mixtral")
def mixtral():
    """small Mixtral: block_sparse_moe, experts.{e}.w1/w2/w3"""
    def moe(ck, _, layer):
        ck.add(f"{layer}.block_sparse_moe.gate.weight", 4, 64)
        for e in range(4):
            expert = f"{layer}.block_sparse_moe.experts.{e}"
            ck.add(expert + ".w1.weight", 100, 64)
            ck.add(expert + ".w2.weight", 64, 100)
            ck.add(expert + ".w3.weight", 100, 64)
    return llama_like(model_type="mixtral", architecture="MixtralForCausalLM", mlp=100, add_mlp=moe,
                      num_local_experts=4, num_experts_per_tok=2)


def qwen3_moe_like(add_experts):
    """Layer 0 keeps a dense MLP (mlp_only_layers), the others have experts."""
    def mlp(ck, i, layer):
        if i == 0:
            gated_mlp(ck, layer + ".mlp", 64, 192)
        else:
            ck.add(layer + ".mlp.gate.weight", 4, 64)
            add_experts(ck, layer + ".mlp.experts")
    return llama_like(model_type="qwen3_moe", architecture="Qwen3MoeForCausalLM", n_layers=3,
                      head_dim=32, mlp=192, qk_norm=True, add_mlp=mlp, num_experts=4,
                      num_experts_per_tok=2, moe_intermediate_size=44, decoder_sparse_step=1,
                      mlp_only_layers=[0])


@recipe("qwen3-moe")
def qwen3_moe():
    """small Qwen3-MoE: mlp.experts.{e}.gate_proj/up_proj/down_proj, layer 0 dense"""
    def experts(ck, prefix):
        for e in range(4):
            gated_mlp(ck, f"{prefix}.{e}", 64, 44)
    return qwen3_moe_like(experts)


@recipe("qwen3-moe-fused")
def qwen3_moe_fused():
    """small Qwen3-MoE with fused experts as transformers 5 keeps them in memory"""
    def experts(ck, prefix):
        ck.add(prefix + ".gate_up_proj", 4, 2 * 44, 64)
        ck.add(prefix + ".down_proj", 4, 64, 44)
    return qwen3_moe_like(experts)


# Families with LayerNorm.


def add_affine(ck, name, *shape, n_bias):
    ck.add(name + ".weight", *shape)
    ck.add(name + ".bias", n_bias)


@recipe("gpt2")
def gpt2(prefix=False):
    """small GPT-2: Conv1D [in, out], vocab 50257, mask buffers; --prefix for transformer.*"""
    hidden, n_positions = 64, 32
    ck = Checkpoint({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": hidden, "n_head": 4,
        "n_layer": 2, "n_positions": n_positions, "n_ctx": n_positions, "vocab_size": 50257,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05}, "F32")
    top = "transformer." if prefix else ""
    ck.add(top + "wte.weight", 50257, hidden)
    ck.add(top + "wpe.weight", n_positions, hidden)
    for i in range(2):
        h = f"{top}h.{i}."
        add_affine(ck, h + "ln_1", hidden, n_bias=hidden)
        if not prefix:  # the published file carries the causal mask
            ck.add(h + "attn.bias", 1, 1, n_positions, n_positions)
        add_affine(ck, h + "attn.c_attn", hidden, 3 * hidden, n_bias=3 * hidden)
        add_affine(ck, h + "attn.c_proj", hidden, hidden, n_bias=hidden)
        add_affine(ck, h + "ln_2", hidden, n_bias=hidden)
        add_affine(ck, h + "mlp.c_fc", hidden, 4 * hidden, n_bias=4 * hidden)
        add_affine(ck, h + "mlp.c_proj", 4 * hidden, hidden, n_bias=hidden)
    add_affine(ck, top + "ln_f", hidden, n_bias=hidden)
    return ck


def opt_like(embed, norm_before):
    hidden, mlp, vocab, n_positions = 64, 252, 80, 32
    ck = Checkpoint({
        "architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": hidden,
        "ffn_dim": mlp, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": vocab,
        "word_embed_proj_dim": embed, "max_position_embeddings": n_positions,
        "activation_function": "relu", "do_layer_norm_before": norm_before,
        "torch_dtype": "float16"}, "F16")
    top = "model.decoder."
    ck.add(top + "embed_tokens.weight", vocab, embed)
    ck.add(top + "embed_positions.weight", n_positions + 2, hidden)
    if embed != hidden:
        ck.add(top + "project_in.weight", hidden, embed)
        ck.add(top + "project_out.weight", embed, hidden)
    for i in range(2):
        layer = f"{top}layers.{i}."
        for p in ("k_proj", "v_proj", "q_proj", "out_proj"):
            add_affine(ck, layer + "self_attn." + p, hidden, hidden, n_bias=hidden)
        add_affine(ck, layer + "self_attn_layer_norm", hidden, n_bias=hidden)
        add_affine(ck, layer + "fc1", mlp, hidden, n_bias=mlp)
        add_affine(ck, layer + "fc2", hidden, mlp, n_bias=hidden)
        add_affine(ck, layer + "final_layer_norm", hidden, n_bias=hidden)
    if norm_before:
        add_affine(ck, top + "final_layer_norm", hidden, n_bias=hidden)
    return ck


@recipe("opt")
def opt():
    """small OPT: ReLU, biases everywhere, learned positions"""
    return opt_like(embed=64, norm_before=True)


@recipe("opt-350m")
def opt_350m():
    """small OPT in the manner of opt-350m: project_in, project_out, norm after"""
    return opt_like(embed=40, norm_before=False)


def layer_norms(ck, name, hidden=64):
    add_affine(ck, name, hidden, n_bias=hidden)


@recipe("gpt-neox")
def gpt_neox():
    """small GPT-NeoX: one projection with q, k and v of each head in turn"""
    hidden, mlp, vocab = 64, 172, 80
    ck = Checkpoint({
        "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_size": hidden,
        "intermediate_size": mlp, "num_hidden_layers": 2, "num_attention_heads": 4,
        "hidden_act": "gelu", "rotary_pct": 0.25, "vocab_size": vocab,
        "max_position_embeddings": 64, "tie_word_embeddings": False, "torch_dtype": "float16"}, "F16")
    ck.add("gpt_neox.embed_in.weight", vocab, hidden)
    for i in range(2):
        layer = f"gpt_neox.layers.{i}."
        layer_norms(ck, layer + "input_layernorm")
        layer_norms(ck, layer + "post_attention_layernorm")
        ck.add(layer + "attention.rotary_emb.inv_freq", 2)
        add_affine(ck, layer + "attention.query_key_value", 3 * hidden, hidden, n_bias=3 * hidden)
        add_affine(ck, layer + "attention.dense", hidden, hidden, n_bias=hidden)
        add_affine(ck, layer + "mlp.dense_h_to_4h", mlp, hidden, n_bias=mlp)
        add_affine(ck, layer + "mlp.dense_4h_to_h", hidden, mlp, n_bias=hidden)
    layer_norms(ck, "gpt_neox.final_layer_norm")
    ck.add("embed_out.weight", vocab, hidden)
    return ck


@recipe("falcon")
def falcon(grouped=True):
    """small Falcon: q heads, k and v by group; two norms side by side"""
    hidden, mlp, vocab, n_kv = 64, 172, 80, 2 if grouped else 1
    rows = (4 + 2 * n_kv) * 16
    ck = Checkpoint({
        "architectures": ["FalconForCausalLM"], "model_type": "falcon", "hidden_size": hidden,
        "ffn_hidden_size": mlp, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_kv_heads": n_kv, "new_decoder_architecture": grouped, "multi_query": not grouped,
        "activation": "gelu", "alibi": False, "bias": False, "parallel_attn": True,
        "vocab_size": vocab, "torch_dtype": "bfloat16"})
    ck.add("transformer.word_embeddings.weight", vocab, hidden)
    for i in range(2):
        layer = f"transformer.h.{i}."
        for norm in ("ln_attn", "ln_mlp") if grouped else ("input_layernorm",):
            layer_norms(ck, layer + norm)
        ck.add(layer + "self_attention.query_key_value.weight", rows, hidden)
        ck.add(layer + "self_attention.dense.weight", hidden, hidden)
        ck.add(layer + "mlp.dense_h_to_4h.weight", mlp, hidden)
        ck.add(layer + "mlp.dense_4h_to_h.weight", hidden, mlp)
    layer_norms(ck, "transformer.ln_f")
    return ck


@recipe("bloom")
def bloom():
    """small BLOOM: the runtime takes 4 times the hidden size as the MLP width"""
    hidden, vocab = 64, 80
    ck = Checkpoint({
        "architectures": ["BloomForCausalLM"], "model_type": "bloom", "hidden_size": hidden,
        "n_layer": 2, "n_head": 4, "vocab_size": vocab, "torch_dtype": "float16"}, "F16")
    ck.add("transformer.word_embeddings.weight", vocab, hidden)
    layer_norms(ck, "transformer.word_embeddings_layernorm")
    for i in range(2):
        layer = f"transformer.h.{i}."
        layer_norms(ck, layer + "input_layernorm")
        layer_norms(ck, layer + "post_attention_layernorm")
        add_affine(ck, layer + "self_attention.query_key_value", 3 * hidden, hidden,
                   n_bias=3 * hidden)
        add_affine(ck, layer + "self_attention.dense", hidden, hidden, n_bias=hidden)
        add_affine(ck, layer + "mlp.dense_h_to_4h", 4 * hidden, hidden, n_bias=4 * hidden)
        add_affine(ck, layer + "mlp.dense_4h_to_h", hidden, 4 * hidden, n_bias=hidden)
    layer_norms(ck, "transformer.ln_f")
    return ck


def renamed(ck, names):
    """Renames modules below every layer; None drops them."""
    for old, new in names.items():
        for i in range(2):
            name = f"model.layers.{i}.{old}.weight"
            if new is None:
                ck.drop(name)
            else:
                ck.rename(name, f"model.layers.{i}.{new}.weight")
    return ck


def with_biases(ck, *names):
    for name in names:
        ck.add(name + ".bias", ck.shape(name + ".weight")[0])
    return ck


@recipe("phi")
def phi():
    """small Phi-2: LayerNorm, fc1 and fc2, biases also on the output"""
    ck = llama_like(model_type="phi", architecture="PhiForCausalLM", n_kv_heads=4,
                    hidden_act="gelu_new", partial_rotary_factor=0.5)
    renamed(ck, {"self_attn.o_proj": "self_attn.dense", "mlp.up_proj": "mlp.fc1",
                 "mlp.down_proj": "mlp.fc2", "mlp.gate_proj": None,
                 "post_attention_layernorm": None})
    ck.rename("model.norm.weight", "model.final_layernorm.weight")
    return with_biases(ck, *(n[:-len(".weight")] for n in list(ck.tensors) if "embed" not in n))


@recipe("starcoder2")
def starcoder2():
    """small StarCoder2: LayerNorm, c_fc and c_proj, biases everywhere"""
    ck = llama_like(model_type="starcoder2", architecture="Starcoder2ForCausalLM", tied=True,
                    hidden_act="gelu_pytorch_tanh", use_bias=True)
    renamed(ck, {"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj", "mlp.gate_proj": None})
    return with_biases(ck, *(n[:-len(".weight")] for n in list(ck.tensors) if "embed" not in n))


@recipe("olmo2")
def olmo2():
    """small OLMo2: norms after the blocks, and over all heads of q and k together"""
    ck = llama_like(model_type="olmo2", architecture="Olmo2ForCausalLM")
    for i in range(2):
        layer = f"model.layers.{i}."
        ck.rename(layer + "input_layernorm.weight", layer + "post_feedforward_layernorm.weight")
        ck.add(layer + "self_attn.q_norm.weight", 64)
        ck.add(layer + "self_attn.k_norm.weight", 32)
    return ck


@recipe("glm4")
def glm4():
    """small GLM-4: gate and up in one tensor, four norms, biases on q, k and v"""
    ck = llama_like(model_type="glm4", architecture="Glm4ForCausalLM", qkv_bias=True,
                    partial_rotary_factor=0.5)
    for i in range(2):
        layer = f"model.layers.{i}."
        ck.drop(layer + "mlp.up_proj.weight")
        ck.replace(layer + "mlp.gate_proj.weight", {layer + "mlp.gate_up_proj.weight": (344, 64)})
        ck.add(layer + "post_self_attn_layernorm.weight", 64)
        ck.add(layer + "post_mlp_layernorm.weight", 64)
    return ck


@recipe("bitnet")
def bitnet():
    """small BitNet: norms over the MLP width and over the inputs of o_proj"""
    ck = llama_like(model_type="bitnet", architecture="BitNetForCausalLM", hidden_act="relu2")
    for i in range(2):
        ck.add(f"model.layers.{i}.mlp.ffn_sub_norm.weight", 172)
        ck.add(f"model.layers.{i}.self_attn.attn_sub_norm.weight", 64)
    return ck


@recipe("arcee")
def arcee():
    """small Arcee: an MLP without a gate"""
    return renamed(llama_like(model_type="arcee", architecture="ArceeForCausalLM",
                              hidden_act="relu2"), {"mlp.gate_proj": None})


def deepseek_moe(ck, i, layer):
    """Layer 0 is dense. A shared expert has the width of two."""
    if i == 0:
        gated_mlp(ck, layer + ".mlp", 64, 172)
        return
    ck.add(layer + ".mlp.gate.weight", 4, 64)
    ck.add(layer + ".mlp.gate.e_score_correction_bias", 4)
    for e in range(4):
        gated_mlp(ck, f"{layer}.mlp.experts.{e}", 64, 44)
    gated_mlp(ck, layer + ".mlp.shared_experts", 64, 2 * 44)


MOE = {"moe_intermediate_size": 44, "n_routed_experts": 4, "n_shared_experts": 2,
       "num_experts_per_tok": 2, "first_k_dense_replace": 1}


@recipe("deepseek-v3")
def deepseek_v3(q_rank=24):
    """small DeepSeek-V3: latent attention, a dense layer, shared and routed experts"""
    ck = llama_like(model_type="deepseek_v3", architecture="DeepseekV3ForCausalLM", n_kv_heads=4,
                    add_mlp=deepseek_moe, q_lora_rank=q_rank, kv_lora_rank=20, qk_nope_head_dim=18,
                    qk_rope_head_dim=8, v_head_dim=10, **MOE)
    for i in range(2):
        attn = f"model.layers.{i}.self_attn."
        ck.drop(attn + "k_proj.weight", attn + "v_proj.weight")
        ck.reshape(attn + "o_proj.weight", 64, 40)
        if q_rank:
            ck.replace(attn + "q_proj.weight", {
                attn + "q_a_proj.weight": (q_rank, 64), attn + "q_a_layernorm.weight": (q_rank,),
                attn + "q_b_proj.weight": (4 * 26, q_rank)})
        else:
            ck.reshape(attn + "q_proj.weight", 4 * 26, 64)
        ck.add(attn + "kv_a_proj_with_mqa.weight", 28, 64)
        ck.add(attn + "kv_a_layernorm.weight", 20)
        ck.add(attn + "kv_b_proj.weight", 4 * 28, 20)
    return ck


@recipe("glm4-moe")
def glm4_moe():
    """small GLM-4-MoE: Llama's attention, the experts of DeepSeek"""
    return llama_like(model_type="glm4_moe", architecture="Glm4MoeForCausalLM", qkv_bias=True,
                      add_mlp=deepseek_moe, partial_rotary_factor=0.5, **MOE)


@recipe("olmoe")
def olmoe():
    """small OLMoE: intermediate_size is the width of an expert"""
    def moe(ck, _, layer):
        ck.add(f"{layer}.mlp.gate.weight", 4, 64)
        for e in range(4):
            gated_mlp(ck, f"{layer}.mlp.experts.{e}", 64, 44)
    ck = llama_like(model_type="olmoe", architecture="OlmoeForCausalLM", mlp=44, add_mlp=moe,
                    num_experts=4, num_experts_per_tok=2)
    for i in range(2):
        ck.add(f"model.layers.{i}.self_attn.q_norm.weight", 64)
        ck.add(f"model.layers.{i}.self_attn.k_norm.weight", 32)
    return ck


@recipe("gpt-oss")
def gpt_oss():
    """small gpt-oss: all experts in one tensor, gate and up alternate, biases, sinks"""
    def moe(ck, _, layer):
        add_affine(ck, f"{layer}.mlp.router", 4, 64, n_bias=4)
        experts = f"{layer}.mlp.experts."
        ck.add(experts + "gate_up_proj", 4, 64, 2 * 44)
        ck.add(experts + "gate_up_proj_bias", 4, 2 * 44)
        ck.add(experts + "down_proj", 4, 44, 64)
        ck.add(experts + "down_proj_bias", 4, 64)
        ck.add(f"{layer}.self_attn.sinks", 4)
    return llama_like(model_type="gpt_oss", architecture="GptOssForCausalLM", mlp=44, add_mlp=moe,
                      head_dim=16, num_local_experts=4, num_experts_per_tok=2)


@recipe("llama4")
def llama4():
    """small text part of Llama-4: every other layer has experts, and one that is shared"""
    def mlp(ck, i, layer):
        block = layer + ".feed_forward"
        if i == 0:
            gated_mlp(ck, block, 64, 172)
            return
        ck.add(block + ".router.weight", 4, 64)
        gated_mlp(ck, block + ".shared_expert", 64, 44)
        ck.add(block + ".experts.gate_up_proj", 4, 64, 2 * 44)
        ck.add(block + ".experts.down_proj", 4, 44, 64)
    return llama_like(model_type="llama4_text", architecture="Llama4ForCausalLM", mlp=44,
                      add_mlp=mlp, intermediate_size_mlp=172, head_dim=16, num_local_experts=4,
                      num_experts_per_tok=1)


@recipe("granite-moe")
def granite_moe():
    """small Granite-MoE: all experts in one tensor, and a shared MLP"""
    def moe(ck, _, layer):
        block = layer + ".block_sparse_moe."
        ck.add(block + "router.layer.weight", 4, 64)
        ck.add(block + "input_linear.weight", 4, 2 * 44, 64)
        ck.add(block + "output_linear.weight", 4, 64, 44)
        ck.add(layer + ".shared_mlp.input_linear.weight", 2 * 172, 64)
        ck.add(layer + ".shared_mlp.output_linear.weight", 64, 172)
    return llama_like(model_type="granitemoeshared", architecture="GraniteMoeSharedForCausalLM",
                      mlp=44, add_mlp=moe, shared_intermediate_size=172, num_local_experts=4,
                      num_experts_per_tok=2, attention_multiplier=0.25)
