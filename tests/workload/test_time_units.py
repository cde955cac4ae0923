"""The unit of times: stated, documented, or decided by the times, and always said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvplan.errors import KvplanError, UsageError
from kvplan.workload.files import read_requests, survey_file
from kvplan.workload.part import FilePart


def trace(path: Path, times: list[float | str], **more: object) -> Path:
    rows = ({"timestamp": time, "input_length": 20, "output_length": 4} | more for time in times)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def seconds_and_note(path: Path, part: FilePart = FilePart()) -> tuple[float, str]:
    found = survey_file(path, part)
    return found.seconds, found.notes[0].partition(": ")[2]


@pytest.mark.parametrize(
    ("times", "seconds", "said"),
    [
        (
            [0, 3000, 6000, 60000],
            60.0,
            "timestamps read as milliseconds (in seconds, one request would come in 20,000 s)",
        ),
        ([0.0, 0.25, 0.5, 61.114], 61.114, "timestamps read as seconds (they could be milliseconds: --trace-unit ms)"),
        ([0.0, 0.1, 0.2, 0.5], 0.5, "timestamps read as seconds (in milliseconds, 6,000 would come in a second)"),
        (
            [0, 5, 10, 30],
            0.03,
            "timestamps read as milliseconds (as Mooncake's are; --trace-unit s if they are seconds)",
        ),
        ([1700000000, 1700000060], 60.0, "timestamps read as seconds (counted from 1970)"),
        ([1700000000000, 1700000060000], 60.0, "timestamps read as milliseconds (counted from 1970)"),
        ([1700000000000000, 1700000060000000], 60.0, "timestamps read as microseconds (counted from 1970)"),
        ([1700000000000000000, 1700000060000000000], 60.0, "timestamps read as nanoseconds (counted from 1970)"),
        (["2024-05-10 00:00:00+00:00", "2024-05-10T02:00:59.5+02:00"], 59.5, "2 requests over 60 s"),
    ],
    ids=["ms", "either", "s", "whole", "epoch s", "epoch ms", "epoch us", "epoch ns", "dates"],
)
def test_a_unit_that_nothing_states_follows_from_the_times(
    tmp_path: Path, times: list[float | str], seconds: float, said: str
) -> None:
    found, note = seconds_and_note(trace(tmp_path / "t.jsonl", times))
    assert found == pytest.approx(seconds)
    assert note.startswith(said)


def test_the_users_unit_and_the_formats_come_first(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl", [0, 3000, 6000])
    assert seconds_and_note(path, FilePart(unit="s")) == (6000.0, "timestamps read as seconds: 3 requests over 100 min")
    bailian = trace(tmp_path / "b.jsonl", [0, 300, 600], chat_id=1, parent_chat_id=-1)
    assert seconds_and_note(bailian) == (600.0, "timestamps read as seconds: 3 requests over 10 min")
    named = tmp_path / "n.csv"
    named.write_text("arrival_ms,input_len,output_len\n0,3,4\n8,3,4\n")
    assert seconds_and_note(named) == (0.008, "timestamps read as milliseconds: 2 requests over 0.008 s")


def test_an_hour_that_would_be_a_millisecond_is_one_sentence(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl", [float(second) for second in range(3600)])
    assert survey_file(path).seconds == 3599
    with pytest.raises(KvplanError, match=r"3,600 requests .* within 3.6e-06 s, .* a second: its times are not nanos"):
        survey_file(path, FilePart(unit="ns"))


def test_a_mean_hour_of_mooncakes_trace_is_an_hour(tmp_path: Path) -> None:
    """Its numbers: 12,031 requests, times of whole seconds in milliseconds up to 3,536,999."""
    times: list[float | str] = [min(294 * place, 3536999) // 1000 * 1000 for place in range(12031)]
    found = survey_file(trace(tmp_path / "t.jsonl", times))
    assert (found.num_requests, round(found.seconds / 60)) == (12031, 59)
    assert "timestamps read as milliseconds" in found.notes[0] and found.notes[0].endswith(
        "12,031 requests over 59 min"
    )


def test_windows_speed_and_samples(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl", [1000 * place for place in range(100)])
    window = FilePart(start_seconds=10, end_seconds=20, speed=2)
    assert [each.arrival_seconds for each in read_requests(path, window)] == [place / 2 for place in range(10)]
    found = survey_file(path, window)
    assert (found.num_requests, found.seconds) == (10, 4.5)
    assert "t.jsonl: 10 of its 100 requests are used" in found.notes
    sample = list(read_requests(path, FilePart(sample=7)))
    assert len(sample) == 7 == survey_file(path, FilePart(sample=7)).num_requests
    assert sample == list(read_requests(path, FilePart(sample=7)))
    assert len(list(read_requests(path, FilePart(most=3)))) == 3
    with pytest.raises(KvplanError, match="no request between --from and --to"):
        survey_file(path, FilePart(start_seconds=1000))


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (FilePart(speed=2), "--speed needs a workload file with times"),
        (FilePart(start_seconds=1), "--from needs a workload file with times"),
        (FilePart(end_seconds=1), "--to needs a workload file with times"),
    ],
    ids=["speed", "from", "to"],
)
def test_options_of_times_need_times(tmp_path: Path, part: FilePart, sentence: str) -> None:
    path = tmp_path / "plain.csv"
    path.write_text("input_len,output_len\n3,4\n")
    with pytest.raises(UsageError, match=sentence):
        survey_file(path, part)


def test_requests_of_a_tick_are_spread_until_the_next(tmp_path: Path) -> None:
    path = trace(tmp_path / "coarse.jsonl", [0, 0, 0, 3000, 3000, 9000])
    part = FilePart(spreads_ticks=True)
    assert [each.arrival_seconds for each in read_requests(path, part)] == [0.0, 1.0, 2.0, 3.0, 6.0, 9.0]
    faster = FilePart(spreads_ticks=True, start_seconds=3, speed=2)
    assert [each.arrival_seconds for each in read_requests(path, faster)] == [0.0, 1.5, 3.0]


def test_the_last_tick_is_as_long_as_the_one_before(tmp_path: Path) -> None:
    path = trace(tmp_path / "coarse.jsonl", [0, 2000, 2000])
    assert [each.arrival_seconds for each in read_requests(path, FilePart(spreads_ticks=True))] == [0.0, 2.0, 3.0]


def test_turns_of_a_chat_stay_together(tmp_path: Path) -> None:
    lengths = {"input_length": 8, "output_length": 2}
    begun = [{"session_id": name, "timestamp": time} | lengths for name, time in (("a", 0), ("b", 0), ("c", 4000))]
    later = [{"session_id": name, "delay": 500} | lengths for name in "ab"]
    rows = [begun[0], later[0], begun[1], later[1], begun[2]]
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain = [each.arrival_seconds for each in read_requests(path)]
    spread = [each.arrival_seconds for each in read_requests(path, FilePart(spreads_ticks=True))]
    assert [late - at for at, late in zip(plain, spread, strict=True)] == [0.0, 0.0, 2.0, 2.0, 0.0]  # type: ignore[operator]


def test_a_coarse_clock_is_said(tmp_path: Path) -> None:
    path = trace(tmp_path / "coarse.jsonl", [3000 * (index // 4) for index in range(100)])
    said = "coarse.jsonl: its clock ticks every 3 s, and 4 requests share a tick on average: "
    assert said + "sent at once they wait for each other; --spread-ticks spreads them" in survey_file(path).notes
    assert said + "they are spread until the next one" in survey_file(path, FilePart(spreads_ticks=True)).notes
    fine = trace(tmp_path / "fine.jsonl", [3000 * (index // 4) + index for index in range(100)])
    assert not [note for note in survey_file(fine).notes if "clock" in note]


def test_ticks_of_a_file_out_of_order_are_refused(tmp_path: Path) -> None:
    path = trace(tmp_path / "mixed.jsonl", [0, 3000, 0])
    with pytest.raises(UsageError, match=r"--spread-ticks needs requests in order of time, and mixed\.jsonl has 1"):
        survey_file(path, FilePart(spreads_ticks=True))
