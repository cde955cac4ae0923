"""What a worker answers to its parent: which GPU it opens, what an engine keeps free of it, how a trial went."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from kvplan.machine.device import NoGpu, OpenedGpu
from kvplan.sweeps.worker.engine_host import EngineHost, Send
from kvplan.sweeps.worker.failures import classify_failure
from kvplan.sweeps.worker.protocol import DEVICE, RESERVE, DeviceMessage, Message, ReserveMessage, TrialOrder
from kvplan.sweeps.worker.trial import run_trial
from kvplan_engine import EngineError
from kvplan_engine.device.cuda import CudaDevice, why_no_usable_gpu


def answer(host: EngineHost, message: dict[str, Any], send: Send) -> Message:
    """The answer to one message of the parent. send: for what is said meanwhile."""
    if message["type"] == DEVICE:
        return opened_gpu()
    order = TrialOrder.from_json(message)
    if message["type"] == RESERVE:
        return first_reserve(host, order, send)
    return run_trial(host, order, send).as_message(order.trial_id)


def opened_gpu() -> DeviceMessage:
    """The GPU that an engine of this process would take, or why there is none."""
    absence = why_no_usable_gpu()
    if absence is not None:
        sentence = absence.sentence.removeprefix(f"there is a GPU ({absence.gpu}), but ")
        return _none(NoGpu(_fragment(sentence), absence.hint, absence.gpu is not None))
    try:
        device = CudaDevice(None)
    except EngineError as error:
        return _none(NoGpu(_fragment(error.message), error.hint, is_present=True))
    except RuntimeError as error:  # torch's: the GPU is full, or another process has it for itself
        return _none(NoGpu(f"it cannot be opened: {_fragment(str(error))}", "see nvidia-smi", is_present=True))
    uuid = getattr(torch.cuda.get_device_properties(device.torch_device), "uuid", "")
    capability = torch.cuda.get_device_capability(device.torch_device)
    gpu = OpenedGpu(device.name, device.total_bytes, device.overhead_bytes, str(uuid), capability)
    return {"type": DEVICE, "gpu": asdict(gpu), "none": None}


def first_reserve(host: EngineHost, order: TrialOrder, send: Send) -> ReserveMessage:
    """What the engine of ``order`` would keep free, once it is loaded. None where that fails, as its trial will then.

    A fault that no trial can have is raised.
    """
    try:
        return host.settle(order, send)
    except (EngineError, MemoryError, RuntimeError, OSError) as error:
        if classify_failure(error, "loading") is None:
            raise
    host.recover("loading", on_gpu=True)
    return {"type": RESERVE, "reserve": None}


def _none(absence: NoGpu) -> DeviceMessage:
    return {"type": DEVICE, "gpu": None, "none": asdict(absence)}


def _fragment(sentence: str) -> str:
    """The first line, to stand within another sentence."""
    return (sentence.strip().splitlines() or ["no reason was given"])[0].rstrip(".")
