"""The full names under which published lists and vLLM know each module of a model, and of which class it is.

    layer 3, self_attn.q_proj      model.layers.3.self_attn.q_proj          which vLLM merges into ...qkv_proj
    layer 3, mlp.experts.*.up_proj model.layers.3.mlp.experts.0.up_proj     which vLLM holds in ...mlp.experts

A wrapped language model has two spellings: that of the checkpoint (``model.language_model.layers.3.``) and that of
vLLM (``language_model.model.layers.3.``). One expert stands for all: they are stored alike or not served.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from kvplan.catalog.tensors import Tensor

ModuleKind = Literal["linear", "experts", "head", "embedding", "lookup"]

_PATH: Final = re.compile(
    r"^(?:(?:base_model|model|language_model|text_model|llm|thinker|transformer|backbone|decoder|gpt_neox|encoder(?=\.\w))\.)*"
    r"(?:(?:layers|h|blocks)\.(?=\d)|(?=(?:embed_tokens|embed_tokens_per_layer|lm_head)$))"
)


def plain_name(name: str) -> str:
    """``name`` without the path to the language model's layers."""
    found = _PATH.match(name)
    if found is not None and not ("encoder." in found.group() and not found.group().startswith("transformer.")):
        start = "layers." if found.group().endswith(("layers.", "h.", "blocks.")) else ""
        return start + name[found.end() :]
    return name


@dataclass(frozen=True, slots=True)
class Module:
    """One matrix of a checkpoint, or the routed experts' matrices of one name in a layer.

    ``names``: each spelling of its own full name. ``merged``: of the module that vLLM makes of it and its siblings.
    ``plain`` and ``plain_merged``: the same as ``plain_name`` has them.
    """

    kind: ModuleKind
    names: tuple[str, ...]
    merged: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    plain_merged: tuple[str, ...] = ()


def make_module(kind: ModuleKind, names: Iterable[str], merged: Iterable[str] = ()) -> Module:
    """Return the module with its plain names."""
    own, whole = tuple(dict.fromkeys(names)), tuple(dict.fromkeys(merged))
    plain = tuple(dict.fromkeys(map(plain_name, own)))
    return Module(kind, own, whole, plain, tuple(dict.fromkeys(map(plain_name, whole))))


_MERGED: Final[Mapping[str, str]] = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "q_a_proj": "fused_qkv_a_proj",
    "kv_a_proj_with_mqa": "fused_qkv_a_proj",
}
"""What vLLM loads several matrices into (packed_modules_mapping of its models)."""

_OTHERWISE: Final[Mapping[str, tuple[str, ...]]] = {
    "gate_proj": ("w1",),
    "up_proj": ("w3", "fc1"),
    "down_proj": ("w2", "fc2"),
    "in_proj_qkvz": ("in_proj_qkv",),
    "in_proj_ba": ("in_proj_b",),
    "g_proj": ("linear_gate",),
}
"""Other names of a matrix in some checkpoints; of those that are stored in parts, the first part's."""

_HEADS: Final = ("lm_head", "head", "output_layer", "embed_out")


@dataclass(frozen=True, slots=True)
class Family:
    """How checkpoints of a kind name things. ``roots``: what stands before a layer's number.

    ``renamed``: the start of a name within a layer as kvplan has it, and as these checkpoints do; ``both``: some of
    them do, others have kvplan's. ``gated``: whether MLPs have a gate, which vLLM merges with the way up.
    """

    roots: tuple[str, ...] = ("model.layers",)
    renamed: tuple[tuple[str, str], ...] = ()
    both: bool = False
    gated: bool = True


def _joint(attention: str, out: str, up: str, down: str, root: str = "transformer.h") -> Family:
    """Decoders of 2019 to 2023, whose query, key and value are one matrix ``attention``."""
    whole = tuple((f"self_attn.{part}_proj", attention) for part in "qkv")
    return Family((root,), (*whole, ("self_attn.o_proj", out), ("mlp.up_proj", up), ("mlp.down_proj", down)))


