"""ids -> ids with CTranslate2: the hypotheses that torch finds, several times faster on a CPU, and without torch.

It knows the folder ctranslate2/ of a bundle and how CTranslate2 is asked; export/ctranslate2.py makes that folder.
It refuses to know text, and whether CTranslate2 should be used at all (engine.py).

    model.bin config.json *_vocabulary.json   as CTranslate2 writes and reads them; a piece is called by its name
    manifest.json                             size and sha256 of each, and of the bundle's files that it was made of

What makes the hypotheses the same ones:
  - PAD, UNK and BOS are never written: the export gives them a bias that no logit outweighs, so that the other
    pieces share all of the probability, as in search/warp.py; the first piece is not EOS (min_decoding_length).
  - CTranslate2 has one length cap for a batch, Dragoman one for each sentence. A batch is searched up to the
    longest of its caps. A search is over at the step at which its k-th hypothesis ends, and that hypothesis is among
    those returned: where all of them are shorter than the sentence's own cap, the cap never acted. The few others are
    searched again among sentences of the same cap; and so is everything with length_penalty 0, where a search may
    end before k hypotheses have.
  - The log-probability of each piece comes from one more pass over the finished hypotheses, which is made only
    where somebody asks for scores.

Workers of one thread each, as many as there are processors: two of them are 2 to 9 times faster than one worker of
two threads, and one sentence is faster with one thread than with two.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman import ctranslate2_file as files
from dragoman import durable, untrusted
from dragoman.description import CONFIG, MANIFEST, WEIGHTS, Shell
from dragoman.errors import UserError
from dragoman.model.shape import ModelConfig
from dragoman.search.hypothesis import Hypothesis, SearchConfig

FOLDER, MODEL = "ctranslate2", "model.bin"
FORMAT_VERSION = 1
TABLELESS = ("rope", "t5")  # position schemes that add nothing to the word vectors
OLDEST = (4, 8)  # before it, no rope in an encoder
_SHARED, _BOTH = ("shared_vocabulary.json",), ("source_vocabulary.json", "target_vocabulary.json")


@dataclass(kw_only=True)
class Manifest:
    """manifest.json of an export. `positions`: how many its table holds; 0: there is no table, and no end."""

    format_version: int
    library: str
    quantization: str
    positions: int
    made_of: dict
    files: dict


def inexpressible(config: ModelConfig) -> str | None:
    """What of a network CTranslate2 has no words for; None: nothing."""
    if config.score == "additive":
        return "model.score=additive"
    if config.position.kind in ("transformer_xl", "alibi"):
        return f"model.position.kind={config.position.kind}"
    return None


def library() -> Any:
    """The module. Raises UserError with the command that installs it."""
    try:
        import ctranslate2
    except ImportError:
        raise UserError(
            "CTranslate2 is not installed: pip install 'ctranslate2>=4.8', or use --engine torch"
        ) from None
    if tuple(map(int, ctranslate2.__version__.split(".")[:2])) < OLDEST:
        raise UserError(
            f"CTranslate2 {ctranslate2.__version__} is too old: pip install --upgrade 'ctranslate2>=4.8'"
        )
    return ctranslate2


def export_of(bundle: Path) -> Path:
    """Where the export of a bundle is, or would be."""
    return durable.current(bundle / FOLDER)


def made_of(bundle: Path) -> dict[str, Any]:
    """Size and sha256, as the bundle's manifest has them, of all that the export depends on."""
    files = untrusted.read_json(bundle, MANIFEST).get("files")
    if not isinstance(files, dict):
        raise UserError(f"{bundle / MANIFEST} lists no files")
    return {
        name: entry for name, entry in files.items() if name in (CONFIG, WEIGHTS) or name.endswith(".model")
    }


