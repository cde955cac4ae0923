"""One process of a client: ``python -m kvplan.load.processes``, with messages on its standard input and output."""

from __future__ import annotations

import os
import sys
import threading
from typing import BinaryIO

from kvplan.errors import KvplanError
from kvplan.load.processes.messages import READY, read_message, write_message
from kvplan.load.sending import Sender


def main() -> None:
    commands, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # what a library prints is no message
    try:
        sender = Sender(read_message(commands), lambda sent: write_message(answers, sent))
        write_message(answers, READY)
        start = read_message(commands)
        threading.Thread(target=_stop_at_end, args=(commands, sender), daemon=True).start()
        write_message(answers, sender.run(start))
    except KvplanError as error:
        write_message(answers, error)
    except (EOFError, BrokenPipeError):  # the command has ended
        os._exit(1)


def _stop_at_end(commands: BinaryIO, sender: Sender) -> None:
    """Also when the command is killed: nobody goes on sending. Unbuffered, since a lock held here at exit is fatal."""
    while os.read(commands.fileno(), 1):
        pass
    sender.stop()


if __name__ == "__main__":
    main()
