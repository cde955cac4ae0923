"""What a worker answers to its parent: which GPU it opens, what an engine keeps free of it, how a trial went."""

from __future__ import annotations

from typing import Any

from kvplan.sweeps.worker.engine_host import EngineHost, Send
from kvplan.sweeps.worker.opened import first_reserve, opened_gpu
from kvplan.sweeps.worker.protocol import DEVICE, RESERVE, Message, TrialOrder
from kvplan.sweeps.worker.trial import run_trial


def answer(host: EngineHost, message: dict[str, Any], send: Send) -> Message:
    """The answer to one message of the parent. send: for what is said meanwhile."""
    if message["type"] == DEVICE:
        return opened_gpu()
    order = TrialOrder.from_json(message)
    if message["type"] == RESERVE:
        return first_reserve(host, order, send)
    return run_trial(host, order, send).as_message(order.trial_id)
