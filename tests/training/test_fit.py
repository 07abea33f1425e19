"""Training runs: their files, messages and errors."""

import itertools
import json
import os
import signal
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dragoman import bundle
from dragoman.config import CorpusConfig, EmbeddingConfig
from dragoman.errors import UserError
from dragoman.training import fit as fit_module
from dragoman.training import progress
from dragoman.training.fit import Stopped, fit, preflight, resolve
from dragoman.training.run import open_run


def test_a_finished_run_leaves_its_files(straight, metrics_of):
    names = {
        "bundle", "cleaning.json", "config.yaml", "csv", "last.ckpt", "last.ckpt.sha256", "metrics.json",
        "snapshots", "tensorboard", "train.log", "validation.json",
    }  # fmt: skip
    assert names <= {path.name for path in straight.iterdir()}
    metrics = metrics_of(straight)
    assert (metrics["finished"], metrics["step"], metrics["skipped"]) == ("max_steps", 12, 0)
    assert [record["step"] for record in metrics["validations"]] == [5, 10, 12]
    losses = [record["loss"] for record in metrics["validations"]]
    assert losses[-1] < losses[0]
    assert yaml.safe_load((straight / "config.yaml").read_text())["training"]["ema"] == 0.9


def test_the_bundle_has_the_best_weights(straight, metrics_of, corpus):
    trained = bundle.load(straight / "bundle")
    assert trained.meta["validation"] == metrics_of(straight)["best"]
    assert trained.meta["data"]["train_pairs"] == 156
    snapshot = load_file(straight / "snapshots" / f"step-{metrics_of(straight)['best']['step']:09d}.safetensors")
    for name, tensor in trained.model.named_parameters():
        assert torch.equal(tensor, snapshot[name])
    sources = [path.read_text(encoding="utf-8").splitlines()[1:] for path in corpus.glob("*/train.tsv")]
    ids = trained.src_tokenizer.encode_batch([line.split("\t")[0] for line in itertools.chain(*sources)])
    assert trained.meta["usual_length"] == pytest.approx(max(map(len, ids)), abs=1)


def test_snapshots_hold_the_validated_weights(straight, checkpoint_of):
    assert {path.stem for path in (straight / "snapshots").iterdir()} == {"step-000000010", "step-000000012"}
    state = checkpoint_of(straight)["state_dict"]
    for name, tensor in load_file(straight / "snapshots" / "step-000000012.safetensors").items():
        assert torch.equal(tensor, state[f"averaged.{name}"])


def test_loggers_get_curves_samples_and_pictures(straight):
    tags = EventAccumulator(str(straight / "tensorboard")).Reload().Tags()
    names = ("loss", "perplexity", "learning_rate", "gradient_norm", "tokens_per_second")
    assert {f"train/{name}" for name in names} <= set(tags["scalars"])
    scores = ("loss", "perplexity", "bleu", "chrf", "exact", "bleu_farm", "exact_town")
    assert {f"validation/{name}" for name in scores} <= set(tags["scalars"])
    assert "samples/text_summary" in tags["tensors"]
    assert tags["images"] == ["attention/1"]
    table = (straight / "csv" / "version_0" / "metrics.csv").read_text()
    assert "validation/bleu_farm" in table.splitlines()[0]


def test_each_validation_is_one_line(straight):
    log = (straight / "train.log").read_text(encoding="utf-8")
    lines = [line for line in log.splitlines() if "validation loss" in line]
    assert len(lines) == 3
    assert "(best so far by bleu: kept)" in lines[0]
    assert "bleu 0.00 (farm 0.00, town 0.00)" in lines[0]
    assert "no CTranslate2 export" in log


def test_a_finished_run_says_so(straight, runs, capsys):
    config = runs.config("straight")
    config.run_dir = str(straight)
    before = (straight / "last.ckpt").stat().st_mtime_ns
    assert fit(config) == straight / "bundle"
    assert "is finished (max_steps at step 12)" in capsys.readouterr().out
    assert (straight / "last.ckpt").stat().st_mtime_ns == before


def test_changed_settings_are_an_error_with_their_names(straight, runs):
    config = runs.config("straight", training={"lr": 0.01}, trainer={"log_every": 7, "max_steps": 20})
    config.run_dir = str(straight)
    with pytest.raises(UserError, match=r"other settings: training\.lr \(was 0\.003, now 0\.01\)\. Choose"):
        fit(config)


