"""A stand-in for the Hugging Face hub on loopback: one dataset repository, and the few addresses its clients ask for.

It answers in the words of the real one (commit and ETag headers, a tree of files, LFS entries, error codes), so that
`datasets` and `huggingface_hub` go their own ways unpatched. It refuses to know what is in the files.
"""

import hashlib
import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LFS_FROM = 1_000  # bytes: larger files than this are kept as LFS objects, as the hub does with parquet files


class Hub:
    """A dataset `name` made of `files` (path -> content) at `url`; `asked` is what it was asked for, in order."""

    def __init__(self, name: str, files: dict[str, bytes]) -> None:
        self.name, self.files, self.url = name, files, ""
        self.asked: list[str] = []

    def tree(self, folder: str, recursive: bool) -> list[dict[str, object]] | None:
        """What lies in `folder`; None when there is no such folder."""
        prefix = f"{folder}/" if folder else ""
        below = {path: content for path, content in self.files.items() if path.startswith(prefix)}
        if not below:
            return None
        folders = {
            prefix + "/".join(parts[: i + 1])
            for parts in (path.removeprefix(prefix).split("/") for path in below)
            for i in range(len(parts) - 1)
        }
        entries = [_folder(path) for path in sorted(folders)] + [_file(*item) for item in below.items()]
        return [e for e in entries if recursive or "/" not in str(e["path"]).removeprefix(prefix)]

    def entry(self, path: str) -> dict[str, object] | None:
        """A file or a folder of the repository, as the tree lists it."""
        if path in self.files:
            return _file(path, self.files[path])
        return _folder(path) if self.tree(path, False) else None

    def about(self) -> dict[str, object]:
        """The repository, as /api/datasets/<name> tells it."""
        siblings = [{"rfilename": path} for path in self.files]
        facts = {"private": False, "gated": False, "disabled": False, "tags": [], "downloads": 0, "likes": 0}
        return {"id": self.name, "sha": COMMIT, "siblings": siblings, **facts}


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Answer for `hub` on loopback; `hub.url` is its address, dead when the block is left."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = urllib.parse.urlsplit(self.path)
        path, query = urllib.parse.unquote(address.path), urllib.parse.parse_qs(address.query)
        self.hub.asked.append(f"{self.command} {path}")
        api, files = f"/api/datasets/{self.hub.name}", f"/datasets/{self.hub.name}/resolve/"
        if path == api or path == f"{api}/revision/main" or path == f"{api}/revision/{COMMIT}":
            self._json(self.hub.about())
        elif path.startswith(f"{api}/tree/"):
            folder = path.removeprefix(f"{api}/tree/").partition("/")[2]
            self._json(self.hub.tree(folder, query.get("recursive", [""])[0].lower() == "true"))
        elif path.startswith(f"{api}/paths-info/"):
            wanted = urllib.parse.parse_qs(body.decode()).get("paths", [])
            if self.headers.get_content_type() == "application/json":
                wanted = json.loads(body)["paths"]
            self._json([entry for entry in map(self.hub.entry, wanted) if entry])
        elif path.startswith(files):
            self._content(path.removeprefix(files).partition("/")[2])
        else:
            self._missing("RepoNotFound")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.do_GET()

    def _content(self, path: str) -> None:
        if path not in self.hub.files:
            self._missing("EntryNotFound")
            return
        content, etag = self.hub.files[path], str(_file(path, self.hub.files[path])["oid"])
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        start, _, stop = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        if start or stop:
            first, last = int(start or 0), min(int(stop or len(content)), len(content) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            self._send(206, content[first : last + 1], "application/octet-stream", headers)
        else:
            self._send(200, content, "application/octet-stream", headers)

    def _json(self, value: object) -> None:
        if value is None:
            self._missing("EntryNotFound")
        else:
            self._send(200, json.dumps(value).encode(), "application/json", {"X-Repo-Commit": COMMIT})

    def _missing(self, code: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": "not here", "X-Repo-Commit": COMMIT}
        self._send(404, json.dumps({"error": "not here"}).encode(), "application/json", headers)

    def _send(self, status: int, body: bytes, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """The log is `hub.asked`."""


def _file(path: str, content: bytes) -> dict[str, object]:
    git = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
    entry: dict[str, object] = {"type": "file", "path": path, "size": len(content), "oid": git}
    if len(content) > LFS_FROM:
        entry["lfs"] = {
            "oid": hashlib.sha256(content).hexdigest(),
            "size": len(content),
            "pointerSize": 130,
        }
    return entry


def _folder(path: str) -> dict[str, object]:
    return {"type": "directory", "path": path, "size": 0, "oid": hashlib.sha1(path.encode()).hexdigest()}
