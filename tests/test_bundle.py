import dataclasses
import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from dragoman import bundle as bundles
from dragoman import durable, untrusted
from dragoman.bundle import Bundle
from dragoman.errors import UserError
from dragoman.model.attention import SCORES
from dragoman.model.position import POSITIONS, PositionConfig
from dragoman.model.transformer import Transformer
from tiny import make_bundle

SRC = torch.tensor([[5, 9, 7, 3]])
TGT = torch.tensor([[2, 8, 6]])


def logits(bundle: Bundle) -> torch.Tensor:
    with torch.no_grad():
        return bundle.model(SRC, TGT, SRC == 0)


@pytest.fixture
def copy(tiny_bundle_folder: Path, tmp_path: Path) -> Path:
    """A bundle that a test may spoil."""
    return Path(shutil.copytree(tiny_bundle_folder, tmp_path / "bundle"))


def reseal(folder: Path) -> None:
    """Make the manifest true again, as an attacker would."""
    files = {
        path.name: {"size": path.stat().st_size, "sha256": untrusted.sha256(path)}
        for path in folder.iterdir()
        if path.name != "manifest.json"
    }
    (folder / "manifest.json").write_text(json.dumps({"format_version": 1, "files": files}))


def edit_config(folder: Path, change: Callable[[dict], object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    reseal(folder)


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        bundles.load(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("joint", [True, False])
def test_saving_and_loading_changes_nothing(joint: bool, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "tokenizers", joint=joint)
    bundles.save(bundle, tmp_path / "b")
    loaded = bundles.load(tmp_path / "b")
    assert torch.equal(logits(loaded), logits(bundle))
    assert loaded.model_config == bundle.model_config
    assert loaded.search == bundle.search
    assert loaded.meta == bundle.meta
    assert (loaded.src, loaded.tgt) == ("zh", "en")
    assert loaded.src_tokenizer.sha256 == bundle.src_tokenizer.sha256
    assert loaded.tgt_tokenizer.sha256 == bundle.tgt_tokenizer.sha256
    assert not loaded.model.training


def test_tied_matrices_are_stored_once_and_tied_again(tiny_bundle_folder: Path) -> None:
    model = bundles.load(tiny_bundle_folder).model
    assert model.projection.weight is model.src_embedding.table.weight
    with safe_open(tiny_bundle_folder / "model.safetensors", "pt") as file:
        stored = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert stored == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("kind", POSITIONS)
def test_every_position_and_score_is_stored_once_and_comes_back_as_it_was(
    kind: str, score: str, tiny_bundle: Bundle, tmp_path: Path
) -> None:
    """The tables of t5, and u and v of transformer_xl, are met in each layer."""
    torch.manual_seed(1)
    config = dataclasses.replace(
        tiny_bundle.model_config, score=score, position=PositionConfig(kind=kind, length=64)
    )
    size = len(tiny_bundle.src_tokenizer)
    model = Transformer(config, src_vocab_size=size, tgt_vocab_size=size).eval()
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter)
    bundles.save(dataclasses.replace(tiny_bundle, model=model, model_config=config), tmp_path / "b")
    loaded = bundles.load(tmp_path / "b")
    assert torch.equal(logits(loaded), logits(dataclasses.replace(tiny_bundle, model=model)))
    with safe_open(tmp_path / "b" / "model.safetensors", "pt") as file:
        stored = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert stored == sum(parameter.numel() for parameter in model.parameters())
    for theirs, ours in ((loaded.model.encoder, model.encoder), (loaded.model.decoder, model.decoder)):
        for name in ("table", "u", "v"):
            of_layers = {id(getattr(layer.self_attention.position, name, None)) for layer in theirs}
            assert len(of_layers) == 1, f"{name} is no longer shared by {len(ours)} layers"


def test_half_precision_halves_the_file_and_loads_as_float32(tiny_bundle: Bundle, tmp_path: Path) -> None:
    bundles.save(tiny_bundle, tmp_path / "whole")
    bundles.save(tiny_bundle, tmp_path / "half", dtype="float16")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "half")]
    assert sizes[1] < 0.7 * sizes[0]
    loaded = bundles.load(tmp_path / "half")
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert torch.allclose(logits(loaded), logits(tiny_bundle), atol=0.02)


