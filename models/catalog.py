"""The models that export.py writes: for each its builder, inputs, dynamic sizes, cases and what tests may ask of it.

A row holds data and builders only. Weights are random, from a fixed seed; no file is fetched.
"""
import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import torch
import transformers as tf

import bytegpt
import handmade

CARRIED = Path(__file__).resolve().parent / "kjv.pt2"
TEXT_SIZES = ((1, 1), (1, 7), (2, 16), (3, 33), (1, 64))
LAYER_SIZES = ((1, 1), (2, 5), (3, 33))
VISION_SIZES = ((1,), (2,), (5,))


@dataclass
class Model:
    name: str
    build: Callable                         # () -> nn.Module
    inputs: Callable                        # (generator, sizes) -> {name: tensor}
    dims: tuple                             # names of the dynamic sizes, in the order of `sizes`
    dynamic: dict                           # input -> {axis: name of the size}
    sizes: tuple = TEXT_SIZES
    role: str = "decoder"                   # decoder (can generate) | encoder | vision | layer
    attentions: int = 0                     # attention ops in the graph after fusion
    softmax: bool = False                   # a softmax that belongs to no attention stays: kernels made of tokens, pooling by weights
    causal: bool = False                    # every attention is causal: no [s,s] tensor may be made for a mask
    tokens: int = 0                         # generate: number of new ids to compare
    cached: bool = True                     # generate: a cached step exists
    prompt: tuple = (5, 17, 101, 3, 255)
    archive: Path | None = None             # a carried model: its archive, which is copied and not exported anew
    special: dict = field(default_factory=dict)     # max_s: largest size that torch allows


def carried():
    """The carried model with the weights of its archive."""
    module = bytegpt.to_bf16(bytegpt.ByteGpt())
    module.load_state_dict(torch.export.load(CARRIED).state_dict)
    return module


def ids_input(vocab, name="input_ids"):
    return lambda g, size: {name: torch.randint(0, vocab, size, generator=g)}


def ids_and_mask(vocab, side):
    """Token ids and a mask whose rows are padded by a different amount each, the first by none."""
    def make(g, size):
        batch, length = size
        mask = torch.ones(size, dtype=torch.int64)
        for row in range(1, batch):
            pad = min(length - 1, 3 * row + 1)
            if pad and side == "right":
                mask[row, length - pad:] = 0
            elif pad:
                mask[row, :pad] = 0
        return {"input_ids": torch.randint(0, vocab, size, generator=g), "attention_mask": mask}
    return make


def vectors(width, name="x"):
    return lambda g, size: {name: torch.randn(*size, width, generator=g)}


def vectors_and_mask(width):
    def make(g, size):
        mask = ids_and_mask(2, "right")(g, size)["attention_mask"]
        return {"x": torch.randn(*size, width, generator=g), "mask": mask}
    return make


def images(side):
    return lambda g, size: {"pixel_values": torch.randn(size[0], 3, side, side, generator=g)}


def text(name, config, vocab, layers, build=None, **more):
    """A causal language model of transformers with token ids as its only input."""
    settings = dict(dims=("b", "s"), dynamic={"input_ids": {0: "b", 1: "s"}}, attentions=layers, causal=True, tokens=24) | more
    return Model(name, build or (lambda: tf.AutoModelForCausalLM.from_config(copy.deepcopy(config))), ids_input(vocab), **settings)


def common(**more):
    """Settings that the configurations of the Llama line share."""
    return dict(vocab_size=512, hidden_size=128, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
                max_position_embeddings=256, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2) | more


def llama_config(**more):
    return tf.LlamaConfig(**common(intermediate_size=200, **more))


def llama(dtype=torch.float32, attention="sdpa"):
    return lambda: tf.AutoModelForCausalLM.from_config(llama_config(), attn_implementation=attention).to(dtype)


IDS_AND_MASK = {"input_ids": {0: "b", 1: "s"}, "attention_mask": {0: "b", 1: "s"}}

