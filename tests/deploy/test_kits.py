"""Kits of a network: what is in them, who may read it, and what is said of bad input."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Answer
from hypothesis import given
from hypothesis import strategies as st

from histfl.deploy.kits import Kit
from histfl.deploy.messages import BadMessage, Message
from histfl.network import Network

NETWORK = """
cloud = "cloud.example.org:8443"

[[cells]]
clients = 2
edges = ["edge0.example.org:8444"]

[[cells]]
count = 2
clients = 1
cpu_hz = [1e9, 2e9]
edges = ["10.0.0.5:8445", "[fe80::1]:8446"]
"""
Command = Callable[..., Answer]


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "network.toml"
    path.write_text(NETWORK)
    return path


def test_a_kit_a_machine(network: Path, tmp_path: Path, histfl_command: Command) -> None:
    answer = histfl_command("deploy", "init", network, "--out", tmp_path / "kits", "--json")
    assert answer.code == 0
    names = ["cloud", "edge0", "c0", "c1", "edge1", "c2", "edge2", "c3"]
    assert [Path(folder).name for folder in answer.json["kits"]] == names
    edge = Kit.read(tmp_path / "kits" / "edge2", "edge")
    assert edge.children == ("c3",)
    assert (edge.listen.host, edge.listen.port) == ("fe80::1", 8446)
    assert (edge.parent.name, edge.parent.host, edge.parent.port) == ("cloud", "cloud.example.org", 8443)
    client = Kit.read(tmp_path / "kits" / "c1", "client")
    assert (client.about.cell, client.about.client, client.parent.name) == (0, 1, "edge0")
    assert Kit.read(tmp_path / "kits" / "cloud", "cloud").children == ("edge0", "edge1", "edge2")
    assert "histfl client ." in (tmp_path / "kits" / "c1" / "README.md").read_text()
    assert Network.from_toml(network).num_clients == 4  # of a simulation the same file


def test_a_kit_is_its_owners_alone(network: Path, tmp_path: Path, histfl_command: Command) -> None:
    histfl_command("deploy", "init", network, "--out", tmp_path / "kits")
    found = [*(tmp_path / "kits").rglob("*")]
    assert len(found) == 9 + 2 + 8 * 5
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_key_that_others_may_read_is_told(
    network: Path, tmp_path: Path, histfl_command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    histfl_command("deploy", "init", network, "--out", tmp_path / "kits")
    key = tmp_path / "kits" / "c0" / "key.pem"
    Kit.read(key.parent, "client")
    assert not caplog.records
    key.chmod(0o640)
    Kit.read(key.parent, "client")
    (record,) = caplog.records
    assert record.message == f"others than its owner may read {key}; chmod 600 {key}"


def test_machines_are_added_to_a_network(network: Path, tmp_path: Path, histfl_command: Command) -> None:
    """Those that are there stay as they are, and one authority is of all."""
    histfl_command("deploy", "init", network, "--out", tmp_path / "kits")
    before = (tmp_path / "kits" / "c0" / "certificate.pem").read_bytes()
    network.write_text(NETWORK + '\n[[cells]]\nclients = 1\nedges = ["10.0.0.6:1"]\n')
    answer = histfl_command("deploy", "init", network, "--out", tmp_path / "kits")
    assert answer.out.startswith(f"2 kits in {tmp_path / 'kits'}; 8 were there before")
    assert (tmp_path / "kits" / "c0" / "certificate.pem").read_bytes() == before
    authorities = {path.read_bytes() for path in (tmp_path / "kits").glob("*/authority.pem")}
    assert len(authorities) == 1


def test_kits_follow_a_network_that_changed(network: Path, tmp_path: Path, histfl_command: Command) -> None:
    """A kit tells of the whole network, so all are written anew; certificates stay."""
    histfl_command("deploy", "init", network, "--out", tmp_path / "kits")
    network.write_text(NETWORK + '\n[[cells]]\nclients = 1\nedges = ["10.0.0.6:1"]\n')
    histfl_command("deploy", "init", network, "--out", tmp_path / "kits")
    for name, role in (("cloud", "cloud"), ("edge0", "edge"), ("c0", "client"), ("c4", "client")):
        assert Kit.read(tmp_path / "kits" / name, role).about.cells == (2, 1, 1, 1)  # type: ignore[arg-type]


BAD = {
    NETWORK.replace('cloud = "cloud.example.org:8443"', ""): "does not say where the cloud is",
    NETWORK.replace("count = 2", "count = 3"): "block 1 of [[cells]] has 3 cells and names 2 edges",
    NETWORK.replace(":8443", ""): "cloud = 'cloud.example.org': write \"HOST:PORT\", such as",
    NETWORK.replace("10.0.0.5:8445", "10.0.0.5:99999"): "99999",
    NETWORK.replace("10.0.0.5:8445", "edge0.example.org:8444"): "twice",
}


@pytest.mark.parametrize(("text", "reason"), BAD.items())
def test_a_bad_network_is_one_line(
    text: str, reason: str, network: Path, tmp_path: Path, histfl_command: Command
) -> None:
    network.write_text(text)
    answer = histfl_command("deploy", "init", network, "--out", tmp_path / "kits")
    assert answer.code == 2
    assert reason in answer.err
    assert answer.err.count("\n") == 1
    assert not (tmp_path / "kits").exists()


def test_a_bad_kit_is_one_line(network: Path, tmp_path: Path, histfl_command: Command) -> None:
    histfl_command("deploy", "init", network, "--out", tmp_path / "kits")
    kits = tmp_path / "kits"

    def refused(*arguments: object, said: str) -> None:
        answer = histfl_command(*arguments)
        assert answer.code == 2
        assert said in answer.err
        assert answer.err.strip().count("\n") == answer.err.count("loading torch")

    refused("edge", kits / "cloud", said="is the kit of a cloud; start it with histfl cloud")
    refused("client", tmp_path, said="is no kit: it has no kit.toml")
    refused("client", kits / "c0", said="c0 has no samples; give --data")
    refused("client", kits / "c0", "--data", "torch:load", said="would call torch")
    refused("client", kits / "c0", "--data", tmp_path / "no.safetensors", said="cannot be read")
    refused(
        "client", kits / "c0", "--data", "samples.csv", said="give package.module:load, or FILE.safetensors"
    )
    (kits / "edge1" / "key.pem").write_text("no key")
    refused("edge", kits / "edge1", said="edge1 cannot be used")
    (kits / "c0" / "key.pem").unlink()
    refused("client", kits / "c0", said="has no key.pem; take the whole kit")
    (kits / "edge0" / "kit.toml").write_text('role = "edge"\n')
    refused("edge", kits / "edge0", said="kit.toml")
    refused("deploy", "try", "quickstart", "--machines", "2+2", said="write 1+CELLS+CLIENTS")
    refused("client", kits / "edge1", said="is the kit of an edge; start it with histfl edge")
    refused("cloud", kits / "cloud", "quickstart", "--start", "nan", said="--start nan: give seconds")
    refused("deploy", "try", "quickstart", "--machines", "1+2+9000000", said="ask for fewer")
    refused("deploy", "try", "quickstart", "--machines", "1+4+2", said="2 clients cannot fill 4 cells")
    refused("deploy", "try", "quickstart", "--set", "uplink.name=aircomp", said="added up by the air")
    refused("cloud", kits / "cloud", "quickstart", "--timeout", "0", said="--timeout 0: give seconds")
    refused("cloud", kits / "cloud", "quickstart", "--min-cells", "0", said="--min-cells 0")


@given(st.binary(max_size=300))
def test_no_bytes_are_worse_than_a_bad_parcel(data: bytes) -> None:
    try:
        Message.of(data)
    except BadMessage:
        return


def test_a_parcel_comes_as_it_was_sent() -> None:
    import torch

    tensors = {
        "b/x": torch.randn(3, 4).t(),
        "a/y": torch.zeros((), dtype=torch.bfloat16),
        "c/z": torch.arange(5),
    }
    found = Message.of(Message({"n": 1, "t": [1.5, None]}, tensors).to_bytes())
    assert found.about == {"n": 1, "t": [1.5, None]}
    assert list(found.tensors) == list(tensors)
    for name, tensor in tensors.items():
        assert found.tensors[name].equal(tensor)
        assert found.tensors[name].dtype == tensor.dtype
