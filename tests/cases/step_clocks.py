"""Clocks of plays and simulations whose steps are easy to count with."""

from __future__ import annotations


class EvenClock:
    """Every step takes a second, so that times count steps."""

    def seconds(self, *of_a_step: float) -> float:
        return 1.0


class PromptClock:
    """20 ms a step, and 1 ms for each token of a prompt."""

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        return 0.02 + 0.001 * (num_tokens - num_sequences)


class FullClock:
    """Steps whose length depends on everything a step is told."""

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        load = num_tokens + 3 * num_sequences + 5 * num_sampled + 0.01 * num_kv_tokens + 0.001 * num_pairs
        return 0.01 + 1e-4 * load
