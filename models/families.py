"""The breadth of architectures that export.py writes beside those of catalog.py: one small random model of each family.

A row holds data and builders only. What makes a family worth a row is named by the comment above its group.
"""
import torch
import transformers as tf

import handmade
from catalog import IDS_AND_MASK, VISION_SIZES, Model, common, ids_and_mask, ids_input, images, llama_config, text

FEW_SIZES = ((1, 1), (2, 16), (3, 33))
ENCODER = dict(vocab_size=500, hidden_size=96, num_hidden_layers=2, num_attention_heads=6, intermediate_size=224, max_position_embeddings=128)
GPT = dict(vocab_size=512, n_positions=128, n_embd=96, n_layer=2, n_head=6, use_cache=False, bos_token_id=1, eos_token_id=2)
VISION = dict(hidden_size=80, num_hidden_layers=2, num_attention_heads=5, intermediate_size=192, image_size=32, patch_size=8)


def decoder(name, config, layers=2, **more):
    return text(name, config, 512, layers, **(dict(sizes=FEW_SIZES, tokens=16) | more))


def mixture(name, config, layers=2, **more):
    """A decoder whose tokens each go through a few experts; the interesting sizes are those that leave some expert without a token."""
    return decoder(name, config, layers, **more)


def encoder(name, build, layers=2, **more):
    settings = dict(inputs=ids_and_mask(500, "right"), dims=("b", "s"), dynamic=IDS_AND_MASK, sizes=FEW_SIZES, role="encoder", attentions=layers,
                    special={"max_s": 120}) | more
    return Model(name, build, **settings)


def vision(name, build, side=32, **more):
    settings = dict(role="vision", attentions=2) | more
    return Model(name, build, images(side), ("b",), {"pixel_values": {0: "b"}}, VISION_SIZES, **settings)


# ---- two inputs of tokens -----------------------------------------------------------------------------------------------------

def source_and_target(vocab):
    def make(g, size):
        batch, source, target = size
        return {"input_ids": torch.randint(3, vocab, (batch, source), generator=g),
                "decoder_input_ids": torch.randint(3, vocab, (batch, target), generator=g)}
    return make


def sequence_to_sequence(name, build, attentions, **more):
    settings = dict(dims=("b", "e", "s"), dynamic={"input_ids": {0: "b", 1: "e"}, "decoder_input_ids": {0: "b", 1: "s"}},
                    sizes=((1, 7, 1), (2, 16, 9), (3, 11, 33)), role="seq2seq", attentions=attentions) | more
    return Model(name, build, source_and_target(500), **settings)


def image_and_text(vocab, side, length):
    def make(g, size):
        ids = torch.randint(3, vocab - 2, (size[0], length), generator=g)
        ids[:, -1] = vocab - 1                  # the largest id ends the text: its vector is the text's
        return {"input_ids": ids, "pixel_values": torch.randn(size[0], 3, side, side, generator=g)}
    return make


CLIP = tf.CLIPConfig(text_config=dict(vocab_size=500, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
                                      max_position_embeddings=24, eos_token_id=499, bos_token_id=498),
                     vision_config=dict(VISION), projection_dim=48)
SIGLIP = dict(VISION, hidden_act="gelu_pytorch_tanh")
T5 = dict(vocab_size=500, d_model=96, d_kv=16, d_ff=192, num_layers=2, num_decoder_layers=2, num_heads=6, use_cache=False,
          decoder_start_token_id=0)
BART = dict(vocab_size=500, d_model=96, encoder_layers=2, decoder_layers=2, encoder_attention_heads=6, decoder_attention_heads=6,
            encoder_ffn_dim=192, decoder_ffn_dim=192, max_position_embeddings=128, use_cache=False)
WHISPER = tf.WhisperConfig(vocab_size=500, d_model=96, encoder_layers=2, decoder_layers=2, encoder_attention_heads=6,
                           decoder_attention_heads=6, encoder_ffn_dim=192, decoder_ffn_dim=192, num_mel_bins=20, max_source_positions=30,
                           max_target_positions=64, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                           decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None)


def ids_and_positions(g, size):
    return {"input_ids": torch.randint(0, 512, (1, size[0]), generator=g), "cache_position": torch.arange(size[0])}


def whisper_inputs(g, size):
    return {"input_features": torch.randn(size[0], 20, 60, generator=g)}


