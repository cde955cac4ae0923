"""What every probe does: read the question, answer each part of it or say why not, print one JSON document.

The document is the last line of the output, because peers print lines of their own. Nothing of kvplan is imported here:
a probe runs in the interpreter of the peer.
"""

import json
import sys
from importlib import metadata


def read_question():
    """The question as a dict: peers.questions.Question, or the steps to time (peers.speed)."""
    return json.loads(sys.argv[1])


def attempt(answer):
    """``{"value": ...}``, or ``{"no_answer": reason}`` with whatever the peer raised."""
    try:
        return {"value": answer()}
    except SystemExit as error:
        return {"no_answer": f"exit code {error.code}"}
    except Exception as error:  # noqa: BLE001 - the peer's own failure is the answer
        return {"no_answer": f"{type(error).__name__}: {first_line(error)}"}


def no_answer(reason):
    """For a part that the peer does not answer by design."""
    return {"no_answer": reason}


def first_line(error):
    """The first line of a message."""
    return (str(error).strip().splitlines() or ["no message"])[0]


def reply(distribution, answers, remarks=()):
    """Print the document: the peer's version, its answers by subject, and remarks on how it was asked."""
    document = {"version": metadata.version(distribution), "answers": answers, "remarks": list(remarks)}
    print("\n" + json.dumps(document))