def test_more_steps_resume_and_log_no_step_twice(runs, metrics_of, capsys):
    small = {"samples": 0, "loggers": ["tensorboard"], "validate_every": 50}
    run = runs.fit("run", trainer=small | {"max_steps": 3, "save_minutes": 0.0})
    (run / "last.ckpt").unlink()  # it resumes after step 2, and logs step 3 again
    # As from another version: one setting missing, one unknown.
    saved = yaml.safe_load((run / "config.yaml").read_text())
    del saved["training"]["max_skipped"]
    saved["training"]["average_last"] = 0
    (run / "config.yaml").write_text(yaml.safe_dump(saved))
    runs.fit("run", trainer=small | {"max_steps": 4, "validate_every": 40})
    assert "resuming" in capsys.readouterr().err
    assert (metrics_of(run)["step"], metrics_of(run)["finished"]) == (4, "max_steps")
    events = EventAccumulator(str(run / "tensorboard")).Reload().Scalars("train/loss")
    assert [event.step for event in events] == [1, 2, 3, 4]


def test_changed_data_is_an_error(runs, tmp_path):
    corpus = tmp_path / "corpus.tsv"
    lines = [f"这是第{n}个句子。\tThis is sentence {n}." for n in range(60)]
    corpus.write_text("\n".join(lines))
    data = {"corpora": [CorpusConfig(path=str(corpus))], "cache": str(tmp_path / "cache"), "max_ratio": 0}
    small = {"max_steps": 1, "loggers": []}
    runs.fit("run", trainer=small, **data)
    corpus.write_text("\n".join(lines[:-1]))
    with pytest.raises(UserError, match="the data has changed since the run began"):
        runs.fit("run", trainer=small | {"max_steps": 2}, **data)


def test_a_folder_that_is_no_run_is_left_alone(runs):
    folder = runs.folder / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="not empty and not a run"):
        runs.fit("mine")
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


def test_another_process_may_prepare_the_data_first(runs):
    folder = runs.folder / "run"
    folder.mkdir()
    (folder / "data.json").touch()
    open_run(runs.config("run"), folder)


def test_patience_stops_the_run_and_says_so(runs, metrics_of, capsys):
    stuck = {"training": {"lr": 0.0, "ema": 0.0, "patience": 2, "accumulate": 1}}
    stuck["trainer"] = {"max_steps": 500, "validate_every": 1, "loggers": [], "validation_pairs": 2}
    run = runs.fit("run", **stuck)
    assert (metrics_of(run)["finished"], metrics_of(run)["step"]) == ("early stopping", 3)
    assert "stopped early: 2 validations without a better bleu" in capsys.readouterr().err
    runs.fit("run", **stuck)
    assert "is finished (early stopping at step 3)" in capsys.readouterr().out
    (run / "metrics.json").write_text('{"step": 3}')  # killed before its end
    runs.fit("run", **stuck)
    assert (metrics_of(run)["finished"], metrics_of(run)["step"]) == ("early stopping", 3)


@pytest.mark.slow
def test_max_time_ends_the_run_and_more_time_resumes(runs, metrics_of):
    small = {"validate_every": 10_000, "max_steps": 100_000, "loggers": [], "validation_pairs": 2}
    first = metrics_of(runs.fit("run", trainer=small | {"max_time": "00:00:00:01"}))
    assert first["finished"] == "max_time"
    more = {"max_time": "00:01:00:00", "max_steps": first["step"] + 2}
    second = metrics_of(runs.fit("run", trainer=small | more))
    assert (second["finished"], second["step"]) == ("max_steps", first["step"] + 2)
    assert second["seconds"] > first["seconds"] >= 1


@pytest.mark.parametrize("validate_every", [5, 10_000])
def test_without_max_steps_the_schedule_ends_with_the_time(
    validate_every, runs, at_step, metrics_of, capsys, monkeypatch
):
    """The steps are planned once, and a run that resumes keeps their number."""
    # Each call of this clock adds 0.01 s, so the result is the same on any machine.
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=itertools.count(0, 0.01).__next__))
    settings = {"training": {"schedule": "cosine"}}
    settings["trainer"] = {"max_steps": None, "max_time": "00:00:00:01", "loggers": [], "validation_pairs": 2}
    settings["trainer"]["validate_every"] = validate_every
    stop = at_step(12, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped):
        runs.fit("run", **settings | {"trainer": settings["trainer"] | stop})
    planned = capsys.readouterr().err
    metrics = metrics_of(runs.fit("run", **settings))
    assert f"{metrics['step']:,} steps will fit" in planned
    assert "steps will fit" not in capsys.readouterr().err
    assert metrics["finished"] == "max_time"
    assert metrics["seconds"] == pytest.approx(1, abs=0.25)
    assert metrics["train"]["learning_rate"] < 1e-4  # the peak is 3e-3
    runs.fit("run", **settings)
    assert "is finished" in capsys.readouterr().out


