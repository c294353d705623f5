"""The paper's figures and tables, run again: one function an artefact, its number beside the paper's.

The titles stand here, so that --help does not wait for torch.
"""

TITLES = {
    "fig4": "Figure 4: accuracy against the communication load",
    "fig5": "Figure 5: communication cost to a target accuracy",
    "fig6": "Figure 6: aggregation periods H and E",
    "fig7": "Figure 7: partial participation",
    "fig8": "Figure 8: submodel sizes optimised for latency",
    "fig9": "Figure 9: over-the-air aggregation",
    "table1": "Table I: LeNet-5 on Fashion-MNIST",
    "table1-code": "Table I in the settings of the authors' public code",
    "table1-scale": "Table I with the submodels' activations scaled in training",
    "table1-scale-mlp": "The MLP in Table I's settings, its activations scaled in training",
    "table2": "Table II: ResNet-18 on CIFAR-10",
    "table3": "Table III: LoRA fine-tuning on 20 Newsgroups",
}
