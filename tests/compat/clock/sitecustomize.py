"""Shift the wall clock of a Python process by JOBLENS_TEST_SHIFT seconds.

With this folder on PYTHONPATH it is the recorded time again: a hub stores no rows of more than 31 days ago.
"""

import os
import time

_SHIFT = float(os.environ["JOBLENS_TEST_SHIFT"])
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _SHIFT
time.time_ns = lambda: _time_ns() + int(_SHIFT * 1e9)
