"""Faults of a deployment whose machines are namespaces: what is done to it, and what became of the run.

Each fault's run has its model compared bit by bit with the simulation's, which an undisturbed deployment's equals.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from machines import Deployment
from namespaces import Namespaces, in_namespaces, run

from histfl.deploy.caller import Caller, JoinAnew, Over
from histfl.deploy.kits import Kit
from histfl.deploy.messages import Message

Found = dict[str, Any]
KILLED_ROUNDS, KILLS_A_RUN = 12, 5  # in 14 runs 25 kills of the cloud, 20 of edges, 25 of clients
BACK_S = (1.0, 2.0)  # a supervisor's seconds until it starts a machine again
UNHURRIED = 180.0  # --timeout with which no machine of these faults is given up


@contextmanager
def deployed(
    rounds: int, *, timeout_s: float, client_mbit: float = 20, clients: int = 4
) -> Iterator[tuple[Deployment, Namespaces]]:
    """A cloud, 2 edges and their clients, started."""
    settings = [f"training.rounds={rounds}", "training.edge_rounds=2"]
    with in_namespaces(settings, 2, clients, timeout_s=timeout_s, client_mbit=client_mbit) as (
        deployment,
        network,
    ):
        deployment.start_all()
        yield deployment, network


def ended(deployment: Deployment) -> Found:
    """What became of the run."""
    found = deployment.finish()
    if found["finished"]:
        comparison = deployment.compared()
        found |= {"equal": comparison.same_bits, "largest_difference": comparison.largest_difference}
    return found


def undisturbed() -> Found:
    with deployed(10, timeout_s=UNHURRIED) as (deployment, _):
        return ended(deployment)


def kills(seed: int) -> Found:
    """SIGKILL of machines at random moments over the run, its start too; each is started again 1 to 2 s later."""
    chance, killed = random.Random(seed), []
    with deployed(KILLED_ROUNDS, timeout_s=UNHURRIED) as (deployment, _):
        for after in sorted(chance.sample(range(KILLED_ROUNDS - 1), KILLS_A_RUN)):
            deployment.wait_for(after)
            time.sleep(chance.uniform(0, 3))
            machine = chance.choice(["client", "edge", "cloud"])
            machine += {"client": str(chance.randrange(4)), "edge": str(chance.randrange(2))}.get(machine, "")
            machine = machine.replace("client", "c")
            if not deployment.kill(machine):
                break
            killed.append({"machine": machine, "rounds_done": len(deployment.records())})
            time.sleep(chance.uniform(*BACK_S))
            deployment.start(machine, resume=machine == "cloud")
        return {"killed": killed, **ended(deployment)}


def killed_at_the_end() -> Found:
    """SIGKILL of the cloud as soon as the last round's record is there; it is started again with --resume."""
    with deployed(4, timeout_s=UNHURRIED) as (deployment, _):
        deployment.wait_for(4)
        at_work = deployment.kill("cloud")
        time.sleep(1)
        deployment.start("cloud", resume=True)
        return {"killed_at_work": at_work, **ended(deployment)}


def client_away() -> Found:
    """SIGKILL of a client, which is started again 25 s later, with a timeout of 10 s."""
    with deployed(60, timeout_s=10) as (deployment, _):
        deployment.wait_for(3)
        deployment.kill("c1")
        time.sleep(25)
        deployment.start("c1")
        return {"killed_after_round": 3, **ended(deployment)}


def cut(name: str, seconds: float, *, timeout_s: float, rounds: int, client_mbit: float = 20) -> Found:
    """Nothing passes the link of a machine to its parent for so long."""
    with deployed(rounds, timeout_s=timeout_s, client_mbit=client_mbit) as (deployment, network):
        deployment.wait_for(3)
        before = len(deployment.records())
        network.cut(name)
        time.sleep(seconds)
        network.mend(name)
        during = len(deployment.records()) - before
        found = {"cut_after_round": before, "rounds_during_the_cut": during, "timeout_s": timeout_s}
        return found | ended(deployment)


def full_disk() -> Found:
    """An edge whose kit, home and temporary folder are on a full disk."""
    with in_namespaces(["training.rounds=5", "training.edge_rounds=2"], 2, 4) as (deployment, _):
        kit = deployment.kits / "edge0"
        files = {path.name: path.read_bytes() for path in kit.iterdir()}
        run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(kit))
        try:
            for name, data in files.items():
                (kit / name).write_bytes(data)
            filler = 0
            with (kit / "filler").open("wb", buffering=0) as full:
                try:
                    while True:
                        filler += full.write(bytes(1024))
                except OSError as error:
                    refused = str(error)
            there = sorted(path.name for path in kit.iterdir())
            for name in ["cloud", *deployment.names]:
                deployment.start(name, home=kit.resolve() if name == "edge0" else None)
            found = ended(deployment)
            written = sorted({path.name for path in kit.iterdir()} - set(there))
            return {"a_write_says": refused, "written_by_the_edge": written, **found}
        finally:
            for process in deployment.processes.values():
                process.kill()
                process.wait()
            run("umount", str(kit))


