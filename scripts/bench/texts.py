"""Texts for measurements: the included corpus, and a normalised copy of the peers' data.

The peers' sentencepiece model normalises text (NFKC) before it tokenises; Dragoman's tokenizers do not. The copy has
normalised text, and the same model without normalisation, so that all programs train on the same pieces.
"""

import json
from pathlib import Path

from sentencepiece import SentencePieceProcessor
from sentencepiece import sentencepiece_model_pb2 as sentencepiece_model

from dragoman.data.text import lines as read_lines
from dragoman.files import included


def phrasebook(split: str) -> list[dict[str, str]]:
    """The written pairs of the included corpus, {"zh": ..., "en": ...}."""
    path = included("data/phrasebook/written") / f"{split}.jsonl.gz"
    return [json.loads(line)["translation"] for line in read_lines(path)]


def copy_data(data: Path, folder: Path, names: list[str]) -> None:
    """Copy the sentencepiece model without its normalisation, and normalised text files."""
    model = sentencepiece_model.ModelProto()
    model.ParseFromString((data / "spm.model").read_bytes())
    model.normalizer_spec.name, model.normalizer_spec.precompiled_charsmap = "identity", b""
    (folder / "spm.model").write_bytes(model.SerializeToString())
    normalizer = SentencePieceProcessor(model_file=str(data / "spm.model"))
    for name in names:
        normalized = normalizer.normalize(list(read_lines(data / name)))
        text = "".join(line.replace("\u2581", " ").strip() + "\n" for line in normalized)
        (folder / name).write_text(text, encoding="utf-8")
