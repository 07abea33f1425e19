"""Automatic settings: a choice for each null, given values unchanged."""

import dataclasses
from types import SimpleNamespace

import pytest

from dragoman import compose
from dragoman.training import recipe


def completed(*overrides: str, pairs: int = 45_000, tokens: int = 450_000, chosen=None):
    config = compose.compose(["experiment=zh_en", "trainer.accelerator=cpu", *overrides])
    data = SimpleNamespace(train_size=pairs, lengths=[None, SimpleNamespace(sum=lambda: tokens)])
    chosen = {} if chosen is None else chosen
    return recipe.complete(config, data, chosen), chosen


def nulls(config) -> set[str]:
    parts = {name: getattr(config, name) for name in ("data", "model", "training")}
    return {f"{name}.{key}" for name, part in parts.items() for key, value in vars(part).items() if value is None}


def test_every_null_is_chosen_and_explained(capsys):
    config, chosen = completed()
    lines = capsys.readouterr().err.splitlines()
    assert nulls(config) == {"data.root"}
    assert set(chosen) == nulls(compose.compose(["experiment=zh_en"])) - {"data.root"}
    for key in chosen:
        assert sum(f"{key}=" in line for line in lines) == 1


def test_a_given_value_is_used():
    given = "model=base", "model.dropout=0.25", "training.lr=1e-4", "data.max_tokens=2000"
    config, chosen = completed(*given)
    assert (config.model.d_model, config.model.dropout) == (512, 0.25)
    assert (config.training.lr, config.data.max_tokens) == (1e-4, 2000)
    assert not {"model.d_model", "model.dropout", "training.lr", "data.max_tokens"} & set(chosen)


def test_a_resumed_run_keeps_its_values():
    _, chosen = completed("trainer.max_time=00:00:10:00")
    config, again = completed("trainer.max_time=00:10:00:00", chosen=dict(chosen))
    assert again == chosen
    assert config.model.dropout == chosen["model.dropout"]


def test_more_epochs_mean_more_regularisation():
    few, many = (completed(tokens=tokens)[0] for tokens in (10_000_000, 100_000))
    assert few.model.dropout < many.model.dropout
    assert few.training.weight_decay < many.training.weight_decay


def test_a_larger_model_sees_fewer_epochs_on_a_cpu():
    small, base = (completed(f"model={name}", tokens=500_000)[0] for name in ("small", "base"))
    assert base.model.dropout < small.model.dropout
    assert base.data.max_tokens < small.data.max_tokens


def test_a_large_corpus_on_a_gpu_gets_a_larger_model():
    config = compose.compose(["experiment=zh_en"])
    trainer = dataclasses.replace(config.trainer, accelerator="gpu")
    data = SimpleNamespace(train_size=1_000_000, lengths=[None, SimpleNamespace(sum=lambda: 10_000_000)])
    large = recipe.complete(dataclasses.replace(config, trainer=trainer), data, {})
    assert large.model.d_model > completed()[0].model.d_model
    assert large.data.max_tokens > completed()[0].data.max_tokens


def test_more_devices_see_more_epochs():
    config = compose.compose(["experiment=zh_en"])
    data = SimpleNamespace(train_size=100_000, lengths=[None, SimpleNamespace(sum=lambda: 200_000_000)])
    one, four = (dataclasses.replace(config.trainer, accelerator="gpu", devices=n) for n in (1, 4))
    few, many = (recipe.complete(dataclasses.replace(config, trainer=t), data, {}) for t in (one, four))
    assert few.model.dropout < many.model.dropout


def test_rate_warmup_and_average_follow_from_width_and_steps():
    limits = "trainer.max_steps=500", "trainer.max_steps=5000", "trainer.max_time=00:00:01:00"
    few, many, minute = (completed("trainer.max_time=01:00:00:00", limit)[0].training for limit in limits)
    assert (few.warmup_steps, many.warmup_steps, minute.warmup_steps) == (100, 500, 100)
    assert (few.ema, many.ema) == (0.96, 0.996)
    assert few.lr == pytest.approx(2 * completed("training.optimizer=adamw")[0].training.lr)
    assert completed("init_from=x")[0].training.lr == 3e-4 < few.lr
