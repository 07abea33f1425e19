"""Builds the embedded corpus data/phrasebook/: pairs written by hand, and pairs composed by a typed grammar.

What it knows: how a template and a lexicon become pairs, and how pairs become splits. The sentences and the
words live in data:

    data/phrasebook/handwritten/*.tsv       zh <TAB> en, written by people
    data/phrasebook/grammar/templates.tsv   zh, en, limit (most pairs), flags (ask: not about myself)
    data/phrasebook/grammar/*.tsv           the words, read by phrasebook_words.py

A template names its slots in Chinese and uses them in English:

    {s:someone}想{v:vo}{o:@v.one}。   {s} {want|s} to {v} {o.one}.   我想吃一个苹果。 I want to eat an apple.

    {s:someone}  slot s takes a word of class someone
    {o:@v}       slot o takes a word of the class in v's `link` column: what one eats, drinks, reads
    {o.one}      the form `one` of o: 一个苹果, an apple
    {want|s}     the present tense of want, or of slot v in {v|s}, for s; {j.one|s} is plural if s is
    [my]         inside a phrase: the possessive pronoun of slot s (他刷牙 he brushes his teeth)

What it refuses to know: models, tokenizers, other corpora. Standard library only, no clock, no global random
state: the same inputs give the same bytes. Of `random` it uses only `Random.random()`, which stays stable.

    python scripts/build_phrasebook.py                        writes {train,validation,test}.jsonl.gz
    python scripts/build_phrasebook.py --check                exit 1 if these are not what would be written
    python scripts/build_phrasebook.py --sample 50 --seed 3   prints composed pairs for proof-reading
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

from phrasebook_words import Word, read_lexicon, read_table, third_person

HOME = Path(__file__).resolve().parent.parent / "data" / "phrasebook"
Splits = dict[str, list[tuple[str, str]]]  # name -> (zh, en) pairs

SPLITS = ("train", "validation", "test")
SEED = 1
HELD_OUT = 500  # pairs in validation and in test, each
SLOT = re.compile(r"\{(\w+)(?::(@?\w+))?(?:\.(\w+))?(?:\|(\w+))?\}")  # {name:class.form|subject}
BE = {"be": {"am": "am", "is": "is", "are": "are"}, "was": {"am": "was", "is": "was", "are": "were"}}


@dataclass(frozen=True, kw_only=True)
class Composed:
    """A pair with the combination that made it: the template and its fillers' Chinese forms."""

    zh: str
    en: str
    combination: tuple[str, ...]


# -- composing


def agreeing(name: str, form: str, subject: Word, words: dict[str, Word]) -> str:
    """A verb's present tense after `subject`, or a noun in its number."""
    if name not in words:
        if name in BE:
            return BE[name][subject.agree]
        return third_person(name) if subject.agree == "is" else name
    word = words[name]
    if word.kind == "noun":
        return word.en_forms["many" if subject.zh_forms[""].endswith("们") else form]
    return word.en_forms["s"] if subject.agree == "is" else word.en_forms[""]


def render(template: str, words: dict[str, Word], language: str) -> str:
    """The sentence; KeyError where a word lacks the form asked for (a friend's pronoun)."""

    def fill(slot: re.Match[str]) -> str:
        name, _, form, subject = slot.groups(default="")
        if language == "zh":
            return words[name].zh_forms[form]
        if subject:
            return agreeing(name, form, words[subject], words)
        return words[name].en_forms[form] if name in words else agreeing(name, form, words["s"], words)

    text = SLOT.sub(fill, template)
    if language == "zh":
        return text
    if "[my]" in text:
        text = text.replace("[my]", words["s"].en_forms["his"])
    text = re.sub(r"\b([Aa]) (?=[aeiou])(?!uni|use|eu|one)", r"\1n ", text)
    return text[0].upper() + text[1:]


def sensible(words: dict[str, Word], flags: str) -> bool:
    """No word twice, no tea or black tea, no my mother with his wife, no bag in itself, no asking myself."""
    fillers = list(words.values())
    zh = [word.zh_forms[""] for word in fillers]
    groups = [word.group for word in fillers if word.group]
    if len(set(zh)) < len(zh) or len(set(groups)) < len(groups):
        return False
    if len({word.owner for word in fillers if word.owner}) > 1:
        return False
    nouns = [word.zh_forms[""] for word in fillers if word.kind == "noun"]
    if any(a != b and b.endswith(a) for a in nouns for b in nouns):
        return False
    if any(a != b and b.startswith(a) and b[len(a) :] in ("里", "上", "下面") for a in zh for b in zh):
        return False
    return not ("ask" in flags and zh and words["s"].zh_forms[""].startswith("我"))


def compose(row: dict[str, str], lexicon: dict[str, list[Word]], seed: int) -> list[Composed]:
    """Up to `limit` distinct pairs of one template, drawn at random from all its fillers."""
    slots = [(name, cls) for name, cls, _, _ in SLOT.findall(row["zh"]) if cls]
    slots.sort(key=lambda slot: slot[1].startswith("@"))  # a word is drawn before the slot that depends on it
    random = Random(f"{seed} {row['zh']}")
    found: dict[str, Composed] = {}
    for _ in range(40 * int(row["limit"])):
        words: dict[str, Word] = {}
        for name, cls in slots:
            choices = lexicon[words[cls[1:]].link if cls.startswith("@") else cls]
            words[name] = choices[int(random.random() * len(choices))]
        if not sensible(words, row["flags"]):
            continue
        try:
            zh, en = render(row["zh"], words, "zh"), render(row["en"], words, "en")
        except KeyError as missing:
            if missing.args[0] not in ("he", "his", "s"):  # nobody whose pronoun we know
                raise
            continue
        combination = (row["zh"], *(f"{name}={word.zh_forms['']}" for name, word in sorted(words.items())))
        found.setdefault(zh, Composed(zh=zh, en=en, combination=combination))
        if len(found) == int(row["limit"]):
            break
    return list(found.values())


