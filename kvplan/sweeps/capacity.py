"""Sweeps that only count (``--load-format none``): the device that need not be there, and what makes no sense then."""

from __future__ import annotations

from typing import Final

from kvplan.errors import KvplanError
from kvplan.machine.device import Device, detect_device
from kvplan.machine.host import usable_cores
from kvplan.sweeps.options import SweepOptions
from kvplan.units import format_bytes

COUNTED_NOTICE: Final = (
    "nothing is computed (load format none): blocks, bytes, queues and preemptions are the engine's own, and there are "
    "no speeds"
)
DEPLOYED_NOTICE: Final = (
    "what a GPU holds beside its KV pool is vLLM {}'s, as `kvplan estimate` predicts it, not measured; the pool's "
    "blocks are the engine's own"
)
COUNTED_CPU: Final = "counted CPU"
COUNTED_GPU: Final = "counted GPU"


def counted_device(options: SweepOptions) -> Device:
    """The device that ``options`` name, whether it is here or not, with the memory that they give it.

    On a CPU whose memory was not given it has none yet: see ``has_memory``. KvplanError for a GPU of unknown size.
    """
    memory_bytes = options.device_memory_bytes()
    if (counted := options.counted_gpus()) is not None:
        return _device("cuda", counted.gpu.name, memory_bytes or counted.gpu.memory_bytes, num_gpus=counted.num_gpus)
    if options.device == "cuda":
        return _device("cuda", COUNTED_GPU, memory_bytes or _present_gpu_bytes())
    return _device("cpu", COUNTED_CPU, memory_bytes or 0)


def has_memory(options: SweepOptions) -> bool:
    """Whether the options say how much memory the device has."""
    return options.device_memory is not None or options.gpu is not None or options.device == "cuda"


def with_memory(device: Device, memory_bytes: int, reason: str) -> Device:
    """``device`` with an amount that nobody chose. reason: why it is that much."""
    return _device(device.kind, device.name, memory_bytes, reason)


def _device(kind: str, name: str, memory_bytes: int, reason: str | None = None, num_gpus: int = 1) -> Device:
    what = f"{num_gpus} x {name}, each" if num_gpus > 1 else name
    why = f"; {reason}" if reason else ""
    notice = f"assumed device: {what} with {format_bytes(memory_bytes)} (nothing is allocated{why})"
    return Device(kind, name, memory_bytes, usable_cores(), memory_bytes, notice)


def _present_gpu_bytes() -> int:
    try:
        return detect_device("cuda", None).memory_bytes
    except KvplanError:
        raise KvplanError(
            "There is no GPU here whose memory could be counted.",
            hint="name one, such as --gpu h100, or give --device-memory 80GiB",
        ) from None
