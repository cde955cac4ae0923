"""``--cpu-offload-gb``: weights that lie in the host's memory, which the GPU reads over the bus in each step.

Parameters of the layers go there whole, one after the other, until so many GiB of a rank's are there
(vllm/model_executor/offloader/uva.py, UVAOffloader, read in 0.19.0 to 0.33.0). Embedding and head stay, and so does
what the last parameter is larger than the rest of the room, which is not counted.
"""

from __future__ import annotations

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.tensors import count_elements
from kvplan.estimate.dtypes import element_bytes
from kvplan.settings import FilledSettings
from kvplan.units import GIB


def offloaded_bytes(spec: ModelSpec, part: range, gpu: GpuProfile, settings: FilledSettings, weight_bytes: int) -> int:
    """Bytes of a rank's weights that leave the GPU; none where its memory is the host's."""
    if not settings.cpu_offload_gb or gpu.unified_memory:
        return 0
    is_first, is_last = part.start == 0, part.stop == spec.num_layers
    kept = [tensor for tensor in spec.tensors if (is_first if tensor.role in ("embedding", "position") else is_last)]
    outside = count_elements(tuple(kept)) * element_bytes(settings.dtype) // settings.tensor_parallel_size
    return max(min(int(settings.cpu_offload_gb * GIB), weight_bytes - outside), 0)
