"""Losses of `fit` and a plain loop: python scripts/bench/same_training.py

The plain loop: torch.nn.Transformer in fp32, all logits at once into torch's cross-entropy, torch's dropout. Both start
from the same weights and see the same batches. Without dropout the losses must agree step by step, up to rounding; with
it, as well as the plain loop agrees with itself under other dropout masks.
"""

import dataclasses
import itertools
import math
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from lightning.pytorch.callbacks import LambdaCallback
from loop import train
from measure_training import NEVER, Enough, Settings, configure, fit_with
from tables import markdown
from torch import Tensor, nn
from torch.nn import functional as F
from weights import renamed

from dragoman.commands.cli import Parser, command
from dragoman.config import Config
from dragoman.model.transformer import Transformer
from dragoman.special import PAD
from dragoman.training import fit
from dragoman.training.module import learning_rate

EXACT, STEPS = 50, 300  # steps without dropout, and with it
Losses = list[float]  # nats per target token, with label smoothing, of each step


@command
def main(argv: list[str]) -> None:
    Parser(__doc__).parse_args(argv)
    # Small batches, for many steps; a warm-up that a few hundred steps leave behind.
    small = ["data.max_tokens=1024", "training.lr=1e-3", "training.warmup_steps=100"]
    fit.output_bias = lambda data: torch.zeros(len(data.tgt_tokenizer))  # the plain loss smooths over all pieces
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        print(compare(fit.resolve(configure(Settings(precision="32", overrides=small), Path(folder)))), end="")


def compare(config: Config) -> str:
    """Train without and with dropout; return the page."""
    still = dataclasses.replace(config, model=dataclasses.replace(config.model, dropout=0.0))
    ours, plain = (trained(still, EXACT) for trained in (with_fit, with_plain_torch))
    largest = max(abs(a - b) for a, b in zip(ours, plain, strict=True))
    curves = {
        "Dragoman": with_fit(config, STEPS),
        "plain torch": with_plain_torch(config, STEPS),
        "plain torch, other dropout masks": with_plain_torch(config, STEPS, masks=2),
    }
    third = STEPS // 3
    rows = [[name, f"{losses[0]:.4f}", f"{fmean(losses[-third:]):.4f}"] for name, losses in curves.items()]
    return (
        f"Nats per target token, with label smoothing. Without dropout, in {len(ours)} steps, Dragoman and plain "
        f"torch differ by {largest:.1e} at most, in a loss that goes from {plain[0]:.2f} to {plain[-1]:.2f}.\n\n"
        + markdown(["with dropout", "first loss", f"mean loss of the last {third} steps"], rows)
    )


def with_fit(config: Config, steps: int) -> Losses:
    """Train in a temporary folder; end the run after `steps`."""
    losses: Losses = []

    def collect(trainer: Any, module: Any, *_: object) -> None:
        losses.append(module.measured["loss"])
        if len(losses) == steps:
            raise Enough

    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        fit_with(dataclasses.replace(config, run_dir=f"{folder}/run"), LambdaCallback(on_train_batch_end=collect))
    return losses


def with_plain_torch(config: Config, steps: int, *, masks: int | None = None) -> Losses:
    """Train with the plain loop; `masks` is another seed for dropout alone."""
    c = config.training
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        config, data, module = fit.prepare(config, Path(folder), {})
        model = PlainTransformer(module.model)
        if masks is not None:
            torch.manual_seed(masks)
        rate = partial(learning_rate, c.schedule, peak=c.lr, warmup_steps=c.warmup_steps, max_steps=NEVER)
        batches = itertools.islice(data.train_dataloader(), steps)
        return train(model, batches, rate, label_smoothing=c.label_smoothing, eps=1e-9, weight_decay=c.weight_decay)


class PlainTransformer(nn.Module):
    """Copy of a pre-norm model with tied embeddings, made of torch.nn.Transformer."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        c = model.config
        self.emb = nn.Embedding(len(model.projection.weight), c.d_model, padding_idx=PAD)
        self.add_positions = model.encoder_position.embed
        self.dropout = nn.Dropout(c.dropout)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pre-norm has no nested tensors
            self.net = nn.Transformer(
                c.d_model, c.n_heads, c.n_encoder_layers, c.n_decoder_layers, c.d_ff, c.dropout,
                batch_first=True, norm_first=True,
            )  # fmt: skip
        weights = model.state_dict()
        for name, tensor in renamed(self.state_dict()).items():
            tensor.copy_(weights[name])
        for layer in (*self.net.encoder.layers, *self.net.decoder.layers):
            layer.dropout.p = 0.0  # inside the feed-forward
        for module in self.net.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0

    def forward(self, src: Tensor, tgt_in: Tensor, padding: Tensor) -> Tensor:
        """(B, S), (B, T), (B, S) -> logits (B, T, V)."""
        later = torch.ones(tgt_in.size(1), tgt_in.size(1), dtype=torch.bool).triu(1)
        masks = {"tgt_mask": later, "src_key_padding_mask": padding, "memory_key_padding_mask": padding}
        return F.linear(self.net(self._embed(src), self._embed(tgt_in), **masks), self.emb.weight)

    def _embed(self, ids: Tensor) -> Tensor:
        words = self.emb(ids) * math.sqrt(self.emb.embedding_dim)
        return self.dropout(self.add_positions(words, torch.arange(ids.size(1))))


if __name__ == "__main__":
    sys.exit(main())
