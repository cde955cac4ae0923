"""Language models inside of other configs.

multimodal  vision and audio wrappers: which family reads the text, with what
defaults    what a nested config may leave out
own_text    models that see whose text is of no other family
"""

from collections.abc import Mapping
from functools import partial

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.wrappers.multimodal import Find, Inner, read_multimodal
from kvplan_engine.checkpoints.families.wrappers.own_text import OWN_TEXT

TEXT_TYPES = {
    "gemma4_unified_text": "Gemma4ForCausalLM",
    "glm_ocr_text": "Glm4ForCausalLM",
    "granite4_vision_text": "GraniteForCausalLM",
    "glm4v_text": "Glm4ForCausalLM",
    "hunyuan_vl_text": "HunYuanDenseV1ForCausalLM",
    "unlimited_ocr_text": "DeepseekForCausalLM",
    "glm4v_moe_text": "Glm4MoeForCausalLM",
    "paddleocr_vl_text": "Ernie4_5ForCausalLM",
    "qwen2_vl_text": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "qwen2_5_omni_text": "Qwen2ForCausalLM",
    "qwen3_vl_text": "Qwen3ForCausalLM",
    "qwen3_vl_moe_text": "Qwen3MoeForCausalLM",
    "qwen3_omni_moe_text": "Qwen3MoeForCausalLM",
}
"""Types that only a wrapper's text has, and the language model of each."""

PREFIXES = ("model.language_model.", "language_model.", "model.text_model.", "thinker.", "llm.", "")
"""What may stand before the names of the language model, or for the "model." that they begin with."""

SEE_AHEAD = frozenset({"PaliGemmaForConditionalGeneration"})
"""Those whose prompts are not causal: each of their tokens sees all others. They are described and not run."""

RUN_AS_TEXT = (
    "Idefics3ForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
)
"""Those whose language models run, and are tested inside of them (tests/engine/equality/test_wrapper_equality.py)."""

_ALWAYS = {
    "Qwen2VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2ForCausalLM",
    "DotsOCRForCausalLM": "Qwen2ForCausalLM",
    "LlavaLlamaForCausalLM": "LlamaForCausalLM",
    "Phi3VForCausalLM": "Phi3ForCausalLM",
    "Step3p7ForConditionalGeneration": "Step3p7FlashForCausalLM",
    "MiniMaxM3SparseForConditionalGeneration": "MiniMaxM3ForCausalLM",
    "DeepseekVLV2ForCausalLM": "DeepseekV2ForCausalLM",
    "DeepseekOCRForCausalLM": "DeepseekV2ForCausalLM",
    "DeepseekOCR2ForCausalLM": "DeepseekV2ForCausalLM",
    "UnlimitedOCRForCausalLM": "DeepseekForCausalLM",
    "UnlimitedOcrForConditionalGeneration": "DeepseekForCausalLM",
    "HunYuanVLForConditionalGeneration": "HunYuanDenseV1ForCausalLM",
    "KeyeForConditionalGeneration": "Qwen3ForCausalLM",
    "KeyeVL1_5ForConditionalGeneration": "Qwen3ForCausalLM",
    "MiMoV2OmniForCausalLM": "MiMoV2FlashForCausalLM",
    "MoonshotKimiaForCausalLM": "Qwen2ForCausalLM",
    "OpenPanguVLForConditionalGeneration": "PanguEmbeddedForCausalLM",
    "Phi4ForCausalLMV": "Phi3ForCausalLM",
    "BailingMoeV3VLForConditionalGeneration": "BailingMoeV3ForCausalLM",
    "InternS2PreviewForConditionalGeneration": "Qwen3_5MoeForCausalLM",
    "IsaacForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen3ASRForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen3ASRRealtimeGeneration": "Qwen3ForCausalLM",
}
"""Those that always hold the same language model, whose config has its keys at the top or names no type."""

_OF_VERSION = {
    "MiniCPMV": {
        None: "LlamaForCausalLM",
        "2.5": "LlamaForCausalLM",
        "2.6": "Qwen2ForCausalLM",
        "4.0": "LlamaForCausalLM",
        "4.5": "Qwen3ForCausalLM",
    },
    "MiniCPMO": {None: "Qwen2ForCausalLM", "2.6": "Qwen2ForCausalLM", "4.5": "Qwen3ForCausalLM"},
}
"""Those whose ``version`` says which language model they hold."""

_TIED = (
    "GlmAsrForConditionalGeneration",
    "GraniteSpeechForConditionalGeneration",
    "GraniteSpeechPlusForConditionalGeneration",
    "HCXVisionV2ForCausalLM",
    "HunYuanVLForConditionalGeneration",
    "LightOnOCRForConditionalGeneration",
    "MossTranscribeDiarizeForConditionalGeneration",
)
"""Those whose class in transformers ties the embeddings where the config does not say."""

