"""Bundles of the weights that all decoders of a comparison share: weights.py WEIGHTS DATA FOLDER

The peers' bench_train_torch.py trains a torch.nn.Transformer, and the peers fill their own models with its numbers.
Here they become bundles of Dragoman, one for each engine.

The last line of stdout is JSON: the settings of each engine for measure_decoding.py, and why others are missing.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peers_data import copy_data
from torch import Tensor

from dragoman.bundle import Bundle, save
from dragoman.commands.cli import command
from dragoman.config import ModelConfig
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import UserError
from dragoman.model.transformer import Transformer
from dragoman.training.machine import cpu_has_bf16
from dragoman.translation.export import export_bundle

ATTENTIONS = {"self_attn": "self_attention", "multihead_attn": "cross_attention"}


@command
def main(argv: list[str]) -> None:
    weights, data, folder = map(Path, argv)
    print(json.dumps(prepare(weights, data, folder)))


def prepare(weights: Path, data: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Fill `folder` with the bundles and test.en. Raises UserError for a missing file."""
    folder.mkdir(parents=True, exist_ok=True)
    copy_data(data, folder, ["test.en"])
    bundle = folder / "torch"
    write_bundle(weights, folder / "spm.model", bundle)
    engines: dict[str, Any] = {"torch fp32": {"bundle": str(bundle), "engine": "torch"}}
    if cpu_has_bf16():
        engines["torch bf16"] = {"bundle": str(bundle), "engine": "torch", "precision": "bf16"}
    without = {}
    sentences = (folder / "test.en").read_text("utf-8").splitlines()
    for quantization in ("float32", "int8"):
        name, copy = f"CTranslate2 {quantization}", folder / quantization
        shutil.copytree(bundle, copy, dirs_exist_ok=True)
        try:
            export_bundle(copy, sentences, quantization=quantization)
        except UserError as error:
            without[name] = str(error)
        else:
            engines[name] = {"bundle": str(copy), "engine": "ctranslate2"}
    return {"engines": engines, "without": without}


def write_bundle(weights: Path, vocabulary: Path, folder: Path) -> None:
    """Write the bundle of `weights`. Raises UserError for a missing file."""
    if not weights.is_file():
        raise UserError(f"there is no {weights}. Train it as scripts/README.md says")
    saved = torch.load(weights, map_location="cpu", weights_only=True)
    arch, state = saved["arch"], saved["model"]
    config = ModelConfig(
        d_model=arch["d_model"], d_ff=arch["ffn"], n_heads=arch["heads"],
        n_encoder_layers=arch["enc"], n_decoder_layers=arch["dec"],
    )  # fmt: skip
    size = state["emb.weight"].size(0)
    tokenizer = Tokenizer(vocabulary)
    model = Transformer(config, src_vocab_size=size, tgt_vocab_size=size)
    model.load_state_dict(renamed(state))
    save(
        Bundle(
            model=model, src="en", tgt="de", src_tokenizer=tokenizer, tgt_tokenizer=tokenizer, model_config=config
        ),
        folder,
    )  # fmt: skip


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of torch.nn.Transformer under the names of Dragoman's."""
    shared = ("src_embedding.table", "tgt_embedding.table", "projection")
    tensors = {f"{name}.weight": state["emb.weight"] for name in shared}
    for name, tensor in state.items():
        stack, _, rest = name.removeprefix("net.").partition(".")
        if stack not in ("encoder", "decoder"):
            continue
        if rest.startswith("norm."):
            tensors[f"{stack}_norm.{rest.removeprefix('norm.')}"] = tensor
            continue
        _, layer, part, *kind = rest.split(".")
        prefix = f"{stack}.{layer}"
        if part in ATTENTIONS:
            tensors |= _attention(f"{prefix}.{ATTENTIONS[part]}", ".".join(kind), tensor)
        elif part.startswith("linear"):
            tensors[f"{prefix}.feed_forward.{'up' if part == 'linear1' else 'down'}.{kind[0]}"] = tensor
        else:
            tensors[f"{prefix}.residuals.{int(part.removeprefix('norm')) - 1}.norm.{kind[0]}"] = tensor
    return tensors


def _attention(prefix: str, kind: str, tensor: Tensor) -> dict[str, Tensor]:
    if kind.startswith("out_proj."):
        return {f"{prefix}.out.{kind.removeprefix('out_proj.')}": tensor}
    q, k, v = tensor.chunk(3)
    name = kind.removeprefix("in_proj_")
    return {f"{prefix}.q.{name}": q, f"{prefix}.kv.{name}": torch.cat((k, v))}


if __name__ == "__main__":
    sys.exit(main())
