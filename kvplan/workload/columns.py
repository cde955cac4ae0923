"""What columns of request files are called, by those who publish them and by those who write their own.

Names are compared in lower case with ``_`` for spaces, hyphens and dots. Sources of the formats with names or units of
their own:

Mooncake       kvcache-ai/Mooncake, "Open Source Trace": timestamp in ms, hash_ids of 512 tokens
Bailian        alibaba-edu/qwen-bailian-usagetraces-anon: timestamp in s, hash_ids of 16 tokens
ServeGen       alibaba/ServeGen, save_requests_to_csv, and data/offline: hash_ids of 16 tokens
Azure          Azure/AzurePublicDataset, AzureLLMInferenceDataset 2023 and 2024: dates
BurstGPT       HPMLL/BurstGPT, with and without Session ID: Timestamp in s
Vidur          microsoft/vidur, trace_replay: arrived_at in s
Splitwise      Mutinifni/splitwise-sim: arrival_timestamp in s
Baseten        NVIDIA AIPerf, baseten_trace: timestamp_start_unix_ms, total_hashes
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvplan.workload.times import TimeUnit, unit_in_name

PROMPT_TOKENS: Final = (
    "input_len", "input_length", "input_tokens", "prompt_len", "prompt_length", "prompt_tokens", "context_tokens",
    "contexttokens", "request_tokens", "num_prefill_tokens", "prefill_tokens", "num_prompt_tokens", "num_input_tokens",
    "prompt_size", "isl", "tok_input_length", "prompt_tokens_count", "prompt_token_count", "input_token_count",
    "input_size", "input_seq_len", "in",
)  # fmt: skip
OUTPUT_TOKENS: Final = (
    "output_len", "output_length", "output_tokens", "completion_tokens", "generated_tokens", "generatedtokens",
    "response_tokens", "num_decode_tokens", "decode_tokens", "num_output_tokens", "token_size", "osl",
    "tok_output_length", "output_tokens_count", "output_token_count", "completion_token_count", "completion_len",
    "output_size", "output_seq_len", "max_completion_tokens", "max_tokens", "max_output_tokens", "max_new_tokens",
    "expected_output_len", "out",
)  # fmt: skip
TIMES: Final = (
    "arrival_seconds", "arrival_s", "arrival_ms", "arrival_time", "arrival_time_s", "arrival_time_ms", "arrived_at",
    "arrival_timestamp", "arrival", "timestamp", "timestamp_s", "timestamp_ms", "timestamp_us", "timestamp_ns",
    "timestamp_seconds", "timestamp_start_unix_ms", "start_time", "start_time_s", "start_time_ms", "request_time",
    "scheduled_s", "created_at", "time", "ts", "ts_ms", "ts_s", "t",
)  # fmt: skip
BLOCK_IDS: Final = ("hash_ids", "total_hashes", "block_hashes")
BLOCK_TOKENS: Final = ("block_size", "hash_block_size", "chunk_size")
SESSIONS: Final = ("session_id", "conversation_id")
_OF_MOONCAKE: Final = ("input_length", "text_input", "text", "texts")
"""Of Mooncake's and AIPerf's rows, whose times are milliseconds."""

_SECONDS_BY_FORMAT: Final = (
    frozenset({"chat_id", "parent_chat_id", "timestamp"}),
    frozenset({"timestamp", "request_tokens", "response_tokens"}),
    frozenset({"arrived_at", "num_prefill_tokens", "num_decode_tokens"}),
    frozenset({"arrival_timestamp", "prompt_size", "token_size"}),
    frozenset({"t", "in", "out"}),
)
"""Columns of formats whose publisher says that times are seconds."""
_BAILIAN: Final = frozenset({"chat_id", "parent_chat_id", "hash_ids"})
_BAILIAN_BLOCK: Final = 16
_OTHERS: Final = re.compile(r"[\s\-.]+")


def plain_name(name: str) -> str:
    """``Request tokens`` -> ``request_tokens``."""
    return _OTHERS.sub("_", name.strip().lower())


@dataclass(frozen=True, slots=True)
class Columns:
    """Which of a record's columns says what, under the names that the file has. None: no column does.

    unit: of the times, where the column or the format states it. block_tokens: of the block ids, likewise.
    is_like_mooncake: whether times beside these columns are usually milliseconds.
    """

    prompt_tokens: str | None
    output_tokens: str | None
    time: str | None
    block_ids: str | None
    block_tokens_column: str | None
    session: str | None
    unit: TimeUnit | None
    block_tokens: int | None
    is_like_mooncake: bool

    @staticmethod
    def of(names: Iterable[str]) -> Columns:
        plain = {plain_name(name): name for name in names}

        def first(known: tuple[str, ...]) -> str | None:
            return next((plain[name] for name in known if name in plain), None)

        time = next((name for name in TIMES if name in plain), None)
        is_in_seconds = any(each <= plain.keys() for each in _SECONDS_BY_FORMAT)
        unit = None if time is None else unit_in_name(time) or (TimeUnit.seconds if is_in_seconds else None)
        return Columns(
            prompt_tokens=first(PROMPT_TOKENS),
            output_tokens=first(OUTPUT_TOKENS),
            time=None if time is None else plain[time],
            block_ids=first(BLOCK_IDS),
            block_tokens_column=first(BLOCK_TOKENS),
            session=first(SESSIONS),
            unit=unit,
            block_tokens=_BAILIAN_BLOCK if plain.keys() >= _BAILIAN else None,
            is_like_mooncake=any(name in plain for name in _OF_MOONCAKE),
        )


class ColumnsSeen:
    """Finds the columns of one record after another; those of a file are mostly the same."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, ...], Columns] = {}

    def of(self, fields: Mapping[str, Any]) -> Columns:
        names = tuple(fields)
        found = self._found.get(names)
        if found is None:
            found = self._found[names] = Columns.of(names)
            if len(self._found) > _MOST_KINDS:
                self._found.clear()
        return found


_MOST_KINDS: Final = 256
