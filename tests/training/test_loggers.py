"""Loggers: scalars, samples and attention images of a run."""

import pytest

from dragoman.errors import UserError
from dragoman.training import fit

WATCHED = {"samples": 2, "validation_pairs": 2, "validate_every": 2, "max_steps": 2}


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_logger_names_its_command(runs, monkeypatch, name):
    monkeypatch.setattr(fit, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=rf"trainer\.loggers={name}: not installed\. Run `pip install {name}`"):
        runs.fit("run", trainer={"loggers": ["csv", name]})


@pytest.mark.slow
def test_wandb_offline_gets_scalars_samples_and_images(runs, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = runs.fit("run", trainer=WATCHED | {"loggers": ["csv", "wandb"]})
    (folder,) = (run / "wandb").glob("offline-run-*")
    (log,) = folder.glob("run-*.wandb")
    assert b"validation/bleu_farm" in log.read_bytes()
    media = folder / "files" / "media"
    assert len(list(media.rglob("samples*.table.json"))) == 1
    assert len(list(media.rglob("*.png"))) == 2


@pytest.mark.slow
def test_mlflow_goes_on_with_the_same_run(runs, monkeypatch):
    """The second start changes max_steps; MLflow allows no change of parameters."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for n in (2, 4):
        run = runs.fit("run", trainer=WATCHED | {"loggers": ["mlflow"], "max_steps": n})
    client = mlflow.MlflowClient(f"sqlite:///{run.parent}/mlflow.db")
    (kept,) = client.search_runs([client.get_experiment_by_name("dragoman").experiment_id])
    losses = client.get_metric_history(kept.info.run_id, "train/loss")
    assert [metric.step for metric in losses] == [1, 2, 3, 4]
    assert "validation/bleu_farm" in kept.data.metrics
    assert kept.data.params["training.lr"] == "0.003"
    samples = [file.path for file in client.list_artifacts(kept.info.run_id, "samples")]
    assert samples == [f"samples/step-{step:09}.md" for step in (2, 4)]
    images = [file.path for file in client.list_artifacts(kept.info.run_id, "images")]
    assert sum(path.endswith(".png") for path in images) == 4