def test_loading_leaves_the_random_state_alone(tiny_bundle_folder: Path) -> None:
    before = torch.get_rng_state()
    bundles.load(tiny_bundle_folder)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_folder_stands_for_its_bundle(tiny_bundle_folder: Path) -> None:
    assert bundles.load(tiny_bundle_folder.parent).meta["name"] == "tiny"


def test_saving_over_a_bundle_replaces_it_and_leaves_nothing_beside(copy: Path, tiny_bundle: Bundle) -> None:
    tiny_bundle.meta["name"] = "second"
    try:
        bundles.save(tiny_bundle, copy)
    finally:
        tiny_bundle.meta["name"] = "tiny"
    assert bundles.load(copy).meta["name"] == "second"
    assert [path.name for path in copy.parent.iterdir()] == ["bundle"]


def test_saving_over_anything_else_is_refused(tiny_bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    for target in (tmp_path, tmp_path / "precious.txt"):
        with pytest.raises(UserError, match="not a bundle"):
            bundles.save(tiny_bundle, target)
    assert (tmp_path / "precious.txt").read_text() == "mine"


@pytest.mark.parametrize("call", ["fsync", "rename"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_wherever_saving_stops_a_complete_bundle_is_found(
    call: str, nth: int, copy: Path, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    where, name = (os, "fsync") if call == "fsync" else (Path, "rename")
    original = getattr(where, name)

    def stop(*args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise KeyboardInterrupt
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(where, name, stop)
        try:
            bundles.save(tiny_bundle, copy)
        except KeyboardInterrupt:
            assert calls == nth
    assert torch.equal(logits(bundles.load(copy)), logits(tiny_bundle))
    bundles.save(tiny_bundle, copy)  # and the next attempt tidies up
    assert [path.name for path in copy.parent.iterdir()] == ["bundle"]


def test_a_full_disk_leaves_the_previous_bundle_and_says_so(
    copy: Path, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        bundles.save(tiny_bundle, copy)
    assert bundles.load(copy).meta["name"] == "tiny"


def test_a_bundle_replaced_while_it_is_read_is_read_again(
    copy: Path, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = untrusted.verify
    interruptions = iter([True])

    def replaced(folder: Path, manifest: dict, names: tuple[str, ...]) -> None:
        if next(interruptions, False):
            bundles.save(tiny_bundle, copy, dtype="float16")
        original(folder, manifest, names)

    monkeypatch.setattr(untrusted, "verify", replaced)
    assert bundles.load(copy).meta["name"] == "tiny"


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "tokenizer")
    with torch.no_grad():
        bundle.model.projection.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="finite"):
        bundles.save(bundle, tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "joint.model", "manifest.json"])
@pytest.mark.parametrize("keep", [0, 1, 0.5, -1])
def test_a_truncated_file_is_refused(copy: Path, name: str, keep: float) -> None:
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[: int(keep * len(content)) if keep == 0.5 else int(keep)])
    assert str(copy) in refusal(copy)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "joint.model"])
def test_a_single_changed_bit_is_refused(copy: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    refusal(copy)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "joint.model", "manifest.json"])
def test_a_missing_file_is_refused_by_name(copy: Path, name: str) -> None:
    (copy / name).unlink()
    assert f"{name} is missing" in refusal(copy)


