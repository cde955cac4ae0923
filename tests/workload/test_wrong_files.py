"""Files that cannot be used, and rows that cannot be requests: one sentence with the place. Streams of any length."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path

import pytest

from kvplan.errors import KvplanError
from kvplan.workload.files import read_requests, survey_file


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            b'{"timestamp": 0, "input_length": 3, "hash_ids": [1]}\n',
            "Line 1 of .* has no 'output_len'; it has timestamp, ",
        ),
        (b"prompt_chars,output_len\n3,4\n", "Line 2 of .* has no 'input_len'; it has prompt_chars, output_len"),
        (b"128,64\n12,4\n", "has no header: its first line is '128,64'"),
        (b"input_len,output_len\n128,64\n12\n", "Line 3 of .* it has 1 cells, and the header 2"),
        (b"input_len,output_len\n128,-4\n", "Line 2 of .* its output_len is -4"),
        (b"input_len,output_len\n128,nan\n", "Line 2 of .* its output_len is nan, no whole number"),
        (b"input_len,output_len\n128,\n", "Line 2 of .* its output_len is empty"),
        (b"input_len,output_len\n128,1.5\n", "Line 2 of .* its output_len is 1.5, no whole number"),
        (b"input_len,output_len\n900000000000,5\n", "Line 2 of .* its input_len is 900,000,000,000"),
        (b'{"input_len": "many", "output_len": 3}', "Line 1 of .* its input_len is 'many', no number"),
        (b'{"input_len": true, "output_len": 3}', "Line 1 of .* its input_len is 'True', no number"),
        (b'{"input_length": 9, "output_length": 3, "hash_ids": 7}', "Line 1 of .* its hash_ids are no list"),
        (b"arrival_s,input_len,output_len\nsoon,3,4\n", "Line 2 of .* its time is 'soon', neither a number nor a date"),
        (b"arrival_s,input_len,output_len\n2024-13-01 00:00:00,3,4\n", "Line 2 of .* there is no such date"),
        (b"arrival_s,input_len,output_len\nnan,3,4\n", "Line 2 of .* its time is nan, and must be finite"),
        (b"Timestamp,Request tokens,Response tokens\n1,3,0\n", r"contains no request \(1 row without an answer\)"),
        (b"", "contains no request"),
        (b"\xff\xfe{}", "is not text in UTF-8"),
        (b"PAR1\x15\x04", "is Parquet, not text"),
        (b"\x1f\x8b\x08\x00", "is gzip, not text"),
        (b'[{"input_len": 4, "output_len": 4}', "its list has no end"),
        (b'[{"input_len": 4, "output_len": 4}, 7]', "Entry 2 of .* it is no JSON object"),
        (b'{"conversations": [1, 2]}', "Line 1 of .* it has a turn that is no JSON object"),
        (b'{"messages": [{"role": "user", "content": 5}], "max_tokens": 3}', "Line 1 of .* whose content is no text"),
        (b'{"input_len": 0, "output_len": 3}\n', r"contains no request \(1 row without a prompt\)"),
        (b'{"input_len": Infinity, "output_len": 3}\n', "Line 1 of .* its input_len is inf, no whole number"),
        (b'{"input_len": 1e30, "output_len": 3}\n', "Line 1 of .* its input_len is beyond all bounds"),
        (
            b'{"input_len": 4, "output_len": 4}\n\n{"input_len": 4}',
            "Line 3 of .* has no 'output_len'; it has input_len",
        ),
        (b'{"input_len": 4, "output_len": 1' + b"0" * 5000 + b"}", "Line 1 of .* a number of thousands of digits"),
        (b'{"input_len": 4,', "Line 1 of .* is malformed: its JSON breaks off"),
        (b"[1, 2", "Entry 1 of .* it is no JSON object"),
        (b"[" * 100_000, "is malformed: it is nested too deeply"),
        (b"input_len,output_len\n3," + b"1" * 140_000, "Line 2 of .* its output_len is 1+, no whole number"),
        (b"arrival_s,input_len,output_len\n-1e308,3,4\n1e308,3,4\n", "come over more than 1,000,000,000 seconds"),
    ],
    ids=range(34),
)
def test_what_cannot_be_used_is_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "w.txt"
    path.write_bytes(content)
    with pytest.raises(KvplanError, match=sentence) as caught:
        survey_file(path)
    assert "workload file" in caught.value.message and str(path) in caught.value.message
    assert caught.value.message.endswith(".") and "\n" not in caught.value.message
    assert caught.value.hint


def test_what_is_no_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(KvplanError, match=r"The workload file cannot be read: .* is a directory"):
        survey_file(tmp_path)
    with pytest.raises(KvplanError, match=r"The workload file cannot be read: .* does not exist"):
        survey_file(tmp_path / "none.csv")


def test_rows_out_of_order_are_sorted_and_said(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text("arrival_s,input_len,output_len\n5,3,4\n2,3,4\n9,3,4\n")
    assert "w.csv: 1 request after a later one, sorted by time" in survey_file(path).notes
    assert [each.arrival_seconds for each in read_requests(path)] == [3.0, 0.0, 7.0]


def test_some_rows_without_times_are_said(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text("arrival_s,input_len,output_len\n5,3,4\n,3,4\n")
    assert survey_file(path).notes[0] == "w.csv: 2 requests, 1 of them without a time: no times are used"
    assert [each.arrival_seconds for each in read_requests(path)] == [None, None]


def test_names_are_compared_without_case_and_spaces(tmp_path: Path) -> None:
    path = tmp_path / "w.tsv"
    path.write_text("\ufeffISL\tOutput Tokens\tArrival-S\n3\t4\t0\n5\t6\t1.5\n", encoding="utf-8")
    found = [(each.num_prompt_tokens, each.num_output_tokens, each.arrival_seconds) for each in read_requests(path)]
    assert found == [(3, 4, 0.0), (5, 6, 1.5)]


def test_a_list_is_read_entry_by_entry_wherever_a_chunk_ends(tmp_path: Path) -> None:
    """ShareGPT is one list of 0.7 GB: entries lie across the ends of the parts that are read."""
    entries = [{"input_len": 1 + place, "output_len": 2, "note": "é" * (place * 37 % 5000)} for place in range(900)]
    path = tmp_path / "w.json"
    path.write_text(json.dumps(entries, indent=2, ensure_ascii=False))
    assert path.stat().st_size > 2 << 20
    assert [each.num_prompt_tokens for each in read_requests(path)] == list(range(1, 901))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json"])
def test_a_file_is_never_held_whole(tmp_path: Path, kind: str) -> None:
    """5,000 rows are counted exactly, in as much memory as 500."""

    def most_memory(num_rows: int) -> int:
        path = tmp_path / f"{num_rows}.{kind}"
        rows = [{"timestamp": 20 * place, "input_len": 100, "output_len": 9} for place in range(num_rows)]
        lines = [json.dumps(row) for row in rows]
        header = "timestamp,input_len,output_len\n"
        text = {
            "csv": header + "".join(",".join(map(str, row.values())) + "\n" for row in rows),
            "jsonl": "\n".join(lines),
            "json": "[" + ",\n".join(lines) + "]",
        }[kind]
        path.write_text(text)
        del rows, lines, text
        tracemalloc.start()
        try:
            assert survey_file(path).num_requests == num_rows
            assert sum(1 for _ in read_requests(path)) == num_rows
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few = most_memory(500)
    assert most_memory(5000) < 1.5 * few + (6 << 20) * (kind == "json")  # a list is read a MiB at a time


def test_a_hint_names_the_formats() -> None:
    with pytest.raises(KvplanError) as caught:
        survey_file(Path("/nowhere"))
    assert re.search(r"Mooncake.*Azure.*input_len,output_len", caught.value.hint or "")
