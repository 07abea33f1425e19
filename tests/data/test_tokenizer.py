"""Tokenizers of all kinds: round trips, special ids, sampling."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dragoman.config import TokenizerConfig
from dragoman.data.text import clean_text
from dragoman.data.tokenizer import KINDS, Tokenizer, suitable_size
from dragoman.errors import UserError
from dragoman.special import BOS, EOS, PAD, UNK

SENTENCES = [f"{a}{b}{c}。" for a in "我你他她们" for b in "喜欢看见打听" for c in "书花狗猫人水"] + [
    f"{a} {b} the {c}." for a in ("I", "You", "We") for b in ("like", "see", "hear") for c in ("book", "dog", "cat")
]
ANY_TEXT = st.text(st.characters(exclude_categories=()))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """One tokenizer of each kind, with tags, also trained on texts with tags in them."""
    folder = tmp_path_factory.mktemp("tokenizers")
    corpus = [*SENTENCES, *(f"x<2en>{c}<2zh>" for c in "abcdefgh" * 40)]
    tags = ["zh", "en"]
    configs = {kind: TokenizerConfig(kind=kind, vocab_size=400) for kind in KINDS}
    return {kind: Tokenizer.train(corpus, c, folder / f"{kind}.model", tags, tags) for kind, c in configs.items()}


@settings(max_examples=50, deadline=None)
@given(text=ANY_TEXT, seed=st.integers(0, 2**32 - 1))
@example(text="我喜欢你。 I like the <s> dog </s> <pad> <unk> <2en> ▁ 🦖 １９８４", seed=1)
def test_every_clean_text_survives_encode_and_decode(trained: dict, text: str, seed: int) -> None:
    text = clean_text(text)
    for kind, tokenizer in trained.items():
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert not {PAD, UNK, BOS, EOS, *tokenizer.tag("zh"), *tokenizer.tag("en")} & set(ids)
        if kind in ("bpe", "unigram"):
            assert tokenizer.decode(tokenizer.sample(text, alpha=0.3, seed=seed)) == text


def test_a_model_does_not_depend_on_its_folder(tmp_path: Path) -> None:
    models = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        config, path = TokenizerConfig(kind="unigram", vocab_size=330), folder / "joint.model"
        models.append(Tokenizer.train(SENTENCES, config, path, ["zh", "en"], conversion={"愛": "爱"}))
    assert models[0].sha256 == models[1].sha256
    assert models[0].encode("愛") == models[0].encode("爱")


def test_decoding_drops_special_ids_and_tags(trained: dict) -> None:
    tokenizer = trained["bpe"]
    ids = [*tokenizer.tag("en"), BOS, *tokenizer.encode("I like the dog."), EOS, PAD, UNK]
    assert tokenizer.decode(ids) == "I like the dog."


def test_only_tagged_languages_have_a_tag(trained: dict) -> None:
    tokenizer = trained["bpe"]
    assert tokenizer.pieces(tokenizer.tag("en")) == ["<2en>"]
    assert tokenizer.tag("fr") == []
    assert len(tokenizer) == 400


def test_sampling_depends_on_the_seed_alone(trained: dict) -> None:
    tokenizer = trained["bpe"]

    def sample(seed: int) -> list[list[int]]:
        return [tokenizer.sample(text, alpha=0.3, seed=seed + i) for i, text in enumerate(SENTENCES[-40:])]

    first = sample(7)
    assert first != tokenizer.encode_batch(SENTENCES[-40:])
    assert sample(1000) != first
    tokenizer.encode_batch(SENTENCES)
    assert sample(7) == first


@pytest.mark.slow
def test_equal_seeds_sample_equally_in_another_process(trained: dict) -> None:
    # sentencepiece from 0.2.2 on salts the seed in each process.
    program = (
        "import json, pathlib, sys\nfrom dragoman.data.tokenizer import Tokenizer\n"
        "tokenizer = Tokenizer(pathlib.Path(sys.argv[1]))\n"
        "print(json.dumps([tokenizer.sample(text, alpha=0.3, seed=7) for text in json.load(sys.stdin)]))"
    )
    command = [sys.executable, "-c", program, str(trained["bpe"].path)]
    other = subprocess.run(command, input=json.dumps(SENTENCES), capture_output=True, text=True, check=True)
    assert json.loads(other.stdout) == [trained["bpe"].sample(text, alpha=0.3, seed=7) for text in SENTENCES]


def test_a_batch_is_encoded_like_its_sentences(trained: dict) -> None:
    for tokenizer in trained.values():
        assert tokenizer.encode_batch(SENTENCES) == [tokenizer.encode(text) for text in SENTENCES]


def test_a_vocabulary_shrinks_to_the_corpus(tmp_path: Path) -> None:
    config = TokenizerConfig(vocab_size=8000)
    assert 256 < len(Tokenizer.train(SENTENCES, config, tmp_path / "a.model", ["zh", "en"])) < 8000


def test_the_suitable_size_grows_with_the_corpus() -> None:
    config = TokenizerConfig(character_coverage=1.0)
    assert suitable_size(["ab", "ba", "一", "二"], 2, config) == 260 + 4 + 35
    assert suitable_size(["ab", "ba"], 10_000, config) == 260 + 2 + 2500
    rare = suitable_size(["ab" * 10_000, "c"], 2, TokenizerConfig(character_coverage=0.99))
    assert rare == 260 + 2 + 35


def test_unspaced_languages_have_no_leading_space(tmp_path: Path) -> None:
    config = TokenizerConfig(kind="char", vocab_size=400)
    chinese, both = (Tokenizer.train(SENTENCES, config, tmp_path / str(n), ["zh", "en"][:n]) for n in (1, 2))
    assert chinese.pieces(chinese.encode("我")) == ["我"]
    assert both.pieces(both.encode("我")) == ["▁", "我"]


def test_a_pickled_tokenizer_encodes_alike(trained: dict) -> None:
    for tokenizer in trained.values():
        copy = pickle.loads(pickle.dumps(tokenizer))
        assert (copy.sha256, copy.path) == (tokenizer.sha256, tokenizer.path)
        assert copy.encode_batch(SENTENCES) == tokenizer.encode_batch(SENTENCES)


def test_a_vocabulary_without_room_for_the_characters_fails(tmp_path: Path) -> None:
    many = ["".join(chr(0x4E00 + i) for i in range(start, start + 50)) for start in range(0, 1000, 50)]
    with pytest.raises(UserError, match=r"data\.tokenizer: Vocab.* 300 vs \d+\. Increase vocab_size or"):
        Tokenizer.train(many, TokenizerConfig(vocab_size=300), tmp_path / "small.model", ["zh"])


def test_a_foreign_file_fails(tmp_path: Path) -> None:
    for content in (b"foreign", b""):
        (tmp_path / "a.model").write_bytes(content)
        with pytest.raises(UserError, match=r"a\.model: cannot be read as a sentencepiece model"):
            Tokenizer(tmp_path / "a.model")
    with pytest.raises(UserError, match=r"missing\.model: cannot be read.*No such file"):
        Tokenizer(tmp_path / "missing.model")


def test_words_are_no_tokens_of_a_language_without_spaces(tmp_path: Path) -> None:
    """Nearly every Chinese sentence is one unknown word, spelt in bytes."""
    words = Tokenizer.train(SENTENCES, TokenizerConfig(kind="word", vocab_size=400), tmp_path / "w.model", ["zh", "en"])
    assert len(words.encode("好久不见")) > 12
