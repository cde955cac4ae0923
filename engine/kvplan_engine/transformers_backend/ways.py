"""Two ways to run a step in a class of transformers; which of them is right for a model is tried when it is loaded."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from kvplan_engine.attention.backend import AttentionBackend
from kvplan_engine.checkpoints.config_json import read_config_json
from kvplan_engine.checkpoints.families import architecture_of
from kvplan_engine.checkpoints.loaders import read_config
from kvplan_engine.config import EngineConfig
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.errors import EngineError
from kvplan_engine.models.known_parts import refuse_unknown_parts
from kvplan_engine.models.kv_pool import KvPool
from kvplan_engine.models.step_batch import StepBatch
from kvplan_engine.transformers_backend.paged_attention import NAME, PagedAttention

# A causal language model of transformers in two: what gives hidden states, and what makes logits of them.
#
# So a step computes logits only for the rows that get a token, whichever class it is, and with all that the class does
# to them (scales, caps). The head is the class's own forward pass with its layers left out.


class SplitModel:
    """``model`` with its layers (``layers``) and its head called apart. EngineError where they are not apart."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        decoder: torch.nn.Module = model.get_decoder()
        self.layers: Any = getattr(model, "model", model) if decoder is model else decoder
        if self.layers is model:
            raise EngineError(f"{type(model).__name__} of transformers does not keep its layers apart from its head.")
        named = inspect.signature(self.layers.forward).parameters
        self._takes_positions = "position_ids" in named
        self._cache_name = "cache_params" if "cache_params" in named else "past_key_values"
        self._output_class: type[Any] | None = None

    def hidden_states(
        self, token_ids: torch.Tensor, positions: torch.Tensor, cache: object | None = None
    ) -> torch.Tensor:
        """[T, H] of the tokens [T] int64 at ``positions`` [T]. cache: what came before them; None: nothing."""
        inputs: dict[str, Any] = {"input_ids": token_ids[None], "use_cache": cache is not None}
        if self._takes_positions:
            inputs["position_ids"] = positions[None]
        if cache is not None:
            inputs[self._cache_name] = cache
        with torch.no_grad():
            output = self.layers(**inputs)
        self._output_class = type(output)
        states: torch.Tensor = output[0]
        return states[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, vocab_size] of hidden states [n, H], as ``hidden_states`` gave them."""
        assert self._output_class is not None, "hidden states come first"
        given = self._output_class(last_hidden_state=hidden[None])
        token_ids = torch.zeros(1, hidden.shape[0], dtype=torch.int64, device=hidden.device)
        stand_in = _StandIn(self.layers, given)
        with torch.no_grad(), stand_in:
            logits: torch.Tensor = self.model(input_ids=token_ids, use_cache=False).logits
        if stand_in.num_calls != 1:
            raise EngineError(f"{type(self.model).__name__} of transformers does not call its layers as a whole.")
        return logits[0]

    def whole(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Logits [n, vocab_size] of a sequence [n] int64 by the class alone, with its own attention and no cache."""
        with torch.no_grad():
            logits: torch.Tensor = self.model(input_ids=token_ids[None], use_cache=False).logits
        return logits[0]


class _StandIn:
    """While it is entered, calling ``module`` gives ``output`` and computes nothing."""

    def __init__(self, module: torch.nn.Module, output: object) -> None:
        self._module, self._output = module, output
        self.num_calls = 0

    def _answer(self, *_: object, **__: object) -> object:
        self.num_calls += 1
        return self._output

    def __enter__(self) -> None:
        self._module.__dict__["forward"] = self._answer

    def __exit__(self, *_: object) -> None:
        del self._module.__dict__["forward"]


if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Way(Protocol):
    """How the tokens of a step go through the layers of a class. name: for messages."""

    name: str

    def hidden_states(self, batch: StepBatch, kv: KvPool) -> torch.Tensor:
        """[T, H] of the step's tokens; what they leave behind is in ``kv`` afterwards."""
        ...


class Together:
    """All sequences in one forward pass, with the engine's attention in the class's place."""

    name = "all sequences in one forward pass"

    def __init__(self, model: ModelDescription, split: SplitModel, backend: AttentionBackend) -> None:
        self._split, self._attention = split, PagedAttention(model, backend)
        self._attention.attach(split.layers)

    def hidden_states(self, batch: StepBatch, kv: KvPool) -> torch.Tensor:
        """See Way.hidden_states. EngineError where the class does not ask for the engine's attention in every layer."""
        self._split.model.set_attn_implementation(NAME)
        self._attention.begin(batch, kv)
        states = self._split.hidden_states(batch.token_ids, batch.positions)
        self._attention.end()
        return states


