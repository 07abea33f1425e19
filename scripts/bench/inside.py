"""Analysis of a trained model: python scripts/bench/inside.py --model runs/zh_en

- Retrieval, for each layer: how often the nearest of 500 sentences in the other language is the translation, by cosine
  of mean encoder states less the mean of their language. (A model of one direction never read its target language.)
- Embeddings of a joint vocabulary: the median rank of a word's translation by cosine, and a picture of the cosines.
- Attention heads, over 100 pairs: log2(mean distance / that of uniform weights), below 0 if local; entropy / theirs.
- The gradient norm of each layer of an untrained model with 12 + 12 layers. (All go to runs/bench/inside.)
"""

import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from tables import Record, markdown, phrasebook
from torch import Tensor
from torch.nn import functional as F

from dragoman import files
from dragoman.bundle import Bundle, load
from dragoman.commands.cli import Parser, command
from dragoman.config import ModelConfig
from dragoman.data.collate import collate
from dragoman.errors import UserError
from dragoman.explain.picture import attention_figure, curve_figure, heat_figure
from dragoman.explain.trace import attended
from dragoman.model.attention import padding_attn_mask
from dragoman.model.pooling import masked_mean
from dragoman.model.transformer import Transformer

FOLDER, DEPTH = Path("runs/bench/inside"), 12
WORDS = """
茶 tea 水 water 书 book 人 people 年 year 天 day 家 home 钱 money 车 car 狗 dog 猫 cat 鱼 fish 门 door 手 hand
我 I 你 you 他 he 她 she 我们 we 他们 they 大 big 小 small 好 good 新 new 老 old 冷 cold 红 red 白 white 黑 black
吃 eat 喝 drink 看 see 听 listen 说 say 去 go 来 come 买 buy 爱 love 想 want 三 three 五 five 今天 today 明天 tomorrow
学校 school 朋友 friend 妈妈 mother 北京 Beijing 中国 China 时间 time 工作 work 什么 what 不 not 很 very 和 and
"""


@command
def main(argv: list[str]) -> None:
    parser = Parser(__doc__)
    parser.add_argument("--model", nargs="+", required=True, metavar="FOLDER", help="bundles, or runs that have one")
    args = parser.parse_args(argv)
    models = [(Path(folder).name, load(folder)) for folder in args.model]
    for name, bundle in models:
        if {bundle.src, bundle.tgt} != {"zh", "en"}:
            raise UserError(f"{name}: translates {bundle.src}-{bundle.tgt}; give a model for Chinese and English")
    FOLDER.mkdir(parents=True, exist_ok=True)
    pairs = phrasebook("test")[:500]
    percent, rows, text = {}, [], ""
    for name, bundle in models:
        percent[name] = retrieval(bundle, pairs)
        rows.append([name, " ".join(f"{x:.1f}" for x in percent[name]), *map(str, ranks(bundle).values())])
        if word_ids(bundle):
            files.write(FOLDER / f"words_{name}.png", cosine_picture(bundle))
        maps = heads(bundle, pairs[:100])
        files.write(FOLDER / f"heads_{name}.png", heat_figure(maps, "head", "layer", first=1))
        text += "\n" + by_layer(f"{name}: each head, by layer", maps)
    header = ["model", "% found: embeddings, layers, last norm", "median rank of the translation", "words", "pieces"]
    norms = {f"{part}, {norm}-norm": line for norm in ("pre", "post") for part, line in gradients(norm).items()}
    text = markdown(header, rows) + text + "\n" + by_layer("log10 of the gradient norm", norms)
    # The deepest model comes first, because the first line fixes the order of the names on the axis.
    found: Any = {
        name: (["embeddings", *map(str, range(1, len(line) - 1)), "last norm"], line)
        for name, line in sorted(percent.items(), key=lambda item: -len(item[1]))
    }
    falling: Any = {name: (range(1, DEPTH + 1), line) for name, line in norms.items()}
    for name, lines, title in ("layers", found, "% found among 500"), ("gradients", falling, "log10 of gradient norm"):
        files.write(FOLDER / f"{name}.png", curve_figure(lines, "layer", "", title))
    files.write(FOLDER / "table.md", text.encode())
    print(text, end="")


def by_layer(title: str, rows: dict[str, Tensor]) -> str:
    """A row for each name, a column for each layer; the heads of a layer share a cell."""
    lists = {name: row.view(len(row), -1).tolist() for name, row in rows.items()}
    cells = [[name, *(" ".join(f"{x:.2f}" for x in layer) for layer in row)] for name, row in lists.items()]
    return markdown([title, *(str(n + 1) for n in range(len(cells[0]) - 1))], cells)


@torch.no_grad()
def retrieval(bundle: Bundle, pairs: list[dict[str, str]]) -> list[float]:
    """Retrieval accuracy in percent, for the embeddings, each layer and the last norm."""
    tokenizers, sides = {bundle.tgt: bundle.tgt_tokenizer, bundle.src: bundle.src_tokenizer}, []
    for language, other in (("zh", "en"), ("en", "zh")):
        tokenizer = tokenizers[language]
        ids = [[*tokenizer.tag(other), *tokenizer.encode(pair[language])] for pair in pairs]
        sides.append([F.normalize(x - x.mean(0), dim=1) for x in layers_of(bundle.model, ids)])
    gold, percent = torch.arange(len(pairs)), []
    for a, b in zip(*sides, strict=True):
        hits = [(scores.argmax(1) == gold).float().mean() for scores in (a @ b.T, b @ a.T)]
        percent.append(50 * float(sum(hits)))
    return percent


