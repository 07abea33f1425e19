"""Searches on hand-made probability tables, where the right answer can be computed by trying everything."""

import itertools
import math

import numpy as np
import pytest
import torch

from dragoman.errors import UserError
from dragoman.search.beam import Beams
from dragoman.search.search import SearchConfig, Sentence, search
from dragoman.search.warp import NEVER, drawn, n_halvings, sharpened
from dragoman.special import BOS, EOS, PAD, UNK

V = 8
WORDS = (4, 5, 6, 7)


class Prefixes:
    """A cache that is nothing but what each row has been fed."""

    def __init__(self, sentences: list[int]) -> None:
        self.rows: list[tuple[int, tuple[int, ...]]] = [(s, ()) for s in sentences]

    def select(self, rows: torch.Tensor) -> None:
        self.rows = [self.rows[i] for i in rows.tolist()]

    def join(self, other: "Prefixes") -> None:
        self.rows += other.rows


def table(seed: int):
    """A language model over (sentence, prefix): random, fixed, and never the same twice."""
    memory: dict = {}

    def logits(sentence: int, prefix: tuple[int, ...]) -> torch.Tensor:
        key = (sentence, prefix)
        if key not in memory:
            generator = torch.Generator().manual_seed(hash((seed, *key)) % 2**31)
            memory[key] = 2 * torch.randn(V, generator=generator)
        return memory[key]

    return logits


def run(logits, config: SearchConfig, sentences: list[int], max_length: int = 4, batch: int = 99, seen=None):
    """What is found for each sentence, `batch` of them at a time; `seen` is told how many rows each step had."""

    def step(tokens, cache):
        assert len(tokens) == len(cache.rows)
        if seen is not None:
            seen.append(len(tokens))
        cache.rows = [(s, (*p, t)) for (s, p), t in zip(cache.rows, tokens[:, 0].tolist(), strict=True)]
        return torch.stack([logits(s, p) for s, p in cache.rows])

    found = {}
    parts = [sentences[i : i + batch] for i in range(0, len(sentences), batch)]
    batches = (([Sentence(s, s, max_length) for s in part], Prefixes(part)) for part in parts)
    search(step, batches, config, lambda number, answer: found.setdefault(number, []).append(answer))
    assert all(len(answers) == 1 for answers in found.values()), "each is told once"
    return [found[s][0] for s in sentences]


def log_p(logits, sentence, prefix):
    row = logits(sentence, prefix).clone()
    row[[*NEVER, EOS] if prefix == (BOS,) else list(NEVER)] = -math.inf
    return row.log_softmax(-1)


def everything(logits, sentence: int, max_length: int, length_penalty: float) -> dict:
    """Score of every possible hypothesis."""
    scores = {}
    for n in range(1, max_length + 1):
        for words in itertools.product(WORDS, repeat=n):
            total = sum(float(log_p(logits, sentence, (BOS, *words[:i]))[w]) for i, w in enumerate(words))
            ended = n < max_length
            if ended:
                total += float(log_p(logits, sentence, (BOS, *words))[EOS])
            scores[words] = total / (n + ended) ** length_penalty
    return scores


