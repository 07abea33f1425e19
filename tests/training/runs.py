"""Looking at runs: what their checkpoints hold, whether two arrived at the same."""

import json
from pathlib import Path

import torch

from dragoman.config import Config
from dragoman.training.checkpoint import LAST


def checkpoint(config: Config) -> dict:
    return torch.load(Path(config.run_dir) / LAST, weights_only=True)


def assert_same_state(one: Config, other: Config) -> None:
    a, b = checkpoint(one), checkpoint(other)
    assert a["global_step"] == b["global_step"]
    assert a["state_dict"].keys() == b["state_dict"].keys()
    for name in a["state_dict"]:
        assert torch.equal(a["state_dict"][name], b["state_dict"][name]), name
    moments = (a["optimizer_states"][0]["state"], b["optimizer_states"][0]["state"])
    for index in moments[0]:
        for key in moments[0][index]:
            assert torch.equal(*(m[index][key] for m in moments))


def losses(config: Config) -> list[tuple[int, float]]:
    """Of all validations, by step."""
    metrics = json.loads(Path(config.run_dir, "metrics.json").read_text(encoding="utf-8"))
    return [(record["step"], record["loss"]) for record in metrics["validations"]]
