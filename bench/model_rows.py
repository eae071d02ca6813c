"""The rows of models.py: transformers' models with random weights, the work that each is measured at, and the same made small. Nothing runs here.

A row is "model/work". Its kind says what bounds it on a large GPU: products, launches (little to compute in each), or decode (one token a text a step, bytes of weights and cache).
"""
from dataclasses import dataclass
from typing import Any, Callable, Optional


@dataclass(frozen=True)
class Work:
    name: str
    kind: str                                   # products, launches, decode
    inputs: Optional[Callable[..., Any]] = None # of a forward pass: (torch, config, small) to keyword arguments; None: it generates
    part: str = ""                              # of the model that is called, as "model"; "": all of it
    results: tuple = ("last_hidden_state",)     # that are compared
    texts: int = 0                              # of generation
    prompt: int = 0
    new: int = 1                                # tokens; 1: the prompt alone is measured, else what each further token takes

    def made_small(self):
        if self.inputs is not None:
            return self
        return Work(self.name, self.kind, texts=min(self.texts, 3), prompt=min(self.prompt, 24), new=min(self.new, 6))


@dataclass(frozen=True)
class Model:
    name: str
    make: Callable[..., Any]                    # (transformers, small) to its class and configuration
    works: tuple
    source: Optional[Callable[..., Any]] = None # of an encoder-decoder: (torch, config, texts, small) to what its encoder reads
    experts: bool = False


def prefill(texts, tokens, kind):
    return Work(f"prefill {texts} x {tokens}", kind, texts=texts, prompt=tokens)


def first_token(texts, kind):
    """What an encoder reads, and the first token behind it."""
    return Work(f"first token of {texts}", kind, texts=texts, prompt=4)


def decode(texts, keys, new=64):
    return Work(f"decode {texts} behind {keys}", "decode", texts=texts, prompt=keys, new=new)


# ---- what forward passes are given ----

def texts(count, length, ragged=False):
    """Ids and a mask: of ones, or lengths from a quarter of the longest to all of it, padded at their ends."""
    def make(torch, config, small):
        rows, long = (min(count, 3), 24) if small else (count, length)
        least = 3 * long // 4 if rows == 1 else long // 4
        lengths = torch.linspace(least, long, rows).long() if ragged and rows > 1 else torch.full((rows,), least if ragged else long)
        return {"input_ids": torch.randint(1, config.vocab_size, (rows, long)), "attention_mask": (torch.arange(long) < lengths[:, None]).long()}
    return make


def ids(count, length):
    def make(torch, config, small):
        return {"input_ids": torch.randint(1, config.vocab_size, (min(count, 2), 32) if small else (count, length))}
    return make


def images(count):
    def make(torch, config, small):
        size = getattr(config, "vision_config", config).image_size
        return {"pixel_values": torch.randn(min(count, 2) if small else count, 3, size, size).to(torch.bfloat16)}
    return make


def images_and_texts(count, length):
    def make(torch, config, small):
        rows, long = (2, 8) if small else (count, length)
        given = {"input_ids": torch.randint(3, config.text_config.vocab_size - 2, (rows, long)), **images(rows)(torch, config, False)}
        given["input_ids"][:, -1] = config.text_config.vocab_size - 1      # CLIP looks for the end of a text by its id
        return given
    return make


def sounds(count, samples):
    def make(torch, config, small):
        return {"input_values": torch.randn((2, 400) if small else (count, samples)).to(torch.bfloat16)}
    return make


def spectra(count):
    def make(torch, config, small):
        return {"input_features": torch.randn(min(count, 2) if small else count, config.num_mel_bins, 2 * config.max_source_positions).to(torch.bfloat16)}
    return make


def source_texts(torch, config, count, small):
    return {"input_ids": torch.randint(3, config.vocab_size, (count, 24 if small else 512))}


def source_spectra(torch, config, count, small):
    return spectra(count)(torch, config, False)


# ---- models ----

TEXT_SMALL = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=256)
DECODER_SMALL = dict(**TEXT_SMALL, num_key_value_heads=2, head_dim=16)
VISION_SMALL = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8)


def bert(**sizes):
    return lambda tf, small: (tf.BertModel, tf.BertConfig(**(TEXT_SMALL if small else sizes), max_position_embeddings=512))


def vit(tf, small):
    sizes = VISION_SMALL if small else dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, image_size=224, patch_size=16)
    return tf.ViTModel, tf.ViTConfig(**sizes)


