"""What may be produced, and how sharply: logits (N, V) in, log-probabilities out.

Logits stay where the model is. What a search keeps its books with is small and comes to the CPU in one go, so that a
step waits for its device once.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.special import BOS, EOS, PAD, UNK

NEVER = (PAD, UNK, BOS)  # no translation contains these
_GROUPS = 16  # into which a vocabulary is cut to find the best of it; fewer or more are slower


def log_probabilities(logits: Tensor, *, first: bool) -> Tensor:
    """fp32 log-softmax over what may be produced; the rest is -inf.

    The first piece cannot be EOS: no sentence translates to nothing.
    """
    logits = logits.float()
    logits[:, : EOS + first] = float("-inf")  # the special ids are the first ones, EOS the last of them
    return logits.log_softmax(dim=-1)


def likeliest(logits: Tensor, n: int, *, first: bool) -> tuple[Tensor, Tensor]:
    """The n likeliest words of each row and their `log_probabilities`, best first: (N, n) both, on the CPU."""
    log_p, words = _top(log_probabilities(logits, first=first), n)
    return together_to_cpu(words, log_p)


def together_to_cpu(words: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """int64 and fp32 tensors of one shape, as they are, but on the CPU: one copy and not two."""
    if words.device.type == "cpu":
        return words, numbers
    both = torch.stack((words.int(), numbers.float().view(torch.int32))).cpu()
    return both[0].long(), both[1].view(torch.float32)


def _top(scores: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """`scores.topk(n)`, which on a CPU takes as long as the projection itself takes for one row in three.

    Groups of words are compared by their best one, which vector instructions find; the n best words are in the n
    best groups.
    """
    n_rows, n_words = scores.shape
    size = n_words // _GROUPS  # of words apart
    if scores.device.type != "cpu" or n_rows < 4 or size < 4 * n:
        return scores.topk(n, dim=-1)
    best = scores[:, : _GROUPS * size].unflatten(1, (_GROUPS, size)).amax(dim=1)  # (N, size)
    groups = best.topk(n, dim=-1).indices if n > 1 else best.argmax(dim=-1, keepdim=True)  # (N, n)
    words = (groups[..., None] + size * torch.arange(_GROUPS)).flatten(1)  # (N, n * groups)
    rest = torch.arange(_GROUPS * size, n_words).expand(n_rows, -1)
    words = torch.cat((words, rest), dim=1)
    values, at = scores.gather(1, words).topk(n, dim=-1)
    return values, words.gather(1, at)


def sharpened(log_p: Tensor, *, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Divide by the temperature, keep the k likeliest (0 = all), keep the smallest set of mass top_p; renormalise.

    top_p is nucleus sampling (Holtzman et al. 2020); the likeliest word always stays.
    """
    log_p = log_p / temperature
    if 0 < top_k < log_p.size(-1):
        threshold = log_p.topk(top_k, dim=-1).values[:, -1:]
        log_p = log_p.masked_fill(log_p < threshold, float("-inf"))
    if top_p < 1.0:
        ordered, order = log_p.log_softmax(dim=-1).sort(dim=-1, descending=True)
        mass_before = ordered.exp().cumsum(dim=-1) - ordered.exp()
        drop = torch.zeros_like(log_p, dtype=torch.bool).scatter_(-1, order, mass_before >= top_p)
        log_p = log_p.masked_fill(drop, float("-inf"))
    return log_p.log_softmax(dim=-1)


def n_halvings(n_words: int) -> int:
    return (n_words - 1).bit_length()


def drawn(p: Tensor, chances: Tensor) -> Tensor:
    """A word of each row, drawn with its probability: p (N, V), chances (N, n_halvings(V)) in (0, 1] -> (N, 1).

    The vocabulary is halved until one word is left, each time by a chance against the mass of the first half. Another
    way of computing p, which differs by rounding, then draws another word about once in a million; a number looked up
    in cumulated probabilities falls between two of its V boundaries a thousand times as often.
    """
    width = 1 << n_halvings(p.size(1))
    masses = [F.pad(p, (0, width - p.size(1)))]  # of single words, of two words each, of four
    while len(masses) < chances.size(1):
        masses.append(torch.add(*masses[-1].chunk(2, dim=1)))
    at = torch.zeros(p.size(0), 1, dtype=torch.long, device=p.device)
    for mass, chance in zip(reversed(masses), chances.split(1, dim=1), strict=True):
        half = mass.size(1) // 2
        here, there = mass.gather(1, at), mass.gather(1, at + half)
        at = at + half * (chance * (here + there) > here)  # never to a side without mass
    return at
