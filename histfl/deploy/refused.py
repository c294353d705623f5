"""What a simulation can do and a deployment cannot: refused before anything begins."""

from __future__ import annotations

from histfl.deploy.protocol import Terms
from histfl.errors import UsageError
from histfl.network import Network
from histfl.runs.config import Config
from histfl.wireless.uplinks import kind_of


def check_deployable(config: Config) -> None:
    """A UsageError where a run cannot be carried out with clients on machines of their own."""
    if kind_of(config.uplink.name).analog:
        raise UsageError(
            f"uplink.name = {config.uplink.name!r}: a deployment's clients reach their edge over a network, not added up by "
            "the air; use fdma, tdma or ideal, whose seconds are counted beside those that are measured"
        )
    if config.theory.every:
        raise UsageError(
            f"theory.every = {config.theory.every}: the constants are estimated from all clients' data in one place; leave "
            "it out, or estimate them in a simulation"
        )
    if config.evaluate.per == "cell":
        raise UsageError(
            "evaluate.per = 'cell': in a deployment every client evaluates for itself; use client, or leave it out"
        )
    at_clients = config.privacy.clip is not None and config.privacy.where == "client"
    if config.training.correction != "none" and (config.codec.name != "plain" or at_clients):
        other = "privacy.where = 'client'" if at_clients else f"codec.name = {config.codec.name!r}"
        raise UsageError(
            f"training.correction = {config.training.correction!r} with {other}: the edge keeps corrections by models as "
            "they are; leave out one of the two"
        )


def check_noise(config: Config, network: Network, terms: Terms) -> None:
    """A UsageError where a missed client would take along noise that the others' privacy is counted with."""
    settings = config.privacy
    if settings.clip is None or settings.where != "client" or not settings.noise_multiplier:
        return
    participants, most = config.network.participants, int(network.clients_per_cell.max())
    senders = most if participants == "all" else min(participants, most)
    if terms.min_clients < senders:
        raise UsageError(
            f"privacy.where = 'client' with --min-clients {terms.min_clients}: a client that is missed takes its part of the "
            f"noise along; add --min-clients {senders}, or use where = 'edge'"
        )
