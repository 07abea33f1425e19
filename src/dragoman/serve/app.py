"""HTTP application: endpoints of LibreTranslate and of the page, and limits.

A text is split into lines, HTML into the texts between tags; they are translated in batches with those of other
requests. Tags and the white space between lines are kept.
"""

import asyncio
import dataclasses
import html
import json
import re
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, RedirectResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import dragoman
from dragoman.errors import UserError
from dragoman.languages import Direction, english_name, is_traditional, primary, reads
from dragoman.serve import wire
from dragoman.serve.models import Batches, Model
from dragoman.special import EOS
from dragoman.translation.lines import Translation, sentences
from dragoman.translation.translator import Translator

PAGE = Path(__file__).with_name("page.html")
# A line has no white space at its ends. Tags, comments, scripts and the like are not lines.
_LINE = re.compile(r"(?P<line>\S.*(?<!\s))")
_HTML_LINE = re.compile(
    r"<!--.*?(?:-->|\Z)|<(script|style|pre|textarea|code)\b.*?(?:</\1[^<>]*>|\Z)"
    r"|<[/!?a-z](?:[^<>\"']|\"[^\"<]*\"|'[^'<]*')*+>|<[/!?a-z][^<>]*>"  # a quoted value may contain >
    r"|(?:&nbsp;|&#160;)+(?=\s*<)"  # an empty cell
    r"|(?P<line>\S(?:[^<]|<(?!!--|[/!?a-z][^<>]*>))*(?<!\s))",
    re.I | re.S,
)
# Format -> pattern of a line, function to unescape it, function to escape it.
FORMATS: dict[str, tuple[re.Pattern[str], Callable[[str], str], Callable[[str], str]]] = {
    "text": (_LINE, str, str),
    "html": (_HTML_LINE, lambda line: " ".join(html.unescape(line).split()), partial(html.escape, quote=False)),
}
SUFFIXES = {".txt": "text", ".html": "html"}
TRADITIONAL = "traditional Chinese: the model does not distinguish the scripts"
MAX_SENTENCES = 20  # of a text, in the response of /explain
MAX_PIECES = 128  # of a sentence that is explained; the response grows quadratically
MAX_FILES = 20  # translated files kept in memory for downloads
MAX_SECONDS = 30.0  # of a request
MAX_REQUESTS = 256  # in progress


def create_app(models: Sequence[Model], suggestions: Path, max_chars: int = 50_000, beam: int | None = None) -> FastAPI:
    """Return the application; `beam` replaces the beam size in /translate."""
    errors: dict[int | str, Any] = {"default": {"model": dict[str, str], "description": "error: a text"}}
    # No docs_url and redoc_url: FastAPI's pages of documentation load scripts from elsewhere.
    app = FastAPI(title="Dragoman", version=dragoman.__version__, docs_url=None, redoc_url=None, responses=errors)
    app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["GET", "POST"], allow_headers=["*"])
    for kind in (HTTPException, ValidationError, UserError, TimeoutError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, error_response)
    service, slots = Service(models, suggestions, max_chars, beam), asyncio.Semaphore(MAX_REQUESTS)

    def post(path: str, kind: type[BaseModel], model: Any, handler: Callable[[Any], Awaitable[Any]]) -> None:
        """Add an endpoint, with a limit on the number and the time of requests."""
        media = [wire.MULTIPART] if kind is wire.Upload else [wire.JSON, wire.FORM]
        body = {"requestBody": {"content": {name: {"schema": kind.model_json_schema()} for name in media}}}

        @app.post(path, response_model=model, response_model_exclude_none=True, openapi_extra=body)
        async def endpoint(request: Request) -> Any:
            if slots.locked():
                raise HTTPException(429, f"Slowdown: {MAX_REQUESTS} requests are in progress. Try again later")
            async with slots, asyncio.timeout(MAX_SECONDS):
                return await handler(await wire.parameters(kind, request, max_chars))

    post("/translate", wire.Translate, wire.Translated, service.translate)
    post("/translate_file", wire.Upload, dict[str, str], service.translate_file)
    post("/detect", wire.Detect, list[wire.Detected], service.detect)
    post("/suggest", wire.Suggest, dict[str, bool], service.suggest)
    post("/explain", wire.Languages, dict[str, Any], partial(service.batches.alone, service.explain))
    post("/trace", wire.Trace, dict[str, Any], partial(service.batches.alone, service.trace))
    app.get("/", include_in_schema=False, response_class=FileResponse)(lambda: PAGE)
    app.get("/spec", include_in_schema=False, response_class=RedirectResponse)(lambda: "/openapi.json")
    app.get("/languages")(service.languages)
    app.get("/health")(service.health)
    app.get("/frontend/settings")(service.settings)
    app.get("/download_file/{name}", response_class=Response)(service.download_file)
    return app


