"""GGUF files by their names: on a hub, in its cache, and in the folders of Ollama and LM Studio; and files in parts."""

from __future__ import annotations

import json
import threading
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

import draftwood
from draftwood.cli import main
from draftwood.core.errors import ModelError
from draftwood.loading import gguf_names
from draftwood.loading.gguf_header import header_of
from draftwood.loading.gguf_names import choose, file_here, repository
from draftwood.loading.names import gguf_file_of, locate
from tests.loading.gguf_files import F16, Q8_0, source, write_gguf

REPO, TEXT = "someone/fox-GGUF", "the fox ran to the red hill"
COMMIT = "0" * 40


class Hub(BaseHTTPRequestHandler):
    """The hub's routes for the files of one repository."""

    files: dict[str, bytes]

    def do_GET(self):
        if self.path.startswith(f"/api/models/{REPO}"):
            listed = [{"rfilename": name} for name in self.files]
            return self._answer(200, json.dumps({"id": REPO, "sha": COMMIT, "siblings": listed}).encode())
        data = self.files.get(self.path.removeprefix(f"/{REPO}/resolve/").partition("/")[2])
        if data is None:
            return self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        return self._answer(200, data, {"ETag": f'"{sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT})

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, status, data, headers=None):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The files of a hub with one repository; its cache and the home folder are empty."""
    first = write_gguf(tmp_path / "made" / "fox-Q4_K_M.gguf", *source(), F16, parts=12)
    small = write_gguf(tmp_path / "small.gguf", *source(layers=1), Q8_0)
    Hub.files = {path.name: path.read_bytes() for path in first.parent.iterdir()}
    Hub.files |= {"README.md": b"", "mmproj-fox-F16.gguf": b"no model", "fox-Q8_0.gguf": small.read_bytes()}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    at = f"http://127.0.0.1:{server.server_port}"
    places = {"ENDPOINT": at, "HUGGINGFACE_CO_URL_TEMPLATE": at + "/{repo_id}/resolve/{revision}/{filename}"}
    for name, value in {**places, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": False}.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    gguf_names.on_hub.cache_clear()
    yield Hub.files
    server.shutdown()
    server.server_close()


def test_a_name_of_the_hub_is_downloaded_once_and_then_found(hub, tmp_path):
    locate(REPO, fetch=False)
    assert file_here(REPO) is None
    found = CliRunner().invoke(main, ["pull", REPO])
    assert found.exit_code == 0, found.output
    path = Path(found.stdout.strip())
    assert path.name == "fox-Q4_K_M-00001-of-00002.gguf", "the default, and the first of its parts"
    assert path == gguf_file_of(REPO) == locate(f"{REPO}:q4_k_m")
    assert not list((tmp_path / "cache").rglob("mmproj*"))
    assert gguf_file_of(f"{REPO}:Q8_0") is None
    hub.pop("README.md")
    assert Path(locate(f"{REPO}:Q8_0")).read_bytes() == hub["fox-Q8_0.gguf"]
    listed = json.loads(CliRunner().invoke(main, ["models", "--json"]).stdout)["gguf_files"]
    assert listed.keys() == {f"{REPO}:fox-Q4_K_M", f"{REPO}:fox-Q8_0"}
    assert all(gguf_file_of(name) == Path(file) for name, file in listed.items())
    with pytest.raises(ModelError, match=r"'someone/fox-GGUF' has no file Q2_K: it has fox-Q4_K_M.gguf, fox-Q8_0.gguf"):
        locate(f"{REPO}:Q2_K", fetch=False)
    with pytest.raises(ModelError, match="the hub knows no such model"):
        locate("someone/else-GGUF", fetch=False)


def test_a_model_in_parts_is_the_whole_one(tmp_path):
    whole = write_gguf(tmp_path / "whole" / "fox.gguf", *source(), F16)
    first = write_gguf(tmp_path / "fox-Q4_K_M.gguf", *source(), F16, parts=12)
    second = first.with_name("fox-Q4_K_M-00002-of-00002.gguf")
    options = {"backend": "native", "dtype": "float32"}
    texts = [
        draftwood.load(name, options=options).generate(TEXT, max_new_tokens=20, temperature=1, seed=1).token_ids
        for name in (whole, first, tmp_path)
    ]
    assert texts[0] == texts[1] == texts[2]
    assert header_of(second) == header_of(first), "any part stands for all"
    second.unlink()
    with pytest.raises(ModelError, match=r"one of 2 parts, and 'fox-Q4_K_M-00002-of-00002.gguf' is not in its folder"):
        draftwood.load(first, options=options)


@pytest.mark.usefixtures("hub")
def test_files_of_ollama_and_lm_studio_are_found_by_name(tmp_path):
    path, models = write_gguf(tmp_path / "fox.gguf", *source()), tmp_path / "home" / ".ollama" / "models"
    layers = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{kind}"} for kind in ("template", "model")
    ]
    for place in ("registry.ollama.ai/library/fox/latest", "hf.co/someone/red-fox/Q8_0"):
        (models / "manifests" / place).parent.mkdir(parents=True)
        (models / "manifests" / place).write_text(json.dumps({"layers": layers}))
    (models / "blobs").mkdir()
    blob = models / "blobs" / "sha256-model"
    blob.write_bytes(path.read_bytes())
    kept = tmp_path / "home" / ".lmstudio" / "models" / "someone" / "other-fox" / "other-fox-Q8_0.gguf"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(path.read_bytes())
    assert gguf_file_of("fox:latest") == gguf_file_of("hf.co/someone/red-fox:Q8_0") == blob
    assert gguf_file_of("someone/other-fox:Q8_0") == kept
    shown = CliRunner().invoke(main, ["models"]).stdout
    assert all(name in shown for name in ("fox:latest", "hf.co/someone/red-fox:Q8_0", "someone/other-fox:other-fox-Q8_0"))


@pytest.mark.parametrize(("files", "tag", "chosen"), [
    (["a-Q8_0.gguf", "a-Q4_K_M.gguf"], "", "a-Q4_K_M.gguf"),
    (["a.Q8_0.gguf", "a.IQ2_M.gguf"], "", "a.Q8_0.gguf"),
    (["a-UD-Q4_K_M.gguf", "a-Q4_K_M.gguf"], "Q4_K_M", "a-Q4_K_M.gguf"),
    (["Q4_0/a-Q4_0.gguf", "a-Q4_0_4_4.gguf"], "q4_0", "Q4_0/a-Q4_0.gguf"),
    (["strange.gguf", "mmproj-a-Q4_K_M.gguf"], "", "strange.gguf"),
])  # fmt: skip
def test_the_quantisation_is_chosen(files, tag, chosen):
    assert choose(files, tag, "a/b") == [chosen]


def test_other_names_are_no_files_of_the_hub():
    assert [repository(name) for name in ("a/b", "b-GGUF", "./a/b-gguf", "smollm2", Path("a/b-GGUF"))] == [None] * 5
    assert repository("a/b:Q8_0") == ("a/b", "Q8_0")
