"""Checks of the written pairs, for build_phrasebook.py --check: near copies, coverage of words, other corpora."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, repeat

from phrasebook_words import Pair

# Particles do not make a sentence another one: 好久不见了 and 好久不见啊 are equal.
PARTICLES = str.maketrans({**dict.fromkeys("了啊吧呢吗呀啦嘛哦的"), "您": "你"})
NEAR = 0.7  # share of n-grams that two near copies have in common, on both sides
SENTENCES_PER_WORD = 3
SHORT = 6  # letters; short sentences such as 谢谢。 stand in every corpus
ELSEWHERE = ("tatoeba", "captions", "subtitles")  # folders below DRAGOMAN_DATA


def bare(text: str) -> str:
    """Letters and digits only, in lower case."""
    return re.sub(r"[\W_]+", "", text.casefold())


def folded(zh: str) -> str:
    """The Chinese sentence without particles."""
    return bare(zh).translate(PARTICLES)


def similar(left: Sequence[str], right: Sequence[str], n: int, share: float = 0.5) -> Iterator[tuple[int, int]]:
    """Yield (i, j) where left[i] and right[j] have this share of their character n-grams in common (Jaccard).

    Two texts that share half of their n-grams have one of the rarer halves in common, so only these are compared.
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
    """Return the pairs that are nearly equal on both sides, or equal in Chinese but for particles.

    Short sentences are left out: greetings stand in many forms.
    """
    pairs = [pair for pair in pairs if len(folded(pair.zh)) > SHORT]
    zh, en = [folded(pair.zh) for pair in pairs], [bare(pair.en) for pair in pairs]
    near = {(i, j) for i, j in similar(zh, zh, 2, NEAR) if i > j}
    near &= {*similar(en, en, 3, NEAR), *((i, j) for i, j in near if zh[i] == zh[j])}
    return [f"near copies: {pairs[i].zh} | {pairs[j].zh} ({pairs[i].en} | {pairs[j].en})" for i, j in sorted(near)]


def uncovered(words: Sequence[str], pairs: list[Pair]) -> list[str]:
    """Return the words that stand in fewer than three sentences, as substrings."""
    longest = max(map(len, words))
    counts: Counter[str] = Counter()
    for pair in pairs:
        spans = range(1, longest + 1)
        counts.update({pair.zh[i : i + n] for n in spans for i in range(len(pair.zh) - n + 1)})
    return [word for word in words if counts[word] < SENTENCES_PER_WORD]


def elsewhere(pairs: list[Pair]) -> tuple[list[str], list[str]]:
    """Compare with the corpora below DRAGOMAN_DATA; return faults and notes.

    A fault is a sentence that stands in a validation or test split there; a note is a pair that stands in train.
    """
    from dragoman.config import CorpusConfig
    from dragoman.data.corpora import ROOT_VARIABLE, find

    faults, notes = set(), set()
    texts = {text for pair in pairs for text in map(bare, (pair.zh, pair.en)) if len(text) > SHORT}
    for name in ELSEWHERE if ROOT_VARIABLE in os.environ else ():
        for split, chunks in find(CorpusConfig(path=name), "zh", "en").open().items():
            for rows in chunks:
                for src, tgt, others in zip(rows.src, rows.tgt, rows.references or repeat([]), strict=False):
                    known = [text for text in (src, tgt, *others) if bare(text) in texts]
                    if split != "train":
                        faults |= {f"stands in {name}/{split}: {text}" for text in known}
                    elif known == [src, tgt]:
                        notes.add(f"stands in {name}/train: {src} {tgt}")
    return sorted(faults), sorted(notes)
