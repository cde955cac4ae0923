"""Language models inside of other configs.

multimodal  vision and audio wrappers: which family reads the text, with what, and what a nested config may leave out
own_text    models that see whose text is of no other family
"""

from collections.abc import Mapping
from functools import partial

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.names import architecture_names
from kvplan_engine.checkpoints.families.wrappers.multimodal import Find, read_multimodal
from kvplan_engine.checkpoints.families.wrappers.own_text import OWN_TEXT

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


def wrapper_families(find: Find, types: Mapping[str, str]) -> tuple[Family, ...]:
    """A described family for each wrapper. find, types: of the families inside; they are asked when one is read."""
    inside = (
        Family(
            (row.architecture,),
            partial(read_multimodal, find=find, types=types, inner=row.inner, tied=row.ties),
        )
        for row in architecture_names()
        if row.is_wrapper
    )
    return (*inside, *OWN_TEXT)
