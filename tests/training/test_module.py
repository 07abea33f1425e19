"""Optimizer steps under many settings, compared with plain torch."""

import copy
import itertools

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LambdaCallback
from torch.nn import functional as F

from dragoman.config import TrainingConfig
from dragoman.errors import UserError
from dragoman.special import PAD
from dragoman.training.module import TranslationModule, learning_rate

ADAMW = {"optimizer": "adamw", "lr": 1e-2, "clip_norm": 1.0, "weight_decay": 0.5, "label_smoothing": 0.2}
# Adam's step does not depend on the size of the gradient; that of SGD does.
SGD = {"optimizer": "sgd", "lr": 0.5, "clip_norm": 0.0, "weight_decay": 0.0, "label_smoothing": 0.2}
STEPS = 3


def plain_loss(model, batches, smoothing):
    """Mean cross-entropy of torch over the target tokens of all `batches`."""
    total, n = 0.0, 0
    for batch in batches:
        logits = model(batch.src, batch.tgt_in, batch.src == PAD).flatten(0, 1)
        targets = batch.tgt_out.flatten()
        total += F.cross_entropy(logits, targets, ignore_index=PAD, label_smoothing=smoothing, reduction="sum")
        n += int((targets != PAD).sum())
    return total / n


def plain_training(model, batches, c, max_steps):
    """The same steps as a loop of plain torch."""
    embeddings = {id(model.src_embedding.table.weight), id(model.tgt_embedding.table.weight)}
    matrices = [p for p in model.parameters() if p.dim() == 2 and id(p) not in embeddings]
    others = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
    groups = [{"params": matrices, "weight_decay": c.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = (
        torch.optim.AdamW(groups, betas=(c.beta1, c.beta2), eps=1e-9, foreach=False)
        if c.optimizer == "adamw"
        else torch.optim.SGD(groups, lr=1.0, momentum=c.beta1, foreach=False)
    )
    losses = []
    for step in range(max_steps):
        rate = learning_rate(c.schedule, step + 1, peak=c.lr, warmup_steps=c.warmup_steps, max_steps=max_steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = plain_loss(model, batches[step * c.accumulate : (step + 1) * c.accumulate], c.label_smoothing)
        optimizer.zero_grad()
        loss.backward()
        if c.clip_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), c.clip_norm)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "settings",
    [
        ADAMW,
        SGD,
        SGD | {"clip_norm": 0.05},
        SGD | {"accumulate": 2},
        ADAMW | {"accumulate": 2, "schedule": "cosine", "warmup_steps": 1},
    ],
    ids=["adamw", "sgd", "clipped", "accumulated", "cosine"],
)
def test_training_equals_plain_torch(settings, make_model, batches_of, train_module):
    config = TrainingConfig(**{"warmup_steps": 2, **settings})
    sizes = (3, 8, 5, 2, 6, 4)[: STEPS * config.accumulate]
    model, batches, losses = make_model(), batches_of(*sizes), []
    expected = copy.deepcopy(model)
    module = TranslationModule(model, config)
    module.max_steps = STEPS
    note = on_step(lambda: losses.append(module.measured.get("loss")))
    train_module(module, batches, callbacks=[note])
    plain = plain_training(expected, batches, config, STEPS)
    assert losses[config.accumulate - 1 :: config.accumulate] == pytest.approx(plain, rel=1e-5)
    if config.optimizer == "sgd":  # Adam turns the rounding error of a zero gradient into a whole step
        for (name, p), q in zip(model.named_parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(p, q, atol=2e-5, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


def test_only_matrices_of_layers_are_decayed(make_model, batches_of, train_module):
    """A decayed weight shrinks by lr * weight_decay = 0.1; AdamW's step is at most lr."""
    model = make_model()
    config = TrainingConfig(lr=1e-3, schedule="constant", warmup_steps=0, weight_decay=100.0)
    before = copy.deepcopy(model)
    train_module(TranslationModule(model, config), batches_of(4))
    for (name, p), old in zip(model.named_parameters(), before.parameters(), strict=True):
        shrunk = p.dim() == 2 and "embedding" not in name
        torch.testing.assert_close(p, old * (0.9 if shrunk else 1.0), atol=1.01e-3, rtol=0)


def test_the_average_moves_towards_the_weights(make_model, batches_of, train_module):
    """Step s (from 0) keeps min(ema, (1 + s) / (10 + s)) of the average."""
    model, history = make_model(), []
    module = TranslationModule(model, TrainingConfig(lr=0.1, warmup_steps=0, ema=0.5))
    keep = lambda *_: history.append([p.detach().clone() for p in model.parameters()])  # noqa: E731
    train_module(module, batches_of(*[2] * 12), callbacks=[on_step(keep)])
    average = list(make_model().parameters())
    for step, weights in enumerate(history):
        decay = min(0.5, (1 + step) / (10 + step))
        average = [decay * a + (1 - decay) * w for a, w in zip(average, weights, strict=True)]
    for ours, value in zip(module.averaged.parameters(), average, strict=True):
        torch.testing.assert_close(ours, value, atol=1e-6, rtol=1e-5)
    assert module.eval_model is module.averaged


def on_step(do):
    return LambdaCallback(on_train_batch_end=lambda *_: do())


def test_validation_loss_is_unsmoothed_and_of_the_average(make_model, batches_of, make_data):
    module = TranslationModule(make_model(dropout=0.5), TrainingConfig(ema=0.9, label_smoothing=0.3))
    with torch.no_grad():
        for p in module.model.parameters():
            p.zero_()
    batches = batches_of(3, 7)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(accelerator="cpu", enable_checkpointing=False, **quiet)
    trainer.validate(module, datamodule=make_data(batches), verbose=False)
    expected = plain_loss(module.averaged.eval(), batches, 0.0)
    assert module.validation_loss() == pytest.approx(float(expected), rel=1e-5)


def test_dropout_depends_on_seed_batch_and_rank_alone(make_model, batches_of, train_module, monkeypatch):
    """A resumed run has the same masks, whatever random numbers a validation draws."""

    def losses_of(seed, n_random=1):
        model, losses = make_model(dropout=0.5), []
        torch.manual_seed(seed)
        module = TranslationModule(model, TrainingConfig(lr=0.0))
        note = on_step(lambda: losses.append(module.measured["loss"]))
        train_module(module, batches_of(4) * 3, callbacks=[note, on_step(lambda: torch.rand(n_random))])
        return losses

    first = losses_of(1)
    assert len(set(first)) == 3
    assert losses_of(1, n_random=5) == first
    assert not set(losses_of(2)) & set(first)
    monkeypatch.setattr(Trainer, "global_rank", 1)
    assert not set(losses_of(1)) & set(first)


def spoil(module, bad_steps):
    """Make the gradients of these steps NaN."""
    parameter = next(module.model.parameters())
    parameter.register_hook(lambda g: g * float("nan") if module.trainer.global_step + 1 in bad_steps else g)


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "adafactor"])
def test_a_step_without_finite_gradient_changes_nothing(optimizer, make_model, batches_of, train_module, monkeypatch):
    module = TranslationModule(make_model(), TrainingConfig(optimizer=optimizer, warmup_steps=0))
    messages, weights = [], [[next(module.model.parameters()).detach().clone()]]
    monkeypatch.setattr("dragoman.training.module.report", messages.append)
    spoil(module, {2, 4})

    def keep():
        states = [t for s in module.trainer.optimizers[0].state.values() for n, t in s.items() if n != "step"]
        weights.append([t.detach().clone() for t in (next(module.model.parameters()), *states) if t is not None])

    train_module(module, batches_of(2, 3, 4, 5), callbacks=[on_step(keep)])
    changed = [any(not torch.equal(x, y) for x, y in zip(a, b, strict=False)) for a, b in itertools.pairwise(weights)]
    assert changed == [True, False, True, False]
    assert module.skips[0] == 2
    assert messages[0].startswith("step 2: the gradient is not finite (norm nan, learning rate 7.07e-04")
    assert len(messages) == 2


def test_too_many_skipped_steps_end_the_run(make_model, batches_of, train_module):
    module = TranslationModule(make_model(), TrainingConfig(max_skipped=2))
    spoil(module, {1, 3, 4})
    with pytest.raises(UserError, match=r"step 4: no finite gradient in 2 optimizer steps in a row.*training\.lr"):
        train_module(module, batches_of(2, 3, 4, 5, 6))
