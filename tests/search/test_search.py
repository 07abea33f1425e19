"""Searches on small probability tables, compared with exhaustive search."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dragoman.config import SearchConfig
from dragoman.search import Hypothesis, Sentence
from dragoman.search.search import NEVER, SEARCHES, log_probabilities, plain_greedy, search, warped
from dragoman.special import BOS, EOS, PAD, UNK

V = 8
WORDS = (4, 5, 6, 7)
Logits = Callable[[int, tuple[int, ...]], Tensor]


class Prefixes:
    """A cache of the sentence and the input tokens of each row."""

    def __init__(self, sentences: list[int], k: int) -> None:
        self.rows: list[tuple[int, tuple[int, ...]]] = [(s, ()) for s in sentences for _ in range(k)]

    def select(self, rows: Tensor) -> None:
        self.rows = [self.rows[i] for i in rows.tolist()]


def table(seed: int) -> Logits:
    """A random language model over (sentence, prefix)."""
    memory: dict = {}

    def logits(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        key = (sentence, prefix)
        if key not in memory:
            generator = torch.Generator().manual_seed(hash((seed, *key)) % 2**31)
            memory[key] = 2 * torch.randn(V, generator=generator)
        return memory[key]

    return logits


def constant(**values: float) -> Logits:
    """The same logits at every step; 0 where no value is given."""
    ids = {"PAD": PAD, "UNK": UNK, "BOS": BOS, "EOS": EOS}
    row = torch.zeros(V)
    for name, value in values.items():
        row[ids[name]] = value
    return lambda sentence, prefix: row


def run(
    logits: Logits, config: SearchConfig, sentences: list[int], max_length: int = 4, n_rows: list | None = None
) -> list[list[Hypothesis]]:
    """Search with `logits` as the model; append the rows of each step to `n_rows`."""

    def step(tokens: Tensor, cache: Prefixes) -> Tensor:
        assert len(tokens) == len(cache.rows)
        if n_rows is not None:
            n_rows.append(len(tokens))
        cache.rows = [(s, (*p, t)) for (s, p), t in zip(cache.rows, tokens[:, 0].tolist(), strict=True)]
        return torch.stack([logits(s, p) for s, p in cache.rows])

    cache = Prefixes(sentences, SEARCHES[config.kind].width(config))
    return search(step, cache, [Sentence(s, max_length) for s in sentences], config)


def log_p(logits: Logits, sentence: int, prefix: tuple[int, ...]) -> Tensor:
    """Log-probs (V,) of the next token; -inf for tokens that are never produced."""
    row = logits(sentence, prefix).clone()
    row[[*NEVER, EOS] if prefix == (BOS,) else list(NEVER)] = -math.inf
    return row.log_softmax(-1)


def token_log_probs(logits: Logits, sentence: int, words: tuple[int, ...], max_length: int) -> list[float]:
    """Log-probs of the words, and of <EOS> if they are shorter than max_length."""
    ended = (*words, EOS) if len(words) < max_length else words
    return [float(log_p(logits, sentence, (BOS, *words[:i]))[w]) for i, w in enumerate(ended)]


def every_score(logits: Logits, sentence: int, max_length: int, length_penalty: float) -> dict:
    """Score of each possible hypothesis."""
    scores = {}
    for n in range(1, max_length + 1):
        for words in itertools.product(WORDS, repeat=n):
            log_probs = token_log_probs(logits, sentence, words, max_length)
            scores[words] = sum(log_probs) / len(log_probs) ** length_penalty
    return scores


@pytest.mark.parametrize("length_penalty", [1.0, 0.6])
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_equals_exhaustive_search(seed, length_penalty):
    logits = table(seed)
    config = SearchConfig(beam_size=4**3, n_best=3, length_penalty=length_penalty)
    (hypotheses,) = run(logits, config, [0], max_length=3)
    scores = every_score(logits, 0, 3, length_penalty)
    assert [tuple(h.ids) for h in hypotheses] == sorted(scores, key=scores.get, reverse=True)[:3]
    for hypothesis in hypotheses:
        assert hypothesis.score == pytest.approx(scores[tuple(hypothesis.ids)], abs=1e-4)


def naive_beam(logits: Logits, config: SearchConfig, sentence: int, max_length: int) -> list[tuple]:
    """Beam search by CTranslate2's rules, with lists: (score, ids), best first."""
    k, beams, finished, best_ended = config.beam_size, [((), 0.0)], [], False
    for length in range(1, max_length + 1):
        candidates = [
            ((*words, w), total + float(log_p(logits, sentence, (BOS, *words))[w]))
            for words, total in beams
            for w in range(V)
        ]
        candidates = sorted(candidates, key=lambda c: -c[1])[: 2 * k]
        for rank, (words, total) in enumerate(candidates[:k]):
            if total > -math.inf and (words[-1] == EOS or length == max_length):
                ids = words[:-1] if words[-1] == EOS else words
                finished.append((total / length**config.length_penalty, ids))
                best_ended |= rank == 0
        enough = config.n_best if config.length_penalty == 0 else k
        if len(finished) >= enough and (config.length_penalty != 0 or best_ended):
            break
        beams = [c for c in candidates if c[0][-1] != EOS][:k]
    return sorted(finished, key=lambda f: -f[0])[: config.n_best]


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_beam_search_equals_a_plain_beam_with_lists(k, length_penalty):
    config = SearchConfig(beam_size=k, n_best=k, length_penalty=length_penalty)
    logits, sentences = table(20 + k), list(range(12))
    for sentence, hypotheses in zip(sentences, run(logits, config, sentences, max_length=6), strict=True):
        expected = naive_beam(logits, config, sentence, 6)
        assert [tuple(h.ids) for h in hypotheses] == [ids for _, ids in expected]
        assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in expected], abs=1e-4)


