"""Translation of requests: whole texts or HTML, with alternatives and warnings.

A text is divided into lines, and HTML into the texts between tags. They are translated in shared batches; white space,
blank lines and tags stay as they are.
"""

import asyncio
import dataclasses
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import HTTPException

from dragoman.languages import Direction, reads
from dragoman.serve import codes, wire
from dragoman.serve.batches import Batches
from dragoman.serve.models import Models
from dragoman.translation.translator import Translation

_TAG = re.compile(r"(<[^<>]*>)")
_VERBATIM = re.compile(r"<(script|style)\b", re.IGNORECASE)  # their content is no text
TRADITIONAL = "traditional Chinese: the model makes no difference between the scripts"


class Service:
    """The work behind the endpoints; `suggestions` is the file of corrections."""

    def __init__(self, models: Models, suggestions: Path, max_chars: int, beam: int | None) -> None:
        self.models, self.suggestions, self.max_chars, self.beam = models, suggestions, max_chars, beam
        self.batches = Batches(self._run)

    async def translate(self, request: wire.Translate, *, limited: bool = True) -> dict[str, Any]:
        """Return the answer of /translate."""
        texts = [request.q] if isinstance(request.q, str) else request.q
        if limited:
            self.check_length(*texts)
        results = await asyncio.gather(*(self._translate(text, request) for text in texts))
        answer: dict[str, Any] = {"translatedText": [ranks[0] for ranks, _ in results]}
        if request.source == "auto":
            answer["detectedLanguage"] = [codes.detect(text, self.models.languages)[0] for text in texts]
        if request.alternatives:
            answer["alternatives"] = [ranks[1:] for ranks, _ in results]
        if any(warnings for _, warnings in results):
            answer["warnings"] = [warnings for _, warnings in results]
        return {key: value[0] for key, value in answer.items()} if isinstance(request.q, str) else answer

    async def _translate(self, text: str, request: wire.Translate) -> tuple[list[str], list[str]]:
        """Return the best translations of a text, without duplicates, and warnings."""
        way = self.direction(request.source, request.target, text)
        if way is None:
            return [text], []
        is_html = request.format == "html"
        parts = list(split(text, is_html))
        results = await self.batches.translate((way, request.alternatives + 1), [core for _, core in parts if core])
        ranks = []
        for rank in range(max([1, *(len(result.hypotheses) for result in results)])):
            rest, whole = iter(results), ""
            for before, core in parts:
                hypotheses = next(rest).hypotheses if core else []
                best = hypotheses[min(rank, len(hypotheses) - 1)].text if core else ""
                whole += before + (html.escape(best, quote=False) if is_html else best)
            ranks.append(whole)
        warnings = [warning for result in results for warning in result.warnings]
        if any(map(codes.is_traditional, (request.source, request.target))) and not any(map(codes.is_traditional, way)):
            warnings.append(TRADITIONAL)
        return list(dict.fromkeys(ranks)), list(dict.fromkeys(warnings))

    async def detect(self, request: wire.Detect) -> list[wire.Detected]:
        """Return the answer of /detect."""
        self.check_length(request.q)
        return codes.detect(request.q, self.models.languages)

    def direction(self, source: str, target: str, text: str) -> Direction | None:
        """Return the direction for a text, None if it is in the target language already."""
        known = {codes.short(language) for language in self.models.languages}
        for code in (source, target):
            if codes.short(code) not in known and (code, code) != (source, "auto"):
                raise HTTPException(400, f"{code[:40]} is not supported")
        ways = [way for way in self.models.directions if codes.short(way.tgt) == codes.short(target)]
        if source == "auto":
            fitting = [way for way in ways if reads(way.src, text)]
            source = codes.detect(text, self.models.languages)[0].language
        else:
            fitting = [way for way in ways if codes.short(way.src) == codes.short(source)]
        if not fitting and codes.short(source) != codes.short(target):
            to, of = (f"{codes.name(code)} ({code})" for code in (target, source))
            raise HTTPException(400, f"{to} is not available as a target language from {of}")
        return fitting[0] if fitting else None

    async def suggest(self, request: wire.Suggest) -> dict[str, bool]:
        """Append a correction to the file, as a row that training reads."""
        self.check_length(request.q, request.s)
        way = self.direction(request.source, request.target, request.q)
        if way is None:
            raise HTTPException(400, "Invalid request: source and target are the same language")
        row = {"translation": {way.src: request.q, way.tgt: request.s}}
        self.suggestions.parent.mkdir(parents=True, exist_ok=True)
        with self.suggestions.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        return {"success": True}

    def check_length(self, *texts: str) -> None:
        """Raise the error for texts that are too long together."""
        n_chars = sum(map(len, texts))
        if n_chars > self.max_chars:
            raise HTTPException(400, f"Invalid request: request ({n_chars}) exceeds text limit ({self.max_chars})")

    def languages(self) -> list[wire.Language]:
        """Return the answer of /languages: each spelling of each language."""
        ways = self.models.directions
        return [
            wire.Language(
                code=code,
                name=codes.name(code),
                targets=[t for w in ways if w.src == src for t in codes.spellings(w.tgt)],
            )
            for src in self.models.languages
            for code in codes.spellings(src)
        ]

    def _run(self, options: tuple[Direction, int], texts: list[str]) -> list[Translation]:
        """Translate a batch, with the model as it is now."""
        way, n_best = options
        translator = self.models.translator(way)
        search = translator.bundle.search
        if self.beam or n_best > 1:
            beam_size = max(self.beam or search.beam_size, n_best)
            search = dataclasses.replace(search, kind="beam", beam_size=beam_size, n_best=n_best)
        return translator.translate(texts, search, direction=str(way), scored=False)


def split(text: str, is_html: bool) -> Iterator[tuple[str, str]]:
    """Divide a text into pairs: a part that stays, and the line to translate after it.

    The line is "" where nothing is to be translated.
    """
    verbatim = ""  # the closing tag that ends a script
    for number, part in enumerate(_TAG.split(text) if is_html else [text]):
        if number % 2:
            yield part, ""
            if match := _VERBATIM.match(part):
                verbatim = f"</{match[1].lower()}"
            elif verbatim and part.lower().startswith(verbatim):
                verbatim = ""
            continue
        if verbatim:
            yield part, ""
            continue
        for line in part.splitlines(keepends=True):
            core = line.strip()
            before, _, after = line.partition(core) if core else (line, "", "")
            yield before, html.unescape(core) if is_html else core
            yield after, ""
