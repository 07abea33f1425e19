"""Translation of text: N lines in, N lines out, in the same order.

Every part of a line is translated or copied:
  - A line is split into sentences (data/text.py). A model is trained on single sentences, and would omit the
    second one. A sentence longer than nearly all training sentences is split again.
  - The translated sentences are joined as the target language is written: English has a space between sentences,
    Chinese has none. Line breaks of the source stay.
  - A blank line stays blank. Symbols that the vocabulary lacks (emoji) are copied, and so is a row of dashes.
All lines of a call have one direction: the argument `direction`, or the one whose source language fits the script of
the first window. The n-th best translation of a line consists of the n-th best of each sentence. Lines are translated
in windows, so memory does not grow with the length of a file.
"""

import dataclasses
import itertools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman import bundle as bundles
from dragoman.bundle import Bundle, BundleInfo
from dragoman.config import SearchConfig
from dragoman.data.text import clean_text
from dragoman.errors import UserError, check_choice, choose
from dragoman.languages import Direction, by_script
from dragoman.search import Hypothesis
from dragoman.translation.ctranslate2 import SEARCHES, CTranslate2Engine, export_of
from dragoman.translation.lines import Translation, join, sentences

if TYPE_CHECKING:
    from torch import Tensor

    from dragoman.explain.trace import Attended
    from dragoman.model.transformer import Transformer

WINDOW = 2_000  # lines translated at a time
log = logging.getLogger(__name__)


