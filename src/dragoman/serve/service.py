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

from dragoman.languages import Direction, english_name, is_traditional, primary, reads
from dragoman.serve import codes, wire
from dragoman.serve.batches import Batches
from dragoman.serve.models import Models
from dragoman.translation.translator import Translation

_TAG = re.compile(r"(<[^<>]*>)")
_VERBATIM = re.compile(r"<(script|style)\b", re.IGNORECASE)  # tags whose content is not text
TRADITIONAL = "traditional Chinese: the model does not distinguish the scripts"


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
        direction = self.direction(request.source, request.target, text)
        if direction is None:
            return [text], []
        is_html = request.format == "html"
        parts = list(split(text, is_html))
        results = await self.batches.translate(
            (direction, request.alternatives + 1), [core for _, core in parts if core]
        )
        ranks = []
        for rank in range(max([1, *(len(result.hypotheses) for result in results)])):
            rest, whole = iter(results), ""
            for before, core in parts:
                hypotheses = next(rest).hypotheses if core else []
                best = hypotheses[min(rank, len(hypotheses) - 1)].text if core else ""
                whole += before + (html.escape(best, quote=False) if is_html else best)
            ranks.append(whole)
        warnings = [warning for result in results for warning in result.warnings]
        if any(map(is_traditional, (request.source, request.target))) and not any(map(is_traditional, direction)):
            warnings.append(TRADITIONAL)
        return list(dict.fromkeys(ranks)), list(dict.fromkeys(warnings))

    async def detect(self, request: wire.Detect) -> list[wire.Detected]:
        """Return the answer of /detect."""
        self.check_length(request.q)
        return codes.detect(request.q, self.models.languages)

    def direction(self, source: str, target: str, text: str) -> Direction | None:
        """Return the direction for a text, None if it is in the target language already."""
        known = {primary(language) for language in self.models.languages}
        for code in (source, target):
            if primary(code) not in known and (code, code) != (source, "auto"):
                raise HTTPException(400, f"{code[:40]} is not supported")
        choices = [each for each in self.models.directions if primary(each.tgt) == primary(target)]
        if source == "auto":
            matches = [each for each in choices if reads(each.src, text)]
            source = codes.detect(text, self.models.languages)[0].language
        else:
            matches = [each for each in choices if primary(each.src) == primary(source)]
        if not matches and primary(source) != primary(target):
            to, of = (f"{english_name(code)} ({code})" for code in (target, source))
            raise HTTPException(400, f"{to} is not available as a target language from {of}")
        return matches[0] if matches else None

    async def suggest(self, request: wire.Suggest) -> dict[str, bool]:
        """Append a correction to the file, as a row that training reads."""
        self.check_length(request.q, request.s)
        direction = self.direction(request.source, request.target, request.q)
        if direction is None:
            raise HTTPException(400, "Invalid request: source and target are the same language")
        row = {"translation": {direction.src: request.q, direction.tgt: request.s}}
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
        answer = []
        for language in self.models.languages:
            targets = [code for src, tgt in self.models.directions if src == language for code in codes.spellings(tgt)]
            for code in codes.spellings(language):
                answer.append(wire.Language(code=code, name=english_name(code), targets=targets))
        return answer

    def _run(self, options: tuple[Direction, int], texts: list[str]) -> list[Translation]:
        """Translate a batch, with the model as it is now."""
        direction, n_best = options
        translator = self.models.translator(direction)
        search = translator.bundle.search
        if self.beam or n_best > 1:
            beam_size = max(self.beam or search.beam_size, n_best)
            search = dataclasses.replace(search, kind="beam", beam_size=beam_size, n_best=n_best)
        return translator.translate(texts, search, direction=str(direction), scored=False)


def split(text: str, is_html: bool) -> Iterator[tuple[str, str]]:
    """Divide a text into pairs: a part that stays, and the line to translate after it.

    The line is "" where nothing is to be translated.
    """
    verbatim = ""  # the beginning of the tag that ends a script
    for number, part in enumerate(_TAG.split(text) if is_html else [text]):
        is_tag = number % 2
        if is_tag and (match := _VERBATIM.match(part)):
            verbatim = f"</{match[1].lower()}"
        elif is_tag and verbatim and part.lower().startswith(verbatim):
            verbatim = ""
        if is_tag or verbatim:
            yield part, ""
            continue
        for line in part.splitlines(keepends=True):
            core = line.strip()
            before, _, after = line.partition(core) if core else (line, "", "")
            yield before, html.unescape(core) if is_html else core
            yield after, ""