def clip(tf, small):
    """The shape of CLIP ViT-L/14."""
    text = TEXT_SMALL if small else dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12)
    vision = VISION_SMALL if small else dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, image_size=224, patch_size=14)
    text = dict(text, eos_token_id=text.get("vocab_size", 49408) - 1)
    return tf.CLIPModel, tf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=32 if small else 768)


def siglip(tf, small):
    """The shape of SigLIP so400m/14 at 384."""
    sizes = dict(hidden_size=1152, intermediate_size=4304, num_hidden_layers=27, num_attention_heads=16)
    text = dict(TEXT_SMALL if small else dict(sizes, vocab_size=32000), max_position_embeddings=64)
    text["projection_size"] = text["hidden_size"]
    return tf.SiglipModel, tf.SiglipConfig(text_config=text, vision_config=VISION_SMALL if small else dict(sizes, image_size=384, patch_size=14))


def wav2vec2(tf, small):
    """The shape of wav2vec 2.0 large."""
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, conv_dim=(32, 32), conv_stride=(5, 2), conv_kernel=(10, 3),
                 num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4) if small else dict(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16)
    return tf.Wav2Vec2Model, tf.Wav2Vec2Config(**sizes, feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True, apply_spec_augment=False)


def t5(tf, small):
    """The shape of T5-large."""
    sizes = dict(d_model=64, d_ff=128, num_layers=2, num_heads=4, d_kv=16, vocab_size=256) if small else dict(d_model=1024, d_ff=4096, num_layers=24, num_heads=16, d_kv=64)
    return tf.T5ForConditionalGeneration, tf.T5Config(**sizes, decoder_start_token_id=0)


def whisper(tf, small):
    """The shape of Whisper-large-v3."""
    sizes = dict(d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, num_mel_bins=20,
                 vocab_size=256, max_source_positions=30, max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=1, decoder_start_token_id=2) if small else dict(
        d_model=1280, encoder_layers=32, decoder_layers=32, encoder_attention_heads=20, decoder_attention_heads=20, encoder_ffn_dim=5120, decoder_ffn_dim=5120,
        num_mel_bins=128, vocab_size=51866, max_source_positions=1500, max_target_positions=448)
    return tf.WhisperForConditionalGeneration, tf.WhisperConfig(**sizes)


def gpt2(tf, small):
    """GPT-2 of 124M parameters."""
    return tf.GPT2LMHeadModel, tf.GPT2Config(**(dict(n_embd=64, n_layer=2, n_head=4, vocab_size=256, bos_token_id=0, eos_token_id=0) if small else {}))


def llama(tie=True, **sizes):
    return lambda tf, small: (tf.LlamaForCausalLM, tf.LlamaConfig(**(DECODER_SMALL if small else sizes), max_position_embeddings=8192, tie_word_embeddings=tie, rms_norm_eps=1e-5))


def qwen3_moe(tf, small):
    """Qwen3-30B-A3B, of whose 48 layers 8."""
    sizes = dict(DECODER_SMALL, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32) if small else dict(
        hidden_size=2048, intermediate_size=6144, num_hidden_layers=8, num_attention_heads=32, num_key_value_heads=4, head_dim=128, vocab_size=151936, num_experts=128,
        num_experts_per_tok=8, moe_intermediate_size=768)
    return tf.Qwen3MoeForCausalLM, tf.Qwen3MoeConfig(**sizes, norm_topk_prob=True, decoder_sparse_step=1, max_position_embeddings=8192, tie_word_embeddings=False)


def mixtral(tf, small):
    """Mixtral 8x7B, of whose 32 layers 4."""
    sizes = dict(DECODER_SMALL, num_local_experts=4) if small else dict(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=4, num_attention_heads=32, num_key_value_heads=8, head_dim=128, vocab_size=32000, num_local_experts=8)
    return tf.MixtralForCausalLM, tf.MixtralConfig(**sizes, num_experts_per_tok=2, max_position_embeddings=8192, sliding_window=None)


def deepseek_v3(tf, small):
    """DeepSeek-V3, of whose 61 layers 3: one dense and two of 256 experts."""
    sizes = dict(TEXT_SMALL, num_key_value_heads=4, moe_intermediate_size=32, n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=2, kv_lora_rank=32, q_lora_rank=48,
                 qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=24) if small else dict(num_hidden_layers=3)
    return tf.DeepseekV3ForCausalLM, tf.DeepseekV3Config(**sizes, first_k_dense_replace=1, max_position_embeddings=8192)


