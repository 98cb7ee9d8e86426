"""The record of a job: all that is known of it, as it is stored and as every report shows it."""

import json
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType, field

from joblens.core.errors import MalformedError
from joblens.record.fields import Amount, Annotated, Moment, Part, Real, Value, Whole, about
from joblens.record.job import Step

VERSION = 1
HELD = ("file", "cgroup", "environment")  # ways in which a GPU is given to a job exclusively
_ENDS = {"start": "from", "end": "to"}
_FREE = ("tags", "annotations", "environment", "sums")  # whose keys are no fields


class _Numbered(Protocol):
    id: str
    array_job: str | None
    array_task: str | None
    het_job: str | None
    het_offset: str | None


def shown_id(job: _Numbered) -> str:
    """Return the id as people write it: 4242, 4200_7 of an array, 4300+1 of a heterogeneous job."""
    if job.array_job and job.array_task:
        return f"{job.array_job}_{job.array_task}"
    return f"{job.het_job}+{job.het_offset}" if job.het_job and job.het_offset else job.id


class Job(Part, kw_only=True):
    """Which job it is."""

    id: Annotated[str, about("id under which its processes ran")]
    cluster: Annotated[str, about("cluster, or the node where there is none")]
    name: Annotated[str, about("name")]
    user: Annotated[str, about("user name")]
    uid: Annotated[Whole | None, about("numeric user id")] = None
    node: Annotated[str | None, about("its first node")] = None
    source: Annotated[
        str | None, about("who reported it: `run`, `slurm`, `flux`, `pbs`, `usermode`, `inferred`, `epmt`")
    ] = None
    command: Annotated[str | None, about("command line")] = None
    folder: Annotated[str | None, about("working directory")] = None
    tags: Annotated[dict[str, str] | None, about("tags that its user gave it")] = None
    annotations: Annotated[dict[str, str] | None, about("notes about it, by name")] = None
    environment: Annotated[dict[str, str] | None, about("environment variables that describe its layout")] = (
        None
    )
    nodes: Annotated[list[str] | None, about("all nodes of a batch job; empty if it was given none")] = None
    account: Annotated[str | None, about("account of a batch job")] = None
    partition: Annotated[str | None, about("partition or queue")] = None
    qos: Annotated[str | None, about("quality of service")] = None
    submit: Annotated[Moment | None, about("submit time")] = None
    eligible: Annotated[Moment | None, about("time at which it became eligible to start")] = None
    reason: Annotated[str | None, about("why it waited, or why it ended")] = None
    array_job: Annotated[str | None, about("array: 4200 of 4200_7")] = None
    array_task: Annotated[str | None, about("array task: 7 of 4200_7")] = None
    het_job: Annotated[str | None, about("heterogeneous job: 4300 of 4300+1")] = None
    het_offset: Annotated[str | None, about("component: 1 of 4300+1")] = None
    restarts: Annotated[Amount | None, about("number of times that it was requeued")] = None
    tres_asked: Annotated[str | None, about("what was asked for, as the scheduler writes it")] = None
    tres_allocated: Annotated[str | None, about("what was allocated, as the scheduler writes it")] = None
    start: Annotated[Moment, about("start time; of a job that never started its end, and null in `--json`")]
    end: Annotated[Moment | None, about("end time; of a running job, that of its last sample")] = None
    state: Annotated[str | None, about("state in Slurm's terms")] = None
    exit_code: Annotated[Whole | None, about("exit code; 128 and more for a signal")] = None
    signal: Annotated[Whole | None, about("signal that ended it")] = None

    @property
    def last(self) -> float:
        """The end, or the start where that is unknown."""
        return self.end or self.start

    @property
    def duration(self) -> float:
        """Seconds from start to end, as far as these are known."""
        return self.last - self.start

    @property
    def never_started(self) -> bool:
        """Whether a scheduler gave it no node, and it has an end all the same."""
        return self.nodes == [] and self.end is not None and self.end <= self.start

    @property
    def shown_id(self) -> str:
        """As people write it: 4242, 4200_7 of an array, 4300+1 of a heterogeneous job."""
        return shown_id(self)


class Asked(Part):
    """Resources that the job was allowed to use."""

    cores: Annotated[Amount | None, about("cores")] = None
    memory_bytes: Annotated[Amount | None, about("memory")] = None
    time_seconds: Annotated[Amount | None, about("time limit")] = None
    nodes: Annotated[Amount | None, about("number of nodes of a batch job")] = None
    gpus: Annotated[Amount | None, about("number of GPUs")] = None
    gpu_memory_bytes: Annotated[Amount | None, about("memory of all its GPUs")] = None


