"""Incremental decoding against decoding all tokens at once."""

import pytest
import torch
from torch import Tensor

from dragoman.model.attention import SCORES
from dragoman.model.cache import DecoderCache
from dragoman.model.position import POSITIONS
from dragoman.model.transformer import Transformer
from dragoman.special import PAD

K = 2  # rows of a sentence


def at_once(network: Transformer, src: Tensor, tgt: Tensor) -> Tensor:
    rows = src.repeat_interleave(len(tgt) // len(src), 0)
    return network(rows, tgt, rows == PAD)


def begin(network: Transformer, src: Tensor) -> DecoderCache:
    return network.begin(src, src == PAD)


@torch.no_grad()
def steps(network: Transformer, cache: DecoderCache, tgt: Tensor) -> Tensor:
    """Logits (N, T, V) of `tgt`, token by token."""
    return torch.stack([network.step(tokens, cache) for tokens in tgt.split(1, 1)], 1)


@pytest.mark.parametrize("position", POSITIONS)
def test_steps_give_the_logits_of_decoding_at_once(position, model, ids):
    others = {"norm": "post"}, {"normalization": "rms_norm"}, {"tie": "none"}
    for changes in (*({"score": score} for score in SCORES), *others):
        network = model(position=position, **changes).eval()
        src, tgt = ids(3, 7), ids(3 * K, 6)
        src[1, 4:] = PAD
        expected = at_once(network, src, tgt)
        torch.testing.assert_close(steps(network, begin(network, src), tgt), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["sinusoidal", "rope", "t5", "transformer_xl", "alibi", "learned"])
def test_several_tokens_may_follow_the_cache_at_once(kind, model, ids):
    network = model(position=kind).eval()
    src, tgt = ids(2, 5), ids(2, 30)
    with torch.no_grad():
        cache = begin(network, src)
        memory = cache.memory, cache.memory_key_padding_mask
        parts = [network.decode(part, *memory, cache=cache) for part in tgt.split([3, 1, 20, 6], 1)]
    assert cache.length == 30
    logits = network.projection(torch.cat(parts, 1))
    torch.testing.assert_close(logits, at_once(network, src, tgt), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["sinusoidal", "t5"])
def test_select_reorders_the_rows_of_a_sentence(kind, model, ids):
    network = model(position=kind).eval()
    src, tgt, order = ids(2, 7), ids(2 * K, 6), torch.tensor([1, 1, 2, 3])
    cache = begin(network, src)
    first = steps(network, cache, tgt[:, :3])
    cache.select(order)
    tgt = torch.cat((tgt[order, :3], tgt[:, 3:]), 1)
    second = steps(network, cache, tgt[:, 3:])
    expected = at_once(network, src, tgt)
    torch.testing.assert_close(torch.cat((first[order], second), 1), expected, atol=1e-5, rtol=1e-5)


def test_select_drops_sentences(model, ids):
    network = model().eval()
    src, tgt = ids(3, 7), ids(3 * K, 6)
    src[1, 4:] = PAD
    cache = begin(network, src)
    steps(network, cache, tgt[:, :2])
    rows = torch.tensor([2, 3, 5, 4])
    cache.select(rows)
    tgt = tgt[rows]
    expected = at_once(network, src[1:], tgt)
    torch.testing.assert_close(steps(network, cache, tgt[:, 2:]), expected[:, 2:], atol=1e-5, rtol=1e-5)


def test_the_source_is_projected_once_for_each_layer(model, ids):
    network, shapes = model().eval(), []
    for layer in network.decoder:
        layer.cross_attention.kv.register_forward_pre_hook(lambda _, args: shapes.append(args[0].shape))
    steps(network, begin(network, ids(3, 7)), ids(3 * K, 6))
    assert shapes == [(3, 7, 16)] * len(network.decoder)


@pytest.mark.parametrize("kind", ["sinusoidal", "rope", "t5"])
def test_steps_under_bf16_autocast_are_near(kind, model, ids):
    network = model(position=kind).eval()
    src, tgt = ids(3, 7), ids(3, 6)
    with torch.autocast("cpu", torch.bfloat16):
        logits = steps(network, begin(network, src), tgt)
    expected = at_once(network, src, tgt)
    assert logits.dtype == torch.bfloat16
    assert (logits - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize("kind", ["sinusoidal", "rope", "t5", "transformer_xl", "alibi"])
def test_every_tensor_lies_on_the_device_of_the_model(kind, model, ids):
    """Tensors of the meta device, like those of a GPU, cannot be mixed with others."""
    network = model(position=kind).eval().to("meta")
    src = ids(3, 7).to("meta")
    cache = network.begin(src, torch.zeros_like(src, dtype=torch.bool))
    tokens = torch.full((3 * K, 1), 5)
    for _ in range(2):
        logits = network.step(tokens, cache)
    assert (logits.device.type, logits.shape) == ("meta", (3 * K, 40))
