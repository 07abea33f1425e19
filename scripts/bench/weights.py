"""Bundles of the weights that all decoders share: weights.py BENCH_HOME FOLDER

The peers' bench_train_torch.py trains a torch.nn.Transformer, and the peers fill their own models with its numbers.
Here they become bundles of Dragoman in FOLDER, one for each engine, beside test.en. The last line of stdout is JSON:
the settings of each engine for measure_decoding.py.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from programs import copy_data
from torch import Tensor

from dragoman.bundle import Bundle, save
from dragoman.commands.cli import command
from dragoman.config import ModelConfig
from dragoman.data.tokenizer import Tokenizer
from dragoman.model.transformer import Transformer
from dragoman.training.run import cpu_has_bf16
from dragoman.translation.export import export_bundle

# Parts of names: torch's, Dragoman's.
PARTS = {
    "net.": "", ".layers.": ".", "encoder.norm": "encoder_norm", "decoder.norm": "decoder_norm",
    "self_attn": "self_attention", "multihead_attn": "cross_attention", "out_proj": "out",
    "linear1": "feed_forward.up", "linear2": "feed_forward.down",
    ".norm1": ".residuals.0.norm", ".norm2": ".residuals.1.norm", ".norm3": ".residuals.2.norm",
}  # fmt: skip


@command
def main(argv: list[str]) -> None:
    home, folder = map(Path, argv)
    copy_data(home / "data", folder, ["test.en"])
    bundle = folder / "torch"
    write_bundle(home / "work" / "torch-small.pt", folder / "spm.model", bundle)
    engines: dict[str, Any] = {"torch fp32": {"bundle": str(bundle), "engine": "torch"}}
    if cpu_has_bf16():
        engines["torch bf16"] = {"bundle": str(bundle), "engine": "torch", "precision": "bf16"}
    sentences = (folder / "test.en").read_text("utf-8").splitlines()
    for quantization in ("float32", "int8"):
        copy = folder / quantization
        shutil.copytree(bundle, copy)
        export_bundle(copy, sentences, quantization=quantization)
        engines[f"CTranslate2 {quantization}"] = {"bundle": str(copy), "engine": "ctranslate2"}
    print(json.dumps({"engines": engines}))


def write_bundle(weights: Path, vocabulary: Path, folder: Path) -> None:
    """Write the bundle of `weights`."""
    saved = torch.load(weights, map_location="cpu", weights_only=True)
    arch, state = saved["arch"], saved["model"]
    config = ModelConfig(
        d_model=arch["d_model"], d_ff=arch["ffn"], n_heads=arch["heads"],
        n_encoder_layers=arch["enc"], n_decoder_layers=arch["dec"],
    )  # fmt: skip
    tokenizer = Tokenizer(vocabulary)
    model = Transformer(config, src_vocab_size=len(tokenizer), tgt_vocab_size=len(tokenizer))
    model.load_state_dict(renamed(state), strict=False)  # a peer has no projection.bias
    both: dict[str, Any] = {"src_tokenizer": tokenizer, "tgt_tokenizer": tokenizer, "src": "en", "tgt": "de"}
    save(Bundle(model=model, model_config=config, **both), folder)


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a torch.nn.Transformer under Dragoman's names, in the same memory."""
    words = state["emb.weight"]
    tensors = {"src_embedding.table.weight": words, "tgt_embedding.table.weight": words, "projection.weight": words}
    for name, tensor in state.items():
        for part, own in PARTS.items():
            name = name.replace(part, own)
        attention, in_proj, kind = name.partition("in_proj_")
        if in_proj:
            d = len(tensor) // 3
            tensors |= {f"{attention}q.{kind}": tensor[:d], f"{attention}kv.{kind}": tensor[d:]}
        elif name.startswith(("encoder", "decoder")):
            tensors[name] = tensor
    return tensors


if __name__ == "__main__":
    sys.exit(main())
