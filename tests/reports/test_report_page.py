"""The page: well-formed, complete, alone in the world, and never markup where a file's text should be."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from html.parser import HTMLParser

import jinja2
import pytest
from markupsafe import Markup
from report_helpers import failed_records, records, sample_directory, sample_run, write_trials

from kvplan.reports.html.page import report_page
from kvplan.reports.html.rendering import breakable, data_uri, render
from kvplan.reports.pictures import PICTURES, Picture, draw_pictures
from kvplan.runs.storage.reader import Run, load_run

VOID = {"br", "img", "meta", "source", "wbr"}
FETCHING = {"src", "href", "srcset", "data", "action", "poster", "background"}


class PageReader(HTMLParser):
    """Collects what the tests ask for and fails on a tag that is closed wrongly."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, name, attributes):
        self.tags.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open and self.open[-1] == name, f"</{name}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag_name, attributes in self.tags if tag_name == name]


def stand_ins() -> list[Picture]:
    """Pictures that cost no drawing."""
    return [Picture(kind.name, kind.heading, f"finding of {kind.name}", b"PNG", 800) for kind in PICTURES]


def page_of(run: Run) -> PageReader:
    return PageReader(report_page(run, stand_ins()))


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> PageReader:
    return page_of(sample_run(tmp_path_factory.mktemp("run")))


def test_nothing_is_fetched(page):
    for name, attributes in page.tags:
        assert name not in {"link", "iframe", "object", "embed", "base"}
        for key in FETCHING & attributes.keys():
            assert re.match(r"(data:|#)", attributes[key] or ""), f"<{name} {key}={attributes[key][:60]}>"
    assert not re.search(r"url\(|@import|https?://", page.text)


def test_it_is_made_for_phones_and_paper(page):
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    assert "@media print" in page.text and "@media (max-width" in page.text
    boxes = [attributes for attributes in page.all("div") if attributes.get("class") == "scroll"]
    assert len(boxes) >= len(page.all("table")) + len(page.all("img"))


def test_commands_break_between_words_and_copy_whole(page):
    start = page.text.index("vllm serve")
    assert page.text[start:].startswith("vllm serve gpt2")
    spans = [attributes for attributes in page.all("span") if not attributes]
    assert len(spans) >= len(["vllm", "serve", "gpt2"])


def test_the_recommendation_comes_first_with_commands_to_paste(page):
    sections = [attributes["id"] for attributes in page.all("section")]
    expected = "recommendation outcomes throughput requests pareto occupancy predicted memory waste trials environment"
    assert sections == expected.split()
    assert "vllm serve gpt2" in page.text and "kvplan sweep --model gpt2" in page.text


def test_every_link_leads_somewhere(page):
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    targets = {attributes["href"][1:] for attributes in page.all("a") if attributes["href"].startswith("#")}
    assert targets and targets <= ids


def test_every_picture_is_in_it_with_its_finding(page):
    images = page.all("img")
    assert {image["alt"] for image in images} == {f"finding of {kind.name}" for kind in PICTURES}
    assert all(base64.b64decode(image["src"].split(",", 1)[1]) == b"PNG" for image in images)


def test_every_column_of_every_trial_is_in_it(page):
    words = page.text
    for name in records()[0]["row"]:
        assert name in words, name
    link = next(attributes for attributes in page.all("a") if attributes.get("download") == "results.csv")
    rows = list(csv.DictReader(io.StringIO(base64.b64decode(link["href"].split(",", 1)[1]).decode())))
    filled = {name for record in records() for name, value in record["row"].items() if value is not None}
    assert len(rows) == len(records()) and set(rows[0]) == filled


def test_cells_can_be_sorted_by_their_exact_value(page):
    values = {attributes.get("data-value") for attributes in page.all("td")}
    exact = next(r for r in records() if r["row"]["output_throughput"])["row"]["output_throughput"]
    assert str(exact) in values


def test_text_from_files_never_becomes_markup(tmp_path):
    attack = "<script>alert(1)</script>\"'><img src=http://example.invalid/x onerror=alert(1)>&amp;"
    kept = records()[::5]
    for record in kept:
        for column in ("model_id", "device_name", "error", "workload", "dtype", "run_id", "status"):
            record["row"][column] = attack
        record["row"][attack] = attack
    directory = sample_directory(tmp_path)
    write_trials(directory, kept)
    for name in ("manifest.json", "summary.json"):
        path = directory / name
        text = (
            path.read_text()
            .replace("gpt2", "<script>alert(1)</script><img src=x>")
            .replace("Sample CPU", "</title><b>")
        )
        path.write_text(text)
    hostile = page_of(load_run(directory))
    assert len(hostile.all("script")) == 1
    assert len(hostile.all("img")) == len(PICTURES)
    assert not any(key.startswith("on") for _, attributes in hostile.tags for key in attributes)
    assert attack in hostile.text


