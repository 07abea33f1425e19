"""One training step and one validation, as Lightning sees them: teacher forcing, and an honest denominator.

The loss is per target token over everything one optimizer step saw: all its micro-batches, on all devices. Lightning
averages over micro-batches and DDP over devices, which would weigh a short batch like a long one; so the step
back-propagates sums, and the gradients are divided by the true number of tokens just before they are used.

Because sums add up, a step can be taken in any number of pieces: where there is no memory for a batch it is halved
until there is, and the step remains the same. A step without a finite gradient changes nothing: it is skipped and
counted, and too many in a row end the run.
"""

import copy
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from dragoman.data.collate import Batch
from dragoman.errors import UserError, suggest
from dragoman.model.transformer import Transformer
from dragoman.training.faults import diagnose, halves, out_of_memory
from dragoman.training.loss import projected_loss
from dragoman.training.packing import segments_of
from dragoman.training.schedule import SCHEDULES, learning_rate

log = logging.getLogger(__name__)

MONITORS = ("bleu", "chrf", "loss")
LOOK_EVERY = 16  # steps between two looks at what a GPU has skipped: asking makes the CPU wait for it


@dataclass(kw_only=True)
class TrainingConfig:
    """How the weights move. Steps are optimizer steps.

    ema: validate and ship an exponential moving average of the weights with this decay (0 = off).
    average_last: when done, also try the mean of the last k snapshots (0 = off).
    monitor: what "best" means on the validation set; patience: stop after so many validations without a better one.
    max_skipped: end the run when so many steps in a row had no finite gradient.
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
    max_skipped: int = 10

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
        for key, least_means in (("accumulate", " (1 = no accumulation)"), ("max_skipped", "")):
            if getattr(self, key) < 1:
                raise UserError(f"training.{key}={getattr(self, key)}: must be at least 1{least_means}")


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
        self.say: Callable[[str], None] = log.info
        self.skipped, self.skipped_in_a_row = 0, 0  # as last looked at
        self._skips: Tensor | None = None  # the same two counts, on the device
        self._batches: list[Batch] = []  # of the running optimizer step
        self._piece: Batch | None = None  # what is being computed
        self._too_large = math.inf  # positions of the smallest batch that there was no memory for
        self._again = False  # the running step begins anew, in smaller pieces
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
        self.trainer.datamodule.consumed += 1  # type: ignore[attr-defined]  # where the data goes on after a resume
        if not self._batches:  # a new step: Lightning would keep the last one's gradients through
            self.zero_grad()  # the forward pass, whose activations had to find their places between them
        self._batches.append(batch)
        try:
            return self._learn(self._pieces(batch)[0])
        except (RuntimeError, MemoryError) as error:
            self._halve(error)
        return torch.zeros((), device=self.device, requires_grad=True)  # `backward` begins anew

    def backward(self, loss: Tensor) -> None:
        """The rest of the batch, where it is taken in pieces; the whole step again, where there was no memory."""
        if not self._again:
            try:
                loss.backward()
                for piece in self._pieces(self._batches[-1])[1:]:
                    self._learn_from(piece)
            except (RuntimeError, MemoryError) as error:
                self._halve(error)
        while self._again:
            self._begin_anew()

    def _learn(self, piece: Batch) -> Tensor:
        """The summed loss; counts what it is a sum of."""
        self._piece = piece
        loss, nll = self._loss(piece, self._states(piece), self.model, self.config.label_smoothing)
        self.tokens += piece.n_tokens
        self.loss_sum, self.nll_sum = self.loss_sum + loss.detach(), self.nll_sum + nll
        return loss

    def _learn_from(self, piece: Batch) -> None:
        """What Lightning does with a batch: its precision, its share among those accumulated."""
        precision = self.trainer.precision_plugin
        with precision.train_step_context():
            loss = self._learn(piece) / self.config.accumulate
        precision.pre_backward(loss, self).backward()

    def _pieces(self, batch: Batch) -> list[Batch]:
        """The batch in as many parts as fit into memory, as far as is known."""
        if _positions(batch) < self._too_large or len(batch) == 1:
            return [batch]
        return [piece for half in halves(batch) for piece in self._pieces(half)]

    def _halve(self, error: BaseException) -> None:
        """Take batches as large as this one in smaller pieces from now on. Other errors than of memory go on up."""
        if not out_of_memory(error) or self._piece is None:
            raise error
        size = f"a batch of {len(self._piece):,} pairs in {_positions(self._piece):,} positions"
        if self.trainer.world_size > 1:  # the others would wait for gradients of pieces they know nothing of
            raise UserError(f"there is no memory for {size}: set a lower data.max_tokens") from error
        if len(self._piece) == 1:
            raise UserError(
                f"there is no memory for {size}: set a lower data.max_length, or a smaller model"
            ) from error
        self._too_large, self._again = _positions(self._piece), True
        self.say(
            f"step {self.trainer.global_step + 1}: no memory for {size}; such are taken in halves from now on"
        )

    def _begin_anew(self) -> None:
        self._again, self._piece = False, None
        self.tokens, self.loss_sum, self.nll_sum = 0, 0.0, 0.0
        self.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        try:
            for batch in self._batches:
                for piece in self._pieces(batch):
                    self._learn_from(piece)
        except (RuntimeError, MemoryError) as error:
            self._halve(error)

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
        self._skip_unless_finite(optimizer, norm)
        lr = self.learning_rate(self.trainer.global_step + 1)
        for group in optimizer.param_groups:
            group["lr"] = lr
        self._last = torch.cat([sums, norm[None].to(sums)]), lr
        self.tokens, self.loss_sum, self.nll_sum = 0, 0.0, 0.0
        self._batches.clear()

    def _skip_unless_finite(self, optimizer: torch.optim.Optimizer, norm: Tensor) -> None:
        """The fused step does nothing where `found_inf` is 1 (in fp16 the scaler sees to it), so nobody need wait."""
        broken = (~norm.isfinite()).float()
        if optimizer.defaults["fused"]:
            optimizer.found_inf = broken  # type: ignore[attr-defined]
        if self._skips is None:
            self._skips = torch.tensor([self.skipped, self.skipped_in_a_row], device=norm.device) * 1.0
        self._skips = torch.stack((self._skips[0] + broken, (self._skips[1] + 1) * broken))
        step = self.trainer.global_step + 1
        if norm.device.type != "cpu" and step % LOOK_EVERY:
            return
        before = self.skipped
        self.skipped, self.skipped_in_a_row = (int(count) for count in self._skips.tolist())
        if self.skipped > before:
            self.say(f"step {step}: no finite gradient; skipped (the {self.skipped_in_a_row}. in a row)")
        if self.skipped_in_a_row >= self.config.max_skipped:
            self.give_up(f"{self.skipped_in_a_row} optimizer steps in a row had no finite gradient")

    def give_up(self, why: str) -> NoReturn:
        """Leave a diagnosis of the running step and raise UserError; the checkpoint is of an earlier step."""
        data, step = self.trainer.datamodule, self.trainer.global_step + 1  # type: ignore[attr-defined]
        found = {"why": why, "step": step, "learning_rate": self.learning_rate(step), "skipped": self.skipped}
        folder = diagnose(
            data.run_dir / "diagnosis" / f"step-{step:09d}",
            self.model,
            self._batches,
            (data.src_tokenizer, data.tgt_tokenizer),
            found | {"precision": str(self.trainer.precision)},
            self.trainer.global_rank,
        )
        raise UserError(
            f"{why} (step {step}): stopped, and the last checkpoint kept. {folder} holds sentences and norms; often "
            "training.lr is too high, or training.warmup_steps too few: try others under another name (name=...)"
        )

    def refuse_broken_weights(self) -> None:
        """Called before anything is saved. Raises UserError where a weight is no longer finite."""
        norms = torch._foreach_norm([p.detach() for p in self.parameters()])
        if not torch.stack([norm.float() for norm in norms]).isfinite().all():
            self.give_up("the weights are no longer finite")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        counts = [self.skipped, self.skipped_in_a_row] if self._skips is None else self._skips.tolist()
        checkpoint["skipped"] = [int(count) for count in counts]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.skipped, self.skipped_in_a_row = checkpoint.get("skipped", [0, 0])

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


def _positions(batch: Batch) -> int:
    """Of both sides, padding included: what memory grows with."""
    return batch.src.numel() + batch.tgt_in.numel()
