"""What a step brings back from the logits, and from where it is fetched."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dragoman.search.hypothesis import closed_up
from dragoman.search.search import Hypothesis, SearchConfig, Sentence, search
from dragoman.search.warp import NEVER, likeliest, log_probabilities
from dragoman.special import EOS


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("n_rows", [1, 3, 4, 70])
@pytest.mark.parametrize("n_words", [8, 9, 640, 1003])
@pytest.mark.parametrize("n", [1, 8])
def test_the_likeliest_words_are_those_of_all_log_probabilities(
    n: int, n_words: int, n_rows: int, first: bool
) -> None:
    logits = 3 * torch.randn(n_rows, n_words, generator=torch.Generator().manual_seed(n_words + n))
    expected = log_probabilities(logits.clone(), first=first).topk(n, dim=-1)
    words, log_p = likeliest(logits, n, first=first)
    possible = expected.values > float("-inf")  # which of the impossible words come last is nobody's business
    assert torch.equal(words[possible], expected.indices[possible])
    torch.testing.assert_close(log_p, expected.values, atol=1e-5, rtol=1e-5)


def test_what_is_never_produced_are_the_first_ids_and_eos_the_next():
    assert (*NEVER, EOS) == tuple(range(EOS + 1))


@given(st.lists(st.booleans(), max_size=30))
def test_who_stays_closes_up_and_whoever_has_a_place_keeps_it(stays: list[bool]) -> None:
    staying = [row for row, stay in enumerate(stays) if stay]
    found = closed_up(staying)
    assert sorted(found) == staying
    assert all(found[row] == row for row in staying if row < len(staying))


class Elsewhere(Tensor):
    """A tensor that says it lies on a GPU, lets itself be fetched by `.cpu()` alone, and counts how often."""

    trips = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return torch.device("cuda")
        if name == "cpu":
            cls.trips += 1
            return args[0].as_subclass(Tensor)
        waits = ("item", "tolist", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__")
        assert name not in waits, f"{name} waits for the device"
        mixed = [x for x in args if isinstance(x, Tensor) and not isinstance(x, Elsewhere) and x.dim()]
        assert not mixed, f"{name} of two devices"
        return super().__torch_function__(func, types, args, kwargs or {})


class Nothing:
    def select(self, rows: Tensor) -> None:
        assert type(rows) is Tensor  # on the CPU

    def join(self, other: "Nothing") -> None:
        pass


@pytest.mark.parametrize("kind", ["greedy", "beam"])
def test_a_step_waits_for_its_device_once(kind: str) -> None:
    generator, n_steps = torch.Generator().manual_seed(1), 0

    def step(tokens: Tensor, cache: Nothing) -> Tensor:
        nonlocal n_steps
        n_steps += 1
        assert type(tokens) is Tensor
        logits = torch.randn(len(tokens), 40, generator=generator)
        logits[:, EOS] += 2
        return logits.as_subclass(Elsewhere)

    Elsewhere.trips = 0
    config = SearchConfig(kind=kind, beam_size=3)
    found: dict[int, list[Hypothesis]] = {}
    batches = [([Sentence(i, i, 9) for i in numbers], Nothing()) for numbers in (range(5), range(5, 8))]
    search(step, batches, config, found.__setitem__)
    assert n_steps > 2
    assert len(found) == 8
    assert Elsewhere.trips == n_steps
