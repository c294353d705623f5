"""Results to look at: one self-contained page from any set of runs."""

from histfl.reports.answer import answer_sentence, answer_table, own_data_table, runs_table
from histfl.reports.figures import told_own_data, write_figures
from histfl.reports.gather import Gathered, Group, gather, groups_of
from histfl.reports.page import write_report

__all__ = [
    "Gathered",
    "Group",
    "answer_sentence",
    "answer_table",
    "gather",
    "groups_of",
    "own_data_table",
    "runs_table",
    "told_own_data",
    "write_figures",
    "write_report",
]
