"""CTranslate2 engine: ids -> ids, faster than torch on a CPU.

translation/export.py writes the folder ctranslate2/ of a bundle. It holds CTranslate2's files and a manifest.json with
checksums of the weights that were exported.

CTranslate2 has one max_decoding_length per call, but Dragoman has one maximum length per sentence. A chunk is decoded
up to its largest maximum, then each hypothesis is cut at its own. Greedy search gives exactly torch's result. A beam
hypothesis that reaches its maximum may differ from torch's. A hypothesis that is cut keeps its score.
"""

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

from dragoman import files
from dragoman.bundle import CARD, MANIFEST, BundleInfo, included, listed, read_json, verify
from dragoman.config import SearchConfig
from dragoman.errors import UserError, check_choice
from dragoman.search import Hypothesis

SEARCHES = ("greedy", "beam")  # kinds that CTranslate2 supports
FORMAT_VERSION = 1
CHUNK = 512  # sentences of like length with one maximum length; CTranslate2 makes its batches of them
Ids = Sequence[Sequence[int]]


class CTranslate2Engine:
    """Engine with a loaded export; `positions` is the maximum length, 0 = no limit."""

    def __init__(self, folder: Path, info: BundleInfo, positions: int) -> None:
        import ctranslate2

        self.positions = positions
        self.workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        src, tgt = info.src_tokenizer, info.tgt_tokenizer
        self._src_pieces = src.pieces(range(len(src)))
        self._tgt_ids = {piece: i for i, piece in enumerate(tgt.pieces(range(len(tgt))))}
        # One thread for each worker, because the threads of one worker would wait for each other.
        options = {"inter_threads": self.workers, "intra_threads": 1, "max_queued_batches": -1}
        # In a separate thread, because loading limits torch to one thread in the thread that loads.
        with ThreadPoolExecutor(1) as pool:
            self._model = pool.submit(ctranslate2.Translator, str(folder), device="cpu", **options).result()

    @classmethod
    def load(cls, bundle: Path, info: BundleInfo) -> "CTranslate2Engine":
        """Load a bundle's export. Raises UserError if it is missing, damaged or stale."""
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
        numbers: Sequence[int] | None = None,
        scored: bool = True,
        progress: Callable[[int], object] = lambda n_sentences: None,
    ) -> list[list[Hypothesis]]:
        """Translate like engine.translate_ids, but without token_scores.

        There are scores if `scored`. `numbers` is unused: there is no sampling.
        """
        check_choice("search.kind", search.kind, SEARCHES)
        max_lengths = [search.max_length(len(source), self.positions) for source in sources]
        width = search.beam_size if search.kind == "beam" else 1
        n_tokens = sum(len(source) + 1 for source in sources)
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]), reverse=True)
        chunks = [order[start : start + CHUNK] for start in range(0, len(order), CHUNK)]
        queued = [
            self._model.translate_batch(
                [[self._src_pieces[id] for id in sources[i]] for i in chunk],
                max_batch_size=max(1, min(batch_tokens // width, n_tokens // self.workers)),
                batch_type="tokens",
                asynchronous=True,
                beam_size=width,
                num_hypotheses=min(search.n_best, width),
                length_penalty=search.length_penalty,
                return_scores=scored,
                max_decoding_length=max(max_lengths[i] for i in chunk),
                min_decoding_length=1,
                max_input_length=0,
            )
            for chunk in chunks
        ]
        results: dict[int, list[Hypothesis]] = {}
        for i, future in zip(order, chain(*queued), strict=True):
            answer = future.result()
            ids = [[self._tgt_ids[piece] for piece in pieces[: max_lengths[i]]] for pieces in answer.hypotheses]
            scores = answer.scores or [math.nan] * len(ids)
            results[i] = [Hypothesis(*each, []) for each in zip(ids, scores, strict=True)]
            progress(len(results))
        return [results[i] for i in range(len(sources))]


def export_of(bundle: Path) -> Path:
    """Return the folder of a bundle's export; for an included one, in the cache."""
    if bundle.resolve() not in included():
        return bundle / "ctranslate2"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "dragoman" / f"{bundle.name}-{files.sha256(bundle / MANIFEST)[:16]}"


def made_of(bundle: Path) -> dict[str, Any]:
    """Return the manifest's entries of the files that the export depends on."""
    return {name: entry for name, entry in listed(bundle).items() if name != CARD}
