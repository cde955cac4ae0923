"""The families of models that the engine knows: tables and readers in rooms by kind, registered in ``FAMILIES``.

    family   what a family has to say: architectures, config.json, tensor names, GGUF
    multi_token  layers for multi-token prediction, a row for each family that the engine runs them of
    names    what a config calls an architecture, and what a wrapper holds: profiles/architectures.json
    dense/   attention and an MLP in every layer
    mixtures/   attention in every layer, experts in some or all of them
    windows/, latent/, states/, encoder, heterogeneous/   described: windows and chunks, MLA, states, cross attention
    wrappers/   language models inside of vision and audio models' configs; common: what several rooms share

``docs/how-to/add-a-model-family.md`` walks through adding one. Everything else asks ``family_of``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan_engine.checkpoints.families.dense import DENSE
from kvplan_engine.checkpoints.families.encoder import ENCODER
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.heterogeneous import HETEROGENEOUS
from kvplan_engine.checkpoints.families.latent import LATENT
from kvplan_engine.checkpoints.families.mixtures import MIXTURES
from kvplan_engine.checkpoints.families.multi_token import multi_token_names
from kvplan_engine.checkpoints.families.names import architecture_names
from kvplan_engine.checkpoints.families.states import STATES
from kvplan_engine.checkpoints.families.windows import WINDOWS
from kvplan_engine.checkpoints.families.wrappers import PREFIXES, RUN_AS_TEXT, SEE_AHEAD, wrapper_families
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.errors import EngineError

_LANGUAGE_MODELS: tuple[Family, ...] = (*DENSE, *MIXTURES, *WINDOWS, *LATENT, *STATES, *ENCODER, *HETEROGENEOUS)
_READ = frozenset(name for family in _LANGUAGE_MODELS for name in family.architectures)
_OF_TYPE = {kind: row.architecture for row in architecture_names() for kind in row.model_types}
_INNER = {kind: name for kind, name in _OF_TYPE.items() if name in _READ}
FAMILIES = (*_LANGUAGE_MODELS, *wrapper_families(lambda architecture: family_of(architecture), _INNER))

_BY_ARCHITECTURE = {architecture: family for family in FAMILIES for architecture in family.architectures}
KNOWN_ARCHITECTURES = tuple(_BY_ARCHITECTURE)
"""Those whose config.json the engine reads; it runs those of them that have names for their tensors."""
SUPPORTED_ARCHITECTURES = (
    *(name for name, family in _BY_ARCHITECTURE.items() if family.names is not None),
    *RUN_AS_TEXT,
)


def architecture_of(config: Mapping[str, Any]) -> str:
    """The architecture a config.json names, else that of its ``model_type``; "?" where it names neither."""
    named = config.get("architectures") or [_OF_TYPE.get(config.get("model_type", ""), "?")]
    return str(named[0])


def family_of(architecture: str) -> Family:
    """The family of ``architecture``; EngineError where the engine does not know it."""
    family = _BY_ARCHITECTURE.get(architecture)
    if family is None:
        raise EngineError(
            f"the engine does not run {architecture} yet.",
            hint=f"it knows {len(KNOWN_ARCHITECTURES)} architectures, which docs/models.md lists",
        )
    return family


def names_of(model: ModelDescription) -> tuple[TensorNames | None, tuple[str, ...]]:
    """The names of the model's tensors in safetensors files, and what may stand before them; None: it is not run.

    Inside of a vision or audio model these are the language model's.
    """
    if model.joined is not None:
        return multi_token_names(model, family_of(model.architecture).names), ("",)
    family = family_of(model.language_model or model.architecture)
    if model.language_model is None:
        return family.names, family.prefixes
    return None if model.architecture in SEE_AHEAD else family.names, PREFIXES
