"""Prices of clouds and of one's own, what a million tokens costs, and renting against an API."""

import json
from dataclasses import astuple, replace

import pytest

from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.errors import KvplanError, UsageError
from kvplan.planner.answer.document import plan_document, plan_row
from kvplan.planner.answer.money import break_even, break_even_text
from kvplan.planner.question.asking import plan_request
from kvplan.planner.question.prices import ApiPrice, parse_api_price, parse_prices, read_prices
from kvplan.planner.search.plan import make_plan
from kvplan.settings import ServingSettings

LLAMA = resolve_model("llama-3.1-8b")


def _request(**options):
    load = {"users": 40, "ctx_max": "8k", "input_len": "2k", "output_len": "256"}
    return plan_request(EngineChoice("vllm"), ServingSettings(), **(load | options))


def _plan(**options):
    return make_plan(LLAMA, _request(**options))


def test_an_instance_is_paid_whole() -> None:
    found = _plan(gpu=["p5.48xlarge"])
    assert all(each.usd_per_hour == pytest.approx(55.04) for each in found.deployments)
    assert found.deployments[0].num_gpus > 1, "all of the instance is paid, and what is faster costs no more"
    assert found.request.max_gpus == 8
    cost = plan_document(found)["deployments"][0]["cost"]
    assert (cost["instance"], cost["num_instances"], cost["usd_per_hour"]) == ("p5.48xlarge", 1, 55.04)
    assert cost["price_date"] == "2026-11-09"


def test_of_gpus_named_twice_in_different_instances_one_is_asked_for() -> None:
    with pytest.raises(UsageError, match=r"p5\.48xlarge and h100-sxm are the same GPUs"):
        _request(gpu=["p5.48xlarge", "h100"])
    assert len(_request(gpu=["p5.48xlarge", "2xp5.48xlarge"]).gpus) == 1


def test_own_prices_of_gpus_and_of_instances() -> None:
    own = parse_prices(["H100=2.1", "nd96isr_h200_v5=$40"])
    assert own == {"h100-sxm": 2.1, "Standard_ND96isr_H200_v5": 40.0}
    request = _request(gpu=["h100", "h200", "l4"], price=["h100=2.1", "nd96isr_h200_v5=40"])
    h100, h200, l4 = request.gpus
    assert (h100.price.usd_per_hour, h100.rented_as) == (2.1, None)
    assert (h200.price.usd_per_hour, h200.rented_as) == (5.0, "Standard_ND96isr_H200_v5")
    assert l4.price.usd_per_hour == 0.44
    named = _request(gpu=["p5.48xlarge"], price=["p5.4xlarge=3"]).gpus[0]  # another instance's price
    assert named.price.usd_per_hour == pytest.approx(6.88)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("prices.csv", "# ours\nname, usd_per_hour, region\nH100, 1.9, eu\np4d.24xlarge, $9.5, us\n"),
        ("prices.csv", "gpu,usd\nh100-sxm,1.9\nP4D.24xlarge,9.5\n"),
        ("prices.json", '{"h100": 1.9, "p4d.24xlarge": 9.5}'),
        (
            "prices.json",
            '{"prices": [{"name": "h100", "usd_per_hour": 1.9}, {"instance": "p4d.24xlarge", "usd": "9.5"}]}',
        ),
    ],
)
def test_a_file_of_prices(tmp_path, name, text) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert read_prices(path) == {"h100-sxm": 1.9, "p4d.24xlarge": 9.5}
    request = _request(gpu=["h100", "a100-40gb-sxm"], prices=path, price=["h100=3"])
    assert [each.price.usd_per_hour for each in request.gpus] == [3, 9.5 / 8]
    assert name in request.gpus[1].price.source


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no prices"),
        ("name;usd\nh100;2\n", "a row without name"),
        ("name,usd\nh100,x\n", "the price of h100 is no number"),
        ("name,usd\nh100,-1\n", "the price of h100 is no number"),
        ("name,usd\nwarp-9,1\n", "no GPU profile named 'warp-9'"),
        ("[1]", "a row that is no object"),
        ("{", "is no list of prices"),
    ],
)
def test_a_file_that_is_none_names_itself(tmp_path, text, message) -> None:
    path = tmp_path / "ours.csv"
    path.write_text(text)
    with pytest.raises(KvplanError, match=message) as error:
        read_prices(path)
    assert str(path) in str(error.value)


def test_output_tokens_and_all_tokens() -> None:
    found = _plan(gpu=["h100"], price=["h100=3.6"])
    best = found.deployments[0]
    low, high, *_ = astuple(best.output_tokens_per_second.between)
    assert best.usd_per_million_output_tokens() == pytest.approx((1000 / high, 1000 / low))
    assert best.usd_per_million_tokens() == pytest.approx((1000 / high / 9, 1000 / low / 9))  # prompts of 2,048
    row = plan_row(best, "m")
    cost = plan_document(found)["deployments"][0]["cost"]
    assert [row["usd_per_million_tokens_low"], row["usd_per_million_tokens_high"]] == cost["usd_per_million_tokens"]
    assert cost["api"] is None and row["api_usd_per_hour_low"] is None
    no_price = replace(best.choice, gpu=replace(best.choice.gpu, price=None))
    assert set(plan_row(replace(best, choice=no_price), "m")) == set(row)


def test_renting_against_an_api() -> None:
    found = _plan(gpu=["h100"], price=["h100=3.6"], api_price="in=0.5,out=2")
    best, api = found.deployments[0], found.request.api_price
    each = (2048 * 0.5 + 256 * 2) / 1e6
    against = break_even(best, api)
    assert against.requests_per_hour == pytest.approx(3.6 / each)
    low, high, *_ = astuple(best.output_tokens_per_second.between)
    assert against.api_usd_per_hour == pytest.approx((low / 256 * 3600 * each, high / 256 * 3600 * each))
    assert against.share_of_load == pytest.approx(
        (3.6 / against.api_usd_per_hour[0], 3.6 / against.api_usd_per_hour[1])
    )
    assert against.cheaper == "renting"
    document = plan_document(found)
    assert document["request"]["api_usd_per_million_tokens"] == {"input": 0.5, "output": 2}
    assert document["deployments"][0]["cost"]["api"]["cheaper"] == "renting"
    assert json.dumps(document)
    middle = sum(against.api_usd_per_hour) / 2 / 3.6  # of a price so much lower, the range of speeds has both
    assert break_even(best, ApiPrice(0.5 / middle, 2 / middle)).cheaper == "unsure"
    cheap = ApiPrice(0.001, 0.001)
    assert break_even(best, cheap).cheaper == "api"
    assert "the API is cheaper" in break_even_text(best, cheap)
    assert break_even_text(best, None) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("in=0.6,out=2.4", (0.6, 2.4)),
        ("out=$2.4, in=0.6", (0.6, 2.4)),
        ("input:0.6;output:2.4", (0.6, 2.4)),
        ("1", (1, 1)),
    ],
)
def test_prices_of_an_api(text, expected) -> None:
    assert parse_api_price(text) == ApiPrice(*expected)


@pytest.mark.parametrize(
    "text", ["", "in=1", "in=1,in=2,out=3", "in=-1,out=2", "in=a,out=2", "in=0,out=0", "up=1,out=2", "1,2"]
)
def test_what_is_no_price_of_an_api(text) -> None:
    with pytest.raises(UsageError, match="--api-price"):
        parse_api_price(text)
