"""``python -m kvplan_engine.server.text.template_process FD``: renders one chat template, at a connected socket.

A template is a program that came with the model. Nothing in Python stops one from within: a single filter may walk
through a list that contains itself a trillion times. So it runs here, where the system ends it: beyond so many seconds
of the processor, whoever is busy beside it, and with so much memory.
"""

from __future__ import annotations

import resource
import signal
import socket
import sys
from typing import BinaryIO

import msgspec

from kvplan_engine.server.messages import LENGTH
from kvplan_engine.server.text.chat_template import ChatTemplate
from kvplan_engine.server.text.template_messages import LoadTemplate, Render, Rendered, TemplateFailed, frame

_MOST_MEMORY_BYTES = 1 << 30


def main() -> int:
    """Until the other end is closed. The system ends it sooner when a template costs too much."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the server decides when to end
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
    with (
        socket.socket(fileno=int(sys.argv[1])) as connection,
        connection.makefile("rb") as orders,
        connection.makefile("wb") as answers,
    ):
        _serve(orders, answers)
    return 0


def _serve(orders: BinaryIO, answers: BinaryIO) -> None:
    data = _read_frame(orders)
    if data is None:
        return
    load = msgspec.json.decode(data, type=LoadTemplate)
    template: ChatTemplate | None = None
    while data is not None:
        signal.setitimer(signal.ITIMER_PROF, load.cpu_seconds)  # whose signal nobody handles: it ends the process
        try:
            if template is None:
                template = ChatTemplate(load.source, load.special_tokens)
                answer = Rendered()
            else:
                answer = _rendered(template, msgspec.json.decode(data, type=Render))
        except TemplateFailed as problem:
            answer = Rendered(error=str(problem))
        answers.write(frame(answer))
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        answers.flush()
        data = _read_frame(orders)


def _rendered(template: ChatTemplate, order: Render) -> Rendered:
    text = template.render(order.messages, add_generation_prompt=order.add_generation_prompt, variables=order.variables)
    return Rendered("" if len(text) > order.most_characters else text, num_characters=len(text))


def _read_frame(orders: BinaryIO) -> bytes | None:
    head = orders.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    data = orders.read(length)
    return data if len(data) == length else None


if __name__ == "__main__":
    sys.exit(main())
