"""What the engine's process waits for while nothing runs: a message, or the end of another rank."""

from __future__ import annotations

import os
import select
import signal
import socket

import pytest

from kvplan_engine.description.division import Rank
from kvplan_engine.errors import RankDied
from kvplan_engine.execution.ranks.group import RankGroup
from kvplan_engine.server.engine_process.channel import ApiGone, Channel
from kvplan_engine.server.messages import Stop, frame


def test_a_message_or_another_descriptor_ends_the_wait() -> None:
    own, api = socket.socketpair()
    read, write = os.pipe()
    with own, api:
        channel = Channel(own)
        channel.wake_by([read])
        api.sendall(frame(Stop()))
        assert channel.receive(wait=True) == [Stop()]
        os.close(write)
        assert channel.receive(wait=True) == []
        api.close()
        with pytest.raises(ApiGone):
            channel.receive(wait=True)
    os.close(read)


def test_a_rank_that_dies_while_nothing_runs_is_named() -> None:
    group = RankGroup([Rank(0, 2), Rank(1, 2)])
    try:
        group.check()
        os.kill(group.pids[0], signal.SIGKILL)
        assert select.select(group.descriptors, [], [], 60)[0]
        with pytest.raises(RankDied, match="rank 1 of 2 was ended by SIGKILL"):
            group.check()
        assert group.has_ended
    finally:
        group.close()
