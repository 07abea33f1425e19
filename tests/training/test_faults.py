"""Numbers that are none, and memory that is not there: what a run does about them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dragoman.config import Config
from dragoman.data.collate import collate, pairs_of
from dragoman.data.corpus import CorpusConfig
from dragoman.data.datamodule import DataConfig
from dragoman.data.tokenizer import TokenizerConfig
from dragoman.errors import UserError
from dragoman.model.transformer import ModelConfig
from dragoman.training.checkpoint import LAST
from dragoman.training.faults import halves, out_of_memory
from dragoman.training.fit import TrainerConfig, fit
from dragoman.training.module import TrainingConfig, TranslationModule

PHRASES = Path(__file__).parents[2] / "data" / "phrasebook" / "handwritten" / "people.tsv"


@pytest.fixture
def config(tmp_path):
    lines = PHRASES.read_text(encoding="utf-8").splitlines()[:150]
    (tmp_path / "phrases.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def make(
        name: str,
        *,
        dropout: float = 0.0,
        max_steps: int = 6,
        save_minutes: float = 5.0,
        validate_every: int = 3,
        **training,
    ) -> Config:
        sizes = {"d_model": 32, "d_ff": 64, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 1}
        watching = {"log_every": 1, "validation_pairs": 2, "samples": 0}
        watching |= {"save_minutes": save_minutes, "validate_every": validate_every}
        return Config(
            name=name,
            run_dir=str(tmp_path / name),
            data=DataConfig(
                corpora=[CorpusConfig(path=str(tmp_path / "phrases.tsv"))],
                tokenizer=TokenizerConfig(kind="unigram", vocab_size=600),
                cache=str(tmp_path / "cache"),
                max_tokens=300,
                validation_size=20,
                test_size=20,
            ),
            model=ModelConfig(dropout=dropout, **sizes),
            training=TrainingConfig(**{"lr": 3e-3, "warmup_steps": 5, **training}),
            trainer=TrainerConfig(accelerator="cpu", precision="32", max_steps=max_steps, **watching),
        )

    return make


def checkpoint(config: Config) -> dict:
    return torch.load(Path(config.run_dir) / LAST, weights_only=True)


def metrics(config: Config) -> dict:
    return json.loads((Path(config.run_dir) / "metrics.json").read_text(encoding="utf-8"))


def weights(config: Config) -> dict[str, torch.Tensor]:
    return load_file(Path(config.run_dir) / "snapshots" / "step-000000006.safetensors")


def spoil(monkeypatch, when) -> None:
    """The loss of the steps that `when` names becomes NaN."""
    learn = TranslationModule._learn

    def spoilt(self, piece):
        loss = learn(self, piece)
        return loss * float("nan") if when(self.trainer.global_step + 1) else loss

    monkeypatch.setattr(TranslationModule, "_learn", spoilt)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_without_a_finite_gradient_changes_nothing_and_is_counted(
    config, monkeypatch, capsys, accumulate
):
    seen = []
    step = TranslationModule.optimizer_step

    def watched(self, *args, **kwargs):
        before = [p.detach().clone() for p in self.model.parameters()]
        step(self, *args, **kwargs)
        seen.append(all(map(torch.equal, before, self.model.parameters())))

    monkeypatch.setattr(TranslationModule, "optimizer_step", watched)
    spoil(monkeypatch, {2, 5}.__contains__)
    run = config("run", accumulate=accumulate)
    fit(run)
    assert seen == [False, True, False, False, True, False]
    assert metrics(run)["skipped"] == 2
    assert "step 2: no finite gradient; skipped (the 1. in a row)" in capsys.readouterr().err
    saved = checkpoint(run)
    assert all(tensor.isfinite().all() for tensor in saved["state_dict"].values())
    assert {int(state["step"]) for state in saved["optimizer_states"][0]["state"].values()} == {4}


def test_too_many_in_a_row_end_the_run_with_a_diagnosis_and_the_old_checkpoint(config, monkeypatch):
    spoil(monkeypatch, lambda step: step > 3)
    run = config("run", max_skipped=2)
    with pytest.raises(UserError, match=r"2 optimizer steps in a row .*\(step 5\)"):
        fit(run)
    assert checkpoint(run)["global_step"] == 3
    folder = Path(run.run_dir) / "diagnosis" / "step-000000005"
    found = json.loads((folder / "norms.json").read_text(encoding="utf-8"))
    assert found["step"] == 5
    assert found["skipped"] == 2
    assert found["parameters"][0]["not_finite"]["gradient"] > 0
    known = set(PHRASES.read_text(encoding="utf-8").splitlines())
    sentences = (folder / "batch.tsv").read_text(encoding="utf-8").splitlines()
    assert sentences
    assert all("\t" in line for line in sentences)
    assert sum(line in known for line in sentences) > len(sentences) / 2  # cleaning may have changed some


def test_the_count_in_a_row_survives_a_stop(config, monkeypatch):
    fit(config("run", max_skipped=3, max_steps=3))
    spoil(monkeypatch, lambda step: step > 3)
    with pytest.raises(UserError, match="3 optimizer steps in a row"):
        fit(config("run", max_skipped=3, save_minutes=0.0))
    assert checkpoint(config("run"))["skipped"] == [2, 2]


@pytest.mark.parametrize("between", [False, True], ids=["at a validation", "between two"])
def test_weights_that_are_no_longer_finite_are_never_saved(config, between):
    often = {"save_minutes": 0.0, "validate_every": 1000} if between else {}
    run = config("run", lr=1e38, warmup_steps=0, clip_norm=0.0, max_skipped=1000, **often)
    with pytest.raises(UserError, match="no longer finite"):
        fit(run)
    assert not (Path(run.run_dir) / LAST).exists()
    assert not list(Path(run.run_dir).rglob("*.safetensors"))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("place", ["forward", "backward"])
def test_a_batch_without_memory_is_taken_in_halves_and_the_training_stays_the_same(
    config, monkeypatch, capsys, accumulate, place
):
    whole = config("whole", accumulate=accumulate)
    fit(whole)
    states, refused = TranslationModule._teach, []

    def scarce(self, batch, model=None):
        large = self.training and batch.src.numel() + batch.tgt_in.numel() > 200
        if large and place == "forward":
            refused.append(batch)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        found = states(self, batch, model)
        if large:
            found.register_hook(no_memory)
        return found

    def no_memory(gradient):
        refused.append(gradient)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(TranslationModule, "_teach", scarce)
    halved = config("halved", accumulate=accumulate)
    fit(halved)
    assert refused
    assert "such are taken in halves from now on" in capsys.readouterr().err
    for (name, one), other in zip(weights(whole).items(), weights(halved).values(), strict=True):
        if name.endswith(
            "kv.bias"
        ):  # a bias of all keys moves no weight: its gradient is nothing but rounding
            continue
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-3, msg=name)
    told = [metrics(run)["train"] for run in (whole, halved)]
    assert told[0]["tokens"] == told[1]["tokens"]
    assert told[0]["loss"] == pytest.approx(told[1]["loss"], rel=1e-4)


def test_one_pair_that_does_not_fit_is_refused_with_the_setting_to_lower(config, monkeypatch):
    def none(self, batch, model=None):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(TranslationModule, "_teach", none)
    with pytest.raises(UserError, match=r"batch of 1 pairs .* data\.max_length"):
        fit(config("run"))


def test_other_errors_are_not_taken_for_a_lack_of_memory(config, monkeypatch):
    def broken(self, batch, model=None):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(TranslationModule, "_teach", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        fit(config("run"))


def test_a_lack_of_memory_is_known_by_what_torch_says_of_it():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert out_of_memory(caught.value)
    assert out_of_memory(MemoryError())
    assert not out_of_memory(RuntimeError("out of range"))


def test_halves_hold_every_pair_once():
    ids = [[5, 6], [7], [8, 9, 10], [11], [12]]
    batch = collate(ids, ids[::-1])
    first, second = halves(batch)
    assert len(first) == 3
    assert pairs_of(first) + pairs_of(second) == pairs_of(batch)
