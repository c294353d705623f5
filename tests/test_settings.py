from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from histfl.errors import UsageError
from histfl.settings import Count, Positive, Settings, checked, read_toml


class Inner(Settings):
    rounds: int = Field(1, ge=1)
    clients: int | str = 3
    targets: tuple[float, ...] = ()
    shares: Literal["even"] | tuple[float, ...] = "even"
    rate: Positive = 1.0
    limit: Count | None = None


class Outer(Settings):
    training: Inner = Inner()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"training": {"round": 3}}, "unknown key 'training.round'; did you mean 'rounds'?"),
        ({"trainig": {}}, "unknown key 'trainig'; did you mean 'training'?"),
        ({"training": {"zzz": 3}}, "known keys: clients, limit, rate, rounds, shares, targets"),
        ({"training": {"rounds": 0}}, "training.rounds = 0: "),
        ({"training": {"rounds": float("nan")}}, "training.rounds = nan: "),
        ({"training": {"clients": [1]}}, "training.clients = [1]: "),
        ({"training": {"targets": 0.7}}, "training.targets = 0.7: Input should be a list: write [0.7]"),
        ({"training": {"targets": "a"}}, "training.targets = 'a': Input should be a list: write [\"a\"]"),
        (
            {"training": {"shares": "evn"}},
            "training.shares = 'evn': Input should be 'even' or Input should be a list",
        ),
        (
            {"training": {"limit": "none"}},
            "training.limit = 'none': Input should be a valid integer; to have none, leave",
        ),
        ({"training": {"limit": 0}}, "training.limit = 0: Input should be greater than or equal to 1"),
        ({"training": {"rate": 0}}, "training.rate = 0: Input should be positive, at least 1e-30"),
        ({"training": {"rate": 1e31}}, "training.rate = 1e+31: Input should be at most 1e+30"),
    ],
)
def test_a_bad_key_is_named_with_its_value(values: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        checked(Outer, values, "run.toml")
    assert str(raised.value).startswith("run.toml: ")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_needed_key_by_a_wrong_name_is_told_as_that() -> None:
    class Cells(Settings):
        cells: tuple[int, ...]

    with pytest.raises(UsageError, match=r"unknown key 'cell'; did you mean 'cells'\? \(and 1 more\)"):
        checked(Cells, {"cell": [1]}, "network.toml")


@pytest.mark.parametrize(("content", "said"), [(b"a = [1,", "not valid TOML"), (b"\xff\xfe", "not UTF-8")])
def test_unreadable_text_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        read_toml(path)
    with pytest.raises(UsageError, match="cannot read"):
        read_toml(tmp_path)
