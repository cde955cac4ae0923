"""What the host costs a step: launching its kernels, and the engine's own work between steps.

    seconds = max(the GPU's, launches) + per step + per sequence x sequences
    launches = per layer x layers + per mixture x mixtures

Tables of kernels know neither. Launches hide behind the GPU as long as they are shorter; a step that was captured whole
has none. Work between steps hides where an engine schedules ahead. All constants were measured by others, none on the
results that ``tools/score_published_speeds.py`` scores:

    launched one by one   0.40 ms a layer (GPT-2 on H200: 208 tokens/s, vLLM and SGLang alike, without graphs,
                          deepspeedai/DeepSpeed pull request 8352), 0.80 ms (Qwen2.5-Omni-7B on A800: 22 ms with 28
                          layers, vllm-project/vllm-omni issue 7960); their geometric middle
    captured in pieces    0.19 ms a layer (Qwen2.5-1.5B: 5.42 ms with 28 layers, vllm-project/vllm pull request 20059);
                          of a mixture's layer 0.27 ms (Qwen3-30B-A3B on H100: 13.2 ms with 48 layers, pull request
                          23151) and 0.37 ms (in fp8: 10 requests of 128 tokens in 2.46 s, pull request 25444, which
                          captures whole steps by default from 0.11 on); their geometric middle
    vLLM's V1 engine      0.45 ms a step without scheduling ahead (the same pull request, 5.83 and 6.03 requests/s)
    its first engine      0.02 ms a sequence and step (Qwen2.5-1.5B on H100: TPOT 21 to 23 ms over 1,000 chats at once,
                          pull request 10635, played), before 0.6 another 0.10 ms for outputs (3.4 ms of 32, issue
                          6913); 1 ms a step is assumed. It captures no step whose contexts are longer than 8,192
                          (max_seq_len_to_capture)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from kvplan.catalog.engines import VllmRelease

_EAGER_LAYER: Final = 0.57e-3
_PIECEWISE_LAYER: Final = 0.19e-3
_PIECEWISE_MIXTURE: Final = 0.13e-3
_V1_STEP: Final = 0.45e-3
_V0_STEP: Final = 1e-3
_V0_SEQUENCE: Final = 0.02e-3
_V0_OUTPUT: Final = 0.10e-3
_V0_LONGEST_CAPTURED: Final = 8192
_FULL_GRAPHS: Final = (0, 11, 0)
_ASYNC_OUTPUTS: Final = (0, 6, 0)


@dataclass(frozen=True, slots=True)
class Launches:
    """Seconds that the host needs for one layer, and more for one that is a mixture."""

    layer_seconds: float = 0.0
    mixture_seconds: float = 0.0


CAPTURED: Final = Launches()
_EAGER: Final = Launches(_EAGER_LAYER, _EAGER_LAYER * _PIECEWISE_MIXTURE / _PIECEWISE_LAYER)
_PIECEWISE: Final = Launches(_PIECEWISE_LAYER, _PIECEWISE_MIXTURE)


@dataclass(frozen=True, slots=True)
class HostWork:
    """Of an engine's release.

    decoding, reading: launches of steps that decode only, and of others. beyond: of decode steps whose contexts are
    longer than ``longest_captured`` tokens. step_seconds, sequence_seconds: between two steps, hidden by nothing.
    """

    decoding: Launches = CAPTURED
    reading: Launches = CAPTURED
    beyond: Launches = CAPTURED
    longest_captured: float = math.inf
    step_seconds: float = 0.0
    sequence_seconds: float = 0.0

    def decode_seconds(
        self, gpu_seconds: float, num_layers: int, num_mixtures: int, num_sequences: float, context_tokens: float
    ) -> float:
        """A step in which each sequence gets one token. ``context_tokens``: of one on average."""
        launches = self.decoding if context_tokens <= self.longest_captured else self.beyond
        return self._around(gpu_seconds, launches, num_layers, num_mixtures, num_sequences)

    def mixed_seconds(self, gpu_seconds: float, num_layers: int, num_mixtures: int, num_sequences: float) -> float:
        """A step that reads prompts, alone or beside decoding sequences."""
        return self._around(gpu_seconds, self.reading, num_layers, num_mixtures, num_sequences)

    def _around(
        self, gpu_seconds: float, launches: Launches, num_layers: int, num_mixtures: int, num_sequences: float
    ) -> float:
        launching = launches.layer_seconds * num_layers + launches.mixture_seconds * num_mixtures
        return max(gpu_seconds, launching) + self.step_seconds + self.sequence_seconds * num_sequences


NO_HOST: Final = HostWork()
"""TensorRT-LLM, whose runtime is not Python and works ahead; and speeds that were measured with the host in them."""
SGLANG_HOST: Final = HostWork(reading=_EAGER)
"""Decode steps are captured and scheduled ahead, prompts are launched one kernel after the other."""


def vllm_host(release: VllmRelease) -> HostWork:
    """By release."""
    if not release.v1:
        outputs = 0.0 if release.version >= _ASYNC_OUTPUTS else _V0_OUTPUT
        return HostWork(CAPTURED, _EAGER, _EAGER, _V0_LONGEST_CAPTURED, _V0_STEP, _V0_SEQUENCE + outputs)
    decoding = CAPTURED if release.version >= _FULL_GRAPHS else _PIECEWISE
    return HostWork(decoding, _PIECEWISE, decoding, step_seconds=0.0 if release.schedules_ahead else _V1_STEP)


def host_work(engine: str, release: VllmRelease) -> HostWork:
    """Of an engine as settings call it; ``release`` counts for vLLM alone."""
    if engine == "sglang":
        return SGLANG_HOST
    return vllm_host(release) if engine == "vllm" else NO_HOST