@pytest.mark.parametrize("seed", range(5))
def test_a_beam_as_wide_as_the_tree_finds_the_best_of_all_hypotheses(seed):
    logits = table(seed)
    config = SearchConfig(beam_size=4**3, n_best=3, length_penalty=1.0)
    (found,) = run(logits, config, [0], max_length=3)
    scores = everything(logits, 0, 3, 1.0)
    best = sorted(scores, key=scores.get, reverse=True)[:3]
    assert [tuple(h.ids) for h in found] == best
    for hypothesis in found:
        assert hypothesis.score == pytest.approx(scores[tuple(hypothesis.ids)], abs=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_greedy_takes_the_likeliest_word_at_each_step(seed):
    logits = table(seed)
    (found,) = run(logits, SearchConfig(kind="greedy"), [0], max_length=6)
    prefix: tuple[int, ...] = (BOS,)
    for word in found[0].ids:
        assert word == int(log_p(logits, 0, prefix).argmax())
        prefix = (*prefix, word)


@pytest.mark.parametrize("seed", range(5))
def test_a_beam_of_one_is_greedy(seed, monkeypatch):
    logits = table(seed)
    monkeypatch.setattr("dragoman.search.search.Paths", Beams)
    beam = run(logits, SearchConfig(beam_size=1), [0, 1], max_length=5)
    monkeypatch.undo()
    greedy = run(logits, SearchConfig(kind="greedy"), [0, 1], max_length=5)
    assert [h[0].ids for h in beam] == [h[0].ids for h in greedy]
    assert [h[0].score for h in beam] == pytest.approx([h[0].score for h in greedy], abs=1e-5)


KINDS = pytest.mark.parametrize("config", [
    SearchConfig(kind="greedy"),
    SearchConfig(beam_size=3, n_best=3),
    SearchConfig(beam_size=3, length_penalty=0.0),
    SearchConfig(kind="sample", n_best=2, seed=5),
], ids=["greedy", "beam", "beam-0", "sample"])  # fmt: skip


@KINDS
def test_batch_mates_change_nothing(config):
    logits = table(11)
    together = run(logits, config, [0, 1, 2, 3, 4])
    alone = [run(logits, config, [s])[0] for s in range(5)]
    assert [[h.ids for h in hs] for hs in together] == [[h.ids for h in hs] for hs in alone]
    assert [[h.score for h in hs] for hs in together] == [[h.score for h in hs] for hs in alone]


@KINDS
@pytest.mark.parametrize("batch", [1, 2, 8])
def test_what_is_left_of_several_batches_goes_on_together_and_finds_the_same(config, batch):
    logits, sentences = table(7), list(range(37))
    alone, seen = [run(logits, config, [s], max_length=12)[0] for s in sentences], []
    together = run(logits, config, sentences, max_length=12, batch=batch, seen=seen)
    assert [[h.ids for h in hs] for hs in together] == [[h.ids for h in hs] for hs in alone]
    assert [[h.score for h in hs] for hs in together] == [[h.score for h in hs] for hs in alone]
    width = config.n_best if config.kind == "sample" else config.beam_size if config.kind == "beam" else 1
    assert max(seen) <= batch * width


def test_few_rows_of_several_batches_are_one_step():
    def logits(sentence, prefix):
        row = torch.zeros(V)
        row[EOS] = 50.0 if sentence % 8 else -50.0  # one of eight never ends
        return row

    seen: list[int] = []
    found = run(logits, SearchConfig(kind="greedy"), list(range(64)), max_length=100, batch=8, seen=seen)
    assert [len(h[0].ids) for h in found] == [1 if s % 8 else 100 for s in range(64)]
    apart = 8 * 100
    assert len(seen) < 0.3 * apart


@pytest.mark.parametrize("kind", ["greedy", "beam", "sample"])
def test_special_ids_are_never_produced_and_lengths_are_kept(kind):
    def logits(sentence, prefix):
        row = torch.zeros(V)
        row[[PAD, UNK, BOS]] = 50.0  # would win everywhere
        row[EOS] = -50.0  # would never end
        return row

    found = run(logits, SearchConfig(kind=kind, beam_size=3), [0, 1], max_length=5)
    for hypotheses in found:
        assert len(hypotheses[0].ids) == 5
        assert set(hypotheses[0].ids) <= set(WORDS)


@pytest.mark.parametrize("kind", ["greedy", "beam", "sample"])
def test_no_translation_is_empty(kind):
    def logits(sentence, prefix):
        row = torch.zeros(V)
        row[EOS] = 50.0
        return row

    found = run(logits, SearchConfig(kind=kind, beam_size=2), [0, 1])
    assert [len(hypotheses[0].ids) for hypotheses in found] == [1, 1]


def test_n_best_is_sorted_and_distinct():
    for seed in range(5):
        (found,) = run(table(seed), SearchConfig(beam_size=4, n_best=4), [0])
        assert len({tuple(h.ids) for h in found}) == len(found) == 4
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)


def test_the_score_is_the_sum_of_token_scores_over_length_to_the_penalty():
    for penalty in (0.0, 0.6, 1.0):
        (found,) = run(table(3), SearchConfig(beam_size=4, n_best=2, length_penalty=penalty), [0])
        for h in found:
            assert h.score == pytest.approx(sum(h.token_scores) / len(h.token_scores) ** penalty, abs=1e-5)


