"""Two doors: word vectors are trained on a corpus, and asked what lies near a word."""

import itertools
import random
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from doors import Door
from dragoman import bundle as bundles
from dragoman import vectors
from dragoman.bundle import Bundle

SLOTS = [  # words of one slot can stand for each other; no word of another slot can
    ["old", "young", "clever"],
    ["cat", "dog", "horse"],
    ["sleeps", "waits", "plays"],
    ["often", "never", "today"],
    ["garden", "kitchen", "street"],
]
TOY = [
    "data.corpora=[{path: toy.tsv}]", "data.src=de", "data.tgt=en", "data.cache=cache", "data.validation_size=4",
    "data.test_size=4", "data.tokenizer.kind=word", "data.tokenizer.vocab_size=330", "model.d_model=16",
]  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 243 sentences of five slots, and their translations, which are the same for all."""
    folder = tmp_path_factory.mktemp("corpus")
    sentences = [f"the {a} {b} {c} {d} in the {e}" for a, b, c, d, e in itertools.product(*SLOTS)]
    random.Random(1).shuffle(sentences)
    rows = [f"hier steht etwas ganz anderes {n}\t{sentence}\n" for n, sentence in enumerate(sentences)]
    (folder / "toy.tsv").write_text("".join(rows), encoding="utf-8")
    return folder


@pytest.fixture
def train(corpus: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Door:
    return Door("scripts/train_word2vec.py", corpus, monkeypatch, capfdbinary)


@pytest.fixture
def near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Door:
    return Door("scripts/neighbours.py", tmp_path, monkeypatch, capfdbinary)


def answers(out: bytes) -> list[str]:
    """The words of the table, under its first line."""
    return [line.split()[1] for line in out.decode().splitlines()[1:]]


@pytest.mark.parametrize("kind", ["skipgram", "cbow"])
def test_words_that_can_stand_for_each_other_come_to_lie_together(
    train: Door, near: Door, corpus: Path, tmp_path: Path, kind: str
) -> None:
    pytest.importorskip("gensim")
    path = tmp_path / f"{kind}.txt"
    done = train(*TOY, "--kind", kind, "--epochs", "100", "--window", "3", "--output", str(path))
    assert f"model.embedding.init={path}" in done.out.decode()
    assert vectors.layout(path).dimension == 16
    known = vectors.read(path)
    unit = known.matrix / np.linalg.norm(known.matrix, axis=1, keepdims=True)
    rows = [[known.rows[f"▁{word}"] for word in slot] for slot in SLOTS]
    cosines = unit @ unit.T
    inside = [cosines[a, b] for slot in rows for a, b in itertools.combinations(slot, 2)]
    across = [cosines[a, b] for one, two in itertools.combinations(rows, 2) for a in one for b in two]
    assert np.mean(inside) > np.mean(across) + 0.2
    assert set(answers(near("--vectors", str(path), "--top", "2", "cat").out)) == {"▁dog", "▁horse"}


def test_equal_seeds_give_equal_files_and_other_seeds_others(train: Door, tmp_path: Path) -> None:
    pytest.importorskip("gensim")
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        train(*TOY, f"seed={seed}", "--epochs", "1", "--dim", "8", "--output", str(tmp_path / name))
    one, again, other = ((tmp_path / name).read_bytes() for name in ("one", "again", "other"))
    assert one == again
    assert one != other
    assert vectors.layout(tmp_path / "one").dimension == 8


def test_a_file_is_replaced_only_when_asked_and_a_failure_leaves_none(train: Door, tmp_path: Path) -> None:
    path = tmp_path / "kept.txt"
    path.write_text("kept")
    assert "--overwrite" in train.refused(*TOY, "--output", str(path))
    assert path.read_text() == "kept"
    assert "no experiment" in train.refused("experiment=nonsense", "--output", str(tmp_path / "new.txt"))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "--output"),
        (("--output", "x", "--kind", "glove"), "skipgram"),
        (("--output", "x", "--epochs", "0"), "--epochs 0"),
        (("--output", "missing/x"), "cannot write"),
        (("word", "--output", "x"), "key=value"),
        (("model.d_modle=3", "--output", "x"), "did you mean"),
    ],
)
def test_what_cannot_be_trained_is_one_line(train: Door, arguments: tuple[str, ...], complaint: str) -> None:
    assert complaint in train.refused(*arguments)


def test_without_gensim_it_says_what_to_install(train: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    assert "pip install -e '.[vectors]'" in train.refused("--output", "x")


FAMILY = (
    "king 1 1 0\nman 1 0 0\nwoman 0 0 1\nqueen 0 1 1\nprince 1 .9 .1\n"
    "国王 -1 -1 0\n男人 -1 0 0\n女人 0 0 -1\n女王 0 -1 -1\n"
)


@pytest.fixture
def family(tmp_path: Path) -> str:
    (tmp_path / "v.txt").write_text(FAMILY, encoding="utf-8")
    return "v.txt"


def test_a_word_is_nearest_to_what_has_the_smallest_angle_and_never_to_itself(
    near: Door, family: str
) -> None:
    lines = near("--vectors", family, "king").out.decode().splitlines()
    assert lines[0] == "king"
    assert answers("\n".join(lines).encode())[0] == "prince"
    cosines = [float(line.split()[0]) for line in lines[1:]]
    assert cosines == sorted(cosines, reverse=True)
    assert len(lines) == len(FAMILY.splitlines())  # all the others, and the first line
    assert all(-1 <= cosine <= 1 for cosine in cosines)
    assert answers(near("--vectors", family, "--top", "1", "--", "-", "king").out) == ["国王"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [("king - man + woman", "queen"), ("国王 - 男人 + 女人", "女王"), ("King - man + woman", "queen")],
)
def test_vector_arithmetic_in_one_word_or_many(near: Door, family: str, words: str, answer: str) -> None:
    for arguments in ([words], words.split()):
        done = near("--vectors", family, "--top", "1", *arguments).out
        assert answers(done) == [answer]
        assert done.decode().splitlines()[0].lower() == words.lower()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("king",), "either --vectors"),
        (("--vectors", "v.txt", "--model", "m", "king"), "either --vectors"),
        (("--vectors", "v.txt", "--side", "tgt", "king"), "--side"),
        (("--vectors", "v.txt", "--top", "0", "king"), "--top 0"),
        (("--vectors", "v.txt", "kingg"), "did you mean 'king'"),
        (("--vectors", "v.txt", "国"), "did you mean '国王'"),
        (("--vectors", "v.txt", "king", "man"), "cannot read 'king man'"),
        (("--vectors", "v.txt", "king", "-"), "cannot read"),
        (("--vectors", "v.txt", "king - + man"), "cannot read"),
        (("--vectors", "v.txt", ""), "cannot read"),
        (("--vectors", "v.txt", "king - king"), "cancel out"),
        (("--vectors", "missing.txt", "king"), "cannot read word vectors"),
        (("--model", "missing", "king"), "no bundle"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    near: Door, family: str, arguments: tuple[str, ...], complaint: str
) -> None:
    assert complaint in near.refused(*arguments)


def test_a_model_is_asked_for_the_pieces_of_either_side(
    near: Door, tiny_bundle: Bundle, tiny_bundle_folder: Path
) -> None:
    count = len(tiny_bundle.src_tokenizer) - 4  # special ids are no words
    for side in ([], ["--side", "tgt"]):
        done = near("--model", str(tiny_bundle_folder), *side, "--top", "9999", "我").out
        assert len(answers(done)) == count - 1
        assert not re.search("<(pad|unk|s|/s)>", done.decode())
    rows = bundles.load(tiny_bundle_folder).model.src_embedding.table.weight.detach()
    pieces = tiny_bundle.src_tokenizer.pieces(range(len(rows)))
    unit = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-9)
    cosines = unit[4:] @ unit[pieces.index("我")]
    assert answers(done)[0] == pieces[4 + int(cosines.topk(2).indices[1])]
