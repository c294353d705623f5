import resource
from collections.abc import Callable, Iterator

import pytest
from commands import Answer

from histfl.cli import main


@pytest.fixture
def histfl_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Runs the command line in this process."""

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
