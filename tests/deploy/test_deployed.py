"""A deployed run is the simulated one: the same model bit by bit, whatever is configured; and what becomes of losses."""

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from deployments import LONG_S, assert_same_model, deployed, provisioned, simulated, small, wait_until

from histfl.cli import main
from histfl.deploy import client, edge, server
from histfl.deploy.caller import Caller, Over
from histfl.deploy.cloud import OnMachines
from histfl.deploy.dispatcher import OVER, Dispatcher
from histfl.deploy.messages import Message
from histfl.deploy.protocol import ClientRound, Terms
from histfl.errors import DivergedError, UsageError
from histfl.runs.build import prepare
from histfl.runs.execute import execute
from histfl.runs.schema import Measured
from histfl.runs.store import RunFolder

CASES = {
    "plain": (),
    "hierarchical FedAvg, Adam, by samples, lost updates": (
        "method.name=hfedavg",
        "training.optimiser=adam",
        "training.weights=samples",
        "network.dropout=0.3",
        "data.split=dirichlet",
    ),
    "overlap, momentum, clipped, FedProx, some clients": (
        "method.name=overlap",
        "training.momentum=0.9",
        "training.clip_norm=1.0",
        "training.proximal=0.1",
        "network.participants=1",
    ),
    "MTGC, a schedule, cloud's Adam": (
        "training.correction=mtgc",
        "training.schedule=cosine",
        "cloud.name=fedadam",
        "method.scale=1.0",
    ),
    "quantised, some cells": (
        "codec.name=quantise",
        "codec.bits=4",
        "network.active_cells=1",
        "uplink.name=fdma",
    ),
    "top-k, lost updates": ("codec.name=top-k", "codec.share=0.2", "network.dropout=0.3"),
    "random-k, weighted": ("codec.name=random-k", "training.weights=samples", "data.split=dirichlet"),
    "dropout layers, augmented images": ("model.name=lenet5", "model.dropout=0.3", "data.augment=crop-flip"),
}


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_the_deployed_model_is_the_simulated_one(settings: tuple[str, ...], tmp_path: Path) -> None:
    config = small(*settings)
    with deployed(config, tmp_path) as deployment:
        found = deployment.run()
    right = simulated(config)
    assert_same_model(found, right)
    assert [record["training_loss"] for record in found.records] == [
        r["training_loss"] for r in right.records
    ]
    for record, other in zip(found.records, right.records, strict=True):
        assert record["accuracy"] == other["accuracy"]
        assert record["updates_lost"] == other["updates_lost"]
        measured = record["measured"]
        assert list(measured) == list(Measured.model_fields)
        assert measured["missed_clients"] == []
        assert measured["lost_cells"] == []
        assert 0 < measured["seconds"] < 60


def test_bytes_are_those_of_the_submodels(tmp_path: Path) -> None:
    config = small("model.hidden=100")
    with deployed(config, tmp_path) as deployment:
        run = deployment.run()
    record, measured = run.records[0], run.records[0]["measured"]
    links = [measured[key] for key in Measured.model_fields if key.endswith("_megabytes")]
    assert all(len(of_cells) == 2 and min(of_cells) > 0 for of_cells in links)
    submodels = record["edge_cloud_megabytes"]
    assert submodels < sum(measured["edges_to_cloud_megabytes"]) < 1.05 * submodels
    assert submodels < sum(measured["cloud_to_edges_megabytes"]) < 1.05 * submodels
    updates = record["megabytes_per_client"] * 4
    assert updates < sum(measured["clients_to_edges_megabytes"]) < 1.05 * updates
    assert run.summary["measured"]["edges_to_cloud_megabytes"] == pytest.approx(
        sum(sum(each["measured"]["edges_to_cloud_megabytes"]) for each in run.records)
    )