@pytest.mark.parametrize("max_length", [1, 6])
@pytest.mark.parametrize("seed", range(3))
def test_the_plain_loop_takes_the_most_probable_piece(seed, max_length):
    logits = table(seed)
    ids = plain_greedy(lambda prefix: logits(0, tuple(prefix[0].tolist()))[None], max_length)
    for n, word in enumerate([*ids, EOS][:max_length]):
        assert word == int(log_p(logits, 0, (BOS, *ids[:n])).argmax())
    ((hypothesis,),) = run(logits, SearchConfig(kind="greedy"), [0], max_length=max_length)
    assert hypothesis.ids == ids


def test_a_beam_of_one_is_greedy():
    configs = (SearchConfig(kind=kind, beam_size=1) for kind in ("beam", "greedy"))
    beam, greedy = (run(table(4), config, list(range(9)), 5) for config in configs)
    assert [h[0].ids for h in beam] == [h[0].ids for h in greedy]
    assert [h[0].score for h in beam] == pytest.approx([h[0].score for h in greedy], abs=1e-5)


KINDS = pytest.mark.parametrize(
    "config",
    [
        SearchConfig(kind="greedy", length_penalty=0.6),
        SearchConfig(beam_size=3, n_best=3),
        SearchConfig(beam_size=3, length_penalty=0.0),
        SearchConfig(kind="sample", n_best=2, seed=5, temperature=0.5, top_k=3, length_penalty=0.6),
    ],
    ids=["greedy", "beam", "beam-0", "sample"],
)


@KINDS
def test_other_sentences_of_the_batch_change_nothing(config):
    logits = table(11)
    together = run(logits, config, [0, 1, 2, 3, 4])
    assert together == [run(logits, config, [s])[0] for s in range(5)]
    assert together[::-1] == run(logits, config, [4, 3, 2, 1, 0])


@KINDS
def test_scores_are_the_models_log_probs_over_the_penalty(config):
    """Sampling draws from a sharper distribution, but its scores are the model's, too."""
    logits, n_ended = table(3), 0
    for sentence, hypotheses in enumerate(run(logits, config, list(range(9)))):
        for h in hypotheses:
            expected = token_log_probs(logits, sentence, tuple(h.ids), 4)
            assert h.token_scores == pytest.approx(expected, abs=1e-5)
            assert h.score == pytest.approx(sum(expected) / len(expected) ** config.length_penalty, abs=1e-5)
            assert h.score <= hypotheses[0].score
            n_ended += len(h.ids) < 4
    assert n_ended


