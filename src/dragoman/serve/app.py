"""HTTP application: LibreTranslate's endpoints, the page, and limits."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import dragoman
from dragoman.errors import UserError
from dragoman.languages import english_name, primary
from dragoman.serve import codes, explained, wire
from dragoman.serve.models import Models
from dragoman.serve.service import Service

PAGE = Path(__file__).with_name("page.html")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
FILE_FORMATS = {".txt": "text", ".html": "html"}
MOST_FILES = 20  # translated files kept in memory for downloads
ERRORS: dict[int | str, Any] = {code: {"model": wire.Error} for code in (400, 413, 429, 500, 503)}


@dataclass(frozen=True)
class Limits:
    """Limits of a request, and of the number of requests in progress."""

    chars: int = 50_000
    body: int = 2_000_000
    seconds: float = 30.0
    waiting: int = 256


class LimitMiddleware:
    """Middleware that bounds the body, the time and the number of requests."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app, self.limits, self.n_waiting = app, limits, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        limits, size = self.limits, 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limits.body:
                raise HTTPException(413, f"Invalid request: the body exceeds {limits.body} bytes")
            return message

        if self.n_waiting >= limits.waiting:
            text = f"Slowdown: {limits.waiting} requests are in progress. Try again later"
            return await JSONResponse({"error": text}, 429, {"Retry-After": "1"})(scope, receive, send)
        self.n_waiting += 1
        try:
            async with asyncio.timeout(limits.seconds):
                await self.app(scope, limited, send)
        except TimeoutError:
            text = f"The translation took longer than {limits.seconds:g} s. Send a shorter text"
            await JSONResponse({"error": text}, 503)(scope, receive, send)
        finally:
            self.n_waiting -= 1


def create_app(models: Models, suggestions: Path, limits: Limits = Limits(), beam: int | None = None) -> FastAPI:
    """Return the application; `suggestions` is the file that /suggest writes.

    `beam` replaces the beam size of the bundles.
    """
    summary = "Translation with the interface of LibreTranslate"
    # FastAPI's pages of documentation load scripts from elsewhere.
    pages: dict[str, Any] = {"docs_url": None, "redoc_url": None}
    app = FastAPI(title="Dragoman", summary=summary, version=dragoman.__version__, **pages)
    app.add_middleware(LimitMiddleware, limits=limits)
    headers = ["Authorization", "Content-Type"]
    app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["GET", "POST"], allow_headers=headers)
    for kind in (AnyHTTPException, UserError, Exception):
        app.add_exception_handler(kind, error_answer)
    service = Service(models, suggestions, limits.chars, beam)
    _add_information(app, service)
    _add_translation(app, service)
    _add_files(app, service)
    return app


async def error_answer(request: Request, error: Exception) -> JSONResponse:
    """Return {"error": text}; only the texts of HTTPException and UserError are shown."""
    if isinstance(error, AnyHTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    text, code = (str(error), 400) if isinstance(error, UserError) else ("Internal server error", 500)
    return JSONResponse({"error": text}, code)


def _add_information(app: FastAPI, service: Service) -> None:
    models = service.models

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(PAGE.read_text("utf-8"), headers={"Content-Security-Policy": POLICY})

    @app.get("/languages")
    async def languages() -> list[wire.Language]:
        return service.languages()

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "models": [model.status() for model in models.models]}

    @app.get("/frontend/settings")
    async def settings() -> dict[str, Any]:
        source, target = ({"code": codes.spellings(c)[0], "name": english_name(c)} for c in models.directions[0])
        return {
            "charLimit": service.max_chars,
            "frontendTimeout": 500,
            "apiKeys": False,
            "keyRequired": False,
            "suggestions": True,
            "filesTranslation": True,
            "supportedFilesFormat": list(FILE_FORMATS),
            "language": {"source": source, "target": target},
        }


def _add_translation(app: FastAPI, service: Service) -> None:
    def add(path: str, kind: type, answer: Any, work: Callable[[Any], Awaitable[Any]]) -> None:
        async def endpoint(request: Request) -> Any:
            return await work(wire.parse(kind, await wire.values(request)))

        options: dict[str, Any] = {"response_model": answer, "response_model_exclude_none": True, "responses": ERRORS}
        app.post(path, name=path, openapi_extra=wire.documented(kind), **options)(endpoint)

    def alone(function: Callable[..., Any]) -> Callable[[Any], Awaitable[Any]]:
        return lambda request: service.batches.alone(function, service, request)

    add("/translate", wire.Translate, wire.Translated, service.translate)
    add("/detect", wire.Detect, list[wire.Detected], service.detect)
    add("/suggest", wire.Suggest, dict[str, bool], service.suggest)
    add("/explain", wire.Languages, dict[str, Any], alone(explained.explain))
    add("/trace", wire.Trace, dict[str, Any], alone(explained.trace))


def _add_files(app: FastAPI, service: Service) -> None:
    files: dict[str, str] = {}

    @app.post("/translate_file", responses=ERRORS, openapi_extra=wire.uploaded())
    async def translate_file(request: Request) -> dict[str, str]:
        fields = await wire.values(request)
        upload = fields.pop("file", None)
        if not isinstance(upload, UploadFile):
            raise HTTPException(400, "Invalid request: missing file parameter")
        suffix, data = Path(upload.filename or "").suffix.lower(), await upload.read()
        if suffix not in FILE_FORMATS or b"\0" in data:
            raise HTTPException(400, f"Invalid request: the file is not text in {' or '.join(FILE_FORMATS)}")
        text = data.decode("utf-8-sig", "replace") or "\n"
        job = wire.parse(wire.Translate, {**fields, "q": text, "format": FILE_FORMATS[suffix]})
        name = f"{secrets.token_hex(8)}_{primary(job.target)}{suffix}"
        files[name] = (await service.translate(job, limited=False))["translatedText"]
        while len(files) > MOST_FILES:
            del files[next(iter(files))]
        return {"translatedFileUrl": str(request.url_for("download_file", name=name))}

    @app.get("/download_file/{name}", responses={"4XX": {"model": wire.Error}}, response_class=Response)
    async def download_file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "File not found")
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(files[name].encode(), media_type="text/plain; charset=utf-8", headers=headers)
