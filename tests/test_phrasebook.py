"""The phrasebook: files as built, no leaks, no rephrased held-out pair in train."""

import gzip
import json
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import build_phrasebook as build  # noqa: E402
import phrasebook_checks as checks  # noqa: E402
import phrasebook_words as words  # noqa: E402

HAN = re.compile(r"[\u3400-\u9fff]")
Corpora = dict[str, build.Splits]
bare = cache(build.bare)


@pytest.fixture(scope="module")
def corpora() -> Corpora:
    """The pairs of the six files."""

    def read(path: Path) -> list[build.Pair]:
        rows = map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines())
        return [build.Pair(**row["translation"]) for row in rows]

    return {
        corpus: {split: read(build.HOME / corpus / f"{split}.jsonl.gz") for split in build.SPLITS}
        for corpus in build.SIZES
    }


@pytest.fixture(scope="module")
def written() -> list[build.Pair]:
    return build.read_written(build.HOME / "sentences")


def pairs_of(corpora: Corpora, *splits: str) -> list[build.Pair]:
    return [pair for corpus in corpora.values() for name in splits for pair in corpus[name]]


def test_written_files_hold_every_sentence(written: list[build.Pair], corpora: Corpora) -> None:
    assert sorted(written) == sorted(pair for pairs in corpora["written"].values() for pair in pairs)


@pytest.mark.slow
def test_files_are_what_the_script_builds_of_known_parts(written: list[build.Pair]) -> None:
    corpora = build.build(written)
    assert build.stale(corpora, build.HOME) == []
    train, validation, test = (corpora["composed"][name] for name in build.SPLITS)
    seen = Counter(unit for pair in train for unit in build.units(pair))
    assert not {pair.combination for pair in train} & {pair.combination for pair in validation + test}
    assert [unit for pair in validation + test for unit in build.units(pair) if seen[unit] < 3] == []


def test_missing_and_changed_files_are_stale(corpora: Corpora, tmp_path: Path) -> None:
    written = {"written": {split: pairs[:20] for split, pairs in corpora["written"].items()}}
    build.write(written, tmp_path)
    folder = tmp_path / "written"
    (folder / "test.jsonl.gz").replace(folder / "validation.jsonl.gz")
    assert build.stale(written, tmp_path) == ["written/validation.jsonl.gz", "written/test.jsonl.gz"]


def test_held_out_sizes_are_exact_and_the_card_is_true(corpora: Corpora) -> None:
    card = (build.HOME / "README.md").read_text("utf-8")
    for name, corpus in corpora.items():
        sizes = {split: len(corpus[split]) for split in build.SPLITS}
        assert {split: sizes[split] for split in build.SPLITS[1:]} == build.SIZES[name]
        row = next(line for line in card.splitlines() if line.startswith(f"| `{name}` |"))
        assert f"| {sum(sizes.values()):,} | " + " / ".join(f"{n:,}" for n in sizes.values()) in row


def test_no_sentence_is_in_two_splits(corpora: Corpora) -> None:
    for side in (0, 1):
        sets = [{bare(pair[side]) for pair in pairs_of(corpora, name)} for name in build.SPLITS]
        assert sum(map(len, sets)) == len(set().union(*sets))


def test_no_pair_similar_to_a_held_out_one_is_in_train(corpora: Corpora) -> None:
    train, validation, test = corpora["written"].values()
    train = train[::64] + corpora["composed"]["train"][::64]  # the slow test builds from all
    assert list(build.similar_pairs(train, validation + test)) == []
    assert list(build.similar_pairs(validation, test)) == []


def test_near_copies_rare_words_and_test_sentences_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [
        build.Pair("爸爸每个周末都在修自行车。", "Dad fixes the bicycle every weekend."),
        build.Pair("爸爸每个周末都修自行车。", "Dad fixes the bicycles every weekend."),
        build.Pair("你好！", "Hello!"),
        build.Pair("你好啊！", "Hello!"),
    ]
    (found,) = checks.near_copies(pairs)
    assert "爸爸每个周末都在修自行车。" in found
    assert checks.uncovered(["爸爸", "你好", "好"], pairs + pairs[2:]) == ["爸爸"]
    for name in checks.ELSEWHERE:
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.tsv").write_text("zh\ten\n" + "\t".join(pairs[0][:2]) + "\n")
    (tmp_path / "tatoeba" / "test.tsv").write_text("zh\ten\n别的句子。\tdad fixes the bicycles every weekend\n")
    monkeypatch.setenv("DRAGOMAN_DATA", str(tmp_path))
    faults, notes = checks.elsewhere(pairs)
    assert faults == ["dad fixes the bicycles every weekend: also in tatoeba/test"]
    assert len(notes) == 3


def test_similarity_ignores_particles_and_small_changes() -> None:
    pairs = [
        build.Pair("好久不见啊！", "Long time no see!"),
        build.Pair("好久不见了。", "It has been ages."),
        build.Pair("爸爸在修自行车。", "Dad is fixing the bicycle."),
        build.Pair("爸爸在院子里修自行车。", "Dad is fixing a bike in the yard."),
        build.Pair("明天见。", "See you tomorrow."),
    ]
    assert {(i, j) for i, j in build.similar_pairs(pairs, pairs) if i > j} == {(1, 0), (3, 2)}


def test_sentences_of_the_readmes_stay_in_train(corpora: Corpora) -> None:
    train = {bare(pair.zh): bare(pair.en) for pair in corpora["written"]["train"]}
    assert set(build.SHOWN.split()) <= set(train)
    assert train["好久不见"] == "longtimenosee"
    assert train["你打我"] == "youhitme"


def test_sentences_are_clean_and_have_one_translation(corpora: Corpora) -> None:
    pairs = pairs_of(corpora, *build.SPLITS)
    composed = [pair for rows in corpora["composed"].values() for pair in rows]
    assert len({pair.zh for pair in pairs}) == len(pairs)
    spaces = re.compile(r"\t|  |^ | $")
    faulty = [p for p in pairs if not HAN.search(p.zh) or HAN.search(p.en) or spaces.search(p.zh + p.en)]
    slots = re.compile(r"[{}\[\]|]")  # of templates; written pairs may name [CLS]
    assert faulty == [p for p in composed if slots.search(p.zh + p.en)] == []
    grammar = re.compile(r"(?<![\w'])([Aa] [aeio]\w|[Aa]n [^aeiou]|(I|you|we|they) (is|has|does)\b)")
    assert [p.en for p in composed if grammar.search(p.en) or not re.fullmatch(r"[A-Z].*[\w.?!]", p.en)] == []


@pytest.mark.parametrize("line", ["只有一边", "好\tFine"])
def test_a_faulty_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.tsv").write_text(f"好\tGood\n{line}\n", "utf-8")
    with pytest.raises(ValueError, match=r"a\.tsv line 2"):
        build.read_written(tmp_path)


def test_english_forms_follow_the_rules() -> None:
    assert words.verb_forms("try on", {})["s"] == "tries on"
    assert words.verb_forms("stop", {})["ing"] == "stopping"
    assert words.verb_forms("visit", {})["past"] == "visited"
    assert words.compared("heavy", {})["more"] == "heavier"
    assert words.compared("expensive", {})["most"] == "most expensive"
    assert words.compared("hot", {})["evermore"] == "hotter and hotter"
