"""Look for a learning rate and a momentum with Optuna, then test the best of them: pip install optuna

python examples/tune.py [trials]
"""

import sys

import optuna
import torch
from torch import nn

import histfl
from histfl.data import TensorData, load

NETWORK = histfl.Network.uniform(cells=4, clients_per_cell=3)
SETTINGS = {"rounds": 6, "edge_rounds": 2, "local_steps": 5}


def first_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def main(trials: int) -> None:
    everything, test_set = load("fashion-mnist-mini")
    # A sixth of the training set judges the trials; the test set judges the winner alone.
    held_out = torch.arange(len(everything)) % 6 == 0
    train_set, validation_set = (
        TensorData(everything.inputs[part], everything.targets[part], everything.class_names)
        for part in (~held_out, held_out)
    )

    def objective(trial: optuna.Trial) -> float:
        def report(record: dict) -> str | None:
            trial.report(record["accuracy"], record["round"])
            return "stop" if trial.should_prune() else None

        run = histfl.train(
            first_model(),
            train_set,
            validation_set,
            network=NETWORK,
            learning_rate=trial.suggest_float("learning_rate", 0.005, 0.5, log=True),
            momentum=trial.suggest_categorical("momentum", [0.0, 0.9]),
            on_round=report,
            **SETTINGS,
        )
        if trial.should_prune():
            raise optuna.TrialPruned
        return float(run.accuracy[-1])

    study = optuna.create_study(
        study_name="hist",
        storage="sqlite:///trials.db",  # goes on where it was stopped
        load_if_exists=True,
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=1),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=2),
    )
    study.optimize(objective, n_trials=trials)
    best = histfl.train(first_model(), everything, test_set, network=NETWORK, **study.best_params, **SETTINGS)
    print(f"best of {len(study.trials)} trials: {study.best_params}; test accuracy {best.accuracy[-1]:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
