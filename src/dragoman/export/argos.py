"""Export of a bundle as an .argosmodel, which Argos Translate installs."""

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

from dragoman import files
from dragoman.bundle import CARD, MANIFEST, load_info
from dragoman.errors import UserError
from dragoman.languages import english_name, is_traditional, primary
from dragoman.translation import export
from dragoman.translation.ctranslate2 import export_of


def export_bundle(folder: Path, sources: Sequence[str] = (), *, quantization: str = "int8") -> str:
    """Write the export, verified as that to CTranslate2 is, and return a summary."""
    info = load_info(folder)
    separate = info.src_tokenizer.sha256 != info.tgt_tokenizer.sha256
    if separate or info.src_tokenizer.tag(info.tgt):
        setting = "data.tokenizer.vocabulary=separate" if separate else "the language tags of a model of two directions"
        raise UserError(f"{folder}: Argos Translate does not support {setting}. Use ctranslate2")
    summary = export.export_bundle(folder, sources, quantization=quantization)
    src, tgt = ("zt" if is_traditional(code) else primary(code) for code in info.directions[0])
    metadata = {"package_version": "1.0", "argos_version": "1.9.0", "from_code": src, "to_code": tgt}
    metadata |= {"from_name": english_name(src), "to_name": english_name(tgt)}
    root = f"translate-{src}_{tgt}-1_0"
    target = folder / f"{root}.argosmodel"
    with files.replacing(target) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{root}/metadata.json", json.dumps(metadata, indent=2))
        archive.write(folder / CARD, f"{root}/README.md")
        archive.write(info.src_tokenizer.path, f"{root}/sentencepiece.model")
        for path in sorted(export_of(folder).iterdir()):
            if path.name != MANIFEST:
                archive.write(path, f"{root}/model/{path.name}")
    return f"{summary}\n{target}: {target.stat().st_size / 1e6:.1f} MB"