def test_what_is_not_a_bundle_is_refused(tmp_path: Path) -> None:
    assert "no bundle" in refusal(tmp_path / "nowhere")
    assert "config.json is missing" in refusal(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    assert "not a bundle of Dragoman" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    assert "not JSON" in refusal(tmp_path)


def test_a_bundle_of_both_directions_keeps_them_and_its_card_names_them(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "tokenizer", both=True)
    bundles.save(bundle, tmp_path / "b")
    loaded = bundles.load(tmp_path / "b")
    assert list(map(str, loaded.directions)) == ["zh_en", "en_zh"]
    assert loaded.src_tokenizer.tag("zh") == bundle.src_tokenizer.tag("zh") != []
    card = (tmp_path / "b" / "README.md").read_text()
    assert "zh to en and en to zh" in card
    assert "--direction en_zh" in card


def test_a_bundle_that_names_no_directions_translates_src_to_tgt(copy: Path, tiny_bundle: Bundle) -> None:
    edit_config(copy, lambda config: config.pop("directions"))
    loaded = bundles.load(copy)
    assert loaded.directions == [("zh", "en")]
    assert torch.equal(logits(loaded), logits(tiny_bundle))
    assert "--direction" not in (copy / "README.md").read_text()


@pytest.mark.parametrize(
    ("named", "complaint"),
    [
        (["zh_en", "en_zh"], "no tag for en"),  # the tokenizer of this bundle has none
        (["en_zh"], "alone"),
        (["zh_en", "zh_en"], "twice"),
        (["zh_fr"], "'zh_fr'"),
        ([["zh_en"]], "no direction"),
        ([7], "'7'"),
        ("zh_en", "should be list"),
        (None, "should be list"),
        ({"zh": "en"}, "should be list"),
        (["x" * 10**6], "no direction"),
    ],
)
def test_directions_that_cannot_be_true_are_refused(copy: Path, named: object, complaint: str) -> None:
    edit_config(copy, lambda config: config.update(directions=named))
    message = refusal(copy)
    assert complaint in message
    assert len(message) < 500


def test_both_directions_take_a_joint_vocabulary(tmp_path: Path) -> None:
    bundles.save(make_bundle(tmp_path / "tokenizer", joint=False), tmp_path / "b")
    edit_config(tmp_path / "b", lambda config: config.update(directions=["zh_en", "en_zh"]))
    assert "joint vocabulary" in refusal(tmp_path / "b")


def test_a_newer_format_asks_for_a_newer_program(copy: Path) -> None:
    edit_config(copy, lambda config: config.update(format_version=2, something_new=1))
    assert "update Dragoman" in refusal(copy)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda c: c["model"].update(d_model=10**12), "d_model"),
        (lambda c: c["model"].update(d_model=65536), "larger model"),
        (lambda c: c["model"].update(n_encoder_layers=10**9), "n_encoder_layers"),
        (lambda c: c["model"].update(n_encoder_layers=0), "n_encoder_layers"),
        (lambda c: c["model"].update(n_heads=5), "n_heads"),
        (lambda c: c["model"].update(d_model=64), "larger model"),
        (lambda c: c["model"].update(d_model=16), "config.json makes it"),
        (lambda c: c["model"].update(n_decoder_layers=1), "unexpected tensor"),
        (lambda c: c["model"].update(n_encoder_layers=500), "larger model"),
        (lambda c: c["model"]["position"].update(kind="learned", length=1 << 20), "larger model"),
        (lambda c: c["model"]["position"].update(kind="learned", length=10**12), "position.length"),
        (
            lambda c: c["model"]["position"].update(kind="t5", n_buckets=1 << 22, max_distance=1 << 22),
            "larger",
        ),
        (lambda c: c["model"]["position"].update(max_distance=10**400), "position.max_distance"),
        (lambda c: c["model"].update(d_ff=65.0), "d_ff"),
        (lambda c: c["model"].update(d_ff=True), "d_ff"),
        (lambda c: c["model"].update(dropout=float("nan")), "dropout"),
        (lambda c: c["model"].update(activation="os.system"), "activation"),
        (lambda c: c["model"].update(d_modell=32), "did you mean 'd_model'"),
        (lambda c: c["model"]["position"].update(_target_="os.system"), "unknown field '_target_'"),
        (lambda c: c["model"].update(position=[]), "position"),
        (lambda c: c["search"].update(beam_size=0), "beam_size"),
        (lambda c: c["search"].update(beam_size=10**9), "beam_size"),
        (lambda c: c["search"].update(kind="sample", n_best=10**6), "n_best"),
        (lambda c: c["search"].update(max_length_a=1e300), "max_length_a"),
        (lambda c: c["search"].update(max_length_b=10**12), "max_length_b"),
        (lambda c: c["search"].update(length_penalty=1e300), "length_penalty"),
        (lambda c: c["search"].update(length_penalty=-1e3), "length_penalty"),
        (lambda c: c["search"].update(temperature=1e-300), "temperature"),
        (lambda c: c["search"].update(top_p=1e-50), "top_p"),
        (lambda c: c["search"].update(seed=-1), "seed"),
        (lambda c: c.update(src_vocab_size=10**12), "src_vocab_size"),
        (lambda c: c.update(src_vocab_size=400), "src_vocab_size"),
        (lambda c: c.update(joint=False), "src.model"),
        (lambda c: c.update(joint="../../etc"), "joint"),
        (lambda c: c.pop("tgt"), "'tgt'"),
        (lambda c: c.update(src="\x1b[31mzh\n"), r"src: '\x1b[31mzh\n' is no code"),
        (lambda c: c.update(tgt="../../etc"), "tgt: '../../etc' is no code"),
        (lambda c: c.update({"\x1b[31m": 1}), r"unknown field '\x1b[31m'"),
        (lambda c: c.update(format_version="1"), "format_version"),
        (lambda c: c.update(format_version=True), "format_version"),
    ],
)
def test_a_configuration_that_cannot_be_ours_is_refused(copy: Path, change: Callable, complaint: str) -> None:
    edit_config(copy, change)
    assert complaint in refusal(copy)


