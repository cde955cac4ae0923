"""What the host costs a step: launching its kernels, and the engine's own work between steps.

    seconds = max(the GPU's, launches) + per step + per sequence x sequences
    launches = per layer x layers + per mixture x mixtures

Tables of kernels know neither. Launches hide behind the GPU as long as they are shorter; a step that was captured whole
has none, and no engine captures steps of more rows than its largest graph has. Work between steps hides where an engine
schedules ahead. All constants were measured by others or are said to be assumed, none was measured on the
results that ``tools/score_published_speeds.py`` scores:

    launched one by one   0.40 ms a layer (GPT-2 on H200: 208 tokens/s, vLLM and SGLang alike, without graphs,
                          deepspeedai/DeepSpeed pull request 8352), 0.80 ms (Qwen2.5-Omni-7B on A800: 22 ms with 28
                          layers, vllm-project/vllm-omni issue 7960); their geometric middle
    captured in pieces    0.19 ms a layer (Qwen2.5-1.5B: 5.42 ms with 28 layers, vllm-project/vllm pull request 20059);
                          of a mixture's layer 0.27 ms (Qwen3-30B-A3B on H100: 13.2 ms with 48 layers, pull request
                          23151) and 0.37 ms (in fp8: 10 requests of 128 tokens in 2.46 s, pull request 25444, which
                          captures whole steps by default from 0.11 on); their geometric middle
    latent attention      launched one by one 0.29 ms a layer more: a prompt of one token to DeepSeek-V3 takes SGLang
                          82.6 ms, and 23.1 captured (pull request 12160 of sgl-project/sglang), which is 0.41 ms more
                          for each of 61 layers than the above; a token of DeepSeek-Coder-V2-Lite 31 ms where nothing
                          captures it (A100 and L20, issue 1369 there), 0.20 for each of 27; their geometric middle.
                          Captured in pieces or compiled: not known
    gated delta           SGLang runs such a layer's own part of a prompt kernel by kernel, captured in pieces or not
                          (pull request 17613 of sgl-project/sglang). 32 runs with prompts of 1,024 tokens to
                          Qwen3.5-397B and 4 or 8 users (aiconfigurator-core 0.12.0, silicon_sample.csv) have the TTFT
                          predicted, in the median, with 4.6 ms more a layer on B200, 5.0 on H200 and 1.8 on B300
                          (SGLang 0.5.9), and 1.4 on B300 with 0.5.10; their geometric middle. Of vLLM's not known
    compiled, uncaptured  what vLLM's V1 engine does beyond its largest graph: assumed to lie between both, at their
                          geometric middle
                          --enforce-eager compiles and captures nothing, so that each step is launched one by one: the
                          second of these two measurements is such a server, and a smaller one of it on H200 decodes
                          4.3 times as fast without it
    largest graph         512 rows in V1, 1,024 on Blackwell's data-centre GPUs from 0.28 on (_set_cudagraph_sizes,
                          vllm/config/vllm.py), 256 in the first engine (model_runner.py), SGLang's by memory and ranks
                          (catalog/releases/sglang.py)
    SGLang's prompts      launched one by one; from 0.5.10 on captured in pieces, but for the models and layouts that
                          ``sglang_share.captures_prompts`` names
    vLLM's V1 engine      without scheduling ahead 0.45 ms a step (the same pull request, 5.83 and 6.03 requests/s) and
                          0.017 ms a sequence: what asynchronous scheduling saves of a token. Qwen3-1.7B, 800 at once:
                          75.7 us a token without and 58.9 with it, 16.2 without the step's share (pull request 26866,
                          just after 0.11.0); gpt-oss-20b, 1,000 chats with 0.11.0 (gpustack/gpustack,
                          docs/performance-lab/gpt-oss-20b): 42.0 and 37.5 s on an A100, which is 20.6 us where 256 run,
                          24.8 and 21.4 s on an H100, 15.8 us; their geometric middle. The first and the last may be of
                          servers that were busy with the rest, and more is hidden then
    TensorRT-LLM          its PyTorch backend, the default from 1.0 on, captures steps that decode only, before 1.0
                          only where it is asked to (PyTorchConfig.use_cuda_graph, tensorrt_llm/_torch/pyexecutor/
                          config.py; pull request 5480 of NVIDIA/TensorRT-LLM); others are launched one by one, as
                          slowly as those of other engines. It pads no batch unless cuda_graph_config has
                          enable_padding, and has graphs of 1 to 32, 64 and 128 rows (CudaGraphConfig in
                          tensorrt_llm/llmapi/llm_args.py): steps of 33 or of 200 rows have none. Engines that were
                          built run without Python
    its first engine      0.02 ms a sequence and step (Qwen2.5-1.5B on H100: TPOT 21 to 23 ms over 1,000 chats at once,
                          pull request 10635, played), before 0.6 another 0.10 ms for outputs (3.4 ms of 32, issue
                          6913). 1.3 ms a step: what a token of single requests to Qwen2.5 of 0.5, 1.5, 3, 7 and 14 B
                          takes beside the kernels on an A100 with 0.6.3 is 1.3, 2.0, 1.9, 1.1 and 0.6 ms (3.2, 5.5,
                          7.8, 11.9 and 21.6 ms, docs/source/benchmark/speed_benchmark.rst of QwenLM/Qwen2.5 at
                          a912d23), 1.3 in the median. In its callers' event loop (AsyncLLMEngine) another 0.045 ms
                          a sequence: 1,000 chats of ShareGPT on H100, 25.2 and 33.3 requests/s in a process of its
                          own, which servers have from 0.6.2 on (pull request 8157), are 49 us a token, and 15.5 and 18
                          on A100 without a server (7957) 45, of which 6 are another process's too (34.8 and 33.3 in
                          8092 and 8157). It captures no step whose contexts are longer than 8,192
                          (max_seq_len_to_capture)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.releases.sglang import sglang_release
from kvplan.catalog.releases.trtllm import trtllm_release
from kvplan.catalog.releases.vllm import VllmRelease

_EAGER_LAYER: Final = 0.57e-3
_EAGER_LATENT: Final = 0.29e-3
_GATED_DELTA: Final = 2.8e-3
_PIECEWISE_LAYER: Final = 0.19e-3
_PIECEWISE_MIXTURE: Final = 0.13e-3
_V1_STEP: Final = 0.45e-3
_V1_SEQUENCE: Final = 0.017e-3
_V0_STEP: Final = 1.3e-3
_V0_SEQUENCE: Final = 0.02e-3
_V0_OUTPUT: Final = 0.10e-3
_V0_EVENT_LOOP: Final = 0.045e-3
_V0_LONGEST_CAPTURED: Final = 8192
_V0_LARGEST_CAPTURED: Final = 256
_V1_LARGEST_CAPTURED: Final = 512
_TRTLLM_CAPTURED: Final = frozenset((*range(1, 33), 64, 128))
_V1_LARGEST_ON_BLACKWELL: Final = 1024
_DATA_CENTRE_BLACKWELL: Final = "10"


@dataclass(frozen=True, slots=True)
class Launches:
    """Seconds that the host needs for one layer, more for one that is a mixture, and for one with latent attention or a
    gated delta rule."""

    layer_seconds: float = 0.0
    mixture_seconds: float = 0.0
    latent_seconds: float = 0.0
    delta_seconds: float = 0.0

    def with_mixers(self, latent_share: float, delta_share: float = 0.0) -> Launches:
        """Return the same for a model with latent attention, or a gated delta rule, in such shares of its layers."""
        more = latent_share * self.latent_seconds + delta_share * self.delta_seconds
        return replace(self, layer_seconds=self.layer_seconds + more, latent_seconds=0.0, delta_seconds=0.0)

    def seconds(self, num_layers: float, num_mixtures: int) -> float:
        """Return the seconds of a step with so many layers, of which so many are mixtures."""
        return self.layer_seconds * num_layers + self.mixture_seconds * num_mixtures

    def times(self, factor: float) -> Launches:
        """Return those that take ``factor`` times as long."""
        return Launches(*(factor * getattr(self, each.name) for each in fields(self)))


CAPTURED: Final = Launches()
_EAGER: Final = Launches(_EAGER_LAYER, _EAGER_LAYER * _PIECEWISE_MIXTURE / _PIECEWISE_LAYER, _EAGER_LATENT)
_PIECEWISE: Final = Launches(_PIECEWISE_LAYER, _PIECEWISE_MIXTURE)
_COMPILED_LAYER: Final = math.sqrt(_EAGER_LAYER * _PIECEWISE_LAYER)
_COMPILED: Final = Launches(_COMPILED_LAYER, _COMPILED_LAYER * _PIECEWISE_MIXTURE / _PIECEWISE_LAYER)


@dataclass(frozen=True, slots=True)
class HostWork:
    """The host's work of an engine's release.

    decoding, reading: launches of steps that decode only, and of others. beyond: of decode steps whose contexts are
    longer than ``longest_captured`` tokens, and of steps with more rows than ``largest_captured``. step_seconds,
    sequence_seconds: between two steps, hidden by nothing. reading_beyond: as beyond, of steps that read prompts, where
    that is something else. captured_rows: the only numbers of rows that have a graph, where none are padded.
    """

    decoding: Launches = CAPTURED
    reading: Launches = CAPTURED
    beyond: Launches = CAPTURED
    longest_captured: float = math.inf
    largest_captured: float = math.inf
    step_seconds: float = 0.0
    sequence_seconds: float = 0.0
    reading_beyond: Launches | None = None
    captured_rows: frozenset[int] | None = None

    def with_mixers(self, latent_share: float, delta_share: float = 0.0) -> HostWork:
        """Return the same for a model with latent attention, or a gated delta rule, in such shares of its layers."""
        return self._with_launches(lambda launches: launches.with_mixers(latent_share, delta_share))

    def times(self, factor: float) -> HostWork:
        """Return that of a host that needs ``factor`` times as long for all of it."""
        slower = self._with_launches(lambda launches: launches.times(factor))
        step, sequence = factor * self.step_seconds, factor * self.sequence_seconds
        return replace(slower, step_seconds=step, sequence_seconds=sequence)

    def _with_launches(self, changed: Callable[[Launches], Launches]) -> HostWork:
        """With all kinds of launches ``changed``."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        found: dict[str, Any] = {name: changed(value) for name, value in values.items() if isinstance(value, Launches)}
        return replace(self, **found)

    def decode_seconds(
        self,
        gpu_seconds: float,
        num_layers: float,
        num_mixtures: int,
        num_sequences: float,
        context_tokens: float,
        rows_per_sequence: int = 1,
    ) -> float:
        """A step in which each sequence has ``rows_per_sequence`` tokens. ``context_tokens``: of one on average."""
        step = self.decoding_step(num_layers, num_mixtures, num_sequences, rows_per_sequence)
        return step(gpu_seconds, context_tokens)

    def decoding_step(
        self, num_layers: float, num_mixtures: int, num_sequences: float, rows_per_sequence: int = 1
    ) -> Callable[[float, float], float]:
        """Return the seconds of such a step by (gpu_seconds, context_tokens), as for ``decode_seconds``."""
        captured = self.decoding if self._has_graph(rows_per_sequence * num_sequences) else self.beyond
        within, beyond = captured.seconds(num_layers, num_mixtures), self.beyond.seconds(num_layers, num_mixtures)
        longest, of_step = self.longest_captured, self.step_seconds
        of_sequences = self.sequence_seconds * num_sequences

        def seconds(gpu_seconds: float, context_tokens: float) -> float:
            launching = within if context_tokens <= longest else beyond
            return max(gpu_seconds, launching) + of_step + of_sequences

        return seconds

    def _has_graph(self, num_rows: float) -> bool:
        if self.captured_rows is not None:
            return math.ceil(num_rows) in self.captured_rows
        return num_rows <= self.largest_captured

    def mixed_seconds(
        self, gpu_seconds: float, num_layers: float, num_mixtures: int, num_sequences: float, num_tokens: float
    ) -> float:
        """A step of ``num_tokens`` that reads prompts, alone or beside decoding sequences."""
        return self.mixed_step(num_layers, num_mixtures, num_sequences, num_tokens)(gpu_seconds)

    def mixed_step(
        self, num_layers: float, num_mixtures: int, num_sequences: float, num_tokens: float
    ) -> Callable[[float], float]:
        """Return the seconds of such a step by its gpu_seconds, as for ``mixed_seconds``."""
        beyond = self.beyond if self.reading_beyond is None else self.reading_beyond
        launches = self.reading if num_tokens <= self.largest_captured else beyond
        launching = launches.seconds(num_layers, num_mixtures)
        of_step, of_sequences = self.step_seconds, self.sequence_seconds * num_sequences
        return lambda gpu_seconds: max(gpu_seconds, launching) + of_step + of_sequences


