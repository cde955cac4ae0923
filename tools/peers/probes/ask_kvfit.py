"""kvfit: its command line, with the config and the weights' size handed in instead of the Hub's answer."""

import contextlib
import io
import json
from pathlib import Path

from protocol import attempt, no_answer, read_question, reply


def main():
    question = read_question()
    answers = {"weights": no_answer("reads the sizes of the files on the Hub")}
    whole = attempt(lambda: _plan(question))
    for subject in ("kv_cache", "sequences"):
        answers[subject] = {"value": whole["value"][subject]} if "value" in whole else whole
    reply("kvfit", answers, ["weights handed in"])


def _plan(question):
    from kvfit import cli
    from kvfit.models import ModelMetadata

    config = json.loads((Path(question["directory"]) / "config.json").read_text())
    known = ModelMetadata("local/model", "main", None, config, question["weight_bytes"], "handed in")
    cli.fetch_model_metadata = lambda *_args, **_options: known
    options = ["local/model", "--hardware", "h100", "--gpus", "1", "--tp", "1", "--json"]
    options += ["--context", str(question["context_tokens"]), "--utilization", str(question["gpu_memory_utilization"])]
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        cli.main(options)
    if not output.getvalue().strip():
        raise RuntimeError(errors.getvalue().strip().removeprefix("kvfit: ") or "no output")
    found = json.loads(output.getvalue())
    return {"kv_cache": found["cache"]["bytes_per_sequence"], "sequences": found["layouts"][0]["total_sequences"]}


if __name__ == "__main__":
    main()
