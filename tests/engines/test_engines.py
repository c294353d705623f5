"""A new engine is a class and a line in ENGINES, and a run is then really carried out by it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from commands import SMALL, Answer
from engine_cases import jobs_of, make_experiment
from small_training import train

from histfl.engines import ENGINES, ReferenceEngine, VectorisedEngine
from histfl.engines.blocks import clients_per_block
from histfl.errors import UsageError
from histfl.network import Network
from histfl.training import CellJob, CellResult


class Counting:
    """The reference engine, which counts."""

    name = "counting"
    made: ClassVar[list["Counting"]] = []

    def __init__(self, memory_gb: float | None) -> None:
        self.memory_gb, self.rounds, self.closed = memory_gb, 0, 0
        Counting.made.append(self)

    def run(self, jobs: Sequence[CellJob]) -> Sequence[CellResult]:
        self.rounds += 1
        return ReferenceEngine().run(jobs)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counting, "made", [])
    monkeypatch.setitem(ENGINES, "counting", Counting)


def test_it_runs_from_the_command_line(histfl_command: Callable[..., Answer], tmp_path: Path) -> None:
    options = "--engine", "counting", "--memory-gb", "3", "--json", "--out", tmp_path / "run"
    answer = histfl_command("run", *SMALL, *options)
    assert answer.code == 0
    assert answer.json["engine"] == "counting"
    (engine,) = Counting.made
    assert (engine.rounds, engine.closed, engine.memory_gb) == (3, 1, 3.0)


def test_it_is_closed_where_a_run_breaks_off() -> None:
    def stop(record: dict[str, object]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(engine="counting", rounds=2, on_round=stop)
    (engine,) = Counting.made
    assert (engine.rounds, engine.closed) == (1, 1)


def test_a_wrong_name_is_answered_with_all(histfl_command: Callable[..., Answer]) -> None:
    answer = histfl_command("run", *SMALL, "--engine", "warp", "--out", "never")
    assert answer.code == 2
    assert "use auto, reference, vectorised, ray or counting" in answer.err
    with pytest.raises(UsageError, match="did you mean 'counting'"):
        train(engine="counting2")


def test_help_names_the_engines_that_come_with_the_package(histfl_command: Callable[..., Answer]) -> None:
    text = histfl_command("run", "--help").out
    assert all(name in text for name in ENGINES if name != "counting")


def test_a_closed_engine_may_run_again() -> None:
    jobs, engine = jobs_of(make_experiment("mlp")), VectorisedEngine()
    first = engine.run(jobs)
    engine.close()
    for one, other in zip(first, engine.run(jobs), strict=True):
        assert all(torch.equal(one.state[name], other.state[name]) for name in one.state)


def test_jobs_that_are_shared_out_give_the_same_bits_with_the_blocks_of_all() -> None:
    people = Network.uniform(cells=3, clients=40)
    jobs = jobs_of(make_experiment("mlp", dtype=torch.float32, people=people))
    most = clients_per_block([job.schedule for job in jobs], cores=2)
    assert most == 10
    together = VectorisedEngine(cores=2).run(jobs)
    for job, right in zip(jobs, together, strict=True):
        (alone,) = VectorisedEngine(cores=64).run([job], most=most)
        assert all(torch.equal(alone.state[name], right.state[name]) for name in right.state)


def test_blocks_are_two_a_core_and_not_too_small() -> None:
    jobs = jobs_of(make_experiment("mlp", people=Network.uniform(cells=2, clients=90)))
    schedules = [job.schedule for job in jobs]
    assert [clients_per_block(schedules, cores) for cores in (1, 2, 4, 100)] == [45, 23, 12, 4]