NO_HOST: Final = HostWork()
"""TensorRT-LLM's built engines, whose runtime is not Python and works ahead, and speeds with the host in them."""


def launched_one_by_one(host: HostWork) -> HostWork:
    """``host`` where nothing is captured (--enforce-eager, --disable-cuda-graph)."""
    return replace(host, decoding=_EAGER, reading=_EAGER, beyond=_EAGER, reading_beyond=None)


def sglang_host(largest_captured: float, *, captures_prompts: bool = False) -> HostWork:
    """Decode steps are captured and scheduled ahead, prompts are launched one kernel after the other or in pieces.

    A prompt's chunk is captured however many tokens it has.
    """
    reading = replace(_PIECEWISE if captures_prompts else _EAGER, delta_seconds=_GATED_DELTA)
    return HostWork(reading=reading, reading_beyond=reading, beyond=_EAGER, largest_captured=largest_captured)


IN_PROCESS: Final = "in-process"
"""The backend of an EngineChoice for vLLM in a caller's own event loop, without a server."""


def vllm_host(release: VllmRelease, *, in_process: bool = False, compute_capability: str = "") -> HostWork:
    """Host work by release and GPU. ``in_process``: without a server; the V1 engine has its own process either way."""
    if not release.v1:
        outputs = 0.0 if release.async_outputs else _V0_OUTPUT
        streams = _V0_EVENT_LOOP if in_process or not release.own_server_process else 0.0
        return HostWork(
            CAPTURED,
            _EAGER,
            _EAGER,
            _V0_LONGEST_CAPTURED,
            _V0_LARGEST_CAPTURED,
            _V0_STEP,
            _V0_SEQUENCE + outputs + streams,
        )
    is_huge = release.huge_graph_sizes and compute_capability.split(".")[0] == _DATA_CENTRE_BLACKWELL
    return HostWork(
        CAPTURED if release.captures_whole_steps else _PIECEWISE,
        _PIECEWISE,
        _COMPILED,
        largest_captured=_V1_LARGEST_ON_BLACKWELL if is_huge else _V1_LARGEST_CAPTURED,
        step_seconds=0.0 if release.schedules_ahead else _V1_STEP,
        sequence_seconds=0.0 if release.schedules_ahead else _V1_SEQUENCE,
    )