def gemma2(tf, small):
    """The shape of Gemma-2 2B. PyTorch's side runs transformers' own attention, as its faster one leaves the soft cap out."""
    sizes = dict(DECODER_SMALL, sliding_window=16, query_pre_attn_scalar=16) if small else dict(
        hidden_size=2304, intermediate_size=9216, num_hidden_layers=26, num_attention_heads=8, num_key_value_heads=4, head_dim=256, query_pre_attn_scalar=256, vocab_size=256000)
    return tf.Gemma2ForCausalLM, tf.Gemma2Config(**sizes, max_position_embeddings=8448, attn_implementation="eager")


def mamba2(tf, small):
    """The shape of Mamba-2 780M. PyTorch's side is transformers' own, without the kernels of mamba_ssm."""
    sizes = dict(hidden_size=64, state_size=8, num_hidden_layers=2, num_heads=8, head_dim=16, n_groups=2, chunk_size=8, vocab_size=256) if small else dict(
        hidden_size=1536, state_size=128, num_hidden_layers=48, num_heads=48, head_dim=64, n_groups=1, chunk_size=256, vocab_size=50288)
    return tf.Mamba2Model, tf.Mamba2Config(**sizes, expand=2, use_cache=False)


BERT_WORKS = (Work("1 x 128", "launches", texts(1, 128)), Work("1 x 128 ragged", "launches", texts(1, 128, True)), Work("32 x 512", "products", texts(32, 512)),
              Work("32 x 512 ragged", "products", texts(32, 512, True)))
DECODES = (decode(1, 1024), decode(16, 1024), decode(64, 1024))


def llama_works(kind):
    return (prefill(1, 512, kind), prefill(16, 512, "products"), prefill(1, 4096, "products"), Work("forward 4 x 2048", "products", ids(4, 2048), part="model"), *DECODES)


EXPERT_WORKS = (prefill(1, 512, "products"), prefill(16, 512, "products"), *DECODES)
EMBEDDINGS = ("image_embeds", "text_embeds")

MODELS = {model.name: model for model in (
    Model("bert-large", bert(hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16), BERT_WORKS),
    Model("vit-large", vit, (Work("1", "launches", images(1)), Work("64", "products", images(64)))),
    Model("llama-1b", llama(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64, vocab_size=128256),
          llama_works("launches")),
    Model("qwen3-moe-8", qwen3_moe, EXPERT_WORKS, experts=True),
    Model("llama-8b", llama(False, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, head_dim=128, vocab_size=128256),
          llama_works("products")),
    Model("bert-base", bert(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12), BERT_WORKS),
    Model("gpt2", gpt2, (prefill(1, 512, "launches"), prefill(16, 512, "products"), decode(1, 512), decode(16, 512), decode(64, 512))),
    Model("whisper-large", whisper, (Work("encoder 1", "products", spectra(1), part="model.encoder"), Work("encoder 8", "products", spectra(8), part="model.encoder"), first_token(1, "products"), decode(1, 4)),
          source_spectra),
    Model("t5-large", t5, (Work("encoder 32 x 512", "products", texts(32, 512), part="encoder"), first_token(1, "launches"), decode(1, 4), decode(16, 4)), source_texts),
    Model("gemma-2-2b", gemma2, (prefill(1, 512, "launches"), prefill(1, 8192, "products"), *DECODES[:2])),
    Model("mixtral-4", mixtral, EXPERT_WORKS[:4], experts=True),
    Model("deepseek-v3-3", deepseek_v3, EXPERT_WORKS[:4], experts=True),
    Model("clip-large", clip, (Work("32", "products", images_and_texts(32, 77), results=EMBEDDINGS),)),
    Model("siglip-so400m", siglip, (Work("32", "products", images_and_texts(32, 64), results=EMBEDDINGS),)),
    Model("wav2vec2-large", wav2vec2, (Work("8 x 10 s", "products", sounds(8, 160000)),)),
    Model("mamba-2-780m", mamba2, (Work("forward 4 x 2048", "products", ids(4, 2048)),)),
)}


def rows(chosen):
    """[(model, works)] of the rows that contain one of the words; none: all."""
    wanted = lambda model, work: not chosen or any(word in f"{model.name}/{work.name}" for word in chosen)
    found = [(model, [work for work in model.works if wanted(model, work)]) for model in MODELS.values()]
    return [(model, works) for model, works in found if works]
