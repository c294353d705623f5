"""What a client has not sent yet: it outlives the client, and is right whichever round is asked for again."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from deployments import small

from histfl.deploy.protocol import ClientRound, RunInfo, Terms
from histfl.deploy.residuals import FOLDER, Residuals
from histfl.errors import CheckpointError
from histfl.partition import State, extract
from histfl.runs.build import Experiment, prepare
from histfl.training import CellJob, CellSchedule


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return prepare(small("codec.name=top-k"), device="cpu", engine="reference")


def told(seed: int) -> RunInfo:
    return RunInfo({"training": {"seed": seed}}, Terms(), 10, (), {}, "")


def residuals(experiment: Experiment, kit: Path, seed: int = 1) -> Residuals:
    return Residuals.of(kit, told(seed), experiment.hist.plan, whole(experiment))


def whole(experiment: Experiment) -> State:
    return {name: tensor.detach() for name, tensor in experiment.model.named_parameters()}


def asked(experiment: Experiment, round: int, edge_round: int) -> ClientRound:
    """Of cell 0, whose units are dealt anew in every global round."""
    run = experiment.hist
    counts = run.sizes(
        run.participation.schedules(run.network, 2, round, run.task.seeds), [None, None]
    ).counts
    submodel = run.dealer.deal(run.plan, counts, [0, 1], round, run.task.seeds)[0]
    state, everybody = extract(whole(experiment), submodel), (np.arange(2),) * 2
    schedule = CellSchedule(0, everybody, everybody)
    job = CellJob(run.task, run.network.cell(0), round, state, {}, schedule, None, units=submodel.kept)
    return ClientRound(job, state, edge_round, None)


def step(own: Residuals, work: ClientRound) -> State:
    """An edge round, after which the client keeps a little more: a number that tells the round."""
    before = own.before(work)
    number = 10 * work.job.round + work.edge_round + 1
    own.keep(work, {name: tensor + number for name, tensor in before.items()})
    return before


ROUNDS = [(round, edge_round) for round in range(4) for edge_round in range(2)]


def kept(experiment: Experiment, kit: Path, order: list[tuple[int, int]]) -> dict[tuple[int, int], State]:
    """What the client had kept before each edge round when it was asked last; it is started anew each time."""
    return {each: step(residuals(experiment, kit), asked(experiment, *each)) for each in order}


@pytest.mark.parametrize(
    "again",
    [[(1, 0), (1, 1)], [(1, 1)], [(2, 0), (2, 1), (2, 0)], [(3, 1), (3, 1)]],
    ids=["a global round", "an edge round", "three times", "the last"],
)
def test_a_round_that_is_asked_again_finds_what_was_before_it(
    again: list[tuple[int, int]], experiment: Experiment, tmp_path: Path
) -> None:
    right = kept(experiment, tmp_path / "once", ROUNDS)
    after = ROUNDS.index(max(again)) + 1
    order = ROUNDS[:after] + again + ROUNDS[ROUNDS.index(again[-1]) + 1 :]
    found = kept(experiment, tmp_path / "again", order)
    for each in ROUNDS:
        for name, tensor in right[each].items():
            assert torch.equal(found[each][name], tensor), (each, name)
    assert any(tensor.any() for tensor in right[1, 0].values())
    assert not any(tensor.any() for tensor in right[0, 0].values())


def test_old_rounds_and_other_runs_take_no_room(experiment: Experiment, tmp_path: Path) -> None:
    kept(experiment, tmp_path, ROUNDS)
    own = residuals(experiment, tmp_path)
    assert sorted(path.name for path in own.folder.iterdir()) == [
        "2-1.safetensors",
        "3-0.safetensors",
        "3-1.safetensors",
    ]
    other = residuals(experiment, tmp_path, seed=2)
    assert list((tmp_path / FOLDER).iterdir()) == [other.folder]
    assert not any(tensor.any() for tensor in other.before(asked(experiment, 0, 0)).values())


@pytest.mark.parametrize("damaged", [b"damaged", safetensors.torch.save({"x": torch.zeros(1)})])
def test_a_damaged_file_is_named(damaged: bytes, experiment: Experiment, tmp_path: Path) -> None:
    kept(experiment, tmp_path, ROUNDS[:2])
    own = residuals(experiment, tmp_path)
    (own.folder / "0-1.safetensors").write_bytes(damaged)
    with pytest.raises(CheckpointError, match=r"0-1\.safetensors cannot be read"):
        own.before(asked(experiment, 1, 0))
