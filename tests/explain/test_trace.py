"""Attention maps and traces, compared with the model, the search and a plain loop."""

import json
from pathlib import Path

import pytest
import torch

from dragoman import bundle as bundles
from dragoman.bundle import Bundle
from dragoman.config import SearchConfig
from dragoman.explain.page import render
from dragoman.explain.trace import Trace, as_text, attended, trace
from dragoman.search.search import plain_greedy
from dragoman.special import EOS
from dragoman.translation.engine import translate_ids

SRC, TGT = [11, 7, 23, 5], [9, 14, 6]


@pytest.fixture(scope="module")
def golden() -> Bundle:
    return bundles.load(Path(__file__).parents[1] / "golden" / "bundle")


def traced(golden: Bundle, text: str, k: int) -> tuple[list[int], Trace]:
    ids = [*golden.src_tokenizer.tag("en"), *golden.src_tokenizer.encode(text)]
    search = SearchConfig(kind="beam", beam_size=k)
    return ids, trace(golden.model, (golden.src_tokenizer, golden.tgt_tokenizer), ids, search)


def test_a_greedy_trace_is_the_plain_loop_step_by_step(golden: Bundle) -> None:
    src, record = traced(golden, "好久不见", 1)
    model, tokenizer = golden.model.requires_grad_(False), golden.tgt_tokenizer
    memory, prefixes, probabilities = model.encode(torch.tensor([[*src, EOS]]), None), [], []

    def next_logits(prefix: torch.Tensor) -> torch.Tensor:
        logits = model.projection(model.decode(prefix, memory, None)[:, -1])
        prefixes.append(tokenizer.pieces(prefix[0].tolist()))
        probabilities.append(float(logits.softmax(-1).max()))
        return logits

    ids = plain_greedy(next_logits, 50)
    assert [step["input"] for step in record["steps"]] == prefixes
    assert [step["next"] for step in record["steps"]] == tokenizer.pieces([*ids, EOS])
    for step, probability in zip(record["steps"], probabilities, strict=True):
        assert step["top_k"][0][0] == step["next"]
        # The pieces that are never allowed leave a little more for the others.
        assert step["top_k"][0][1] == pytest.approx(probability, abs=0.01)
    assert record["translation"] == tokenizer.decode(ids)
    maps = attended(model, (golden.src_tokenizer, tokenizer), src, ids).maps["cross"]
    for t, step in enumerate(record["steps"]):
        torch.testing.assert_close(torch.tensor(step["cross"]), maps[:, :, t])


@pytest.mark.parametrize("k", [2, 4])
def test_every_hypothesis_goes_on_ends_or_dies(golden: Bundle, k: int) -> None:
    src, record = traced(golden, "我很想你", k)
    ((best,),) = translate_ids(golden.model, [src], SearchConfig(kind="beam", beam_size=k))
    assert record["translation"] == golden.tgt_tokenizer.decode(best.ids)
    assert record["score"] == pytest.approx(best.score, abs=1e-4)
    before: list[list[str]] = [[]]
    for step in record["beams"]:
        active, finished, pruned = ([h["pieces"] for h in step[name]] for name in ("active", "finished", "pruned"))
        parents = [pieces[:-1] for pieces in active + finished]
        assert pruned == [pieces for pieces in before if pieces not in parents]
        assert all(parent in before for parent in parents)
        assert len(active) <= k
        before = active
    assert before == []
    scores = [h["score"] for step in record["beams"] for h in step["finished"]]
    assert max(scores) == pytest.approx(record["score"])


def test_a_trace_is_json_text_and_a_page(golden: Bundle) -> None:
    _, record = traced(golden, "<b>&", 2)
    assert json.loads(json.dumps(record))["translation"] == record["translation"]
    text = as_text(record).plain
    page = render("explain/trace.html", trace=record, languages=("zh", "en")).decode()
    assert "<b>" not in page
    assert "解码器的输入" in page
    assert "解码器的输入" not in render("explain/trace.html", trace=record, languages=("de", "en")).decode()
    assert page.count("<section>") == text.count("\nstep ") == len(record["beams"])
    assert "pruned" in text


def test_maps_hold_distributions_of_every_head(make_model, tokenizer) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        maps = attended(make_model(), (tokenizer, tokenizer), SRC, TGT).maps
    shapes = {name: tuple(weights.shape) for name, weights in maps.items()}
    assert shapes == {"encoder": (2, 4, 5, 5), "decoder": (3, 4, 4, 4), "cross": (3, 4, 4, 5)}
    for weights in maps.values():
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert maps["decoder"].triu(1).eq(0).all()


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_weights_times_values_give_the_output(score, make_model, tokenizer) -> None:
    model = make_model(score=score).eval()
    attentions = [layer.cross_attention for layer in model.decoder]
    calls: list[tuple[torch.Tensor, torch.Tensor]] = []
    for attention in attentions:
        attention.register_forward_hook(lambda _, args, output: calls.append((args[1], output)))
    maps = attended(model, (tokenizer, tokenizer), SRC, TGT).maps["cross"]
    for weights, attention, (key_value, output) in zip(maps, attentions, calls, strict=True):
        values = attention.kv(key_value)[0, :, 32:].unflatten(-1, (4, 8)).transpose(0, 1)
        torch.testing.assert_close(attention.out((weights @ values).transpose(0, 1).flatten(1)), output[0])


def test_model_is_left_as_it_was(make_model, tokenizer) -> None:
    model = make_model(attention_dropout=0.3).train()
    random = torch.get_rng_state()
    attended(model, (tokenizer, tokenizer), SRC, TGT)
    with pytest.raises(IndexError):
        attended(model, (tokenizer, tokenizer), [9999], TGT)
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(module._forward_pre_hooks for module in model.modules())