def whisper_both(g, size):
    return {"input_features": torch.randn(size[0], 20, 60, generator=g), "decoder_input_ids": torch.randint(3, 500, size, generator=g)}


MIXTRAL = common(intermediate_size=96, num_local_experts=4)
SPEECH = dict(hidden_size=96, num_hidden_layers=2, num_attention_heads=6, intermediate_size=224, conv_dim=(32, 32), conv_stride=(5, 2),
              conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4,
              apply_spec_augment=False)
SWIN = dict(image_size=32, patch_size=2, embed_dim=24, depths=[2, 2], num_heads=[2, 4], window_size=4)
IDS = {"input_ids": {0: "b", 1: "s"}}
# one length, because the export refuses a dynamic one
STATIC = dict(dims=(), dynamic={}, sizes=((2, 19),), tokens=0)

SEQ_STATIC = dict(dims=(), dynamic={}, sizes=((2, 16, 9),))


def videos(g, size):
    return {"pixel_values": torch.randn(size[0], 4, 3, 32, 32, generator=g)}


FAMILIES = [
    # decoders: other norms, rotations, residuals and activations
    decoder("gpt_neo", tf.GPTNeoConfig(vocab_size=512, max_position_embeddings=128, hidden_size=96, num_layers=2, num_heads=6, window_size=16,
                                       attention_types=[[["global", "local"], 1]], use_cache=False), special={"max_s": 127}),
    decoder("gptj", tf.GPTJConfig(**GPT, rotary_dim=8)),
    decoder("codegen", tf.CodeGenConfig(**dict(GPT, n_head=4), rotary_dim=8)),
    decoder("gpt_bigcode", tf.GPTBigCodeConfig(**GPT, multi_query=True)),
    decoder("starcoder2", tf.Starcoder2Config(**common(intermediate_size=192, sliding_window=16))),
    decoder("stablelm", tf.StableLmConfig(**common(intermediate_size=192))),
    decoder("phi", tf.PhiConfig(**common(intermediate_size=192))),
    decoder("olmo", tf.OlmoConfig(**common(intermediate_size=192))),
    decoder("olmo2", tf.Olmo2Config(**common(intermediate_size=192))),
    decoder("granite", tf.GraniteConfig(**common(intermediate_size=192, embedding_multiplier=2.0, residual_multiplier=0.5, logits_scaling=4.0))),
    decoder("cohere", tf.CohereConfig(**common(intermediate_size=192))),
    decoder("cohere2", tf.Cohere2Config(**common(intermediate_size=192, sliding_window=16, num_hidden_layers=4)), 4),
    decoder("gemma", tf.GemmaConfig(**common(intermediate_size=192, head_dim=16))),
    decoder("gemma3", tf.Gemma3TextConfig(**common(intermediate_size=192, head_dim=16, sliding_window=16, num_hidden_layers=3,
                                                   layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                                                   query_pre_attn_scalar=16)), 3),
    decoder("glm", tf.GlmConfig(**common(intermediate_size=192, head_dim=16))),
    decoder("smollm3", tf.SmolLM3Config(**common(intermediate_size=192))),
    decoder("nemotron", tf.NemotronConfig(**common(intermediate_size=192))),
    decoder("persimmon", tf.PersimmonConfig(**common(intermediate_size=192))),
    decoder("exaone4", tf.Exaone4Config(**common(intermediate_size=192, sliding_window=16, num_hidden_layers=4, sliding_window_pattern=4)), 4),
    decoder("helium", tf.HeliumConfig(**common(intermediate_size=192, head_dim=16))),
    decoder("biogpt", tf.BioGptConfig(**common(intermediate_size=192, max_position_embeddings=128))),
    decoder("xglm", tf.XGLMConfig(vocab_size=512, max_position_embeddings=128, d_model=96, ffn_dim=192, num_layers=2, attention_heads=6,
                                  use_cache=False), special={"max_s": 127}),

    # positions as a bias
    decoder("bloom", tf.BloomConfig(vocab_size=512, hidden_size=96, n_layer=2, n_head=6, use_cache=False)),
    decoder("mpt", tf.MptConfig(vocab_size=512, d_model=96, n_heads=6, n_layers=2, max_seq_len=64, use_cache=False), **STATIC),
    decoder("falcon_alibi", tf.FalconConfig(**common(new_decoder_architecture=False, multi_query=True, alibi=True, parallel_attn=True))),

    # experts
    mixture("mixtral", tf.MixtralConfig(**MIXTRAL)),
    mixture("mixtral_bf16", None, build=lambda: tf.AutoModelForCausalLM.from_config(tf.MixtralConfig(**MIXTRAL)).to(torch.bfloat16), tokens=0),
    mixture("qwen2_moe", tf.Qwen2MoeConfig(**common(intermediate_size=192, moe_intermediate_size=64, shared_expert_intermediate_size=96,
                                                     num_experts=6, num_experts_per_tok=2))),
    mixture("qwen3_moe", tf.Qwen3MoeConfig(**common(intermediate_size=192, moe_intermediate_size=64, num_experts=8, num_experts_per_tok=2,
                                                     head_dim=16))),
    mixture("deepseek_v3", tf.DeepseekV3Config(**common(intermediate_size=192, moe_intermediate_size=64, n_routed_experts=8, n_group=4, topk_group=2,
                                                         num_experts_per_tok=2, first_k_dense_replace=1, num_key_value_heads=8, kv_lora_rank=32,
                                                         q_lora_rank=48, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=24))),
    mixture("gpt_oss", tf.GptOssConfig(**common(intermediate_size=96, num_local_experts=4, num_experts_per_tok=2, sliding_window=8, head_dim=16))),
    Model("expert_loop", handmade.expert_gpt, ids_input(320, "idx"), ("b", "s"), {"idx": {0: "b", 1: "s"}}, FEW_SIZES, attentions=2, causal=True,
          tokens=16),
    mixture("olmoe", tf.OlmoeConfig(**common(intermediate_size=64, num_experts=6, num_experts_per_tok=2))),
    mixture("granitemoe", tf.GraniteMoeConfig(**common(intermediate_size=64, num_local_experts=6, num_experts_per_tok=2))),
    mixture("phimoe", tf.PhimoeConfig(**common(intermediate_size=64, num_local_experts=4, num_experts_per_tok=2, sliding_window=None))),

    # a cache of fixed length, kept between runs
    Model("llama_static_cache", lambda: handmade.StaticCache(tf.AutoModelForCausalLM.from_config(llama_config(use_cache=True)), 48), ids_and_positions,
          ("s",), {"input_ids": {1: "s"}, "cache_position": {0: "s"}}, ((7,), (33,)), attentions=2, special={"max_s": 48}),

    # encoders of text
    encoder("distilbert", lambda: tf.DistilBertModel(tf.DistilBertConfig(vocab_size=500, dim=96, n_layers=2, n_heads=6, hidden_dim=224,
                                                                         max_position_embeddings=128))),
    encoder("electra", lambda: tf.ElectraModel(tf.ElectraConfig(**ENCODER, embedding_size=48))),
    encoder("albert", lambda: tf.AlbertModel(tf.AlbertConfig(**ENCODER, embedding_size=48))),
    encoder("xlm_roberta", lambda: tf.XLMRobertaForSequenceClassification(tf.XLMRobertaConfig(
        **dict(ENCODER, max_position_embeddings=130), pad_token_id=1, num_labels=3))),
    encoder("deberta_v2", lambda: tf.DebertaV2Model(tf.DebertaV2Config(**ENCODER, relative_attention=True, pos_att_type=["p2c", "c2p"],
                                                                       position_buckets=16))),
    encoder("mpnet", lambda: tf.MPNetModel(tf.MPNetConfig(**dict(ENCODER, max_position_embeddings=130)))),
    encoder("modernbert", lambda: tf.ModernBertModel(tf.ModernBertConfig(**ENCODER, local_attention=16, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                                                                           cls_token_id=1, sep_token_id=2, global_attn_every_n_layers=2))),
    encoder("nomic_bert", lambda: tf.NomicBertModel(tf.NomicBertConfig(**ENCODER))),
    encoder("esm", lambda: tf.EsmModel(tf.EsmConfig(**dict(ENCODER, max_position_embeddings=130), pad_token_id=1, mask_token_id=4,
                                                      position_embedding_type="rotary"))),
    encoder("roformer", lambda: tf.RoFormerModel(tf.RoFormerConfig(**ENCODER))),
    encoder("bert_for_masked_lm", lambda: tf.BertForMaskedLM(tf.BertConfig(**ENCODER))),

    # encoders of images and sounds
    vision("deit", lambda: tf.DeiTForImageClassification(tf.DeiTConfig(**VISION, num_labels=10))),
    vision("siglip_vision", lambda: tf.SiglipVisionModel(tf.SiglipVisionConfig(**SIGLIP)), attentions=3),
    vision("dinov2", lambda: tf.Dinov2Model(tf.Dinov2Config(**{k: v for k, v in VISION.items() if k != "intermediate_size"}))),
    vision("beit", lambda: tf.BeitModel(tf.BeitConfig(**VISION, use_relative_position_bias=True))),
    vision("swin", lambda: tf.SwinModel(tf.SwinConfig(**SWIN)), attentions=4),
    vision("swinv2", lambda: tf.Swinv2Model(tf.Swinv2Config(**SWIN)), attentions=4),
    vision("segformer", lambda: tf.SegformerModel(tf.SegformerConfig(num_encoder_blocks=2, depths=[1, 1], sr_ratios=[4, 2], hidden_sizes=[16, 32],
                                                                       num_attention_heads=[1, 2], patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2]))),
    vision("convnext", lambda: tf.ConvNextModel(tf.ConvNextConfig(num_stages=2, hidden_sizes=[16, 32], depths=[1, 1])), attentions=0),
    vision("clip_vision", lambda: tf.CLIPVisionModel(tf.CLIPVisionConfig(**VISION))),
    Model("clip", lambda: tf.CLIPModel(CLIP), image_and_text(500, 32, 17), (), {}, ((2,),), role="vision", attentions=4),
    Model("whisper_encoder", lambda: tf.WhisperModel(WHISPER).encoder, whisper_inputs, ("b",), {"input_features": {0: "b"}}, VISION_SIZES,
          role="vision", attentions=2),
    Model("wav2vec2", lambda: tf.Wav2Vec2Model(tf.Wav2Vec2Config(**SPEECH)), lambda g, size: {"input_values": torch.randn(size[0], 400, generator=g)},
          ("b",), {"input_values": {0: "b"}}, VISION_SIZES, role="vision", attentions=2),

    # encoder and decoder
    sequence_to_sequence("t5", lambda: tf.T5ForConditionalGeneration(tf.T5Config(**T5)), 6),
    sequence_to_sequence("t5_gated", lambda: tf.T5ForConditionalGeneration(
        tf.T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)), 6),
    sequence_to_sequence("bart", lambda: tf.BartForConditionalGeneration(tf.BartConfig(**BART)), 6),
    sequence_to_sequence("marian", lambda: tf.MarianMTModel(tf.MarianConfig(**BART, pad_token_id=0)), 6),
    Model("whisper", lambda: tf.WhisperForConditionalGeneration(WHISPER), whisper_both, ("b", "s"),
          {"input_features": {0: "b"}, "decoder_input_ids": {0: "b", 1: "s"}}, ((1, 1), (2, 9), (3, 20)),
          role="seq2seq", attentions=6, special={"max_s": 60}),

    # states along the sequence instead of attention
    decoder("mamba", tf.MambaConfig(vocab_size=512, hidden_size=64, state_size=8, num_hidden_layers=2, use_cache=False), 0, **STATIC),
    decoder("mamba2", tf.Mamba2Config(vocab_size=512, hidden_size=64, state_size=8, num_hidden_layers=2, num_heads=8,
                                      head_dim=16, expand=2, n_groups=2, chunk_size=8, use_cache=False), 0, **STATIC),

    # what few others use: transforms instead of attention, windows as columns, convolutions over frames, numbers taken from tensors
    encoder("fnet", lambda: tf.FNetModel(tf.FNetConfig(vocab_size=500, hidden_size=96, num_hidden_layers=2, intermediate_size=224,
                                                       max_position_embeddings=128)), 0, inputs=ids_input(500), dynamic=IDS),
    encoder("convbert", lambda: tf.ConvBertModel(tf.ConvBertConfig(**dict(ENCODER, num_attention_heads=4), embedding_size=48, head_ratio=2)), softmax=True),
    encoder("funnel", lambda: tf.FunnelModel(tf.FunnelConfig(vocab_size=500, block_sizes=[1, 1], num_decoder_layers=1, d_model=64, n_head=4, d_head=16,
                                                             d_inner=128)), 3, inputs=ids_input(500), **STATIC),
    encoder("tapas", lambda: tf.TapasModel(tf.TapasConfig(**ENCODER, type_vocab_sizes=[3, 8, 8, 2, 8, 8, 4]))),
    encoder("squeezebert", lambda: tf.SqueezeBertModel(tf.SqueezeBertConfig(**dict(ENCODER, embedding_size=96)))),
    encoder("xlnet", lambda: tf.XLNetModel(tf.XLNetConfig(vocab_size=500, d_model=96, n_layer=2, n_head=6, d_inner=192)), inputs=ids_input(500), **STATIC),
    encoder("flaubert", lambda: tf.FlaubertModel(tf.FlaubertConfig(vocab_size=500, emb_dim=96, n_layers=2, n_heads=6, max_position_embeddings=128)),
            inputs=ids_input(500), dynamic=IDS, special={"max_s": 120}),
    vision("hiera", lambda: tf.HieraModel(tf.HieraConfig(image_size=[64, 64], patch_size=[7, 7], patch_stride=[4, 4], embed_dim=16, depths=[1, 1, 1],
                                                         num_heads=[1, 2, 4], num_query_pool=1, masked_unit_size=[4, 4],
                                                         masked_unit_attention=[True, True, False])), 64, attentions=3),
    vision("mobilevitv2", lambda: tf.MobileViTV2Model(tf.MobileViTV2Config(image_size=64, expand_ratio=2.0, width_multiplier=0.25, ffn_multiplier=2)), 64,
           attentions=0, softmax=True),
    vision("swin2sr", lambda: tf.Swin2SRForImageSuperResolution(tf.Swin2SRConfig(image_size=16, embed_dim=24, depths=[2, 2], num_heads=[2, 2],
                                                                                window_size=4, mlp_ratio=2.0, upscale=2, num_channels=3)), 16, attentions=4),
    vision("cvt", lambda: tf.CvtModel(tf.CvtConfig(embed_dim=[16, 32, 48], num_heads=[1, 2, 3], depth=[1, 2, 3])), 64, attentions=6),
    vision("poolformer", lambda: tf.PoolFormerModel(tf.PoolFormerConfig(hidden_sizes=[16, 32], depths=[1, 1], patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1],
                                                                        num_encoder_blocks=2)), 64, attentions=0),
    vision("dpt", lambda: tf.DPTForDepthEstimation(tf.DPTConfig(**dict(VISION, num_hidden_layers=4), backbone_out_indices=[0, 1, 2, 3],
                                                                neck_hidden_sizes=[16, 24, 32, 48], fusion_hidden_size=16, head_in_index=-1)), attentions=4),
    Model("videomae", lambda: tf.VideoMAEModel(tf.VideoMAEConfig(**VISION, num_frames=4, tubelet_size=2)), videos, ("b",), {"pixel_values": {0: "b"}},
          ((1,), (3,)), role="vision", attentions=2),
    Model("hubert", lambda: tf.HubertModel(tf.HubertConfig(**SPEECH)), lambda g, size: {"input_values": torch.randn(size[0], 400, generator=g)},
          ("b",), {"input_values": {0: "b"}}, VISION_SIZES, role="vision", attentions=2),
    sequence_to_sequence("prophetnet", lambda: tf.ProphetNetModel(tf.ProphetNetConfig(
        vocab_size=500, hidden_size=96, num_encoder_layers=2, num_decoder_layers=2, num_encoder_attention_heads=6, num_decoder_attention_heads=6,
        encoder_ffn_dim=192, decoder_ffn_dim=192, max_position_embeddings=64, use_cache=False)), 8, **SEQ_STATIC),
    sequence_to_sequence("pegasus", lambda: tf.PegasusForConditionalGeneration(tf.PegasusConfig(**BART)), 6),
    decoder("openai_gpt", tf.OpenAIGPTConfig(vocab_size=512, n_positions=128, n_embd=96, n_layer=2, n_head=6), special={"max_s": 127}),
    decoder("lfm2", tf.Lfm2Config(**common(intermediate_size=128, layer_types=["conv", "full_attention"])), 1),
]