def bad_answers(kind: str) -> Found:
    """A client, the second of three in its cell, that answers with `kind` to all that it is asked; the model is compared
    with one of a run in which that client is never there."""
    with deployed_with_one_bad(kind) as bad:
        found = ended(bad)
        said = [
            line for line in bad.words("edge0").splitlines() if "refused c1" in line or "without c1" in line
        ]
        found |= {"the_edge_says": said[:3]}
        model = safetensors.torch.load_file(bad.run / "model.safetensors") if found["finished"] else {}
    with deployed_with_one_bad(None) as without:
        without.finish()
        other = safetensors.torch.load_file(without.run / "model.safetensors")
    found["equal_to_a_run_without_it"] = bool(model) and all(
        torch.equal(model[name], other[name]) for name in other
    )
    return found


@contextmanager
def deployed_with_one_bad(kind: str | None) -> Iterator[Deployment]:
    """c1 answers with `kind`, or is not there."""
    settings = ["training.rounds=3", "training.edge_rounds=2"]
    with in_namespaces(settings, 2, 6, timeout_s=20, start_s=60 if kind else 20) as (deployment, _):
        for name in ["cloud", *deployment.names]:
            if name != "c1":
                deployment.start(name)
            elif kind:
                garble = [sys.executable, str(Path(__file__).resolve()), str(deployment.kits / "c1"), kind]
                deployment.start(name, garble)
        yield deployment


def garble(kit: Path, kind: str) -> None:
    """Be a client that answers nonsense of some kind, until all is done."""
    caller = Caller(Kit.read(kit, "client"), print)
    while True:
        try:
            caller.join()
            while True:
                if (work := caller.next_work({"samples": 1332})) is not None:
                    data = nonsense(work, kind)
                    caller._call("answer", data)
        except JoinAnew:
            continue
        except Over:
            return
        finally:
            caller.close()


def nonsense(work: Message, kind: str) -> bytes:
    """An answer to the work: of numbers that are not finite, of other shapes, of a loss that is none, no message at all, or
    an answer to something else."""
    update = {f"update/{name}": tensor[None].clone() for name, tensor in work.of_kind("state").items()}
    about: dict[str, Any] = {"training_seconds": 0.1, "work": work.about["work"]}
    loss = torch.tensor(1.0)
    if kind == "nan":
        next(iter(update.values())).view(-1)[0] = float("nan")
    elif kind == "shapes":
        update = {name: tensor[:, :1] for name, tensor in update.items()}
    elif kind == "loss":
        loss = torch.tensor(float("inf"))
    elif kind == "bytes":
        return random.Random(1).randbytes(100_000)
    elif kind == "other-work":
        about["work"] = "c1-00000000"
    return Message(about, update | {"loss": loss}).to_bytes()


FAULTS: dict[str, Callable[[], Found]] = {
    "undisturbed": undisturbed,
    **{f"kills-{seed}": partial(kills, seed) for seed in range(1, 15)},
    "killed-at-the-end": killed_at_the_end,
    "client-away": client_away,
    "cut-client-30s-kept": partial(cut, "c1", 30, timeout_s=UNHURRIED, rounds=10),
    "cut-edge-30s-kept": partial(cut, "edge0", 30, timeout_s=UNHURRIED, rounds=10),
    "cut-client-30s-lost": partial(cut, "c1", 30, timeout_s=15, rounds=80),
    "cut-edge-30s-lost": partial(cut, "edge0", 30, timeout_s=10, rounds=80),
    "cut-client-5min-kept": partial(cut, "c1", 300, timeout_s=400, rounds=10),
    "cut-edge-5min-kept": partial(cut, "edge0", 300, timeout_s=400, rounds=10),
    "cut-client-5min-lost": partial(cut, "c1", 300, timeout_s=10, rounds=100, client_mbit=4),
    "cut-edge-5min-lost": partial(cut, "edge0", 300, timeout_s=10, rounds=100, client_mbit=4),
    "full-disk": full_disk,
    **{
        f"bad-{kind}": partial(bad_answers, kind) for kind in ("nan", "shapes", "loss", "bytes", "other-work")
    },
}

if __name__ == "__main__":
    garble(Path(sys.argv[1]), sys.argv[2])