class CTranslate2Engine:
    """The export of a bundle, loaded; one for all threads."""

    def __init__(self, folder: Path, shell: Shell, positions: int) -> None:
        """Of an export that is known to be whole: see `load`."""
        ctranslate2 = library()
        self.workers, self.positions = processors(), positions
        self._limit = shell.model_config.position.limit
        self._src_pieces, self._tgt_pieces = _pieces(shell)
        self._tgt_ids = {piece: i for i, piece in enumerate(self._tgt_pieces)}
        try:
            # Not in this thread: the one that makes it computes with one thread ever after, in torch as well.
            with ThreadPoolExecutor(1) as pool:
                self._model = pool.submit(
                    ctranslate2.Translator,
                    str(folder),
                    device="cpu",
                    inter_threads=self.workers,
                    intra_threads=1,
                ).result()
        except Exception as error:  # of whatever kind: a library that reads a file
            raise UserError(f"CTranslate2 cannot read {folder}: {' '.join(str(error).split())}") from error

    @classmethod
    def load(cls, bundle: Path, shell: Shell) -> CTranslate2Engine:
        """Raises UserError in one line for an export that is missing, damaged, or made of another bundle."""
        folder = export_of(bundle)
        manifest = _checked(bundle, folder)
        check(folder, shell, manifest.positions, manifest.quantization)
        return cls(folder, shell, manifest.positions)

    def refuses(self, search: SearchConfig, longest: int) -> str | None:
        """What it cannot do of a search for sources of up to `longest` pieces; None: it can."""
        if search.kind == "sample":
            return "search.kind=sample, with a stream of chance for each line"
        needed = max(longest + 1, search.max_length(longest))
        if self._limit is None and 0 < self.positions < needed:
            return f"{needed} positions: its table ends at {self.positions}"
        return None

    def translate(
        self,
        sources: Sequence[Sequence[int]],
        search: SearchConfig,
        *,
        batch_tokens: int = 4096,
        scored: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Hypothesis]]:
        """As torch_engine.translate_ids. Unless `scored`, the scores are NaN and there are no token_scores."""
        width = search.beam_size if search.kind == "beam" else 1
        if self._limit is not None and max(map(len, sources), default=0) >= self._limit:
            raise UserError(
                f"a sentence of {max(map(len, sources))} pieces is too long for this model, which was trained with "
                f"model.position.length={self._limit}"
            )
        longest = sys.maxsize if self._limit is None else self._limit - 1
        caps = [min(search.max_length(len(source)), longest) for source in sources]
        lengths = [len(source) + 1 for source in sources]
        found: list[list[Hypothesis]] = [[] for _ in sources]

        def submit(group: list[int]) -> list[Any]:
            return self._model.translate_batch(
                [self._named(sources[i], self._src_pieces) for i in group],
                asynchronous=True,
                beam_size=width,
                num_hypotheses=width if mixed else search.n_best,
                length_penalty=search.length_penalty,
                max_decoding_length=max(caps[i] for i in group),
                min_decoding_length=1,
                max_input_length=0,
                return_scores=scored,
            )

        mixed = width == 1 or search.length_penalty != 0  # caps of all kinds in one batch
        left = sorted(range(len(sources)), key=lengths.__getitem__, reverse=True)
        while left:
            alike = [left] if mixed else [list(same) for _, same in itertools.groupby(left, caps.__getitem__)]
            groups = [group for same in alike for group in self._groups(same, lengths, batch_tokens // width)]
            left = []
            for group, results in self._in_flight(groups, submit):
                cap = max(caps[i] for i in group)
                for i, result in zip(group, results, strict=True):
                    if caps[i] == cap or all(len(pieces) < caps[i] for pieces in result.hypotheses):
                        found[i] = self._hypotheses(result)[: search.n_best]
                    else:
                        left.append(i)
                if progress:
                    progress(sum(bool(found[i]) for i in group))
            mixed = False
        if scored:
            self._score_pieces(found, sources, caps, search.length_penalty, batch_tokens)
        return found

    def _hypotheses(self, result: Any) -> list[Hypothesis]:
        scores = result.scores or itertools.repeat(math.nan)
        return [
            Hypothesis([self._tgt_ids[piece] for piece in pieces], score, [])
            for pieces, score in zip(result.hypotheses, scores, strict=False)
        ]

    def _score_pieces(
        self,
        found: list[list[Hypothesis]],
        sources: Sequence[Sequence[int]],
        caps: Sequence[int],
        length_penalty: float,
        batch_tokens: int,
    ) -> None:
        """Give the hypotheses their token_scores, by a pass that is told them instead of finding them."""
        rows = [(i, hypothesis) for i, hypotheses in enumerate(found) for hypothesis in hypotheses]
        lengths = [max(len(sources[i]), len(hypothesis.ids)) + 1 for i, hypothesis in rows]

        def submit(group: list[int]) -> list[Any]:
            return self._model.score_batch(
                [self._named(sources[rows[n][0]], self._src_pieces) for n in group],
                [self._named(rows[n][1].ids, self._tgt_pieces) for n in group],
                asynchronous=True,
                max_input_length=0,
            )

        order = sorted(range(len(rows)), key=lengths.__getitem__, reverse=True)
        for group, results in self._in_flight(self._groups(order, lengths, batch_tokens), submit):
            for n, result in zip(group, results, strict=True):
                i, hypothesis = rows[n]
                cut_off = len(hypothesis.ids) == caps[i]  # its EOS was never reached
                gains = result.log_probs[:-1] if cut_off else result.log_probs
                # The search could not begin with EOS and shared its probability among the others; this pass has not.
                total = hypothesis.score * len(gains) ** length_penalty
                gains[0] += total - sum(gains)
                hypothesis.token_scores = gains

    def _groups(self, order: list[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
        """`order` in batches of at most `budget` pieces, and so many that no worker has nothing to do."""
        share = sum(lengths[i] for i in order) // self.workers
        groups = []
        while order:
            rows = max(1, min(budget, share) // lengths[order[0]])
            groups.append(order[:rows])
            order = order[rows:]
        return groups

    def _in_flight(
        self, groups: Iterable[list[int]], submit: Callable[[list[int]], list[Any]]
    ) -> Iterator[tuple[list[int], list[Any]]]:
        """Each group with its results, in order; a few more are always waiting for a worker."""
        pending: deque[tuple[list[int], list[Any]]] = deque()
        for group in groups:
            pending.append((group, submit(group)))
            if len(pending) > 2 * self.workers:
                first, results = pending.popleft()
                yield first, [each.result() for each in results]
        for group, results in pending:
            yield group, [each.result() for each in results]

    @staticmethod
    def _named(ids: Sequence[int], pieces: list[str]) -> list[str]:
        return [pieces[i] for i in ids]


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _checked(bundle: Path, folder: Path) -> Manifest:
    """The manifest of a whole export of exactly this bundle: nothing is added, missing, changed or out of bounds."""
    if not folder.resolve().is_relative_to(bundle.resolve()):
        raise UserError(f"{folder} is a link that leads out of its bundle: refused")
    if not folder.is_dir():
        raise UserError(
            f"{bundle} has no CTranslate2 export yet: python scripts/export.py --model {bundle} --to ctranslate2"
        )
    again = f"; make it again: python scripts/export.py --model {bundle} --to ctranslate2"
    raw = untrusted.read_json(folder, MANIFEST)
    if raw.get("format_version") != FORMAT_VERSION:
        raise UserError(
            f"{folder} is of format {str(raw.get('format_version'))[:20]}, not {FORMAT_VERSION}{again}"
        )
    manifest: Manifest = untrusted.typed(Manifest, raw, str(folder / MANIFEST))
    if manifest.made_of != made_of(bundle):
        raise UserError(f"{folder} was made of another model than is in {bundle} now{again}")
    names = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST)
    if names not in [sorted((MODEL, CONFIG, *vocabulary)) for vocabulary in (_SHARED, _BOTH)]:
        raise UserError(f"{folder} holds other files than an export has: {', '.join(names)[:200]}{again}")
    untrusted.verify(folder, raw, names)
    return manifest


def _pieces(shell: Shell) -> tuple[list[str], list[str]]:
    """All of both vocabularies; a joint one is read once."""
    src, tgt = shell.src_tokenizer, shell.tgt_tokenizer
    of_src = src.pieces(range(len(src)))
    return of_src, of_src if tgt is src else tgt.pieces(range(len(tgt)))


def check(folder: Path, shell: Shell, positions: int, quantization: str) -> None:
    """Whether an export's files hold what its bundle implies. Raises UserError for the first that does not."""
    if quantization not in files.QUANTIZATIONS:
        raise UserError(f"{folder / MANIFEST}: there is no quantization {quantization[:40]!r}")
    limit = shell.model_config.position.limit
    tableless = shell.model_config.position.kind in TABLELESS
    if not 0 <= positions < 1 << 32 or bool(positions) == tableless or (limit and positions != limit):
        raise UserError(f"{folder / MANIFEST}: {positions} positions are not what config.json makes")
    pieces = _pieces(shell)
    sizes = len(pieces[0]), len(pieces[1])
    files.check_model(folder / MODEL, files.layout(shell.model_config, sizes, positions, quantization))
    shared = (folder / _SHARED[0]).exists()
    for name, of_this in zip(_SHARED * 2 if shared else _BOTH, pieces, strict=True):
        files.check_words(folder / name, of_this)
    files.check_settings(folder, CONFIG, pieces[1])