def layers_of(model: Transformer, sentences: list[list[int]]) -> list[Tensor]:
    """Mean states (n, D) of the embeddings, of each layer, and after the last norm."""
    batch = collate(sentences, [[]] * len(sentences))
    mask, x = padding_attn_mask(batch.src_key_padding_mask), model.src_embedding(batch.src)
    states = [model.encoder_position.embed_source(x, torch.arange(batch.src.size(1)), batch.src_key_padding_mask)]
    for layer in model.encoder:
        states.append(layer(states[-1], mask))
    return [masked_mean(x, batch.src_key_padding_mask) for x in (*states, model.encoder_norm(states[-1]))]


def word_ids(bundle: Bundle) -> list[list[int]]:
    """Ids [zh, en] of the word pairs whose words are single subwords."""
    pieces = bundle.src_tokenizer.pieces(range(len(bundle.src_tokenizer)))
    ids, words = {piece: i for i, piece in enumerate(pieces)}, WORDS.split()
    selected = []
    for zh, en in zip(words[::2], words[1::2], strict=True):
        zh_id, en_id = ids.get(zh, ids.get("▁" + zh)), ids.get("▁" + en)
        if zh_id is not None and en_id is not None:
            selected.append([zh_id, en_id])
    return selected


def ranks(bundle: Bundle) -> Record:
    """Median rank of a word's translation by cosine; numbers of words and pieces."""
    places, table = [], F.normalize(bundle.model.src_embedding.table.weight.detach(), dim=1)
    for zh, en in word_ids(bundle):
        cosines = table @ table[zh]
        # The count includes the word itself, so the nearest other one has rank 1.
        places.append(int((cosines > cosines[en]).sum()))
    return {"rank": statistics.median(places) if places else "-", "words": len(places), "pieces": len(table)}


def cosine_picture(bundle: Bundle) -> bytes:
    """Draw the cosines of Chinese words and their translations, those below 0 as 0."""
    ids = torch.tensor(word_ids(bundle)).T
    zh, en = F.normalize(bundle.model.src_embedding.table.weight.detach()[ids], dim=2)
    rows, columns = (bundle.src_tokenizer.pieces(each.tolist()) for each in ids)
    return attention_figure((zh @ en.T).clamp(min=0)[None], rows, columns)


def heads(bundle: Bundle, pairs: list[dict[str, str]]) -> dict[str, Tensor]:
    """Means over the pairs: {measurement: (layers, heads)}."""
    source, target = tokenizers = bundle.src_tokenizer, bundle.tgt_tokenizer
    sums: dict[str, Tensor] = {}
    for pair in pairs:
        src, tgt = [*source.tag(bundle.tgt), *source.encode(pair[bundle.src])], target.encode(pair[bundle.tgt])
        for name, weights in attended(bundle.model, tokenizers, src, tgt).maps.items():
            allowed = torch.ones(weights.shape[2:])
            uniform = F.normalize(allowed.tril() if name == "decoder" else allowed, p=1, dim=1)
            values = {"entropy": entropy(weights) / entropy(uniform)}
            if name != "cross":
                values["distance"] = torch.log2(distance(weights) / distance(uniform))
            for key, value in values.items():
                sums[f"{name}, {key}"] = sums.get(f"{name}, {key}", torch.zeros(())) + value / len(pairs)
    return dict(sorted(sums.items()))


def entropy(weights: Tensor) -> Tensor:
    """(..., T, S) -> (...): mean over the queries, in nats."""
    return torch.special.entr(weights).sum(-1).mean(-1)


def distance(weights: Tensor) -> Tensor:
    """(..., T, T) -> (...): mean of |i - j| over the queries."""
    at = torch.arange(weights.size(-1))
    return (weights * (at - at[:, None]).abs()).sum(-1).mean(-1)


def gradients(norm: str) -> dict[str, Tensor]:
    """log10 of the gradient norm of each layer, for random ids and targets."""
    torch.manual_seed(1)
    sizes = {"d_model": 128, "d_ff": 512, "n_encoder_layers": DEPTH, "n_decoder_layers": DEPTH}
    model = Transformer(ModelConfig(**sizes, norm=norm, dropout=0.0), src_vocab_size=1000, tgt_vocab_size=1000)  # type: ignore[arg-type]
    src, tgt = torch.randint(4, 1000, (2, 16, 20))
    F.cross_entropy(model(src, tgt[:, :-1], None).flatten(0, 1), tgt[:, 1:].flatten()).backward()
    norms = {}
    for part, layers in (("encoder", model.encoder), ("decoder", model.decoder)):
        gradients = [[p.grad for p in layer.parameters() if p.grad is not None] for layer in layers]
        norms[part] = torch.stack([torch.nn.utils.get_total_norm(each) for each in gradients]).log10()
    return norms


if __name__ == "__main__":
    sys.exit(main())
