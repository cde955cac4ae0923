"""A GPU that others use too: what is left of it, which share vLLM is told, and several models on one card."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvplan.catalog.devices.gpus import GpuCount, find_gpu
from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.answer import EstimateAnswer
from kvplan.estimate.question import Question, answer_question
from kvplan.estimate.shared_gpu import share_gpu
from kvplan.settings import ServingSettings
from kvplan.units import GIB

L40S = find_gpu("l40s")


def sized(model: str, gpu: str = "l40s", version: str = "", **settings: object) -> EstimateAnswer:
    question = Question(8192, ServingSettings(**settings))  # type: ignore[arg-type]
    engine = EngineChoice("vllm", version or "0.33.0")
    return answer_question(resolve_model(model), question, [GpuCount(1, find_gpu(gpu))], engine, MeasuredProfiles())


def test_a_reserve_changes_the_share_of_the_whole_memory() -> None:
    """An L40S with 6 GiB of others: the pool of a card of 38.42 GiB, with 0.795 of the real one."""
    beside = sized("llama-3.1-8b", reserved_bytes=6 * GIB).deployments[0]
    smaller = sized("llama-3.1-8b", device_memory_bytes=L40S.memory_bytes - 6 * GIB).deployments[0]
    assert beside.settings.gpu_memory_utilization == 0.795
    assert beside.settings.device_memory_bytes == L40S.memory_bytes
    assert 0 <= smaller.kv_pool_bytes - beside.kv_pool_bytes <= 0.001 * L40S.memory_bytes


@pytest.mark.parametrize(("version", "counts", "checks"), [("0.7.3", False, False), ("0.8.5", True, False),
                                                          ("0.9.0", True, False), ("0.9.1", False, True)])  # fmt: skip
def test_releases_count_others_or_ask_for_free_memory(version: str, counts: bool, checks: bool) -> None:
    release = vllm_release(version)
    assert (release.counts_other_processes, release.checks_free_memory) == (counts, checks)
    own = sized("llama-3.1-8b", version=version, reserved_bytes=6 * GIB).deployments[0]
    left = release.gpu_memory_utilization * (L40S.memory_bytes - 6 * GIB)
    assert own.budget_bytes == pytest.approx(left, abs=0.001 * L40S.memory_bytes)
    expected = left + (6 * GIB if counts else 0)
    assert own.settings.gpu_memory_utilization == pytest.approx(expected / L40S.memory_bytes, abs=0.001)


def test_a_share_that_is_not_free_is_refused() -> None:
    with pytest.raises(UsageError, match=r"does not start beside 6\.00 GiB of others: its gpu_memory_utilization 0\.9"):
        sized("llama-3.1-8b", reserved_bytes=6 * GIB, gpu_memory_utilization=0.9)
    assert sized("llama-3.1-8b", reserved_bytes=6 * GIB, gpu_memory_utilization=0.8).deployments[0].fits
    assert sized("llama-3.1-8b", version="0.8.5", reserved_bytes=6 * GIB, gpu_memory_utilization=0.9).deployments
    with pytest.raises(UsageError, match=r"leaves nothing of 44\.42 GiB"):
        sized("llama-3.1-8b", reserved_bytes=60 * GIB)


def test_models_on_one_gpu_hold_as_many_sequences_each() -> None:
    alone = [sized("llama-3.1-8b", "h100"), sized("qwen3-8b", "h100")]
    shared = share_gpu(alone, EngineChoice("vllm", "0.33.0"))
    total = find_gpu("h100").memory_bytes
    first, second = shared.shares
    assert (first.others_bytes, 0) == (0, 0) and second.others_bytes == pytest.approx(
        first.utilization * total + GIB / 2, abs=0.002 * total
    )
    assert first.utilization + second.utilization < 0.92
    for share, model in zip(shared.shares, ("llama-3.1-8b", "qwen3-8b"), strict=True):
        asked = {"gpu_memory_utilization": share.utilization, "reserved_bytes": share.others_bytes or None}
        found = sized(model, "h100", **asked).deployments[0]
        assert found.fits and found.max_concurrency == pytest.approx(shared.sequences, rel=0.02)


def test_shares_add_up_where_a_release_counts_others() -> None:
    alone = [sized(model, "h100", "0.8.5") for model in ("llama-3.1-8b", "qwen3-8b")]
    first, second = share_gpu(alone, EngineChoice("vllm", "0.8.5")).shares
    assert second.utilization > 2 * first.utilization - 0.05 and second.utilization <= 0.92


def test_models_that_do_not_fit_together_say_what_they_take() -> None:
    alone = [sized(model, "4090") for model in ("llama-3.1-8b", "qwen3-8b")]
    with pytest.raises(KvplanError, match=r"2 models do not fit on this GPU together: .* 21\.17 of 23\.55 GiB"):
        share_gpu(alone, EngineChoice("vllm"))


def test_sharing_is_about_several_models_on_one_gpu() -> None:
    with pytest.raises(UsageError, match="several models on one GPU"):
        share_gpu([sized("llama-3.1-8b")], EngineChoice("vllm"))


def test_the_command_says_what_to_set(printed_by: Callable[..., str]) -> None:
    words = ["estimate", "qwen3-8b", "qwen3-4b", "--gpu", "h100", "--ctx", "8k", "--share-gpu"]
    printed = printed_by(*words)
    assert "Together on one h100-sxm: Qwen/Qwen3-8B --gpu-memory-utilization 0." in " ".join(printed.split())
