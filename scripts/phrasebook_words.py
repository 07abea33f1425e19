"""The words of the phrasebook's grammar: reads data/phrasebook/grammar/*.tsv, gives every word its forms.

What it knows: English morphology (third person, past, -ing, plural, comparison), numbers, clock times and
dates in both languages, and which words make a class. What it refuses to know: templates, sentences, splits
(build_phrasebook.py).

Files: people, kin, nouns, verbs, words (one word a row, its classes in the last column), irregular (forms no
rule gives), mixes (classes made of other classes, `*8` counting one eight times in the draw).
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ONES = [
    *(
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
    ),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
MONTHS = [
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
]
PAST_THE_HOUR = {"": "{} o'clock", "半": "half past {}", "一刻": "a quarter past {}", "十分": "ten past {}"}


@dataclass(kw_only=True)
class Word:
    """One lexicon entry; `zh_forms` and `en_forms` hold all its forms, the plain one under the empty name."""

    kind: str
    link: str = ""  # the class its partner slot draws from
    agree: str = "is"  # am, is or are
    group: str = ""  # two people of one group never meet in a sentence (我 and 我们)
    owner: str = ""  # whose mother, brother, friend
    zh_forms: dict[str, str] = field(default_factory=dict)
    en_forms: dict[str, str] = field(default_factory=dict)


# -- English and Chinese forms


def third_person(verb: str) -> str:
    head, _, rest = verb.partition(" ")
    if head in ("have", "be"):
        head = {"have": "has", "be": "is"}[head]
    elif re.search(r"[^aeiou]y$", head):
        head = head[:-1] + "ies"
    else:
        head += "es" if re.search(r"(s|x|z|ch|sh|o)$", head) else "s"
    return f"{head} {rest}".strip()


def with_ending(word: str, ending: str) -> str:
    """bake+ing=baking, sit+ing=sitting, carry+ed=carried; longer words never double (offer, visit)."""
    if re.search(r"[^aeiou]y$", word) and ending != "ing":
        return word[:-1] + "i" + ending
    if word.endswith("e") and not word.endswith(("ee", "be")):
        return word[:-1] + ending
    if re.fullmatch(r"[^aeiou]*[aeiou][^aeiouwxy]", word) or word in ("forget", "begin"):
        return word + word[-1] + ending
    return word + ending


def verb_forms(verb: str, irregular: dict[str, tuple[str, str]]) -> dict[str, str]:
    head, _, rest = verb.partition(" ")
    past, done = irregular.get(head, (with_ending(head, "ed"),) * 2)
    heads = {"": head, "past": past, "done": done, "ing": with_ending(head, "ing")}
    return {name: f"{form} {rest}".strip() for name, form in heads.items()} | {"s": third_person(verb)}


def compared(adjective: str, irregular: dict[str, tuple[str, str]]) -> dict[str, str]:
    if adjective in irregular:
        more, most = irregular[adjective]
    elif len(re.findall(r"[aeiouy]+", re.sub(r"e$", "", adjective))) == 1 or re.fullmatch(
        r"[^aeiou]*[aeiou]+[^aeiou]+y", adjective
    ):
        more, most = with_ending(adjective, "er"), with_ending(adjective, "est")
    else:
        more, most = f"more {adjective}", f"most {adjective}"
    ever = f"more and {more}" if more.startswith("more ") else f"{more} and {more}"
    return {"": adjective, "more": more, "most": most, "evermore": ever}


def plural(noun: str) -> str:
    return noun + ("es" if re.search(r"(s|x|z|ch|sh)$", noun) else "s")


def noun_word(row: dict[str, str]) -> Word:
    """The plural column: empty regular, `-` uncountable, `=` always plural, else the form itself.

    A measure such as 杯:glass names the container that counts in English too.
    """
    zh, en, given = row["zh"], row["en"], row["plural"]
    measure, _, container = row["measure"].partition(":")
    many = en if given in ("-", "=") else given or plural(en)
    bare = en if container else f"a {en}"
    unit = f"{container} of {en}" if container else en
    counted = f"{plural(container)} of {en}" if container else many
    zh_forms = {"": zh, "a": zh, "gen": zh, "mw": measure}
    zh_forms |= {"one": f"一{measure}{zh}", "this": f"这{measure}{zh}", "that": f"那{measure}{zh}"}
    en_forms = {"": en, "a": bare, "gen": many, "one": f"a {unit}", "many": counted, "this": f"this {unit}"}
    return Word(
        kind="noun",
        agree="are" if given == "=" else "is",
        zh_forms=zh_forms,
        en_forms=en_forms | {"that": f"that {unit}"},
    )


# -- the lexicon


def read_table(path: Path) -> list[dict[str, str]]:
    lines = [line for line in path.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE, restval="")
    return [{key: value.strip() for key, value in row.items()} for row in rows]


def person_word(row: dict[str, str]) -> Word:
    en = {"": row["en"], "obj": row["obj"], "poss": row["poss"]}
    zh = {"": row["zh"], "poss": row["zh"] + "的"}
    if row["he"]:  # people whose pronoun is unknown (my friend) take part only where none is needed
        en |= {"he": row["he"], "his": row["his"]}
        zh["he"] = row["he_zh"]
    return Word(
        kind="person",
        agree=row["agree"],
        group=row["group"],
        owner=row.get("owner", ""),
        zh_forms=zh,
        en_forms=en,
    )


def kin_words(row: dict[str, str]) -> list[Word]:
    """我 + 妈妈 = my mother, for every possible owner."""
    owners = {"我": "my", "你": "your", "他": "his", "她": "her"}
    pronouns = {"m": ("他", "he", "his"), "f": ("她", "she", "her"), "": ("", "", "")}
    he_zh, he, his = pronouns[row["gender"]]
    words = []
    for owner in row["owners"]:
        en = f"{owners[owner]} {row['en']}"
        forms = {
            "zh": owner + row["zh"],
            "en": en,
            "obj": en,
            "poss": f"{en}'s",
            "agree": "is",
            "owner": owner,
        }
        words.append(person_word(forms | {"group": row["group"], "he_zh": he_zh, "he": he, "his": his}))
    return words


def zh_number(n: int) -> str:
    digits = "零一二三四五六七八九"
    if n >= 100:
        unit, sign = (1000, "千") if n >= 1000 else (100, "百")
        head = "两" if n // unit == 2 else digits[n // unit]
        rest = n % unit
        return head + sign + (zh_number(rest) if rest >= 100 or (unit == 100 and rest) else "")
    tens, ones = divmod(n, 10)
    if not tens:
        return "两" if n == 2 else digits[n]
    return ("" if tens == 1 else digits[tens]) + "十" + (digits[ones] if ones else "")


def en_number(n: int) -> str:
    for unit, name in ((1000, "thousand"), (100, "hundred")):
        if n >= unit:
            return f"{ONES[n // unit]} {name}" + (f" {en_number(n % unit)}" if n % unit else "")
    return ONES[n] if n < 20 else TENS[n // 10 - 2] + (f"-{ONES[n % 10]}" if n % 10 else "")


def plain(zh: str, en: str) -> Word:
    return Word(kind="plain", zh_forms={"": zh}, en_forms={"": en})


def number_classes() -> dict[str, list[Word]]:
    """Counts, ages, prices, clock times and dates."""
    ranges = {
        "few": range(2, 5), "count": range(2, 13), "people": range(3, 9), "years": range(2, 13),
        "minutes": range(5, 55, 5), "sleephours": range(5, 11), "workhours": range(4, 13),
        "smallprice": range(3, 31), "price": range(10, 100), "degrees": range(5, 39),
        "bigprice": [*range(100, 1000, 100), *range(1000, 9000, 500)],
        "childage": range(4, 22), "adultage": range(25, 60),
        "parentage": range(34, 66), "oldage": range(60, 93),
    }  # fmt: skip
    classes = {name: [plain(zh_number(n), en_number(n)) for n in numbers] for name, numbers in ranges.items()}
    hours = {"dawn": (6, 7, 8, 9), "noon": (11, 12, 1), "evening": (5, 6, 7), "night": (9, 10, 11)}
    for name, span in (hours | {"lateevening": (7, 8, 9, 10), "clock": tuple(range(1, 13))}).items():
        classes[name] = [
            plain(f"{zh_number(hour)}点{zh}", en.format(en_number(hour)))
            for hour in span
            for zh, en in PAST_THE_HOUR.items()
        ]
    classes["date"] = [
        plain(f"{zh_number(m + 1).replace('两', '二')}月{zh_number(d).replace('两', '二')}号", f"{month} {d}")
        for m, month in enumerate(MONTHS)
        for d in range(1, 31 if month in ("April", "June", "September", "November") else 29 if m == 1 else 32)
    ]
    return classes


def read_lexicon(folder: Path) -> dict[str, list[Word]]:
    """Class name -> its words; a word stands several times in a class that weights it."""
    irregular = {row["base"]: (row["past"], row["done"]) for row in read_table(folder / "irregular.tsv")}
    lexicon: dict[str, list[Word]] = defaultdict(list, number_classes())

    def add(row: dict[str, str], words: list[Word]) -> None:
        for name in row["classes"].split():
            lexicon[name].extend(words)

    for row in read_table(folder / "people.tsv"):
        add(row, [person_word(row)])
    for row in read_table(folder / "kin.tsv"):
        add(row, kin_words(row))
    for row in read_table(folder / "nouns.tsv"):
        add(row, [noun_word(row)])
    for kind, forms in (("verb", verb_forms), ("plain", compared)):
        for row in read_table(folder / ("verbs.tsv" if kind == "verb" else "words.tsv")):
            en = forms(row["en"], irregular)
            add(row, [Word(kind=kind, link=row["link"], zh_forms={"": row["zh"]}, en_forms=en)])
    for row in read_table(folder / "mixes.tsv"):
        for ingredient in row["ingredients"].split():
            name, _, weight = ingredient.partition("*")
            lexicon[row["class"]].extend(lexicon[name] * int(weight or 1))
    for name, words in lexicon.items():
        if len({word.kind for word in words}) != 1:
            raise ValueError(
                f"class {name} is empty or mixes kinds of words: {[w.zh_forms[''] for w in words]}"
            )
    return dict(lexicon)
