"""Beam search: the k likeliest prefixes side by side.

The rules are CTranslate2's, so that both engines find the same hypotheses. At each step the 2k best continuations of
a sentence's k beams are ranked. Of the first k, those that end (EOS, or the length cap) are put away, finished and
frozen; the best k that do not end go on. A sentence is done when k hypotheses were put away, at its length cap, or,
with length_penalty 0, when the leading beam has ended and n_best are in hand (nothing later could then score
higher). Done sentences leave the batch. A sentence never looks at its batch-mates.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dragoman.search.hypothesis import Cache, Hypothesis, SearchConfig, Step, normalised
from dragoman.search.warp import log_probabilities
from dragoman.special import BOS, EOS


def beam_search(
    step: Step, cache: Cache, config: SearchConfig, *, max_lengths: Sequence[int]
) -> list[list[Hypothesis]]:
    """Search len(max_lengths) sentences at once -> n_best hypotheses each, best first."""
    k = config.beam_size
    finished: list[list[Hypothesis]] = [[] for _ in max_lengths]
    leader_ended = [False] * len(max_lengths)
    sentences = list(range(len(max_lengths)))  # those still in the batch, in order
    cache = cache.select(torch.arange(len(sentences)).repeat_interleave(k))
    tokens = torch.full((len(sentences) * k, 1), BOS)
    totals = torch.full((len(sentences), k), float("-inf"))  # (B, k)
    totals[:, 0] = 0.0  # all beams begin alike: only the first one counts
    ids = torch.empty(len(sentences), k, 0, dtype=torch.long)  # (B, k, t) what each beam has produced
    gains = torch.empty(len(sentences), k, 0)  # (B, k, t) and each piece's log-probability

    while sentences:
        logits, cache = step(tokens, cache)
        origin, chosen, gained, totals = _candidates(
            log_probabilities(logits, first=ids.size(2) == 0).to(totals.device), totals
        )
        ids = torch.cat((ids.gather(1, origin[..., None].expand(-1, -1, ids.size(2))), chosen[..., None]), 2)
        gains = torch.cat(
            (gains.gather(1, origin[..., None].expand(-1, -1, gains.size(2))), gained[..., None]), 2
        )  # both (B, 2k, t + 1)
        staying = []
        scored, written = totals.tolist(), chosen.tolist()  # asked number by number, tensors are slow
        for at, sentence in enumerate(sentences):
            last = ids.size(2) >= max_lengths[sentence]
            for beam in range(k):
                total = scored[at][beam]
                if total == float("-inf") or not (last or written[at][beam] == EOS):
                    continue
                leader_ended[sentence] |= beam == 0
                finished[sentence].append(
                    _hypothesis(ids[at, beam], gains[at, beam], total, config.length_penalty)
                )
            enough = len(finished[sentence]) >= (config.n_best if config.length_penalty == 0 else k)
            if not (last or (enough and (config.length_penalty != 0 or leader_ended[sentence]))):
                staying.append(at)
        going_on = (chosen == EOS).to(torch.int8).argsort(dim=1, stable=True)[:, :k]  # best k that do not end
        totals, origin, chosen = (x.gather(1, going_on) for x in (totals, origin, chosen))
        pick = going_on[..., None].expand(-1, -1, ids.size(2))
        ids, gains = ids.gather(1, pick), gains.gather(1, pick)
        rows = (
            origin + torch.arange(len(sentences))[:, None] * k
        )  # rows of the cache that each beam continues
        if len(staying) < len(sentences):
            keep = torch.tensor(staying, dtype=torch.long)
            totals, rows, chosen, ids, gains = (x[keep] for x in (totals, rows, chosen, ids, gains))
            sentences = [sentences[at] for at in staying]
        cache = cache.select(rows.flatten())
        tokens = chosen.reshape(-1, 1)
    return [sorted(hypotheses, key=lambda h: -h.score)[: config.n_best] for hypotheses in finished]


def _candidates(log_p: Tensor, totals: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log_p (B * k, V), totals (B, k) -> beam, word, its log-probability and the new total, each (B, 2k), best first.

    The best 2k of a sentence are among the best 2k of each of its beams, so only those are compared.
    """
    n_sentences, k = totals.shape
    per_beam = min(2 * k, log_p.size(-1))
    gained, words = log_p.topk(per_beam, dim=-1)  # (B * k, per_beam)
    summed = (gained.view(n_sentences, k, per_beam) + totals[..., None]).flatten(1)  # (B, k * per_beam)
    best, flat = summed.topk(2 * k, dim=-1)
    return (
        flat // per_beam,
        words.view(n_sentences, -1).gather(1, flat),
        gained.view(n_sentences, -1).gather(1, flat),
        best,
    )


def _hypothesis(ids: Tensor, gains: Tensor, total: float, length_penalty: float) -> Hypothesis:
    score = normalised(total, len(gains), length_penalty)
    words = ids.tolist()
    if words[-1] == EOS:
        words.pop()
    return Hypothesis(words, score, gains.tolist())
