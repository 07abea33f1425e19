"""The peers' vocabulary and text as Dragoman takes them: cut into the same pieces, with nothing rewritten on the way.

Their vocabulary rewrites a text before it cuts it (NFKC), which no vocabulary of Dragoman's may do: the text is
rewritten beforehand, and the same pieces are taken without that.
"""

from pathlib import Path

from sentencepiece import SentencePieceProcessor
from sentencepiece import sentencepiece_model_pb2 as proto

from dragoman.errors import UserError


def plain_data(theirs: Path, ours: Path) -> Path:
    """The folder `ours`, filled with what to train on from the folder `theirs`."""
    plain_vocabulary(theirs / "spm.model", ours / "spm.model")
    for name in ("train.en", "train.de", "val.en", "val.de"):
        plain_text(theirs / name, theirs / "spm.model", ours / "spm.model", ours / name)
    return ours


def plain_vocabulary(theirs: Path, ours: Path) -> None:
    """The sentencepiece model `theirs` without its rewriting, as the file `ours`."""
    if not theirs.is_file():
        raise UserError(f"there is no {theirs}: prepare_data.py of the peers' scripts makes it")
    model = proto.ModelProto()
    model.ParseFromString(theirs.read_bytes())
    model.normalizer_spec.name, model.normalizer_spec.precompiled_charsmap = "identity", b""
    ours.write_bytes(model.SerializeToString())


def plain_text(source: Path, theirs: Path, ours: Path, plain: Path) -> None:
    """The lines of `source` as `theirs` rewrites them, as the file `plain`: `ours` cuts them into the same pieces.

    Raises UserError where it does not.
    """
    rewriting, without = (SentencePieceProcessor(model_file=str(path)) for path in (theirs, ours))
    lines = source.read_text(encoding="utf-8").splitlines()
    rewritten = [line.replace("\u2581", " ").strip() for line in rewriting.normalize(lines)]
    cut = zip(rewriting.encode(lines), without.encode(rewritten), strict=True)
    for number, (pieces, same) in enumerate(cut, 1):
        if pieces != same:
            raise UserError(f"{source}, line {number}: other pieces without the rewriting of {theirs}")
    plain.write_text("".join(line + "\n" for line in rewritten), encoding="utf-8")