MODELS = [
    Model("kjv", carried, ids_input(256), ("b", "s"), {"input_ids": {0: "b", 1: "s"}}, TEXT_SIZES + ((1, 300),), attentions=4, causal=True,
          tokens=48, prompt=tuple(b"And it came to pass in those days"), archive=CARRIED),

    # hand-written layers
    Model("linear", lambda: handmade.OneLinear(64, 48), vectors(64), ("b", "s"), {"x": {0: "b", 1: "s"}}, LAYER_SIZES, "layer"),
    *(Model("mlp_" + name, lambda f=f: handmade.Mlp(64, 176, f), vectors(64), ("b", "s"), {"x": {0: "b", 1: "s"}}, LAYER_SIZES, "layer")
      for name, f in handmade.MLPS.items()),
    Model("mlp_gated", lambda: handmade.GatedMlp(72, 200), vectors(72), ("b", "s"), {"x": {0: "b", 1: "s"}}, LAYER_SIZES, "layer"),
    Model("indexer", lambda: handmade.Indexer(96, 8, 64), vectors(96), ("b", "s"), {"x": {0: "b", 1: "s"}}, LAYER_SIZES, "layer"),
    Model("encoder_block", lambda: handmade.EncoderBlock(96, 6, 256), vectors_and_mask(96), ("b", "s"),
          {"x": {0: "b", 1: "s"}, "mask": {0: "b", 1: "s"}}, LAYER_SIZES, "encoder", attentions=1),

    # hand-written language models
    Model("nanogpt", handmade.nanogpt, ids_input(509, "idx"), ("b", "s"), {"idx": {0: "b", 1: "s"}}, attentions=2, causal=True, tokens=24),
    Model("tril_gpt", handmade.tril_gpt, ids_input(320, "idx"), ("b", "s"), {"idx": {0: "b", 1: "s"}}, attentions=2, causal=True, tokens=24,
          special={"max_s": 95}),     # for torch a slice of the whole buffer differs from one of a part of it

    # decoders that have no cached step: generation recomputes
    *(Model(name, build, ids_input(320, "idx"), ("b", "s"), {"idx": {0: "b", 1: "s"}}, attentions=2, causal=True, tokens=12, cached=False)
      for name, build in (("shifted_gpt", handmade.shifted_gpt), ("pooled_gpt", handmade.pooled_gpt))),

    # transformers: decoders
    text("gpt2", tf.GPT2Config(vocab_size=501, n_positions=128, n_embd=96, n_layer=3, n_head=6, use_cache=False,
                               bos_token_id=1, eos_token_id=2), 501, 3),
    text("llama", llama_config(), 512, 2),
    text("qwen3", tf.Qwen3Config(**common(intermediate_size=256, head_dim=32, num_attention_heads=4)), 512, 2),
    text("mistral", tf.MistralConfig(**common(intermediate_size=192, sliding_window=16, head_dim=16)), 512, 2),
    text("gemma2", tf.Gemma2Config(**common(intermediate_size=256, sliding_window=16, head_dim=32, num_attention_heads=4,
                                            query_pre_attn_scalar=32, num_hidden_layers=3)), 512, 3),
    Model("llama_padded", llama(), ids_and_mask(512, "right"), ("b", "s"),
          IDS_AND_MASK, attentions=2, causal=True),

    text("qwen2", tf.Qwen2Config(**common(intermediate_size=200)), 512, 2),
    text("phi3", tf.Phi3Config(**common(intermediate_size=192, num_key_value_heads=8)), 512, 2),
    text("opt", tf.OPTConfig(vocab_size=512, hidden_size=96, num_hidden_layers=2, num_attention_heads=6, ffn_dim=256,
                             max_position_embeddings=128, word_embed_proj_dim=96, use_cache=False, pad_token_id=0), 512, 2),
    text("gpt_neox", tf.GPTNeoXConfig(**common(intermediate_size=256)), 512, 2),
    text("falcon", tf.FalconConfig(**common(new_decoder_architecture=True, num_kv_heads=2, alibi=False)), 512, 2),

    # other ways to export the same: attention spelled out, functional core ATen, fixed sizes, bf16, left padding
    text("llama_eager", None, 512, 2, llama(attention="eager")),
    text("llama_functional", None, 512, 2, llama(), special={"decompose": True}),
    text("llama_static", None, 512, 2, llama(), dims=(), dynamic={}, sizes=((2, 19),), tokens=0),
    text("llama_bf16", None, 512, 2, llama(torch.bfloat16), tokens=0),
    Model("llama_padded_left", llama(), ids_and_mask(512, "left"), ("b", "s"), IDS_AND_MASK, attentions=2, causal=True),

    # transformers: encoders
    Model("bert", lambda: tf.BertModel(tf.BertConfig(vocab_size=500, hidden_size=96, num_hidden_layers=2, num_attention_heads=6,
                                                     intermediate_size=224, max_position_embeddings=128)),
          ids_and_mask(500, "right"), ("b", "s"), IDS_AND_MASK, role="encoder", attentions=2, special={"max_s": 128}),
    Model("roberta", lambda: tf.RobertaModel(tf.RobertaConfig(vocab_size=500, hidden_size=96, num_hidden_layers=2, num_attention_heads=6,
                                                              intermediate_size=224, max_position_embeddings=130, pad_token_id=1)),
          ids_and_mask(500, "right"), ("b", "s"), IDS_AND_MASK, role="encoder", attentions=2, special={"max_s": 128}),
    Model("vit", lambda: tf.ViTForImageClassification(tf.ViTConfig(hidden_size=80, num_hidden_layers=2, num_attention_heads=5,
                                                                   intermediate_size=192, image_size=32, patch_size=8, num_labels=10)),
          images(32), ("b",), {"pixel_values": {0: "b"}}, VISION_SIZES, "vision", attentions=2),
]
