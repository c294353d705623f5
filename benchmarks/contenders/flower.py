"""Flower's simulation: a supernode of one CPU a client on its Ray backend, FedAvg in every cell."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from flower_client import JOB_VARIABLE, app
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from turns import PeerJob, State, contender_options, load_job, take_turns

server = ServerApp()
options = contender_options()


@server.main()
def main(grid: Grid, context: Context) -> None:
    job = load_job(options.job / "job.pt")
    nodes = nodes_by_client(grid)
    take_turns(options.socket, lambda edge_rounds: global_round(grid, job, nodes, edge_rounds))


def nodes_by_client(grid: Grid) -> list[int]:
    """[client]: the node that stands for it."""
    asked = [Message(RecordDict(), node, MessageType.QUERY) for node in grid.get_node_ids()]
    replies = list(grid.send_and_receive(asked))
    by_client = {int(reply.content["client"]["number"]): reply.metadata.src_node_id for reply in replies}
    return [by_client[client] for client in range(len(asked))]


def train_message(arrays: ArrayRecord, edge_round: int, node: int) -> Message:
    config = ConfigRecord({"edge-round": edge_round})
    return Message(RecordDict({"arrays": arrays, "config": config}), node, MessageType.TRAIN)


def global_round(grid: Grid, job: PeerJob, nodes: Sequence[int], edge_rounds: int) -> list[State]:
    arrays = [ArrayRecord(start) for start in job.starts]
    strategy = FedAvg(fraction_evaluate=0.0)
    for edge_round in range(edge_rounds):
        cells = zip(nodes, job.cell_of_client, strict=True)
        messages = [train_message(arrays[cell], edge_round, node) for node, cell in cells]
        replies = list(grid.send_and_receive(messages))
        for cell in range(len(arrays)):
            members = {nodes[client] for client in job.clients_of(cell)}
            own = [reply for reply in replies if reply.metadata.src_node_id in members]
            if len(own) != len(members) or any(reply.has_error() for reply in own):
                raise RuntimeError(
                    f"{len(members)} clients were asked, {len(own)} answered; see the log above"
                )
            mean, _ = strategy.aggregate_train(edge_round, own)
            assert mean is not None
            arrays[cell] = mean
    return [dict(record.to_torch_state_dict()) for record in arrays]


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ[JOB_VARIABLE] = str(options.job / "job.pt")
    clients = len(load_job(options.job / "job.pt").cell_of_client)
    run_simulation(
        server,
        app,
        num_supernodes=clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": options.threads, "_temp_dir": str(options.job / "ray")},
        },
    )
