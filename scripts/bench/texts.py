"""Texts that are measured: the included corpus, and copies of the peers' data that Dragoman cuts into the same pieces.

The peers' vocabulary rewrites text (NFKC) before it cuts it; a vocabulary of Dragoman does not. The copies are
rewritten text, and a vocabulary without the rewriting.
"""

import json
from pathlib import Path

from sentencepiece import SentencePieceProcessor
from sentencepiece import sentencepiece_model_pb2 as sentencepiece_model

from dragoman.data.lines import lines as read_lines
from dragoman.files import included


def phrasebook(split: str) -> list[dict[str, str]]:
    """The written pairs of the included corpus, {"zh": ..., "en": ...}."""
    path = included("data/phrasebook/written") / f"{split}.jsonl.gz"
    return [json.loads(line)["translation"] for line in read_lines(path)]


def copy_data(data: Path, folder: Path, names: list[str]) -> None:
    """Copy the vocabulary without its rewriting, and text files after it."""
    model = sentencepiece_model.ModelProto()
    model.ParseFromString((data / "spm.model").read_bytes())
    model.normalizer_spec.name, model.normalizer_spec.precompiled_charsmap = "identity", b""
    (folder / "spm.model").write_bytes(model.SerializeToString())
    rewriting = SentencePieceProcessor(model_file=str(data / "spm.model"))
    for name in names:
        rewritten = rewriting.normalize((data / name).read_text(encoding="utf-8").splitlines())
        text = "".join(line.replace("\u2581", " ").strip() + "\n" for line in rewritten)
        (folder / name).write_text(text, encoding="utf-8")
