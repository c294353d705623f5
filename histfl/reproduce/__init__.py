"""The paper's figures and tables, run again: one function an artefact, its number beside the paper's."""
