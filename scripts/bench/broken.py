"""Ablation of one idea at a time: python scripts/bench/broken.py

A tiny model learns the pairs of data/phrasebook/sentences/people.tsv by heart, once whole and once for each idea
removed. Results go to runs/bench/broken: a file for each training, which is not repeated, then index.html, table.md,
curves.png.
"""

import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from loop import train
from tables import FOLDER as RESULTS
from tables import Record, markdown, measure_missing
from torch import Tensor

from dragoman import files
from dragoman.commands.cli import Parser, command
from dragoman.config import ModelConfig, PositionConfig, SearchConfig, TokenizerConfig
from dragoman.data.collate import Batch, collate
from dragoman.data.tokenizer import Tokenizer
from dragoman.explain.page import render
from dragoman.explain.picture import curve_figure
from dragoman.model.attention import Attention, _with_causal
from dragoman.model.transformer import Residual, Transformer
from dragoman.special import EOS, PAD
from dragoman.training.module import learning_rate
from dragoman.translation.engine import translate_ids

ROOT, FOLDER = Path(__file__).parents[2], RESULTS / "broken"
N_STEPS, WARMUP, N_SENTENCES, WINDOW = 500, 100, 32, 20
SIZES: Record = {"d_model": 64, "d_ff": 256, "n_heads": 4, "n_encoder_layers": 2, "n_decoder_layers": 2, "dropout": 0.0}
SHOWN = ("好久不见", "我打你。", "你打我。")
SEARCH = SearchConfig(kind="greedy", max_length_a=0, max_length_b=20)
WHOLE = Attention.forward


def late_mask(self: Attention, q: Tensor, k: Tensor, bias: Any, attn_mask: Tensor | None, causal: bool) -> Tensor:
    mask, weights = _with_causal(attn_mask, causal, q, k), self.score(q, k).softmax(dim=-1)
    return weights if mask is None else weights * mask


def self_attention_only(self: Attention, query: Tensor, key_value: Tensor, *args: Any, **options: Any) -> Tensor:
    mixed = WHOLE(self, query, key_value, *args, **options)
    return mixed if query is key_value else torch.zeros_like(mixed)


PATCHES: dict[str, tuple[type, str, Callable[..., Tensor]]] = {
    "mask_after_softmax": (Attention, "_softmax", late_mask),
    "no_causal_mask": (Attention, "forward", lambda *args, causal=False, **options: WHOLE(*args, **options)),
    "no_cross_attention": (Attention, "forward", self_attention_only),
    "no_residual": (Residual, "forward", lambda self, x, sublayer: sublayer(self.norm(x))),
}
SETTINGS: dict[str, Record] = {
    "no_scale": {"score": "dot"},
    "no_positions": {"position": PositionConfig(kind="none")},
    "post_norm": {"norm": "post"},
    "post_norm_no_warmup": {"norm": "post"},
}
# The words of each stand in broken.html.
VARIANTS = (
    *("whole", "no_scale", "mask_after_softmax", "no_causal_mask", "no_padding_mask", "no_shift", "no_end"),
    *("no_positions", "no_cross_attention", "no_residual", "post_norm", "post_norm_no_warmup"),
)


@command
def main(argv: list[str]) -> None:
    Parser(__doc__).parse_args(argv)
    results = measure_missing(FOLDER, VARIANTS, measure)
    records = {name: results[name] for name in VARIANTS}
    text = table(records)
    for name, data in (("table.md", text.encode()), ("index.html", page(records)), ("curves.png", picture(records))):
        files.write(FOLDER / name, data)
    print(text, end="")


def measure(name: str) -> Record:
    """Train one model; return its mean losses, share of right pairs and translations."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    lines = (ROOT / "data/phrasebook/sentences/people.tsv").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("\t")[:2] for line in lines if "\t" in line]
    texts = [text for pair in pairs for text in pair]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "joint.model"
        tokenizer = Tokenizer.train(texts, TokenizerConfig(vocab_size=1500), path, ("zh", "en"))
    sources, targets = ([tokenizer.encode(pair[side]) for pair in pairs] for side in (0, 1))
    config = ModelConfig(**SIZES | SETTINGS.get(name, {}))
    model = Transformer(config, src_vocab_size=len(tokenizer), tgt_vocab_size=len(tokenizer))
    for module in model.modules():
        if isinstance(module, Attention) and name == "mask_after_softmax":
            module.fused = False

    def rate(step: int) -> float:
        # Without a warm-up the rate begins at its peak; after WARMUP steps both rates are equal.
        at = max(step, WARMUP) if name.endswith("no_warmup") else step
        return learning_rate("inverse_sqrt", at, peak=3e-3, warmup_steps=WARMUP, max_steps=N_STEPS)

    with mock.patch.object(*PATCHES[name]) if name in PATCHES else nullcontext():
        losses = train(model, batches(name, sources, targets), rate)
        results = [h.ids for (h,) in translate_ids(model, sources[::4], SEARCH, batch_tokens=20)]
        shown = [h.ids for (h,) in translate_ids(model, tokenizer.encode_batch(SHOWN), SEARCH, batch_tokens=1)]
    right = sum(ids == target for ids, target in zip(results, targets[::4], strict=True)) / len(results)
    losses = [sum(losses[n : n + WINDOW]) / WINDOW for n in range(0, N_STEPS, WINDOW)]
    return {"losses": losses, "right": 100 * right, "shown": [tokenizer.decode(ids) for ids in shown]}


def batches(name: str, sources: list[list[int]], targets: list[list[int]]) -> Iterator[Batch]:
    """Yield random batches, changed if `name` is an ablation of the batches."""
    generator = random.Random(1)
    for _ in range(N_STEPS):
        chosen = generator.sample(range(len(sources)), N_SENTENCES)
        batch = collate([sources[i] for i in chosen], [targets[i] for i in chosen])
        if name == "no_shift":
            batch.tgt_in = batch.tgt_out
        if name == "no_padding_mask":
            batch.src_key_padding_mask.fill_(False)
        if name == "no_end":
            batch.tgt_out[batch.tgt_out == EOS] = PAD
        yield batch


def table(records: Record) -> str:
    """Last loss, share of right pairs, and translations of the shown sentences."""
    rows = [
        [name, f"{record['losses'][-1]:.2f}", f"{record['right']:.0f}", *(text[:32] for text in record["shown"])]
        for name, record in records.items()
    ]
    return markdown(["training", "loss", "right, %", *SHOWN], rows)


def picture(records: Record) -> bytes:
    """Plot of the loss of every training."""
    steps = range(WINDOW, N_STEPS + 1, WINDOW)
    lines = {name: (steps, record["losses"]) for name, record in records.items()}
    return curve_figure(lines, "step", "loss per token, in training", "One idea removed")


def page(records: Record) -> bytes:
    """A section for each training, its loss beside that of the whole model."""
    images = {name: picture({"whole": records["whole"], name: record}) for name, record in records.items()}
    return render(Path(__file__).with_name("broken.html"), records=records, images=images, shown=SHOWN)


if __name__ == "__main__":
    sys.exit(main())