class Translator:
    """A bundle with an engine: its `export`, or torch with the model of the bundle."""

    def __init__(self, bundle: BundleInfo, export: CTranslate2Engine | None = None, folder: Path | str = "") -> None:
        self.bundle, self._export, self._folder = bundle, export, folder
        self.tokenizers = bundle.src_tokenizer, bundle.tgt_tokenizer
        self.longest = min(bundle.max_length, bundle.meta.get("usual_length", bundle.max_length))  # pieces
        self.engine = "ctranslate2" if export else "torch"  # for the searches that it supports

    @classmethod
    def load(cls, folder: Path | str, device: str = "auto", *, engine: str = "auto") -> "Translator":
        """Load a bundle, or that of a run, on cpu, cuda, cuda:N, mps, or auto (best).

        `engine` is torch, ctranslate2, or auto: ctranslate2 on a CPU if the bundle has a valid export, else torch.
        """
        check_choice("--engine", engine, ("auto", "torch", "ctranslate2"))
        folder = bundles.locate(Path(folder))
        info = bundles.load_info(folder)
        if engine != "torch" and (export := _load_export(folder, info, engine, device)):
            return cls(info, export, folder)
        from dragoman.translation.engine import choose_device

        return cls(bundles.load(folder, choose_device(device)))

    @cached_property
    def model(self) -> "Transformer":
        """The model in torch; beside an export, it is read at its first use."""
        return (self.bundle if isinstance(self.bundle, Bundle) else bundles.load(self._folder)).model

    def direction(self, name: str | None, text: str) -> Direction:
        """Return the direction `name`; without a name, the one for the script of `text`."""
        choices = self.bundle.directions
        return choose("direction", name, {str(each): each for each in choices}) if name else by_script(choices, text)

    def translate(self, lines: Sequence[str], search: SearchConfig | None = None, **options: Any) -> list[Translation]:
        """Translate each line; for `options` see `stream`."""
        if isinstance(lines, str):
            raise UserError("translate: one text is not a list of lines. Write translate([text])")
        return list(self.stream(lines, search, **options))

    def stream(
        self,
        lines: Iterable[str],
        search: SearchConfig | None = None,
        *,
        batch_tokens: int = 4096,
        direction: str | None = None,
        scored: bool = True,
        progress: Callable[[int], object] = lambda n_lines: None,
    ) -> Iterator[Translation]:
        """Yield the translation of each line, in order; the input may have any length.

        `search` defaults to the settings in the bundle. An example of `direction` is zh_en. `batch_tokens` is the
        maximum of sentences x beams x longest sentence in a batch. `scored=False` is faster, but scores may be
        missing. `progress` is called with the number of lines done so far.
        """
        search, tokenizer = search or self.bundle.search, self.bundle.src_tokenizer
        if self._export and search.kind in SEARCHES:
            translate: Callable[..., list[list[Hypothesis]]] = partial(self._export.translate, scored=scored)
        else:
            if self._export:
                log.warning("note: CTranslate2 does not support search.kind=%s; torch is used", search.kind)
            from dragoman.translation.engine import translate_ids

            translate = partial(translate_ids, self.model)
        to, rest = None, iter(lines)
        n_lines = n_sentences = 0

        def report(n_done: int) -> None:
            progress(n_lines + len(window) * n_done // len(sources))

        while texts := list(itertools.islice(rest, WINDOW)):
            to = to or self.direction(direction, "\n".join(texts))
            tag = tokenizer.tag(to.tgt)
            window = [list(sentences(text.strip(), tokenizer, tag, self.longest)) for text in texts]
            sources = [sentence.ids for line in window for sentence in line if sentence.ids]
            numbers = range(n_sentences, n_sentences + len(sources))
            results = iter(translate(sources, search, batch_tokens=batch_tokens, numbers=numbers, progress=report))
            for line in window:
                yield join([(sentence, next(results) if sentence.ids else []) for sentence in line], to, self.bundle)
            n_lines, n_sentences = n_lines + len(window), n_sentences + len(sources)
            progress(n_lines)

    def attend(self, line: str, translation: str, *, direction: str | None = None) -> "Attended":
        """Return attention weights of `line` and its `translation`, without splitting."""
        from dragoman.explain.trace import attended

        tgt = self.bundle.tgt_tokenizer.encode(clean_text(translation))
        return attended(self.model, self.tokenizers, self._whole(line, direction), tgt)

    def trace(self, line: str, search: SearchConfig, beam_size: int, *, direction: str | None = None) -> dict[str, Any]:
        """Return each step of a beam search for `line`, as in explain/trace.py."""
        from dragoman.explain.trace import trace

        beam = dataclasses.replace(search, kind="beam", beam_size=beam_size, n_best=1)
        return trace(self.model, self.tokenizers, self._whole(line, direction), beam)

    def embed(
        self,
        lines: Iterable[str],
        pooling: str = "mean",
        *,
        batch_tokens: int = 4096,
        direction: str | None = None,
        progress: Callable[[int], object] = lambda n_lines: None,
    ) -> "Tensor":
        """Return one vector per line, pooled encoder output, (N, D) float32 on the CPU.

        A line of several sentences gets the mean of their vectors, weighted by tokens. A line with nothing to
        translate gets zeros. `pooling` is one of POOLINGS in model/pooling.py.
        """
        from dragoman.translation.engine import line_vectors

        line_vectors(self.model, [], pooling)  # checks `pooling` before any input is read
        texts, tokenizer = list(lines), self.bundle.src_tokenizer
        tag = tokenizer.tag(self.direction(direction, "\n".join(texts[:WINDOW])).tgt)
        split = (sentences(text.strip(), tokenizer, tag, self.longest) for text in texts)
        ids = [[sentence.ids for sentence in line if sentence.ids] for line in split]
        return line_vectors(self.model, ids, pooling, batch_tokens=batch_tokens, progress=progress)

    def _whole(self, line: str, direction: str | None) -> list[int]:
        """Return the source ids of a line, with the tag, without splitting."""
        tokenizer = self.bundle.src_tokenizer
        return [*tokenizer.tag(self.direction(direction, line).tgt), *tokenizer.encode(clean_text(line))]


def _load_export(folder: Path, info: BundleInfo, engine: str, device: str) -> CTranslate2Engine | None:
    """Return the export, or None for torch. Raises only with engine=ctranslate2."""
    if device not in ("auto", "cpu"):
        if engine == "auto":
            return None
        raise UserError(f"--device {device}: CTranslate2 is supported on the CPU only. Use --engine torch")
    try:
        is_first_use = folder.resolve() in bundles.included() and not export_of(folder).is_dir()
        if engine == "auto" and not (is_first_use or export_of(folder).is_dir()):
            return None
        if engine == device == "auto":
            import ctranslate2

            if ctranslate2.get_cuda_device_count():
                return None
        if is_first_use:
            from dragoman.translation.export import export_bundle

            print(f"first use of {folder}: preparing it for CTranslate2 (once)", file=sys.stderr)
            export_bundle(folder)
        return CTranslate2Engine.load(folder, info)
    except (UserError, ImportError, OSError) as error:  # not installed, unsuitable export, or a read-only cache
        if engine == "ctranslate2":
            raise
        log.warning("note: %s; torch is used", error)
        return None
