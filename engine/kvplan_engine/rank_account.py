"""What a rank takes of its device beside the pool, given instead of counted (``load_format="none"``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvplan_engine.errors import SettingsError


@dataclass(frozen=True, slots=True)
class RankAccount:
    """A rank of one pipeline stage with ``num_layers`` of the model. Bytes of its device; the rest is the pool's.

    weight_bytes: with the slots of adapters, which take adapter_bytes. overhead_bytes: of what is not a tensor.
    """

    num_layers: int
    weight_bytes: int
    activation_bytes: int
    overhead_bytes: int
    adapter_bytes: int = 0


def read_accounts(value: Any, num_stages: int) -> tuple[RankAccount, ...] | None:
    """``value`` as accounts, one for each of ``num_stages``, from objects or from dicts as JSON has them.

    SettingsError for anything else.
    """
    if value is None:
        return None
    try:
        if not isinstance(value, Sequence):
            raise TypeError
        accounts = tuple(each if isinstance(each, RankAccount) else RankAccount(**each) for each in value)
    except TypeError:
        raise SettingsError("rank_accounts must be a list with the bytes of a rank of each stage.") from None
    if len(accounts) != num_stages:
        raise SettingsError(f"rank_accounts has {len(accounts)} stages, and pipeline_parallel_size is {num_stages}.")
    return accounts
