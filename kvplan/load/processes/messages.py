"""What passes between the command and its client processes, as pickles through pipes.

command -> process    Sending, then the start on ``time.perf_counter()``'s clock; the pipe's end means: stop
process -> command    READY, SentSoFar a few times per second, then Sent or the KvplanError that prevented it
"""

from __future__ import annotations

import pickle
from typing import Any, BinaryIO, Final

READY: Final = "ready"


def write_message(stream: BinaryIO, message: object) -> None:
    pickle.dump(message, stream, protocol=pickle.HIGHEST_PROTOCOL)
    stream.flush()


def read_message(stream: BinaryIO) -> Any:
    """EOFError if the other side has ended, even in the middle of a message."""
    try:
        return pickle.load(stream)
    except pickle.UnpicklingError as error:
        raise EOFError("a message was cut off") from error
