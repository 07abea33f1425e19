"""Whether Dragoman's way of training is still the same training: python scripts/bench_train.py --same-training

Beside `fit`, as train.py calls it, stands a loop as plain as they come: torch.nn.Transformer in fp32 over padded
batches, all logits at once into torch's cross-entropy, torch's dropout, AdamW one tensor after the other. Both start
from the same weights and see the same batches in the same order.

Without dropout nothing is left to chance, and the losses must agree step by step, up to rounding. With it they can
agree only as well as the plain loop agrees with itself when its masks fall otherwise: that is the noise they are
measured by. A run of another seed (weights, batches, masks) shows how far apart two trainings usually are.
"""

import contextlib
import dataclasses
import io
import itertools
import json
import math
import statistics
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config import Config
from dragoman.data.collate import Batch
from dragoman.data.datamodule import TranslationData
from dragoman.model.attention import Attention
from dragoman.model.transformer import Transformer
from dragoman.picture import curve_figure
from dragoman.special import PAD
from dragoman.training import fit as room
from dragoman.training.module import TranslationModule
from measured_fit import Enough, Measured, configure, vocabulary, watched
from trials import markdown, write

MAX_TOKENS = 1024  # of a batch: small ones, for many steps
EXACT = 50  # steps without dropout
POINTS = 10  # of each curve, and rows of the table: means over as many steps as lie between two
OURS, PLAIN, OTHERWISE, OTHER = "Dragoman", "plain torch", "plain torch, other masks", "Dragoman seed 2"

Losses = list[float]  # nats per target token, with label smoothing, of each step


def compare(size: str, precision: str, data: str | None, steps: int, results: Path | None) -> None:
    """Print the table; keep it, the picture and every loss in the folder `results`, if there is one."""
    asked = Measured(size=size, precision=precision, data=data, max_tokens=MAX_TOKENS)
    with tempfile.TemporaryDirectory(prefix="dragoman-same-") as folder, vocabulary(data):
        config = settled(configure(asked, Path(folder)))
        exact = [train(without_dropout(config), min(steps, EXACT)) for train in (fast, plain)]
        curves = {
            OURS: fast(config, steps),
            PLAIN: plain(config, steps),
            OTHERWISE: plain(config, steps, masks=2),
            OTHER: fast(dataclasses.replace(config, seed=2), steps),
        }
    text = page(size, config.trainer.precision, exact, curves)
    print(text, end="")
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)
        write(results / "same_training.md", text)
        write(results / "same_training.png", picture(curves))
        record = {
            "size": size,
            "precision": config.trainer.precision,
            "without dropout": exact,
            "curves": curves,
        }
        write(results / "same_training.json", json.dumps(record) + "\n")


def settled(config: Config) -> Config:
    """With a warm-up that a few hundred steps leave behind."""
    training = dataclasses.replace(config.training, lr=1e-3, warmup_steps=100)
    return room.resolved(dataclasses.replace(config, training=training))


def without_dropout(config: Config) -> Config:
    model = dataclasses.replace(config.model, dropout=0.0, activation_dropout=0.0, attention_dropout=0.0)
    return dataclasses.replace(config, model=model)


class _Losses(Callback):
    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.found: Losses = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TranslationModule)
        self.found.append(pl_module.measured["loss"])
        if len(self.found) == self.steps:
            raise Enough


def fast(config: Config, steps: int) -> Losses:
    """By fit, in a folder that is thrown away."""
    watch = _Losses(steps)
    print(f"Dragoman, {steps} steps, seed {config.seed}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="dragoman-same-") as folder, watched(watch):
        config = dataclasses.replace(config, run_dir=folder + "/run")
        with contextlib.suppress(Enough), contextlib.redirect_stdout(io.StringIO()):
            room.fit(config)
    return watch.found


def plain(config: Config, steps: int, *, masks: int | None = None) -> Losses:
    """By the plain loop; `masks`: another seed for dropout, and for nothing else."""
    print(f"plain torch, {steps} steps, seed {config.seed}", file=sys.stderr, flush=True)
    c = config.training
    with tempfile.TemporaryDirectory(prefix="dragoman-same-") as folder:
        data = TranslationData(config.data, Path(folder), config.seed)
        with contextlib.redirect_stdout(io.StringIO()):
            room.prepare(config, data)
        module = room.module_for(config, data, {}, new=True)  # the weights that fit begins with
        model = Plain(module.model)
        if masks is not None:
            torch.manual_seed(masks)
        optimizer = torch.optim.AdamW(
            model.parameters(), betas=(c.beta1, c.beta2), eps=1e-9, weight_decay=c.weight_decay, foreach=False
        )
        losses = []
        for step, batch in enumerate(itertools.islice(data.train_dataloader(), steps), start=1):
            optimizer.param_groups[0]["lr"] = module.learning_rate(step)
            logits = model(batch.src, batch.tgt_in)  # (B, T, V)
            loss = F.cross_entropy(
                logits.flatten(0, 1),
                batch.tgt_out.flatten(),
                ignore_index=PAD,
                label_smoothing=c.label_smoothing,
            )
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), c.clip_norm)
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses


