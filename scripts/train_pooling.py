"""Train pooling: python scripts/train_pooling.py --model runs/zh_en --input FILE

Each line of FILE is a label, a tab and a sentence in the source language; further columns, and lines that begin with #,
are ignored. For each pooling of note 002, a linear classifier is trained on the sentence vectors of a frozen encoder,
together with AttentionPooling's parameters. Every fifth line is test data. Output: accuracy of each, and the pieces
with the largest weights of AttentionPooling.
"""

import sys

import torch
from torch import Tensor, nn

from dragoman import bundle
from dragoman.commands import cli
from dragoman.data.collate import collate, length_batches
from dragoman.data.text import clean_text
from dragoman.errors import UserError
from dragoman.model.pooling import POOLINGS, AttentionPooling, Pooling
from dragoman.special import EOS

Batch = tuple[Tensor, Tensor, list[int]]  # memory (B, S, D), padding (B, S), and the lines


@cli.command
def main(argv: list[str]) -> None:
    parser = cli.Parser(__doc__)
    parser.add_argument("--model", required=True, metavar="FOLDER", help="a bundle, or a run that has one")
    parser.add_argument("--input", required=True, metavar="FILE", help="label, tab, sentence")
    args = parser.parse_args(argv)
    rows = []
    for number, text in enumerate(cli.read_lines(args.input), 1):
        if text.strip() and text[0] != "#":
            rows.append([clean_text(cell) for cell in text.split("\t")[:2]])
            if len(rows[-1]) < 2:
                raise UserError(f"{args.input} line {number}: has no tab. Write label, tab, sentence")
    names = sorted({label for label, _ in rows})
    if len(rows) < 10 or len(names) < 2:
        found = f"{len(rows)} lines with {len(names)} labels"
        raise UserError(f"{args.input}: too few (found {found}). Write at least 10 lines with 2 labels")
    model = bundle.load(args.model)
    tokenizer = model.src_tokenizer
    tag = tokenizer.tag(model.directions[0].tgt)
    ids = [[*tag, *tokenizer.encode(text)][: model.max_length] for _, text in rows]
    classes = torch.tensor([names.index(label) for label, _ in rows])
    batches: list[Batch] = []
    for lines in length_batches([len(row) + 1 for row in ids], 4096):
        batch = collate([ids[line] for line in lines], [[]] * len(lines))
        padding = batch.src_key_padding_mask
        with torch.no_grad():  # the encoder stays as it is, so each sentence is encoded once
            batches.append((model.model.eval().encode(batch.src, padding), padding, lines))
    torch.manual_seed(1)
    learned = AttentionPooling(model.model.config.d_model)
    poolings: dict[str, Pooling] = {**POOLINGS, "AttentionPooling": learned}
    for name, pooling in poolings.items():
        print(f"{name:18}{100 * train(pooling, batches, classes):6.1f} % accuracy")
    with torch.no_grad():
        weights = {line: w for h, m, lines in batches for line, w in zip(lines, learned.weights(h, m), strict=True)}
    for line in range(0, min(25, len(rows)), 5):
        pieces = tokenizer.pieces([*ids[line], EOS])
        best = weights[line].topk(min(3, len(pieces))).indices.tolist()
        print(": ".join(rows[line]), *(f" {pieces[i]} {weights[line][i]:.0%}" for i in best))


def train(pooling: Pooling, batches: list[Batch], classes: Tensor, epochs: int = 60) -> float:
    """Train a classifier on the pooled vectors; return its accuracy on the test lines."""
    head = nn.Linear(batches[0][0].size(2), int(classes.max()) + 1)
    learned = [*head.parameters(), *(pooling.parameters() if isinstance(pooling, nn.Module) else ())]
    optimizer = torch.optim.AdamW(learned, lr=1e-3, weight_decay=0.1)
    right = 0
    for epoch in range(epochs + 1):
        for memory, padding, lines in batches:
            test = torch.tensor(lines) % 5 == 0
            logits, targets = head(pooling(memory, padding)), classes[lines]
            if epoch == epochs:
                right += int((logits.argmax(1) == targets)[test].sum())
            elif not test.all():
                optimizer.zero_grad()
                nn.functional.cross_entropy(logits[~test], targets[~test]).backward()
                optimizer.step()
    return right / len(classes[::5])


if __name__ == "__main__":
    sys.exit(main())
