"""One training step and one validation, as Lightning sees them: teacher forcing, and an honest denominator.

The loss is per target token over everything one optimizer step saw: all its micro-batches, on all devices. Lightning
averages over micro-batches and DDP over devices, which would weigh a short batch like a long one; so the step
back-propagates sums, and the gradients are divided by the true number of tokens just before they are used.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from dragoman.data.collate import Batch
from dragoman.errors import UserError, suggest
from dragoman.model.transformer import Transformer
from dragoman.training.loss import projected_loss
from dragoman.training.packing import segments_of
from dragoman.training.schedule import SCHEDULES, learning_rate

MONITORS = ("bleu", "chrf", "loss")


@dataclass(kw_only=True)
class TrainingConfig:
    """How the weights move. Steps are optimizer steps.

    ema: validate and ship an exponential moving average of the weights with this decay (0 = off).
    average_last: when done, also try the mean of the last k snapshots (0 = off).
    monitor: what "best" means on the validation set; patience: stop after so many validations without a better one.
    """

    lr: float = 1e-3
    schedule: str = "inverse_sqrt"
    warmup_steps: int = 1000
    label_smoothing: float = 0.1
    weight_decay: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.98
    clip_norm: float = 1.0
    accumulate: int = 1
    ema: float = 0.0
    average_last: int = 0
    monitor: str = "bleu"
    patience: int = 0

    def __post_init__(self) -> None:
        for key, choices in (("schedule", tuple(SCHEDULES)), ("monitor", MONITORS)):
            value = getattr(self, key)
            if value not in choices:
                raise UserError(
                    f"training.{key}={value}: choose one of {', '.join(choices)}{suggest(value, choices)}"
                )
        for key in ("label_smoothing", "ema", "beta1", "beta2"):
            if not 0 <= getattr(self, key) < 1:
                raise UserError(f"training.{key}={getattr(self, key)}: must be at least 0 and below 1")
        for key, least in (
            ("lr", 0),
            ("clip_norm", 0),
            ("weight_decay", 0),
            ("warmup_steps", 0),
            ("patience", 0),
        ):
            if getattr(self, key) < least:
                raise UserError(f"training.{key}={getattr(self, key)}: must not be negative")
        if self.accumulate < 1:
            raise UserError(
                f"training.accumulate={self.accumulate}: must be at least 1 (1 = no accumulation)"
            )


class TranslationModule(LightningModule):
    """A Transformer, its loss and its optimizer; `averaged` is the moving average, when there is one."""

    def __init__(
        self, model: Transformer, config: TrainingConfig, *, max_steps: int, compile: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self.averaged = copy.deepcopy(model).requires_grad_(False) if config.ema else None
        self.config, self.max_steps = config, max_steps
        self.tokens = 0  # target tokens of the running optimizer step, on this device
        self.loss_sum: float | Tensor = 0.0
        self.nll_sum: float | Tensor = 0.0
        self._last: tuple[Tensor, float] | None = None  # what `measured` tells, still on the device
        self._states: Callable[[Batch], Tensor] = (
            torch.compile(self._teach, dynamic=True) if compile else self._teach
        )

    @property
    def best_model(self) -> Transformer:
        """The weights to validate and to ship."""
        return self.model if self.averaged is None else self.averaged

    def _teach(self, batch: Batch, model: Transformer | None = None) -> Tensor:
        model = model or self.model
        src, tgt = segments_of(batch)
        memory = model.encode(
            batch.src, batch.src_key_padding_mask, positions=batch.src_positions, segments=src
        )
        states = model.states(
            batch.tgt_in,
            memory,
            batch.src_key_padding_mask,
            positions=batch.tgt_positions,
            segments=tgt,
            memory_segments=src,
        )  # (B, T, D)
        # (tokens, D): padding has no loss. By places, for to count what a mask selects the CPU would wait for the GPU.
        return states.flatten(0, 1).index_select(0, batch.places)

    def _loss(
        self, batch: Batch, states: Tensor, model: Transformer, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        targets = batch.tgt_out.flatten().index_select(0, batch.places)
        return projected_loss(states, model.projection.weight, targets, label_smoothing=label_smoothing)

    @property
    def measured(self) -> dict[str, float]:
        """Of the last optimizer step: loss, nll, tokens, gradient_norm, lr. Asking waits for the device to have it."""
        if self._last is None:
            return {}
        tokens, loss, nll, norm = self._last[0].tolist()
        found = {"loss": loss / tokens, "nll": nll / tokens, "tokens": tokens, "lr": self._last[1]}
        return found | {"gradient_norm": norm}

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        return batch.to(device, non_blocking=True)

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        loss, nll = self._loss(batch, self._states(batch), self.model, self.config.label_smoothing)
        self.trainer.datamodule.consumed += 1  # type: ignore[attr-defined]  # where the data goes on after a resume
        self.tokens += batch.n_tokens
        self.loss_sum, self.nll_sum = self.loss_sum + loss.detach(), self.nll_sum + nll
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide by the tokens of the whole step, clip, set the learning rate. Waits for nothing on the device."""
        assert isinstance(self.loss_sum, Tensor)
        assert isinstance(self.nll_sum, Tensor)
        counted = torch.full((), float(self.tokens), device=self.loss_sum.device)
        sums = torch.stack([counted, self.loss_sum, self.nll_sum])
        tokens: float | Tensor = self.tokens
        if self.trainer.world_size > 1:
            sums = self.trainer.strategy.reduce(sums, reduce_op="sum")
            tokens = sums[0]
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        torch._foreach_mul_(gradients, self.config.accumulate * self.trainer.world_size / tokens)
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.config.clip_norm:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), self.config.clip_norm, norm)
        lr = self.learning_rate(self.trainer.global_step + 1)
        for group in optimizer.param_groups:
            group["lr"] = lr
        self._last = torch.cat([sums, norm[None].to(sums)]), lr
        self.tokens, self.loss_sum, self.nll_sum = 0, 0.0, 0.0

    def learning_rate(self, step: int) -> float:
        c = self.config
        return learning_rate(
            c.schedule, step, peak=c.lr, warmup_steps=c.warmup_steps, max_steps=self.max_steps
        )

    def optimizer_step(self, *args: object, **kwargs: object) -> None:
        super().optimizer_step(*args, **kwargs)  # type: ignore[arg-type]
        if self.averaged is not None:  # young averages forget faster, or they would remember the random start
            step = self.trainer.global_step
            decay = min(self.config.ema, (1 + step) / (10 + step))
            with torch.no_grad():
                torch._foreach_lerp_(
                    list(self.averaged.parameters()), list(self.model.parameters()), 1 - decay
                )

    def on_validation_epoch_start(self) -> None:
        self.validation_sums = torch.zeros(2, dtype=torch.float64)

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        model = self.best_model
        model.eval()
        _, nll = self._loss(batch, self._teach(batch, model), model, 0.0)
        self.validation_sums += torch.tensor([float(nll), batch.n_tokens])

    def validation_loss(self) -> float:
        """Nats per target token, without smoothing; its exponential is the perplexity. Every device sees all pairs."""
        nll, tokens = self.validation_sums.tolist()
        return nll / tokens if tokens else math.nan

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW; biases, norms and embeddings are not decayed."""
        decayed: list[Tensor] = []
        free: list[Tensor] = []
        for name, parameter in self.model.named_parameters():
            (free if parameter.dim() < 2 or "embedding" in name else decayed).append(parameter)
        c = self.config
        groups = [{"params": decayed, "weight_decay": c.weight_decay}, {"params": free, "weight_decay": 0.0}]
        # A fused step unscales fp16 gradients itself, after they were clipped: too late.
        fused = self.trainer.precision != "16-mixed"
        return torch.optim.AdamW(groups, lr=c.lr, betas=(c.beta1, c.beta2), eps=1e-9, fused=fused)