def test_a_field_added_later_takes_its_default_in_older_bundles(copy: Path, tiny_bundle: Bundle) -> None:
    edit_config(copy, lambda config: config["model"].pop("activation_dropout"))
    assert torch.equal(logits(bundles.load(copy)), logits(tiny_bundle))


@pytest.mark.parametrize(
    "weights",
    [
        lambda: pickle.dumps({"a": 1}),
        lambda: struct.pack("<Q", 2**62) + b"{}",
        lambda: struct.pack("<Q", 2) + b"{}",
        lambda: struct.pack("<Q", 60) + b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4]}}',
        lambda: b"PK\x03\x04" + bytes(100),
    ],
)
def test_files_that_only_pretend_to_be_safetensors_are_refused(copy: Path, weights: Callable) -> None:
    (copy / "model.safetensors").write_bytes(weights())
    reseal(copy)
    assert "model.safetensors" in refusal(copy)


def test_tensors_of_another_model_are_refused_by_name(copy: Path, tiny_bundle: Bundle) -> None:
    tensors = {name: tensor.clone() for name, tensor in bundles._stored_tensors(tiny_bundle.model).items()}
    for name, spoiled in [
        ("unexpected", {**tensors, "extra": torch.zeros(1)}),
        ("lacks", dict(list(tensors.items())[1:])),
        (
            "type",
            {k: v.to(torch.int64) if k == "src_embedding.table.weight" else v for k, v in tensors.items()},
        ),
    ]:
        save_file(spoiled, copy / "model.safetensors")
        reseal(copy)
        assert name in refusal(copy)


def test_a_link_out_of_the_folder_is_refused(copy: Path, tmp_path: Path) -> None:
    secret = tmp_path / "elsewhere"
    shutil.move(copy / "joint.model", secret)
    (copy / "joint.model").symlink_to(secret)
    assert "leads out" in refusal(copy)


def test_a_pipe_in_place_of_a_file_is_refused_at_once(copy: Path) -> None:
    (copy / "config.json").unlink()
    os.mkfifo(copy / "config.json")
    assert "is not a file" in refusal(copy)


def test_a_random_file_in_place_of_the_tokenizer_is_refused(copy: Path) -> None:
    (copy / "joint.model").write_bytes(bytes(range(256)) * 4)
    reseal(copy)
    assert "joint.model" in refusal(copy)


