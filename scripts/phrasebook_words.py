"""Composition of sentence pairs from the tables of data/phrasebook/grammar."""

import csv
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

Irregular = dict[str, tuple[str, str]]  # go -> went, gone; good -> better, best
SLOT = re.compile(r"\{(\w+)(?::(@?\w+))?(?:\.(\w+))?(?:\|(\w+))?\}")  # {name:class.form|subject}
IRREGULAR_S = {"have": "has", "be": "is", "do": "does", "go": "goes"}
BE = {"be": {"am": "am", "is": "is", "are": "are"}, "was": {"am": "was", "is": "was", "are": "were"}}


class Pair(NamedTuple):
    """A pair; `combination` is the template and the Chinese words of a composed pair."""

    zh: str
    en: str
    combination: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Word:
    """Lexicon entry; the plain form is under "", and only nouns have the form `many`."""

    link: str = ""  # the class its partner slot draws from
    agree: str = "is"  # am, is or are
    group: str = ""  # two people of one group never meet in a sentence (我 and 我们)
    owner: str = ""  # whose mother, brother, friend
    zh_forms: dict[str, str] = field(default_factory=dict)
    en_forms: dict[str, str] = field(default_factory=dict)


def with_s(word: str) -> str:
    """The third person of a verb or the plural of a noun."""
    if word in IRREGULAR_S:
        return IRREGULAR_S[word]
    if re.search(r"[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search(r"(s|x|z|ch|sh)$", word) else "s")


def with_ending(word: str, ending: str) -> str:
    """Form in -ing, -ed, -er or -est: baking, sitting, carried, forgetting."""
    if re.search(r"[^aeiou]y$", word) and ending != "ing":
        return word[:-1] + "i" + ending
    if word.endswith("e") and not word.endswith(("ee", "be")):
        return word[:-1] + ending
    if re.fullmatch(r"[^aeiou]*[aeiou][^aeiouwxy]", word) or word in ("forget", "begin"):
        return word + word[-1] + ending
    return word + ending


def verb_forms(verb: str, irregular: Irregular) -> dict[str, str]:
    head, _, rest = verb.partition(" ")
    past, done = irregular.get(head, (with_ending(head, "ed"),) * 2)
    heads = {"": head, "s": with_s(head), "past": past, "done": done, "ing": with_ending(head, "ing")}
    return {name: f"{form} {rest}".strip() for name, form in heads.items()}


def compared(adjective: str, irregular: Irregular) -> dict[str, str]:
    syllables = len(re.findall(r"[aeiouy]+", re.sub(r"e$", "", adjective)))
    if adjective in irregular:
        more, most = irregular[adjective]
    elif syllables == 1 or re.fullmatch(r"[^aeiou]*[aeiou]+[^aeiou]+y", adjective):
        more, most = with_ending(adjective, "er"), with_ending(adjective, "est")
    else:
        more, most = f"more {adjective}", f"most {adjective}"
    ever = f"more and {more}" if more.startswith("more ") else f"{more} and {more}"
    return {"": adjective, "more": more, "most": most, "evermore": ever}


def read_table(path: Path) -> list[dict[str, str]]:
    lines = [line for line in path.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE, restval=""))


def noun_word(row: dict[str, str]) -> Word:
    """Noun; plural: empty regular, `-` uncountable, `=` always plural, else the form.

    A measure such as 杯:glass names the container that counts in English too.
    """
    zh, en, given = row["zh"], row["en"], row["plural"]
    measure, _, container = row["measure"].partition(":")
    many = en if given in ("-", "=") else given or with_s(en)
    unit = f"{container} of {en}" if container else en
    zh_forms = {"": zh, "a": zh, "gen": zh, "mw": measure}
    zh_forms |= {"one": f"一{measure}{zh}", "this": f"这{measure}{zh}", "that": f"那{measure}{zh}"}
    en_forms = {"": en, "a": en if container else f"a {en}", "gen": many}
    en_forms |= {"one": f"a {unit}", "this": f"this {unit}", "that": f"that {unit}"}
    en_forms["many"] = f"{with_s(container)} of {en}" if container else many
    return Word(agree="are" if given == "=" else "is", zh_forms=zh_forms, en_forms=en_forms)


