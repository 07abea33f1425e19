"""HTTP application: LibreTranslate's endpoints, the page, and limits."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import dragoman
from dragoman.errors import UserError
from dragoman.languages import english_name, primary
from dragoman.serve import wire
from dragoman.serve.models import Models
from dragoman.serve.service import Service, spellings

PAGE = Path(__file__).with_name("page.html")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
FILE_FORMATS = {".txt": "text", ".html": "html"}
MOST_FILES = 20  # translated files kept in memory for downloads
MOST_SECONDS = 30.0  # of a request
MOST_REQUESTS = 256  # in progress
ERRORS: dict[int | str, dict[str, Any]] = {code: {"model": wire.Error} for code in (400, 413, 429, 503)}


def create_app(models: Models, suggestions: Path, max_chars: int = 50_000, beam: int | None = None) -> FastAPI:
    """Return the application; `beam` replaces the beam size of the bundles."""
    app = FastAPI(
        title="Dragoman",
        summary="Translation with the interface of LibreTranslate",
        version=dragoman.__version__,
        # FastAPI's pages of documentation load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["GET", "POST"], allow_headers=["*"])
    for kind in (HTTPException, ValidationError, UserError, TimeoutError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, error_answer)
    service = Service(models, suggestions, max_chars, beam)
    _add_information(app, service)
    _add_translation(app, service)
    return app


async def error_answer(request: Request, error: Exception) -> JSONResponse:
    """Return {"error": text}, without the text of an error in the program."""
    code, text = 400, str(error)
    if isinstance(error, HTTPException):
        code, text = error.status_code, error.detail
    elif isinstance(error, ValidationError):
        text = wire.problem(error)
    elif isinstance(error, TimeoutError):
        code, text = 503, f"The translation took longer than {MOST_SECONDS:g} s. Send a shorter text"
    elif not isinstance(error, UserError):
        code, text = 500, "Internal server error"
    return JSONResponse({"error": text}, code, getattr(error, "headers", None))


def _add_information(app: FastAPI, service: Service) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(PAGE.read_text("utf-8"), headers={"Content-Security-Policy": POLICY})

    app.get("/spec", include_in_schema=False, response_class=RedirectResponse)(lambda: "/openapi.json")
    app.get("/languages")(service.languages)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "models": [model.status() for model in service.models.models]}

    @app.get("/frontend/settings")
    async def settings() -> dict[str, Any]:
        source, target = ({"code": spellings(c)[0], "name": english_name(c)} for c in service.models.directions[0])
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
    slots, files = asyncio.Semaphore(MOST_REQUESTS), dict[str, str]()

    @contextlib.asynccontextmanager
    async def parameters(kind: type[BaseModel], request: Request) -> AsyncIterator[Any]:
        """Yield the parameters of a request, whose number and time are limited."""
        if slots.locked():
            text = f"Slowdown: {MOST_REQUESTS} requests are in progress. Try again later"
            raise HTTPException(429, text, {"Retry-After": "1"})
        async with slots, asyncio.timeout(MOST_SECONDS):
            yield kind.model_validate(await wire.values(request))

    def limited(values: Any) -> Any:
        """Return the parameters unless they have too many characters."""
        n_chars = sum(map(len, values.texts)) + len(getattr(values, "s", ""))
        if n_chars > service.max_chars:
            raise UserError(f"Invalid request: request ({n_chars}) exceeds text limit ({service.max_chars})")
        return values

    def add(path: str, kind: type[BaseModel], answer: Any, work: Callable[[Any], Awaitable[Any]]) -> None:
        extra = wire.documented(kind)

        @app.post(path, response_model=answer, response_model_exclude_none=True, openapi_extra=extra, responses=ERRORS)
        async def endpoint(request: Request) -> Any:
            async with parameters(kind, request) as values:
                return await work(limited(values))

    add("/translate", wire.Translate, wire.Translated, service.translate)
    add("/detect", wire.Detect, list[wire.Detected], service.detect)
    add("/suggest", wire.Suggest, dict[str, bool], service.suggest)
    add("/explain", wire.Languages, dict[str, Any], partial(service.batches.alone, service.explain))
    add("/trace", wire.Trace, dict[str, Any], partial(service.batches.alone, service.trace))

    @app.post("/translate_file", openapi_extra=wire.documented(wire.Upload), responses=ERRORS)
    async def translate_file(request: Request) -> dict[str, str]:
        async with parameters(wire.Upload, request) as upload:
            suffix, data = Path(upload.file.filename or "").suffix.lower(), await upload.file.read()
            if suffix not in FILE_FORMATS or b"\0" in data:
                raise UserError(f"Invalid request: the file is not text in {' or '.join(FILE_FORMATS)}")
            try:
                text = data.decode("utf-8-sig")
            except UnicodeDecodeError:
                raise UserError("Invalid request: the file is not UTF-8") from None
            fields = {"q": text, "source": upload.source, "target": upload.target, "format": FILE_FORMATS[suffix]}
            answer = await service.translate(limited(wire.Translate.model_validate(fields)))
        name = f"{secrets.token_hex(8)}_{primary(upload.target)}{suffix}"
        files[name] = answer["translatedText"]
        if len(files) > MOST_FILES:
            del files[next(iter(files))]
        return {"translatedFileUrl": str(request.url_for("download_file", name=name))}

    @app.get("/download_file/{name}", response_class=Response, responses={"4XX": {"model": wire.Error}})
    async def download_file(name: str) -> PlainTextResponse:
        if name not in files:
            raise HTTPException(404, "File not found")
        return PlainTextResponse(files[name], headers={"Content-Disposition": f'attachment; filename="{name}"'})
