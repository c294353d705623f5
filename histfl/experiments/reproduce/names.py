"""The artefacts' names and titles; imports nothing, so that --help does not wait for torch."""

TITLES = {
    "fig4": "Figure 4: accuracy against the communication load",
    "fig5": "Figure 5: communication cost to a target accuracy",
}
