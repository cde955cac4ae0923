"""Tables of rotary positions, which vLLM makes with the weights: how many positions, and how wide."""

from __future__ import annotations

from collections.abc import Mapping

from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.dtypes import element_bytes

_SECTIONED_POSITIONS = 4
_FLOAT32_BYTES = 4


def rope_table_bytes(spec: ModelSpec, dtype: str, max_model_len: int, qwen3_positions: int) -> int:
    """cos and sin of every position the config knows, in the model's dtype: one table for each kind of rope.

    Linear and dynamic scaling stretch the positions by their factor, YaRN the original ones by its own. Where time,
    height and width turn apart, vLLM makes the table for four times as many (MRotaryEmbedding), but not for Qwen 4, and
    for Qwen3-VL and Qwen 3.5 as the release does. DeepSeek V4's tables are in float32, one for each base, both
    stretched alike (vllm/models/deepseek_v4/common/rope.py, DeepseekV4ScalingRotaryEmbedding; 0.20.2 to 0.33.0).
    Gemma 4's table of full attention is as wide as a head, though a quarter turns (rotary_embedding/gemma4_rope.py).
    gpt-oss has its table in float32, too (vllm/model_executor/models/gpt_oss.py, OAIAttention; 0.25.1 to 0.33.0).
    """
    rope = spec.rope
    if rope is None:
        return 0
    if spec.is_compressed:
        ropes = (rope, *spec.further_ropes)
        longest = max(int((each.original_max_position_embeddings or 0) * (each.factor or 1)) for each in ropes)
        positions = longest or spec.max_position_embeddings or max_model_len
        return len(ropes) * positions * rope.rotary_size * _FLOAT32_BYTES
    known = spec.max_position_embeddings or max_model_len
    positions = known
    if rope.scaling in ("linear", "dynamic") and rope.factor:
        positions = int(known * rope.factor)
    elif rope.scaling == "yarn" and rope.factor and rope.original_max_position_embeddings:
        positions = int(rope.original_max_position_embeddings * rope.factor)
    if _turns_in_sections(spec.raw_config) and not spec.has_grouped_keys:
        positions *= qwen3_positions if _is_qwen3(spec.raw_config) else _SECTIONED_POSITIONS
    sizes = positions * rope.rotary_size + known * sum(each.rotary_size for each in spec.further_ropes)
    return sizes * (_FLOAT32_BYTES if spec.architecture == "GptOssForCausalLM" else element_bytes(dtype))


def _sections(config: Mapping[str, object]) -> list[Mapping[str, object]]:
    text = config.get("text_config")
    return [config, *([text] if isinstance(text, Mapping) else [])]


def _turns_in_sections(config: Mapping[str, object]) -> bool:
    """Whether positions are those of time, height and width, each in a section of its own (Qwen2-VL and later).

    Copies of Qwen3-VL's configs leave the sections out, which transformers' class then has by default.
    """
    if any(str(section.get("model_type")).startswith("qwen3_vl") for section in _sections(config)):
        return True
    ropes = [section.get(key) for section in _sections(config) for key in ("rope_parameters", "rope_scaling")]
    return any(isinstance(rope, Mapping) and "mrope_section" in rope for rope in ropes)


def _is_qwen3(config: Mapping[str, object]) -> bool:
    types = (str(section.get("model_type")) for section in _sections(config))
    return any(each.startswith(("qwen3_vl", "qwen3_5")) for each in types)
