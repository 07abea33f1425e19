"""Attention weights of a sentence pair, and the steps of a search.

torch's fused attention does not return its weights. During one teacher-forced pass, a hook on each `Attention` layer
therefore calls the layer's method `weights` with the same arguments. The model stays unchanged.

A trace is plain data (dicts, lists, numbers) for JSON, the terminal and trace.html alike. Pieces are as in the
vocabulary. Scores are sums of log-probs over length^length_penalty.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from rich.text import Text
from torch import Tensor

from dragoman.config import SearchConfig
from dragoman.data.tokenizer import Tokenizer
from dragoman.explain.page import render
from dragoman.model.attention import Attention
from dragoman.model.transformer import Transformer
from dragoman.search import Hypothesis, Sentence
from dragoman.search.search import Beam, log_probabilities, normalised
from dragoman.special import BOS, EOS

TOP_K = 5
Trace = dict[str, Any]
Tokenizers = tuple[Tokenizer, Tokenizer]  # of source and target


class Attended(NamedTuple):
    """Attention maps of one sentence pair, with their pieces and logits.

    Sizes: L layers, H heads, S source pieces with <EOS>, T target pieces with <BOS> or <EOS>, V the target vocabulary.
    maps: "encoder" (L, H, S, S), "decoder" (L, H, T, T) and "cross" (L, H, T, S). Rows are queries and sum to 1.
    pieces: "src" (S) encoder input, "tgt_in" (T) decoder input, "tgt_out" (T) decoder output.
    logits: (T, V). Row t of "decoder", "cross" and the logits belongs to the prediction of tgt_out[t].
    All tensors are float32 on the CPU.
    """

    maps: dict[str, Tensor]
    pieces: dict[str, list[str]]
    logits: Tensor


@torch.no_grad()
def attended(model: Transformer, tokenizers: Tokenizers, src: Sequence[int], tgt: Sequence[int]) -> Attended:
    """Return the attention of a pair in evaluation mode; ids without <BOS> and <EOS>."""
    weights: dict[str, list[Tensor]] = {"encoder": [], "decoder": [], "cross": []}

    def record(name: str, attention: Attention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        weights[name].append(attention.weights(*args, **kwargs)[0].float().cpu())

    src_in, tgt_all = [*src, EOS], [BOS, *tgt, EOS]
    device = model.projection.weight.device
    ids = torch.tensor([src_in], device=device)
    # In bf16 the rows would not sum to 1.
    with torch.autocast(device.type, enabled=False), ExitStack() as stack:
        stack.callback(model.train, model.training)
        for path, layer in model.named_modules():
            if isinstance(layer, Attention):  # such as decoder.0.cross_attention
                name = "cross" if path.endswith("cross_attention") else path.partition(".")[0]
                stack.enter_context(layer.register_forward_pre_hook(partial(record, name), with_kwargs=True))
        logits = model.eval()(ids, torch.tensor([tgt_all[:-1]], device=device), None)
    maps = {name: torch.stack(layers) for name, layers in weights.items()}
    src_pieces, tgt_pieces = tokenizers[0].pieces(src_in), tokenizers[1].pieces(tgt_all)
    pieces = {"src": src_pieces, "tgt_in": tgt_pieces[:-1], "tgt_out": tgt_pieces[1:]}
    return Attended(maps, pieces, logits[0].float().cpu())


def attention_page(pair: Attended, languages: tuple[str, str], **texts: Any) -> bytes:
    """Return page.html, in UTF-8, for the texts `source` and `translation`.

    Weights are rounded to 0.001. The languages of both texts select the font variants of Chinese characters.
    """
    # [layer][head][cell], in thousandths
    weights = {kind: (1000 * each).round().int().flatten(2).tolist() for kind, each in pair.maps.items()}
    data = {"languages": languages, "pieces": pair.pieces, "weights": weights}
    return render("explain/page.html", languages=languages, data=data, **texts)


@torch.no_grad()
def trace(model: Transformer, tokenizers: Tokenizers, src: Sequence[int], config: SearchConfig) -> Trace:
    """Return every step of the search for the translation of one sentence.

    `src`: the ids of the sentence, without <EOS>. The result has two lists: "steps" has an entry for each piece of the
    best hypothesis, "beams" one for each step of the search.

    "steps" has, for the best hypothesis, "input" (pieces), "next" (a piece), "top_k" [[piece, probability]] and
    "cross" [layer][head][source piece], the attention weights.
    "beams" has all hypotheses: "active", "finished" and "pruned", each [{"pieces", "score"}].
    """
    src_tokenizer, tgt_tokenizer = tokenizers
    best, beams = _search(model.eval(), tgt_tokenizer, src, config)
    pair, steps = attended(model, tokenizers, src, best.ids), []
    for t in range(len(best.token_scores)):
        probabilities, ids = log_probabilities(pair.logits[t, None], first=t == 0)[0].exp().topk(TOP_K)
        top_k = list(zip(tgt_tokenizer.pieces(ids.tolist()), probabilities.tolist(), strict=True))
        step = {"input": pair.pieces["tgt_in"][: t + 1], "next": pair.pieces["tgt_out"][t], "top_k": top_k}
        steps.append({**step, "cross": pair.maps["cross"][:, :, t].tolist()})
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
    penalty, name = config.length_penalty, tokenizer.pieces
    state = Beam(config, [Sentence(0, config.max_length(len(src), model.max_positions))])
    cache = model.begin(torch.tensor([[*src, EOS]], device=model.projection.weight.device), None)
    tokens = torch.full((config.beam_size, 1), BOS)
    steps: list[Trace] = []
    while len(tokens):
        n_finished = len(state.finished[0])
        kept, tokens = state.advance(model.step(tokens, cache))
        cache.select(kept)
        rows = zip(state.prefixes.flatten(0, 1).tolist(), state.cumulative.flatten().tolist(), strict=True)
        ended = [([*h.ids, EOS][: len(h.token_scores)], h.score) for h in state.finished[0][n_finished:]]
        step: Trace = {
            "active": [{"pieces": name(ids), "score": normalised(total, len(ids), penalty)} for ids, total in rows],
            "finished": [{"pieces": name(ids), "score": score} for ids, score in ended],
        }
        continued = [each["pieces"][:-1] for each in step["active"] + step["finished"]]
        before = steps[-1]["active"] if steps else []
        steps.append({**step, "pruned": [each for each in before if each["pieces"] not in continued]})
    return state.hypotheses()[0][0], steps


def as_text(trace: Trace) -> Text:
    """Return the trace for the terminal, coloured where rich prints it."""
    return Text.from_ansi(render("explain/trace.j2", autoescape=False, trace=trace).decode().rstrip())