@KINDS
def test_special_ids_are_never_produced(config):
    results = run(constant(PAD=50, UNK=50, BOS=50, EOS=-50), config, [0, 1], max_length=5)
    for hypotheses in results:
        assert len(hypotheses[0].ids) == 5
        assert set(hypotheses[0].ids) <= set(WORDS)


@KINDS
def test_no_translation_is_empty(config):
    assert [len(hypotheses[0].ids) for hypotheses in run(constant(EOS=50), config, [0, 1])] == [1, 1]


@KINDS
def test_finished_sentences_leave_the_batch(config):
    def logits(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        return constant(EOS=50 if len(prefix) > 1 + sentence else -50)(sentence, prefix)

    n_rows: list[int] = []
    results = run(logits, config, [1, 2, 3, 4], max_length=9, n_rows=n_rows)
    k = SEARCHES[config.kind].width(config)
    assert [len(h[0].ids) for h in results] == [2, 3, 4, 5]
    assert (n_rows[0], n_rows[-1]) == (4 * k, k)
    assert n_rows == sorted(n_rows, reverse=True)


def test_each_sentence_has_its_own_longest_length():
    def step(tokens: Tensor, cache: Prefixes) -> Tensor:
        return constant(EOS=-50)(0, ()).expand(len(tokens), -1)

    for kind in SEARCHES:
        config = SearchConfig(kind=kind, beam_size=2)
        sentences = [Sentence(0, 2), Sentence(1, 5), Sentence(2, 3)]
        cache = Prefixes([0, 1, 2], SEARCHES[kind].width(config))
        assert [len(h[0].ids) for h in search(step, cache, sentences, config)] == [2, 5, 3]


def test_samples_follow_the_models_distribution():
    p = torch.tensor([0.0, 0.0, 0.0, 0.1, 0.2, 0.3, 0.4, 0.0])
    config = SearchConfig(kind="sample", n_best=500)
    results = run(lambda sentence, prefix: p.log(), config, [0, 1, 2, 3], max_length=1)
    hypotheses = [h for sentence in results for h in sentence]
    for word in (4, 5, 6):
        share = sum(h.ids == [word] for h in hypotheses) / 2000
        assert share == pytest.approx(float(p[word] / (1 - p[EOS])), abs=0.04)  # <EOS> is never first


def test_seed_sentence_and_sample_number_change_a_draw():
    def sampled(seed: int, sentence: int) -> list[list[int]]:
        config = SearchConfig(kind="sample", n_best=2, seed=seed)
        return [h.ids for h in run(constant(EOS=-50), config, [sentence], max_length=20)[0]]

    assert sampled(1, 0) == sampled(1, 0)
    draws = [*sampled(1, 0), *sampled(2, 0), *sampled(1, 1)]
    assert len({tuple(ids) for ids in draws}) == 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_log_probabilities_leave_the_logits_as_they_are(dtype):
    logits = torch.randn(3, V).to(dtype)
    before = logits.clone()
    log_probs = log_probabilities(logits, first=True)
    assert torch.equal(logits, before)
    assert log_probs.dtype == torch.float32
    assert log_probs[:, [*NEVER, EOS]].eq(-math.inf).all()
    torch.testing.assert_close(log_probs[:, 4:], logits[:, 4:].float().log_softmax(-1))
    assert log_probabilities(logits, first=False)[:, EOS].isfinite().all()


def test_top_k_and_top_p_keep_the_most_probable():
    log_probs, order = torch.tensor([[0.05, 0.5, 0.3, 0.15]]).log(), [1, 2, 3, 0]
    for top_k, top_p, kept in [(2, 1, 2), (0, 0.7, 2), (0, 0.01, 1), (0, 1, 4), (9, 1, 4)]:
        result = warped(log_probs, temperature=1.0, top_k=top_k, top_p=float(top_p))[0]
        assert (result[order].exp() > 0).tolist() == [n < kept for n in range(4)]
        torch.testing.assert_close(result[order[:kept]], log_probs[0, order[:kept]].log_softmax(0))


def test_a_low_temperature_sharpens():
    log_probs = torch.tensor([[0.5, 0.3, 0.2]]).log()
    result = warped(log_probs, temperature=0.5, top_k=0, top_p=1.0)
    torch.testing.assert_close(result, (2 * log_probs).log_softmax(-1))