class OneByOne:
    """One sequence after the other, each with a cache of transformers that is filled from the pool.

    by_token: what follows a sequence's first piece goes token by token: some classes go on from a state only so.
    """

    def __init__(self, model: ModelDescription, split: SplitModel, attention: str, *, by_token: bool = False) -> None:
        from kvplan_engine.transformers_backend.pool_cache import PoolCaches  # imports transformers

        self.name = "one sequence after the other" + (", token by token" if by_token else "")
        self._split, self._implementation, self._by_token = split, attention, by_token
        self._caches = PoolCaches(model, split.model.config)

    def hidden_states(self, batch: StepBatch, kv: KvPool) -> torch.Tensor:
        """See Way.hidden_states."""
        self._split.model.set_attn_implementation(self._implementation)
        step = batch.states if batch.states is not None else next(iter(batch.attention.values()))
        starts = step.query_starts.tolist()
        return torch.cat([
            self._hidden_states_of(batch, kv, sequence, slice(first, end))
            for sequence, (first, end) in enumerate(pairwise(starts))
        ])  # fmt: skip

    def _hidden_states_of(self, batch: StepBatch, kv: KvPool, sequence: int, rows: slice) -> torch.Tensor:
        pieces = [rows]
        if self._by_token and int(batch.positions[rows.start]):
            pieces = [slice(row, row + 1) for row in range(rows.start, rows.stop)]
        states = []
        for piece in pieces:
            made = self._caches.cache_of(batch, kv, sequence, piece)
            states.append(self._split.hidden_states(batch.token_ids[piece], batch.positions[piece], made.cache))
            made.keep()
        return torch.cat(states)


def treats_rows_alike(model: ModelDescription) -> bool:
    """Whether everything but paged attention treats each token of ``model`` by itself and its position."""
    return all(_is_plain(mixer) for layer in model.distinct_layers for mixer in layer.mixers) and all(
        len(layer.mixers) == 1 for layer in model.distinct_layers
    )


def _is_plain(mixer: object) -> bool:
    if not isinstance(mixer, Attention) or mixer.kept.kind not in ("full", "window"):
        return False
    return not mixer.alibi and mixer.indexer is None and mixer.key_size == mixer.value_size


# Which implementation runs a model: the engine's own decoder, or the model's class of transformers.


OLDEST_VERSION = (5, 22)
"""Of transformers: the caches that the engine fills from its pool have had their form since."""

_OF_TEXT = ("ForCausalLM", "LMHeadModel")
"""How the names of classes end that take text alone."""


def chosen_implementation(config: EngineConfig, source: Any) -> str:
    """ "native" or "transformers": what ``config.model_impl`` asks for; auto is native wherever the decoder can.

    EngineError where the one asked for cannot, and for auto the decoder's own where neither can.
    """
    if config.model_impl == "native":
        return "native"
    model = read_config(source, whole_experts=config.enable_expert_parallel)
    if config.model_impl == "auto":
        try:
            refuse_unknown_parts(model)
            return "native"
        except EngineError as lacking:
            if config.needs_decoder is not None or not _has_class(model, source):
                raise lacking from None
    refuse_growing_angles(model)
    find_class(source)
    return "transformers"


def _has_class(model: ModelDescription, source: Any) -> bool:
    try:
        refuse_growing_angles(model)
        find_class(source)
    except EngineError:
        return False
    return True


def refuse_growing_angles(model: ModelDescription) -> None:
    """EngineError where transformers turns all positions of a forward pass by angles that its largest one decides.

    Keys in the pool would have been turned by others than those of later steps.
    """
    for layer in model.distinct_layers:
        for rope in filter(None, (getattr(mixer, "rope", None) for mixer in layer.mixers)):
            if rope.scaling.get("rope_type") == "longrope":
                raise EngineError(
                    "transformers turns a model with the RoPE scaling 'longrope' by other angles once it is longer.",
                    hint="model_impl 'native' has it, by the angles for max_model_len",
                )


def find_class(source: Any) -> type[PreTrainedModel]:
    """The class of transformers for ``source``: a config dict, a directory, a config.json or a profile's name.

    EngineError where there is none for text alone: code that comes with the model is never run.
    """
    import transformers

    if isinstance(source, (str, Path)) and Path(source).suffix == ".gguf":
        raise EngineError(
            "model_impl 'transformers' reads no GGUF files.", hint="give a directory with safetensors, or a config.json"
        )
    installed = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if installed < OLDEST_VERSION:
        raise EngineError(
            f"model_impl 'transformers' needs transformers {'.'.join(map(str, OLDEST_VERSION))} or newer, and "
            f"{transformers.__version__} is installed.",
            hint="pip install --upgrade transformers",
        )
    return _class_of(raw_config(source))


def raw_config(source: Any) -> dict[str, Any]:
    """The config.json of ``source`` as it stands."""
    raw: dict[str, Any] = source if isinstance(source, dict) else read_config_json(source)
    return raw


def _class_of(config: Mapping[str, Any]) -> type[PreTrainedModel]:
    import transformers

    architecture = architecture_of(config)
    found = getattr(transformers, architecture, None) if architecture.endswith(_OF_TEXT) else None
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise EngineError(
            f"transformers has no class {architecture} for text, and code that comes with a model is not run.",
            hint="model_impl 'native' or 'auto' takes the engine's own implementation where there is one",
        )
    return found
