import sys

from joblens.cli import entry

sys.exit(entry())
