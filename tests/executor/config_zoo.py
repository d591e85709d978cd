"""Small configurations of architectures that nothing in the project was tuned for.

Each is what a `config.json` of the architecture holds, with sizes that run in a moment.
"""

from __future__ import annotations

from typing import Any

_LAYERS = {"num_hidden_layers": 3, "vocab_size": 96, "max_position_embeddings": 64}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
_DENSE = {"hidden_size": 32, "intermediate_size": 64, **_HEADS, **_LAYERS}
_BERT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    **_LAYERS,
    "type_vocab_size": 2,
}
_SEQ2SEQ = {
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
_T5 = {
    "d_model": 32,
    "d_ff": 64,
    "d_kv": 8,
    "num_layers": 3,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "vocab_size": 96,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
}
_IMAGE = {"image_size": 32, "num_channels": 3, "num_labels": 5}
_LATENT = {
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "q_lora_rank": 16,
}
_ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_CLIP_TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "vocab_size": 96,
    "max_position_embeddings": 32,
    "projection_dim": 24,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
_CLIP_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "image_size": 16,
    "patch_size": 8,
    "projection_dim": 24,
}
_TOWER = {key: value for key, value in _CLIP_VISION.items() if key != "projection_dim"}
_QWEN_TOWER = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 32,
}
_AUDIO = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "conv_dim": [16, 16],
    "conv_stride": [4, 2],
    "conv_kernel": [8, 4],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "vocab_size": 32,
    "num_labels": 5,
}
_MISTRAL = {**_DENSE, "sliding_window": 8}

