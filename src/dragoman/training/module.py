"""The LightningModule: loss, training step, optimizer and its schedule.

The loss of an optimizer step is the mean over its target tokens, from all micro-batches and all devices. Lightning
averages over micro-batches, and DDP over devices: both would give a short batch the weight of a long one. So
`training_step` returns a sum, and `on_before_optimizer_step` divides the gradients by the number of target tokens.

An optimizer step is skipped if its gradient is not finite. `training.max_skipped` such steps in a row end the run.
The learning rate depends on the step and `max_steps` alone: no state of a schedule is saved.
"""

import copy
import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from dragoman.config import TrainingConfig
from dragoman.data.collate import Batch
from dragoman.errors import UserError
from dragoman.model.transformer import Transformer
from dragoman.training.muon import Muon
from dragoman.training.progress import report

# name -> function (step >= warmup_steps, warmup_steps, max_steps) -> fraction of the peak learning rate
SCHEDULES: dict[str, Callable[[int, int, float], float]] = {
    "inverse_sqrt": lambda step, warmup, _: math.sqrt(warmup / step),
    "cosine": lambda step, first, last: 0.5 * (1 + math.cos(math.pi * min(1, (step - first) / max(1, last - first)))),
    "constant": lambda step, warmup, _: 1.0,
}

# name -> function (parameter groups, settings, Lightning's precision) -> optimizer. The first group holds the layers'
# matrices. In fp16 no step is fused: a fused step unscales the gradients itself, after clipping.
OPTIMIZERS: dict[str, Callable[[list[dict[str, Any]], TrainingConfig, str], Optimizer]] = {
    "adamw": lambda groups, c, precision: torch.optim.AdamW(groups, **_adam(c, precision)),
    "muon": lambda groups, c, precision: Muon(groups, bf16=precision == "bf16-mixed", **_adam(c, precision)),
    "sgd": lambda groups, c, _: torch.optim.SGD(groups, lr=c.lr, momentum=c.beta1),
    "adafactor": lambda groups, c, _: torch.optim.Adafactor(groups, lr=c.lr),
}


def _adam(c: TrainingConfig, precision: str) -> dict[str, Any]:
    return {"lr": c.lr, "betas": (c.beta1, c.beta2), "eps": 1e-9, "fused": precision != "16-mixed"}


# Optimizer steps between two reads of the skip counters on a GPU, because each read makes the CPU wait.
READ_EVERY = 16


