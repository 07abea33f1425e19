"""A sentencepiece model, looked at before sentencepiece's C++ sees it.

Its parser trusts what it parses: in 0.2.1 one changed byte that makes a piece begin with NUL ends the whole
process (an exception nobody catches in its trie), and older releases wrote past their buffers over a crafted
normaliser. So the file is first read by protobuf's own parser, everything in it is held against what `Tokenizer.train`
writes, and what goes on is written anew from the fields that were looked at.

Knows: the fields of a model and the bounds of ours. Refuses to know: how a text is cut into pieces.
"""

import math

from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2 as proto

MOST_BYTES = 1 << 24  # a vocabulary of 32,000 pieces takes less than one million
_MOST_SCORE = 1e9  # a log-probability, or minus the number of a merge
_Piece = proto.ModelProto.SentencePiece
_TYPES = (_Piece.NORMAL, _Piece.UNKNOWN, _Piece.CONTROL, _Piece.BYTE)


def checked(model: bytes) -> bytes:
    """The same model, safe to load. Raises ValueError saying what is wrong with it."""
    if len(model) > MOST_BYTES:
        raise ValueError(f"it has {len(model):,} bytes, no vocabulary has more than {MOST_BYTES:,}")
    found = proto.ModelProto()
    try:
        found.ParseFromString(model)
    except DecodeError:
        raise ValueError("it is truncated or foreign") from None
    if not found.pieces:  # sentencepiece takes no bytes for no model, and then reads from address 0
        raise ValueError("it has no pieces")
    for side in (found.normalizer_spec, found.denormalizer_spec):
        if side.precompiled_charsmap:
            raise ValueError("it rewrites the text before cutting it, which no tokenizer of Dragoman's does")
    seen = set()
    for number, piece in enumerate(found.pieces):
        text = piece.piece
        if not isinstance(text, str) or not text or "\0" in text or text in seen:
            raise ValueError(f"its piece {number} is empty, twice there, or no text")
        if piece.type not in _TYPES:
            raise ValueError(f"its piece {number} is of a kind that Dragoman does not write")
        if not (math.isfinite(piece.score) and abs(piece.score) < _MOST_SCORE):
            raise ValueError(f"its piece {number} has no score")
        seen.add(text)
    found.ClearField("self_test_data")  # texts that the loader would cut
    found.DiscardUnknownFields()
    return found.SerializeToString()
