"""A model carried to CTranslate2 writes what it wrote before, whatever its shape."""

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dragoman import bundle as bundles
from dragoman.bundle import Bundle
from dragoman.ctranslate2_engine import FOLDER, CTranslate2Engine, check
from dragoman.errors import UserError
from dragoman.export import ctranslate2 as room
from dragoman.model.shape import ModelConfig, PositionConfig
from dragoman.model.transformer import Transformer
from dragoman.search.hypothesis import SearchConfig
from dragoman.special import EOS, PAD
from dragoman.torch_engine import translate_ids
from tiny import SENTENCES, make_bundle

pytest.importorskip("ctranslate2")
SHAPES = [
    *(
        {"position": PositionConfig(kind=kind, length=200)}
        for kind in ("none", "integer", "unit", "sinusoidal")
    ),
    {"position": PositionConfig(kind="learned", length=200), "norm": "post"},
    {"position": PositionConfig(kind="rope", base=500.0)},
    {"position": PositionConfig(kind="rope"), "norm": "post", "normalization": "rms_norm"},
    {"position": PositionConfig(kind="t5", n_buckets=8, max_distance=20)},
    {"position": PositionConfig(kind="t5"), "score": "dot", "norm": "post"},
    {"activation": "swiglu", "normalization": "rms_norm", "score": "dot"},
    {"activation": "gelu", "tie": "none"},
    {"n_encoder_layers": 1, "n_decoder_layers": 3, "tie": "tgt"},
]
SEARCHES = [
    SearchConfig(kind="greedy"),
    SearchConfig(beam_size=4, n_best=4),
    SearchConfig(beam_size=5, n_best=2, length_penalty=0.6, max_length_a=0.5, max_length_b=3),
    SearchConfig(beam_size=5, length_penalty=0.0, max_length_a=1.0, max_length_b=4),
]