def person_word(row: dict[str, str]) -> Word:
    """A person. Templates with a pronoun skip those without one (my friend)."""
    zh = {"": row["zh"], "poss": row["zh"] + "的", "he": row["he_zh"]}
    en = {"": row["en"], "obj": row["obj"], "poss": row["poss"], "he": row["he"], "his": row["his"]}
    zh, en = ({name: form for name, form in forms.items() if form} for forms in (zh, en))
    return Word(zh_forms=zh, en_forms=en, agree=row["agree"], group=row["group"], owner=row["owner"])


def read_lexicon(folder: Path) -> dict[str, list[Word]]:
    """Words of each class; a word of weight n is there n times."""
    tables = {path.stem: read_table(path) for path in folder.glob("*.tsv")}
    irregular = {row["base"]: (row["past"], row["done"]) for row in tables["irregular"]}
    lexicon: dict[str, list[Word]] = defaultdict(list)
    entries = [(row, person_word(row)) for row in tables["people"]]
    entries += [(row, noun_word(row)) for row in tables["nouns"]]
    for name, forms in (("verbs", verb_forms), ("words", compared), ("numbers", compared)):
        for row in tables[name]:
            en = forms(row["en"], irregular)
            entries.append((row, Word(link=row["link"], zh_forms={"": row["zh"]}, en_forms=en)))
    for row, word in entries:
        for name in row["classes"].split():
            lexicon[name].append(word)
    for row in tables["mixes"]:
        for ingredient in row["ingredients"].split():
            name, _, weight = ingredient.partition("*")
            lexicon[row["class"]].extend(lexicon[name] * int(weight or 1))
    return dict(lexicon)


def agreeing(name: str, form: str, subject: Word, words: dict[str, Word]) -> str:
    """Return a verb's present tense after `subject`, or a noun in its number."""
    if name in BE:
        return BE[name][subject.agree]
    if name not in words:
        return with_s(name) if subject.agree == "is" else name
    forms = words[name].en_forms
    if "many" in forms:
        return forms["many" if subject.zh_forms[""].endswith("们") else form]
    return forms["s" if subject.agree == "is" else ""]


def render(template: str, words: dict[str, Word], language: str) -> str:
    """Fill a template; KeyError where a word lacks the form (the pronoun of a friend)."""

    def fill(slot: re.Match[str]) -> str:
        name, _, form, subject = slot.groups(default="")
        if language == "zh":
            return words[name].zh_forms[form]
        return agreeing(name, form, words[subject], words) if subject else words[name].en_forms[form]

    text = SLOT.sub(fill, template)
    if language == "zh":
        return text
    if "[my]" in text:
        text = text.replace("[my]", words["s"].en_forms["his"])
    text = re.sub(r"\b([Aa]) (?=[aeiou])(?!uni|use|eu|one)", r"\1n ", text)
    return text[0].upper() + text[1:]


def sensible(words: dict[str, Word], flags: str) -> bool:
    """Whether the fillers go together: no word twice, no bag in itself, one owner ..."""
    fillers = list(words.values())
    zh = [word.zh_forms[""] for word in fillers]
    nouns = [word.zh_forms[""] for word in fillers if "many" in word.en_forms]
    groups = [word.group for word in fillers if word.group]
    return not (
        len(set(zh)) < len(zh)
        or len(set(groups)) < len(groups)
        or len({word.owner for word in fillers if word.owner}) > 1
        or any(a != b and b.endswith(a) for a in nouns for b in nouns)
        or any(b in (f"{a}里", f"{a}上", f"{a}下面") for a in zh for b in zh)
        or ("ask" in flags and words["s"].zh_forms[""].startswith("我"))
    )


def compose(row: dict[str, str], lexicon: dict[str, list[Word]], seed: int) -> list[Pair]:
    """Draw up to `limit` distinct pairs of one template from all its fillers."""
    slots = [(name, cls) for name, cls, _, _ in SLOT.findall(row["zh"]) if cls]
    slots.sort(key=lambda slot: slot[1].startswith("@"))  # a word is drawn before the slot that depends on it
    random = Random(f"{seed} {row['zh']}")
    pairs: dict[str, Pair] = {}
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
            if missing.args[0] not in ("he", "his", "s"):  # a pronoun, or the subject for [my]
                raise
            continue
        fillers = (f"{name}={word.zh_forms['']}" for name, word in sorted(words.items()))
        pairs.setdefault(zh, Pair(zh, en, (row["zh"], *fillers)))
        if len(pairs) == int(row["limit"]):
            break
    return list(pairs.values())