def test_the_card_may_be_edited(copy: Path) -> None:
    card = copy / "README.md"
    assert "zh to en" in card.read_text()
    card.write_text("my notes")
    bundles.load(copy)


def test_the_card_tells_what_was_recorded(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "tokenizer")
    signature = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
    bundle.meta |= {
        "data": {"corpora": ["phrasebook (CC0)"]},
        "validation": {"bleu": 35.2, "signature": signature},
    }
    bundles.save(bundle, tmp_path / "b")
    card = (tmp_path / "b" / "README.md").read_text()
    for expected in ("phrasebook (CC0)", "bleu: 35.2", signature, "translate.py --model", "Licence"):
        assert expected in card


def test_provenance_that_json_cannot_say_does_not_stop_a_save(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "tokenizer")
    bundle.meta = {"loss": float("nan"), "path": tmp_path, "pair": (1, "zh")}
    bundles.save(bundle, tmp_path / "b")
    assert bundles.load(tmp_path / "b").meta == {"loss": None, "path": str(tmp_path), "pair": [1, "zh"]}


def test_the_newest_fitting_bundle_is_chosen_and_practice_runs_never(
    tiny_bundle: Bundle, tmp_path: Path
) -> None:
    english = make_bundle(tmp_path / "tokenizer", src="en", tgt="zh")
    runs = tmp_path / "runs"
    for age, (name, bundle) in enumerate(
        [
            ("old", tiny_bundle),
            ("new", tiny_bundle),
            ("en_zh", english),
            ("smoke", tiny_bundle),
            ("copy", tiny_bundle),
        ]
    ):
        bundles.save(bundle, runs / name / "bundle")
        os.utime(runs / name / "bundle" / "config.json", (age, age))
    assert bundles.newest(runs, lambda known: known.src == "zh") == runs / "new" / "bundle"
    assert bundles.newest(runs, lambda known: True) == runs / "en_zh" / "bundle"
    with pytest.raises(UserError, match=r"no model fits French: .*en_zh"):
        bundles.newest(runs, lambda known: known.src == "fr", "French")
    bundles.save(make_bundle(tmp_path / "tagged", both=True), runs / "both" / "bundle")
    for language in ("zh", "en"):  # any of its directions will do
        assert bundles.newest(runs, lambda known: known.src == language) == runs / "both" / "bundle"  # noqa: B023


def test_a_bundle_is_found_in_the_instant_between_two_renames(tiny_bundle: Bundle, tmp_path: Path) -> None:
    folder, previous = tmp_path / "run" / "bundle", tmp_path / "run" / ".bundle.previous"
    bundles.save(tiny_bundle, previous)
    assert durable.current(folder) == previous
    assert bundles.load(folder).meta["name"] == "tiny"
    assert bundles.newest(tmp_path, lambda known: True) == previous


def test_without_any_model_the_command_that_makes_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="make train"):
        bundles.newest(tmp_path / "runs", lambda known: True)


def test_the_average_of_equals_is_their_value_and_of_two_their_middle(tiny_bundle: Bundle) -> None:
    state = dict(tiny_bundle.model.named_parameters())
    for name, tensor in bundles.average([state, state, state]).items():
        assert torch.equal(tensor, state[name])
    middle = bundles.average([{"a": torch.tensor([1.0], dtype=torch.float16)}, {"a": torch.tensor([4.0])}])
    assert middle["a"].item() == 2.5
    assert middle["a"].dtype == torch.float32


@pytest.mark.parametrize(
    ("states", "complaint"),
    [
        ([], "no checkpoints"),
        ([{"a": torch.zeros(1)}, {"b": torch.zeros(1)}], "other parameters"),
        ([{"a": torch.zeros(1)}, {"a": torch.zeros(2)}], "another shape"),
    ],
)
def test_what_cannot_be_averaged_is_refused(states: list, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        bundles.average(states)
