"""What a user has to know about a checkpoint's formats: what vLLM would refuse, and what the config leaves open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kvplan.catalog.quantization.formats import ModuleRules, QuantizationSpec
from kvplan.catalog.quantization.matching import Names
from kvplan.catalog.quantization.modules import Module, make_module
from kvplan.catalog.tensors import Tensor

_TOWERS: Final = (
    *("visual.blocks.0.attn.qkv", "vision_tower.encoder.layers.0.self_attn.q_proj", "vision_model.layers.0.fc1"),
    *("vision_encoder.layers.0.fc1", "audio_tower.layers.0.fc1", "embed_vision.embedding_projection"),
)
"""A name in each kind of tower."""


def quantization_notes(
    quantization: QuantizationSpec | None,
    layers: Sequence[tuple[Tensor, ...]],
    outside: Iterable[Tensor],
    *,
    has_towers: bool,
) -> Iterator[str]:
    """Yield one sentence for everything that is open. ``layers``: the tensors of each."""
    rules = None if quantization is None else quantization.rules
    if quantization is None or rules is None:
        return
    modules = list(_modules(rules, layers))
    yield from _refused(rules, modules)
    yield from _only_like_a_name(quantization, rules, modules)
    if has_towers and rules.of(make_module("linear", (*_TOWERS, *(f"model.{name}" for name in _TOWERS)))) is not None:
        yield "The quantization_config exempts no module of the tower, which is sized in 16 bits all the same."
    if quantization.quant_method.startswith("modelopt") and any(_is_packed_head(rules, tensor) for tensor in outside):
        yield "The head counts as quantized: no entry of the list exempts it, and vLLM 0.33 loads it so."


def _modules(rules: ModuleRules, layers: Sequence[tuple[Tensor, ...]]) -> Iterator[tuple[Module, Tensor, int]]:
    for index, tensors in enumerate(layers):
        for tensor in tensors:
            module = rules.naming.of(tensor, index)
            if module is not None:
                yield module, tensor, index


def _refused(rules: ModuleRules, modules: Iterable[tuple[Module, Tensor, int]]) -> Iterator[str]:
    """The first merged module whose parts are stored differently."""
    first: dict[str, QuantizationSpec | None] = {}
    for module, tensor, layer in modules:
        if not module.merged:
            continue
        whole, stored = module.merged[0], rules.of_tensor(tensor, layer)
        if first.setdefault(whole, stored) != stored:
            yield f"vLLM 0.33 refuses this checkpoint: it merges the parts of {whole}, whose formats differ."
            return


def _only_like_a_name(
    quantization: QuantizationSpec, rules: ModuleRules, modules: Sequence[tuple[Module, Tensor, int]]
) -> Iterator[str]:
    """Entries of a list of whole names that are only parts of some: they exempt nothing."""
    if quantization.quant_method not in ("fp8", "fbgemm_fp8", "deepseek_v4_fp8"):
        return
    listed = [rule.names for rule in rules.rules if rule.stored is None and rule.names is not None]
    entries = next((names.entries for names in listed if names.mode == "equal"), ())
    partial = [entry for entry in entries if "layers." not in entry and "experts" not in entry]
    found = [entry for entry in partial if any(Names("path", (entry,)).has(module) for module, _, _ in modules)]
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        yield f"'{found[0]}'{more} in the quantization_config: no effect, as vLLM 0.33 compares whole names here."


def _is_packed_head(rules: ModuleRules, tensor: Tensor) -> bool:
    """Whether the head is quantized by a rule that names nothing."""
    module = rules.naming.of(tensor, None) if tensor.role == "head" else None
    rule = None if module is None else next((rule for rule in rules.rules if rule.has(module)), None)
    return rule is not None and rule.stored is not None and rule.names is None