_PLAIN: Final = Family()
_WRAPPED: Final = ("model.language_model.layers", "language_model.model.layers")
_QUERY_KEY_VALUE: Final = (
    "self_attention.query_key_value",
    "self_attention.dense",
    "mlp.dense_h_to_4h",
    "mlp.dense_4h_to_h",
)
_GPT2: Final = _joint("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
_FAMILIES: Final[Mapping[str, Family]] = {
    "nemotron_h": Family(("backbone.layers", "model.layers"), (("self_attn", "mixer"),), gated=False),
    "nemotron": Family(gated=False),
    "arcee": Family(gated=False),
    "deepseek_v4": Family(("layers", "model.layers"), (("self_attn", "attn"), ("mlp", "ffn")), both=True),
    "llama4": Family(renamed=(("mlp", "feed_forward"),)),
    "lfm2": Family(renamed=(("self_attn.o_proj", "self_attn.out_proj"),)),
    "lfm2_moe": Family(renamed=(("self_attn.o_proj", "self_attn.out_proj"),)),
    "starcoder2": Family(renamed=(("mlp.up_proj", "mlp.c_fc"), ("mlp.down_proj", "mlp.c_proj"))),
    "mamba": Family(("backbone.layers",)),
    "mamba2": Family(("backbone.layers",)),
    "falcon_mamba": Family(("backbone.layers",)),
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gptj": Family(("transformer.h",), (("self_attn.o_proj", "attn.out_proj"), ("self_attn", "attn"),
                                        ("mlp.up_proj", "mlp.fc_in"), ("mlp.down_proj", "mlp.fc_out"))),
    "bloom": _joint(*_QUERY_KEY_VALUE),
    "falcon": _joint(*_QUERY_KEY_VALUE),
    "gpt_neox": _joint(
        "attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", root="gpt_neox.layers"
    ),
    "mpt": _joint("attn.Wqkv", "attn.out_proj", "ffn.up_proj", "ffn.down_proj", root="transformer.blocks"),
    "dbrx": _joint(
        "norm_attn_norm.attn.Wqkv", "norm_attn_norm.attn.out_proj", "ffn.up_proj", "ffn.down_proj",
        root="transformer.blocks",
    ),
    "opt": Family(("model.decoder.layers",)),
    "chatglm": Family(("transformer.encoder.layers",)),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModuleNaming:
    """The spellings of a model's modules."""

    family: Family = _PLAIN

    def of(self, tensor: Tensor, layer: int | None) -> Module | None:
        """Return the module of ``tensor`` in layer ``layer`` (None: outside the layers).

        None for what no format packs: routers, norms, biases, convolutions.
        """
        if tensor.role in ("head", "embedding") and layer is None:
            if tensor.role == "head":
                return make_module("head", (*_HEADS, "language_model.lm_head"))
            paths = ("model", "model.language_model", "language_model.model")
            return make_module("embedding", (f"{path}.{tensor.name}" for path in paths))
        if tensor.role not in ("linear", "expert", "lookup") or len(tensor.shape) < 2 or tensor.never_quantized:
            return None
        roots = self.family.roots
        starts = (root.rpartition("layers")[0] if layer is None else f"{root}.{layer}." for root in roots)
        return self._module(tensor, tuple(starts))

    def of_multi_token(self, tensor: Tensor, index: int, first: int) -> Module | None:
        """Return the module of ``tensor`` in multi-token layer ``index``, after ``first`` layers of the model.

        Published lists call such layers by the numbers after the last layer (``model.layers.61.``) or by a name
        (``mtp.``).
        """
        if tensor.role not in ("linear", "expert") or len(tensor.shape) < 2 or tensor.never_quantized:
            return None
        numbered = (f"{root}.{first + index}." for root in self.family.roots)
        return self._module(tensor, (*numbered, f"mtp.layers.{index}.", f"model.mtp.layers.{index}.", f"mtp.{index}."))

    def _module(self, tensor: Tensor, starts: tuple[str, ...]) -> Module:
        paths = self._paths(tensor.name)
        if tensor.role == "lookup":
            return make_module("lookup", (f"{start}{path}" for start in starts for path in paths))
        is_expert = tensor.role == "expert"
        inner = [(_of_expert if is_expert else _of_linear)(path) for path in paths]
        names = [f"{start}{name}" for start in starts for own, _ in inner for name in own]
        whole = [name for _, names in inner for name in names if self.family.gated or not name.endswith("gate_up_proj")]
        merged = [f"{start}{name}" for start in starts for name in whole]
        return make_module("experts" if is_expert else "linear", names, merged)

    def _paths(self, name: str) -> tuple[str, ...]:
        """The name within a layer, as it is and as this family has it."""
        found = [name]
        for ours, theirs in self.family.renamed:
            if name == ours or name.startswith(f"{ours}."):
                known = theirs + name[len(ours) :]
                found = [name, known] if self.family.both else [known]
                break
        return (
            *found,
            *(each.replace("shared_expert.", "shared_experts.") for each in found if "shared_expert." in each),
        )


def _of_linear(path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a matrix within its layer, and of what vLLM merges it into."""
    block, dot, last = path.rpartition(".")
    whole = _MERGED.get(last)
    return _spelled(path), () if whole is None else (f"{block}{dot}{whole}",)


def _of_expert(path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the first expert's matrix within its layer, and of the experts together."""
    names = tuple(name.replace(".*", ".0") for name in _spelled(path))
    return names, (path.partition(".*")[0] if ".*" in path else path.rpartition(".")[0],)


def _spelled(path: str) -> tuple[str, ...]:
    block, dot, last = path.rpartition(".")
    return tuple(f"{block}{dot}{name}" for name in (last, *_OTHERWISE.get(last, ())))


def naming_of(config: Mapping[str, Any]) -> ModuleNaming:
    """Return how the checkpoint with this config.json spells its modules."""
    inner = next((config[key] for key in ("text_config", "llm_config") if isinstance(config.get(key), Mapping)), None)
    types = [str(section.get("model_type")).removesuffix("_text") for section in (config, inner) if section is not None]
    known = next((_FAMILIES[each] for each in types if each in _FAMILIES), _PLAIN)
    if inner is None:
        return ModuleNaming(known)
    own = () if known.roots == _PLAIN.roots else known.roots
    return ModuleNaming(Family((*_WRAPPED, *own), known.renamed, known.both, known.gated))