class Used(Part):
    """Resources that the job has used: the larger of the kernel's totals and the samples."""

    duration_seconds: Annotated[Amount | None, about("time from start to end")] = None
    cpu_seconds: Annotated[Amount | None, about("CPU time of all processes")] = None
    cpu_seconds_exact: Annotated[
        Amount | None, about("the same by the kernel's totals or accounting alone")
    ] = None
    user_seconds: Annotated[Amount | None, about("of these in user mode")] = None
    system_seconds: Annotated[Amount | None, about("of these in the kernel")] = None
    cores_mean: Annotated[Amount | None, about("cores in use on average")] = None
    cores_peak: Annotated[Amount | None, about("cores in use at most, over a stretch of the timeline")] = None
    memory_peak_bytes: Annotated[Amount | None, about("anonymous and shared memory at most")] = None
    memory_from: Annotated[str | None, about("source of the peak: `samples`, `accounting`, …")] = None
    memory_mean_bytes: Annotated[Amount | None, about("the same on average")] = None
    read_bytes: Annotated[Amount | None, about("bytes from storage")] = None
    written_bytes: Annotated[Amount | None, about("bytes to storage")] = None
    read_chars_bytes: Annotated[Amount | None, about("bytes that system calls read, page cache included")] = (
        None
    )
    written_chars_bytes: Annotated[Amount | None, about("bytes that system calls wrote")] = None
    major_faults: Annotated[Amount | None, about("page faults with I/O")] = None
    involuntary_switches: Annotated[Amount | None, about("context switches by the scheduler")] = None
    processes: Annotated[Amount | None, about("number of processes, sampled or imported")] = None
    threads_peak: Annotated[Amount | None, about("threads at most")] = None
    unsampled_seconds: Annotated[Amount | None, about("CPU time of processes too short to be sampled")] = None
    short_seconds: Annotated[Amount | None, about("CPU time of such that were recorded at their end")] = None
    run_delay_seconds: Annotated[Amount | None, about("time in which threads were ready and had no core")] = (
        None
    )
    run_delay_share: Annotated[Amount | None, about("that, of the time in which they were ready or ran")] = (
        None
    )
    throttled_seconds: Annotated[Amount | None, about("time for which a CPU quota stopped it")] = None
    throttled_share: Annotated[Amount | None, about("that, of the CPU time that it wanted")] = None
    oom_kills: Annotated[Amount | None, about("processes killed for memory")] = None
    cores_delayed: Annotated[Amount | None, about("threads that were ready and had no core, on average")] = (
        None
    )
    blocked_mean: Annotated[Amount | None, about("processes that waited for storage, on average")] = None
    blocked_share: Annotated[Amount | None, about("that, of all processes with something to do")] = None
    node_idle_cores: Annotated[Amount | None, about("idle cores of its nodes, on average")] = None
    forks: Annotated[Amount | None, about("processes and threads created on its nodes by anyone")] = None
    device: Annotated[str | None, about("disk or file system that carried most of its I/O")] = None
    gpus: Annotated[Amount | None, about("number of GPUs used")] = None
    gpus_mean: Annotated[Amount | None, about("GPUs busy on average")] = None
    gpu_memory_peak_bytes: Annotated[Amount | None, about("sum of the peaks of its GPUs")] = None
    gpu_energy_joules: Annotated[Amount | None, about("energy of its GPUs")] = None


class Finding(Part, rename=_ENDS):
    """Something to change, with evidence and advice."""

    rule: Annotated[str, about("which rule found it")]
    start: Annotated[Moment, about("start of the interval that it concerns")]
    end: Annotated[Moment, about("end of the interval")]
    evidence: Annotated[str, about("figures that show it")]
    advice: Annotated[str, about("what to do about it")]
    weight: Annotated[Real | None, about("how much of the job it concerns, 0 to 1")] = None


class Gap(Part, rename=_ENDS):
    """An interval without data."""

    start: Annotated[Moment, about("last sample before it, or the start of the job")]
    end: Annotated[Moment, about("first sample after it, or the end of the job")]

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.start


