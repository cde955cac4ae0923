"""``python -m kvplan_engine.server.engine_process FD``: the engine's process, at a connected socket it inherited."""

from __future__ import annotations

import gc
import logging
import signal
import socket
import sys

from kvplan_engine.errors import EngineError, SettingsError
from kvplan_engine.requests.request import number_sequences_from
from kvplan_engine.server.engine_process.loop import ApiGone, Channel, end_with
from kvplan_engine.server.messages import Failed, LoadModel, Ready

_SEQUENCES_OF_AN_ENGINE = 1 << 40  # more than any begins


def main() -> int:
    """Exit code 0 after a Stop, 1 otherwise."""
    # The API process decides when to end: Ctrl-C and a supervisor's SIGTERM reach this process too.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s engine: %(message)s")
    connection = socket.socket(fileno=int(sys.argv[1]))
    channel = Channel(connection)
    end_with(connection)
    try:
        order, *more = channel.receive(wait=True)
        assert isinstance(order, LoadModel), order
        if more:  # a Stop: nothing else is sent before the engine is ready
            return 0
        return _serve(order, channel)
    except ApiGone:
        return 1
    except EngineError as problem:
        channel.send(Failed(problem.message, problem.hint, isinstance(problem, SettingsError)))
        return 1


def _serve(order: LoadModel, channel: Channel) -> int:
    """Torch is imported here, so that a process that is told to end at once has not loaded it in vain."""
    gc.disable()  # importing torch would set off a thousand collections, which find nothing
    from kvplan_engine.server.engine_process.loading import load, model_facts, pool_facts
    from kvplan_engine.server.engine_process.loop import EngineLoop

    gc.enable()
    number_sequences_from(order.engine * _SEQUENCES_OF_AN_ENGINE)
    with load(order) as llm:
        channel.send(Ready(model_facts(llm, order.model), pool_facts(llm.engine)))
        gc.collect()
        gc.freeze()  # finished requests are cycles: a collection that finds them need not look at torch's objects
        EngineLoop(llm.engine, channel, tells_answers=order.tells_answers).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
