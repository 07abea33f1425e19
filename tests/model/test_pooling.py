"""Sentence vectors: the formula of each pooling, and no effect of padding."""

from collections.abc import Callable

import torch
from torch import Tensor

from dragoman.model.pooling import POOLINGS, AttentionPooling, attention_mean, first_token, masked_mean

# note 002, section 5.3: two sentences of five positions, with three and two tokens
PADDING = torch.tensor([[False, False, False, True, True], [False, False, True, True, True]])


def memory(d_model: int = 16) -> Tensor:
    return torch.randn(2, 5, d_model, generator=torch.Generator().manual_seed(4))


def every() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    torch.manual_seed(5)
    return {**POOLINGS, "learned": AttentionPooling(16)}


def test_mean_and_first_token_are_those_of_the_notes() -> None:
    h = memory(128)
    mask = (~PADDING)[..., None].float()
    torch.testing.assert_close(masked_mean(h, PADDING), (h * mask).sum(1) / mask.sum(1))
    torch.testing.assert_close(masked_mean(h, PADDING)[1], (h[1, 0] + h[1, 1]) / 2)
    assert torch.equal(first_token(h, PADDING), h[:, 0, :])


def test_attention_pooling_is_the_notes_formula() -> None:
    h, pooling = memory(), AttentionPooling(16)
    w, matrix, b = pooling.score.weight[0], pooling.hidden.weight, pooling.hidden.bias
    vectors, weights = pooling(h, PADDING), pooling.weights(h, PADDING)
    for row, n_tokens in enumerate((3, 2)):
        e = torch.stack([w @ torch.tanh(matrix @ h[row, i] + b) for i in range(n_tokens)])
        alpha = e.exp() / e.exp().sum()
        torch.testing.assert_close(weights[row, :n_tokens], alpha)
        torch.testing.assert_close(vectors[row], sum(alpha[i] * h[row, i] for i in range(n_tokens)))
    assert weights[PADDING].eq(0).all()


def test_the_mean_is_the_query_of_attention_mean() -> None:
    h = memory()
    for row, n_tokens in enumerate((3, 2)):
        tokens = h[row, :n_tokens]
        alpha = torch.stack([tokens.mean(0) @ token / 16**0.5 for token in tokens]).softmax(0)
        torch.testing.assert_close(attention_mean(h, PADDING)[row], alpha @ tokens)


def test_padding_changes_no_vector() -> None:
    for pool in every().values():
        h = memory()
        other = h.masked_fill(PADDING[..., None], 1e4)
        torch.testing.assert_close(pool(h, PADDING), pool(other, PADDING))
        torch.testing.assert_close(pool(h, PADDING)[1:], pool(h[1:, :2], PADDING[1:, :2]))


def test_a_row_without_tokens_gives_zeros() -> None:
    padding = torch.tensor([[False, False, True, True, True], [True] * 5])
    for pool in every().values():
        h = memory().requires_grad_()
        vectors = pool(h, padding)
        vectors.sum().backward()
        assert vectors[1].eq(0).all()
        assert vectors[0].ne(0).all()
        assert h.grad.isfinite().all()
        assert h.grad[padding].eq(0).all()
