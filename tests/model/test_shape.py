"""The names in a configuration and the classes they stand for are the same ones."""

from dragoman.model.attention import SCORES
from dragoman.model.layers import ACTIVATIONS, NORMALIZATIONS
from dragoman.model.position import POSITIONS
from dragoman.model.shape import CHOICES, POSITION_KINDS


def test_every_choice_has_its_class_and_every_class_is_a_choice() -> None:
    assert tuple(POSITIONS) == POSITION_KINDS
    for key, registry in (("score", SCORES), ("activation", ACTIVATIONS), ("normalization", NORMALIZATIONS)):
        assert tuple(registry) == CHOICES[key]
