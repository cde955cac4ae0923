"""Draws the screens of docs/screens.md as a terminal of 80 and of 120 columns shows them.

Run: python tools/draw_screens.py [--only WORD]

Each command runs in a terminal of its own, of that many columns; what it prints is kept with its colours.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "screens.md"
FOLDER: Final = ROOT / "docs" / "images" / "screens"
COLUMNS: Final = (80, 120)
_ROWS: Final = 50
_WEB_FONT: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""A page that is read without a network has the reader's own monospaced font."""
_COMMAND: Final = re.compile(r"^    (kvplan .+)$", re.MULTILINE)


def commands() -> list[str]:
    """Those that the page shows."""
    return _COMMAND.findall(PAGE.read_text(encoding="utf-8"))


def file_name(command: str, columns: int) -> str:
    """``plan-llama-3.1-70b-80.svg``"""
    words = command.split()
    return f"{words[1]}-{words[2]}-{columns}.svg"


def shown(command: str, columns: int) -> str:
    """What the command writes to a terminal of ``columns``, colours and all."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=ROOT,
        env=environment | {"TERM": "xterm-256color"},
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    parts: list[bytes] = []
    while True:
        try:
            parts.append(os.read(leader, 65536))
        except OSError:  # the terminal's other end is closed
            break
    os.close(leader)
    process.wait()
    return b"".join(parts).decode().replace("\r\n", "\n")


def draw(command: str, columns: int) -> None:
    """Write the picture of one screen."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    last_drawn = "\n".join(line.rsplit("\r", 1)[-1] for line in shown(command, columns).split("\n"))
    console.print(Text.from_ansi(last_drawn))
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / file_name(command, columns)
    path.write_text(_WEB_FONT.sub("", console.export_svg(title=f"{columns} columns")), encoding="utf-8")
    print(path.relative_to(ROOT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="commands with this in them")
    given = parser.parse_args()
    for command in commands():
        for columns in COLUMNS:
            if given.only in command:
                draw(command, columns)


if __name__ == "__main__":
    main()
