"""ids -> ids with torch: one model, many sentences, any search.

It sorts the sentences by length, cuts them into batches by a token budget, encodes each batch once and hands it with
a `step` function to the search; the answers come back in the order asked. No text here.

Logits stay on the model's device: the search takes what it needs from there once a step. On a CPU several batches are
translated side by side, a thread each: two threads that share the small products of one batch wait for each other
more than they work. In what precision is the caller's: within torch.autocast all threads compute as it says.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from threading import Event, Lock

import torch
from torch import Tensor, nn

from dragoman.data.collate import collate
from dragoman.errors import UserError
from dragoman.model.cache import DecoderCache
from dragoman.model.step import Step
from dragoman.model.transformer import Transformer
from dragoman.search.search import Hypothesis, SearchConfig, Sentence, search
from dragoman.special import EOS, PAD

_MOST_WORKERS = 4  # more would wait for each other's Python


def translate_ids(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    config: SearchConfig,
    *,
    batch_tokens: int = 4096,
    lines: Sequence[int] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[list[Hypothesis]]:
    """Source ids without EOS -> n_best hypotheses for each, best first, in the order of `sources`.

    `batch_tokens` bounds (rows x beams) x longest source of a batch; `lines` are the sentences' numbers in the whole
    input (default: 0, 1, 2 ...), which seed sampling; `progress` is told of each sentence that is done.
    Raises UserError for a source longer than the model has positions for; no translation is longer than that either.
    """
    lines = range(len(sources)) if lines is None else lines
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]), reverse=True)
    longest_answer = sys.maxsize
    if model.max_positions is not None:
        longest_answer = model.max_positions - 1  # and its EOS
        if order and len(sources[order[0]]) > longest_answer:
            raise UserError(
                f"a sentence of {len(sources[order[0]])} pieces is too long for this model, which was trained with "
                f"model.position.length={model.max_positions}"
            )
    answers: list[list[Hypothesis]] = [[] for _ in sources]
    one_at_a_time = Lock()

    def found(i: int, hypotheses: list[Hypothesis]) -> None:
        answers[i] = hypotheses
        if progress:
            with one_at_a_time:
                progress(1)

    @torch.inference_mode()
    def translate(mine: Iterable[list[int]]) -> None:
        step = Step(model)

        def begun(batch: list[int]) -> tuple[list[Sentence], DecoderCache]:
            lengths = [min(config.max_length(len(sources[i])), longest_answer) for i in batch]
            sentences = [Sentence(i, lines[i], length) for i, length in zip(batch, lengths, strict=True)]
            return sentences, step.begin(_padded([sources[i] for i in batch]))

        search(step, map(begun, mine), config, found)

    most = batch_tokens // {"beam": config.beam_size, "sample": config.n_best}.get(config.kind, 1)
    n_workers = 1
    if next(model.parameters()).device.type == "cpu":
        n_workers = min(torch.get_num_threads(), len(_batches(order, sources, most)), _MOST_WORKERS)
    was_training = model.training
    model.eval()
    try:
        # Who gets which sentence does not depend on who is faster: the same call computes the same numbers.
        _side_by_side(translate, [_batches(order[i::n_workers], sources, most) for i in range(n_workers)])
    finally:
        if was_training:
            model.train()
    return answers


def _batches(order: list[int], sources: Sequence[Sequence[int]], most: int) -> list[list[int]]:
    """`order`, the longest source first, cut so that no batch has more than `most` rows x longest source."""
    found = []
    while order:
        rows = max(1, most // (len(sources[order[0]]) + 1))
        found.append(order[:rows])
        order = order[rows:]
    return found


def _padded(sources: Sequence[Sequence[int]]) -> Tensor:
    """(B, S) ids, each with its EOS, and padding."""
    longest = max(map(len, sources))
    return torch.tensor([[*source, EOS] + [PAD] * (longest - len(source)) for source in sources])


def _side_by_side(translate: Callable[[Iterable[list[int]]], None], shares: list[list[list[int]]]) -> None:
    """`translate` the batches of each share: on a CPU, where there are several, in a thread of its own."""
    n_threads = torch.get_num_threads()
    if len(shares) < 2:
        for share in shares:
            translate(share)
        return
    amp, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    stop = Event()

    def in_a_thread(share: list[list[int]]) -> None:
        torch.set_num_threads(n_threads // len(shares))  # of this thread
        try:
            with torch.autocast("cpu", dtype, enabled=amp):
                translate(takewhile(lambda _: not stop.is_set(), share))
        except BaseException:
            stop.set()
            raise

    try:
        with ThreadPoolExecutor(len(shares)) as pool:
            try:
                list(pool.map(in_a_thread, shares))
            finally:
                stop.set()
    finally:
        torch.set_num_threads(n_threads)  # of threads to come


def laid_out(model: Transformer) -> Transformer:
    """`model` itself; on a CPU, its weights stored as products of a few rows read them fastest: to translate with.

    Shapes and numbers stay. The columns of a weight lie one after the other, which makes those products a third
    faster, with some room between them, because numbers a power of 2 apart share too few lines of a processor's cache.
    """
    if next(model.parameters()).device.type != "cpu":
        return model
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = _by_columns(module.weight.data)
    model.projection.by_columns = _by_columns(model.projection.weight.data)
    return model


def _by_columns(weight: Tensor) -> Tensor:
    room = weight.new_empty(weight.size(1), weight.size(0) + 16)[:, : weight.size(0)]
    return room.copy_(weight.t()).t()


@torch.inference_mode()
def score_ids(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    batch_tokens: int = 4096,
) -> list[float]:
    """log P(target | source) of each pair in nats, the end mark included."""
    widths = [max(map(len, pair)) + 1 for pair in zip(sources, targets, strict=True)]
    order = sorted(range(len(widths)), key=widths.__getitem__, reverse=True)
    scores = [0.0] * len(widths)
    while order:
        rows = max(1, batch_tokens // widths[order[0]])
        group, order = order[:rows], order[rows:]
        batch = collate([sources[i] for i in group], [targets[i] for i in group])
        batch = batch.to(next(model.parameters()).device)
        logits = model(batch.src, batch.tgt_in, batch.src_key_padding_mask)
        gold = logits.float().log_softmax(-1).gather(-1, batch.tgt_out[..., None]).squeeze(-1)  # (B, T)
        totals = gold.masked_fill(batch.tgt_key_padding_mask, 0.0).sum(1)
        for i, total in zip(group, totals.tolist(), strict=True):
            scores[i] = total
    return scores
