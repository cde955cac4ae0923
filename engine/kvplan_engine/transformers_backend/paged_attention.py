"""The attention of a class of transformers, over the pool: all sequences of a step in one forward pass.

transformers calls a registered function with each layer's queries, keys and values. Ours writes keys and values into
the pool and attends with the engine's kernels, which know whose token each row is. All else treats rows alike.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from kvplan_engine.attention.backend import (
    AttentionBackend,
    AttentionInputs,
    AttentionOptions,
    refuse_missing_options,
)
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.errors import EngineError
from kvplan_engine.models.kv_pool import KvPool
from kvplan_engine.models.step_batch import StepBatch

NAME = "kvplan_paged"
_HOOK = "kvplan_attention"
_UNKNOWN_OPTIONS = ("position_bias", "head_mask")


class PagedAttention:
    """Attention of every layer of one model, for one step at a time."""

    def __init__(self, model: ModelDescription, backend: AttentionBackend) -> None:
        self._backend = backend
        # Also layers that read what another one keeps, which ``attention_of`` leaves out.
        self._attention = [
            next((mixer for mixer in layer.mixers if isinstance(mixer, Attention)), None) for layer in model.layers
        ]
        self._options: dict[int, AttentionOptions] = {}
        self._num_layers = sum(attention is not None for attention in self._attention)
        self._num_calls = 0
        self._batch: StepBatch | None = None
        self._kv: KvPool | None = None

    def attach(self, module: torch.nn.Module) -> None:
        """Let every part of ``module`` find this object when transformers calls the registered function."""
        _register()
        for part in module.modules():
            part.__dict__[_HOOK] = self

    def begin(self, batch: StepBatch, kv: KvPool) -> None:
        """Calls until ``end`` belong to this step."""
        self._batch, self._kv, self._num_calls = batch, kv, 0

    def end(self) -> None:
        """EngineError unless every layer has attended exactly once: others would have seen another's tokens."""
        self._batch = self._kv = None
        if self._num_calls != self._num_layers:
            raise EngineError(
                f"{self._num_calls} of {self._num_layers} attention layers asked the engine for their attention."
            )

    def __call__(
        self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        """[1, T, hq, d]: attention of query [1, hq, T, d] over the pool, into which key and value [1, hkv, T, d] go."""
        assert self._batch is not None and self._kv is not None, "transformers ran outside of a step"
        self._num_calls += 1
        index = int(getattr(module, "layer_idx", -1))
        attention = self._attention[index] if 0 <= index < len(self._attention) else None
        if attention is None:
            raise EngineError(f"a part of transformers attends as layer {index}, which keeps no keys and values.")
        cache = self._kv.of(index)
        metadata = self._batch.attention[cache.tables]
        rows, keys, values = (heads[0].transpose(0, 1).contiguous() for heads in (query, key, value))
        _check_heads(index, attention, rows, keys, values)
        if attention.reads_layer is None:
            self._backend.write_kv(keys, values, cache, metadata.slots)
        if index not in self._options:
            self._options[index] = self._options_of(index, attention, query, options)
        out = torch.empty_like(rows)
        self._backend.attend(AttentionInputs(rows, cache, metadata, out, self._options[index]))
        return out[None]

    def _options_of(
        self, index: int, attention: Attention, query: torch.Tensor, options: dict[str, Any]
    ) -> AttentionOptions:
        unknown = [name for name in _UNKNOWN_OPTIONS if options.get(name) is not None]
        if unknown:
            raise EngineError(f"the engine's attention has no {unknown[0]}.")
        window = options.get("sliding_window")
        if window != attention.kept.tokens:
            raise EngineError(
                f"layer {index} sees {window or 'all'} tokens in transformers, and {attention.kept.tokens or 'all'} as "
                "the engine describes it."
            )
        scale, sinks = options.get("scaling"), options.get("s_aux")
        made = AttentionOptions(
            query.shape[-1] ** -0.5 if scale is None else float(scale),
            window=window,
            softcap=options.get("softcap"),
            sinks=None if sinks is None else sinks.detach().float().contiguous(),
        )
        refuse_missing_options(self._backend, made)
        return made


def _check_heads(index: int, attention: Attention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """EngineError where transformers has other heads than the description, from which the pool is made."""
    wanted = (
        (attention.num_heads, attention.key_size),
        (attention.num_kv_heads, attention.key_size),
        (attention.num_kv_heads, attention.value_size),
    )
    found = tuple(tuple(heads.shape[1:]) for heads in (query, key, value))
    if found != wanted:
        raise EngineError(f"layer {index} has heads of {found} in transformers, and of {wanted} as it is described.")


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls."""
    attention: PagedAttention = module.__dict__[_HOOK]
    return attention(module, query, key, value, **options), None


@cache
def _register() -> None:
    """transformers has one table of attention functions for the process. A name without a mask function gets none."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attend)