def test_a_client_whose_numbers_are_none_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    train = client._train

    def badly(asked: ClientRound, number: int, *others: object) -> Message:
        answer = train(asked, number, *others)
        none = {name: tensor * float("nan") for name, tensor in answer.tensors.items()}
        return Message(answer.about, none) if number == 1 else answer

    monkeypatch.setattr(client, "_train", badly)
    with deployed(small("training.rounds=1"), tmp_path) as deployment:
        run = deployment.run()
    assert run.records[0]["measured"]["missed_clients"] == [1, 1]
    assert run.records[0]["updates_lost"] == 2
    refused = r"refused c1 at 127\.0\.0\.1: its update has numbers in .* not finite; it is left out"
    assert any(re.search(refused, record.message) for record in caplog.records)


def test_a_run_whose_numbers_are_none_ends(tmp_path: Path) -> None:
    config = small("training.learning_rate=1e30", "training.clip_norm=1e30")
    deployment = provisioned(config, tmp_path)
    for name in deployment.machines():
        deployment.start(name)
    with pytest.raises(DivergedError, match="no client sent finite numbers"):
        deployment.run()


def test_noise_of_a_deployment_is_nobody_elses(tmp_path: Path) -> None:
    """Each time another one, which the run's seed does not tell; who is drawn is no secret, and makes it no smaller."""
    config = small(
        "privacy.clip=1.0", "privacy.noise_multiplier=1.0", "privacy.where=client", "network.participants=1"
    )
    with deployed(config, tmp_path / "one") as deployment:
        one = deployment.run(Terms(min_clients=2))
    with deployed(config, tmp_path / "other") as deployment:
        other = deployment.run(Terms(min_clients=2))
    right = simulated(config)
    models = [dict(run.model.named_parameters())["fc1.weight"] for run in (one, other, right) if run.model]
    assert not models[0].equal(models[1])
    assert not models[0].equal(models[2])
    assert one.summary["privacy"]["sampled"] == one.summary["privacy"]["clients"] == 2
    assert one.summary["privacy"]["epsilon"] >= right.summary["privacy"]["epsilon"]


def test_clients_evaluate_on_their_own_data(tmp_path: Path) -> None:
    """As the simulation does it with all data in one place."""
    config = small("evaluate.per=client", "data.split=dirichlet")
    with deployed(config, tmp_path) as deployment:
        run = deployment.run()
    right = simulated(config)
    assert_same_model(run, right)
    for record, other in zip(run.records, right.records, strict=True):
        assert record["own_data"]["per"] == "client"
        for name, spread in other["own_data"]["values"].items():
            assert record["own_data"]["values"][name] == pytest.approx(spread, rel=1e-5)


def test_an_evaluation_that_is_none_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The cloud does not end by what an edge says."""
    right = edge._Edge.evaluations

    def wrong(own: edge._Edge, work: Message) -> Message:
        return right(own, work) if own._cell.index == 0 else Message({"found": {"nobody": 1}})

    monkeypatch.setattr(edge._Edge, "evaluations", wrong)
    with deployed(small("training.rounds=1", "evaluate.per=client"), tmp_path) as deployment:
        run = deployment.run()
    assert run.records[0]["own_data"]["per"] == "client"
    assert any("refused edge1" in record.message for record in caplog.records)


def test_a_slow_cell_gets_a_smaller_submodel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes follow what was measured, not the network as it is described, in which both cells are alike."""
    answer = Caller.answer

    def slowly(caller: Caller, message: Message) -> bool:
        if caller.kit.name in ("c2", "c3"):
            _, units, _ = message.of_kind("update")["fc1.weight"].shape
            time.sleep(0.8 * units / 32)
        return answer(caller, message)

    monkeypatch.setattr(Caller, "answer", slowly)
    config = small(
        "model.hidden=64", "method.sizes=optimised", "network.profile=uniform", "training.rounds=3"
    )
    with deployed(config, tmp_path) as deployment:
        run = deployment.run()
    units = [[counts for (counts,) in record["units"]] for record in run.records]
    assert units[0] == [32, 32]
    assert units[-1][0] > 32 > units[-1][1]
    assert sum(units[-1]) == 64
    assert run.records[-1]["latency"]["predicted_seconds"] > 0.1  # foretold by what was measured


