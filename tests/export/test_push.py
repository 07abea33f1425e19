"""Upload to a server in this process, in place of the hub."""

import base64
import json
import runpy
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from dragoman.errors import UserError

SCRIPT = Path(__file__).parents[2] / "scripts" / "export.py"


class Handler(BaseHTTPRequestHandler):
    """The hub's answers to an upload."""

    requests: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.requests.append((self.path, body))
        url = f"http://{self.headers['Host']}/me/model"
        answer: dict[str, Any] = {"url": url, "commitUrl": f"{url}/commit/1", "commitOid": "1"}
        if "/preupload/" in self.path:
            paths = [file["path"] for file in json.loads(body)["files"]]
            answer["files"] = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, bytes]]]:
    """The requests of the test, path and body."""
    Handler.requests = []
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        yield Handler.requests
        server.shutdown()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(bytes(range(256)))
    (tmp_path / "README.md").write_text("---\nlanguage: en\n---\n")
    return tmp_path


def test_push_sends_every_file(hub: list[tuple[str, bytes]], folder: Path) -> None:
    runpy.run_path(str(SCRIPT))["push"](folder, "me/model", False)
    bodies = {path.rpartition("/")[2] if "repos" in path else path: body for path, body in hub}
    assert json.loads(bodies["create"])["visibility"] == "private"
    entries = [json.loads(line)["value"] for line in bodies["/api/models/me/model/commit/main"].splitlines()]
    sent = {entry["path"]: base64.b64decode(entry["content"]) for entry in entries if "path" in entry}
    assert sent == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_push_sends_nothing_after_an_error_or_in_a_dry_run(
    hub: list[tuple[str, bytes]], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = runpy.run_path(str(SCRIPT))
    push = program["push"]
    push(folder, "me/model", True)
    out = capsys.readouterr().out
    assert all(part in out for part in ("me/model", "model.safetensors", "README.md"))
    with pytest.raises(UserError, match="a/b/c: not sent"):
        push(folder, "a/b/c", False)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    assert program["main"](["--model", str(folder), "--to", "huggingface", "--push", "me/model"]) == 2
    assert "no access token" in capsys.readouterr().err
    assert not hub