async def error_response(request: Request, error: Exception) -> JSONResponse:
    """Return {"error": text}; for an internal error, without its details."""
    code, text = 400, str(error)
    if isinstance(error, HTTPException):
        code, text = error.status_code, error.detail
    elif isinstance(error, ValidationError):
        text = wire.problem(error)
    elif isinstance(error, TimeoutError):
        code, text = 503, f"The translation took longer than {MAX_SECONDS:g} s. Send a shorter text"
    elif not isinstance(error, UserError):
        code, text = 500, "Internal server error"
    return JSONResponse({"error": text}, code, getattr(error, "headers", None))


class Service:
    """Endpoints of the application; `suggestions` is the file of corrections."""

    def __init__(self, models: Sequence[Model], suggestions: Path, max_chars: int, beam: int | None) -> None:
        self.suggestions, self.max_chars, self.beam = suggestions, max_chars, beam
        self.batches, self.files = Batches(self._run), deque[tuple[str, str]](maxlen=MAX_FILES)
        pairs = [(direction, model) for model in models for direction in model.translator.bundle.directions]
        self.models = dict(pairs)
        if len(self.models) < len(pairs):
            raise UserError("--model: two models translate in the same direction. Name one of them")
        self.known = list(dict.fromkeys(chain(*self.models)))  # languages

    async def translate(self, request: wire.Translate) -> dict[str, Any]:
        """Return wire.Translated's fields; for a list of texts, each value is a list."""
        texts = [request.q] if isinstance(request.q, str) else request.q
        answers = await asyncio.gather(*(self._translate(text, request) for text in texts))
        answer = {key: [each[key] for each in answers] for key in answers[0]}
        if not any(answer["warnings"]):
            del answer["warnings"]
        return answer if texts is request.q else {key: value for key, (value,) in answer.items()}

    async def _translate(self, text: str, request: wire.Translate) -> dict[str, Any]:
        """Return the answer for one text: best translation, warnings, alternatives."""
        pattern, unescape, escape = FORMATS[request.format or "text"]
        lines = [unescape(match["line"]) for match in pattern.finditer(text) if match["line"]]
        visible, n_best = "\n".join(lines), request.alternatives + 1  # without the tags of HTML
        warnings, ranks = list[str](), [text]  # unchanged if it is in the target language already
        source, target = primary(self.source(request, visible)), primary(request.target)
        if source != target or target not in map(primary, self.known):
            direction = self.direction(request, visible)
            results = await self.batches.translate((direction, n_best), lines)
            rows = [[escape(hypothesis.text) for hypothesis in result.hypotheses] for result in results]
            ranks = [fill(pattern, text, [row[min(rank, len(row) - 1)] for row in rows]) for rank in range(n_best)]
            warnings = [warning for result in results for warning in result.warnings]
            if any(map(is_traditional, (request.source, request.target))) and not any(map(is_traditional, direction)):
                warnings.append(TRADITIONAL)
        best, *others = dict.fromkeys(ranks)
        answer: dict[str, Any] = {"translatedText": best, "warnings": list(dict.fromkeys(warnings))}
        if request.source == "auto":
            answer["detectedLanguage"] = self.detected(visible, request.target)[0]
        return answer | ({"alternatives": others} if request.alternatives else {})

    async def detect(self, request: wire.Detect) -> list[wire.Detected]:
        return self.detected(request.q)

    def detected(self, text: str, target: str = "") -> list[wire.Detected]:
        """Return languages in the script of a text, those translated into `target` first."""
        if not any(map(str.isalpha, text)):  # as in LibreTranslate
            return [wire.Detected(confidence=0, language="en")]
        sources = [src for src, tgt in self.models if primary(tgt) == primary(target)]
        known = list(dict.fromkeys((*sources, *self.known)))
        best = [each for each in known if reads(each, text)]
        confidence = round(100 / len(best), 1) if best else 0
        return [wire.Detected(confidence=confidence, language=spellings(each)[0]) for each in best or known[:1]]

    def source(self, request: wire.Languages, text: str) -> str:
        """Return the language of a text, detected if the request does not name it."""
        if request.source != "auto":
            return request.source
        # A text without letters needs no translation.
        return self.detected(text, request.target)[0].language if any(map(str.isalpha, text)) else request.target

    def direction(self, request: wire.Languages, text: str) -> Direction:
        """Return the direction for a text. Raises UserError if no model has it."""
        codes = self.source(request, text), request.target
        fits = [each for each in self.models if list(map(primary, each)) == list(map(primary, codes))]
        if fits:  # the one of the same Chinese script first
            return max(fits, key=lambda each: list(map(is_traditional, each)) == list(map(is_traditional, codes)))
        for code in codes:
            if primary(code) not in map(primary, self.known):
                raise UserError(f"{code[:40]} is not supported")
        of, to = (f"{english_name(code)} ({code})" for code in codes)
        raise UserError(f"{to} is not available as a target language from {of}")

    async def suggest(self, request: wire.Suggest) -> dict[str, bool]:
        """Append a correction to the file, as a row that training reads."""
        direction = self.direction(request, request.q)
        row = {"translation": {direction.src: request.q, direction.tgt: request.s}}
        self.suggestions.parent.mkdir(parents=True, exist_ok=True)
        with self.suggestions.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        return {"success": True}

    async def translate_file(self, upload: wire.Upload) -> dict[str, str]:
        """Translate a file and keep the translation for a download."""
        suffix = Path(upload.file.filename or "").suffix.lower()
        if suffix not in SUFFIXES:
            raise UserError(f"Invalid request: the file is not text in {' or '.join(SUFFIXES)}")
        answer = await self.translate(wire.Translate.model_validate({**dict(upload), "format": SUFFIXES[suffix]}))
        name = f"{secrets.token_hex(8)}_{primary(upload.target)}{suffix}"
        self.files.append((name, answer["translatedText"]))
        return {"translatedFileUrl": f"{upload.base_url}download_file/{name}"}

    async def download_file(self, name: str) -> PlainTextResponse:
        text = dict(self.files).get(name)
        if text is None:
            raise HTTPException(404, "File not found")
        return PlainTextResponse(text, headers={"Content-Disposition": f'attachment; filename="{name}"'})

    async def languages(self) -> list[dict[str, Any]]:
        """Return the languages, one entry for each of their codes."""
        rows = list[dict[str, Any]]()
        for language in self.known:
            targets = [code for src, tgt in self.models if src == language for code in spellings(tgt)]
            rows += [{"code": code, "name": english_name(code), "targets": targets} for code in spellings(language)]
        return rows

    async def health(self) -> dict[str, Any]:
        return {"status": "ok", "models": [model.status for model in dict.fromkeys(self.models.values())]}

    async def settings(self) -> dict[str, Any]:
        source, target = ({"code": spellings(c)[0], "name": english_name(c)} for c in next(iter(self.models)))
        keys = {"charLimit": self.max_chars, "frontendTimeout": 500, "apiKeys": False, "keyRequired": False}
        files = {"filesTranslation": True, "supportedFilesFormat": list(SUFFIXES)}
        return {**keys, "suggestions": True, **files, "language": {"source": source, "target": target}}

    def explain(self, request: wire.Languages) -> dict[str, Any]:
        """Return pieces, their probabilities, and attention of the first sentences.

        Attention: the mean over the last layer's heads, (target pieces) x (source pieces).
        """
        (translator, direction, texts), answers = self._sentences(request), []
        for text, result in zip(texts, translator.translate(texts, direction=direction), strict=True):
            pair = translator.attend(text, result.text, direction=direction)
            ids = [*translator.bundle.tgt_tokenizer.encode(result.text), EOS]
            probabilities = pair.logits.softmax(-1)[range(len(ids)), ids].double().round(decimals=4).tolist()
            attention = pair.maps["cross"][-1].mean(0).double().round(decimals=3).tolist()
            pieces = {"source": pair.pieces["src"], "target": pair.pieces["tgt_out"]}
            answers.append({**pieces, "probabilities": probabilities, "attention": attention})
        return {"sentences": answers}

    def trace(self, request: wire.Trace) -> dict[str, Any]:
        """Return the search for the first sentence, as in explain/trace.py."""
        translator, direction, texts = self._sentences(request)
        return translator.trace("".join(texts[:1]), translator.bundle.search, request.beam, direction=direction)

    def _sentences(self, request: wire.Languages) -> tuple[Translator, str, list[str]]:
        """Return the translator, the direction, and the first sentences to translate."""
        direction = self.direction(request, request.q)
        translator = self.models[direction].translator
        longest = min(MAX_PIECES, translator.longest)
        parts = sentences(request.q.strip(), translator.bundle.src_tokenizer, [], longest)
        return translator, str(direction), [part.text for part in parts if part.ids][:MAX_SENTENCES]

    def _run(self, options: tuple[Direction, int], texts: list[str]) -> list[Translation]:
        """Translate a batch with the newest loaded model."""
        direction, n_best = options
        translator = self.models[direction].translator
        search = translator.bundle.search
        if self.beam or n_best > 1:
            beam_size = max(self.beam or search.beam_size, n_best)
            search = dataclasses.replace(search, kind="beam", beam_size=beam_size, n_best=n_best)
        return translator.translate(texts, search, direction=str(direction), scored=False)


def spellings(language: str) -> list[str]:
    """Return the codes of a language, the modern one first."""
    if primary(language) != "zh":
        return [primary(language)]
    return ["zh-Hant", "zt"] if is_traditional(language) else ["zh-Hans", "zh"]


def fill(pattern: re.Pattern[str], text: str, lines: list[str]) -> str:
    """Return `text` with its lines replaced by `lines`."""
    rest = iter(lines)
    return pattern.sub(lambda match: next(rest) if match["line"] else match[0], text)
