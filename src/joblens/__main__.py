import sys

from joblens.cli import main

sys.exit(main())
