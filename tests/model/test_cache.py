"""The cache moves what must move and nothing else, and whatever is selected goes on as its own prefix."""

import random

import pytest
import torch

from dragoman.masks import key_padding_mask
from dragoman.model.cache import DecoderCache, Rows
from dragoman.model.transformer import Transformer
from dragoman.special import PAD
from networks import at_rest, sentences

K = 3  # beams


def begun(model: Transformer, n: int = 4) -> tuple[DecoderCache, torch.Tensor]:
    """A cache of n sentences of different lengths, and their source."""
    src = sentences(n, 6)
    src[1, 4:] = PAD
    padding = key_padding_mask(src)
    return DecoderCache(2, model.encode(src, padding), padding), src


def step(model: Transformer, cache: DecoderCache, tokens: torch.Tensor) -> torch.Tensor:
    return model.decode(tokens, cache.memory, cache.memory_key_padding_mask, cache=cache)[:, -1]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("changes", [
    {"position": "sinusoidal"}, {"position": "rope", "norm": "post"}, {"position": "t5", "score": "additive"},
    {"position": "transformer_xl"},
], ids=lambda c: c["position"])  # fmt: skip
def test_any_rows_selected_in_any_order_go_on_as_their_own_prefixes(changes, seed):
    model = at_rest(changes)
    cache, src = begun(model)
    chance = random.Random(seed)
    rows = [(sentence, ()) for sentence in range(4)]
    for _ in range(12):
        tokens = torch.tensor([[chance.randrange(4, 40)] for _ in rows])
        rows = [(s, (*prefix, int(token))) for (s, prefix), token in zip(rows, tokens, strict=True)]
        found = step(model, cache, tokens)
        of, tgt = torch.tensor([s for s, _ in rows]), torch.tensor([prefix for _, prefix in rows])
        expected = model(src[of], tgt, key_padding_mask(src[of]))[:, -1]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        kept = [chance.randrange(len(rows)) for _ in range(chance.randint(1, 9))]
        kept = chance.choice(
            [kept, sorted(kept), [row for row in kept for _ in range(2)], list(range(len(rows)))]
        )
        cache, rows = cache.select(torch.tensor(kept)), [rows[row] for row in kept]


def test_beams_read_one_copy_of_their_sentences_keys_and_re_ordering_them_touches_none():
    model = at_rest({"position": "rope"})
    cache, _ = begun(model)
    cache.select(torch.arange(4).repeat_interleave(K))
    step(model, cache, torch.full((4 * K, 1), 5))
    keys = [cross.kept()[0] for cross in cache.cross]
    assert all(k.size(0) == 4 for k in keys)
    versions = [k._version for k in keys]
    for _ in range(3):
        origin = torch.randint(0, K, (4, K))
        cache.select((origin + K * torch.arange(4)[:, None]).flatten())
        step(model, cache, torch.full((4 * K, 1), 6))
    for cross, before, version in zip(cache.cross, keys, versions, strict=True):
        now = cross.kept()[0]
        assert now.data_ptr() == before.data_ptr()
        assert now._version == version  # nobody wrote there


def test_a_sentence_that_leaves_moves_the_last_one_only():
    model = at_rest({"position": "sinusoidal"})
    cache, _ = begun(model)
    step(model, cache, torch.full((4, 1), 5))
    stores = [*cache.own, *cache.cross]
    before = [store.kept()[0].clone() for store in stores]
    places = [store.kept()[0].data_ptr() for store in stores]
    cache.select(torch.tensor([0, 3, 2]))
    for store, keys, place in zip(stores, before, places, strict=True):
        assert store.kept()[0].data_ptr() == place  # the same memory
        assert torch.equal(store.kept()[0], keys[[0, 3, 2]])
    rows = Rows(torch.tensor([0, 3, 2]), torch.device("cpu"))
    assert (rows.places.tolist(), rows.movers.tolist()) == ([1], [3])


def test_room_for_more_tokens_is_made_seldom():
    model = at_rest({"position": "rope"})
    cache, _ = begun(model)
    places = set()
    for _ in range(64):
        step(model, cache, torch.full((4, 1), 5))
        places.add(cache.own[0].kept()[0].data_ptr())
    assert cache.length == 64
    assert len(places) <= 3  # 16, 32, 64 tokens
