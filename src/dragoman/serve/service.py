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

# A line without its outer white space; a tag, or all of a script or a style sheet.
_LINE = re.compile(r"(\S(?:.*\S)?)")
_MARKUP = re.compile(r"(<script\b.*?(?:</script[^<>]*>|\Z)|<style\b.*?(?:</style[^<>]*>|\Z)|<[^<>]*>)", re.I | re.S)
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
        results = await asyncio.gather(*(self._translate(text, request) for text in request.texts))
        answer: dict[str, Any] = {"translatedText": [ranks[0] for ranks, _ in results]}
        if request.source == "auto":
            answer["detectedLanguage"] = [self.detected(text, request.target)[0] for text in request.texts]
        if request.alternatives:
            answer["alternatives"] = [ranks[1:] for ranks, _ in results]
        if any(warnings for _, warnings in results):
            answer["warnings"] = [warnings for _, warnings in results]
        return {key: value[0] for key, value in answer.items()} if isinstance(request.q, str) else answer

    async def _translate(self, text: str, request: wire.Translate) -> tuple[list[str], list[str]]:
        """Return the best translations of a text, without duplicates, and warnings."""
        direction = self.direction(request, text)
        if direction is None:
            return [text], []
        is_html = request.format == "html"
        parts = split(text, is_html)
        lines = [html.unescape(line) if is_html else line for line in parts[1::2]]
        results = await self.batches.translate((direction, request.alternatives + 1), lines)
        ranks = []
        for rank in range(max([1, *(len(result.hypotheses) for result in results)])):
            lines = [result.hypotheses[min(rank, len(result.hypotheses) - 1)].text for result in results]
            parts[1::2] = [html.escape(line, quote=False) if is_html else line for line in lines]
            ranks.append("".join(parts))
        warnings = [warning for result in results for warning in result.warnings]
        if any(map(is_traditional, (request.source, request.target))) and not any(map(is_traditional, direction)):
            warnings.append(TRADITIONAL)
        return list(dict.fromkeys(ranks)), list(dict.fromkeys(warnings))

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
        parts = sentences(request.q.strip(), tokenizer, tokenizer.tag(direction.tgt), translator.bundle.max_length)
        return translator, str(direction), (part for part in parts if part.ids)

    def _run(self, options: tuple[Direction, int], texts: list[str]) -> list[Translation]:
        """Translate a batch, with the model as it is now."""
        direction, n_best = options
        translator = self.models.translator(direction)
        search = translator.bundle.search
        if self.beam or n_best > 1:
            beam_size = max(self.beam or search.beam_size, n_best)
            search = dataclasses.replace(search, kind="beam", beam_size=beam_size, n_best=n_best)
        return translator.translate(texts, search, direction=str(direction))


def spellings(language: str) -> list[str]:
    """Return the codes listed for a language; older clients read the second."""
    if primary(language) != "zh":
        return [primary(language)]
    return ["zh-Hant", "zt"] if is_traditional(language) else ["zh-Hans", "zh"]


def split(text: str, is_html: bool) -> list[str]:
    """Divide a text into parts; every second one is translated, the others stay."""
    if not is_html:
        return _LINE.split(text)
    parts = [""]
    for number, part in enumerate(_MARKUP.split(text)):
        pieces = [part] if number % 2 else _LINE.split(part)
        parts[-1] += pieces[0]
        parts += pieces[1:]
    return parts
