"""Attention over sentences of any length that stand behind one another in one long row.

The plain truth is a block-diagonal mask (masks.segment_attn_mask), which costs the square of the row. Where torch has
`varlen_attn` (flash attention told where each run of tokens begins), the blocks off the diagonal are never visited,
and no token is padding. It multiplies half precision on CUDA alone, knows no bias on the scores and no dropout of the
weights: `refusal` says why not, by name, before any work.

This file is the only one that knows torch's function; its versions differ, so it is tried once rather than believed
(`works`). It refuses to know what the runs are: pairs, rows and batches are the business of others.
"""

import inspect
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from dragoman.model.transformer import ModelConfig

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
BIASED = ("t5", "transformer_xl", "alibi")  # positions that speak by numbers added to the scores


class Runs(NamedTuple):
    """Run i of a row is its tokens `starts[i]` to `starts[i + 1]`; none is longer than `longest`."""

    starts: Tensor  # (n + 1,) int32
    longest: int


class Paired(NamedTuple):
    """Run i of the queries sees run i of the keys, whole, and nothing else."""

    q: Runs
    k: Runs


def attend_runs(q: Tensor, k: Tensor, v: Tensor, paired: Paired, *, causal: bool, scale: float) -> Tensor:
    """q (1, H, T_q, d), k and v (1, H, T_k, d) -> (1, H, T_q, d); `causal`: within each run."""
    from torch.nn.attention.varlen import varlen_attn  # takes two seconds: not where nobody needs it

    q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))  # (T, H, d)
    (q_starts, q_longest), (k_starts, k_longest) = paired
    window = (-1, 0) if causal else (-1, -1)
    mixed = varlen_attn(q, k, v, q_starts, k_starts, q_longest, k_longest, scale=scale, window_size=window)
    assert isinstance(mixed, Tensor)  # (T_q, H, d), for nothing else was asked for
    return mixed.transpose(0, 1)[None]


def refusal(config: "ModelConfig", *, accelerator: str, precision: str) -> str | None:
    """Why this model cannot train so with this hardware: the keys and their values; None where it can."""
    d_head = config.d_model // config.n_heads
    if accelerator != "gpu":
        return f"trainer.accelerator={accelerator}: torch has it for CUDA only"
    if precision not in HALF:
        return f"trainer.precision={precision}: torch has it for {' and '.join(HALF)}"
    if config.position.kind in BIASED:
        return f"model.position.kind={config.position.kind} adds numbers to the scores"
    if config.score == "additive":
        return "model.score=additive is no product"
    if config.attention_dropout:
        return f"model.attention_dropout={config.attention_dropout}: it drops no weights"
    if d_head % 8 or d_head > 256:
        return f"model.n_heads={config.n_heads}: heads of {d_head}, not a multiple of 8 up to 256"
    return works(HALF[precision], d_head)


def works(dtype: torch.dtype, d_head: int) -> str | None:
    """None if torch's function gives here what masks give, forwards and backwards; else what went wrong."""
    from torch.nn.attention.varlen import varlen_attn

    if "window_size" not in inspect.signature(varlen_attn).parameters:
        return f"torch {torch.__version__} has an older form of it"
    lengths = torch.tensor([3, 130, 1])
    starts = F.pad(lengths.cumsum(0), (1, 0)).int().cuda()
    runs = Runs(starts, 256)
    segments = torch.arange(3).repeat_interleave(lengths).cuda()
    seen = (segments[:, None] == segments).tril()
    generator = torch.Generator("cuda").manual_seed(1)
    size = (4, 1, 2, len(segments), d_head)
    q, k, v, outer = torch.randn(size, generator=generator, device="cuda").to(dtype).unbind()
    answers = []
    try:
        for way in ("masks", "runs"):
            a, b, c = inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
            if way == "masks":
                found = F.scaled_dot_product_attention(a, b, c, attn_mask=seen, scale=0.3)
            else:
                found = attend_runs(a, b, c, Paired(runs, runs), causal=True, scale=0.3)
            answers.append([found, *torch.autograd.grad(found, inputs, outer)])
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return f"torch {torch.__version__} has it not for this GPU ({str(error).splitlines()[0]})"
    if not all(torch.allclose(a, b, atol=0.1, rtol=0.1) for a, b in zip(*answers, strict=True)):
        return f"torch {torch.__version__} computes something else with it on this GPU"
    return None
