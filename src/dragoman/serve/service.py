"""Work behind the endpoints: translations, attention and searches, corrections.

A text is divided into lines, and HTML into the texts between tags. They are translated in shared batches; white space,
blank lines and tags stay as they are.
"""

import asyncio
import dataclasses
import html
import json
import re
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from dragoman.errors import UserError
from dragoman.languages import Direction, english_name, is_traditional, length, primary, reads
from dragoman.serve import wire
from dragoman.serve.batches import Batches
from dragoman.serve.models import Models
from dragoman.special import EOS
from dragoman.translation.lines import Sentence, Translation, sentences
from dragoman.translation.translator import Translator

# Lines without outer white space. Tags, scripts and style sheets are none.
_LINE = re.compile(r"(?P<line>\S.*(?<!\s))")
_HTML_LINE = re.compile(
    r"<(script|style)\b.*?(?:</\1[^<>]*>|\Z)|<[^<>]*>|(?P<line>\S(?:[^<\n]|<(?![^<>]*>))*(?<!\s))", re.I | re.S
)
# Format -> lines, how their characters are read, and how they are written.
FORMATS = {"text": (_LINE, str, str), "html": (_HTML_LINE, html.unescape, partial(html.escape, quote=False))}
_SAMPLE = 500  # letters that decide the language
MOST_SENTENCES = 20  # explained
MOST_PIECES = 80  # of a traced sentence; the answer grows with the square
TRADITIONAL = "traditional Chinese: the model does not distinguish the scripts"


