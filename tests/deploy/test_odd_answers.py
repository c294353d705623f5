"""Answers of a member that no machine of ours gives: refused, and nobody fails by them or waits for ever."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from deployments import small

from histfl.deploy.kits import Kit, KitSettings
from histfl.deploy.messages import BadMessage, Message
from histfl.deploy.protocol import (
    ClientRound,
    cell_answer,
    cell_result,
    check_cut,
    check_samples,
    client_answer,
    client_update,
    evaluation_of,
)
from histfl.runs.build import prepare
from histfl.training import CellJob, CellResult
from histfl.training.jobs import Measured
from histfl.training.objectives import classification


@pytest.fixture(scope="module")
def job() -> CellJob:
    """Of the second of two cells, whose clients are 2 and 3."""
    experiment = prepare(small(), device="cpu", engine="reference")
    run, state = experiment.hist, {"weight": torch.zeros(3)}
    schedule = run.participation.schedules(run.network, 1, 0, run.task.seeds)[1]
    return CellJob(run.task, run.network.cell(1), 0, state, {}, schedule, None)


def answered(job: CellJob, loss: float = 1.0, **measured: Any) -> Message:
    result = CellResult(job.start, loss, 2, 0.0, measured=Measured(1.0, missed=(2,)))
    message = Message.of(cell_answer(result).to_bytes())
    return Message({**message.about, "measured": {**message.about["measured"], **measured}}, message.tensors)


def test_an_edges_answer(job: CellJob) -> None:
    result = cell_result(answered(job), job)
    assert result.measured == Measured(1.0, missed=(2,))


@pytest.mark.parametrize(
    "odd",
    [
        {"seconds": "long"},
        {"seconds": -1},
        {"training_seconds": 1e308},
        {"bad": None},
        {"missed": [0]},
        {"lost": True},
        {"more": 1},
    ],
    ids=str,
)
def test_an_edge_that_measured_oddly(odd: dict[str, Any], job: CellJob) -> None:
    with pytest.raises(BadMessage, match="its answer is not understood"):
        cell_result(answered(job, **odd), job)


def test_an_edge_that_has_done_more_steps_than_it_was_asked_for(job: CellJob) -> None:
    answer = answered(job)
    with pytest.raises(BadMessage, match="its local steps are 9223372036854775807"):
        cell_result(Message({**answer.about, "client_steps": 2**63 - 1}, answer.tensors), job)


def test_an_edges_loss_that_is_not_finite_is_sent_and_refused(job: CellJob) -> None:
    with pytest.raises(BadMessage, match="its loss is inf"):
        cell_result(answered(job, float("inf")), job)


def test_a_clients_loss_is_a_real_number(job: CellJob) -> None:
    update = {"weight": torch.zeros(1, 3)}
    right = client_answer(update, torch.tensor(1.0), 0.1)
    assert client_update(right, job, job.start, 0, 2).loss == 1.0
    with pytest.raises(BadMessage, match="its loss is"):
        client_update(client_answer(update, torch.tensor(1j), 0.1), job, job.start, 0, 2)
    with pytest.raises(
        BadMessage, match=r"its loss is 9.99"
    ):  # with which the cloud would refuse the whole cell
        client_update(client_answer(update, torch.tensor(1e31), 0.1), job, job.start, 0, 2)
    with pytest.raises(BadMessage, match="its loss is"):  # torch cannot add it to another
        client_update(
            client_answer(update, torch.tensor(1.0).to(torch.float8_e8m0fnu), 0.1), job, job.start, 0, 2
        )


@pytest.mark.parametrize(
    "odd",
    [{"round": -1}, {"edge_round": -1}, {"edge_round": 10**10}, {"senders": 0}, {"senders": 10**13}],
    ids=str,
)
def test_an_edges_odd_work(odd: dict[str, int], job: CellJob) -> None:
    right = {"round": 0, "edge_round": 1, "senders": 2}
    tensors = {"state/weight": torch.zeros(2)}
    asked = ClientRound.of(Message(right, tensors), job.task, job.cell)
    check_cut(asked.state, job.start)
    with pytest.raises(BadMessage, match="the edge's work is not understood"):
        ClientRound.of(Message({**right, **odd}, tensors), job.task, job.cell)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({}, "lacks 'weight'"),
        ({"weight": torch.zeros(3), "x": torch.zeros(3)}, "has 'x'"),
        ({"weight": torch.zeros(4)}, r"has weight of \[4\], which is no part of \[3\]"),
        ({"weight": torch.zeros(1, 3)}, r"has weight of \[1, 3\]"),
    ],
)
def test_an_edges_model_that_is_no_part_of_the_whole(
    state: dict[str, torch.Tensor], reason: str, job: CellJob
) -> None:
    with pytest.raises(BadMessage, match=f"the edge's model {reason}"):
        check_cut(state, job.start)


@pytest.mark.parametrize("samples", ["many", None, -1, 0, True, 1.5, 2**63, [1], {"c3": 1}], ids=str)
def test_samples_that_are_no_number(samples: Any, tmp_path: Path) -> None:
    """An edge and the cloud go by what their children say of themselves."""
    about = {"role": "edge", "name": "edge1", "cells": [2, 2], "cell": 1}
    cloud = {"host": "localhost", "port": 1}
    edge = KitSettings(**about, parent={"name": "cloud", **cloud}, listen=cloud)
    with pytest.raises(BadMessage, match=r"c3 has .* samples"):
        check_samples(Kit(tmp_path, edge), "c3", {"samples": samples})
    kit = Kit(tmp_path, KitSettings(role="cloud", name="cloud", cells=[2, 2], listen=cloud))
    with pytest.raises(BadMessage, match=r"c3 has .* samples"):
        check_samples(kit, "edge1", {"samples": {"c2": 1, "c3": samples}})
    with pytest.raises(BadMessage, match="'c0', which is no client of its cell"):
        check_samples(kit, "edge1", {"samples": {"c0": 1}})
    with pytest.raises(BadMessage, match="its clients' samples are"):
        check_samples(kit, "edge1", {"samples": 7})
    check_samples(kit, "edge1", {"samples": {"c2": 1}})


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ({"loss": "nan"}, "the loss on its data is nan"),
        ({"loss": "1e300"}, "the loss on its data is 1e\\+300"),
        ({"metrics": {}}, "its metrics are"),
        ({"metrics": {"accuracy": 0.5, "other": 1}}, "its metrics are"),
        ({"metrics": {"accuracy": "nan"}}, "its accuracy is nan"),
        ({"metrics": {"accuracy": 7}}, "its accuracy is 7"),
        ({"metrics": [1]}, "is not understood"),
    ],
    ids=str,
)
def test_an_odd_evaluation(odd: dict[str, Any], reason: str) -> None:
    """One of them would otherwise end the run of all."""
    right = {"loss": 1.0, "metrics": {"accuracy": 0.5}}
    assert evaluation_of(right, classification()).loss == 1.0
    with pytest.raises(BadMessage, match=reason):
        evaluation_of({**right, **odd}, classification())


@pytest.mark.parametrize(
    ("format", "shape", "entries"),
    [("F4", [2], b"\0"), ("F32", [0, 2**62, 4], b""), ("F32", [0, 2**64 - 1], b"")],
    ids=["format", "strides", "length"],
)
def test_a_tensor_that_torch_cannot_have(format: str, shape: list[int], entries: bytes) -> None:
    header = json.dumps({"x": {"dtype": format, "shape": shape, "data_offsets": [0, len(entries)]}}).encode()
    words = json.dumps([{}, ["x"]]).encode()
    data = len(words).to_bytes(8) + words + len(header).to_bytes(8, "little") + header + entries
    with pytest.raises(BadMessage, match="damaged message"):
        Message.of(data)