def compose_all(handwritten: dict[str, str], seed: int) -> list[Composed]:
    """Every template's pairs; what was written by hand or by an earlier template is not said again."""
    lexicon = read_lexicon(HOME / "grammar")
    taken = {bare(zh) for zh in handwritten}
    pairs = []
    for row in read_table(HOME / "grammar" / "templates.tsv"):
        for pair in compose(row, lexicon, seed):
            if bare(pair.zh) not in taken:
                taken.add(bare(pair.zh))
                pairs.append(pair)
    return pairs


# -- the corpus


def bare(text: str) -> str:
    """Letters and digits only, lower case: what a sentence is compared by."""
    return "".join(character for character in text.casefold() if character.isalnum())


def read_handwritten(folder: Path) -> dict[str, str]:
    """zh -> en of all files by name; ValueError where a line is no pair or one zh has two translations."""
    pairs: dict[str, str] = {}
    places: dict[str, str] = {}
    for path in sorted(folder.glob("*.tsv")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if not line or line.startswith("#"):
                continue
            place = f"{path.name} line {number}"
            cells = [cell.strip() for cell in line.split("\t")]
            if len(cells) != 2 or not all(cells):
                raise ValueError(f"{place}: expected zh<TAB>en, got {line!r}")
            zh, en = cells
            if pairs.get(zh, en) != en:
                raise ValueError(f"{place}: {zh} is {pairs[zh]!r} in {places[zh]} but {en!r} here")
            pairs[zh] = en
            places.setdefault(zh, place)
    return pairs


def lot(seed: int, text: str) -> str:
    """A sort key that shuffles, the same on every machine."""
    return hashlib.sha256(f"{seed} {text}".encode()).hexdigest()


def units(pair: Composed) -> set[str]:
    """All a reader must know: the characters, the English words, the template and its fillers."""
    words = re.findall(r"[\w']+", pair.en.casefold())
    return {*(c for c in pair.zh if c.isalnum()), *words, *pair.combination}


def split(handwritten: dict[str, str], composed: list[Composed], seed: int) -> Splits:
    """Holds out composed pairs by hash.

    A held-out pair shares no sentence with any other pair, and each of its units stays in at least three
    training pairs: only the combination is new. Hand-written pairs stay in training; most are one of a kind.
    """
    sentences = Counter(bare(text) for pair in handwritten.items() for text in pair)
    sentences.update(bare(text) for pair in composed for text in (pair.zh, pair.en))
    left = Counter(unit for pair in composed for unit in units(pair))

    rows: Splits = {name: [] for name in SPLITS}
    for pair in sorted(composed, key=lambda pair: lot(seed, pair.zh)):
        held = next((name for name in ("test", "validation") if len(rows[name]) < HELD_OUT), "train")
        if held != "train":
            alone = sentences[bare(pair.zh)] == sentences[bare(pair.en)] == 1
            held = held if alone and all(left[unit] > 3 for unit in units(pair)) else "train"
        if held != "train":
            left.subtract(units(pair))
        rows[held].append((pair.zh, pair.en))
    rows["train"] += handwritten.items()
    rows["train"].sort(key=lambda pair: lot(seed, pair[0]))
    return rows


def as_jsonl(rows: list[tuple[str, str]]) -> str:
    translations = ({"translation": {"zh": zh, "en": en}} for zh, en in rows)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in translations)


def write(rows: Splits, folder: Path) -> None:
    """gzip without name and time, so that the bytes depend on the pairs alone."""
    for name in SPLITS:
        data = gzip.compress(as_jsonl(rows[name]).encode(), compresslevel=9, mtime=0)
        (folder / f"{name}.jsonl.gz").write_bytes(data)


def stale(rows: Splits, folder: Path) -> list[str]:
    """The names of the splits whose file is missing or holds something else."""
    paths = {name: folder / f"{name}.jsonl.gz" for name in SPLITS}
    return [
        name
        for name, path in paths.items()
        if not path.exists() or gzip.decompress(path.read_bytes()).decode() != as_jsonl(rows[name])
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the files are stale")
    parser.add_argument("--sample", type=int, metavar="N", help="print N composed pairs and write nothing")
    parser.add_argument("--seed", type=int, default=0, help="which sample is printed (default 0)")
    arguments = parser.parse_args()
    handwritten = read_handwritten(HOME / "handwritten")
    composed = compose_all(handwritten, seed=SEED)
    if arguments.sample:
        composed.sort(key=lambda pair: lot(arguments.seed, pair.zh))
        print("\n".join(f"{pair.zh}\t{pair.en}" for pair in composed[: arguments.sample]))
        return 0
    rows = split(handwritten, composed, seed=SEED)
    if arguments.check:
        names = stale(rows, HOME)
        print(f"stale: {', '.join(names)}; run this script" if names else "up to date", file=sys.stderr)
        return 1 if names else 0
    write(rows, HOME)
    templates = len(read_table(HOME / "grammar" / "templates.tsv"))
    print(f"{len(handwritten)} hand-written pairs; {len(composed)} composed from {templates} templates")
    print(", ".join(f"{name} {len(rows[name])}" for name in SPLITS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
