"""Attention, probabilities and search steps of a translation, for the page."""

import dataclasses
from itertools import islice
from typing import Any

from fastapi import HTTPException

from dragoman.serve import wire
from dragoman.serve.service import Service
from dragoman.special import EOS
from dragoman.translation.lines import Sentence, sentences
from dragoman.translation.translator import Translator

MOST_SENTENCES = 20
MOST_PIECES = 80  # of a traced sentence; the answer grows with the square


def explain(service: Service, request: wire.Languages) -> dict[str, Any]:
    """Return pieces, their probabilities, and attention of the first sentences.

    The attention is the mean over the heads of the last layer, by target piece, then source piece.
    """
    translator, direction, parts = _sentences(service, request)
    results = translator.translate([part.text for part in parts], direction=direction, scored=False)
    answers = []
    for part, result in zip(parts, results, strict=True):
        pair = translator.attend(part.text, result.text, direction=direction)
        ids = [*translator.bundle.tgt_tokenizer.encode(result.text), EOS]
        probabilities = pair.logits.softmax(-1)[range(len(ids)), ids]
        attention = [[round(w, 3) for w in row] for row in pair.maps["cross"][-1].mean(0).tolist()]
        answers.append(
            {
                "source": pair.pieces["src"],
                "target": pair.pieces["tgt_out"],
                "probabilities": [round(p, 4) for p in probabilities.tolist()],
                "attention": attention,
            }
        )
    return {"sentences": answers}


def trace(service: Service, request: wire.Trace) -> dict[str, Any]:
    """Return the search for the first sentence, as in explain/trace.py."""
    translator, direction, parts = _sentences(service, request)
    if len(parts[0].ids) > MOST_PIECES:
        raise HTTPException(400, f"Invalid request: the sentence has more than {MOST_PIECES} pieces. Shorten it")
    search = dataclasses.replace(translator.bundle.search, kind="beam", beam_size=request.beam, n_best=1)
    return translator.trace(parts[0].text, search, direction=direction)


def _sentences(service: Service, request: wire.Languages) -> tuple[Translator, str, list[Sentence]]:
    """Return the translator, the direction, and the sentences to translate."""
    service.check_length(request.q)
    direction = service.direction(request.source, request.target, request.q)
    if direction is None:
        raise HTTPException(400, "Invalid request: the text is in the target language")
    translator = service.models.translator(direction)
    tokenizer = translator.bundle.src_tokenizer
    every = sentences(request.q.strip(), tokenizer, tokenizer.tag(direction.tgt), translator.max_length)
    parts = list(islice((part for part in every if part.ids), MOST_SENTENCES))
    if not parts:
        raise HTTPException(400, "Invalid request: nothing to translate")
    return translator, str(direction), parts
