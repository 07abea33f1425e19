"""Translation lexicon of a corpus by IBM Model 1 (Brown et al. 1993).

Each target piece of a pair translates one of its source pieces, or none. Expectation maximisation over the ids of all
pairs estimates t(target | source).
"""

import numpy as np

from dragoman.data.store import Ragged
from dragoman.special import PAD

# Further pairs and links take time or memory and add few words.
_MAX_PAIRS, _MAX_LINKS, _N_ITERATIONS = 50_000, 30_000_000, 5
# Less probable translations are noise.
_MIN_PROBABILITY = 0.02


def lexicon(ids: Ragged, *, src_size: int, tgt_size: int, joint: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return source pieces (n,), target pieces (n,) and their weights (n,).

    Row 2i of `ids` is the source of pair i, row 2i + 1 its target; the sizes are those of the vocabularies. The weight
    is t * log(t / p), where p is the frequency of the target piece: small for a piece that occurs beside every source
    piece ("the"). In a joint vocabulary, a piece has an entry only if it is more than twice as frequent in sources as
    in targets: digits and punctuation have none.
    """
    n_pairs = len(ids) // 2
    pairs = np.random.default_rng(1).choice(n_pairs, min(n_pairs, _MAX_PAIRS), replace=False)
    lengths = np.diff(ids.offsets)
    n_links = np.cumsum((lengths[2 * pairs] + 1) * lengths[2 * pairs + 1])
    pairs = np.sort(pairs[n_links <= max(_MAX_LINKS, n_links[0])])
    n_src, n_tgt = lengths[2 * pairs], lengths[2 * pairs + 1]
    src, tgt = (np.concatenate([ids[row] for row in 2 * pairs + side]) for side in (0, 1))
    # Each target piece of a pair is linked with each of its source pieces, and with PAD for none. A position is an
    # index of the concatenated targets.
    pieces = np.insert(src.astype(np.int64), np.cumsum(n_src), PAD)
    first, n_links = np.repeat(np.cumsum(n_tgt) - n_tgt, n_src + 1), np.repeat(n_tgt, n_src + 1)
    shifts = first - np.cumsum(n_links) + n_links
    sources, positions = np.repeat(pieces, n_links), np.arange(n_links.sum()) + np.repeat(shifts, n_links)
    keys, entries = np.unique(sources * tgt_size + tgt[positions], return_inverse=True)
    sources, targets = np.divmod(keys, tgt_size)
    t = np.ones(len(keys))
    for _ in range(_N_ITERATIONS):
        # Expectation: the probability of each link.
        links = t[entries]
        links /= np.bincount(positions, links)[positions]
        # Maximisation: the relative frequencies of the expected counts.
        counts = np.bincount(entries, links)
        t = counts / np.bincount(sources, counts)[sources]
    in_src, in_tgt = np.bincount(src, minlength=src_size), np.bincount(tgt, minlength=tgt_size)
    weights = t * np.log(np.maximum(t * len(tgt) / in_tgt[targets], 1))
    keep = (t >= _MIN_PROBABILITY) & (weights > 0) & (sources != PAD)
    if joint:
        keep &= in_src[sources] > 2 * in_tgt[sources]
    return sources[keep], targets[keep], weights[keep]
