"""The site of ``kvplan web``: whole, from one place, and served as browsers want it."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import threading
import urllib.request
import zipfile
from pathlib import Path

import pytest

from kvplan.errors import KvplanError, UsageError
from kvplan.site import writing
from kvplan.site.serving import site_server
from kvplan.site.writing import FILES, PAGE, planner_archive, pyodide_folder, write_site
from kvplan.web.bridge import answer


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A folder with files of Pyodide's names: what is written and served depends on no more."""
    folder = tmp_path / "pyodide"
    folder.mkdir()
    for name in FILES:
        (folder / name).write_bytes(name.encode())
    return folder


def archive_of(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def test_an_export_is_whole(stand_in: Path, tmp_path: Path, printed_by) -> None:
    site = tmp_path / "site"
    assert "python -m http.server --directory" in printed_by("web", "--export", str(site), "--pyodide", str(stand_in))
    contents = json.loads((site / "site.json").read_text())
    there = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    assert set(contents["files"]) == there - {"site.json"}
    assert {path.name for path in PAGE.iterdir()} | {"kvplan.zip"} <= there
    assert (site / "known.json").read_text() == answer('{"ask": "known"}'), "the controls' names are the planner's"
    name = contents["name"]
    write_site(site, stand_in)
    assert json.loads((site / "site.json").read_text())["name"] == name, "the same site has the same name"


def test_the_archive_is_the_planner_alone(tmp_path: Path) -> None:
    """It answers in a Python that has nothing else: not typer, not rich, not the engine."""
    with zipfile.ZipFile(io.BytesIO(planner_archive())) as archive:
        archive.extractall(tmp_path)
    code = (
        "import sys, json; sys.path[:0] = [sys.argv[1]]; from kvplan.web.bridge import answer\n"
        "import kvplan; assert kvplan.__file__.startswith(sys.argv[1])\n"
        "ask = lambda name, **given: json.loads(answer(json.dumps({'ask': name, 'arguments': given})))\n"
        "assert ask('estimate', model='llama-3.1-8b', gpu='h100', ctx='16k')['view']['verdict']['state'] == 'fits'\n"
        "assert ask('plan', model='gpt2', users=4, ctx_avg='512', gpu='l4')['view']['rows']\n"
        "assert ask('changes', model='gpt2', gpu='l4')['changes'] and ask('known')['gpus']\n"
        "assert 'error' in ask('explain', log='nothing') and 'error' in ask('rows', text='a')\n"
        "others = {each.partition('.')[0] for each in sys.modules} - set(sys.stdlib_module_names)\n"
        "print(sorted(others - {'__main__', 'kvplan'}))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-I", "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_folder_of_something_else_is_left_alone(stand_in: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years")
    with pytest.raises(UsageError, match="is not empty"):
        write_site(tmp_path / "mine", stand_in)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_another_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(tmp_path / "cache"))
    content = archive_of(dict.fromkeys(FILES, b"x"))
    (tmp_path / "other.tgz").write_bytes(content)
    with pytest.raises(KvplanError, match="is not Pyodide"):
        pyodide_folder(tmp_path / "other.tgz")
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(writing, "SHA256", hashlib.sha256(content).hexdigest())
    kept = pyodide_folder(tmp_path / "other.tgz")
    assert {path.name for path in kept.iterdir()} == set(FILES)
    assert pyodide_folder() == kept, "kept, it is not fetched again"


def test_a_folder_without_all_of_it_is_refused(stand_in: Path) -> None:
    (stand_in / FILES[0]).unlink()
    with pytest.raises(UsageError, match="has not all of"):
        pyodide_folder(stand_in)
    with pytest.raises(UsageError, match="There is no file"):
        pyodide_folder(stand_in / "nowhere")


def test_modules_are_served_as_modules(stand_in: Path, tmp_path: Path) -> None:
    """Under the types without which a browser runs neither modules nor WebAssembly, and to this machine alone."""
    write_site(tmp_path / "site", stand_in)
    with site_server(tmp_path / "site", 0) as server:
        host, port = server.server_address[:2]
        assert host == "127.0.0.1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for path, kind in {
            "main.mjs": "text/javascript",
            "pyodide/pyodide.asm.wasm": "application/wasm",
            "": "text/html",
        }.items():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}") as response:
                assert response.headers["Content-Type"] == kind
        server.shutdown()


def test_the_page_asks_no_other_host_than_the_hub() -> None:
    hosts = {
        host for path in PAGE.iterdir() for host in re.findall(r"https?://([\w*.-]+)", path.read_text(encoding="utf-8"))
    }
    assert hosts == {"huggingface.co", "*.huggingface.co", "*.hf.co", "www.w3.org"}, "the last is a namespace"


def test_every_module_that_is_imported_is_there() -> None:
    for path in PAGE.glob("*.mjs"):
        for name in re.findall(r'from "\./([\w.]+)"', path.read_text(encoding="utf-8")):
            assert (PAGE / name).is_file(), f"{path.name} imports {name}"
