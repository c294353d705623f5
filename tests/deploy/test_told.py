"""What a deployment says while it goes on, and what it takes a user's own test set for."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from deployments import LONG_S, deployed, provisioned, small, wait_until

import histfl
from histfl.cli import main
from histfl.reports.measured import measured_table
from histfl.runs.store import RunFolder


def test_the_cloud_says_whom_it_waits_for(tmp_path: Path) -> None:
    deployment = provisioned(small("training.rounds=1"), tmp_path)
    run = threading.Thread(target=deployment.run)
    run.start()
    wait_until(lambda: deployment.said.get("cloud"))
    threads = []
    for name in ("edge0", "edge1", "c0", "c1", "c2", "c3"):
        if name == "c3":
            wait_until(lambda: any("waiting for c3;" in line for line in deployment.said["cloud"]))
        threads.append(deployment.start(name))
    run.join(LONG_S)
    assert deployment.said["cloud"][0].startswith("waiting for edge0, edge1; ")
    assert deployment.said["cloud"][-1].startswith("4 of 4 clients are there")
    for thread in threads:
        thread.join(LONG_S)


def test_a_run_that_goes_on_has_its_measured_table(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with deployed(small(), tmp_path / "kits") as deployment:
        deployment.run(folder=folder)
    (folder / "summary.json").unlink()
    (row,) = measured_table([histfl.Run.load(folder)]).rows
    assert [cell.value for cell in row].count(None) == 1


def test_a_test_set_of_ones_own_is_not_the_named_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its images are not normalised as those of the named set are."""
    (tmp_path / "own_test_set.py").write_text(
        "import torch\ndef load():\n    return torch.rand(40, 1, 28, 28), torch.arange(40) % 10\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    deployment = provisioned(small("training.rounds=1"), tmp_path / "kits")
    threads = [deployment.start(name) for name in deployment.machines()]
    config, folder = tmp_path / "run.toml", tmp_path / "run"
    config.write_text(deployment.config.to_toml(), "utf-8")
    command = [str(deployment.kits / "cloud"), str(config), "--out", str(folder)]
    with pytest.raises(SystemExit) as ended:
        main(["cloud", *command, "--data", "own_test_set:load", "--json"])
    assert ended.value.code == 0, capsys.readouterr().err
    summary = RunFolder(folder).read_summary()
    assert (summary["dataset"], summary["normalisation"]) == ("given", None)
    for thread in threads:
        thread.join(LONG_S)
    with pytest.raises(SystemExit) as ended:  # it waits for nobody, but for those who may not know
        main(["cloud", command[0], str(folder / "config.toml"), "--out", str(folder), "--resume"])
    assert ended.value.code == 0
    assert "has all 1 rounds; ask for more with --set training.rounds" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "cloud",
                command[0],
                str(folder / "config.toml"),
                "--out",
                str(folder),
                "--resume",
                "--set",
                "training.rounds=2",
            ]
        )
    assert ended.value.code == 2
    assert "--data" in capsys.readouterr().err
