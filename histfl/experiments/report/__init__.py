"""Results to look at: one self-contained page from any set of runs."""

from histfl.experiments.report.answer import answer_sentence, answer_table, runs_table
from histfl.experiments.report.folders import Gathered, ShownRun, gather
from histfl.experiments.report.groups import Group, groups_of
from histfl.experiments.report.page import report_page, write_report
from histfl.experiments.report.paper import write_figures
from histfl.experiments.report.style import COLOURS

__all__ = [
    "COLOURS",
    "Gathered",
    "Group",
    "ShownRun",
    "answer_sentence",
    "answer_table",
    "gather",
    "groups_of",
    "report_page",
    "runs_table",
    "write_figures",
    "write_report",
]
