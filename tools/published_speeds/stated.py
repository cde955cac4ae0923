"""What a row states beside the columns that it was collected with: columns of their own, read the same way for all.

A row was collected with what it says of lengths, prefixes, options and clients in its ``notes``, in words.
``stated_columns`` turns each phrase that is read into a column, whoever wrote it: speeds.csv has these columns filled,
and a file without them is read through this conversion, column by column. What a page says once of all its rows
(pages.csv, with the quote) counts for each row that cites the page where the row's own words say nothing. A page may
say it of some of its rows: ``of`` has conditions on columns, as "gpu=B200|B300 max_concurrency>=16".
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_PAGES: Final = Path(__file__).parent / "pages.csv"

_PHRASES: Final[tuple[tuple[str, str, str], ...]] = (
    ("lengths_are", r"medians", "medians"),
    ("lengths_are", r"lengths(?: here)? = (?:printed )?(?:token )?totals|mean stated here|input mean", "means"),
    ("lengths_are", r"requested isl/osl", "requested"),
    ("asked_output", r"requested output (\d+) but no ignore-eos", r"\1"),
    ("asked_output", r"requested \d+/(\d+), [^;]*\(no --ignore-eos\)", r"\1"),
    ("length_sample", r"dataset (sharegpt_\w+)", r"\1"),
    ("length_sample", r"suite c offline", "sharegpt_standard_v1"),
    ("length_sample", r"\bsharegpt\b(?!-derived)", "sharegpt"),
    ("empty_answers", r"many answers are empty", "yes"),
    ("prefix_hits", r"prefix cache probably hit|prefix cache is on:|later runs can hit the prefix cache", "possible"),
    ("warm_up", r"server was still warming up", "running"),
    ("warm_up", r"includes first-request warm-up", "included"),
    ("warm_up", r"[\d.]+ min warm-up", "excluded"),
    ("enforce_eager", r"--enforce-eager|--disable-cuda-graph(?!-)|\"enforce_eager\": true", "yes"),
    ("enforce_eager", r"\"enforce_eager\": false", "no"),
    ("prefix_caching", r"--disable-radix-cache|no prefix cache\b", "no"),
    ("chunked_prefill", r"--enable[-_]chunked[-_]prefill", "yes"),
    ("attention_dp", r"attention.dp|dp.attention|attention data parallel", "yes"),
    ("independent_replicas", r"independent", "yes"),
    ("spans_nodes", r"different nodes", "yes"),
    ("nvlink_bridge", r"nvlink bridge", "yes"),
    ("kv_gib_per_gpu", r"kv cache ([\d.]+) gib per gpu", r"\1"),
    ("max_model_len", r"(?:max[-_]model[-_]len|context[-_]length|max[-_]seq[-_]len)[ =]+(\d+)", r"\1"),
    ("backend", r"--backend (pytorch)\b", r"\1"),
    ("moe_backend", r"moe_config backend (\w+)", r"\1"),
    ("moe_backend", r"--moe-backend (\w+)", r"\1"),
    ("quantization_option", r"--quantization (\w+)", r"\1"),
    ("api", r"openai-chat|/v1/chat/completions", "chat"),
    ("api", r"/v1/completions|--backend openai\b(?!-)", "completions"),
    ("api", r"^offline batch|; offline batch|benchmark_throughput\.py|benchmark_latency\.py", "offline"),
    ("concurrency_binds", r"does not bind", "no"),
    ("stream_interval", r"stream-interval (\d+)", r"\1"),
    ("swept_prompts", r"prompts of ([\d ]+) tokens to one server, one length after the other", r"\1"),
)  # fmt: skip
"""(column, phrase in lower case, value): the first phrase that is found decides."""
_UNUSABLE: Final = (
    ("tpot", r"do not score tpot|tpot/itl not usable|tpot above [\d.]+ s with long outputs"),
    ("ttft", r"not ttft\b|not counted as first token"),
)
"""Figures that whoever collected the row says cannot be what they are called, and how."""
_READ_APART: Final = (
    "range_ratio", "output_tput_per_gpu", "unusable", "polling_s", "max_num_seqs_of", "utilization", "gpu_form",
    "recv_interval",
)  # fmt: skip
COLUMNS: Final = tuple(dict.fromkeys(["seen", *(column for column, _, _ in _PHRASES), *_READ_APART]))
"""Columns of speeds.csv that were not collected but are read from what was."""


@dataclass(frozen=True, slots=True)
class Page:
    """A statement of a page, or of a folder of pages, about the rows that cite it and meet all conditions of ``of``.

    ``quote``: where it says so.
    """

    page: str
    of: str
    column: str
    value: str
    quote: str

    def is_about(self, text: Mapping[str, str]) -> bool:
        return text["source_url"].startswith(self.page) and all(_is_met(each, text) for each in self.of.split())


@cache
def stated_pages() -> tuple[Page, ...]:
    """pages.csv, the longer addresses first."""
    with _PAGES.open(encoding="utf-8", newline="") as file:
        return tuple(sorted((Page(**row) for row in csv.DictReader(file)), key=lambda each: -len(each.page)))


def _is_met(condition: str, text: Mapping[str, str]) -> bool:
    """Whether a row's column is one of the values that the condition lists, or a number on its side of a limit."""
    column, sign, value = re.split(r"(>=|<|=)", condition)
    if sign == "=":
        return any(text[column].startswith(each) for each in value.split("|"))
    try:
        number = float(text[column])
    except ValueError:
        return False
    return number >= float(value) if sign == ">=" else number < float(value)