class Service:
    """Endpoints of the application; `suggestions` is the file of corrections."""

    def __init__(self, models: Models, suggestions: Path, max_chars: int, beam: int | None) -> None:
        self.models, self.suggestions, self.max_chars, self.beam = models, suggestions, max_chars, beam
        self.batches = Batches(self._run)

    async def translate(self, request: wire.Translate) -> dict[str, Any]:
        """Return the answer for a text; that for a list has a list of each value."""
        answers = await asyncio.gather(*(self._translate(text, request) for text in request.texts))
        answer = {key: [each[key] for each in answers] for key in answers[0]}
        if not any(answer["warnings"]):
            del answer["warnings"]
        return {key: value[0] for key, value in answer.items()} if isinstance(request.q, str) else answer

    async def _translate(self, text: str, request: wire.Translate) -> dict[str, Any]:
        """Return the best translation of a text, what else is requested, and warnings."""
        direction, n_best = self.direction(request, text), request.alternatives + 1
        warnings, ranks = list[str](), [text]  # as it is, if it is in the target language already
        if direction:
            pattern, read, write = FORMATS[request.format]
            lines = [read(match["line"]) for match in pattern.finditer(text) if match["line"]]
            results = await self.batches.translate((direction, n_best), lines)
            rows = [[write(hypothesis.text) for hypothesis in result.hypotheses] for result in results]
            ranks = [fill(pattern, text, [row[min(rank, len(row) - 1)] for row in rows]) for rank in range(n_best)]
            warnings = [warning for result in results for warning in result.warnings]
            if any(map(is_traditional, (request.source, request.target))) and not any(map(is_traditional, direction)):
                warnings.append(TRADITIONAL)
        best, *others = dict.fromkeys(ranks)
        answer: dict[str, Any] = {"translatedText": best, "warnings": list(dict.fromkeys(warnings))}
        if request.source == "auto":
            answer["detectedLanguage"] = self.detected(text, request.target)[0]
        return answer | ({"alternatives": others} if request.alternatives else {})

    async def detect(self, request: wire.Detect) -> list[wire.Detected]:
        return self.detected(request.q)

    def detected(self, text: str, target: str = "") -> list[wire.Detected]:
        """Return the languages of a text by its script, best first.

        The confidence, 0 to 100, is the share of letters in the script of the language, weighted as in `length`.
        Languages of one script divide it; those that are translated to `target` come first.
        """
        letters = "".join(filter(str.isalpha, text))[:_SAMPLE]
        total, shares = length(letters), dict.fromkeys(self.models.languages, 0.0)
        for letter in letters:
            matches = [language for language in shares if reads(language, letter)]
            for language in matches:
                shares[language] += 100 * length(letter) / len(matches) / total
        sources = [src for src, tgt in self.models.directions if primary(tgt) == primary(target)]
        best = sorted(filter(shares.get, shares), key=lambda language: (-shares[language], language not in sources))
        results = [wire.Detected(confidence=round(shares[each], 1), language=spellings(each)[0]) for each in best]
        return results or [wire.Detected(confidence=0, language="en")]

    def direction(self, request: wire.Languages, text: str) -> Direction | None:
        """Return the direction for a text, None if it is in the target language already."""
        source, target = request.source, request.target
        known = set(map(primary, self.models.languages))
        for code in (target,) if source == "auto" else (source, target):
            if primary(code) not in known:
                raise UserError(f"{code[:40]} is not supported")
        choices = [each for each in self.models.directions if primary(each.tgt) == primary(target)]
        if source == "auto":
            best = self.detected(text, target)[0]
            # No language is detected in a text without letters, e.g. 123.
            source = best.language if best.confidence or not choices else choices[0].src
        matches = [each for each in choices if primary(each.src) == primary(source)]
        if not matches and primary(source) != primary(target):
            to, of = (f"{english_name(code)} ({code})" for code in (target, source))
            raise UserError(f"{to} is not available as a target language from {of}")
        return matches[0] if matches else None

    async def suggest(self, request: wire.Suggest) -> dict[str, bool]:
        """Append a correction to the file, as a row that training reads."""
        direction = self.direction(request, request.q)
        if direction is None:
            raise UserError("Invalid request: source and target are the same language")
        row = {"translation": {direction.src: request.q, direction.tgt: request.s}}
        self.suggestions.parent.mkdir(parents=True, exist_ok=True)
        with self.suggestions.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        return {"success": True}

    async def languages(self) -> list[wire.Language]:
        """Return the answer of /languages: each spelling of each language."""
        rows = list[wire.Language]()
        for language in self.models.languages:
            targets = [code for src, tgt in self.models.directions if src == language for code in spellings(tgt)]
            rows += [wire.Language(code=code, name=english_name(code), targets=targets) for code in spellings(language)]
        return rows

    def explain(self, request: wire.Languages) -> dict[str, Any]:
        """Return pieces, their probabilities, and attention of the first sentences.

        The attention is the mean over the heads of the last layer, by target piece, then source piece.
        """
        translator, direction, every = self._sentences(request)
        texts = [part.text for part in islice(every, MOST_SENTENCES)]
        answers = []
        for text, result in zip(texts, translator.translate(texts, direction=direction, scored=False), strict=True):
            pair = translator.attend(text, result.text, direction=direction)
            ids = [*translator.bundle.tgt_tokenizer.encode(result.text), EOS]
            probabilities = pair.logits.softmax(-1)[range(len(ids)), ids].double().round(decimals=4).tolist()
            attention = pair.maps["cross"][-1].mean(0).double().round(decimals=3).tolist()
            pieces = {"source": pair.pieces["src"], "target": pair.pieces["tgt_out"]}
            answers.append({**pieces, "probabilities": probabilities, "attention": attention})
        return {"sentences": answers}

    def trace(self, request: wire.Trace) -> dict[str, Any]:
        """Return the search for the first sentence, as in explain/trace.py."""
        translator, direction, every = self._sentences(request)
        sentence = next(every, None)
        if not sentence or len(sentence.ids) > MOST_PIECES:
            raise UserError(f"Invalid request: the text begins with no sentence of at most {MOST_PIECES} pieces")
        search = dataclasses.replace(translator.bundle.search, kind="beam", beam_size=request.beam, n_best=1)
        return translator.trace(sentence.text, search, direction=direction)

    def _sentences(self, request: wire.Languages) -> tuple[Translator, str, Iterator[Sentence]]:
        """Return the translator, the direction, and the sentences to translate."""
        direction = self.direction(request, request.q)
        if direction is None:
            raise UserError("Invalid request: the text is in the target language")
        translator = self.models.translator(direction)
        tokenizer = translator.bundle.src_tokenizer
        parts = sentences(request.q.strip(), tokenizer, tokenizer.tag(direction.tgt), translator.max_length)
        return translator, str(direction), (part for part in parts if part.ids)

    def _run(self, options: tuple[Direction, int], texts: list[str]) -> list[Translation]:
        """Translate a batch, with the model as it is now."""
        direction, n_best = options
        translator = self.models.translator(direction)
        search = translator.bundle.search
        if self.beam or n_best > 1:
            beam_size = max(self.beam or search.beam_size, n_best)
            search = dataclasses.replace(search, kind="beam", beam_size=beam_size, n_best=n_best)
        return translator.translate(texts, search, direction=str(direction), scored=False)


def spellings(language: str) -> list[str]:
    """Return the codes listed for a language; older clients read the second."""
    if primary(language) != "zh":
        return [primary(language)]
    return ["zh-Hant", "zt"] if is_traditional(language) else ["zh-Hans", "zh"]


def fill(pattern: re.Pattern[str], text: str, lines: list[str]) -> str:
    """Return a text with other lines."""
    rest = iter(lines)
    return pattern.sub(lambda match: next(rest) if match["line"] else match[0], text)
