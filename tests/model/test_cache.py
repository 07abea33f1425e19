"""The cache moves what must move and nothing else, and whatever is selected goes on as its own prefix."""

import random

import pytest
import torch

from dragoman.masks import key_padding_mask
from dragoman.model.cache import DecoderCache, Rows
from dragoman.model.position import POSITIONS
from dragoman.model.step import Step
from dragoman.model.transformer import Transformer
from dragoman.special import PAD
from networks import at_rest, sentences

K = 3  # beams


def begun(model: Transformer, n: int = 4, longest: int = 6) -> tuple[Step, DecoderCache, torch.Tensor]:
    """A cache of n sentences of different lengths, and their source."""
    src = sentences(n, longest)
    src[1, longest - 2 :] = PAD
    step = Step(model)
    return step, step.begin(src), src


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("changes", [
    {"position": "sinusoidal"}, {"position": "rope", "norm": "post"}, {"position": "t5", "score": "additive"},
    {"position": "transformer_xl"},
], ids=lambda c: c["position"])  # fmt: skip
def test_any_rows_selected_in_any_order_go_on_as_their_own_prefixes(changes, seed):
    model = at_rest(changes)
    step, cache, src = begun(model)
    chance = random.Random(seed)
    rows = [(sentence, ()) for sentence in range(4)]
    for _ in range(12):
        tokens = torch.tensor([[chance.randrange(4, 40)] for _ in rows])
        rows = [(s, (*prefix, int(token))) for (s, prefix), token in zip(rows, tokens, strict=True)]
        found = step(tokens, cache)
        of, tgt = torch.tensor([s for s, _ in rows]), torch.tensor([prefix for _, prefix in rows])
        expected = model(src[of], tgt, key_padding_mask(src[of]))[:, -1]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        kept = [chance.randrange(len(rows)) for _ in range(chance.randint(1, 9))]
        kept = chance.choice(
            [kept, sorted(kept), [row for row in kept for _ in range(2)], list(range(len(rows)))]
        )
        cache.select(torch.tensor(kept))
        rows = [rows[row] for row in kept]


@pytest.mark.parametrize("n_rows", [1, K], ids=["a row a sentence", "beams"])
@pytest.mark.parametrize("changes", [
    *({"position": kind} for kind in POSITIONS), {"score": "additive"}, {"position": "t5", "score": "additive"},
], ids=lambda c: "-".join(c.values()))  # fmt: skip
@torch.inference_mode()
def test_batches_of_any_age_that_join_go_on_as_their_own_prefixes(changes, n_rows):
    model, chance = at_rest(changes), random.Random(1)
    step, parts = Step(model), []

    def advance(cache, rows, *, look=True):
        tokens = torch.tensor([[chance.randrange(4, 40)] for _ in rows])
        rows = [(src, [*prefix, int(token)]) for (src, prefix), token in zip(rows, tokens, strict=True)]
        found = step(tokens, cache)
        for (src, prefix), logits in zip(rows, found, strict=True) if look else ():
            expected = model(src[None], torch.tensor([prefix]), key_padding_mask(src[None]))[0, -1]
            torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
        return rows

    def select(cache, rows, kept):
        cache.select(torch.tensor(kept))
        return [rows[row] for row in kept]

    for longest, age in ((7, 1), (4, 6), (5, 9)):
        src = sentences(3, longest)
        src[1, longest - 2 :] = PAD
        cache = step.begin(src)
        rows = select(cache, [(one, []) for one in src], [at for at in range(3) for _ in range(n_rows)])
        for _ in range(age):
            rows = advance(cache, rows, look=False)
        parts.append((cache, rows))
    (cache, rows), *others = parts
    for other, more in others:
        cache.join(other)
        rows = advance(cache, rows + more)
        oldest_leave = [at for at in range(len(rows)) if len(rows[at][1]) < cache.length]
        rows = advance(cache, select(cache, rows, oldest_leave))
    assert cache.length == max(len(prefix) for _, prefix in rows), "nothing is kept for who has left"
    rows = select(cache, rows, [0, *range(len(rows))])  # a sentence has more rows than the others now ...
    src = sentences(2, 3)
    another = step.begin(src)
    more = select(another, [(one, []) for one in src], [0] * n_rows + [1] * n_rows)
    cache.join(another)  # ... and some begin
    advance(cache, rows + more)


def test_what_is_masked_is_not_garbage():
    """0 times NaN would be NaN: what nobody looks at is 0, whatever lay in that memory before."""
    model = at_rest({"position": "sinusoidal"})
    step, old, _ = begun(model)
    for _ in range(3):
        step(torch.full((4, 1), 5), old)
    _, young, _ = begun(model, longest=3)
    garbage = torch.Tensor.new_empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "new_empty", lambda *args, **kw: garbage(*args, **kw).fill_(float("nan")))
        young.join(old)
        assert step(torch.full((8, 1), 6), young).isfinite().all()


def test_beams_read_one_copy_of_their_sentences_keys_and_re_ordering_them_touches_none():
    model = at_rest({"position": "rope"})
    step, cache, _ = begun(model)
    cache.select(torch.arange(4).repeat_interleave(K))
    step(torch.full((4 * K, 1), 5), cache)
    keys = [cross.kept()[0] for cross in cache.cross]
    assert all(k.size(0) == 4 for k in keys)
    versions = [k._version for k in keys]
    for _ in range(3):
        origin = torch.randint(0, K, (4, K))
        cache.select((origin + K * torch.arange(4)[:, None]).flatten())
        step(torch.full((4 * K, 1), 6), cache)
    for cross, before, version in zip(cache.cross, keys, versions, strict=True):
        now = cross.kept()[0]
        assert now.data_ptr() == before.data_ptr()
        assert now._version == version  # nobody wrote there


def test_a_sentence_that_leaves_moves_the_last_one_only():
    model = at_rest({"position": "sinusoidal"})
    step, cache, _ = begun(model)
    step(torch.full((4, 1), 5), cache)
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
    step, cache, _ = begun(model)
    places = set()
    for _ in range(64):
        step(torch.full((4, 1), 5), cache)
        places.add(cache.own[0].kept()[0].data_ptr())
    assert cache.length == 64
    assert len(places) <= 3  # 16, 32, 64 tokens
