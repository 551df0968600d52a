"""Small models written as GGUF by the gguf package, with what must come out."""

import numpy as np
import gguf

HIDDEN, WIDTH, N_HEADS, N_KV_HEADS, N_LAYERS, VOCAB = 256, 512, 4, 2, 2, 300
HEAD = HIDDEN // N_HEADS
TYPES = gguf.GGMLQuantizationType
QUANTS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")


def shapes(arch, head=HEAD, tied=True, biases=()):
    """{Hugging Face name: (GGUF name, shape)}; biases: names of linears that have one."""
    made = {"model.embed_tokens.weight": ("token_embd.weight", (VOCAB, HIDDEN)),
            "model.norm.weight": ("output_norm.weight", (HIDDEN,))}
    if not tied:
        made["lm_head.weight"] = ("output.weight", (VOCAB, HIDDEN))
    q, kv = N_HEADS * head, N_KV_HEADS * head
    linears = {"self_attn.q_proj": ("attn_q", (q, HIDDEN)),
               "self_attn.k_proj": ("attn_k", (kv, HIDDEN)),
               "self_attn.v_proj": ("attn_v", (kv, HIDDEN)),
               "self_attn.o_proj": ("attn_output", (HIDDEN, q)),
               "mlp.gate_proj": ("ffn_gate", (WIDTH, HIDDEN)),
               "mlp.up_proj": ("ffn_up", (WIDTH, HIDDEN)),
               "mlp.down_proj": ("ffn_down", (HIDDEN, WIDTH))}
    norms = {"input_layernorm": ("attn_norm", HIDDEN),
             "post_attention_layernorm": ("ffn_norm", HIDDEN)}
    if arch == "qwen3":
        norms.update({"self_attn.q_norm": ("attn_q_norm", head),
                      "self_attn.k_norm": ("attn_k_norm", head)})
    for i in range(N_LAYERS):
        for name, (short, size) in norms.items():
            made[f"model.layers.{i}.{name}.weight"] = (f"blk.{i}.{short}.weight", (size,))
        for name, (short, shape) in linears.items():
            made[f"model.layers.{i}.{name}.weight"] = (f"blk.{i}.{short}.weight", shape)
            if name in biases:
                made[f"model.layers.{i}.{name}.bias"] = (f"blk.{i}.{short}.bias", shape[:1])
    return made


def permute(weight, n_heads):
    """Rows as llama.cpp stores them: the halves of each head, interleaved."""
    head = weight.shape[0] // n_heads
    halves = weight.reshape(n_heads, 2, head // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def unpermute(weight, n_heads):
    head = weight.shape[0] // n_heads
    pairs = weight.reshape(n_heads, head // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def rotated_heads(name):
    return N_HEADS if ".q_proj." in name else N_KV_HEADS if ".k_proj." in name else 0


def to_floats(data, kind):
    """Raw blocks (…, n_bytes) as float32, by the reference."""
    if kind == TYPES.F32:
        return data.view(np.float32)
    if kind == TYPES.F16:
        return data.view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(data, kind)


def random_blocks(rng, shape, kind):
    """Random bytes for a tensor of a type: every code, also NaN and infinite scales."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return rng.integers(0, 256, (*shape[:-1], shape[-1] // block * size), dtype=np.uint8)


def write(path, arch, tensors, kinds=None, keys=None, name="tiny", head=HEAD, alignment=None,
          tokens=None):
    """tensors: {GGUF name: float array, or raw bytes of kinds[name]}. keys: more
    metadata, (value, method of GGUFWriter); tokens: a function that adds those."""
    writer = gguf.GGUFWriter(path, arch)
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_name(name)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDTH)
    writer.add_block_count(N_LAYERS)
    writer.add_context_length(128)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    if head != HEAD:
        writer.add_key_length(head)
        writer.add_value_length(head)
    for method, value in (keys or {}).items():
        getattr(writer, method)(value)
    if tokens:
        tokens(writer)
    for key, data in tensors.items():
        kind = (kinds or {}).get(key)
        writer.add_tensor(key, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
