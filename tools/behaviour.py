"""Records what kvplan answers and compares two records, to show that a change of structure changed no answer.

    python tools/behaviour.py record DIR                  this checkout's behaviour, about two minutes
    python tools/behaviour.py record DIR --tree CHECKOUT  the behaviour of another checkout, such as a `git worktree`
    python tools/behaviour.py compare DIR_A DIR_B         one line per difference; exit code 1 if there is one

    --only estimate,plan  record or compare these sections alone
    --numbers             compare texts by the numbers in them, so that a sentence may be reworded

A record is one compressed JSON document per section. Only the command line and the Python interface of the engine are
used, so an old checkout is recorded by today's script. Speeds, times, dates and run ids are left out. Tokens depend on
the CPU's rounding: record both sides on the same machine.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = ("catalog", "estimate", "plan", "explain", "scores", "sweep", "tokens")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_ABSENT = "nothing"


def record(folder: Path, sections: Sequence[str], every: int = 1) -> None:
    """Write one file per section to ``folder``. every: which plans are asked for, each second one for 2."""
    from behaviour_questions import PLANS, ask  # imports kvplan, which the environment must have decided by now

    folder.mkdir(parents=True, exist_ok=True)
    for section in sections:
        print(f"recording {section}", file=sys.stderr)
        text = json.dumps(ask(section, ROOT, PLANS[every - 1 :: every]), indent=1, sort_keys=True)
        # without a time in the header, so that equal answers are equal files
        _file(folder, section).write_bytes(gzip.compress(text.encode(), mtime=0))


def compare(first: Path, second: Path, sections: Sequence[str], *, numbers_only: bool = False) -> list[str]:
    """The differences between two records, one line each."""
    lines = []
    for section in sections:
        for path, old, new in differences(_load(first, section), _load(second, section), section):
            if not (numbers_only and _same_numbers(old, new)):
                lines.append(f"{path}: {_shown(old)} -> {_shown(new)}")
    return lines


def differences(old: Any, new: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Every leaf in which two JSON documents differ: its path and both values (``nothing`` where it is missing)."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from differences(old.get(key, _ABSENT), new.get(key, _ABSENT), f"{path}/{key}")
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            left = old[index] if index < len(old) else _ABSENT
            right = new[index] if index < len(new) else _ABSENT
            yield from differences(left, right, f"{path}/{index}")
    elif old != new or type(old) is not type(new):
        yield path, old, new


def _same_numbers(old: Any, new: Any) -> bool:
    both_texts = isinstance(old, str) and isinstance(new, str) and _ABSENT not in (old, new)
    return both_texts and _NUMBER.findall(old) == _NUMBER.findall(new)


def _shown(value: Any) -> str:
    text = value if value == _ABSENT else json.dumps(value, sort_keys=True)
    return text if len(text) <= 160 else f"{text[:157]}..."


def _file(folder: Path, section: str) -> Path:
    return folder / f"{section}.json.gz"


def _load(folder: Path, section: str) -> Any:
    file = _file(folder, section)
    return json.loads(gzip.decompress(file.read_bytes())) if file.is_file() else _ABSENT


def _run_on(tree: Path) -> None:
    """Start again with ``tree`` as the only kvplan that can be imported."""
    path = os.pathsep.join([str(tree), str(tree / "engine")])
    if os.environ.get("PYTHONPATH") != path:
        os.environ["PYTHONPATH"] = path
        os.execv(sys.executable, [sys.executable, *sys.argv])


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record", help="write a record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--tree", type=Path, default=ROOT, help="checkout to record (default: this one)")
    comparing = verbs.add_parser("compare", help="print the differences between two records")
    comparing.add_argument("first", type=Path)
    comparing.add_argument("second", type=Path)
    comparing.add_argument("--numbers", action="store_true", help="compare texts by the numbers in them")
    for verb in (recording, comparing):
        verb.add_argument("--only", default=argparse.SUPPRESS, help="sections, separated by commas")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    sections = arguments.only.split(",")
    if unknown := [section for section in sections if section not in SECTIONS]:
        print(f"error: no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}", file=sys.stderr)
        return 2
    if arguments.verb == "record":
        _run_on(arguments.tree.resolve())
        record(arguments.folder, sections)
        return 0
    lines = compare(arguments.first, arguments.second, sections, numbers_only=arguments.numbers)
    print("\n".join([*lines, f"{len(lines)} differences"]))
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