class _ProjectedLoss(torch.autograd.Function):
    """Label-smoothed cross-entropy without the (tokens x vocabulary) matrix of logits.

    Equal to F.cross_entropy(states @ weight.T, targets, label_smoothing=..., reduction="sum") up to rounding. All
    logits at once would be the largest tensor of a step, so projection, softmax and gradients are computed for 512
    positions at a time (1,024 in bf16, 8,192 on a GPU). Forward keeps only the gradients of states (n, D) and
    projection (V, D).
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, states: Tensor, weight: Tensor, targets: Tensor, label_smoothing: float, dtype: torch.dtype, train: bool
    ) -> tuple[Tensor, Tensor]:
        chunk = 2048 // dtype.itemsize if states.device.type == "cpu" else 8192  # a GPU prefers few large products
        s, n, vocab_size, cast_weight = label_smoothing, len(states), len(weight), weight.to(dtype)
        cast_states = F.pad(states.to(dtype), (0, 0, 0, -n % 64))  # zeros, so that shapes repeat (data/collate.py)
        # Logits z = W x. Smoothing spreads its mass s evenly over the vocabulary. The loss of a token is
        # (1 - s) * -log p(y) + s * mean(-log p) = -log p(y) + s * (z(y) - mean(z)), its gradient for z(v) is
        # p(v) - (v = y) + s * (v = y) - s / V. Only the first two terms need the matrix.
        targets_sum = torch.ops.aten.embedding_dense_backward(states, targets, vocab_size, -1, False)  # (V, D)
        weight_gradient = targets_sum.mul_(s).sub_(states.sum(0), alpha=s / vocab_size)
        target_weight, mean = weight[targets], weight.mean(0)  # (n, D), (D,)
        states_gradient = torch.empty_like(cast_states)
        nll, buffer = states.new_zeros(()), cast_states.new_empty(len(cast_states[:chunk]), vocab_size)
        for start in range(0, n, chunk):
            x, y = cast_states[start : start + chunk], targets[start : start + chunk]
            logits = torch.mm(x, cast_weight.t(), out=buffer[: len(x)])  # (c, V)
            p = torch.softmax(logits, dim=-1, out=logits)  # in place, because the first use of new memory is slow
            at_targets = torch.arange(len(y), device=y.device), y
            nll -= p[at_targets].float().clamp(min=torch.finfo(torch.float32).tiny).log().sum()
            if train:
                p[at_targets] = 0.0
                p[at_targets] = -p[: len(y)].sum(1)  # p(y) - 1 without cancellation
                torch.mm(p, cast_weight, out=states_gradient[start : start + chunk])
                if dtype == torch.float32:
                    weight_gradient.addmm_(p.t(), x)
                else:
                    weight_gradient += p.t() @ x
        loss = nll + s * (states * (target_weight - mean)).sum()
        states_gradient = states_gradient[:n].float().add_(target_weight, alpha=s).sub_(mean, alpha=s)
        ctx.save_for_backward(states_gradient, weight_gradient)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx, outer: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        states_gradient, weight_gradient = ctx.saved_tensors
        return states_gradient * outer, weight_gradient * outer, None, None, None, None


def projected_loss(states: Tensor, weight: Tensor, targets: Tensor, *, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """states (n, D), weight (V, D), targets (n,) -> summed smoothed loss and nll.

    Products run in bf16 under bf16 autocast, else in fp32. Both results are sums over positions, in nats: loss / n is
    the training loss, exp(nll / n) the perplexity. Smoothing: Szegedy et al. 2016.
    """
    device = states.device.type
    bf16 = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16
    dtype, train = torch.bfloat16 if bf16 else torch.float32, torch.is_grad_enabled()
    with torch.autocast(device, enabled=False):
        return _ProjectedLoss.apply(states.float(), weight, targets, label_smoothing, dtype, train)


def learning_rate(kind: str, step: int, *, peak: float, warmup_steps: int, max_steps: float) -> float:
    """Return the rate of a step (from 1): linear rise to `peak`, then schedule.

    "inverse_sqrt": Vaswani et al. 2017, section 5.3, scaled so that the warm-up ends at the peak. "cosine" falls to 0
    at `max_steps`; while that is infinite (not planned yet), it stays at the peak.
    """
    warmup_steps = max(1, warmup_steps)
    return peak * min(1.0, step / warmup_steps) * SCHEDULES[kind](max(step, warmup_steps), warmup_steps, max_steps)


class TranslationModule(LightningModule):
    """A Transformer with its loss and optimizer; `averaged` is its EMA, or None."""

    def __init__(self, model: Transformer, config: TrainingConfig, *, compile: bool = False) -> None:
        super().__init__()
        self.model = model
        self.averaged = copy.deepcopy(model).requires_grad_(False) if config.ema else None
        self.config = config
        self.max_steps = math.inf  # of the schedule; ProgressCallback sets it
        self.seed = torch.initial_seed()
        # target tokens, and the sums of loss and nll, of the current optimizer step on this device
        self.tokens, self.sums = 0, torch.zeros(2)
        # (loss sum, nll sum, tokens, gradient norm) on the device, and the learning rate, of the last optimizer step
        self._last: tuple[Tensor, float] | None = None
        # skipped steps, those in a row, gradient norm of the last (0 if reported); a buffer, so checkpoints save it
        self.skips: Tensor
        self.register_buffer("skips", torch.zeros(3))
        self._states = torch.compile(self._forward, dynamic=True) if compile else self._forward

    @property
    def eval_model(self) -> Transformer:
        """The weights to validate and to save: the averages, if there are any."""
        return self.model if self.averaged is None else self.averaged

    @property
    def measured(self) -> dict[str, float]:
        """Scalars of the last optimizer step. Reading them waits for the device."""
        if self._last is None:
            return {}
        loss, nll, n, norm = self._last[0].tolist()
        perplexity = math.exp(min(50.0, nll / n))
        return {"loss": loss / n, "perplexity": perplexity, "gradient_norm": norm, "learning_rate": self._last[1]}

    def _forward(self, batch: Batch, model: Transformer) -> tuple[Tensor, Tensor]:
        """Return hidden states (n_tokens, D) and targets (n_tokens,), without padding."""
        memory = model.encode(batch.src, batch.src_key_padding_mask)
        states = model.decode(batch.tgt_in, memory, batch.src_key_padding_mask)  # (B, T, D)
        # by index, because a boolean mask would make the CPU wait for the GPU
        states, targets = states.flatten(0, 1), batch.tgt_out.flatten()
        return states.index_select(0, batch.tgt_indices), targets.index_select(0, batch.tgt_indices)

    @cached_property
    @torch.inference_mode(False)
    def _possible(self) -> Tensor:
        return self.model.possible

    def _loss(self, output: tuple[Tensor, Tensor], model: Transformer, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return `projected_loss` of the states and targets, over possible pieces only."""
        (states, targets), pieces, weight = output, self._possible, model.projection.weight
        if len(pieces) < len(weight):
            weight, targets = weight.index_select(0, pieces), torch.searchsorted(pieces, targets)
        return projected_loss(states, weight, targets, label_smoothing=smoothing)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]  # of Lightning
        # Dropout is seeded for each batch, so a resumed run needs no saved random state.
        generator = torch.default_generator if self.device.type == "cpu" else torch.get_device_module(self.device)
        generator.manual_seed(hash((self.seed, data.consumed, self.trainer.global_rank)))
        data.consumed += 1  # the position in the data, for checkpoints
        if not self.tokens:
            # Lightning would keep the gradients of the last step in memory during the forward pass.
            self.zero_grad()
            self.sums = torch.zeros(2, device=self.device)
        loss, nll = self._loss(self._states(batch, self.model), self.model, self.config.label_smoothing)
        self.tokens += batch.n_tokens
        self.sums = self.sums + torch.stack([loss.detach(), nll])
        return loss

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Average gradients over tokens, clip, set the learning rate, skip bad steps."""
        c, step = self.config, self.trainer.global_step + 1
        sums = torch.cat([self.sums, self.sums.new_full((1,), self.tokens)])
        tokens: float | Tensor = self.tokens
        if self.trainer.world_size > 1:
            torch.distributed.all_reduce(sums)  # strategy.reduce has a barrier, which would make the CPU wait
            tokens = sums[2]
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        torch._foreach_mul_(gradients, c.accumulate * self.trainer.world_size / tokens)
        norm = torch.nn.utils.get_total_norm(gradients)
        if c.clip_norm:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), c.clip_norm, norm)
        lr = learning_rate(c.schedule, step, peak=c.lr, warmup_steps=c.warmup_steps, max_steps=self.max_steps)
        for group in optimizer.param_groups:
            group["lr"] = lr
        self._last, self.tokens = (torch.cat([sums, norm[None].to(sums)]), lr), 0
        self._skip_unless_finite(optimizer, norm, step, lr)

    def _skip_unless_finite(self, optimizer: Optimizer, norm: Tensor, step: int, lr: float) -> None:
        """Skip, count and report the step if its gradient norm is not finite."""
        finite, (total, in_a_row, last) = norm.isfinite(), self.skips
        bad = (~finite).float()
        self.skips.copy_(torch.stack((total + bad, (in_a_row + 1) * bad, torch.where(finite, last, norm))))
        if optimizer.defaults.get("fused"):
            optimizer.found_inf = bad  # type: ignore[attr-defined]  # if it is 1, a fused optimizer skips the step
        elif self.trainer.precision != "16-mixed" and bad:  # in fp16 GradScaler skips
            self.zero_grad()  # optimizers skip parameters whose gradient is None
        if norm.device.type != "cpu" and step % READ_EVERY:
            return
        n_skipped, n, last_norm = self.skips.tolist()
        if not math.isfinite(last_norm):
            self.skips[2] = 0
            details = f"norm {last_norm}, learning rate {lr:.2e}, {n:.0f} in a row"
            report(f"step {step}: the gradient is not finite ({details}). Steps skipped so far: {n_skipped:.0f}")
        if n >= self.config.max_skipped:
            hint = "Start a new run (name=...) with a lower training.lr or a larger training.warmup_steps"
            raise UserError(f"step {step}: no finite gradient in {n:.0f} optimizer steps in a row. {hint}")

    def optimizer_step(self, *args: object, **kwargs: object) -> None:
        super().optimizer_step(*args, **kwargs)  # type: ignore[arg-type]
        if self.averaged is not None:
            # The decay is lower in the first steps, so that the random initial weights soon leave the average.
            step = self.trainer.global_step
            decay = min(self.config.ema, (1 + step) / (10 + step))
            get_ema_multi_avg_fn(decay)(list(self.averaged.parameters()), list(self.model.parameters()), step)

    def on_validation_epoch_start(self) -> None:
        self.validation_sums = torch.zeros(2, dtype=torch.float64)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        model = self.eval_model
        _, nll = self._loss(self._forward(batch, model), model)
        self.validation_sums += torch.tensor([float(nll), batch.n_tokens])

    def validation_loss(self) -> float:
        """Return the unsmoothed nll per target token in nats, the log of perplexity."""
        nll, tokens = self.validation_sums.tolist()
        return nll / tokens if tokens else math.nan

    def configure_optimizers(self) -> Optimizer:
        """Build the optimizer; weight decay applies to the matrices of the layers."""
        matrices, others = list[Tensor](), list[Tensor]()
        for name, parameter in self.model.named_parameters():
            in_layer = name.startswith(("encoder.", "decoder.")) and name.endswith(".weight")
            if parameter.requires_grad:
                (matrices if in_layer and parameter.dim() > 1 else others).append(parameter)
        groups = [
            {"params": matrices, "weight_decay": self.config.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        return OPTIMIZERS[self.config.optimizer](groups, self.config, str(self.trainer.precision))