def test_a_finished_hypothesis_is_not_changed_by_what_comes_after():
    logits = table(2)
    short = {
        tuple(h.ids): h.score for h in run(logits, SearchConfig(beam_size=4, n_best=4), [0], max_length=3)[0]
    }
    scores = everything(logits, 0, 3, 1.0)
    for ids, score in short.items():
        assert score == pytest.approx(scores[ids], abs=1e-4)


def test_samples_follow_the_models_distribution():
    p = torch.tensor([0.0, 0.0, 0.0, 0.1, 0.2, 0.3, 0.4, 0.0])

    def logits(sentence, prefix):
        return p.log()

    found = run(logits, SearchConfig(kind="sample", n_best=1000), [0, 1, 2, 3], max_length=1)
    found = [h for hypotheses in found for h in hypotheses]
    for word in (4, 5, 6):
        share = sum(h.ids == [word] for h in found) / 4000
        assert share == pytest.approx(float(p[word] / (1 - p[EOS])), abs=0.03)  # the first piece is never EOS


@pytest.mark.parametrize("n_words", [2, 3, 7, 8, 9, 1000])
def test_words_are_drawn_with_their_probabilities(n_words: int):
    p = torch.randn(n_words, generator=torch.Generator().manual_seed(n_words)).mul(2).exp()
    p[torch.arange(n_words) % 3 == 1] = 0.0  # top-k and top-p leave holes
    p /= p.sum()
    n = 200_000
    chances = 1 - np.random.default_rng(3).random((n, n_halvings(n_words)))
    words = drawn(p.expand(n, -1), torch.from_numpy(chances).float())
    found = torch.bincount(words.flatten(), minlength=n_words) / n
    assert words.shape == (n, 1)
    assert (found[p == 0] == 0).all()
    torch.testing.assert_close(found, p, rtol=0, atol=0.006)


@pytest.mark.parametrize("chance", [1.0, 2**-53])
def test_no_chance_draws_a_word_without_probability(chance: float):
    for n_words in (2, 5, 8):
        for only in range(n_words):
            p = torch.zeros(1, n_words)
            p[0, only] = 1.0
            assert drawn(p, torch.full((1, n_halvings(n_words)), chance)).item() == only


def test_another_way_of_computing_hardly_ever_draws_another_word():
    """Errors of 1e-4 in the hidden states; a number looked up in cumulated probabilities parts 155 times in 10,000."""
    generator = torch.Generator().manual_seed(1)
    projection = torch.randn(64, 8000, generator=generator) / 8
    hidden = 3 * torch.randn(5000, 64, generator=generator)
    others = hidden + 1e-4 * torch.randn(hidden.shape, generator=generator)
    chances = 1 - torch.rand(5000, n_halvings(8000), generator=generator)
    ones = drawn((hidden @ projection).softmax(dim=1), chances)
    assert ones.unique().numel() > 500
    assert (ones != drawn((others @ projection).softmax(dim=1), chances)).sum() <= 5


def test_top_k_and_top_p_keep_the_likeliest():
    log_p = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert (sharpened(log_p, temperature=1.0, top_k=2, top_p=1.0).exp()[0] > 0).tolist() == [
        True,
        True,
        False,
        False,
    ]
    assert (sharpened(log_p, temperature=1.0, top_k=0, top_p=0.7).exp()[0] > 0).tolist() == [
        True,
        True,
        False,
        False,
    ]
    assert (sharpened(log_p, temperature=1.0, top_k=0, top_p=0.01).exp()[0] > 0).tolist() == [True] + [
        False
    ] * 3
    assert sharpened(log_p, temperature=0.01, top_k=0, top_p=1.0).exp()[0, 0] == pytest.approx(1.0)


@pytest.mark.parametrize("wrong", [
    {"kind": "beams"}, {"beam_size": 0}, {"n_best": 0}, {"beam_size": 2, "n_best": 3},
    {"kind": "greedy", "n_best": 2}, {"temperature": 0.0}, {"top_p": 0.0}, {"top_k": -1}, {"max_length_b": -1},
])  # fmt: skip
def test_impossible_searches_are_refused_by_key(wrong):
    with pytest.raises(UserError, match=r"search\."):
        SearchConfig(**wrong)
