"""kvplan's own engine: paged KV, block tables, continuous batching, on a CPU or a GPU.

The life of a request:

1. ``llm`` encodes the prompt; ``engine`` makes a Request (``requests``), which waits in the scheduler (``scheduling``).
2. Each ``Engine.step`` asks the scheduler for a StepPlan: running sequences first, then swapped, then waiting ones.
3. A sequence takes its blocks (``blocks``), sharing those whose tokens the prefix cache knows; ``offload`` brings back
   swapped or evicted KV, and takes away that of sequences preempted for want of blocks.
4. ``execution`` turns the plan into the tensors of a batch: token ids, positions, slots, block tables.
5. ``models`` runs the decoder over it with ``layers``, ``attention`` and ``kernels``; new K and V go into the pool.
6. ``sampling`` chooses a token for each sequence from its logits.
7. The output processor (``execution``) appends the tokens and ends sequences at a stop token, a stop string or length.
8. The blocks return to the pool, still to be found by their hashes, and ``llm``, which steps until all
   requests of a call are answered, returns the text.

Before all that ``checkpoints`` reads config and weights into a ``description``, and ``memory`` divides what ``device``
has, so that the pool's size is known before the first request. ``adapters`` are LoRA's corrections of single sequences;
``kernel_checks`` compares each kernel with torch at a first start on a device, ``doctor`` reports that, and
``measuring`` finds speeds; ``transformers_backend`` runs models in their class of transformers; ``server`` is `kvplan
serve`; ``speculation`` proposes tokens for a step to verify, where ``speculative_config`` asks for it. ``config``
declares every setting as a ``knob``; ``rank_account`` is what a rank takes where that is given, not counted; ``errors``
what a user can meet, ``paths`` where sources and caches lie, ``files`` reads what lies there, ``thread_settings`` the
threads of torch's libraries. Rooms only import rooms below them: the order is in pyproject.toml.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvplan_engine import thread_settings as thread_settings

if TYPE_CHECKING:
    from kvplan_engine.config import EngineConfig
    from kvplan_engine.engine import Engine
    from kvplan_engine.errors import ContextTooLong, EngineError, OutOfDeviceMemory
    from kvplan_engine.llm import LLM
    from kvplan_engine.requests.beams import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
    from kvplan_engine.requests.outputs import CompletionOutput, RequestMetrics, RequestOutput
    from kvplan_engine.requests.request import LoRARequest
    from kvplan_engine.requests.sampling_params import SamplingParams

__all__ = [
    "LLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "ContextTooLong",
    "Engine",
    "EngineConfig",
    "EngineError",
    "LoRARequest",
    "OutOfDeviceMemory",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
]

_HOMES = {
    "LLM": "llm",
    "BeamSearchOutput": "requests.beams",
    "BeamSearchParams": "requests.beams",
    "BeamSearchSequence": "requests.beams",
    "CompletionOutput": "requests.outputs",
    "ContextTooLong": "errors",
    "Engine": "engine",
    "EngineConfig": "config",
    "EngineError": "errors",
    "LoRARequest": "requests.request",
    "OutOfDeviceMemory": "errors",
    "RequestMetrics": "requests.outputs",
    "RequestOutput": "requests.outputs",
    "SamplingParams": "requests.sampling_params",
}


if not TYPE_CHECKING:  # so that a type checker still reports names that do not exist

    def __getattr__(name: str) -> Any:
        """Names of ``__all__`` are imported when they are first used: the server's API process never loads torch."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(f"kvplan_engine.{_HOMES[name]}"), name)
        return value
