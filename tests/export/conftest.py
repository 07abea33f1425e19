"""The golden model, and a small one of one direction."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from dragoman import bundle as bundles
from dragoman import files
from dragoman.config import TokenizerConfig
from dragoman.data.collate import collate
from dragoman.data.text import lines
from dragoman.data.tokenizer import Tokenizer
from dragoman.special import PAD


@pytest.fixture(scope="session")
def golden() -> Path:
    return Path(__file__).parents[1] / "golden" / "bundle"


@pytest.fixture(scope="session")
def pairs() -> list[tuple[str, str]]:
    """A hundred pairs; each line is one sentence."""
    path = files.included("data/phrasebook/written") / "validation.jsonl.gz"
    rows = [json.loads(line)["translation"] for line in lines(path)]
    ones = [(row["zh"], row["en"]) for row in rows if not set(row["zh"][:-1] + row["en"][:-1]) & set("。！？?!.…")]
    return ones[:100]


@pytest.fixture(scope="session")
def zh_en(pairs: list[tuple[str, str]], golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle without tags, trained for a few steps so that its translations end."""
    torch.manual_seed(3)
    folder, config = tmp_path_factory.mktemp("zh_en"), TokenizerConfig(vocab_size=1300)
    tokenizer = Tokenizer.train([text for pair in pairs for text in pair], config, folder / "joint.model", ("zh", "en"))
    changes = {"src_tokenizer": tokenizer, "tgt_tokenizer": tokenizer, "directions": []}
    bundle = dataclasses.replace(bundles.load(golden), **changes)
    bundle.model = bundles.untrained_model(bundle)
    short = sorted(pairs, key=lambda pair: len(pair[1]))[:16]
    batch = collate(*(tokenizer.encode_batch(side) for side in zip(*short, strict=True)))
    optimizer = torch.optim.Adam(bundle.model.parameters(), lr=1e-2)
    for _ in range(40):
        logits = bundle.model(batch.src, batch.tgt_in, batch.src_key_padding_mask)
        optimizer.zero_grad()
        F.cross_entropy(logits.transpose(1, 2), batch.tgt_out, ignore_index=PAD).backward()
        optimizer.step()
    bundles.save(bundle, folder / "bundle")
    return folder / "bundle"
