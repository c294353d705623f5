"""What a deployment shows in a network of its own, under faults and with many clients; stored in results/deployment.json.

    python benchmarks/deployment.py network                  a namespace a machine: 1 cloud, 3 edges, 9 clients
    python benchmarks/deployment.py time                     seconds of an edge round besides training, on loopback
    python benchmarks/deployment.py faults [NAME ...]        machines killed, links cut, a full disk, bad answers
    python benchmarks/deployment.py many                     memory of a client, alone and of 50 on this machine
    python benchmarks/deployment.py show                     tables of what is stored

What is stored already is not measured again without --again. All but `time`, `many` and `show` need root and iproute2
(namespaces.py).
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from faults import FAULTS
from machines import HISTFL, Deployment, memory_mb
from namespaces import CLOUD, Namespaces, in_namespaces, run
from processes import tree

RESULTS = Path(__file__).parent / "results" / "deployment.json"


def network() -> dict[str, Any]:
    """A run on 1 cloud, 3 edges and 9 clients: the model beside the simulation's, and what passed the links."""
    with in_namespaces(["training.rounds=5"], 3, 9, forked=False) as (deployment, links):
        reached = {name: connects(links, name, CLOUD) for name in ("edge0", "c0", "c8")}
        deployment.start_all()
        found = deployment.finish()
        traffic = links.traffic("cloud")
        client, others = links.traffic("c0"), links.others()
        records = deployment.records()
        submodels = sum(4 * sum(each["submodel_parameters"]) for each in records)
        comparison = deployment.compared()
    sent, received = (sum(each[way] for each in traffic.values()) for way in ("sent", "received"))
    return {
        **found,
        "equal": comparison.same_bits,
        "largest_difference": comparison.largest_difference,
        "submodel_bytes_each_way": submodels,
        "cloud_sent_bytes": sent,
        "cloud_received_bytes": received,
        "cloud_sent_ratio": round(sent / submodels, 4),
        "cloud_received_ratio": round(received / submodels, 4),
        "both_ways_ratio": round((sent + received) / (2 * submodels), 4),
        "cloud_links": traffic,
        "a_clients_links": client,
        "packets_of_others_on_a_link": others,
        "connecting_to_the_cloud": reached,
    }


def connects(links: Namespaces, name: str, host: str) -> str:
    """What a connection from a machine to the cloud's address, where nobody listens yet, says."""
    code = f"import socket\ntry: socket.create_connection(('{host}', 8443), 5)\nexcept OSError as error: print(error)"
    return links.inside(name, sys.executable, "-c", code).strip()


def times() -> dict[str, Any]:
    """Seconds of an edge round and of what they are, on loopback, where the submodel has 0.24 MB."""
    found = {}
    for machines, settings in {
        "1+1+1": ["model.hidden=75", "data.split=iid"],
        "1+1+4": ["model.hidden=75", "data.split=iid"],
        "1+4+8": [],
    }.items():
        say(f"time: {machines}")
        found[machines] = edge_rounds(machines, [*settings, "training.rounds=12"])
    return found


def edge_rounds(machines: str, settings: list[str]) -> dict[str, Any]:
    _, cells, clients = map(int, machines.split("+"))
    with tempfile.TemporaryDirectory() as folder:
        with Deployment(Path(folder) / "here", settings, cells, clients) as deployment:
            deployment.start_all()
            deployment.finish()
            records = deployment.records()[1:]  # the first has what is made at first use
            said = [edge_seconds(deployment.words(f"edge{cell}"))[1:] for cell in range(cells)]
        each_round = [
            {
                "overhead": (taken - training) / 5,
                "training": training / 5,
                "links_of_clients": link / 5,
                "edge_itself": (own - training - link) / 5,
                "link_of_cloud": (taken - own) / 5,
            }
            for number, record in enumerate(records)
            for taken, training, link, own in zip(
                *(record["measured"][f"{kind}_seconds"] for kind in ("cell", "training", "link")),
                [of_cell[number] for of_cell in said],
                strict=True,
            )
        ]
        parameters = records[0]["submodel_parameters"][0]
    order = sorted(each_round, key=lambda each: each["overhead"])
    return {
        "submodel_mb": round(4 * parameters / 1e6, 3),
        "cell_rounds": len(order),
        "best": rounded(order[0]),
        "median": rounded({key: statistics.median(each[key] for each in order) for key in order[0]}),
        "worst_overhead": round(order[-1]["overhead"], 4),
        "load_average": os.getloadavg()[0],
    }


def edge_seconds(words: str) -> list[float]:
    """Of each global round, as an edge says them."""
    return [
        float(line.rpartition(" in ")[2].split(" s")[0])
        for line in words.splitlines()
        if " updates in " in line
    ]


def rounded(numbers: dict[str, float]) -> dict[str, float]:
    return {key: round(value, 4) for key, value in numbers.items()}


MANY = [
    "model.hidden=16",
    "data.split=iid",
    "training.rounds=10",
    "training.edge_rounds=1",
    "training.local_steps=2",
]


