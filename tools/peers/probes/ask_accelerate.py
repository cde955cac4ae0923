"""accelerate estimate-memory: its command's function, without the question to the Hub whether the model exists."""

import contextlib
import io
import os
from types import SimpleNamespace

from protocol import attempt, no_answer, read_question, reply

ROWS = {"F8_E4M3": "int8", "U8": "int4"}
"""The row of its table for the format that most of a checkpoint is in; float16 for the others."""


def main():
    os.environ["HF_HUB_OFFLINE"] = "1"
    from accelerate.commands import estimate

    question = read_question()
    estimate.verify_on_hub = lambda *_args, **_options: SimpleNamespace(library_name="transformers", config={})
    counts = question["elements_by_dtype"]
    row = ROWS.get(max(counts, key=counts.get), "float16")

    def weights():
        options = SimpleNamespace(model_name=question["directory"], library_name="transformers", dtypes=[row])
        options.trust_remote_code = False
        with contextlib.redirect_stdout(io.StringIO()):
            return estimate.gather_data(options)[0][2]

    answers = {subject: no_answer("does not say") for subject in ("kv_cache", "sequences")}
    answers["weights"] = attempt(weights)
    reply("accelerate", answers, [f"its row {row}"])


if __name__ == "__main__":
    main()
