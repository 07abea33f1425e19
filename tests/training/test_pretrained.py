"""A run that begins with word vectors: they arrive in the tables, once, and leave no other trace."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dragoman import bundle as bundles
from dragoman import vectors
from dragoman.bundle import Bundle
from dragoman.config import Config
from dragoman.data.corpus import CorpusConfig
from dragoman.data.datamodule import DataConfig
from dragoman.data.tokenizer import Tokenizer, TokenizerConfig
from dragoman.errors import UserError
from dragoman.model.embedding import Embedding
from dragoman.model.shape import EmbeddingConfig
from dragoman.model.transformer import ModelConfig, Transformer
from dragoman.special import BOS, EOS, PAD, UNK
from dragoman.training.checkpoint import LAST
from dragoman.training.fit import TrainerConfig, fit
from dragoman.training.module import TrainingConfig
from dragoman.training.pretrained import check_vectors, start_from_vectors
from tiny import make_bundle

PHRASES = Path(__file__).parents[2] / "data" / "phrasebook" / "handwritten" / "people.tsv"
D_MODEL = 32


def pieces_of(*tokenizers: Tokenizer) -> list[str]:
    """Those with the mark first."""
    every = [piece for tokenizer in tokenizers for piece in tokenizer.pieces(range(EOS + 1, len(tokenizer)))]
    return sorted(set(every), key=lambda piece: (not piece.startswith("▁"), piece))


def save(path: Path, words: list[str], *, dimension: int = D_MODEL, scale: float = 7.0) -> np.ndarray:
    """A file of random vectors for `words`, (N, D)."""
    matrix = scale * np.random.default_rng(1).normal(size=(len(words), dimension)).astype(np.float32)
    with path.open("wb") as file:
        vectors.write(file, words, matrix)
    return matrix


def table(embedding: Embedding) -> torch.Tensor:
    return embedding.table.weight.detach()


def new_model(bundle: Bundle, tie: str) -> Transformer:
    config = ModelConfig(d_model=D_MODEL, d_ff=32, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, tie=tie)
    sizes = len(bundle.src_tokenizer), len(bundle.tgt_tokenizer)
    return Transformer(config, src_vocab_size=sizes[0], tgt_vocab_size=sizes[1])


@pytest.mark.parametrize(
    ("joint", "tie"), [(True, "all"), (True, "tgt"), (True, "none"), (False, "tgt"), (False, "none")]
)
def test_every_covered_piece_begins_with_its_vector_in_either_table(
    tmp_path: Path, joint: bool, tie: str
) -> None:
    bundle = make_bundle(tmp_path, joint=joint)
    model = new_model(bundle, tie)
    sides = [
        (bundle.src_tokenizer, model.src_embedding),
        (bundle.tgt_tokenizer, model.tgt_embedding),
    ]
    before = [table(embedding).clone() for _, embedding in sides]
    known = pieces_of(bundle.src_tokenizer, bundle.tgt_tokenizer)[1::2]  # "▁t" among them: a file of pieces
    matrix = dict(zip(known, save(tmp_path / "v.txt", known), strict=True))
    lines = start_from_vectors(model, tmp_path / "v.txt", bundle.src_tokenizer, bundle.tgt_tokenizer)
    assert len(lines) == (1 if joint else 2)
    for (tokenizer, embedding), old in zip(sides, before, strict=True):
        pieces = tokenizer.pieces(range(len(tokenizer)))
        covered = [i for i, piece in enumerate(pieces) if piece in matrix]
        others = [i for i, piece in enumerate(pieces) if piece not in matrix]
        wanted = torch.from_numpy(np.stack([matrix[pieces[i]] for i in covered]))
        now = table(embedding)
        factors = now[covered] / wanted
        assert torch.allclose(factors, factors.mean(), rtol=1e-4)
        assert factors.mean() > 0
        assert now[covered].square().mean().sqrt() == pytest.approx(D_MODEL**-0.5, rel=1e-4)
        assert torch.equal(now[others], old[others])
        assert {PAD, UNK, BOS, EOS} <= set(others)
        assert not now[PAD].any()
    if tie != "none":
        assert model.projection.weight is model.tgt_embedding.table.weight


def test_how_many_pieces_were_covered_is_said_and_less_than_half_is_a_warning(
    tmp_path: Path, tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = tiny_bundle.src_tokenizer
    pieces = pieces_of(tokenizer)
    half = (len(pieces) + 1) // 2
    for n, warned in ((half, False), (half - 1, True)):
        save(tmp_path / "v.txt", pieces[:n])
        (line,) = start_from_vectors(new_model(tiny_bundle, "all"), tmp_path / "v.txt", tokenizer, tokenizer)
        assert f"v.txt: {n} of {len(pieces)} pieces covered" in line
        assert line.startswith("warning: ") == warned
        assert line in capsys.readouterr().out


def test_duplicates_are_counted(tmp_path: Path, tiny_bundle: Bundle) -> None:
    tokenizer = tiny_bundle.src_tokenizer
    pieces = pieces_of(tokenizer)
    save(tmp_path / "v.txt", [*pieces, *pieces[:3]])
    lines = start_from_vectors(new_model(tiny_bundle, "all"), tmp_path / "v.txt", tokenizer, tokenizer)
    assert "3 words" in lines[-1]


@pytest.mark.parametrize(("words", "scale"), [(["xyzzy", "plugh"], 1.0), (["▁the", "我"], 0.0)])
def test_vectors_that_say_nothing_about_the_vocabulary_are_refused(
    tmp_path: Path, tiny_bundle: Bundle, words: list[str], scale: float
) -> None:
    save(tmp_path / "v.txt", words, scale=scale)
    tokenizer = tiny_bundle.src_tokenizer
    with pytest.raises(UserError, match="no vector for any piece"):
        start_from_vectors(new_model(tiny_bundle, "all"), tmp_path / "v.txt", tokenizer, tokenizer)


def test_another_dimension_is_refused_by_naming_both(tmp_path: Path) -> None:
    save(tmp_path / "v.txt", ["a"], dimension=50)
    config = ModelConfig(d_model=D_MODEL, embedding=EmbeddingConfig(init=str(tmp_path / "v.txt")))
    with pytest.raises(UserError, match=r"50 numbers.*d_model is 32: set model.d_model=50"):
        check_vectors(config)


def test_a_bundle_does_not_say_how_its_weights_began(tmp_path: Path, tiny_bundle: Bundle) -> None:
    tiny_bundle.model_config.embedding = EmbeddingConfig(init="home/me/secret.txt")
    try:
        bundles.save(tiny_bundle, tmp_path / "bundle")
    finally:
        tiny_bundle.model_config.embedding = EmbeddingConfig()
    assert "embedding" not in json.loads((tmp_path / "bundle" / "config.json").read_text())["model"]
    assert "secret" not in "".join(path.read_text() for path in tmp_path.glob("bundle/*.[jm][sd]*"))
    assert bundles.load(tmp_path / "bundle").model_config.embedding.init is None


def run(folder: Path, init: str | None, *, max_steps: int = 2) -> Config:
    lines = PHRASES.read_text(encoding="utf-8").splitlines()[:120]
    (folder / "phrases.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Config(
        name="run",
        run_dir=str(folder / "run"),
        data=DataConfig(
            corpora=[CorpusConfig(path=str(folder / "phrases.tsv"))],
            tokenizer=TokenizerConfig(vocab_size=600),
            cache=str(folder / "cache"),
            max_tokens=300,
            max_length=60,
            validation_size=10,
            test_size=10,
        ),
        model=ModelConfig(
            d_model=D_MODEL, d_ff=32, n_heads=2, n_encoder_layers=1, n_decoder_layers=1,
            embedding=EmbeddingConfig(init=init),
        ),
        training=TrainingConfig(lr=0.0, ema=0.9),  # standing still, so that the start can be seen at the end
        trainer=TrainerConfig(
            accelerator="cpu", precision="32", max_steps=max_steps, validate_every=2, validation_pairs=2, samples=0
        ),
    )  # fmt: skip


def test_a_new_run_begins_with_them_and_one_that_goes_on_does_not_ask(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    save(path, ["the", "我", "你", "xyzzy"])
    made = bundles.load(fit(run(tmp_path, str(path))))
    pieces = made.src_tokenizer.pieces(range(len(made.src_tokenizer)))
    ids, wanted = vectors.match(pieces, vectors.read(path))
    assert len(ids)
    for weights in (table(made.model.src_embedding)[ids], torch.from_numpy(wanted)):
        assert torch.allclose(
            weights / weights.norm(), torch.from_numpy(wanted / np.linalg.norm(wanted)), atol=1e-5
        )
    path.unlink()
    longer = run(tmp_path, str(path), max_steps=4)
    fit(longer)
    assert torch.load(tmp_path / "run" / LAST, weights_only=True)["global_step"] == 4
    recorded = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert any("v.txt" in line and "covered" in line for line in recorded["vectors"])
    assert str(path) not in (tmp_path / "run" / "bundle" / "config.json").read_text()


def test_a_file_found_broken_can_be_replaced_by_another(tmp_path: Path) -> None:
    broken, good = tmp_path / "broken.txt", tmp_path / "good.txt"
    broken.write_text(" ".join(["我", *["1"] * D_MODEL]) + "\n你 1 2\n", encoding="utf-8")
    save(good, ["我", "你"])
    with pytest.raises(UserError, match="line 2"):
        fit(run(tmp_path, str(broken)))
    assert fit(run(tmp_path, str(good))).is_dir()


def test_a_missing_file_is_told_before_anything_is_prepared(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read word vectors"):
        fit(run(tmp_path, str(tmp_path / "missing.txt")))
    assert not (tmp_path / "cache").exists()
