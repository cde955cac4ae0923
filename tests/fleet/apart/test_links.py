"""Transfers over links that they share, worked out by hand."""

from __future__ import annotations

import pytest

from kvplan.fleet.apart.links import Links


def test_one_transfer_has_the_slower_of_its_two_ends() -> None:
    links = Links({"p": 100.0, "d": 50.0})
    links.start(1.0, 7, "p", "d", 200)
    assert links.next_end() == 5.0
    assert links.take_ended(5.0) == [(5.0, 7)]
    assert links.next_end() == float("inf")


def test_two_transfers_share_their_sender_and_the_second_has_it_alone_afterwards() -> None:
    links = Links({"p": 100.0, "d0": 100.0, "d1": 100.0})
    links.start(0.0, 1, "p", "d0", 100)
    links.start(0.5, 2, "p", "d1", 100)
    # 50 bytes of the first are gone at 0.5; both go at 50 until 1.5, when the second has 50 bytes left, alone.
    assert links.take_ended(10.0) == [(pytest.approx(1.5), 1), (pytest.approx(2.0), 2)]


def test_what_one_end_cannot_take_is_left_to_others() -> None:
    links = Links({"p": 100.0, "slow": 20.0, "fast": 100.0})
    links.start(0.0, 1, "p", "slow", 20)
    links.start(0.0, 2, "p", "fast", 80)
    assert [number for _, number in links.take_ended(1.0)] == [1, 2]


def test_receivers_share_too() -> None:
    links = Links({"p0": 100.0, "p1": 100.0, "d": 100.0})
    links.start(0.0, 1, "p0", "d", 100)
    links.start(0.0, 2, "p1", "d", 100)
    assert [at for at, _ in links.take_ended(9.0)] == [pytest.approx(2.0), pytest.approx(2.0)]


@pytest.mark.parametrize("bandwidth", [float("inf"), 1e30])
def test_an_endless_link_takes_no_time(bandwidth: float) -> None:
    links = Links({"p": bandwidth, "d": bandwidth})
    links.start(3.0, 1, "p", "d", 10**12)
    links.start(3.0, 2, "p", "d", 0)
    assert links.take_ended(3.0) == [(3.0, 1), (3.0, 2)]


def test_no_byte_is_lost() -> None:
    links = Links({("p", 0): 3.0, ("p", 1): 7.0, ("d", 0): 5.0, ("d", 1): 11.0})
    for number in range(40):
        links.start(number * 0.37, number, ("p", number % 2), ("d", number // 3 % 2), 1 + number % 7)
    ended = links.take_ended(1e6)
    assert sorted(number for _, number in ended) == list(range(40))
    assert [at for at, _ in ended] == sorted(at for at, _ in ended)
    total = sum(1 + number % 7 for number in range(40))
    assert links.bytes_moved == total
    assert ended[-1].at >= total / 10.0  # both senders together
