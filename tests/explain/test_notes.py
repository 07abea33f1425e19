"""Worked examples: output in both languages, and numbers without another test."""

import re

import pytest
import torch

from dragoman.explain import notes
from dragoman.explain.page import numbers, render


@pytest.fixture(scope="module")
def values() -> dict[str, notes.Values]:
    return {name: example() for name, example in notes.EXAMPLES.items()}


def test_both_languages_print_the_same_numbers(values: dict[str, notes.Values]) -> None:
    for name, example in values.items():
        printed = [
            re.findall(r"(?m)^  +[-\d].*$", render(f"explain/notes_{language}.j2", block=name, **example).decode())
            for language in ("zh", "en")
        ]
        assert printed[0] == printed[1], name
        tensors = [value for key, value in example.items() if isinstance(value, torch.Tensor) and value.dim() == 2]
        for rows in map(str.splitlines, map(numbers, tensors)):
            assert set(rows) <= set(printed[0]), name


def test_each_example_has_a_title_with_its_note() -> None:
    for language in ("zh", "en"):
        titles = dict(notes.titles(language))
        assert titles.keys() == notes.EXAMPLES.keys()
        assert all(re.match("00[0-4]|paper|论文", title) for title in titles.values())


def test_pictures_are_those_that_are_named(values: dict[str, notes.Values]) -> None:
    assert {name for name, example in values.items() if "picture" in example} == set(notes.PICTURES)
    assert all(values[name]["picture"]().startswith(b"\x89PNG") for name in notes.PICTURES)


def test_numbers_of_the_examples(values: dict[str, notes.Values]) -> None:
    gradient, heads, pooling = values["gradient"], values["heads"], values["pooling"]
    torch.testing.assert_close(gradient["autograd"], 2 * gradient["by_hand"])
    torch.testing.assert_close(heads["together"], heads["alone"])
    torch.testing.assert_close(pooling["mean"], torch.tensor([[0.2, 0.3], [1.1, 1.2]]))
    torch.testing.assert_close(pooling["first"], pooling["memory"][:, 0])
    assert pooling["alpha"][[0, 0, 1, 1, 1], [3, 4, 2, 3, 4]].tolist() == [0] * 5
    d, raw, scaled, largest, largest_scaled = values["scale"]["rows"].T
    torch.testing.assert_close(raw / d, torch.ones(4), atol=0.06, rtol=0)
    torch.testing.assert_close(scaled, torch.ones(4), atol=0.06, rtol=0)
    assert largest[-1] > 0.99 > 0.5 > largest_scaled[-1]
    torch.testing.assert_close(values["rope"]["turned"].norm(dim=1), torch.full((4,), 30**0.5))
    assert values["rope"]["angles"][0].item() == pytest.approx(180 / torch.pi, abs=1e-3)
