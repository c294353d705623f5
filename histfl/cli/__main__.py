"""`python -m histfl.cli`."""

from histfl.cli import main

main()