_TYPED = {
    "AudioFlamingo3ForConditionalGeneration": ("audioflamingo3",),
    "BeeForConditionalGeneration": (),
    "Cosmos3ForConditionalGeneration": ("cosmos3_omni",),
    "Eagle2_5_VLForConditionalGeneration": ("eagle_2_5_vl",),
    "FunAudioChatForConditionalGeneration": ("funaudiochat",),
    "Gemma4UnifiedForConditionalGeneration": ("gemma4_unified",),
    "GlmAsrForConditionalGeneration": ("glmasr",),
    "GlmOcrForConditionalGeneration": ("glm_ocr",),
    "Granite4VisionForConditionalGeneration": ("granite4_vision",),
    "GraniteSpeechForConditionalGeneration": ("granite_speech",),
    "GraniteSpeechPlusForConditionalGeneration": ("granite_speech_plus",),
    "HCXVisionV2ForCausalLM": ("hyperclovax_vision_v2",),
    "KananaVForConditionalGeneration": (),
    "LightOnOCRForConditionalGeneration": ("lighton_ocr",),
    "LlavaOnevision2ForConditionalGeneration": (),
    "MiDashengLMModel": ("midashenglm",),
    "MiniCPMO": ("minicpmo",),
    "MiniCPMOcrForConditionalGeneration": ("minicpm_ocr",),
    "MiniCPMV": ("minicpmv",),
    "MiniCPMV4_7ForConditionalGeneration": ("minicpmv4_7",),
    "MossTranscribeDiarizeForConditionalGeneration": ("moss_transcribe_diarize",),
    "NemotronH_Nano_Omni_Reasoning_V3": (),
    "NemotronH_Omni_Reasoning_V3": ("nemotron_h_omni",),
    "NemotronH_Super_Omni_Reasoning_V3": (),
    "MuseGlimmerForConditionalGeneration": ("muse_glimmer",),
    "OpenVLAForActionPrediction": ("openvla",),
    "OpenCUAForConditionalGeneration": ("opencua",),
    "Ovis": ("ovis",),
    "Ovis2_5": ("ovis2_5",),
    "Ovis2_6ForCausalLM": (),
    "Ovis2_6_MoeForCausalLM": (),
    "QianfanOCRForConditionalGeneration": ("qianfan_ocr",),
    "RForConditionalGeneration": (),
    "StepVLForConditionalGeneration": (),
    "AyaVisionForConditionalGeneration": ("aya_vision",),
    "Cohere2VisionForConditionalGeneration": ("cohere2_vision",),
    "Exaone4_5_ForConditionalGeneration": ("exaone4_5",),
    "Gemma3ForConditionalGeneration": ("gemma3",),
    "Gemma3nForConditionalGeneration": ("gemma3n",),
    "Gemma4ForConditionalGeneration": ("gemma4",),
    "Glm4vForConditionalGeneration": ("glm4v",),
    "Glm4vMoeForConditionalGeneration": ("glm4v_moe",),
    "Glm5NextForConditionalGeneration": ("glm5_next",),
    "H2OVLChatModel": ("h2ovl_chat",),
    "Idefics3ForConditionalGeneration": ("idefics3",),
    "InternS1ForConditionalGeneration": ("interns1",),
    "InternVLChatModel": ("internvl_chat",),
    "InternVLForConditionalGeneration": ("internvl",),
    "KimiK25ForConditionalGeneration": ("kimi_k25",),
    "KimiK3ForConditionalGeneration": ("kimi_k3",),
    "KimiVLForConditionalGeneration": ("kimi_vl",),
    "Lfm2VlForConditionalGeneration": ("lfm2_vl",),
    "Llama4ForConditionalGeneration": ("llama4",),
    "Llama_Nemotron_Nano_VL": ("Llama_Nemotron_Nano_VL",),
    "LlavaForConditionalGeneration": ("llava",),
    "LlavaNextForConditionalGeneration": ("llava_next",),
    "LlavaNextVideoForConditionalGeneration": ("llava_next_video",),
    "LlavaOnevisionForConditionalGeneration": ("llava_onevision",),
    "MiniCPMV4_6ForConditionalGeneration": ("minicpmv4_6",),
    "Mistral3ForConditionalGeneration": ("mistral3",),
    "NVLM_D": ("NVLM_D",),
    "NemotronH_Nano_VL_V2": ("NemotronH_Nano_VL_V2",),
    "PaddleOCRVLForConditionalGeneration": ("paddleocr_vl",),
    "PaliGemmaForConditionalGeneration": ("paligemma",),
    "PixtralForConditionalGeneration": (),
    "Qwen2AudioForConditionalGeneration": ("qwen2_audio",),
    "Qwen2_5OmniForConditionalGeneration": (),
    "Qwen2_5OmniModel": ("qwen2_5_omni",),
    "Qwen3OmniMoeForConditionalGeneration": ("qwen3_omni_moe",),
    "Qwen3VLForConditionalGeneration": ("qwen3_vl",),
    "Qwen3VLMoeForConditionalGeneration": ("qwen3_vl_moe",),
    "Qwen3_5ForConditionalGeneration": ("qwen3_5",),
    "Qwen3_5MoeForConditionalGeneration": ("qwen3_5_moe",),
    "Qwen4ExpForConditionalGeneration": ("qwen4_exp",),
    "SkyworkR1VChatModel": ("skywork_chat",),
    "SmolVLMForConditionalGeneration": ("smolvlm",),
    "Step3VLForConditionalGeneration": ("step3_vl",),
    "Step5ForConditionalGeneration": ("step5_vl",),
    "UltravoxModel": ("ultravox",),
    "VoxtralForConditionalGeneration": ("voxtral",),
    **dict.fromkeys(_ALWAYS, ()),
    "HunYuanVLForConditionalGeneration": ("hunyuan_vl",),
    "UnlimitedOCRForCausalLM": ("unlimited_ocr",),
}
"""Each wrapper, and the ``model_type`` of a config that names no architecture."""


def wrapper_families(find: Find, types: Mapping[str, str]) -> tuple[Family, ...]:
    """A described family for each wrapper. find, types: of the families inside; they are asked when one is read."""
    inside = (
        Family((name,), own, partial(read_multimodal, find=find, types=types, inner=_inner(name), tied=name in _TIED))
        for name, own in _TYPED.items()
    )
    return (*inside, *OWN_TEXT)


def _inner(name: str) -> Inner:
    of_version = _OF_VERSION.get(name)
    return _ALWAYS.get(name) if of_version is None else of_version
