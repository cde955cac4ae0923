"""Which reader knows which architecture. Modules are imported when a model needs them, not before."""

from __future__ import annotations

from functools import partial
from importlib import import_module

from kvplan.catalog.families.common import Reader

_FAMILIES = "kvplan.catalog.families."

_READERS: dict[str, str] = {
    "GPT2LMHeadModel": "softmax.classic:read_gpt2",
    "GPTBigCodeForCausalLM": "softmax.classic:read_gpt_bigcode",
    "GPTNeoForCausalLM": "softmax.classic:read_gpt_neo",
    "GPTJForCausalLM": "softmax.classic:read_gptj",
    "CodeGenForCausalLM": "softmax.classic:read_gptj",
    "OPTForCausalLM": "softmax.classic:read_opt",
    "BloomForCausalLM": "softmax.classic:read_bloom",
    "MptForCausalLM": "softmax.classic:read_mpt",
    "FalconForCausalLM": "softmax.classic:read_falcon",
    "T5ForConditionalGeneration": "softmax.encoder_decoder:read_t5",
    "MT5ForConditionalGeneration": "softmax.encoder_decoder:read_t5",
    "UMT5ForConditionalGeneration": "softmax.encoder_decoder:read_t5",
    "WhisperForConditionalGeneration": "softmax.encoder_decoder:read_whisper",
    "MllamaForConditionalGeneration": "softmax.encoder_decoder:read_mllama",
    "PanguEmbeddedForCausalLM": "softmax.plain:read_pangu",
    "DeepseekV4ForCausalLM": "latent.compressed:read_deepseek_v4",
    "DeepseekV4ForConditionalGeneration": "latent.compressed:read_deepseek_v4",
    "HYV4ForCausalLM": "latent.hunyuan:read_hy_v4",
    "DeciLMForCausalLM": "softmax.heterogeneous:read_decilm",
    "MiMoV2FlashForCausalLM": "softmax.heterogeneous:read_mimo_v2",
    "MiMoV2ForCausalLM": "softmax.heterogeneous:read_mimo_v2",
    "Step3TextForCausalLM": "softmax.heterogeneous:read_step3",
    "Step3p5ForCausalLM": "softmax.heterogeneous:read_step3p7",
    "Step3p7FlashForCausalLM": "softmax.heterogeneous:read_step3p7",
    "Step5ForCausalLM": "softmax.step:read_step5",
    "LagunaForCausalLM": "softmax.heterogeneous:read_laguna",
    "MiniMaxM3ForCausalLM": "softmax.heterogeneous:read_minimax_m3",
    "MiniMaxM3SparseForCausalLM": "softmax.heterogeneous:read_minimax_m3",
    "DbrxForCausalLM": "softmax.heterogeneous:read_dbrx",
    "QWenLMHeadModel": "softmax.heterogeneous:read_qwen1",
    "ChatGLMModel": "softmax.heterogeneous:read_chatglm",
    "ChatGLMForConditionalGeneration": "softmax.heterogeneous:read_chatglm",
    "Gemma3nForCausalLM": "softmax.gemma:read_gemma3n",
    "Gemma4ForCausalLM": "softmax.gemma:read_gemma4",
    "MambaForCausalLM": "states.state:read_mamba",
    "FalconMambaForCausalLM": "states.state:read_mamba",
    "Mamba2ForCausalLM": "states.state:read_mamba2",
    "JambaForCausalLM": "states.hybrid:read_jamba",
    "BambaForCausalLM": "states.hybrid:read_bamba",
    "GraniteMoeHybridForCausalLM": "states.hybrid:read_granite_hybrid",
    "FalconH1ForCausalLM": "states.hybrid:read_falcon_h1",
    "NemotronHForCausalLM": "states.hybrid:read_nemotron_h",
    "Zamba2ForCausalLM": "states.hybrid:read_zamba2",
    "AXK1ForCausalLM": "latent.deepseek:read_axk1",
    "LongcatFlashForCausalLM": "latent.deepseek:read_longcat",
    "LongcatFlashNgramForCausalLM": "latent.deepseek:read_longcat_ngram",
    "Molmo2ForConditionalGeneration": "wrappers.multimodal:read_molmo2",
    "PanguUltraMoEForCausalLM": "latent.deepseek:read_pangu_ultra",
    "OlmoHybridForCausalLM": "states.delta:read_olmo_hybrid",
    "Qwen3NextForCausalLM": "states.delta:read_qwen3_next",
    "Qwen3_5ForCausalLM": "states.delta:read_qwen3_next",
    "Qwen3_5MoeForCausalLM": "states.delta:read_qwen3_next",
    "Qwen4ExpForCausalLM": "states.qwen4:read_qwen4",
    "KimiLinearForCausalLM": "states.delta:read_kimi_linear",
    "Lfm2ForCausalLM": "states.short_conv:read_lfm2",
    "Lfm2MoeForCausalLM": "states.short_conv:read_lfm2",
    "BailingMoeV2_5ForCausalLM": "states.delta:read_bailing_hybrid",
    "BailingMoeV3ForCausalLM": "states.delta:read_bailing_v3",
    "Glm5NextForCausalLM": "states.glm_next:read_glm5_next",
    "MiniMaxForCausalLM": "states.delta:read_minimax",
    "MiniMaxText01ForCausalLM": "states.delta:read_minimax",
}

