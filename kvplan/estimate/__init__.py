"""How much memory a model takes on a device under an engine, and how fast it is served there. No printing, no torch.

``make_estimate`` (answer) answers ``kvplan estimate``; the planner and the sweeps' forecasts call the rooms below it.
A question is a ModelSpec, devices, an engine and one ServingSettings; each engine fills in its own defaults once.

question             one question as people ask it: a GPU's own dtype, ranks of 8xh200, which GPUs have kernels; a
                     pasted command's settings, with what is given beside it
ways_to_fit          what lets a deployment fit that does not, each way tried
shared_gpu           several models on one GPU: which gpu_memory_utilization each
known_models         the models known by name, with their main figures; what a form offers by name: models, GPUs,
                     formats
answer, document     the whole answer, and its JSON; picture: ``estimate --plot``
deployments          one model on one kind of GPU under an engine: a placement
placed/              what each engine's prediction makes of it: a sized deployment, its limit and notes
vllm/, kvplan/       each engine's memory: settings, prediction
sglang, llamacpp,
trtllm               pools of engines that are swept or explained, not planned for
sglang_share         the share of the memory that SGLang's pools and weights may take
speculation          what a drafter takes and gains
sequence_pages       what one sequence takes of an engine's pool
parallel             what a rank holds of attention, of experts and of the layers
kv_groups            layers that keep the same tokens: blocks of one sequence
kv_cache             what one sequence keeps; cache_entries: what each kind of attention and state caches
mixers               what each kind costs a step
weights, dtypes      bytes of a checkpoint, bytes of an element
adapters             the slots of LoRA adapters
speed/               time to first token, time per output token, throughput
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A package that is also the function of the same name: ``kvplan.estimate(...)`` is what people write."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Size a model: ``kvplan.api.estimate``."""
        from kvplan.api import estimate

        return estimate(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