def test_a_lost_client_is_skipped_after_one_timeout_and_taken_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes when a few rounds are over, and is heard from then on."""
    deployment = provisioned(small("training.rounds=400", "training.edge_rounds=3"), tmp_path)
    others = [name for name in deployment.machines() if name != "c3"]
    threads = [deployment.start(name) for name in others]
    rounds = []

    def come(record: dict[str, Any]) -> bool:
        rounds.append(record)
        if len(rounds) == 3:
            threads.append(deployment.start("c3"))
        return record["measured"]["missed_clients"] == [] or len(rounds) == 400

    deployment.run(Terms(timeout_s=5.0), start_s=0.5, on_round=come)
    missed = [record["measured"]["missed_clients"] for record in rounds]
    assert missed[:3] == [[3, 3, 3]] * 3
    assert missed[-1] == []
    assert [record["updates_lost"] for record in rounds] == [len(each) for each in missed]
    # Nobody waits for it again: in each of their six edge rounds that would be for the timeout.
    assert sum(record["measured"]["seconds"] for record in rounds[1:3]) < 6 * 5.0
    said = [record.message for record in caplog.records]
    assert said.count("going on without c3: has not called yet") == 1
    assert said.count("c3 is heard again") == 1
    for thread in threads:
        thread.join(LONG_S)


def test_a_lost_edge_keeps_its_units_old_values(tmp_path: Path) -> None:
    deployment = provisioned(small("training.rounds=1"), tmp_path)
    for name in ("edge0", "c0", "c1"):
        deployment.start(name)
    run = deployment.run(Terms(timeout_s=1.0, min_clients=2), start_s=1.0)
    measured = run.records[0]["measured"]
    assert measured["lost_cells"] == [1]
    assert measured["missed_clients"] == [2, 3, 2, 3]
    experiment = prepare(deployment.config, device="cpu", engine="reference")
    before = {name: x.detach().clone() for name, x in experiment.model.named_parameters()}
    (cut, *_) = experiment.hist.plan.groups
    _, lost = experiment.hist.dealer.deal(
        experiment.hist.plan, _counts(run), [0, 1], 0, experiment.hist.task.seeds
    )
    assert run.model is not None
    after = dict(run.model.named_parameters())
    units = lost.kept[0]
    assert cut.num_units == 8
    assert after["fc1.weight"][units].equal(before["fc1.weight"][units])
    trained = [unit for unit in range(8) if unit not in units.tolist()]
    assert not after["fc1.weight"][trained].equal(before["fc1.weight"][trained])


def _counts(run):  # type: ignore[no-untyped-def]
    import numpy as np

    return np.array(run.records[0]["units"])


@pytest.mark.parametrize(
    ("lost", "back", "terms", "speaker", "said"),
    [
        (
            "c3",
            ["c3"],
            {"min_clients": 2},
            "edge1",
            "waiting for c3; a round takes 2 at least (--min-clients)",
        ),
        (
            "edge1",
            ["edge1", "c2", "c3"],
            {"min_cells": 2, "min_clients": 2},
            "cloud",
            "waiting for edge1; a round takes 2 at least (--min-cells)",
        ),
    ],
    ids=["clients", "cells"],
)
def test_a_round_waits_for_enough_and_says_so(
    lost: str,
    back: list[str],
    terms: dict[str, int],
    speaker: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who is lost amid the run is waited for, and nothing is missed; an edge that ends takes its clients along."""
    leaving: list[str] = []
    next_work = Caller.next_work

    def leave(caller: Caller, about: Any) -> Message | None:
        if caller.kit.name in leaving:
            leaving.clear()
            raise Over
        return next_work(caller, about)

    monkeypatch.setattr(Caller, "next_work", leave)
    config, threads = small("training.rounds=3"), []
    with deployed(config, tmp_path) as deployment:

        def come_back() -> None:
            wait_until(lambda: said in deployment.said[speaker])
            threads.extend(deployment.start(name) for name in back)

        def lose(record: dict[str, Any]) -> None:
            if record["round"] == 1:
                leaving.append(lost)
                threading.Thread(target=come_back, daemon=True).start()

        run = deployment.run(Terms(timeout_s=1.0, **terms), on_round=lose)
    for thread in threads:
        thread.join(LONG_S)
    assert said in deployment.said[speaker]
    assert [record["measured"]["missed_clients"] for record in run.records] == [[]] * 3
    assert [record["measured"]["lost_cells"] for record in run.records] == [[]] * 3
    assert_same_model(run, simulated(config))


