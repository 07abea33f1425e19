"""Worked examples of the study notes, computed with the program's own modules.

Each example is a function. It returns the values that its text shows, by name; "picture" is a function that draws one.
The texts are the blocks of the same names in notes_zh.j2 and notes_en.j2.
"""

import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dragoman import bundle as bundles
from dragoman.config import ModelConfig, PositionConfig
from dragoman.data.collate import collate
from dragoman.explain.picture import curve_figure, heat_figure
from dragoman.files import included
from dragoman.model.attention import SCORES, Attention
from dragoman.model.pooling import AttentionPooling, first_token, masked_mean
from dragoman.model.position import POSITIONS, phases, sinusoid
from dragoman.search.search import log_probabilities, plain_greedy
from dragoman.special import EOS

Values = dict[str, Any]


def bare(d_model: int, score: str = "scaled_dot") -> Attention:
    """Return a layer with identity projections: Q is the query, K and V are key_value."""
    layer = Attention(ModelConfig(d_model=d_model, n_heads=1, score=score)).requires_grad_(False)
    for linear in (layer.q, layer.kv, layer.out):
        linear.weight.copy_(torch.eye(d_model).repeat(linear.out_features // d_model, 1))
        nn.init.zeros_(linear.bias)
    return layer


def waist() -> Values:
    """Body weight (value) of a person by the waist (key), for a waist of 57 (query).

    The score -(q - k)^2 / 2 is computed as the dot product of (q, 1) and (k, -k^2 / 2). The product lacks -q^2 / 2.
    That term is the same for all keys, so the softmax does not change.
    """
    k, v = torch.tensor([51.0, 56.0, 58.0]), torch.tensor([40.0, 43.0, 48.0])
    query = torch.tensor([[[57.0, 1.0]]])  # (1, 1, 2)
    keys = torch.stack((k, -(k**2) / 2), dim=1)[None]  # (1, 3, 2)
    alpha = bare(2, "dot").weights(query, keys)[0, 0, 0]
    return {"scores": -((57 - k) ** 2) / 2, "alpha": alpha, "result": alpha @ v}


def matrices() -> Values:
    """Scaled dot-product attention with the numbers of note 000."""
    q = torch.tensor([[57.0, 83], [76, 55]])
    k = torch.tensor([[51.0, 70], [58, 88], [56, 82]])
    v = torch.tensor([[40.0, 55], [43, 59], [48, 65]])
    layer = bare(2)
    weights = layer.weights(q[None], k[None])[0, 0]
    return {"q": q, "k": k, "v": v, "scores": layer.score(q, k), "weights": weights, "output": weights @ v}


def gradient() -> Values:
    """Gradient of ||P X W_v - Y||^2 with respect to W_v, by hand and by autograd.

    P are the attention weights. By hand, the factor 2 is left out.
    """
    x, y, layer = torch.tensor([[1.0, 0], [0, 1], [1, 1]]), torch.ones(3, 2), bare(2)
    w = layer.kv.weight.requires_grad_()  # (4, 2): W_k^T above W_v^T, both the identity
    ((layer(x[None], x[None])[0] - y) ** 2).sum().backward()
    weights = layer.weights(x[None], x[None])[0, 0].detach()
    error = weights @ x - y
    return {"x": x, "weights": weights, "error": error, "by_hand": x.T @ weights.T @ error, "autograd": w.grad[2:].T}  # type: ignore[index]


def mask() -> Values:
    """Causal mask before the softmax, and zeros after it for comparison."""
    scores = torch.tensor([[1.0, 2, 3, 4], [2, 1, 0, 3], [0, 2, 1, 2], [3, 1, 4, 2]])
    # K is the identity, so the dot products are the scores.
    before = bare(4, "dot").weights(scores[None], torch.eye(4)[None], causal=True)[0, 0]
    masked = scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -math.inf)
    return {"scores": scores, "masked": masked, "before": before, "after": scores.softmax(-1).tril()}


def pooling() -> Values:
    """Sentence vectors with a padding mask (note 002), from states with a simple mean."""
    memory = torch.arange(20.0).view(2, 5, 2) / 10  # (B, S, D)
    padding = torch.tensor([[False, False, False, True, True], [False, False, True, True, True]])
    pool = AttentionPooling(2).requires_grad_(False)
    nn.init.eye_(pool.hidden.weight)
    nn.init.zeros_(pool.hidden.bias)
    nn.init.ones_(pool.score.weight)
    values = {"memory": memory, "mean": masked_mean(memory, padding), "first": first_token(memory, padding)}
    return values | {"alpha": pool.weights(memory, padding), "attention": pool(memory, padding)}


def heads() -> Values:
    """Weights of two heads: "together" by one projection, "alone" by one per head."""
    torch.manual_seed(1)
    layer = Attention(ModelConfig(d_model=4, n_heads=2)).requires_grad_(False)
    x = torch.randn(1, 3, 4)  # (B, T, D)
    for linear in (layer.q, layer.kv):
        nn.init.zeros_(linear.bias)
    # Two rows for each head; the first four rows of kv are the projection of the keys.
    q, k = (x @ weight.view(2, 2, 4).mT for weight in (layer.q.weight, layer.kv.weight[:4]))  # (heads, 3, 2)
    alone = (q @ k.mT / math.sqrt(2)).softmax(-1)
    return {"x": x[0], "q": layer.q(x)[0], "together": layer.weights(x, x)[0], "alone": alone}


def scale() -> Values:
    """Variance of the scores and median of the largest weight, by head size.

    A row: head size, variance of q.k and of q.k / sqrt(d), then the medians of both.
    """
    torch.manual_seed(1)
    rows = []
    for d in (1, 8, 64, 512):
        q, k = torch.randn(2, 1000, 1, 10, d)
        scores = [SCORES[name](1, d)(q, k) for name in ("dot", "scaled_dot")]  # each (1000, 1, 10, 10)
        variances = [float(each.var()) for each in scores]
        largest = [float(each.softmax(-1).amax(-1).median()) for each in scores]
        rows.append([d, *variances, *largest])
    return {"rows": torch.tensor(rows)}


def shift() -> Values:
    """Pieces of the encoder input, the decoder input and the decoder output."""
    words = ["<PAD>", "<UNK>", "<BOS>", "<EOS>", *"好久不见", "long", "time", "no", "see"]
    batch = collate([[4, 5, 6, 7]], [[8, 9, 10, 11]])
    return {name: [words[i] for i in getattr(batch, name)[0]] for name in ("src", "tgt_in", "tgt_out")}


def loop() -> Values:
    """Prefix, next piece and its probability at each step of the pretrained model."""
    bundle = bundles.load(included("data/pretrained/zh_en"))
    model, pieces = bundle.model.requires_grad_(False), bundle.tgt_tokenizer.pieces
    src = [*bundle.src_tokenizer.encode("好久不见"), EOS]
    memory, steps = model.encode(torch.tensor([src]), None), []

    def next_logits(prefix: Tensor) -> Tensor:
        logits = model.projection(model.decode(prefix, memory, None)[:, -1])
        probability, token = log_probabilities(logits, first=prefix.size(1) == 1)[0].exp().max(0)
        steps.append((pieces(prefix[0].tolist()), pieces([int(token)])[0], float(probability)))
        return logits

    plain_greedy(next_logits, 20)
    return {"source": bundle.src_tokenizer.pieces(src), "steps": steps}


def pe() -> Values:
    """Sinusoidal encodings; divisors 1 / frequency and wavelengths for three bases."""
    divisors = 1 / torch.cat([phases(torch.tensor([1]), 8, base) for base in (100.0, 1000.0, 10000.0)])
    picture = partial(heat_figure, {"PE": sinusoid(torch.arange(50), 128, 10000.0)}, "component", "pos")
    values = {"table": sinusoid(torch.arange(3), 4, 10000.0), "divisors": divisors, "waves": 2 * math.pi * divisors}
    return values | {"picture": picture}


def products() -> Values:
    """Products of two encodings, with and without a random matrix between them."""
    p = sinusoid(torch.arange(50), 64, 10000.0)
    w = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    plain, mapped = p @ p.T, p @ w @ p.T / math.sqrt(64)
    picture = partial(heat_figure, {"PE(i)·PE(j)": plain, "PE(i)·W·PE(j)": mapped}, "j", "i")
    # (4, 5) each: in row n, the first five products with j - i = n.
    plain, mapped = (torch.stack([matrix.diagonal(n)[:5] for n in range(4)]) for matrix in (plain, mapped))
    return {"plain": plain, "mapped": mapped, "picture": picture}


def _scheme(kind: str, causal: bool = False) -> Any:
    return POSITIONS[kind](PositionConfig(kind=kind), d_model=8, n_heads=8 if kind == "alibi" else 1, causal=causal)


def rope() -> Values:
    """Rotation of a vector of four pairs at positions 0 to 8.

    The pairs have lengths 1 to 4, so their circles in the picture do not meet.
    """
    vector = torch.tensor([1.0, 0, 2, 0, 3, 0, 4, 0])
    turned = _scheme("rope").rotate(vector.expand(9, 8), torch.arange(9))
    pairs = {f"i = {i}": turned[:, 2 * i : 2 * i + 2].T.tolist() for i in range(4)}
    angles = torch.rad2deg(phases(torch.tensor([1]), 8, 10000.0)[0])
    picture = partial(curve_figure, pairs, "2i", "2i + 1", "RoPE", "equal")
    return {"turned": turned[:4], "angles": angles, "picture": picture}


def t5() -> Values:
    """Buckets of distances j - i from query i to key j."""
    some, every = torch.tensor([-128, -32, -16, -8, -2, -1, 0, 1, 2, 8, 16, 32, 128]), torch.arange(-150, 151)
    lines: Any = {"encoder": (every, _scheme("t5").buckets(every))}
    # In the decoder no query attends to a later key.
    lines["decoder"] = every[:151], _scheme("t5", causal=True).buckets(every[:151])
    picture = partial(curve_figure, lines, "j - i", "bucket", "T5")
    return {"some": torch.stack((some, _scheme("t5").buckets(some))), "picture": picture}


def alibi() -> Values:
    """Bias of each head by distance, labelled by its slope."""
    at, position = torch.arange(33), _scheme("alibi")
    # The scheme ignores q and k. One query at position 0, keys at 0 to 32: (8, 1, 33) -> (8, 33).
    bias = position.bias(at, at, at[:1], at)[:, 0]
    lines: Any = {f"{slope:.4g}": (at, row) for slope, row in zip(position.slopes.tolist(), bias, strict=True)}
    return {"slopes": position.slopes, "picture": partial(curve_figure, lines, "|i - j|", "bias", "ALiBi")}


def titles(language: str) -> list[tuple[str, str]]:
    """Return name and title of each example; a title begins with its note's number."""
    template = Path(__file__).with_name(f"notes_{language}.j2").read_text(encoding="utf-8")
    return re.findall(r"{% block (\w+) %}\n(.*)", template)


_ALL = (waist, matrices, products, gradient, mask, pooling, shift, loop, heads, scale, pe, rope, t5, alibi)
EXAMPLES: dict[str, Callable[[], Values]] = {example.__name__: example for example in _ALL}
PICTURES = ("pe", "products", "rope", "t5", "alibi")