class NodeUse(Part):
    """The job on one node."""

    node: Annotated[str, about("name")]
    cores_mean: Annotated[Amount | None, about("cores in use on average")] = None
    cores_peak: Annotated[Amount | None, about("cores in use at most")] = None
    memory_peak_bytes: Annotated[Amount | None, about("memory at most")] = None
    cpu_seconds: Annotated[Amount | None, about("CPU time")] = None
    samples: Annotated[Amount | None, about("number of samples")] = None
    expected_samples: Annotated[Amount | None, about("number that an agent should have taken")] = None
    gaps: Annotated[list[Gap], about("intervals without data")] = []


class Point(Part):
    """A stretch of the timeline. In a gap all values are unknown."""

    start: Annotated[Moment, about("start of the stretch")]
    end: Annotated[Moment, about("end of the stretch")]
    cores: Annotated[Amount | None, about("cores in use, mean")] = None
    system: Annotated[Amount | None, about("of these in the kernel")] = None
    memory: Annotated[Amount | None, about("bytes of memory, at most")] = None
    read: Annotated[Amount | None, about("bytes per second from storage")] = None
    written: Annotated[Amount | None, about("bytes per second to storage")] = None
    threads: Annotated[Amount | None, about("threads")] = None
    processes: Annotated[Amount | None, about("processes")] = None
    delayed: Annotated[Amount | None, about("threads that were ready and had no core, mean")] = None
    blocked: Annotated[Amount | None, about("processes that waited for storage, mean")] = None

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.start


class GpuPoint(Part):
    """A stretch of the timeline of a GPU."""

    start: Annotated[Moment, about("start of the stretch")]
    end: Annotated[Moment, about("end of the stretch")]
    processes: Annotated[Amount | None, about("processes of the job on it")] = None
    busy: Annotated[Amount | None, about("share of the time in which it was busy, 0 to 1")] = None
    memory: Annotated[Amount | None, about("bytes of memory, at most")] = None
    power: Annotated[Amount | None, about("watts")] = None

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.start

    @property
    def is_known(self) -> bool:
        """Whether it is known if the GPU was used."""
        return self.processes is not None or self.busy is not None


class GpuUse(Part):
    """A GPU that the job held or used."""

    node: Annotated[str, about("node")]
    gpu: Annotated[str, about("UUID")]
    index: Annotated[str, about("index on the node")]
    model: Annotated[str, about("model")]
    given: Annotated[
        str, about("how it is known to be the job's: `file`, `cgroup`, `environment`, `process`")
    ]
    used: Annotated[bool, about("whether the job used it")]
    first_use: Annotated[Moment | None, about("when it was first used")] = None
    last_use: Annotated[Moment | None, about("when it was last used")] = None
    watched_seconds: Annotated[Real, about("time in which it is known whether it was used")] = 0.0
    processes_seen: Annotated[bool, about("whether that is known by its processes, not by its load")] = False
    busy_mean: Annotated[Amount | None, about("share of the time in which it was busy")] = None
    busy_peak: Annotated[Amount | None, about("the same at most")] = None
    memory_peak_bytes: Annotated[Amount | None, about("memory in use at most")] = None
    memory_total_bytes: Annotated[Amount | None, about("memory that it has")] = None
    energy_joules: Annotated[Amount | None, about("energy")] = None
    energy_from: Annotated[str | None, about("source of that: `counter` or `power`")] = None
    timeline: Annotated[list[GpuPoint], about("how it went over time")] = []

    @property
    def held(self) -> bool:
        """Whether no other job could have it."""
        return self.given in HELD

    def busy_between(self, start: float, end: float) -> float | None:
        """Return the mean load in that time."""
        inside = [p for p in self.timeline if p.busy is not None and p.start >= start and p.end <= end]
        seconds = sum(p.seconds for p in inside)
        return sum((p.busy or 0.0) * p.seconds for p in inside) / seconds if seconds > 0 else None


