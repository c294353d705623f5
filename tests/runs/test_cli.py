"""The command line as a user meets it: results, JSON, mistakes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import SMALL, Answer

from histfl.runs.arms import arms

Command = Callable[..., Answer]

SUMMARY_KEYS = {
    "method",
    "model",
    "dataset",
    "split",
    "cells",
    "clients",
    "rounds",
    "seed",
    "engine",
    "device",
    "parameters",
    "submodel_parameters",
    "final_accuracy",
    "best_accuracy",
    "megabytes_per_client",
    "edge_cloud_megabytes",
    "simulated_seconds",
    "energy_joules",
    "to_target",
    "wall_seconds",
    "client_steps_per_second",
    "versions",
}


def test_a_run_leaves_its_folder_and_prints_its_summary(histfl_command: Command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    answer = histfl_command("run", *SMALL, "--out", out, "--json")
    assert answer.code == 0
    summary = answer.json
    assert summary.keys() >= SUMMARY_KEYS
    assert summary == json.loads((out / "summary.json").read_text())
    names = {
        "config.toml",
        "rounds.jsonl",
        "summary.json",
        "checkpoint.safetensors",
        "model.safetensors",
        "report.html",
    }
    assert names <= {path.name for path in out.iterdir()}
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == [1, 2, 3]
    assert records[-1]["megabytes_per_client"] == summary["megabytes_per_client"]


def test_megabytes_are_what_the_clients_send(histfl_command: Command, tmp_path: Path) -> None:
    summary = histfl_command("run", *SMALL, "--out", tmp_path / "run", "--json").json
    # 4 units of 784 + 1 + 10 parameters and the output's 10 biases, in 3 x 2 edge rounds, 4 bytes each.
    assert summary["submodel_parameters"] == [4 * 795 + 10] * 4
    assert summary["megabytes_per_client"] == pytest.approx((4 * 795 + 10) * 4 * 6 / 2**20)
    assert summary["edge_cloud_megabytes"] == pytest.approx(4 * (4 * 795 + 10) * 4 * 3 / 2**20)


def test_the_written_configuration_runs_again_to_the_same_numbers(
    histfl_command: Command, tmp_path: Path
) -> None:
    histfl_command("run", *SMALL, "--out", tmp_path / "first")
    answer = histfl_command(
        "run", tmp_path / "first" / "config.toml", "--device", "cpu", "--out", tmp_path / "again"
    )
    assert answer.code == 0
    assert "again: round 3/3" in answer.err  # the name that the table has
    assert answer.out.split()[:2] == ["run", "again"]
    for name in ("rounds.jsonl", "model.safetensors", "config.toml"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_a_run_keeps_the_network_file_it_began_with(histfl_command: Command, tmp_path: Path) -> None:
    network, out = tmp_path / "mine.toml", tmp_path / "run"
    network.write_text("[[cells]]\ncount = 2\nclients = 2\nsnr_db = [5, 15]\n")
    given = (
        "quickstart",
        "--set",
        "training.rounds=1",
        "--set",
        f"network.profile={network}",
        "--device",
        "cpu",
    )
    assert histfl_command("run", *given, "--out", out).code == 0
    network.unlink()
    given = (
        "run",
        out / "config.toml",
        "--set",
        f"network.profile={out / 'network.toml'}",
        "--device",
        "cpu",
    )
    assert histfl_command(*given, "--out", tmp_path / "again").code == 0
    assert (out / "rounds.jsonl").read_bytes() == (tmp_path / "again" / "rounds.jsonl").read_bytes()


def test_quickstart_compares_hist_with_hfedavg(histfl_command: Command, tmp_path: Path) -> None:
    answer = histfl_command("quickstart", *SMALL[1:], "--out", tmp_path / "q")
    assert answer.code == 0
    assert "hist" in answer.out
    assert "hfedavg" in answer.out
    assert "report.html" in answer.out
    assert (tmp_path / "q" / "report.html").stat().st_size > 10_000


def test_an_error_in_a_sweep_names_its_arm(histfl_command: Command, tmp_path: Path) -> None:
    varied = ["--vary", "data.name=fashion-mnist-mini,nope", "--out", tmp_path / "s"]
    answer = histfl_command("sweep", *SMALL, *varied)
    assert answer.code == 2
    assert "data.name=nope: unknown data set 'nope'" in answer.err


def test_a_diverged_run_leaves_a_sweep_going_and_its_folder_free(
    histfl_command: Command, tmp_path: Path
) -> None:
    rates = ["--vary", "training.learning_rate=0.1,1e30,0.2", "--out", tmp_path / "s"]
    answer = histfl_command("sweep", *SMALL, *rates)
    assert answer.code == 1
    assert "learning_rate=1e30: training diverged in round 1" in answer.err
    assert answer.err.splitlines()[-1].startswith("histfl: 1 of 3 runs diverged:")
    assert "0.2" in answer.out
    lost = next(path for path in (tmp_path / "s").iterdir() if "1e30" in path.name)
    again = histfl_command("run", *SMALL, "--out", lost)
    assert again.code == 0, "it has no round, so it may begin anew"


def test_too_little_memory_is_one_line(histfl_command: Command, tmp_path: Path) -> None:
    answer = histfl_command(
        "run", *SMALL, "--set", "training.local_steps=1000000000", "--out", tmp_path / "r"
    )
    assert answer.code == 2
    last = answer.err.splitlines()[-1]
    assert "ask for less" in last or "would take at least" in last  # as the machine is
    assert all(line.startswith("histfl: ") for line in answer.err.splitlines())


def test_names_of_arms_keep_letters_and_leave_out_brackets() -> None:
    accents = arms("quickstart", [], ["network.profile=r\u00e9.toml,r\u00e8.toml"])
    assert [arm.name for arm in accents] == ["network.profile=r\u00e9.toml", "network.profile=r\u00e8.toml"]
    (sizes,) = arms("quickstart", [], ["method.sizes=[1,1,2,2]"])
    assert sizes.name == "method.sizes=1+1+2+2"


def test_a_sweep_runs_the_cross_product_and_resumes(histfl_command: Command, tmp_path: Path) -> None:
    arguments = [
        "sweep",
        *SMALL,
        "--vary",
        "method.name=hist,ist",
        "--vary",
        "training.seed=1,2",
        "--out",
        tmp_path / "s",
    ]
    answer = histfl_command(*arguments, "--json")
    assert answer.code == 0
    assert len(answer.json) == 4
    assert {summary["method"] for summary in answer.json.values()} == {"hist", "ist"}
    again = histfl_command(*arguments, "--json")
    assert again.code == 2
    assert "--resume" in again.err
    resumed = histfl_command(*arguments, "--json", "--resume")
    for name, summary in resumed.json.items():
        assert summary["final_accuracy"] == answer.json[name]["final_accuracy"]


def test_lenet5_and_its_real_submodel_size(histfl_command: Command, tmp_path: Path) -> None:
    answer = histfl_command(
        "run",
        "lenet5",
        *SMALL[3:],
        "--set",
        "data.name=fashion-mnist-mini",
        "--set",
        "training.rounds=1",
        "--out",
        tmp_path / "r",
        "--json",
    )
    assert answer.code == 0, answer.err
    # 30 of 120 neurons; convolutions (2,572), fc2's bias and the last layer whole in every cell.
    assert answer.json["submodel_parameters"] == [30 * (400 + 1 + 84) + 2572 + 84 + 850] * 4
    assert answer.json["cut"] == ["fc1"]


def test_every_help_text_is_there(histfl_command: Command) -> None:
    for command in (
        "",
        "run",
        "sweep",
        "quickstart",
        "doctor",
        "plan",
        "bound",
        "data",
        "reproduce",
        "data list",
        "data where",
        "data fetch",
        "data show",
    ):
        answer = histfl_command(*command.split(), "--help")
        assert answer.code == 0
        assert "Usage" in answer.out
        listed = answer.out.partition("Commands:")[2]
        assert "..." not in listed  # no line is cut


def test_doctor_and_data_commands(histfl_command: Command, tmp_path: Path) -> None:
    assert "torch" in histfl_command("doctor", "--json").json
    assert "fashion-mnist-mini" in histfl_command("data", "list").out
    assert Path(histfl_command("data", "where", "fashion-mnist-mini", "--json").json["path"]).exists()
    shown = histfl_command("data", "show", "quickstart", "--plot", tmp_path / "mix.html")
    assert "Sneaker" in shown.out
    assert (tmp_path / "mix.html").stat().st_size > 10_000
    mix = histfl_command("data", "show", "quickstart", "--json").json
    assert len(mix["cells"]) == 4
    assert sum(map(sum, mix["clients"])) <= 12_000


def test_a_sweep_tells_a_bad_arm_before_the_first_one_trains(histfl_command: Command, tmp_path: Path) -> None:
    for varied, said in [
        ("network.participants=2,9", "network.participants=9: participants = 9, but the largest cell has 2"),
        ("method.sizes=uniform,[1,2]", "2 shares for 4 cells"),
        ("network.active_cells=2,5", "active_cells = 5, but the network has 4 cells"),
    ]:
        answer = histfl_command("sweep", *SMALL, "--vary", varied, "--out", tmp_path / "sweep")
        assert answer.code == 2
        assert said in answer.err
        assert not (tmp_path / "sweep").exists()


BAD_SETTINGS = [
    ("training.round=3", "did you mean 'rounds'"),
    ("trainng.rounds=3", "did you mean 'training'"),
    ("network.clients_per_cell=3", "did you mean 'clients'"),
    ("training.rounds=0", "training.rounds = 0"),
    ("training.rounds=-1", "training.rounds = -1"),
    ("training.rounds=true", "training.rounds = True"),
    ("training.rounds=many", "training.rounds = 'many'"),
    ("training.learning_rate=nan", "training.learning_rate = nan"),
    ("training.learning_rate=inf", "training.learning_rate = inf"),
    ("training.learning_rate=-0.1", "training.learning_rate"),
    ("training.targets=0.8", "training.targets = 0.8"),
    ("training.targets=[2.0]", "training.targets.0 = 2.0"),
    ("network.cells=0", "network.cells = 0"),
    ("network.cells=9", "8 clients cannot fill 9 cells"),
    ("network.participants=0", "network.participants"),
    ("network.participants=3", "participants = 3, but the largest cell has 2 clients"),
    ("network.active_cells=[1.5]", "network.active_cells.0 = 1.5"),
    ("network.snr_db=10", "snr_db = 10 is of the uniform profile, and profile = 'paper' has its own"),
    ("network.cpu_hz=1e6", "cpu_hz = 1e+06 is of the uniform profile"),
    ("network.dropout=1.5", "network.dropout"),
    ("network.profile=nonsense", "network.profile = 'nonsense'"),
    ("network.profile=/no/such.toml", "/no/such.toml"),
    ("data.name=fashion-minst", "fashion-mnist"),
    ("data.name=no.module:f", "cannot be imported"),
    ("data.split=random", "data.split = 'random'"),
    ("model.name=mpl", "did you mean 'mlp'"),
    ("model.hidn=3", "its options are: hidden"),
    ("model.hidden=3", "3 units for 4 cells"),
    ("model.hidden=0", "hidden"),
    ("model.hidden=1.5", "model.hidden = 1.5: Input should be a valid integer or Input should be a list"),
    ("model.hidden=true", "model.hidden = True: "),
    ("model.dropout=x", "model.dropout = 'x': Input should be a valid number"),
    ("model.dropout=nan", "model.dropout = nan: Input should be a finite number"),
    ("model.hidden=99999999999999", "model 'mlp'"),
    ("method.name=fedavg", "method.name = 'fedavg'"),
    ("method.sizes=[0.5,0.5]", "2 shares for 4 cells"),
    ("method.sizes=[0.5,0.5,0.0,0.0]", "method.sizes.2 = 0.0: Input should be positive"),
    ("method.sizes=[1,2,3,'x']", "method.sizes.3 = 'x'"),
    ("method.include=['nothing*']", "nothing*"),
    ("method.include=nothing", "method.include = 'nothing': Input should be a list: write [\"nothing\"]"),
    ("method.include=[fc1, fc2]", 'write ["fc1", "fc2"], with quotes around the whole for the shell'),
    ("method.cap=0.5", "method.cap"),
    ("uplink.bandwidth_hz=0", "uplink.bandwidth_hz"),
    ("uplink.antennas=0", "uplink.antennas"),
    ("uplink.channel=rayligh", "did you mean 'rayleigh'"),
    ("uplink.bandwidth_hz=nan", "uplink.bandwidth_hz"),
    ("training=3", "section.key=value"),
    ("rounds", "section.key=value"),
    ("=", "section.key=value"),
    ("training.=3", "section.key=value"),
]


@pytest.mark.parametrize(("setting", "said"), BAD_SETTINGS)
def test_a_bad_setting_is_one_line_and_exit_code_2(
    histfl_command: Command, tmp_path: Path, setting: str, said: str
) -> None:
    answer = histfl_command("run", *SMALL, "--set", setting, "--out", tmp_path / "run", "--json")
    assert answer.code == 2
    assert said in answer.err
    assert answer.err.count("\n") == 1
    assert answer.out == ""
    assert not (tmp_path / "run").exists()


def test_bad_files_and_flags(
    histfl_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HISTFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    broken = tmp_path / "broken.toml"
    broken.write_text("[training\nrounds = 3")
    flat = tmp_path / "flat.toml"
    flat.write_text("training = 3")
    file = tmp_path / "file"
    file.write_text("")
    out = ("--out", str(tmp_path / "run"))
    for arguments, said in [
        (("run", str(broken), *out), "not valid TOML"),
        (("run", str(flat), *out), "training"),
        (("run", str(tmp_path), *out), "neither a file nor a preset"),
        (("run", "nosuch", *out), "the presets are: "),
        (("run", *SMALL, *out, "--device", "tpu"), "device 'tpu': use auto, cpu or cuda"),
        (("run", *SMALL, *out, "--engine", "warp"), "engine 'warp': use auto"),
        (("run", *SMALL, "--out", str(file / "run")), "cannot write"),
        (("run", *SMALL, "--out", ""), "'--out': it is empty"),
        (("reproduce", "fig4", "--quick", "--minutes", "0", "--out", ""), "'--out': it is empty"),
        (("report", f"{tmp_path}/\x1b[31mred"), "?[31mred"),
        (("run", *SMALL, "--resume"), "--resume needs --out"),
        (("run",), "CONFIG_OR_PRESET"),
        (("run", "mlp", "--no-such-flag"), "no-such-flag"),
        (("run", "mlp", "--workers", "0"), "'--workers': '0'; it should be greater than or equal to 1"),
        (("run", "mlp", "--memory-gb", "much"), "'--memory-gb': 'much'; it should be a valid number"),
        (("frobnicate",), "frobnicate"),
        (("sweep", *SMALL, "--vary", "training.seed", *out), "--vary"),
        (("sweep", *SMALL, "--vary", "training.seed=1,1", *out), "twice"),
        (("sweep", *SMALL, "--vary", "training.seed=1", "--vary", "training.seed=2", *out), "given twice"),
        (("sweep", *SMALL, "--vary", "seed=1,2", *out), "--vary 'seed=1,2': write it as section.key"),
        (("plan", "paper", "--set", "uplink.name=ideal"), "use fdma, tdma or aircomp"),
        (("plan", "paper", "--set", "method.sizes=[1, 2, 3, 4]"), "leave the key out"),
        (("plan", "paper", "--set", "method.sizes=proportional"), "leave the key out"),
        (("quickstart", "--set", "method.name=ist", *out), "quickstart compares hist with hfedavg"),
        (("reproduce", "fig4", "--quick", "--minutes", "0", "--device", "tpu", *out), "device 'tpu'"),
        (("reproduce", "fig4", "--quick", "--minutes", "0", "--engine", "warp", *out), "engine 'warp'"),
        (("reproduce", "fig4", "--quick", "--minutes", "0", "--memory-gb", "0", *out), "--memory-gb 0"),
        (("data", "where", "nosuch"), "nosuch"),
        (("run", "mlp", "--data-dir", str(tmp_path / "nowhere"), *out), "histfl data fetch fashion-mnist"),
    ]:
        answer = histfl_command(*arguments)
        assert answer.code == 2, (arguments, answer)
        assert said in answer.err, (arguments, answer.err)
        assert answer.err.count("\n") == 1
        assert not (tmp_path / "run").exists()


def test_several_runs_do_not_go_into_a_runs_own_folder(histfl_command: Command, tmp_path: Path) -> None:
    assert histfl_command("run", *SMALL, "--out", tmp_path / "run").code == 0
    page = (tmp_path / "run" / "report.html").read_bytes()
    answer = histfl_command("sweep", *SMALL, "--vary", "training.seed=1,2", "--out", tmp_path / "run")
    assert answer.code == 2
    assert "holds a run; use another folder" in answer.err
    assert (tmp_path / "run" / "report.html").read_bytes() == page


def test_divergence_keeps_the_last_good_checkpoint(histfl_command: Command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    answer = histfl_command("run", *SMALL, "--set", "training.learning_rate=1e30", "--out", out)
    assert answer.code == 1
    assert "diverged in round 1" in answer.err.splitlines()[-1]
    assert all(line.startswith("histfl: ") for line in answer.err.splitlines())
    assert not (out / "summary.json").exists()
    assert not (out / "checkpoint.safetensors").exists()