_WRAPPERS = (
    *("LlavaForConditionalGeneration", "LlavaNextForConditionalGeneration", "LlavaOnevisionForConditionalGeneration"),
    *("LlavaLlamaForCausalLM", "Mistral3ForConditionalGeneration", "PixtralForConditionalGeneration"),
    *("Gemma3ForConditionalGeneration", "Gemma3nForConditionalGeneration", "Gemma4ForConditionalGeneration"),
    *("PaliGemmaForConditionalGeneration", "Llama4ForConditionalGeneration", "Phi3VForCausalLM"),
    *("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration", "DotsOCRForCausalLM"),
    *("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"),
    *("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration", "Qwen4ExpForConditionalGeneration"),
    *("KimiK25ForConditionalGeneration", "KimiVLForConditionalGeneration", "KimiK3ForConditionalGeneration"),
    "InternVLChatModel",
    *("InternVLForConditionalGeneration", "Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration"),
    "Glm5NextForConditionalGeneration",
    *("MiniMaxM3SparseForConditionalGeneration", "Cohere2VisionForConditionalGeneration"),
    *("AyaVisionForConditionalGeneration", "Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
    *("VoxtralForConditionalGeneration", "Lfm2VlForConditionalGeneration", "Step3p7ForConditionalGeneration"),
    *("Step3VLForConditionalGeneration", "Step5ForConditionalGeneration"),
    *("DeepseekVLV2ForCausalLM", "Qwen2AudioForConditionalGeneration", "UltravoxModel", "H2OVLChatModel"),
    *("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration", "Qwen3OmniMoeForConditionalGeneration"),
    *("InternS1ForConditionalGeneration", "Exaone4_5_ForConditionalGeneration", "SkyworkR1VChatModel", "NVLM_D"),
    *("LlavaNextVideoForConditionalGeneration", "NemotronH_Nano_VL_V2", "Llama_Nemotron_Nano_VL"),
    *("MiniCPMV4_6ForConditionalGeneration", "PaddleOCRVLForConditionalGeneration"),
    *("MiniCPMV", "MiniCPMO", "MiniCPMV4_7ForConditionalGeneration", "MiniCPMOcrForConditionalGeneration"),
    *("Gemma4UnifiedForConditionalGeneration", "GlmOcrForConditionalGeneration", "LightOnOCRForConditionalGeneration"),
    *("DeepseekOCRForCausalLM", "DeepseekOCR2ForCausalLM", "QianfanOCRForConditionalGeneration"),
    *("Ovis", "Ovis2_5", "Ovis2_6ForCausalLM", "Ovis2_6_MoeForCausalLM"),
    *("Qwen3ASRForConditionalGeneration", "GlmAsrForConditionalGeneration", "AudioFlamingo3ForConditionalGeneration"),
    *("GraniteSpeechForConditionalGeneration", "GraniteSpeechPlusForConditionalGeneration"),
    *("Granite4VisionForConditionalGeneration", "FunAudioChatForConditionalGeneration"),
    *("MossTranscribeDiarizeForConditionalGeneration", "InternS2PreviewForConditionalGeneration"),
    *("KeyeForConditionalGeneration", "KeyeVL1_5ForConditionalGeneration", "Phi4ForCausalLMV"),
    *("NemotronH_Nano_Omni_Reasoning_V3", "NemotronH_Super_Omni_Reasoning_V3", "NemotronH_Omni_Reasoning_V3"),
    *("OpenCUAForConditionalGeneration", "StepVLForConditionalGeneration", "Eagle2_5_VLForConditionalGeneration"),
    *("KananaVForConditionalGeneration", "LlavaOnevision2ForConditionalGeneration", "HCXVisionV2ForCausalLM"),
    *("RForConditionalGeneration", "BeeForConditionalGeneration", "Cosmos3ForConditionalGeneration"),
    *("MoonshotKimiaForCausalLM", "MiDashengLMModel"),
    *("BailingMoeV3VLForConditionalGeneration", "OpenPanguVLForConditionalGeneration", "MiMoV2OmniForCausalLM"),
)
"""Towers around a language model: the text config decides."""

_ARCHITECTURE_OF_TYPE: dict[str, str] = {
    "apertus": "ApertusForCausalLM",
    "arcee": "ArceeForCausalLM",
    "axk1": "AXK1ForCausalLM",
    "baichuan": "BaichuanForCausalLM",
    "bamba": "BambaForCausalLM",
    "bailing_moe": "BailingMoeForCausalLM",
    "bailing_moe_v2": "BailingMoeV2ForCausalLM",
    "bloom": "BloomForCausalLM",
    "cohere": "CohereForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "cohere2_moe": "Cohere2MoeForCausalLM",
    "deepseek": "DeepseekForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "deepseek_v4": "DeepseekV4ForCausalLM",
    "dots1": "Dots1ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "exaone": "ExaoneForCausalLM",
    "exaone_moe": "ExaoneMoeForCausalLM",
    "falcon": "FalconForCausalLM",
    "falcon_h1": "FalconH1ForCausalLM",
    "falcon_mamba": "FalconMambaForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3n_text": "Gemma3nForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "gemma4_unified_text": "Gemma4ForCausalLM",
    "glm": "GlmForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "glm4v_text": "Glm4ForCausalLM",
    "glm4v_moe_text": "Glm4MoeForCausalLM",
    "glm5_next_text": "Glm5NextForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "glm_ocr_text": "Glm4ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_bigcode": "GPTBigCodeForCausalLM",
    "gpt_neo": "GPTNeoForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "gptj": "GPTJForCausalLM",
    "granite": "GraniteForCausalLM",
    "granite4_vision_text": "GraniteForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "granitemoeshared": "GraniteMoeSharedForCausalLM",
    "granite_swa": "GraniteSWAForCausalLM",
    "granitemoe_swa": "GraniteMoeSWAForCausalLM",
    "helium": "HeliumForCausalLM",
    "hy_v3": "HYV3ForCausalLM",
    "hy_v4": "HYV4ForCausalLM",
    "hyperclovax": "HyperCLOVAXForCausalLM",
    "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
    "hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "internlm3": "InternLM3ForCausalLM",
    "jamba": "JambaForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "kimi_linear": "KimiLinearForCausalLM",
    "laguna": "LagunaForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "llama": "LlamaForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "longcat_flash": "LongcatFlashForCausalLM",
    "mamba": "MambaForCausalLM",
    "mamba2": "Mamba2ForCausalLM",
    "mimo": "MiMoForCausalLM",
    "mimo_v2_flash": "MiMoV2FlashForCausalLM",
    "minicpm": "MiniCPMForCausalLM",
    "minicpm3": "MiniCPM3ForCausalLM",
    "minimax": "MiniMaxForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
    "ministral": "MinistralForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "mistral4": "Mistral4ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "mpt": "MptForCausalLM",
    "nemotron": "NemotronForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "nemotron-nas": "DeciLMForCausalLM",
    "olmo": "OlmoForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "olmo_hybrid": "OlmoHybridForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "opt": "OPTForCausalLM",
    "paddleocr_vl_text": "Ernie4_5ForCausalLM",
    "pangu_ultra_moe": "PanguUltraMoEForCausalLM",
    "phi": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "phimoe": "PhimoeForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_vl_text": "Qwen2ForCausalLM",
    "qwen2_5_omni_text": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_omni_moe_text": "Qwen3MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_vl_text": "Qwen3ForCausalLM",
    "qwen3_vl_moe_text": "Qwen3MoeForCausalLM",
    "qwen4_exp_text": "Qwen4ExpForCausalLM",
    "sarvam_mla": "SarvamMLAForCausalLM",
    "sarvam_moe": "SarvamMoEForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "solar": "SolarForCausalLM",
    "stablelm": "StableLmForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "step3_text": "Step3TextForCausalLM",
    "step5": "Step5ForCausalLM",
    "t5": "T5ForConditionalGeneration",
    "whisper": "WhisperForConditionalGeneration",
    "zamba2": "Zamba2ForCausalLM",
}
"""The causal language model of each ``model_type``, for configs (nested ones above all) without ``architectures``."""

_SAME_AS: dict[str, str] = {
    "LLaMAForCausalLM": "LlamaForCausalLM",
    "RWForCausalLM": "FalconForCausalLM",
    "MPTForCausalLM": "MptForCausalLM",
    "IQuestCoderForCausalLM": "LlamaForCausalLM",
    "TeleChat3ForCausalLM": "LlamaForCausalLM",
}


_TABLES: tuple[tuple[str, str, str], ...] = (
    ("softmax.plain", "FAMILIES", "read_plain"),
    ("softmax.mixtures", "MIXTURES", "read_mixture"),
    ("latent.deepseek", "LATENT", "read_latent"),
)
"""Modules with a table of families: module, table, and the function that reads a config by a row of it."""


def find_reader(architecture: str) -> Reader | None:
    """The reader of ``architecture``, or None when it is not known."""
    name = _SAME_AS.get(architecture, architecture)
    for module_name, table, function in _TABLES:
        module = import_module(_FAMILIES + module_name)
        family = getattr(module, table).get(name)
        if family is not None:
            return partial(getattr(module, function), family=family)
    address = "wrappers.multimodal:read_multimodal" if name in _WRAPPERS else _READERS.get(name)
    if address is None:
        return None
    module_name, function = address.split(":")
    reader: Reader = getattr(import_module(_FAMILIES + module_name), function)
    return reader


def architecture_of_type(model_type: str) -> str | None:
    """The causal language model of a ``model_type``, for configs that name no architecture."""
    return _ARCHITECTURE_OF_TYPE.get(model_type)


def known_architectures() -> tuple[str, ...]:
    """All names that ``find_reader`` knows, sorted."""
    tables = [getattr(import_module(_FAMILIES + module), table) for module, table, _ in _TABLES]
    return tuple(sorted({*_READERS, *_SAME_AS, *_WRAPPERS, *(name for table in tables for name in table)}))