def many() -> dict[str, Any]:
    """MB of memory a client: a process alone, 50 that were forked from one, and 50 in one process."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        say("many: a client alone")
        with Deployment(Path(folder) / "one", MANY, 1, 1) as deployment:
            deployment.start_all()
            deployment.wait_for(5)
            found["one `histfl client` process"] = memory_mb(deployment.processes["c0"].pid)
            found["its edge"] = memory_mb(deployment.processes["edge0"].pid)
            found["its cloud"] = memory_mb(deployment.processes["cloud"].pid)
            deployment.finish()
        say("many: 50 clients in one process")
        with Deployment(Path(folder) / "together", MANY, 1, 50) as deployment:
            for name in ("cloud", "edge0"):
                deployment.start(name)
            kits = [str(deployment.kits / name) for name in deployment.clients_of(0)]
            deployment.start("c0", [*HISTFL, "client", *kits])
            deployment.wait_for(5)
            together = memory_mb(deployment.processes["c0"].pid)
            found["50 clients in one process"] = together
            found["of these a client"] = rounded({key: value / 50 for key, value in together.items()})
            found["edge of 50"] = memory_mb(deployment.processes["edge0"].pid)
            found["run, in one process"] = deployment.finish() | {"equal": deployment.compared().same_bits}
        say("many: 50 clients forked")
        found |= forked(Path(folder) / "forked")
    return found


def forked(folder: Path) -> dict[str, Any]:
    """As `histfl deploy try` has them."""
    words = [*HISTFL, "deploy", "try", "quickstart", "--machines", "1+1+50", "--out", str(folder), "--json"]
    words += [part for each in [*MANY, "uplink.name=ideal"] for part in ("--set", each)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    records = folder / "rounds.jsonl"
    while process.poll() is None and (not records.exists() or records.read_text().count("\n") < 5):
        time.sleep(0.1)
    sizes = [memory_mb(pid) for pid in tree(process.pid) if pid != process.pid]
    answer = json.loads(process.communicate()[0])
    missed = [
        len(json.loads(line)["measured"]["missed_clients"]) for line in records.read_text().splitlines()
    ]
    middle = sorted(sizes, key=lambda each: each["pss"])[len(sizes) // 2]
    return {
        "a forked client (the median)": middle,
        "processes besides the cloud's": len(sizes),
        "their pss together": round(sum(each["pss"] for each in sizes), 1),
        "run, forked": {"missed_updates_a_round": missed, "equal": answer["simulated"]["same_bits"]},
    }


# What is stored.


def stored() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def store(name: str, commit: str, found: dict[str, Any], seconds: float) -> None:
    """Beside what is there, which other processes may add to at the same time."""
    with (RESULTS.parent / ".deployment.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        machine = {
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        }
        about = {
            "command": f"python benchmarks/deployment.py {' '.join(sys.argv[1:])}",
            "commit": commit,
            "machine": machine,
            "at": time.strftime("%F %T"),
            "seconds": round(seconds),
        }
        all_ = stored() | {name: {**about, **found}}
        RESULTS.write_text(json.dumps(all_, indent=1) + "\n")
    Path(lock.name).unlink(missing_ok=True)


def measure(name: str, what: Callable[[], dict[str, Any]], again: bool) -> None:
    if name in stored() and not again:
        say(f"{name}: is stored")
        return
    say(f"{name} ...")
    began, commit = time.monotonic(), run("git", "rev-parse", "--short", "HEAD").strip()
    found = what()
    store(name, commit, found, time.monotonic() - began)
    short = {key: found[key] for key in ("finished", "equal", "missed_updates", "lost_cells") if key in found}
    say(f"{name}: {short} in {time.monotonic() - began:.0f} s")


def say(text: str) -> None:
    print(f"{time.strftime('%T')} {text}", flush=True)


def show() -> None:
    found = stored()
    for machine in dict.fromkeys(", ".join(map(str, each["machine"].values())) for each in found.values()):
        print("machine:", machine)
    if it := found.get("network"):
        print("\nIn namespaces: 1 cloud, 3 edges, 9 clients")
        for key, value in it.items():
            if key.startswith(("rounds", "equal", "submodel", "packets", "connecting")) or key.endswith(
                "ratio"
            ):
                print(f"  {key:36} {value}")
    if it := found.get("time"):
        print("\nSeconds of an edge round (median; best overhead in brackets)")
        for machines in (key for key in it if "+" in key):
            each = it[machines]
            parts = ", ".join(f"{key} {value:.3f}" for key, value in each["median"].items())
            print(f"  {machines} {each['submodel_mb']} MB: {parts} ({each['best']['overhead']:.3f})")
    rows = [(name, found[f"faults/{name}"]) for name in FAULTS if f"faults/{name}" in found]
    if rows:
        print(f"\n{'fault':22} {'finished':>8} {'equal':>6} {'missed':>6}  lost cells; kills")
        for name, row in rows:
            killed = " ".join(f"{each['machine']}@{each['rounds_done']}" for each in row.get("killed", []))
            lost = len(row["lost_cells"]) or ""
            equal = row.get("equal", row.get("equal_to_a_run_without_it"))
            if "equal_to_a_run_without_it" in row:
                equal = f"{row['equal_to_a_run_without_it']}*"
            print(
                f"{name:22} {row['finished']!s:>8} {equal!s:>6} {row['missed_updates']:>6}  {lost} {killed}"
            )
        print("equal: to the simulation's model; *: to that of a run without the client")
    if it := found.get("many"):
        print("\nMB of memory (10^6 bytes)")
        for key, value in it.items():
            if isinstance(value, dict) and "pss" in value:
                print(f"  {key:34} " + ", ".join(f"{kind} {number}" for kind, number in value.items()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["network", "time", "faults", "many", "show"])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"faults: {', '.join(FAULTS)}")
    parser.add_argument("--again", action="store_true", help="measure what is stored, too")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with all that was started
    if unknown := sorted(set(options.names) - set(FAULTS)):
        parser.error(f"no fault {unknown[0]}; there are {', '.join(FAULTS)}")
    if options.what == "show":
        show()
    elif options.what == "faults":
        for name in options.names or FAULTS:
            measure(f"faults/{name}", FAULTS[name], options.again)
    else:
        measure(options.what, {"network": network, "time": times, "many": many}[options.what], options.again)


if __name__ == "__main__":
    main()
