"""`python -m histfl`: the command line of the Python that is asked, whatever the PATH finds."""

import sys

from histfl.cli import main

if __name__ == "__main__":
    sys.exit(main())
