"""Text to text: sentences go in, sentences come out.

N lines in, N lines out, in order, and no part of a line is dropped:
  - a line is split at its sentence ends (data/sentences.py), because models are trained on single sentences and
    drop the second one; a sentence longer than the training sentences is split further;
  - the translations are joined with the white space between the sentences, or the target language's: a space in
    English where Chinese had none, none in Chinese where English had one;
  - blank lines stay blank, and a sentence without letters or digits (emoji, a row of dashes) is copied.
A call has one direction: the one that is named, or the first whose source is in the script of the text (of all lines
in `score`, of the first window elsewhere). The n-th best translation of a line joins the n-th best of its sentences.
Lines are translated in windows, so that memory does not depend on the length of a file.
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman import bundle as bundles
from dragoman.bundle import Bundle, BundleInfo
from dragoman.config import SearchConfig
from dragoman.data.text import clean_text
from dragoman.errors import UserError, check_choice
from dragoman.languages import Direction, by_script, named
from dragoman.search.hypothesis import Hypothesis
from dragoman.translation.ctranslate2 import SEARCHES, CTranslate2Engine, export_of, library
from dragoman.translation.lines import Candidate, Sentence, Translation, in_lines, join, sentences

if TYPE_CHECKING:
    from torch import Tensor

    from dragoman.explain.attention_map import Attended
    from dragoman.model.transformer import Transformer

__all__ = ["Candidate", "Translation", "Translator"]
ENGINES = ("auto", "torch", "ctranslate2")
WINDOW = 2_000  # lines
_LONGEST = 4_096  # ids of a sentence; attention over more would need gigabytes
log = logging.getLogger(__name__)


class Translator:
    """A bundle, ready to translate with CTranslate2 or torch.

    `bundle` holds the model, unless there is an `export`; then `read` loads it when it is needed.
    """

    def __init__(
        self, bundle: BundleInfo, export: CTranslate2Engine | None = None, read: Callable[[], Bundle] | None = None
    ) -> None:
        self.bundle, self._export, self._read = bundle, export, read
        self.engine = "ctranslate2" if export else "torch"  # which translates
        # A sentence has its tag, in a model of two directions, and <EOS>.
        limit = export.positions if export else self.model.max_positions
        self.max_length = min(bundle.max_length, max(1, (limit or _LONGEST) - len(bundle.directions)))

    @classmethod
    def load(
        cls, folder: Path | str, device: str = "auto", *, engine: str = "auto", task: str | None = None
    ) -> "Translator":
        """Load a bundle or run folder on cpu, cuda, cuda:N, mps or the best of them.

        `engine` is torch, ctranslate2, or auto: CTranslate2 on a CPU where the bundle has a valid export. `task` is
        an option that only torch serves, such as "--attention".
        """
        check_choice("--engine", engine, ENGINES)
        folder = bundles.locate(Path(folder))
        info = bundles.load_info(folder)
        export = _load_export(folder, info, engine, device, task)

        def read() -> Bundle:
            from dragoman.translation.engine import choose_device

            return bundles.load(folder, choose_device(device))

        return cls(info, export, read) if export else cls(read())

    @cached_property
    def model(self) -> "Transformer":
        """The network in torch."""
        bundle = self._read() if self._read else self.bundle
        assert isinstance(bundle, Bundle)
        return bundle.model

    def direction(self, name: str | None, text: str) -> Direction:
        """Return the direction called `name`, or that for the script of `text`."""
        choices = self.bundle.directions
        return named(name, choices) if name else by_script(choices, text)

    def translate(self, lines: Sequence[str], search: SearchConfig | None = None, **options: Any) -> list[Translation]:
        """Translate each line; for `options` see `stream`."""
        return list(self.stream(lines, search, **options))

    def stream(
        self,
        lines: Iterable[str],
        search: SearchConfig | None = None,
        *,
        batch_tokens: int = 4096,
        direction: str | None = None,
        scored: bool = True,
        progress: Callable[[int], object] | None = None,
    ) -> Iterator[Translation]:
        """Translate input of any length; translations follow one by one, in order.

        `search` defaults to the bundle's own, `direction` is written zh_en, `batch_tokens` bounds sentences x beams
        x longest sentence. Without `scored`, scores may be missing, which saves time. `progress` is called with
        the number of lines done so far.
        """
        search, progress = search or self.bundle.search, progress or (lambda n_lines: None)
        translate = self._translate_ids(search, scored)
        n_lines = n_sentences = 0
        for tgt, window in self._windows(lines, direction):
            sources = [sentence.ids for line in window for sentence in line if sentence.ids]
            numbers = range(n_sentences, n_sentences + len(sources))
            report = in_lines(progress, n_lines, len(window), len(sources))
            rest = iter(translate(sources, search, batch_tokens=batch_tokens, lines=numbers, progress=report))
            for line in window:
                parts = [(sentence, next(rest) if sentence.ids else []) for sentence in line]
                n_best = max([1, *(len(hypotheses) for _, hypotheses in parts)])
                ranks = [join(parts, rank, self.bundle.tgt_tokenizer, tgt) for rank in range(n_best)]
                yield Translation(ranks)
            n_lines, n_sentences = n_lines + len(window), n_sentences + len(sources)
            progress(n_lines)

    def score(
        self, src: Sequence[str], tgt: Sequence[str], *, batch_tokens: int = 4096, direction: str | None = None
    ) -> list[float]:
        """Return log P(tgt | src) of pairs of whole lines, in nats with <EOS>."""
        from dragoman.translation.engine import score_ids

        if len(src) != len(tgt):
            raise UserError(f"{len(src)} source lines but {len(tgt)} target lines. They are pairs")
        language = self.direction(direction, "\n".join(src)).tgt
        pairs = [self._whole(*pair, language) for pair in zip(src, tgt, strict=True)]
        return score_ids(self.model, [s for s, _ in pairs], [t for _, t in pairs], batch_tokens=batch_tokens)

    def attend(self, line: str, translation: str, *, direction: str | None = None) -> "Attended":
        """Return the attention of each piece of `translation` over whole `line`."""
        from dragoman.explain.attention_map import attended

        src, tgt = self._whole(line, translation, self.direction(direction, line).tgt)
        return attended(self.model, (self.bundle.src_tokenizer, self.bundle.tgt_tokenizer), src, tgt)

    def embed(
        self,
        lines: Iterable[str],
        pooling: str = "mean",
        *,
        batch_tokens: int = 4096,
        direction: str | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> "Tensor":
        """Return a vector per line, (N, D) float32 on the CPU, pooled encoder states.

        The vector of several sentences is their mean, weighted by tokens; a line with nothing to translate gets
        zeros. Poolings: model/pooling.py.
        """
        import torch

        from dragoman.translation.engine import line_vectors

        vectors = [line_vectors(self.model, [], pooling)]  # checks `pooling` before any input is read
        n_lines = 0
        for _, window in self._windows(lines, direction):
            ids = [[sentence.ids for sentence in line if sentence.ids] for line in window]
            vectors.append(line_vectors(self.model, ids, pooling, batch_tokens=batch_tokens))
            n_lines += len(window)
            if progress:
                progress(n_lines)
        return torch.cat(vectors)

    def _translate_ids(self, search: SearchConfig, scored: bool) -> Callable[..., list[list[Hypothesis]]]:
        """The engine's function for this search."""
        if self._export and search.kind in SEARCHES:
            return partial(self._export.translate, scored=scored)
        if self._export:
            log.warning("note: CTranslate2 does not support search.kind=%s; torch is used", search.kind)
        from dragoman.translation.engine import translate_ids

        return partial(translate_ids, self.model)

    def _windows(self, lines: Iterable[str], direction: str | None) -> Iterator[tuple[str, list[list[Sentence]]]]:
        """Yield the target language and the sentences of some lines at a time."""
        rest, tgt, tokenizer = iter(lines), "", self.bundle.src_tokenizer
        while window := list(itertools.islice(rest, WINDOW)):
            tgt = tgt or self.direction(direction, "\n".join(window)).tgt
            tag = tokenizer.tag(tgt)
            yield tgt, [list(sentences(line.strip(), tokenizer, tag, self.max_length)) for line in window]

    def _whole(self, src: str, tgt: str, tgt_language: str) -> tuple[list[int], list[int]]:
        """The ids of a pair of whole lines. Raises UserError if they are too many."""
        src_tokenizer, tgt_tokenizer = self.bundle.src_tokenizer, self.bundle.tgt_tokenizer
        ids = [*src_tokenizer.tag(tgt_language), *src_tokenizer.encode(clean_text(src))]
        tgt_ids = tgt_tokenizer.encode(clean_text(tgt))
        length, limit = max(len(ids), len(tgt_ids)) + 1, min(_LONGEST, self.model.max_positions or _LONGEST)
        if length > limit:
            raise UserError(f"'{src[:40]}': {length} pieces are too many, the limit is {limit}. Shorten it")
        return ids, tgt_ids


def _load_export(
    folder: Path, info: BundleInfo, engine: str, device: str, task: str | None
) -> CTranslate2Engine | None:
    """Return the export to use, None for torch. Raises UserError if named but bad."""
    on_cpu = device in ("auto", "cpu")
    if engine == "torch" or (engine == "auto" and not (on_cpu and export_of(folder).is_dir())):
        return None
    if not on_cpu:
        raise UserError(f"--device {device}: CTranslate2 computes on the CPU here. Use --engine torch")
    if task:
        log.warning("note: CTranslate2 does not support %s; torch is used", task)
        return None
    try:
        on_gpu = engine == device == "auto" and library().get_cuda_device_count()
        return None if on_gpu else CTranslate2Engine.load(folder, info)
    except UserError as error:
        if engine == "ctranslate2":
            raise
        log.warning("note: %s; torch is used", error)
        return None