def with_stated(text: Mapping[str, str]) -> Mapping[str, str]:
    """The line with every column of COLUMNS: as it stands where the file has the column, else as the words say."""
    if all(column in text for column in COLUMNS):
        return text
    found = stated_columns(text)
    return found | {column: value for column, value in text.items() if column not in found or not is_open(value)}


def stated_columns(text: Mapping[str, str]) -> dict[str, str]:
    """All columns of COLUMNS, as the row's words and its page say; "" where neither does.

    Columns that rows are collected with are there too where the row leaves one open that its page fills.
    """
    said = f"{text['prefix_cache_or_random']}; {text['request_rate']}; dp {text['dp']}; {text['notes']}".casefold()
    found = dict.fromkeys(COLUMNS, "")
    for column, phrase, value in _PHRASES:
        match = None if found[column] else re.search(phrase, said)
        if match:
            found[column] = match.expand(value)
    found["unusable"] = " ".join(figure for figure, phrase in _UNUSABLE if re.search(phrase, said))
    found["range_ratio"] = _range_ratio(said) or _ratio_of_totals(text)
    found["output_tput_per_gpu"] = _first(r"output_tput_per_gpu ([\d.]+)", text["verbatim"])
    if not found["lengths_are"] and "Total input tokens" in text["verbatim"]:
        found["lengths_are"] = "means"
    if text["engine_version"].startswith("NIM"):
        found["backend"] = "tensorrt"
    for page in stated_pages():
        said_before = found.get(page.column, "") if page.column in COLUMNS else text[page.column]
        if page.is_about(text) and is_open(said_before):
            found[page.column] = page.value or "none"
    return {column: "" if value == "none" else value for column, value in found.items()}


def is_open(said: str) -> bool:
    """Whether nothing more particular has been said; a page is more particular than "offline", an open word, and than
    the checkpoint's own format, which whoever collected a row took where it names none ("mxfp4 (native)").
    """
    return said in ("", "offline") or said.endswith("(native)")


def _range_ratio(said: str) -> str:
    """The shortest length by the longest, of lengths that are spread evenly between them.

    A ratio r of ``vllm bench`` is another one: lengths of (1 - r) to (1 + r) times what was asked for
    (vllm/benchmarks/datasets, RandomDataset).
    """
    if ends := re.search(r"lengths uniform (\d+)-(\d+)", said):
        return f"{int(ends.group(1)) / int(ends.group(2)):.4f}"
    if re.search(r"fixed lengths", said):
        return "1"
    ratio = _first(r"range[_ ]ratio[ =]*(\d+(?:\.\d+)?)(?![\d.]| possible)", said)
    if ratio and re.search(r"vllm bench|benchmark_serving", said):
        return f"{(1 - float(ratio)) / (1 + float(ratio)):.4f}"
    return ratio


def _ratio_of_totals(text: Mapping[str, str]) -> str:
    """ "1" where the source's line has the tokens of all prompts, and they are those asked for to the token."""
    try:
        total = float(text["num_prompts"]) * float(text["input_len"])
    except ValueError:
        return ""
    totals = re.findall(r"(?<![\d.])\d+(?![\d.])", text["verbatim"])
    return "1" if text["num_prompts"] != "1" and f"{total:.0f}" in totals else ""


def _first(phrase: str, said: str) -> str:
    match = re.search(phrase, said)
    return match.group(1) if match else ""
