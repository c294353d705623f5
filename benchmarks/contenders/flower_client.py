"""The Flower ClientApp: local steps on the model that the message brings. Ray's actors import this module, so
each of them loads the data once."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from turns import PeerJob, load_job, train_client

JOB_VARIABLE = "HISTFL_BENCH_JOB"
app = ClientApp()


@cache
def the_job() -> PeerJob:
    torch.set_num_threads(1)
    return load_job(Path(os.environ[JOB_VARIABLE]))


def client_of(context: Context) -> int:
    return int(context.node_config["partition-id"])


@app.query()
def which_client(message: Message, context: Context) -> Message:
    """The client that the node stands for."""
    return Message(RecordDict({"client": MetricRecord({"number": client_of(context)})}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    job, client = the_job(), client_of(context)
    start = message.content["arrays"].to_torch_state_dict()
    final = train_client(job, start, client, int(message.content["config"]["edge-round"]))
    metrics = MetricRecord({"num-examples": job.batches[0, client].numel()})
    return Message(RecordDict({"arrays": ArrayRecord(final), "metrics": metrics}), reply_to=message)
