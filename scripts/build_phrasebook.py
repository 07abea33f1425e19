"""Build the corpora of data/phrasebook: python scripts/build_phrasebook.py

Equal inputs give equal texts: standard library only, no clock, and of `random` only `Random.random()`, which is the
same in every version of Python. data/phrasebook/README.md explains the sentences and tables.
"""

import argparse
import gzip
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from phrasebook_checks import bare, elsewhere, near_copies, similar_pairs, uncovered
from phrasebook_words import Pair, compose, read_lexicon, read_table

HOME = Path(__file__).resolve().parent.parent / "data" / "phrasebook"
SPLITS = ("train", "validation", "test")
SEED = 1
# Pairs drawn from all composed ones; every UNMARKED-th of them has no final mark, as people often type.
COMPOSED, UNMARKED = 33_000, 8
# Pairs held out per corpus.
SIZES = {"written": {"validation": 500, "test": 500}, "composed": {"validation": 200, "test": 500}}
# Sentences that the READMEs and the study notes show; they stay in train.
SHOWN = "好久不见 你好 大家好 早上好 晚安 再见 谢谢 对不起 很高兴认识你 我爱你 我喜欢你 你打我 我打你 为什么"
Splits = dict[str, list[Pair]]


def read_written(folder: Path) -> list[Pair]:
    """Read all files. Raises ValueError for a bad line or a zh with two translations."""
    pairs: dict[str, Pair] = {}
    for path in sorted(folder.glob("*.tsv")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if not line or line.startswith("#"):
                continue
            cells = [cell.strip() for cell in line.split("\t")]
            if len(cells) != 2 or not all(cells):
                raise ValueError(f"{path.name} line {number}: expected zh<TAB>en (found {line!r})")
            pair = Pair(cells[0], cells[1])
            if pairs.setdefault(pair.zh, pair) != pair:
                raise ValueError(f"{path.name} line {number}: {pair.zh} is also translated by {pairs[pair.zh].en!r}")
    return list(pairs.values())


def compose_all(written: list[Pair]) -> list[Pair]:
    """Compose the pairs of every template, each new Chinese sentence once."""
    lexicon = read_lexicon(HOME / "grammar")
    known = {bare(pair.zh) for pair in written}
    pairs: dict[str, Pair] = {}
    for row in read_table(HOME / "grammar" / "templates.tsv"):
        for pair in compose(row, lexicon, SEED):
            pairs.setdefault(bare(pair.zh), pair)
    return [pair for zh, pair in pairs.items() if zh not in known]


def shuffled(pairs: list[Pair], seed: int = SEED) -> list[Pair]:
    """The pairs in an order that is the same on every machine."""
    return sorted(pairs, key=lambda pair: hashlib.sha256(f"{seed} {pair.zh}".encode()).hexdigest())


def split_written(pairs: list[Pair]) -> Splits:
    """Hold out pairs that are similar to no other pair on either side."""
    sizes = SIZES["written"]
    drawn = shuffled(pairs)[: 3 * sum(sizes.values())]
    similar = {i for i, j in similar_pairs(drawn, pairs) if drawn[i] != pairs[j]}
    alone = iter([pair for i, pair in enumerate(drawn) if i not in similar and bare(pair.zh) not in SHOWN.split()])
    rows = {name: list(islice(alone, size)) for name, size in sizes.items()}
    held_out = {pair for split in rows.values() for pair in split}
    return {"train": [pair for pair in pairs if pair not in held_out], **rows}


def units(pair: Pair) -> set[str]:
    """Units of a pair: Chinese characters, English words, template and fillers."""
    words = re.findall(r"[\w']+", pair.en.casefold())
    return {*(c for c in pair.zh if c.isalnum()), *words, *pair.combination}


def split_composed(pairs: list[Pair], written: Splits) -> Splits:
    """Hold out unique pairs whose units stay in at least three training pairs each.

    Pairs similar to a written pair that is held out are left out altogether.
    """
    near = {i for i, _ in similar_pairs(pairs, written["validation"] + written["test"])}
    pairs = [pair for i, pair in enumerate(pairs) if i not in near]
    sentences = Counter(bare(text) for pair in chain(pairs, *written.values()) for text in (pair.zh, pair.en))
    left = Counter(unit for pair in pairs for unit in units(pair))
    rows: Splits = {name: [] for name in SPLITS}
    for pair in shuffled(pairs):
        held = next((name for name in ("test", "validation") if len(rows[name]) < SIZES["composed"][name]), "train")
        unique = sentences[bare(pair.zh)] == sentences[bare(pair.en)] == 1
        if held != "train" and unique and all(left[unit] > 3 for unit in units(pair)):
            left.subtract(units(pair))
            rows[held].append(pair)
        else:
            rows["train"].append(pair)
    return rows


def build(pairs: list[Pair]) -> dict[str, Splits]:
    """Both corpora, of the written pairs and the tables under HOME."""
    written = split_written(pairs)
    composed = shuffled(compose_all(pairs))[:COMPOSED]
    composed[::UNMARKED] = [Pair(zh.rstrip("。？！"), en.rstrip(".?!"), c) for zh, en, c in composed[::UNMARKED]]
    return {"written": written, "composed": split_composed(composed, written)}


def files(corpora: dict[str, Splits]) -> Iterator[tuple[str, str]]:
    """Yield each path below HOME and its pairs as JSON lines, shuffled."""
    for corpus, splits in corpora.items():
        for name, pairs in splits.items():
            rows = [{"translation": {"zh": pair.zh, "en": pair.en}} for pair in shuffled(pairs)]
            yield f"{corpus}/{name}.jsonl.gz", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write(corpora: dict[str, Splits], folder: Path) -> None:
    """Write gzip files without name and time: the bytes depend on the pairs alone."""
    for path, text in files(corpora):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def stale(corpora: dict[str, Splits], folder: Path) -> list[str]:
    """The files that are missing or have another content."""
    return [
        path
        for path, text in files(corpora)
        if not (folder / path).exists() or gzip.decompress((folder / path).read_bytes()).decode() != text
    ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if something must be fixed")
    parser.add_argument("--sample", type=int, metavar="N", help="print N written pairs and write nothing")
    parser.add_argument("--seed", type=int, default=0, help="choose the sample (default 0)")
    arguments = parser.parse_args(argv)
    pairs = read_written(HOME / "sentences")
    if arguments.sample:
        for pair in shuffled(pairs, arguments.seed)[: arguments.sample]:
            print(f"{pair.zh}\t{pair.en}")
        return 0
    corpora = build(pairs)
    if arguments.check:
        words = (HOME / "words.txt").read_text("utf-8").split()
        faults, notes = elsewhere(pairs)
        print(*notes, f"{len(notes)} pairs are in another corpus", sep="\n", file=sys.stderr)
        messages = [
            *(f"{path}: stale; run this script" for path in stale(corpora, HOME)),
            *(f"words.txt: {word} is in fewer than three sentences" for word in uncovered(words, pairs)),
            *near_copies(pairs),
            *faults,
        ]
        print("\n".join(messages) or "nothing to fix")
        return 1 if messages else 0
    write(corpora, HOME)
    for corpus, splits in corpora.items():
        print(f"{corpus}:", ", ".join(f"{name} {len(rows):,}" for name, rows in splits.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