class ProcessUse(Value, frozen=True):
    """A sampled process."""

    pid: Annotated[Whole, about("process id")]
    start: Annotated[Whole, about("start, in clock ticks after boot")]
    parent: Annotated[Whole, about("parent process; 0 if unknown")]
    name: Annotated[str, about("name of the program")]
    command: Annotated[str, about("command line")]
    node: Annotated[str, about("node")]
    first: Annotated[Moment, about("time of its first sample")] = 0.0
    last: Annotated[Moment, about("time of its last sample")] = 0.0
    user_seconds: Annotated[Amount | None, about("CPU time in user mode")] = None
    system_seconds: Annotated[Amount | None, about("CPU time in the kernel")] = None
    memory_peak_bytes: Annotated[Amount | None, about("anonymous and shared memory at most")] = None
    threads: Annotated[Amount | None, about("threads at most")] = None
    read_bytes: Annotated[Amount | None, about("bytes from storage")] = None
    written_bytes: Annotated[Amount | None, about("bytes to storage")] = None
    file_peak_bytes: Annotated[Amount | None, about("pages of files in memory, at most")] = None
    looks: Annotated[Amount | None, about("number of samples")] = None
    looks_waiting: Annotated[Amount | None, about("of these, samples in which it waited for a disk")] = None
    run_delay_seconds: Annotated[Amount | None, about("time in which it was ready and had no core")] = None
    cpu_seconds: Annotated[Amount | None, about("CPU time")] = None
    exact: Annotated[bool | None, about("whether that is the kernel's total at its end")] = None
    memory_exact: Annotated[
        bool | None, about("whether its memory is that, too, and with pages of files")
    ] = None
    left_behind: Annotated[bool | None, about("whether it ran on after the end of the job")] = None
    alike: Annotated[Amount | None, about("number of processes of the same program that are not listed")] = (
        None
    )
    alike_cpu_seconds: Annotated[Amount | None, about("CPU time of these, as far as it is known")] = None
    alike_unknown: Annotated[Amount | None, about("number of these whose CPU time is unknown")] = None


class Energy(Part):
    """The energy of a job, by meters of its nodes and GPUs."""

    joules: Annotated[Amount, about("energy of the job")]
    how: Annotated[str, about("how that is known")]
    gpu_joules: Annotated[Amount | None, about("of that, the energy of its GPUs")] = None
    watts_mean: Annotated[Amount | None, about("mean power")] = None
    carbon_grams: Annotated[Amount | None, about("CO₂, if JOBLENS_CARBON says what a kWh causes")] = None


class Traffic(Part):
    """Traffic of a port or a network file system of the node, for all jobs on it."""

    kind: Annotated[str, about("`InfiniBand`, `Slingshot`, `Lustre` or `NFS`")]
    name: Annotated[str, about("port or file system, with its node if there are several")]
    in_bytes: Annotated[Amount, about("bytes received or read")]
    out_bytes: Annotated[Amount, about("bytes sent or written")]
    errors: Annotated[Amount, about("number of errors")]


class Event(Part):
    """A message of the kernel's log about the job."""

    time: Annotated[Moment, about("time")]
    kind: Annotated[str, about("kind, see [kernel log](devices.md#kernel-log)")]
    text: Annotated[str, about("the message")]
    device: Annotated[str | None, about("device that it names")] = None
    pid: Annotated[Whole | None, about("process that it names")] = None


class Mark(Part):
    """A mark that the job has set, see [marks](marks.md)."""

    text: Annotated[str, about("text")]
    start: Annotated[Moment, about("when it was started")]
    end: Annotated[
        Moment | None, about("when it was stopped; none if never, the start if it is a moment")
    ] = None
    node: Annotated[str | None, about("node")] = None


class FomPoint(Part):
    """A value of a figure of merit."""

    time: Annotated[Moment, about("time")]
    value: Annotated[Real, about("value")]


class Fom(Part):
    """A figure of merit that the job has reported."""

    name: Annotated[str, about("name")]
    last: Annotated[Real, about("last value")]
    unit: Annotated[str | None, about("unit")] = None
    node: Annotated[str | None, about("node")] = None
    count: Annotated[Amount | None, about("number of values")] = None
    first: Annotated[Real | None, about("first value")] = None
    lowest: Annotated[Real | None, about("lowest value")] = None
    highest: Annotated[Real | None, about("highest value")] = None
    series: Annotated[list[FomPoint], about("values over time, of many only some")] = []


class ProcessCounts(Part):
    """How complete the records of ended processes are."""

    ended: Annotated[Whole, about("processes that ended")] = 0
    exact: Annotated[Whole, about("of these, with the kernel's usage at their end")] = 0
    sampled: Annotated[Whole, about("of these, with usage by samples only")] = 0
    counted: Annotated[Whole, about("of these, only known to have existed")] = 0


