"""A causal language model of transformers in two: what gives hidden states, and what makes logits of them.

So a step computes logits only for the rows that get a token, whichever class it is, and with all that the class does to
them (scales, caps). The head is the class's own forward pass with its layers left out.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from kvplan_engine.errors import EngineError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
