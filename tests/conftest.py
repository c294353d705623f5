from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from commands import Answer

from histfl import terminal
from histfl.cli import main

if TYPE_CHECKING:
    from histfl.engines import RayEngine


@pytest.fixture
def histfl_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Answer]:
    """Runs the command line in this process, which says what it is at only after very long: on a busy machine a refusal
    would not be one line."""
    monkeypatch.setattr(terminal, "FIRST_WORD_S", 600.0)

    def command(*arguments: object) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Answer(int(ended.value.code or 0), captured.out, captured.err)

    return command


@pytest.fixture
def some_memory() -> Iterator[None]:
    """A machine of at most 64 GB, whatever this one has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (64 * 10**9, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A cluster of two nodes of two cores each that the engines and sweeps of this process join."""
    from histfl.engines.cluster import Cluster, import_ray

    import_ray(own=True)
    from ray.cluster_utils import Cluster as Nodes

    nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    nodes.add_node(num_cpus=2)
    with Cluster(address=nodes.address).connected("cpu"):
        yield
    nodes.shutdown()


@pytest.fixture(scope="session")
def ray_engine(ray_cluster: None) -> Iterator[RayEngine]:
    """Two workers, which all tests share."""
    from histfl.engines import Cluster, RayEngine

    engine = RayEngine(cluster=Cluster(workers=2))
    yield engine
    engine.close()
