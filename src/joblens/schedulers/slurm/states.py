"""States of jobs, in Slurm's words."""

from __future__ import annotations

ENDED = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED LAUNCH_FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED"
    " RECONFIG_FAIL REQUEUED REVOKED TIMEOUT".split()
)
RESIZING = "RESIZING"  # in accounting: it continued with another number of nodes, in the next row
WAITING = frozenset("PENDING REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT".split())
STATES = (
    ENDED
    | WAITING
    | frozenset(  # of jobs in a store; ENDED is joblens' own
        "COMPLETING CONFIGURING ENDED RESIZING RUNNING SIGNALING STAGE_OUT STOPPED SUSPENDED UNKNOWN".split()
    )
)