def shaped(bundle: Bundle, **shape: object) -> Bundle:
    """The bundle with a random network that has opinions: larger weights than those a training begins with."""
    torch.manual_seed(3)
    config = dataclasses.replace(bundle.model_config, **shape)  # type: ignore[arg-type]
    sizes = len(bundle.src_tokenizer), len(bundle.tgt_tokenizer)
    model = Transformer(config, src_vocab_size=sizes[0], tgt_vocab_size=sizes[1]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return dataclasses.replace(bundle, model=model, model_config=config)


def rows(n_pieces: int) -> list[list[int]]:
    chance = random.Random(1)
    return [
        [chance.randrange(EOS + 1, n_pieces) for _ in range(n)] for n in (1, 2, 5, 13, 30) for _ in range(2)
    ]


def carried(bundle: Bundle, folder: Path) -> CTranslate2Engine:
    n_positions = room._n_positions(bundle)
    room._write(bundle, folder, n_positions, "float32")
    return CTranslate2Engine(folder, bundle, n_positions)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_it_can_express_finds_the_hypotheses_and_scores_of_torch(
    tiny_bundle: Bundle, tmp_path: Path, shape: dict[str, object]
) -> None:
    bundle = shaped(tiny_bundle, **shape)
    engine, sources = carried(bundle, tmp_path), rows(len(bundle.src_tokenizer))
    for search in SEARCHES:
        ours, theirs = translate_ids(bundle.model, sources, search), engine.translate(sources, search)
        for found, expected in zip(theirs, ours, strict=True):
            assert [h.ids for h in found] == [h.ids for h in expected]
            for one, other in zip(found, expected, strict=True):
                length = len(one.token_scores) ** search.length_penalty
                assert one.score == pytest.approx(other.score, abs=1e-3)
                assert one.token_scores == pytest.approx(other.token_scores, abs=1e-3)
                assert sum(one.token_scores) == pytest.approx(one.score * length, abs=1e-3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_is_loaded_is_compared_with_what_is_written(
    tiny_bundle: Bundle, tmp_path: Path, shape: dict
) -> None:
    bundle = shaped(tiny_bundle, **shape)
    n_positions = room._n_positions(bundle)
    for quantization in room.QUANTIZATIONS:
        (tmp_path / quantization).mkdir()
        room._write(bundle, tmp_path / quantization, n_positions, quantization)
        check(tmp_path / quantization, bundle, n_positions, quantization)


@pytest.mark.parametrize("both", [False, True])
def test_two_vocabularies_and_tags_come_along(tmp_path: Path, both: bool) -> None:
    bundle = make_bundle(tmp_path / "tokenizer", joint=both, both=both)
    (tmp_path / "export").mkdir()
    engine = carried(bundle, tmp_path / "export")
    tag = bundle.src_tokenizer.tag("zh")
    assert bool(tag) == both
    sources = [[*tag, *bundle.src_tokenizer.encode(text)] for text in SENTENCES]
    for search in SEARCHES[:2]:
        ours, theirs = translate_ids(bundle.model, sources, search), engine.translate(sources, search)
        assert [[h.ids for h in hs] for hs in theirs] == [[h.ids for h in hs] for hs in ours]


def test_torch_keeps_its_threads(
    tiny_bundle: Bundle, tmp_path: Path, set_threads: Callable[[int], None]
) -> None:
    """A run that exported its model and a run after it in the same process compute alike."""
    set_threads(3)
    carried(shaped(tiny_bundle), tmp_path)
    assert torch.get_num_threads() == 3


def test_both_directions_are_held_against_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, asked = make_bundle(tmp_path / "tokenizer", joint=True, both=True), []
    bundles.save(bundle, tmp_path / "bundle")
    monkeypatch.setattr(
        room, "translate_ids", lambda m, rows, s: asked.extend(rows) or translate_ids(m, rows, s)
    )
    room.export(tmp_path / "bundle", SENTENCES)
    assert len(asked) == room.SENTENCES
    tags = [bundle.src_tokenizer.tag(direction.tgt)[0] for direction in bundle.directions]
    assert {row[0] for row in asked} == set(tags)
    assert len(tags) == 2


def test_batches_and_neighbours_change_nothing(tiny_bundle: Bundle, tmp_path: Path) -> None:
    bundle = shaped(tiny_bundle)
    engine, sources = carried(bundle, tmp_path), rows(len(bundle.src_tokenizer))
    together = engine.translate(sources, SEARCHES[2])
    alone = engine.translate(sources, SEARCHES[2], batch_tokens=1)
    backwards = engine.translate(sources[::-1], SEARCHES[2])[::-1]
    for some in (alone, backwards):
        assert [[h.ids for h in hs] for hs in some] == [[h.ids for h in hs] for hs in together]
    assert engine.translate([], SEARCHES[0]) == []


def test_without_scores_the_hypotheses_are_the_same(tiny_bundle: Bundle, tmp_path: Path) -> None:
    engine, sources = carried(shaped(tiny_bundle), tmp_path), rows(len(tiny_bundle.src_tokenizer))
    done: list[int] = []
    for search in SEARCHES:
        scored = engine.translate(sources, search)
        unscored = engine.translate(sources, search, scored=False, progress=done.append)
        assert [[h.ids for h in hs] for hs in unscored] == [[h.ids for h in hs] for hs in scored]
        assert not any(h.token_scores for hs in unscored for h in hs)
    assert sum(done) == len(SEARCHES) * len(sources)


@pytest.mark.parametrize("kind", ["learned", "unit"])
def test_positions_end_where_the_models_do(tiny_bundle: Bundle, tmp_path: Path, kind: str) -> None:
    bundle = shaped(tiny_bundle, position=PositionConfig(kind=kind, length=16))
    engine = carried(bundle, tmp_path)
    sources = [[5] * n for n in range(1, 16)]
    for search in (SearchConfig(kind="greedy"), SearchConfig(beam_size=3)):
        assert engine.refuses(search, 15) is None
        ours, theirs = translate_ids(bundle.model, sources, search), engine.translate(sources, search)
        assert [h[0].ids for h in theirs] == [h[0].ids for h in ours]
    with pytest.raises(UserError, match=r"16 pieces is too long .* model.position.length=16"):
        engine.translate([[5] * 16], SearchConfig())


@pytest.mark.parametrize(
    "shape",
    [
        {"score": "additive"},
        {"position": PositionConfig(kind="alibi")},
        {"position": PositionConfig(kind="transformer_xl")},
    ],
    ids=str,
)
def test_what_it_cannot_express_is_refused_by_name_before_any_work(
    tiny_bundle: Bundle, tmp_path: Path, shape: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundles.save(shaped(tiny_bundle, **shape), tmp_path / "bundle")
    monkeypatch.setattr(bundles, "load", lambda folder: pytest.fail("weights were read"))
    name = "additive" if "score" in shape else shape["position"].kind  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=f"cannot express model.*={name}"):
        room.export(tmp_path / "bundle")
    assert not (tmp_path / "bundle" / FOLDER).exists()


def test_an_export_that_translates_otherwise_is_not_written(
    tiny_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundles.save(tiny_bundle, tmp_path / "bundle")
    made = room.export(tmp_path / "bundle", quantization="float32")
    before = (made / "model.bin").read_bytes()
    monkeypatch.setattr(room, "_table", lambda position, length, d_model: torch.ones(length, d_model).numpy())
    with pytest.raises(UserError, match="differently from torch"):
        room.export(tmp_path / "bundle", SENTENCES)
    assert (made / "model.bin").read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "bundle").glob(".*")) == []


def test_quantized_weights_are_smaller_and_others_are_refused_with_the_choices(
    tiny_bundle: Bundle, tmp_path: Path
) -> None:
    bundles.save(shaped(tiny_bundle, d_model=64, d_ff=256), tmp_path / "bundle")
    sizes = []
    for quantization in room.QUANTIZATIONS:
        made = room.export(tmp_path / "bundle", SENTENCES, quantization=quantization)
        sizes.append((made / "model.bin").stat().st_size)
        assert json.loads((made / "manifest.json").read_text())["quantization"] == quantization
        assert quantization in room.told(made)
    assert sizes == sorted(sizes)
    with pytest.raises(UserError, match="int8, int16, float32"):
        room.export(tmp_path / "bundle", quantization="int4")


def test_the_model_that_is_carried_is_not_changed(tiny_bundle: Bundle, tmp_path: Path) -> None:
    bundle = shaped(tiny_bundle)
    before = {name: tensor.clone() for name, tensor in bundle.model.state_dict().items()}
    room._write(bundle, tmp_path, room._n_positions(bundle), "int8")
    assert all(torch.equal(tensor, before[name]) for name, tensor in bundle.model.state_dict().items())


def test_no_special_piece_is_ever_written(tiny_bundle: Bundle, tmp_path: Path) -> None:
    bundle = shaped(tiny_bundle)
    with torch.no_grad():
        bundle.model.projection.weight[: EOS + 1].mul_(30)  # it would like nothing better
    engine, sources = carried(bundle, tmp_path), rows(len(bundle.src_tokenizer))
    for search in SEARCHES:
        found = [h.ids for hs in engine.translate(sources, search) for h in hs]
        assert all(ids for ids in found)
        assert not {i for ids in found for i in ids} & set(range(PAD, EOS + 1))


def test_shapes_beyond_the_list_are_none_that_the_config_knows() -> None:
    """A new scheme or score must be sorted in: expressible, and tested here, or refused."""
    from dragoman.ctranslate2_engine import inexpressible
    from dragoman.model.shape import CHOICES, POSITION_KINDS

    tested = [ModelConfig(**shape) for shape in SHAPES]  # type: ignore[arg-type]
    for kind in POSITION_KINDS:
        expressible = inexpressible(ModelConfig(position=PositionConfig(kind=kind))) is None
        assert expressible == any(config.position.kind == kind for config in tested), kind
    for key in ("score", "activation", "norm", "normalization", "tie"):
        for value in CHOICES[key]:
            expressible = inexpressible(ModelConfig(**{key: value})) is None  # type: ignore[arg-type]
            assert expressible == any(getattr(config, key) == value for config in tested), value
