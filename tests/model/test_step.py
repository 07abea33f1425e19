"""The step of a search, held against the decoder that it writes out: whatever the model, the same logits."""

import itertools

import pytest
import torch

from dragoman.masks import key_padding_mask
from dragoman.model.position import POSITIONS
from dragoman.model.step import Step
from dragoman.model.transformer import Transformer
from dragoman.special import PAD
from networks import CHOICES, at_rest, make, sentences

CONFIGS = [
    *CHOICES,
    *(
        {"activation": activation, "tie": tie}
        for activation, tie in itertools.product(("relu", "gelu", "swiglu"), ("none", "tgt", "all"))
    ),
]
K = 2  # rows a sentence


def stepped(model: Transformer, src: torch.Tensor, tgt: torch.Tensor) -> torch.Tensor:
    """The logits (N, T, V) of `tgt` (N, T), K rows for each sentence of `src`, step by step."""
    with torch.inference_mode():
        step = Step(model)
        cache = step.begin(src)
        cache.select(torch.arange(len(src)).repeat_interleave(K))
        return torch.stack([step(token, cache) for token in tgt.split(1, 1)], 1)


@pytest.mark.parametrize("changes", CONFIGS, ids=lambda c: "-".join(c.values()))
def test_steps_give_the_logits_of_teacher_forcing(changes):
    model = at_rest(changes)
    src, tgt = sentences(3, 7), sentences(3 * K, 6)
    src[1, 4:] = PAD
    rows = src.repeat_interleave(K, 0)
    expected = model(rows, tgt, key_padding_mask(rows))
    torch.testing.assert_close(stepped(model, src, tgt), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", POSITIONS)
def test_positions_go_on_past_those_embedded_together_and_to_the_last_one_there_is(kind):
    model = make(position=kind, n_decoder_layers=1).eval()
    length = model.max_positions or 70
    src, tgt = sentences(1, 5), sentences(K, length)
    rows = src.repeat_interleave(K, 0)
    expected = model(rows, tgt, key_padding_mask(rows))
    torch.testing.assert_close(stepped(model, src, tgt), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("kind", POSITIONS)
def test_half_precision_lands_near(kind, norm):
    model = make(position=kind, norm=norm).eval()
    src, tgt = sentences(3, 7), sentences(3 * K, 6)
    expected = stepped(model, src, tgt)
    with torch.autocast("cpu", torch.bfloat16):
        found = stepped(model, src, tgt)
    assert found.dtype == torch.bfloat16
    assert (found - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize(
    "changes", [*({"position": kind} for kind in POSITIONS), {"score": "additive"}], ids=str
)
def test_everything_lies_where_the_model_does(changes, monkeypatch):
    """On torch's device without numbers, which refuses to meet another one: as a GPU would, where none is."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)  # which does not know this device
    model = make(**changes).eval().to("meta")
    step = Step(model)
    one, other = step.begin(sentences(3, 7)), step.begin(sentences(2, 4))
    for cache, n in ((one, 3), (other, 2)):
        cache.select(torch.arange(n).repeat_interleave(K))
    for _ in range(3):
        step(torch.full((3 * K, 1), 5), one)
    step(torch.full((2 * K, 1), 5), other)
    one.join(other)
    assert step(torch.full((5 * K, 1), 5), one).device.type == "meta"
    one.select(torch.tensor([9, 1, 2, 8]))
    one.select(torch.tensor([3, 0]))
    assert step(torch.full((2, 1), 5), one).shape == (2, model.projection.weight.size(0))
