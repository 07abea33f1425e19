"""N lines in, N vectors out: what each of them is, and that the others do not matter."""

import pytest
import torch

from dragoman.bundle import Bundle
from dragoman.errors import UserError
from dragoman.model.pooling import POOLINGS
from dragoman.special import EOS
from dragoman.translator import Translator
from tiny import SENTENCES

CHINESE = SENTENCES[:5]


@pytest.fixture(scope="module")
def translator(tiny_bundle: Bundle) -> Translator:
    return Translator(tiny_bundle)


def states(translator: Translator, sentence: str) -> torch.Tensor:
    """(tokens, D): the encoder's output for one sentence alone."""
    src = torch.tensor([[*translator.bundle.src_tokenizer.encode(sentence), EOS]])
    with torch.no_grad():
        return translator.bundle.model.encode(src, torch.zeros_like(src, dtype=torch.bool))[0]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_other_lines_and_the_batches_change_no_vector(
    translator: Translator, pooling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [*CHINESE, "", *reversed(CHINESE)]
    together = translator.embed(lines, pooling)
    assert together.shape == (11, 32)
    assert together.dtype == torch.float32
    torch.testing.assert_close(together[:5], together[6:].flip(0))
    alone = torch.cat([translator.embed([line], pooling) for line in lines])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        together, translator.embed(lines, pooling, batch_tokens=1), atol=1e-5, rtol=1e-4
    )
    monkeypatch.setattr("dragoman.translator._WINDOW_LINES", 2)
    torch.testing.assert_close(together, translator.embed(iter(lines), pooling), atol=1e-5, rtol=1e-4)


def test_different_sentences_and_poolings_have_different_vectors(translator: Translator) -> None:
    vectors = torch.cat([translator.embed(CHINESE, pooling) for pooling in POOLINGS])
    assert len(torch.unique(vectors.round(decimals=4), dim=0)) == 3 * len(CHINESE)


def test_mean_and_first_are_taken_from_the_encoders_output(translator: Translator) -> None:
    for line in CHINESE:
        h = states(translator, line)
        torch.testing.assert_close(translator.embed([line])[0], h.mean(0), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(translator.embed([line], "first")[0], h[0], atol=1e-5, rtol=1e-4)


def test_a_paragraph_is_the_mean_of_its_sentences_weighted_by_tokens(translator: Translator) -> None:
    h = [states(translator, sentence) for sentence in CHINESE[:3]]
    paragraph = "".join(CHINESE[:3])
    mean = translator.embed([paragraph])[0]
    torch.testing.assert_close(mean, torch.cat(h).mean(0), atol=1e-5, rtol=1e-4)  # over all its tokens
    sizes = torch.tensor([float(len(each)) for each in h])
    first = (torch.stack([each[0] for each in h]) * sizes[:, None]).sum(0) / sizes.sum()
    torch.testing.assert_close(translator.embed([paragraph], "first")[0], first, atol=1e-5, rtol=1e-4)


def test_a_line_longer_than_any_training_sentence_is_read_whole(translator: Translator) -> None:
    begin, end = "好" * 300, "好" * 300 + "你" * 300
    vectors = translator.embed([begin, end])
    assert vectors.isfinite().all()
    assert not torch.allclose(vectors[0], vectors[1], atol=1e-3)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_what_is_not_translated_is_zeros(translator: Translator, pooling: str) -> None:
    vectors = translator.embed(["", "我爱你。", " \u3000", "😀 !?"], pooling)
    assert vectors[[0, 2, 3]].eq(0).all()
    assert vectors[1].ne(0).any()
    assert translator.embed([], pooling).shape == (0, 32)


def test_an_unknown_pooling_names_the_choices_before_anything_is_read(translator: Translator) -> None:
    def unread() -> object:
        raise AssertionError
        yield ""

    with pytest.raises(
        UserError, match=r"'maen'; choose one of mean, first, attention \(did you mean 'mean'"
    ):
        translator.embed(unread(), "maen")  # type: ignore[arg-type]