class GroupSums(Part):
    """Processes that are alike, added up."""

    key: Annotated[str, about("tags of the operation, or name of the program")]
    processes: Annotated[Whole, about("number of processes")]
    began_seconds: Annotated[Moment, about("first start")]
    ended_seconds: Annotated[Moment, about("last end")]
    cpu_seconds: Annotated[Real, about("CPU time")]
    summed_wall_seconds: Annotated[Real, about("time from start to end of each process, added up")]
    run_delay_seconds: Annotated[Real, about("time without a core")]
    memory_peak_bytes: Annotated[Whole, about("memory of the largest")]


class Imported(Part):
    """Data of another system that the record was made from."""

    source: Annotated[str, about("system: `epmt`")]
    archive: Annotated[str, about("name of the file or folder")]
    zone: Annotated[
        str | None, about("zone by which its times were read; none if they name one themselves")
    ] = None
    processes: Annotated[Whole, about("number of processes")] = 0
    threads: Annotated[Whole, about("number of threads")] = 0
    sums: Annotated[
        dict[str, Real], about("sum of each metric over all threads, in its own name and unit")
    ] = {}
    operations: Annotated[
        list[GroupSums] | None, about("processes with the same tags, added up; not of more than 500")
    ] = None
    programs: Annotated[
        list[GroupSums] | None, about("processes of the same name, added up; not of more than 500")
    ] = None


class Data(Part):
    """Sources of the record."""

    samples: Annotated[Whole | None, about("number of samples, over all nodes")] = None
    expected_samples: Annotated[Whole | None, about("number that agents should have taken")] = None
    interval_seconds: Annotated[Amount | None, about("time between two samples")] = None
    exact: Annotated[bool | None, about("whether totals are those of the kernel or accounting")] = None
    problems: Annotated[list[str], about("what is missing or went wrong, a sentence each")] = []
    node_cores: Annotated[Amount | None, about("cores of the node that `joblens run` ran on")] = None
    carbon_grams_per_kwh: Annotated[Amount | None, about("CO₂ that a kWh was taken to cause")] = None
    processes: Annotated[
        ProcessCounts | UnsetType, about("ended processes, if capture or an agent of root recorded them")
    ] = UNSET
    inexact: Annotated[list[str], about("of these, some without exact usage: name, pid and node")] = []
    imported: Annotated[Imported | UnsetType, about("what was imported; absent in other records")] = UNSET


class Deviation(Part):
    """A figure of the job, or of some of its processes, that is unlike those of the reference jobs."""

    metric: Annotated[str, about("name of the figure, such as `cpu_seconds`")]
    value: Annotated[Real, about("value of this job")]
    usual: Annotated[Real, about("median of the reference jobs")]
    score: Annotated[
        Real | None, about("distance from that in their spread; null if all of them have the same value")
    ] = None
    kind: Annotated[str, about("`job`, `operation` or `program`")] = "job"
    group: Annotated[str, about("tags of the operation, or name of the program")] = ""

    @property
    def ratio(self) -> float | None:
        """How many times the usual value it is."""
        return self.value / self.usual if self.usual else None


class Judgement(Part):
    """How the job compares with its reference model, as it was when the job arrived."""

    model: Annotated[str, about("name of the model")]
    time: Annotated[Moment, about("time of the judgement")]
    jobs: Annotated[Whole, about("number of reference jobs")]
    unusual: Annotated[bool, about("whether it is unlike them")]
    deviations: Annotated[list[Deviation], about("figures of the whole job that are unlike theirs")] = []
    causes: Annotated[
        list[Deviation], about("operations and programs that are unlike theirs, the largest difference first")
    ] = []


class Window(Part, rename=_ENDS):
    """The part of a job that a report is limited to."""

    start: Annotated[Moment, about("start of the part")]
    end: Annotated[Moment, about("end of the part")]
    what: Annotated[str, about("how it was chosen: a mark, a step, an interval")]


class Run(Value, frozen=True):
    """One of the runs that an id has had."""

    run: Annotated[int, about("its number, from 1")]
    cluster: Annotated[str, about("cluster")]
    id: Annotated[str, about("id")]
    start: Annotated[Moment, about("start time")]
    end: Annotated[Moment | None, about("end time")]
    state: Annotated[str | None, about("state")]


