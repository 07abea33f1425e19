"""The golden model, random networks, and a comparison that allows near ties."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman import bundle as bundles
from dragoman.bundle import Bundle
from dragoman.model.transformer import Transformer
from dragoman.search import Hypothesis
from dragoman.special import BOS, EOS
from dragoman.translation.ctranslate2 import CTranslate2Engine
from dragoman.translation.export import export_bundle
from dragoman.translation.translator import Translator

# Two engines, or two shapes of a batch, round differently: ids may differ only where log-probs are this close.
NEAR_TIE = 1e-4


@pytest.fixture(scope="session")
def golden_folder() -> Path:
    """Read-only model of both directions, trained on sixty phrases."""
    return Path(__file__).parents[1] / "golden" / "bundle"


@pytest.fixture(scope="session")
def golden(golden_folder: Path) -> Bundle:
    return bundles.load(golden_folder)


@pytest.fixture(scope="session")
def translator(golden: Bundle) -> Translator:
    return Translator(golden)


@pytest.fixture(scope="session")
def shaped(golden: Bundle) -> Callable[..., Bundle]:
    """Factory of random networks with large weights: shaped(**model settings)."""

    def shaped(**shape: Any) -> Bundle:
        torch.manual_seed(3)
        config = dataclasses.replace(golden.model_config, **shape)
        size = len(golden.src_tokenizer)
        model = Transformer(config, src_vocab_size=size, tgt_vocab_size=size).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(2)
                else:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return dataclasses.replace(golden, model=model, model_config=config)

    return shaped


@pytest.fixture(scope="session")
def engine_of() -> Callable[..., CTranslate2Engine]:
    """Save, export (float32) and load a bundle: engine_of(bundle, folder, texts=())."""

    def engine_of(bundle: Bundle, folder: Path, texts: Sequence[str] = ()) -> CTranslate2Engine:
        bundles.save(bundle, folder)
        export_bundle(folder, texts, quantization="float32")
        return CTranslate2Engine.load(folder, bundle)

    return engine_of


@pytest.fixture(scope="session")
def assert_same() -> Callable[..., None]:
    """Assert equal hypotheses, up to ties: assert_same(model, sources, ours, theirs).

    Near ties by torch's log-probs are allowed. Scores are compared where `theirs` have them.
    """

    def assert_same(
        model: Transformer,
        sources: Sequence[list[int]],
        ours: Sequence[list[Hypothesis]],
        theirs: Sequence[list[Hypothesis]],
    ) -> None:
        for source, expected, results in zip(sources, ours, theirs, strict=True):
            assert len(results) == len(expected)
            for a, b in zip(expected, results, strict=True):
                close = abs(a.score - b.score) <= NEAR_TIE * max(1, abs(a.score))
                if a.ids == b.ids:
                    assert close or math.isnan(b.score)
                else:
                    assert close or gap(model, source, a.ids, b.ids) <= NEAR_TIE, (source, a, b)

    return assert_same


@torch.no_grad()
def gap(model: Transformer, source: list[int], a: list[int], b: list[int]) -> float:
    """Difference in log-prob of the first pieces in which two hypotheses differ."""
    a, b = [*a, EOS], [*b, EOS]
    first = next(n for n, pieces in enumerate(zip(a, b, strict=False)) if len(set(pieces)) > 1)
    logits = model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *a[:first]]]), None)[0, -1]
    return abs(float(logits[a[first]] - logits[b[first]]))