def test_automatic_values_are_chosen_once(runs, at_step, metrics_of):
    def run(max_steps, **stop):
        model = {"dropout": None, "embedding": EmbeddingConfig(init="lexicon")}
        training = dict.fromkeys(("lr", "warmup_steps", "weight_decay", "ema"))
        trainer = {"max_steps": max_steps, "validate_every": max_steps, "loggers": []} | stop
        return runs.fit("run", model=model, training=training, trainer=trainer)

    folder = run(2)
    first, dropout = metrics_of(folder), bundle.load_info(folder).model_config.dropout
    with pytest.raises(Stopped):
        run(120, validate_every=4, **at_step(6, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    assert metrics_of(folder)["recipe"] == first["recipe"]
    assert first["recipe"]["model.dropout"] == dropout == bundle.load_info(folder).model_config.dropout
    assert 0 < first["vectors"]["covered"] < first["vectors"]["pieces"]


def test_each_side_has_its_own_vocabulary(runs):
    small = {"max_steps": 20, "validate_every": 20, "loggers": []}
    config = runs.config("run", model={"tie": "tgt"}, trainer=small, training={"optimizer": "adamw"})
    config.data.tokenizer.vocabulary = "separate"
    run = fit(config).parent
    texts = json.loads((run / "validation.json").read_text(encoding="utf-8"))["zh_en"]
    assert "".join(texts["hypotheses"]).isascii()
    info = bundle.load_info(run)
    for tokenizer, own, other in ((info.src_tokenizer, "茶", "w"), (info.tgt_tokenizer, "w", "茶")):
        assert not any("<0x" in piece for piece in tokenizer.pieces(tokenizer.encode(own)))
        assert any("<0x" in piece for piece in tokenizer.pieces(tokenizer.encode(other)))


def test_a_run_starts_from_a_bundle_and_keeps_it_until_better(runs, straight, metrics_of, capsys):
    harmful = {"optimizer": "sgd", "lr": 50.0, "clip_norm": 0.0, "monitor": "loss"}
    worse = {"trainer": {"max_steps": 2, "validate_every": 2, "loggers": []}, "training": harmful}
    run = runs.fit("adapted", init_from=str(straight), **worse)
    before, after = metrics_of(run)["validations"]
    assert (before["step"], after["step"]) == (0, 2)
    assert before["loss"] == pytest.approx(metrics_of(straight)["best"]["loss"])
    assert after["loss"] > before["loss"]
    line = next(line for line in capsys.readouterr().err.splitlines() if "to the best model" in line)
    assert all(f"bleu_{part} {before[f'bleu_{part}']:.2f} to" in line for part in ("farm", "town"))
    old, new = bundle.load(straight / "bundle"), bundle.load(run / "bundle")
    assert old.src_tokenizer.sha256 == new.src_tokenizer.sha256
    assert new.meta["validation"]["step"] == 0
    assert all(torch.equal(a, b) for a, b in zip(old.model.parameters(), new.model.parameters(), strict=True))
    runs.fit("adapted", init_from=str(straight), **worse)
    with pytest.raises(UserError, match="translates zh_en, but data has en_zh"):
        runs.fit("other", init_from=str(straight), src="en", tgt="zh", **worse)


def test_both_directions_have_their_own_columns(runs, metrics_of):
    small = {"max_steps": 1, "loggers": [], "metrics": ["chrf"]}
    run = runs.fit("run", trainer=small, training={"monitor": "chrf_en_zh"}, directions=["zh_en", "en_zh"])
    record = metrics_of(run)["best"]
    columns = ["", "_zh_en", "_en_zh", "_farm", "_town"]
    assert {f"{name}{column}" for name in ("chrf", "exact") for column in columns} <= record.keys()
    assert record["chrf"] == pytest.approx((record["chrf_zh_en"] + record["chrf_en_zh"]) / 2, abs=1e-3)
    assert {str(direction) for direction in bundle.load_info(run).directions} == {"zh_en", "en_zh"}


def test_unknown_kinds_are_an_error_before_any_work(runs):
    for section, setting, message in (
        ("training", {"optimizer": "adamv"}, r"training\.optimizer=adamv: .*adamw.*did you mean 'adamw'"),
        ("training", {"schedule": "cosin"}, r"training\.schedule=cosin: .*'cosine'"),
        ("trainer", {"metrics": ["blue"]}, r"trainer\.metrics=blue"),
        ("training", {"monitor": "blue"}, r"training\.monitor=blue: choose one of loss, bleu, chrf, exact"),
        ("trainer", {"loggers": ["tensorbord"]}, r"trainer\.loggers=tensorbord: .*tensorboard"),
        ("trainer", {"devices": 999, "accelerator": "gpu"}, r"trainer\.devices=999: torch finds \d+ GPUs"),
        ("model", {"activation": "tanhh"}, r"model\.activation=tanhh"),
        ("training", {"monitor": "bleu_fram"}, r"monitor=bleu_fram: .*bleu_farm.*did you mean 'bleu_farm'"),
    ):
        with pytest.raises(UserError, match=message):
            runs.fit("run", **{section: setting})
        assert not (runs.folder / "run").exists()


def test_a_position_table_must_reach_the_longest_sentence(runs):
    config = runs.config("run")
    config.model.position.kind, config.model.position.length = "learned", 20
    with pytest.raises(UserError, match=r"model\.position\.length=20: .*data\.max_length=40"):
        resolve(config)


def test_a_run_needs_validation_pairs(runs, tmp_path):
    corpus = tmp_path / "corpus.tsv"
    corpus.write_text("\n".join(f"这是第{n}个句子。\tThis is sentence {n}." for n in range(60)))
    with pytest.raises(UserError, match=r"no validation pairs.*data\.validation_size"):
        runs.fit("run", corpora=[CorpusConfig(path=str(corpus))], validation_size=0, max_ratio=0)


@pytest.mark.parametrize("begin", [fit, preflight])
def test_no_memory_names_the_setting_to_lower(runs, monkeypatch, begin):
    no_memory = torch.OutOfMemoryError("CUDA out of memory")
    monkeypatch.setattr(fit_module.Trainer, "fit", Mock(side_effect=no_memory))
    with pytest.raises(UserError, match=r"data\.max_tokens=120: no memory for a batch of this size"):
        begin(runs.config("run"))


def test_a_finished_run_is_exported(runs, capsys):
    pytest.importorskip("ctranslate2")
    small = {"max_steps": 1, "loggers": []}
    run = runs.fit("run", model={"score": "scaled_dot"}, trainer=small)
    assert (run / "bundle" / "ctranslate2" / "model.bin").exists()
    assert "sentences verified against torch" in capsys.readouterr().err


def test_a_failed_export_is_only_a_note(runs, monkeypatch, capsys, metrics_of):
    monkeypatch.setattr(fit_module, "export_bundle", Mock(side_effect=RuntimeError("no room")))
    run = runs.fit("run", trainer={"max_steps": 1, "loggers": []})
    assert "no CTranslate2 export: no room" in capsys.readouterr().err
    assert metrics_of(run)["finished"] == "max_steps"


def test_word_vectors_start_the_embeddings_of_a_new_run(runs, tmp_path, metrics_of):
    pytest.importorskip("gensim")
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("2 16\n" + "\n".join(f"{word} " + " ".join(["0.5"] * 16) for word in ("我", "like")) + "\n")
    config = runs.config("run", trainer={"max_steps": 1, "loggers": []})
    config.model.embedding.init = str(vectors)
    fit(config)
    covered = metrics_of(runs.folder / "run")["vectors"]["covered"]
    assert sum(covered.values()) > 0
    vectors.unlink()
    config.trainer.max_steps = 2
    fit(config)


def test_bf16_is_trained_by_autocast(runs, checkpoint_of, capsys):
    run = runs.fit("run", trainer={"max_steps": 2, "loggers": [], "precision": "bf16"})
    assert "bf16-mixed on 1 cpu" in capsys.readouterr().err
    assert all(t.dtype == torch.float32 for t in checkpoint_of(run)["state_dict"].values())
