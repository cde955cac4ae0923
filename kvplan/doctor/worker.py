"""The worker process of `kvplan doctor`: answers one order and ends. Started as ``python -m kvplan.doctor.worker``."""

from __future__ import annotations

from typing import Any

from kvplan.workers.channel import WorkerChannel, quick_imports


def main() -> None:
    channel = WorkerChannel.open()
    order = channel.receive()
    # The engine is imported here, after stdout is safe and while a thread watches for the parent's death.
    from kvplan_engine import EngineError

    try:
        channel.send({"type": "report", "report": _report(order)})
    except EngineError as error:
        channel.send({"type": "error", "message": error.message, "hint": error.hint})
    channel.wait_for_the_end()


def _report(order: dict[str, Any]) -> dict[str, Any]:
    with quick_imports():
        from kvplan_engine import EngineConfig
        from kvplan_engine.doctor.examine import examine

    config = EngineConfig(model=order["model"], dtype=order["dtype"], load_format="dummy")
    return examine(config, order["device"], checks_anew=order["checks_anew"])


if __name__ == "__main__":
    main()
