"""CTranslate2 engine: ids -> ids, faster than torch on a CPU.

The folder ctranslate2/ of a bundle (translation/export.py writes it) holds CTranslate2's own files and a
manifest.json that ties them to the weights they were made from.

A batch has one length cap in CTranslate2, and each sentence has one in Dragoman. A batch is searched up to the longest
of its caps, and each hypothesis is cut at its own. A greedy translation is then exactly that of torch. A hypothesis of
a beam that reaches its cap may be another one, and keeps the score that it had before the cut.

Each worker has one thread: workers share nothing, threads within one wait for each other.
"""

import itertools
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dragoman import files
from dragoman.bundle import CARD, BundleInfo
from dragoman.config import SearchConfig
from dragoman.errors import UserError, check_choice
from dragoman.manifest import MANIFEST, listed, read_json, verify
from dragoman.search.hypothesis import Hypothesis

SEARCHES = ("greedy", "beam")  # kinds that CTranslate2 computes as search/ does
FOLDER = "ctranslate2"
FORMAT_VERSION = 1
Ids = Sequence[Sequence[int]]


class CTranslate2Engine:
    """Search with a loaded export; `positions` is the most ids, 0 without limit."""

    def __init__(self, folder: Path, info: BundleInfo, positions: int) -> None:
        self.positions = positions
        has_affinity = hasattr(os, "sched_getaffinity")
        self.workers = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
        src, tgt = info.src_tokenizer, info.tgt_tokenizer
        self._src_pieces = src.pieces(range(len(src)))
        self._tgt_ids = {piece: i for i, piece in enumerate(tgt.pieces(range(len(tgt))))}
        options = {"device": "cpu", "inter_threads": self.workers, "intra_threads": 1}
        # In a thread of its own, because the thread that loads it is left with one thread for torch as well.
        with ThreadPoolExecutor(1) as pool:
            self._model = pool.submit(library().Translator, str(folder), **options).result()

    @classmethod
    def load(cls, bundle: Path, info: BundleInfo) -> "CTranslate2Engine":
        """Load a bundle's export. Raises UserError if missing, damaged or outdated."""
        folder = export_of(bundle)
        remedy = f"Run `python scripts/export.py --model {bundle} --to ctranslate2`, or use --engine torch"
        if not folder.is_dir():
            raise UserError(f"{bundle}: no CTranslate2 export. {remedy}")
        manifest = read_json(folder / MANIFEST)
        if (manifest["format_version"], manifest["made_of"]) != (FORMAT_VERSION, made_of(bundle)):
            raise UserError(f"{folder}: made from other weights, or in another format. {remedy}")
        verify(folder, manifest["files"])
        return cls(folder, info, manifest["positions"])

    def translate(
        self,
        sources: Ids,
        search: SearchConfig,
        *,
        batch_tokens: int = 4096,
        lines: Sequence[int] | None = None,  # seed sampling in torch
        scored: bool = True,
        progress: Callable[[int], object] | None = None,
    ) -> list[list[Hypothesis]]:
        """As engine.translate_ids, without token_scores; scores only if `scored`."""
        check_choice("search.kind", search.kind, SEARCHES)
        limit = self.positions - 1 if self.positions else sys.maxsize  # one is for <EOS>
        caps = [min(search.max_length(len(source)), limit) for source in sources]
        width = search.beam_size if search.kind == "beam" else 1

        def submit(batch: list[int]) -> tuple[list[int], list[Any]]:
            return batch, self._model.translate_batch(
                [[self._src_pieces[id] for id in sources[i]] for i in batch],
                asynchronous=True,
                beam_size=width,
                num_hypotheses=search.n_best,
                length_penalty=search.length_penalty,
                return_scores=scored,
                max_decoding_length=max(caps[i] for i in batch),
                min_decoding_length=1,
                max_input_length=0,
            )

        n_tokens = sum(len(source) + 1 for source in sources)
        batches = _batches(sources, min(batch_tokens // width, n_tokens // self.workers))
        submitted = map(submit, batches)
        # A few batches always wait for a worker; not all of them, so that an interrupt ends soon.
        waiting = deque(itertools.islice(submitted, 2 * self.workers))
        results: list[list[Hypothesis]] = [[] for _ in sources]
        while waiting:
            batch, answers = waiting.popleft()
            for i, answer in zip(batch, answers, strict=True):
                result = answer.result()
                pairs = zip(result.hypotheses, result.scores or itertools.repeat(math.nan), strict=False)
                results[i] = [
                    Hypothesis([self._tgt_ids[piece] for piece in pieces[: caps[i]]], score, [])
                    for pieces, score in pairs
                ]
            if progress:
                progress(len(batch))
            waiting.extend(itertools.islice(submitted, 1))
        return results


def library() -> Any:
    """Import CTranslate2. Raises UserError with the command that installs it."""
    try:
        import ctranslate2
    except ImportError:
        raise UserError("CTranslate2 is not installed. Run `pip install 'ctranslate2>=4.8'`") from None
    return ctranslate2


def export_of(bundle: Path) -> Path:
    """Return where the export of a bundle is, or would be."""
    return files.current(bundle / FOLDER)


def made_of(bundle: Path) -> dict[str, Any]:
    """Return the manifest's entries of the files that an export is made from."""
    return {name: entry for name, entry in listed(bundle).items() if name != CARD}


def _batches(sources: Ids, n_tokens: int) -> Iterator[list[int]]:
    """Yield indices of sources, by falling length, of at most `n_tokens` in a batch.

    Not data.batching.length_batches, because importing numpy takes longer than translating a sentence.
    """
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]), reverse=True)
    while order:
        n_rows = max(1, n_tokens // (len(sources[order[0]]) + 1))
        yield order[:n_rows]
        order = order[n_rows:]
