"""Made-up corpora for the tests of the data room, and how to write them to disk."""

import gzip
import json
from pathlib import Path

WHO = [
    ("我", "I"),
    ("你", "You"),
    ("我们", "We"),
    ("他们", "They"),
    ("学生们", "The students"),
    ("老师们", "The teachers"),
]
DO = [("喜欢", "like"), ("看见", "see"), ("买", "buy"), ("要", "want"), ("找", "look for")]
WHAT = [
    ("书", "the book"),
    ("花", "the flowers"),
    ("那只狗", "the dog"),
    ("苹果", "the apples"),
    ("热茶", "the hot tea"),
]
WHEN = [("", ""), ("今天", " today"), ("现在", " now"), ("每天", " every day")]
PAIRS = [
    (f"{who[0]}{when[0]}{do[0]}{what[0]}。", f"{who[1]} {do[1]} {what[1]}{when[1]}.")
    for who in WHO
    for do in DO
    for what in WHAT
    for when in WHEN
]


def write_tsv(path: Path, pairs: list[tuple[str, str]]) -> Path:
    """A TSV corpus without a header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs), encoding="utf-8", newline="")
    return path


def write_folder(folder: Path, splits: dict[str, list[dict]]) -> Path:
    """A folder laid out like a hub dataset."""
    folder.mkdir(parents=True)
    for split, rows in splits.items():
        with gzip.open(folder / f"{split}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return folder


def translation(src: str, tgt: str) -> dict:
    """A row as hub datasets have it."""
    return {"translation": {"zh": src, "en": tgt}}