ZOO: dict[str, tuple[str, str, dict[str, Any]]] = {
    # name: (model_type, architecture, the rest of the configuration)
    "bart": ("bart", "BartForConditionalGeneration", _SEQ2SEQ),
    "mbart": ("mbart", "MBartForConditionalGeneration", _SEQ2SEQ),
    "pegasus": ("pegasus", "PegasusForConditionalGeneration", _SEQ2SEQ),
    "marian": ("marian", "MarianMTModel", _SEQ2SEQ),
    "m2m": ("m2m_100", "M2M100ForConditionalGeneration", _SEQ2SEQ),
    "t5": ("t5", "T5ForConditionalGeneration", {**_T5, "feed_forward_proj": "relu"}),
    "flan-t5": (
        "t5",
        "T5ForConditionalGeneration",
        {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "mt5": ("mt5", "MT5ForConditionalGeneration", _T5),
    "umt5": ("umt5", "UMT5ForConditionalGeneration", _T5),
    "dbrx": (
        "dbrx",
        "DbrxForCausalLM",
        {
            "d_model": 32,
            "n_heads": 4,
            "n_layers": 3,
            "max_seq_len": 64,
            "vocab_size": 96,
            "attn_config": {"clip_qkv": 8, "kv_n_heads": 2, "rope_theta": 500000},
            "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
        },
    ),
    "clip": (
        "clip",
        "CLIPModel",
        {"text_config": _CLIP_TEXT, "vision_config": _CLIP_VISION, "projection_dim": 24},
    ),
    "siglip": ("siglip", "SiglipModel", {"text_config": _CLIP_TEXT, "vision_config": _CLIP_VISION}),
    "clip-vision": ("clip", "CLIPForImageClassification", {"vision_config": _CLIP_VISION}),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", _DENSE),
    "qwen2-moe": (
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        {
            **_DENSE,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 32,
        },
    ),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", {**_DENSE, "head_dim": 8}),
    "qwen3-moe": (
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        {
            **_DENSE,
            "head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
        },
    ),
    "gemma": ("gemma", "GemmaForCausalLM", {**_DENSE, "head_dim": 8}),
    "gemma2": (
        "gemma2",
        "Gemma2ForCausalLM",
        {**_DENSE, "head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8},
    ),
    "gemma3": (
        "gemma3_text",
        "Gemma3ForCausalLM",
        {**_DENSE, "head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8},
    ),
    "phi3": ("phi3", "Phi3ForCausalLM", {**_DENSE, "pad_token_id": 0}),
    "phi": ("phi", "PhiForCausalLM", {**_DENSE, "num_key_value_heads": 4}),
    "falcon": (
        "falcon",
        "FalconForCausalLM",
        {**_LAYERS, "hidden_size": 32, "num_attention_heads": 4, "alibi": False},
    ),
    "falcon-new": (
        "falcon",
        "FalconForCausalLM",
        {
            **_LAYERS,
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_kv_heads": 2,
            "new_decoder_architecture": True,
        },
    ),
    "bloom": (
        "bloom",
        "BloomForCausalLM",
        {"hidden_size": 32, "n_layer": 3, "n_head": 4, "vocab_size": 96},
    ),
    "mpt": (
        "mpt",
        "MptForCausalLM",
        {"d_model": 32, "n_layers": 3, "n_heads": 4, "vocab_size": 96, "max_seq_len": 64},
    ),
    "starcoder2": ("starcoder2", "Starcoder2ForCausalLM", _MISTRAL),
    "mistral": ("mistral", "MistralForCausalLM", _MISTRAL),
    "olmo2": ("olmo2", "Olmo2ForCausalLM", _DENSE),
    "olmoe": (
        "olmoe",
        "OlmoeForCausalLM",
        {**_DENSE, "num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 4},
    ),
    "cohere": ("cohere", "CohereForCausalLM", _DENSE),
    "glm4": ("glm4", "Glm4ForCausalLM", {**_DENSE, "head_dim": 8, "pad_token_id": 0}),
    "mamba": (
        "mamba",
        "MambaForCausalLM",
        {"hidden_size": 32, "state_size": 8, "num_hidden_layers": 3, "vocab_size": 96},
    ),
    "mamba2": (
        "mamba2",
        "Mamba2ForCausalLM",
        {
            "hidden_size": 32,
            "state_size": 8,
            "num_hidden_layers": 3,
            "vocab_size": 96,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 1,
            "chunk_size": 8,
        },
    ),
    "granite-moe": (
        "granitemoe",
        "GraniteMoeForCausalLM",
        {**_DENSE, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "mixtral": (
        "mixtral",
        "MixtralForCausalLM",
        {**_DENSE, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "deepseek-v2": (
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        {**_DENSE, "num_key_value_heads": 4, **_LATENT, **_ROUTED, "head_dim": 8},
    ),
    "deepseek-v3": (
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        {**_DENSE, "num_key_value_heads": 4, **_LATENT, **_ROUTED},
    ),
    "llama4": (
        "llama4_text",
        "Llama4ForCausalLM",
        {
            **_DENSE,
            "head_dim": 8,
            "intermediate_size_mlp": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "attention_chunk_size": 8,
            "pad_token_id": 0,
        },
    ),
    "gpt-oss": (
        "gpt_oss",
        "GptOssForCausalLM",
        {
            **_DENSE,
            "head_dim": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
            "pad_token_id": 0,
        },
    ),
    "gpt-neox": ("gpt_neox", "GPTNeoXForCausalLM", _DENSE),
    "gpt-bigcode": (
        "gpt_bigcode",
        "GPTBigCodeForCausalLM",
        {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 96, "n_positions": 64},
    ),
    "xlnet": (
        "xlnet",
        "XLNetLMHeadModel",
        {"d_model": 32, "n_layer": 3, "n_head": 4, "d_inner": 64, "vocab_size": 96},
    ),
    "jamba": (
        "jamba",
        "JambaForCausalLM",
        {
            **_DENSE,
            "num_hidden_layers": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "use_mamba_kernels": False,
            "mamba_d_state": 4,
            "pad_token_id": 0,
        },
    ),
    "bert": ("bert", "BertForMaskedLM", _BERT),
    "bert-sequence": ("bert", "BertForSequenceClassification", {**_BERT, "num_labels": 3}),
    "roberta": ("roberta", "RobertaForMaskedLM", {**_BERT, "pad_token_id": 1}),
    "albert": ("albert", "AlbertForMaskedLM", {**_BERT, "embedding_size": 16}),
    "modernbert": (
        "modernbert",
        "ModernBertForMaskedLM",
        {**_BERT, "local_attention": 8, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "deberta": (
        "deberta_v2",
        "DebertaV2ForMaskedLM",
        {
            **_BERT,
            "relative_attention": True,
            "position_buckets": 8,
            "pos_att_type": ["p2c", "c2p"],
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
        },
    ),
    "electra": ("electra", "ElectraForMaskedLM", {**_BERT, "embedding_size": 16}),
    "electra-causal": (
        "electra",
        "ElectraForCausalLM",
        {**_BERT, "embedding_size": 16, "is_decoder": True},
    ),
    "wav2vec2": ("wav2vec2", "Wav2Vec2ForSequenceClassification", _AUDIO),
    "wav2vec2-ctc": ("wav2vec2", "Wav2Vec2ForCTC", _AUDIO),
    "hubert": ("hubert", "HubertForSequenceClassification", _AUDIO),
    "audio-spectrogram": (
        "audio_spectrogram_transformer",
        "ASTForAudioClassification",
        {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_attention_heads": 4,
            "num_hidden_layers": 3,
            "max_length": 32,
            "num_mel_bins": 16,
            "patch_size": 8,
            "time_stride": 8,
            "frequency_stride": 8,
            "num_labels": 5,
        },
    ),
    "swin": (
        "swin",
        "SwinForImageClassification",
        {**_IMAGE, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2]}
        | {"window_size": 4},
    ),
    "convnext": (
        "convnext",
        "ConvNextForImageClassification",
        {**_IMAGE, "depths": [2, 2, 2, 2], "hidden_sizes": [8, 16, 16, 16]},
    ),
    "resnet": (
        "resnet",
        "ResNetForImageClassification",
        {**_IMAGE, "embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]},
    ),
    "segformer": (
        "segformer",
        "SegformerForImageClassification",
        {**_IMAGE, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}
        | {"num_attention_heads": [1, 2, 2, 2], "sr_ratios": [4, 2, 1, 1]},
    ),
    "segformer-pixels": (
        "segformer",
        "SegformerForSemanticSegmentation",
        {**_IMAGE, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}
        | {"num_attention_heads": [1, 2, 2, 2], "sr_ratios": [4, 2, 1, 1]}
        | {"decoder_hidden_size": 16},
    ),
    "vit": (
        "vit",
        "ViTForImageClassification",
        {**_IMAGE, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
        | {"num_hidden_layers": 3, "patch_size": 8},
    ),
    "videomae": (
        "videomae",
        "VideoMAEForVideoClassification",
        {**_IMAGE, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
        | {"num_hidden_layers": 3, "patch_size": 8, "num_frames": 4},
    ),
    "deit": (
        "deit",
        "DeiTForImageClassification",
        {**_IMAGE, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
        | {"num_hidden_layers": 3, "patch_size": 8},
    ),
    "dinov2": (
        "dinov2",
        "Dinov2ForImageClassification",
        {**_IMAGE, "hidden_size": 32, "num_attention_heads": 4}
        | {"num_hidden_layers": 3, "patch_size": 8},
    ),
    "beit": (
        "beit",
        "BeitForImageClassification",
        {**_IMAGE, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
        | {"num_hidden_layers": 3, "patch_size": 8},
    ),
    "detr": (
        "detr",
        "DetrForObjectDetection",
        {
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "num_queries": 6,
        },
    ),
    "whisper": (
        "whisper",
        "WhisperForConditionalGeneration",
        {
            **{k: v for k, v in _SEQ2SEQ.items() if k != "forced_eos_token_id"},
            "num_mel_bins": 8,
            "max_source_positions": 16,
            "max_target_positions": 32,
        },
    ),
    "bigbird": ("big_bird", "BigBirdForMaskedLM", {**_BERT, "block_size": 8}),
    "moonshine": (
        "moonshine",
        "MoonshineForConditionalGeneration",
        {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 96}
        | {f"{side}_num_hidden_layers": 2 for side in ("encoder", "decoder")}
        | {f"{side}_num_attention_heads": 2 for side in ("encoder", "decoder")},
    ),
    "patchtst": (
        "patchtst",
        "PatchTSTForPrediction",
        {"num_input_channels": 2, "context_length": 32, "prediction_length": 8, "d_model": 16}
        | {"num_attention_heads": 2, "ffn_dim": 32},
    ),
    "blip2": (
        "blip-2",
        "Blip2ForConditionalGeneration",
        {
            "text_config": {"model_type": "opt", "hidden_size": 32, "word_embed_proj_dim": 32}
            | {"ffn_dim": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 96},
            "qformer_config": {**_BERT, "num_hidden_layers": 2, "encoder_hidden_size": 32},
            "vision_config": _TOWER,
            "num_query_tokens": 4,
            "image_token_index": 95,
        },
    ),
    "llava": (
        "llava",
        "LlavaForConditionalGeneration",
        {
            "text_config": {**_DENSE, "model_type": "llama"},
            "vision_config": {**_CLIP_VISION, "model_type": "clip_vision_model"},
            "image_token_index": 95,
        },
    ),
    "qwen2_5_vl": (
        "qwen2_5_vl",
        "Qwen2_5_VLForConditionalGeneration",
        {
            # The first files of this type have no text_config.
            **_DENSE,
            "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
            "image_token_id": 95,
            "vision_config": {
                **_QWEN_TOWER,
                "window_size": 28,
                "fullatt_block_indexes": [1],
                "image_size": 56,
            },
        },
    ),
    "qwen3_vl": (
        "qwen3_vl",
        "Qwen3VLForConditionalGeneration",
        {
            "text_config": {
                **_DENSE,
                "model_type": "qwen3_vl_text",
                "head_dim": 16,
                "rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2]},
            },
            "image_token_id": 95,
            "vision_config": {
                **_QWEN_TOWER,
                "num_position_embeddings": 16,
                "deepstack_visual_indexes": [0, 1],
                "image_size": 64,
            },
        },
    ),
    "idefics3": (
        "idefics3",
        "Idefics3ForConditionalGeneration",
        {
            "text_config": {**_DENSE, "model_type": "llama"},
            "vision_config": {**_TOWER, "image_size": 32},
            "scale_factor": 2,
            "image_token_id": 95,
        },
    ),
    "mistral3": (
        "mistral3",
        "Mistral3ForConditionalGeneration",
        {
            "text_config": {**_DENSE, "model_type": "mistral", "head_dim": 8},
            "vision_config": {
                **_TOWER,
                "model_type": "pixtral",
                "head_dim": 8,
                "image_size": 32,
            },
            "image_token_index": 95,
        },
    ),
    "mllama": (
        "mllama",
        "MllamaForConditionalGeneration",
        {
            "text_config": {**_DENSE, "cross_attention_layers": [1], "pad_token_id": 0},
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 64,
                "attention_heads": 2,
                "num_hidden_layers": 2,
                "num_global_layers": 1,
                "image_size": 28,
                "intermediate_layers_indices": [0],
                "vision_output_dim": 64,
            },
            "image_token_index": 95,
        },
    ),
}


def config_of(name: str) -> dict[str, Any]:
    """The configuration as a `config.json` holds it."""
    model_type, architecture, rest = ZOO[name]
    return {"model_type": model_type, "architectures": [architecture], **rest}