def test_a_cloud_that_ended_goes_on(tmp_path: Path) -> None:
    """Edges and clients wait for the next cloud, and the run is that of one without an end."""
    config, folder = small("training.rounds=3"), tmp_path / "run"
    with deployed(config, tmp_path / "kits") as deployment:
        deployment.config = small("training.rounds=1")
        with Dispatcher(
            deployment.kit("cloud"), timeout_s=5.0
        ) as dispatcher:  # it ends without a word to the others
            machines = OnMachines(device="cpu", dispatcher=dispatcher, say=lambda _: None)
            execute(machines.prepare(deployment.config), RunFolder(folder))
        deployment.config = config
        run = deployment.run(folder=folder, resume=True)
    assert len(run.records) == 3
    assert_same_model(run, simulated(config))


def test_the_last_word_is_written_before_connections_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine there may be a while between the two; who does not hear it would call for ever."""
    give = server._Handler._give

    def slowly(handler: server._Handler, code: int, data: bytes = b"") -> None:
        if data == OVER:
            time.sleep(0.5)
        give(handler, code, data)

    monkeypatch.setattr(server._Handler, "_give", slowly)
    with deployed(small("training.rounds=1"), tmp_path) as deployment:
        deployment.run()
    assert "edge0: the cloud says that all is done" in deployment.said["edge0"]
    assert deployment.said["c3"][-1] == "c3: all is done"


def test_a_cloud_that_is_killed_before_its_last_word_says_it_when_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    with deployed(small("training.rounds=1"), tmp_path / "kits") as deployment:
        with Dispatcher(deployment.kit("cloud"), timeout_s=5.0) as dispatcher:
            machines = OnMachines(device="cpu", dispatcher=dispatcher, say=lambda _: None)
            execute(machines.prepare(deployment.config), RunFolder(folder))
        assert RunFolder(folder).summary_path.exists()
        source = ["cloud", str(deployment.kits / "cloud"), str(folder / "config.toml")]
        with pytest.raises(SystemExit) as ended:
            main([*source, "--out", str(folder), "--resume"])
        assert ended.value.code == 0, capsys.readouterr().err


REFUSED = {
    "uplink.name=aircomp": "added up by the air",
    "theory.every=1": "estimated from all clients' data",
    "evaluate.per=cell": "every client evaluates for itself",
    "network.clients=6": "the kits cells of [2, 2]",
    "privacy.where=client": "add --min-clients 2",
    "training.correction=mtgc privacy.where=client": "the edge keeps corrections by models as they are",
    "training.correction=mtgc codec.name=quantise": "the edge keeps corrections by models as they are",
}


@pytest.mark.parametrize(("setting", "reason"), REFUSED.items())
def test_what_cannot_be_deployed_is_refused(setting: str, reason: str, tmp_path: Path) -> None:
    deployment = provisioned(small(), tmp_path)
    noisy = ("privacy.clip=1.0", "privacy.noise_multiplier=1.0") if "privacy" in setting else ()
    deployment.config = small(*setting.split(), *noisy)
    with pytest.raises(UsageError, match=reason.replace("[", r"\[")):
        deployment.run()
