"""A run, as its user meets it: it learns, it goes on exactly where it stopped, it refuses what would spoil it."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch import Callback
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dragoman import bundle
from dragoman.errors import UserError
from dragoman.languages import reads
from dragoman.model.transformer import ModelConfig
from dragoman.training import fit as room
from dragoman.training.checkpoint import LAST
from dragoman.training.fit import fit
from dragoman.training.module import TrainingConfig, TranslationModule
from dragoman.training.run import lock
from dragoman.training.signals import Stopped
from dragoman.translator import Translator
from runs import assert_same_state, checkpoint


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("stops", [(5,), (3,), (3, 8)], ids=str)
def test_a_run_continued_equals_a_run_that_never_stopped(config, stops, accumulate):
    training = {"accumulate": accumulate}
    straight = config("straight", training=training)
    fit(straight)
    for stop in (*stops, 12):
        broken = config("broken", training=training, trainer={"max_steps": stop})
        fit(broken)
    assert_same_state(straight, broken)


@pytest.mark.parametrize("at", [4, 5], ids=["between validations", "when one is due"])
def test_a_signal_saves_within_a_step_and_the_run_goes_on_as_if_nothing_had_been(config, at, monkeypatch):
    straight, broken = config("straight"), config("broken")
    fit(straight)

    class Nudge(Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == at:
                os.kill(os.getpid(), signal.SIGTERM)

    made = room.trainer_for
    monkeypatch.setattr(room, "trainer_for", lambda c, r, callbacks, s: made(c, r, [Nudge(), *callbacks], s))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped) as stopped:
        fit(broken)
    assert stopped.value.signum == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
    assert checkpoint(broken)["global_step"] == at
    monkeypatch.undo()
    fit(broken)
    assert_same_state(straight, broken)
    histories = [
        json.loads(Path(c.run_dir, "metrics.json").read_text())["validations"] for c in (straight, broken)
    ]
    assert [r["step"] for r in histories[0]] == [r["step"] for r in histories[1]]
    assert [r["loss"] for r in histories[0]] == [r["loss"] for r in histories[1]]


def test_worker_processes_change_nothing(config):
    alone, helped = config("alone"), config("helped", workers=2)
    fit(alone)
    fit(helped)
    assert_same_state(alone, helped)


def test_a_run_learns_and_leaves_all_that_it_promises(config):
    longer = config(
        trainer={"max_steps": 60, "validate_every": 20, "samples": 2}, training={"average_last": 2}
    )
    folder = fit(longer)
    run = Path(longer.run_dir)
    for name in (
        "config.yaml",
        "metrics.json",
        "cleaning.json",
        "train.log",
        LAST,
        "bundle",
        "snapshots",
        "curve.png",
    ):
        assert (run / name).exists(), name
    board = EventAccumulator(str(run / "tensorboard")).Reload().Tags()
    curves = ("loss", "perplexity", "learning_rate", "gradient_norm", "tokens_per_second", "padding_share")
    assert {f"train/{name}" for name in curves} <= set(board["scalars"])
    assert {f"validation/{name}" for name in ("loss", "perplexity", "bleu", "chrf")} <= set(board["scalars"])
    assert "samples/text_summary" in board["tensors"]
    assert "attention/1" in board["images"]
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["finished"] == "max_steps"
    losses = [record["loss"] for record in metrics["validations"]]
    assert losses[-1] < losses[0]
    assert metrics["best"]["signature"].startswith("nrefs:")
    assert bundle.load(folder).meta["name"] == "run"
    assert (
        Translator.load(folder).engine.name == "ctranslate2"
    )  # its export is made by the way, and preferred


def test_one_model_learns_both_directions_and_translates_either_way(config):
    learning = config(
        trainer={"max_steps": 6, "validate_every": 3, "samples": 2}, directions=["zh_en", "en_zh"]
    )
    folder = fit(learning)
    run = Path(learning.run_dir)
    record = json.loads((run / "metrics.json").read_text(encoding="utf-8"))["best"]
    for score in ("bleu", "chrf"):
        mean = (record[f"{score}_zh_en"] + record[f"{score}_en_zh"]) / 2
        assert record[score] == pytest.approx(mean, abs=1e-3)
    assert "tok:13a" in record["signature_zh_en"]
    assert "tok:zh" in record["signature_en_zh"]
    said = f"bleu {record['bleu']:.2f} (zh_en {record['bleu_zh_en']:.2f}, en_zh {record['bleu_en_zh']:.2f})"
    assert said in (run / "train.log").read_text(encoding="utf-8")
    board = EventAccumulator(str(run / "tensorboard")).Reload()
    assert {"validation/bleu", "validation/bleu_zh_en", "validation/chrf_en_zh"} <= set(
        board.Tags()["scalars"]
    )
    samples = board.Tensors("samples/text_summary")[-1].tensor_proto.string_val[0].decode().splitlines()[2:]
    assert [reads("zh", line.split("|")[1]) for line in samples] == [True, False]
    translator = Translator.load(folder, "cpu")
    for text, direction in (("你好", "zh_en"), ("Hello", "en_zh")):
        chosen = translator.translate([text])
        assert chosen == translator.translate([text], direction=direction)
    with pytest.raises(UserError, match=r"data\.directions"):  # a run is of one kind or the other
        fit(config())


def test_the_resumed_board_has_no_step_twice(config):
    fit(config(trainer={"max_steps": 4}))
    fit(config())
    board = EventAccumulator(str(Path(config().run_dir) / "tensorboard")).Reload()
    steps = [event.step for event in board.Scalars("train/loss")]
    assert steps == sorted(set(steps)) == list(range(2, 13, 2))


def test_two_processes_do_not_train_in_one_folder(config):
    with lock(Path(config().run_dir)), pytest.raises(UserError, match="another process is training"):
        fit(config())


def test_a_run_that_ended_has_let_go_of_its_folder_whoever_still_knows_it(tmp_path):
    ended = lock(tmp_path / "run")
    with ended:
        pass
    with lock(tmp_path / "run"):
        pass


def test_a_finished_run_says_so_and_does_nothing(config, capsys):
    fit(config())
    before = (Path(config().run_dir) / LAST).stat().st_mtime_ns
    capsys.readouterr()
    fit(config())
    assert "is finished" in capsys.readouterr().out
    assert (Path(config().run_dir) / LAST).stat().st_mtime_ns == before


def test_a_changed_configuration_is_refused_by_naming_what_changed(config):
    fit(config(trainer={"max_steps": 2}))
    with pytest.raises(UserError, match=r"training.lr \(was 0.003, now 0.01\)"):
        fit(config(training={"lr": 0.01}))
    fit(config(trainer={"max_steps": 3, "log_every": 1, "validate_every": 2}, workers=1))


def test_a_run_begun_before_there_was_a_setting_goes_on_with_its_default(config):
    fit(config(trainer={"max_steps": 2}))
    saved = Path(config().run_dir) / "config.yaml"
    content = yaml.safe_load(saved.read_text(encoding="utf-8"))
    del content["data"]["directions"]
    saved.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    with pytest.raises(UserError, match=r"data\.directions"):
        fit(config(trainer={"max_steps": 3}, directions=["zh_en", "en_zh"]))
    fit(config(trainer={"max_steps": 3}))
    assert checkpoint(config())["global_step"] == 3


def test_a_folder_that_is_not_a_run_is_left_alone(config):
    mine = Path(config().run_dir)
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="not a run of ours"):
        fit(config())
    assert [p.name for p in mine.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    "average", [{"a": 1}, {"step": 1, "loss": "small"}, {"step": 1, "loss": 1.0, "bleu": None}, "x"]
)
def test_a_record_that_no_run_writes_is_refused_by_name(config, average):
    fit(config(trainer={"max_steps": 2}))
    metrics = Path(config().run_dir) / "metrics.json"
    metrics.write_text(json.dumps({"validations": 5, "best": "x", "average": average}))
    with pytest.raises(UserError, match=r"metrics\.json: 'average' is not what a run writes"):
        fit(config())


@pytest.mark.parametrize("name", ["train.log", "tensorboard", "snapshots"])
def test_a_file_in_place_of_a_folder_or_the_other_way_round_is_named(config, name):
    fit(config(trainer={"max_steps": 2}))
    place = Path(config().run_dir) / name
    if place.is_dir():
        shutil.rmtree(place)
        place.write_text("a file")
    else:
        place.unlink()
        place.mkdir()
    with pytest.raises(UserError, match=f"cannot write .*{name}.*: (File exists|Is a directory)"):
        fit(config())


def test_the_time_limit_ends_the_run_and_a_longer_one_goes_on(config):
    steps, seconds = [], 1
    for _ in range(2):
        fit(config(trainer={"max_time": f"00:00:00:{seconds:02}", "max_steps": 100_000}))
        metrics = json.loads((Path(config().run_dir) / "metrics.json").read_text(encoding="utf-8"))
        assert metrics["finished"] == "max_time"
        assert metrics["step"] == checkpoint(config())["global_step"]
        steps.append(metrics["step"])
        seconds = int(metrics["seconds"]) + 2  # a busy machine overruns the limit by the length of a step
    assert 0 < steps[0] < steps[1]


def test_early_stopping_ends_the_run_when_nothing_gets_better(config):
    stuck = config(
        training={"lr": 0.0, "ema": 0.0, "patience": 2}, trainer={"max_steps": 500, "validate_every": 1}
    )
    fit(stuck)
    metrics = json.loads((Path(stuck.run_dir) / "metrics.json").read_text(encoding="utf-8"))
    assert (metrics["finished"], metrics["step"]) == ("early stopping", 3)


def test_a_broken_checkpoint_is_named_and_not_overwritten(config):
    fit(config(trainer={"max_steps": 2}))
    path = Path(config().run_dir) / LAST
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"last\.ckpt"):
        fit(config())
    assert path.stat().st_size == 1000


def test_gathering_gradients_over_uneven_batches_equals_one_large_batch(config):
    """The mean of means would weigh a token of the short batch more."""
    from dragoman.data.collate import collate
    from dragoman.model.transformer import Transformer
    from dragoman.training.module import TranslationModule

    rows = [[5, 6, 7], [8, 9], [10, 11, 12, 13, 14, 15, 16]]
    whole, parts = [collate(rows, rows)], [collate(rows[:1], rows[:1]), collate(rows[1:], rows[1:])]

    class Trainer:
        world_size, global_step, precision = 1, 0, "32-true"
        datamodule = type("Data", (), {"consumed": 0})()

    def gradients(batches: list) -> list:
        torch.manual_seed(1)
        shape = ModelConfig(
            d_model=16, d_ff=32, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, dropout=0.0
        )
        model = Transformer(shape, src_vocab_size=20, tgt_vocab_size=20)
        settings = TrainingConfig(accumulate=len(batches), clip_norm=0.0)
        module = TranslationModule(model, settings, max_steps=10)
        module._trainer = Trainer()  # what Lightning would give
        module._fabric = None
        for batch in batches:
            (module.training_step(batch, 0) / len(batches)).backward()  # Lightning's own division
        module.on_before_optimizer_step(module.configure_optimizers())
        return [p.grad for p in model.parameters()]

    for one, two in zip(gradients(whole), gradients(parts), strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_new_step_begins_without_gradients_and_keeps_what_it_gathers(config, accumulate, monkeypatch):
    """They would take memory beside the activations, and scatter them."""
    found = []
    learn = TranslationModule._learn

    def watched(self, piece):
        found.append(sum(parameter.grad is not None for parameter in self.model.parameters()))
        return learn(self, piece)

    monkeypatch.setattr(TranslationModule, "_learn", watched)
    fit(config("run", training={"accumulate": accumulate}, trainer={"max_steps": 3}))
    assert len(found) == 3 * accumulate
    assert not any(found[::accumulate])
    assert accumulate == 1 or all(found[1::2])


def test_snapshots_hold_the_weights_that_were_validated(config):
    fit(config())
    newest = sorted((Path(config().run_dir) / "snapshots").iterdir())[-1]
    shipped = {
        k.removeprefix("averaged."): v
        for k, v in checkpoint(config())["state_dict"].items()
        if "averaged" in k
    }
    for name, tensor in load_file(newest).items():
        assert torch.equal(tensor, shipped[name])


@pytest.mark.slow
def test_a_compiled_run_continued_equals_one_that_never_stopped(config, set_threads):
    """On one thread: on several, compiled by torch 2.13, no two runs are equal."""
    if not shutil.which("g++"):
        pytest.skip("torch.compile needs a compiler")
    set_threads(1)
    straight = config("straight", trainer={"compile": True})
    fit(straight)
    for stop in (4, 12):
        broken = config("broken", trainer={"compile": True, "max_steps": stop})
        fit(broken)
    assert_same_state(straight, broken)
