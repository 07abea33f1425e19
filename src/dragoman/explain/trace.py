"""Trace of one translation: each step of the search, from <BOS> to <EOS>.

A trace is plain data (dicts, lists, numbers) for JSON, the terminal and trace.html alike. Pieces are as in the
vocabulary. Scores are sums of log-probs over length^length_penalty.
"""

from collections.abc import Sequence
from typing import Any

import torch
from rich.text import Text

from dragoman.config import SearchConfig
from dragoman.data.tokenizer import Tokenizer
from dragoman.explain.attention_map import attended
from dragoman.explain.page import render
from dragoman.model.transformer import Transformer
from dragoman.search import Hypothesis, Sentence
from dragoman.search.search import Beam, log_probabilities, normalised
from dragoman.special import BOS, EOS

N_LIKELIEST = 5
Trace = dict[str, Any]


@torch.no_grad()
def trace(
    model: Transformer, tokenizers: tuple[Tokenizer, Tokenizer], src: Sequence[int], config: SearchConfig
) -> Trace:
    """Search for the translation of one sentence, and return all steps.

    `src`: the ids of the sentence, without <EOS>. The result has two lists with an entry for each step:

    "steps" follows the best hypothesis: "input" (pieces), "next" (a piece), "likeliest" [[piece, probability]] and
    "cross" [layer][head][source piece], the attention weights.
    "beams" has all hypotheses: "living" (kept), "ended" (finished) and "died" (dropped), each [{"pieces", "score"}].
    """
    src_tokenizer, tgt_tokenizer = tokenizers
    best, beams = _search(model.eval(), tgt_tokenizer, src, config)
    target = [*best.ids, EOS][: len(best.token_scores)]
    pair = attended(model, tokenizers, src, best.ids)
    maps = pair.maps["cross"]  # (L, H, T, S)
    pieces, steps = tgt_tokenizer.pieces([BOS, *target]), []
    for t, row in enumerate(pair.logits[: len(target)]):
        probabilities, ids = log_probabilities(row[None], first=t == 0)[0].exp().topk(N_LIKELIEST)
        likeliest = list(zip(tgt_tokenizer.pieces(ids.tolist()), probabilities.tolist(), strict=True))
        step = {"input": pieces[: t + 1], "next": pieces[t + 1], "likeliest": likeliest}
        steps.append({**step, "cross": maps[:, :, t].tolist()})
    return {
        "text": src_tokenizer.decode(src),
        "translation": tgt_tokenizer.decode(best.ids),
        "source": pair.pieces["src"],
        "score": best.score,
        "beam_size": config.beam_size,
        "steps": steps,
        "beams": beams,
    }


def _search(
    model: Transformer, tokenizer: Tokenizer, src: Sequence[int], config: SearchConfig
) -> tuple[Hypothesis, list[Trace]]:
    """Return the best hypothesis, and the hypotheses of each step in three groups."""

    def named(ids: list[int], score: float) -> Trace:
        return {"pieces": tokenizer.pieces(ids), "score": score}

    longest = config.max_length(len(src))
    state = Beam(config, [Sentence(0, min(longest, (model.max_positions or longest + 1) - 1))])
    cache = model.begin(torch.tensor([[*src, EOS]], device=model.projection.weight.device), None)
    tokens = torch.full((config.beam_size, 1), BOS)
    steps: list[Trace] = []
    while len(tokens):
        n_finished = len(state.finished[0])
        logits, cache = model.step(tokens, cache)
        rows, tokens = state.advance(logits)
        cache.select(rows)
        n, totals = state.prefixes.size(2), state.cumulative.flatten().tolist()
        scores = [normalised(total, n, config.length_penalty) for total in totals]
        living = list(map(named, state.prefixes.flatten(0, 1).tolist(), scores))
        ended = [named([*h.ids, EOS][: len(h.token_scores)], h.score) for h in state.finished[0][n_finished:]]
        continued = [each["pieces"][:-1] for each in (*living, *ended)]
        died = [each for each in steps[-1]["living"] if each["pieces"] not in continued] if steps else []
        steps.append({"living": living, "ended": ended, "died": died})
    return state.hypotheses()[0][0], steps


def as_text(trace: Trace) -> Text:
    """Return the trace for the terminal, coloured where rich prints it."""
    return Text.from_ansi(render("trace.j2", autoescape=False, trace=trace).decode().rstrip())
