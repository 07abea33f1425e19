"""Worked examples of the study notes, computed by the program's own modules.

Each function returns named values, perhaps with a function that draws the "picture". notes_zh.j2 and notes_en.j2
hold the words.
"""

import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config import ModelConfig, PositionConfig
from dragoman.data.collate import collate
from dragoman.explain.picture import curve_figure, heat_figure
from dragoman.model.attention import SCORES, Attention
from dragoman.model.pooling import AttentionPooling, first_token, masked_mean
from dragoman.model.position import POSITIONS, sinusoid
from dragoman.model.transformer import Transformer
from dragoman.search.greedy import plain_greedy
from dragoman.special import EOS

Values = dict[str, Any]
WORDS = ["<PAD>", "<UNK>", "<BOS>", "<EOS>", *"好久不见", "long", "time", "no", "see"]
SRC, TGT = [4, 5, 6, 7], [8, 9, 10, 11]
PAIRS = [(SRC, TGT), (SRC[::-1], TGT[::-1]), (SRC[:1], TGT[2:]), ([5, 5, 5], TGT[:1])]


def bare(d_model: int, score: str = "scaled_dot") -> Attention:
    """Return a layer whose projections change nothing: its inputs are Q, K and V."""
    layer = Attention(d_model, 1, score=score, dropout=0.0).requires_grad_(False)
    for linear in (layer.q, layer.kv, layer.out):
        linear.weight.copy_(torch.eye(d_model).repeat(linear.out_features // d_model, 1))
        nn.init.zeros_(linear.bias)
    return layer


def waist() -> Values:
    """Score -(q - k)^2 / 2 by the product of (q, 1) and (k, -k^2 / 2).

    The product lacks -q^2 / 2. That term is the same for all keys, so the softmax does not change.
    """
    k, v = torch.tensor([51.0, 56.0, 58.0]), torch.tensor([40.0, 43.0, 48.0])
    layer, query = bare(3, "dot"), torch.tensor([[[57.0, 1.0, 0.0]]])
    # Two components are the key, the third is the value.
    layer.kv.weight *= torch.tensor([1.0, 1, 0, 0, 0, 1])[:, None]
    key_value = torch.stack((k, -(k**2) / 2, v), dim=1)[None]
    alpha, result = layer.weights(query, key_value)[0, 0, 0], layer(query, key_value)[0, 0, 2]
    return {"k": k, "v": v, "scores": -((57 - k) ** 2) / 2, "alpha": alpha, "result": result}


def matrices() -> Values:
    q, layer = torch.tensor([[57.0, 83], [76, 55]]), bare(2)
    k, v = torch.tensor([[51.0, 70], [58, 88], [56, 82]]), torch.tensor([[40.0, 55], [43, 59], [48, 65]])
    raw = layer.weights(q[None], k[None])[0, 0]
    normal = layer.weights(*((x[None] - k.mean(0)) / k.std(0) for x in (q, k)))[0, 0]
    return {"q": q, "k": k, "v": v, "scores": layer.score(q, k), "weights": raw, "output": raw @ v, "normal": normal}


def gradient() -> Values:
    x, y, layer = torch.tensor([[1.0, 0], [0, 1], [1, 1]]), torch.ones(3, 2), bare(2)
    w = layer.kv.weight.requires_grad_()
    ((layer(x[None], x[None])[0] - y) ** 2).sum().backward()
    weights = layer.weights(x[None], x[None])[0, 0].detach()
    error = weights @ x - y
    return {"x": x, "weights": weights, "error": error, "by_hand": x.T @ weights.T @ error, "autograd": w.grad[2:].T}  # type: ignore[index]


def mask() -> Values:
    scores = torch.tensor([[1.0, 2, 3, 4], [2, 1, 0, 3], [0, 2, 1, 2], [3, 1, 4, 2]])
    before = bare(4, "dot").weights(scores[None], torch.eye(4)[None], causal=True)[0, 0]
    masked = scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -math.inf)
    return {"scores": scores, "masked": masked, "before": before, "after": scores.softmax(-1).tril()}


def pooling() -> Values:
    """The padding mask of note 002, on states whose mean is easy to check."""
    memory, pool = torch.arange(20.0).view(2, 5, 2) / 10, AttentionPooling(2).requires_grad_(False)
    padding = torch.tensor([[False, False, False, True, True], [False, False, True, True, True]])
    for parameter, value in zip(pool.parameters(), (torch.eye(2), torch.zeros(2), torch.ones(1, 2)), strict=True):
        parameter.copy_(value)
    values = {"memory": memory, "mean": masked_mean(memory, padding), "first": first_token(memory, padding)}
    return values | {"alpha": pool.weights(memory, padding), "attention": pool(memory, padding)}


def heads() -> Values:
    torch.manual_seed(1)
    layer, x = Attention(4, 2, score="scaled_dot", dropout=0.0).requires_grad_(False), torch.randn(1, 3, 4)
    for linear in (layer.q, layer.kv):
        nn.init.zeros_(linear.bias)
    pairs = zip(layer.q.weight.chunk(2), layer.kv.weight[:4].chunk(2), strict=True)
    alone = torch.cat([(x @ wq.T @ (x @ wk.T).mT / math.sqrt(2)).softmax(-1) for wq, wk in pairs])
    return {"x": x[0], "q": layer.q(x)[0], "together": layer.weights(x, x)[0], "alone": alone}


def scale() -> Values:
    """Rows of d, variance and median largest weight, without and with the scale."""
    torch.manual_seed(1)
    rows = []
    for d in (1, 8, 64, 512):
        q, k = torch.randn(2, 1000, 1, 10, d)
        dots = [SCORES[name](1, d)(q, k) for name in ("dot", "scaled_dot")]
        rows.append([d, *(float(x.var()) for x in dots), *(float(x.softmax(-1).amax(-1).median()) for x in dots)])
    return {"rows": torch.tensor(rows)}


def shift() -> Values:
    batch = collate([SRC], [TGT])
    return {name: [WORDS[i] for i in getattr(batch, name)[0]] for name in ("src", "tgt_in", "tgt_out")}


def trained() -> Transformer:
    """Train a small model on four pairs until it reproduces them."""
    torch.manual_seed(1)
    config = ModelConfig(d_model=32, d_ff=64, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, dropout=0.0)
    model = Transformer(config, src_vocab_size=len(WORDS), tgt_vocab_size=len(WORDS))
    batch = collate([src for src, _ in PAIRS], [tgt for _, tgt in PAIRS])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        logits = model(batch.src, batch.tgt_in, batch.src_key_padding_mask).flatten(0, 1)[batch.places]
        optimizer.zero_grad()
        F.cross_entropy(logits, batch.tgt_out.flatten()[batch.places]).backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def loop() -> Values:
    model, steps = trained(), []
    memory = model.encode(torch.tensor([[*SRC, EOS]]), None)

    def next_logits(prefix: Tensor) -> Tensor:
        logits = model.projection(model.decode(prefix, memory, None)[:, -1])
        probability, word = logits[0].softmax(-1).max(0)
        steps.append(([WORDS[i] for i in prefix[0]], WORDS[int(word)], float(probability)))
        return logits

    return {"translation": [WORDS[i] for i in plain_greedy(next_logits, 20)], "steps": steps}


def frequencies(d_model: int, base: float) -> Tensor:
    """Return the frequencies of the encoding: the angles of position 1."""
    sine, cosine = sinusoid(torch.tensor([1]), d_model, base)[0].unflatten(0, (-1, 2)).T
    return torch.atan2(sine, cosine)


def pe() -> Values:
    divisors = 1 / torch.stack([frequencies(8, base) for base in (100.0, 1000.0, 10000.0)])
    picture = partial(heat_figure, {"PE": sinusoid(torch.arange(50), 128, 10000.0)}, "", "pos")
    values = {"table": sinusoid(torch.arange(3), 4, 10000.0), "divisors": divisors, "waves": 2 * math.pi * divisors}
    return values | {"picture": picture}


def products() -> Values:
    """Products of two encodings, with and without a random matrix between them."""
    p, w = sinusoid(torch.arange(50), 64, 10000.0), torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    maps = {"PE(i)·PE(j)": p @ p.T, "PE(i)·W·PE(j)": p @ w @ p.T / 8}
    plain, mapped = (torch.stack([m.diagonal(n)[:5] for n in range(4)]) for m in maps.values())
    return {"plain": plain, "mapped": mapped, "picture": partial(heat_figure, maps, "j", "i")}


def _scheme(kind: str, causal: bool = False) -> Any:
    return POSITIONS[kind](PositionConfig(kind=kind), d_model=8, n_heads=8 if kind == "alibi" else 1, causal=causal)


def rope() -> Values:
    """Rotation of four pairs; their lengths, 1 to 4, keep the circles apart."""
    turned = _scheme("rope").rotate(torch.tensor([1.0, 0, 2, 0, 3, 0, 4, 0]).expand(9, 8), torch.arange(9))
    pairs = {f"i = {i}": turned[:, 2 * i : 2 * i + 2].T.tolist() for i in range(4)}
    angles = torch.rad2deg(frequencies(8, 10000.0))
    picture = partial(curve_figure, pairs, "2i", "2i + 1", "RoPE", "equal")
    return {"turned": turned[:4], "angles": angles, "picture": picture}


def t5() -> Values:
    some, every = torch.tensor([-128, -32, -16, -8, -2, -1, 0, 1, 2, 8, 16, 32, 128]), torch.arange(-150, 151)
    lines: Any = {"encoder": (every, _scheme("t5").buckets(every))}
    # In the decoder no key lies ahead of its query.
    lines["decoder"] = every[:151], _scheme("t5", causal=True).buckets(every[:151])
    picture = partial(curve_figure, lines, "j - i", "bucket", "T5")
    return {"some": torch.stack((some, _scheme("t5").buckets(some))), "picture": picture}


def alibi() -> Values:
    at, position = torch.arange(33), _scheme("alibi")
    bias = position.bias(at, at, at[:1], at)[:, 0]
    lines: Any = {f"{slope:.4g}": (at, row) for slope, row in zip(position.slopes.tolist(), bias, strict=True)}
    return {"slopes": position.slopes, "picture": partial(curve_figure, lines, "|i - j|", "bias", "ALiBi")}


_ALL = (waist, matrices, products, gradient, mask, pooling, shift, loop, heads, scale, pe, rope, t5, alibi)
EXAMPLES: dict[str, Callable[[], Values]] = {example.__name__: example for example in _ALL}
PICTURES = ("pe", "products", "rope", "t5", "alibi")


def titles(language: str) -> list[tuple[str, str]]:
    """Return the name and the title of each example; a title begins with the note."""
    words = Path(__file__).with_name(f"notes_{language}.j2").read_text(encoding="utf-8")
    return re.findall(r"{% block (\w+) %}\n(.*)", words)
