"""Checks for build_phrasebook.py --check: near copies, coverage, other corpora."""

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, repeat

from phrasebook_words import Pair

# Comparisons ignore particles (好久不见了 equals 好久不见啊), and the difference between 您 and 你.
PARTICLES = str.maketrans({**dict.fromkeys("了啊吧呢吗呀啦嘛哦的"), "您": "你"})
NEAR = 0.7  # lowest Jaccard similarity of near copies, in Chinese and in English
SENTENCES_PER_WORD = 3
SHORT = 6  # letters; short sentences such as 谢谢。 are in every corpus
ELSEWHERE = ("tatoeba", "captions", "subtitles")  # folders below DRAGOMAN_DATA


def bare(text: str) -> str:
    """Letters and digits only, in lower case."""
    return re.sub(r"[\W_]+", "", text.casefold())


def folded(zh: str) -> str:
    """The Chinese sentence without particles, with 您 as 你."""
    return bare(zh).translate(PARTICLES)


def similar(left: Sequence[str], right: Sequence[str], n: int, share: float = 0.5) -> Iterator[tuple[int, int]]:
    """Yield (i, j) of texts with a Jaccard similarity of n-grams of at least `share`.

    Two texts that are so similar share one of their rarest n-grams, so only texts that do are compared.
    """
    sides = [[frozenset(t[i : i + n] for i in range(max(1, len(t) - n + 1))) for t in side] for side in (left, right)]
    counts = Counter(gram for grams in chain(*sides) for gram in grams)

    def rarest(grams: frozenset[str]) -> list[str]:
        return sorted(grams, key=lambda gram: (counts[gram], gram))[: int((1 - share) * len(grams)) + 1]

    index = defaultdict(list)
    for j, grams in enumerate(sides[1]):
        for gram in rarest(grams):
            index[gram].append(j)
    for i, grams in enumerate(sides[0]):
        for j in {j for gram in rarest(grams) for j in index.get(gram, ())}:
            other, size = sides[1][j], len(grams)
            if share * size <= len(other) <= size / share and len(grams & other) >= share * len(grams | other):
                yield i, j


def similar_pairs(left: list[Pair], right: list[Pair]) -> Iterator[tuple[int, int]]:
    """Yield (i, j) where the Chinese or the English sentences are similar."""
    yield from similar([folded(pair.zh) for pair in left], [folded(pair.zh) for pair in right], 2)
    yield from similar([bare(pair.en) for pair in left], [bare(pair.en) for pair in right], 3)


def near_copies(pairs: list[Pair]) -> list[str]:
    """Return pairs nearly equal on both sides, or equal in Chinese but for particles.

    Short sentences are left out: greetings have many forms.
    """
    pairs = [pair for pair in pairs if len(folded(pair.zh)) > SHORT]
    zh, en = [folded(pair.zh) for pair in pairs], [bare(pair.en) for pair in pairs]
    near = sorted((i, j) for i, j in similar(zh, zh, 2, NEAR) if i > j)
    near = [(i, j) for i, j in near if zh[i] == zh[j] or any(similar([en[i]], [en[j]], 3, NEAR))]
    return [f"near copies: {pairs[i].zh} | {pairs[j].zh} ({pairs[i].en} | {pairs[j].en})" for i, j in near]


def uncovered(words: Sequence[str], pairs: list[Pair]) -> list[str]:
    """Return the words that are substrings of fewer than three sentences."""
    longest = max(map(len, words))
    counts: Counter[str] = Counter()
    for pair in pairs:
        spans = range(1, longest + 1)
        counts.update({pair.zh[i : i + n] for n in spans for i in range(len(pair.zh) - n + 1)})
    return [word for word in words if counts[word] < SENTENCES_PER_WORD]


def elsewhere(pairs: list[Pair]) -> tuple[list[str], list[str]]:
    """Compare with the corpora below DRAGOMAN_DATA.

    Returns the sentences that are in a validation or test split there, and the pairs that are in a training split.
    """
    from dragoman.config import CorpusConfig
    from dragoman.data.readers import NotFoundError, find

    faults, notes = set(), set()
    both = {(bare(pair.zh), bare(pair.en)) for pair in pairs if min(len(bare(pair.zh)), len(bare(pair.en))) > SHORT}
    texts = {text for pair in pairs for text in map(bare, (pair.zh, pair.en)) if len(text) > SHORT}
    for name in ELSEWHERE:
        try:
            corpus = find(CorpusConfig(path=name), "zh", "en")
        except NotFoundError:
            print(f"{name}: not below DRAGOMAN_DATA, not compared", file=sys.stderr)
            continue
        for split, chunks in corpus.open().items():
            for rows in chunks:
                for src, tgt, others in zip(rows.src, rows.tgt, rows.references or repeat([]), strict=False):
                    known = [text for text in (src, tgt, *others) if bare(text) in texts]
                    if split != "train":
                        faults |= {f"{text}: also in {name}/{split}" for text in known}
                    elif (bare(src), bare(tgt)) in both:
                        notes.add(f"{src} {tgt}: also in {name}/train")
    return sorted(faults), sorted(notes)