class Head(Part, kw_only=True):
    """The parts of a record that a listing needs; they come first."""

    version: Annotated[int, about("version of the format")] = VERSION
    written: Annotated[Whole, about("when it was stored, in nanoseconds since 1970; absent if it is not")] = 0
    job: Annotated[Job, about("which job it is")]
    asked: Annotated[Asked, about("what it was allowed to use")] = field(default_factory=Asked)
    used: Annotated[Used, about("what it has used")] = field(default_factory=Used)
    verdict: Annotated[str, about("one sentence about it")] = ""


class JobRecord(Head, kw_only=True, dict=True):
    """The record of a job."""

    findings: Annotated[list[Finding], about("what to change, the most important first")] = []
    nodes: Annotated[list[NodeUse], about("what it did on each node")] = []
    steps: Annotated[list[Step], about("steps of a batch job, by accounting")] = []
    timeline: Annotated[list[Point], about("how it went over time")] = []
    processes: Annotated[list[ProcessUse], about("the processes that used most, with their parents")] = []
    gpus: Annotated[list[GpuUse], about("GPUs that it held or used")] = []
    energy: Annotated[Energy | None, about("energy, where something measures it")] = None
    traffic: Annotated[list[Traffic], about("what ports and network file systems carried")] = []
    events: Annotated[list[Event], about("messages of the kernel's log")] = []
    marks: Annotated[list[Mark], about("marks that the job has set")] = []
    foms: Annotated[list[Fom], about("figures of merit that the job has reported")] = []
    gaps: Annotated[list[Gap], about("intervals without data")] = []
    data: Annotated[Data, about("what the record was made from")] = field(default_factory=Data)
    judged: Annotated[list[Judgement], about("how it compares with its [models](comparing.md#models)")] = []
    cut: Annotated[Window | UnsetType, about("the part that it is limited to; absent in a whole record")] = (
        UNSET
    )
    run: Annotated[int | UnsetType | None, about("which of the runs it is; in `joblens job --json`")] = UNSET
    runs: Annotated[list[Run] | UnsetType, about("all runs with this id; in `joblens job --json`")] = UNSET
    array_tasks: Annotated[int | UnsetType, about("tasks of its array that have started; the same")] = UNSET

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with what a later version has stored and this one does not know.

        Raises MalformedError if that is no JSON that Python can read.
        """
        found: dict[str, Any] = msgspec.to_builtins(self, order="deterministic")
        if not self.written:
            del found["written"]
        stored = self.__dict__.get("stored")
        if stored is None:
            return found
        try:
            plain = json.loads(stored.decode("utf-8", "replace"))
            return _over(plain, found)  # type: ignore[no-any-return]  # both are objects
        except (ValueError, RecursionError) as error:  # in a part that has no type here
            raise MalformedError(f"record of job {self.job.id}", f"{error!s:.100}") from None

    def keep(self, stored: bytes) -> None:
        """Remember the JSON that it was read from, for the parts of it that have no type here."""
        self.__dict__["stored"] = stored

    def find_unchanged(self) -> bytes | None:
        """Return the JSON that it was read from, if nothing was changed since."""
        stored = self.__dict__.get("stored")
        return stored if stored is not None and parse_record(stored) == self else None


class _Version(msgspec.Struct):
    version: int = 0


def is_newer(data: bytes) -> bool:
    """Whether a later version of joblens has written it, so that it need not be what this one expects."""
    try:
        return msgspec.json.decode(data, type=_Version).version > VERSION
    except (ValueError, RecursionError):
        return False


def _over(before: Any, now: Any) -> Any:
    """Return the values that are known here, and then what else was stored, sorted: a database does not keep
    the order."""
    if isinstance(before, dict) and isinstance(now, dict):
        known = {
            name: value if name in _FREE else _over(before.get(name), value) for name, value in now.items()
        }
        return known | {name: _sorted(before[name]) for name in sorted(before.keys() - now.keys())}
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [_over(*pair) for pair in zip(before, now)]
    return now


def _sorted(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {name: _sorted(value) for name, value in sorted(plain.items())}
    return [_sorted(value) for value in plain] if isinstance(plain, list) else plain


def parse_record(data: bytes) -> JobRecord:
    """Tags, annotations, environment and sums are sorted by name: a database does not keep their order.

    Raises msgspec.ValidationError for a missing or wrongly typed part, ValueError for malformed JSON."""
    record = msgspec.json.decode(data, type=JobRecord)
    for part in (record.job, record.data.imported):
        for name in _FREE:
            if texts := getattr(part, name, None):
                setattr(part, name, dict(sorted(texts.items())))
    return record