def trtllm_host(engine: EngineChoice) -> HostWork:
    """Return the host's work by release and backend."""
    is_captured = trtllm_release(engine.version).pytorch_by_default
    is_python = engine.backend == "pytorch" or (not engine.backend and is_captured)
    if not is_python:
        return NO_HOST
    if not is_captured:
        return HostWork(decoding=_EAGER, reading=_EAGER, beyond=_EAGER)
    return HostWork(reading=_EAGER, beyond=_EAGER, captured_rows=_TRTLLM_CAPTURED)


def host_work(
    engine: EngineChoice,
    release: VllmRelease,
    gpu: GpuProfile,
    tensor_parallel_size: int,
    *,
    is_eager: bool = False,
    captures_prompts: bool = False,
) -> HostWork:
    """Return the host's work of an engine as settings call it; ``release`` counts for vLLM alone.

    ``is_eager``: nothing is captured. ``captures_prompts``: as SGLang does of some models.
    """
    host = _usual_host(engine, release, gpu, tensor_parallel_size, captures_prompts)
    return launched_one_by_one(host) if is_eager and host is not NO_HOST else host


def _usual_host(
    engine: EngineChoice, release: VllmRelease, gpu: GpuProfile, tensor_parallel_size: int, captures_prompts: bool
) -> HostWork:
    if engine.name == "sglang":
        largest = sglang_release(engine.version).largest_graph_rows(gpu.memory_bytes, tensor_parallel_size)
        return sglang_host(largest, captures_prompts=captures_prompts)
    if engine.name == "trtllm":
        return trtllm_host(engine)
    if engine.name == "vllm":
        in_process = engine.backend == IN_PROCESS
        return vllm_host(release, in_process=in_process, compute_capability=gpu.compute_capability)
    return NO_HOST