class Plain(nn.Module):
    """A copy of a pre-norm Dragoman model with one matrix for all words, made of torch's own parts."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        c = model.config
        self.words = nn.Parameter(model.projection.weight.detach().clone())
        self.add_positions = model.encoder_position.embed
        self.dropout = nn.Dropout(c.dropout)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that pre-norm does without nested tensors
            self.net = nn.Transformer(
                c.d_model, c.n_heads, c.n_encoder_layers, c.n_decoder_layers, c.d_ff, c.dropout,
                batch_first=True, norm_first=True,
            )  # fmt: skip
        for stack, ours, norm in (
            (self.net.encoder, model.encoder, model.encoder_norm),
            (self.net.decoder, model.decoder, model.decoder_norm),
        ):
            stack.norm.load_state_dict(norm.state_dict())
            for layer, mine in zip(stack.layers, ours, strict=True):
                self._copy(layer, mine)
                layer.dropout.p = c.activation_dropout
                for attention in _attentions(layer):
                    attention.dropout = c.attention_dropout

    @torch.no_grad()
    def _copy(self, layer: Any, mine: Any) -> None:
        attentions = [
            mine.self_attention,
            *([mine.cross_attention] if hasattr(mine, "cross_attention") else []),
        ]
        for theirs, ours in zip(_attentions(layer), attentions, strict=True):
            assert isinstance(ours, Attention)
            theirs.in_proj_weight.copy_(torch.cat((ours.q.weight, ours.kv.weight)))
            theirs.in_proj_bias.copy_(torch.cat((ours.q.bias, ours.kv.bias)))
            theirs.out_proj.load_state_dict(ours.out.state_dict())
        for n, residual in enumerate(mine.residuals, start=1):
            getattr(layer, f"norm{n}").load_state_dict(residual.norm.state_dict())
        layer.linear1.load_state_dict(mine.feed_forward.up.state_dict())
        layer.linear2.load_state_dict(mine.feed_forward.down.state_dict())

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """(B, S), (B, T) -> logits (B, T, V)."""
        later = torch.ones(tgt_in.size(1), tgt_in.size(1), dtype=torch.bool).triu(1)
        padding = src == PAD
        states = self.net(
            self._embed(src),
            self._embed(tgt_in),
            tgt_mask=later,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return F.linear(states, self.words)

    def _embed(self, ids: Tensor) -> Tensor:
        words = F.embedding(ids, self.words, padding_idx=PAD) * math.sqrt(self.words.size(1))
        return self.dropout(self.add_positions(words, torch.arange(ids.size(1))))


def _attentions(layer: Any) -> list[nn.MultiheadAttention]:
    return [layer.self_attn, *([layer.multihead_attn] if hasattr(layer, "multihead_attn") else [])]


def points(losses: Sequence[float]) -> tuple[list[int], Losses]:
    """The curve: the steps at which equal stretches end, and their means."""
    n = max(1, len(losses) // POINTS)
    ends = list(range(n, len(losses) + 1, n))
    return ends, [statistics.fmean(losses[end - n : end]) for end in ends]


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    """How far two curves are apart, on the average of their points."""
    return statistics.fmean(abs(a - b) for a, b in zip(points(one)[1], points(other)[1], strict=True))


def page(size: str, precision: str, exact: Sequence[Losses], curves: Mapping[str, Losses]) -> str:
    """The table and what follows from it."""
    ours, theirs = exact
    farthest = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    steps = len(curves[OURS])
    ends, _ = points(curves[OURS])
    columns = zip(ends, *(points(losses)[1] for losses in curves.values()), strict=True)
    rows = [[str(end), *(f"{loss:.3f}" for loss in losses)] for end, *losses in columns]
    return (
        f"Losses of the {size} model, Dragoman in {precision}, nats per target token with smoothing, means since the "
        f"row before\n\n{markdown(['step', *curves], rows)}\n"
        f"Without dropout, {len(ours)} steps: Dragoman and plain torch differ by {farthest:.1e} at most, in a loss "
        f"that goes from {theirs[0]:.2f} to {theirs[-1]:.2f}.\n"
        f"With dropout, {steps} steps: Dragoman and plain torch are {apart(curves[OURS], curves[PLAIN]):.4f} apart on "
        f"the average, plain torch and itself under other masks {apart(curves[PLAIN], curves[OTHERWISE]):.4f}, "
        f"Dragoman and itself under another seed {apart(curves[OURS], curves[OTHER]):.4f}.\n"
    )


def picture(curves: Mapping[str, Losses]) -> bytes:
    """Dragoman's curve on top of the plain one, and that of another seed."""
    lines = {name: points(curves[name]) for name in (PLAIN, OTHER, OURS)}
    return curve_figure(lines, "step", "loss, nats per target token", "The same training")