def test_nothing_served_says_why(tmp_path):
    found = page_of(load_run(write_trials(tmp_path, failed_records())))
    assert "No setting could be served" in found.text
    assert "The worker died by SIGKILL." in found.text
    assert "There is no manifest." in found.text


def test_a_run_without_a_served_trial_has_one_sentence_instead_of_empty_plots(tmp_path):
    run = load_run(write_trials(tmp_path, failed_records()))
    found = PageReader(report_page(run, draw_pictures(run)))
    assert (
        "No trial served its requests, so there is no throughput, latency, memory or occupancy to plot." in found.text
    )
    assert [attributes["id"] for attributes in found.all("figure")] == ["picture-outcomes"]
    sections = [attributes["id"] for attributes in found.all("section")]
    assert sections == ["recommendation", "outcomes", "trials", "environment"]
    assert [link["href"] for link in found.all("a")][:4] == [f"#{name}" for name in sections]


def test_predictions_of_nothing_are_not_counted(tmp_path):
    path = sample_directory(tmp_path) / "summary.json"
    summary = json.loads(path.read_text())
    summary["predictions"] |= {"num_compared": 0, "block_bytes_equal": 0, "num_blocks_equal": 0}
    path.write_text(json.dumps(summary))
    assert "0 of 0" not in page_of(load_run(tmp_path)).text


def test_a_phone_gets_drawings_of_its_own_width(tmp_path, monkeypatch):
    """test_report_pictures.py draws all of them."""
    run = sample_run(tmp_path)
    monkeypatch.setattr("kvplan.reports.pictures.PICTURES", PICTURES[:1])
    (picture,) = draw_pictures(run, with_narrow=True)
    (source,) = PageReader(report_page(run, [picture])).all("source")
    assert source["media"] == "(max-width: 640px)"
    assert base64.b64decode(source["srcset"].split(",", 1)[1]) == picture.narrow_png
    (picture,) = draw_pictures(run)
    assert picture.narrow_png is None, "nobody asked for it"


def test_what_could_not_be_read_stands_on_the_page(tmp_path):
    directory = write_trials(tmp_path, records()[:4])
    with (directory / "trials.jsonl").open("a") as file:
        file.write('{"torn": ')
    assert "Line 5 of trials.jsonl could not be read and was skipped." in page_of(load_run(directory)).text


def test_an_interrupted_sweep_says_so(tmp_path):
    path = sample_directory(tmp_path) / "summary.json"
    path.write_text(path.read_text().replace('"schema"', '"interrupted": true,\n "schema"', 1))
    path.write_text(path.read_text().replace(f'"num_trials": {len(records())}', '"num_trials": 60'))
    text = page_of(load_run(tmp_path)).text
    assert "The sweep was interrupted" in text
    assert f"{len(records())} of 60 trials have finished; --resume runs the others." in text


def test_real_pictures_stand_in_the_page(tmp_path):
    run = load_run(write_trials(tmp_path, failed_records()[:1]))
    read = PageReader(report_page(run, draw_pictures(run)))
    assert all(base64.b64decode(image["src"].split(",", 1)[1]).startswith(b"\x89PNG") for image in read.all("img"))


def test_templates_escape_everything_but_markup():
    assert breakable("a_b.c<_") == "a_<wbr>b.<wbr>c&lt;_<wbr>"
    assert isinstance(breakable("a_b"), Markup)
    page = render("document.html.j2", title="<b>&'\"")
    assert "<title>&lt;b&gt;&amp;&#39;&#34; · kvplan</title>" in page


def test_a_template_that_lacks_a_value_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match="title"):
        render("document.html.j2")


def test_contents_become_addresses():
    assert data_uri(b"PNG", "image/png") == "data:image/png;base64,UE5H"


def test_a_cell_is_sorted_by_false_too(tmp_path):
    kept = records()[:2]
    for record in kept:
        record["row"]["slo_pass"] = record["row"]["trial_number"] == 1
    values = [cell["data-value"] for cell in page_of(load_run(write_trials(tmp_path, kept))).all("td")]
    assert {"True", "False"} <= set(values)
