"""The weights that all decoders of a comparison share, as bundles of Dragoman: same_weights.py WEIGHTS DATA FOLDER

The peers' bench_train_torch.py trains a torch.nn.Transformer, and decodelib.py of the same folder fills every peer's
own model with its numbers. Here they become a bundle: the same function, so that engines differ in nothing else.
Knows how the two modules name the same parts; refuses to know what is done with them.

The last line of stdout is JSON: which engines there are here, as measured_search.py is asked for them, and of each
other one why not. It is a program because what starts the measurements must stay small: on Linux a process begins
with the peak memory of the one that started it.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.bundle import Bundle, save
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import UserError, plain_errors
from dragoman.export.ctranslate2 import export
from dragoman.model.transformer import ModelConfig, Transformer
from dragoman.search.hypothesis import SearchConfig
from dragoman.training.machine import cpu_has_bf16
from plain_text import plain_text, plain_vocabulary

SRC, TGT = "en", "de"
OURS = {"self_attn": "self_attention", "multihead_attn": "cross_attention"}


def main() -> None:
    weights, data, folder = map(Path, sys.argv[1:])
    print(json.dumps(prepare(weights, data, folder)))


def prepare(weights: Path, data: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Fill `folder` with bundles and the plain test.en. Raises UserError for what is missing."""
    for path in (data / "spm.model", data / "test.en", data / "test.de"):
        if not path.is_file():
            raise UserError(f"there is no {path}: prepare_data.py of the peers' scripts makes it")
    plain_vocabulary(data / "spm.model", folder / "spm.model")
    plain_text(data / "test.en", data / "spm.model", folder / "spm.model", folder / "test.en")
    bundle = folder / "torch"
    make_bundle(weights, folder / "spm.model", bundle)
    engines: dict[str, Any] = {"torch fp32": {"bundle": str(bundle), "engine": "torch"}}
    if cpu_has_bf16():
        engines["torch bf16"] = {"bundle": str(bundle), "engine": "torch", "precision": "bf16"}
    without = {}
    for quantization in ("float32", "int8"):
        name, of_its_own = f"CTranslate2 {quantization}", folder / quantization
        shutil.copytree(bundle, of_its_own)
        try:
            export(of_its_own, quantization=quantization)
        except UserError as error:
            without[name] = str(error)
        else:
            engines[name] = {"bundle": str(of_its_own), "engine": "ctranslate2"}
    return {"engines": engines, "without": without}


def make_bundle(weights: Path, vocabulary: Path, folder: Path) -> None:
    """Write the bundle `folder` of the file `weights`, which bench_train_torch.py saved, and a `plain_vocabulary`.

    Raises UserError for a file that is missing or holds another kind of network.
    """
    if not weights.is_file():
        raise UserError(f"there is no {weights}: run_decode.sh of the peers' programs trains it")
    box = torch.load(weights, map_location="cpu", weights_only=True)
    if not box.get("norm_first"):
        raise UserError(f"{weights} is post-norm: the decoders that it is compared with are pre-norm")
    arch, theirs = box["arch"], box["model"]
    config = ModelConfig(
        d_model=arch["d_model"], d_ff=arch["ffn"], n_heads=arch["heads"],
        n_encoder_layers=arch["enc"], n_decoder_layers=arch["dec"],
    )  # fmt: skip
    size = theirs["emb.weight"].size(0)
    model = Transformer(config, src_vocab_size=size, tgt_vocab_size=size)
    model.load_state_dict(renamed(theirs))
    tokenizer = Tokenizer.load(vocabulary)
    if len(tokenizer) != size:
        raise UserError(f"{vocabulary} has {len(tokenizer)} pieces, and the weights are for {size}")
    made = Bundle(
        model=model, src=SRC, tgt=TGT, src_tokenizer=tokenizer, tgt_tokenizer=tokenizer, model_config=config,
        search=SearchConfig(beam_size=4),
    )  # fmt: skip
    save(made, folder)


def renamed(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of the peers' torch model under the names of ours."""
    ours = dict.fromkeys(("src_embedding.table", "tgt_embedding.table", "projection"), theirs["emb.weight"])
    ours = {f"{name}.weight": tensor for name, tensor in ours.items()}
    for name, tensor in theirs.items():
        stack, _, rest = name.removeprefix("net.").partition(".")
        if stack not in ("encoder", "decoder"):
            continue
        if rest.startswith("norm."):
            ours[f"{stack}_norm.{rest.removeprefix('norm.')}"] = tensor
            continue
        _, layer, part, *kind = rest.split(".")
        at = f"{stack}.{layer}."
        if part in OURS:
            ours |= _attention(at + OURS[part], ".".join(kind), tensor)
        elif part.startswith("linear"):
            ours[f"{at}feed_forward.{'up' if part == 'linear1' else 'down'}.{kind[0]}"] = tensor
        else:
            ours[f"{at}residuals.{int(part.removeprefix('norm')) - 1}.norm.{kind[0]}"] = tensor
    return ours


def _attention(at: str, kind: str, tensor: Tensor) -> dict[str, Tensor]:
    if kind.startswith("out_proj."):
        return {f"{at}.out.{kind.removeprefix('out_proj.')}": tensor}
    q, k, v = tensor.chunk(3)
    what = kind.removeprefix("in_proj_")
    return {f"{at}.q.{what}": q, f"{at}.kv.{what}": torch.cat((k, v))}


if __name__ == "__main__":
    with plain_errors():
        main()
