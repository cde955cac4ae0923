"""How weights are stored: a format, and the rules that say which module of a checkpoint is in which."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal

from kvplan.catalog.quantization.matching import Names
from kvplan.catalog.quantization.modules import Module, ModuleKind, ModuleNaming
from kvplan.catalog.tensors import Tensor

MATRICES: tuple[ModuleKind, ...] = ("linear", "experts")
"""What every format may pack. Heads and embeddings only some do."""


@dataclass(frozen=True)
class Rule:
    """Modules of some kinds, those with listed names if there is a list (those without where ``is_not``).

    ``stored``: their format; None: as they were trained.
    """

    stored: QuantizationSpec | None
    names: Names | None = None
    kinds: tuple[ModuleKind, ...] = ("linear", "experts", "head", "embedding", "lookup")
    is_not: bool = False

    def has(self, module: Module) -> bool:
        """Whether this rule is about ``module``."""
        return module.kind in self.kinds and (self.names is None or self.names.has(module) is not self.is_not)


@dataclass(frozen=True)
class ModuleRules:
    """A checkpoint's rules in the order in which vLLM tries them: the first that is about a module decides.

    What no rule is about stays as it was trained.
    """

    rules: tuple[Rule, ...]
    naming: ModuleNaming = field(default_factory=ModuleNaming)

    def of(self, module: Module) -> QuantizationSpec | None:
        """Return the format of ``module``; None: unquantized."""
        return next((rule.stored for rule in self.rules if rule.has(module)), None)

    def of_tensor(self, tensor: Tensor, layer: int | None) -> QuantizationSpec | None:
        """Return the format of ``tensor`` of layer ``layer`` (None: outside the layers); None: unquantized."""
        place = layer if layer is None or self.tells_layers else 0
        key = (place, tensor.name, tensor.role, tensor.never_quantized, len(tensor.shape))
        if key not in self._known:
            module = self.naming.of(tensor, layer)
            self._known[key] = None if module is None else self.of(module)
        return self._known[key]

    def changed(self, change: Callable[[QuantizationSpec], QuantizationSpec]) -> ModuleRules:
        """Return the same rules with every format as ``change`` gives it."""
        rules = (rule if rule.stored is None else replace(rule, stored=change(rule.stored)) for rule in self.rules)
        return ModuleRules(tuple(rules), self.naming)

    @cached_property
    def tells_layers(self) -> bool:
        """Whether the same module may be stored differently in two layers."""
        return any(rule.names is not None and rule.names.tells_layers for rule in self.rules)

    @cached_property
    def _known(self) -> dict[tuple[object, ...], QuantizationSpec | None]:
        """What was asked: estimates ask the same for every GPU."""
        return {}

    @cached_property
    def formats(self) -> tuple[QuantizationSpec, ...]:
        """Every format that a rule names, in order."""
        return tuple(dict.fromkeys(rule.stored for rule in self.rules if rule.stored is not None))


@dataclass(frozen=True, slots=True)
class QuantizationSpec:
    """How the published weights are stored, as ``quantization_config`` says it.

    ``method`` is the loader's name (awq, gptq, fp8, compressed-tensors, modelopt, mxfp4, bitsandbytes, ...).
    ``bits`` per quantized weight; one scale per ``group_size`` weights of a row, or per ``block_shape`` tile, or per
    output channel / per tensor (``granularity``). ``rules`` decide for every module in which format it is; without
    rules every matrix of layers and experts is stored this way. Where there are several formats, the fields are those
    of the config's own one, of which others are exceptions, or of the first. ``kv_cache_dtype``: what the checkpoint
    was calibrated for; engines take it by themselves for some values of ``quant_method``, the config's own word for
    the format.
    """

    method: str
    bits: float
    granularity: Literal["group", "block", "channel", "tensor"]
    group_size: int | None = None
    block_shape: tuple[int, int] | None = None
    scale_dtype: str = "float16"
    has_zero_points: bool = False
    has_act_order: bool = False
    static_input_scale: bool = False
    kv_cache_dtype: str | None = None
    quant_method: str = ""
    rules: ModuleRules | None = None

    @property
    def formats(self) -> tuple[QuantizationSpec, ...]:
        """Every format that weights of the checkpoint may be in."""
        return (self,) if self.rules is None else self.rules.formats

    def of(self, tensor: Tensor, layer: int | None) -> QuantizationSpec | None:
        """Return the format of ``tensor`` of layer ``layer`` (None: outside the layers); None: unquantized."""
        if self.rules is None:
            is_matrix = tensor.role in ("linear", "expert") and len(tensor.shape) > 1
            return self if is_matrix and not tensor.never_quantized else None
        return self.rules.of_tensor(tensor, layer)

    def of_multi_token(self, tensor: Tensor, index: int, first: int) -> QuantizationSpec | None:
        """Return the same of a layer for multi-token prediction, the ``index``-th after ``first`` layers."""
        if self.rules is None:
            return self.of(tensor, first + index)
        module = self.rules.naming.of_multi_token(tensor, index, first)
        return None if module is None else self.rules.of(module)

    def stated_cache_dtype(self, methods: Collection[str]) -> str | None:
        """``kv_cache_dtype`` for an engine that takes it from checkpoints whose ``quant_method`` begins like these."""
        return self.kv_cache_dtype if self.quant_method.startswith(tuple(methods)) else None


def with_rules(
    *rules: Rule, naming: ModuleNaming | None = None, main: QuantizationSpec | None = None
) -> QuantizationSpec | None:
    """Return the format ``main`` with ``rules``; without it the first that they name, None where they name none."""
    made = ModuleRules(rules, naming or ModuleNaming())
    if not made.formats:
        return None
    return replace(main if main in made.formats else made.formats[0], rules=made)


MXFP4: Final = QuantizationSpec("mxfp4", 4, "group", group_size=32, scale_dtype="fp8")
"""One 8-bit exponent for 32 weights (OCP Microscaling, section 5)."""
MXFP8: Final = QuantizationSpec("mxfp8", 8, "group", group_size=32, scale_dtype="fp8")
MXFP6: Final = QuantizationSpec("mxfp6", 6, "group", group_size=32, scale_dtype="fp8")
NVFP4: Final = QuantizationSpec("nvfp4", 4, "group", group_size=16, scale_dtype="fp8")
"""One fp8 scale for 16 weights, and a float32 one for the matrix."""
NVFP4_STATIC: Final = QuantizationSpec("nvfp4", 4, "group", group_size=16, scale_dtype="fp8", static_input_scale=True)

ALGORITHMS: Final[dict[str, QuantizationSpec]] = {
    "FP8": QuantizationSpec("modelopt", 8, "tensor", scale_dtype="float32", static_input_scale=True),
    "FP8_PER_CHANNEL_PER_TOKEN": QuantizationSpec("modelopt", 8, "channel", scale_dtype="float32"),
    "FP8_PB_WO": QuantizationSpec("modelopt", 8, "block", block_shape=(128, 128), scale_dtype="float32"),
    "FP8_BLOCK_SCALES": QuantizationSpec("modelopt", 8, "block", block_shape=(128, 128), scale_dtype="float32"),
    "NVFP4": NVFP4_STATIC,
    "W4A16_NVFP4": NVFP4,
    "NVFP4_AWQ": NVFP4,
    "W4A8_NVFP4_FP8": NVFP4,
    "MXFP8": QuantizationSpec("modelopt", 8, "group", group_size=32, scale_dtype="fp8"),
    "MXFP4": MXFP4,
    "W4A16_AWQ": QuantizationSpec("modelopt", 4, "group", group_size=128),
    "W4A8_AWQ": QuantizationSpec("modelopt", 4, "group", group_size=128),
    "INT4_AWQ": QuantizationSpec("modelopt", 4, "group", group_size=128),
    "IQ2_XS": QuantizationSpec("modelopt", 74 * 8 / 256, "tensor", scale_dtype="fp8"),
    "IQ2_XXS": QuantizationSpec("modelopt", 66 * 8 / 256, "tensor", scale_dtype="fp8"),
    "Q8_0": QuantizationSpec("modelopt", 34 * 8 / 32, "tensor", scale_dtype="fp8"),
    "INT8_SQ": QuantizationSpec("modelopt", 8, "channel", scale_dtype="float32"),
    "W8A8_SQ_PER_CHANNEL": QuantizationSpec("modelopt", 8, "channel", scale_dtype="float32"),
}
"""ModelOpt's names of weight formats. vLLM 0.33 loads those of ``LINEAR_ALGOS``, ``_BLOCK_FP8_MOE_ALGOS`` and
``B12X_BLOCK_CODECS``, whose blocks hold their scales."""
