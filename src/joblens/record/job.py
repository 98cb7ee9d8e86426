"""Input of a summary: facts at the start of a job, and how it ended."""

from msgspec import field

from joblens.record.fields import Amount, Annotated, Moment, Part, Value, Whole, about


class Resources(Value, frozen=True):
    """Resources requested from a batch system, or allocated by it."""

    nodes: Annotated[Amount | None, about("number of nodes")] = None
    cores: Annotated[Amount | None, about("number of cores")] = None
    memory_bytes: Annotated[Amount | None, about("memory on all nodes together")] = None
    gpus: Annotated[Amount | None, about("number of GPUs")] = None
    tres: Annotated[str, about("all of it as the scheduler writes it: `cpu=4,mem=8G,node=1,gres/gpu=2`")] = ""


class Step(Value, frozen=True):
    """A step of a batch job, as accounting has it."""

    id: Annotated[str, about("`batch`, `extern`, `interactive`, or a number")]
    name: Annotated[str, about("name of the step")] = ""
    state: Annotated[str, about("state in Slurm's terms")] = ""
    exit_code: Annotated[Whole | None, about("exit code")] = None
    signal: Annotated[Whole | None, about("signal that ended it")] = None
    start: Annotated[Moment | None, about("start time")] = None
    end: Annotated[Moment | None, about("end time")] = None
    nodes: Annotated[tuple[str, ...], about("nodes that it ran on")] = ()
    tasks: Annotated[Amount | None, about("number of tasks")] = None
    user_seconds: Annotated[Amount | None, about("CPU time in user mode, of the processes waited for")] = None
    system_seconds: Annotated[Amount | None, about("CPU time in the kernel, of the same")] = None
    memory_peak_bytes: Annotated[Amount | None, about("peak memory of its largest task")] = None
    allocated: Annotated[Resources, about("what was allocated to it")] = Resources()


class IoTotals(Part):
    """Bytes that the kernel accounts to the processes that were waited for."""

    read_chars: Annotated[Amount | None, about("bytes that system calls read, page cache included")] = None
    written_chars: Annotated[Amount | None, about("bytes that system calls wrote")] = None
    read: Annotated[Amount | None, about("bytes from storage")] = None
    written: Annotated[Amount | None, about("bytes to storage")] = None


class Totals(Part):
    """Totals of the kernel or of accounting at the end of a job."""

    user_seconds: Annotated[Amount | None, about("CPU time in user mode")] = None
    system_seconds: Annotated[Amount | None, about("CPU time in the kernel")] = None
    cpu_seconds: Annotated[Amount | None, about("both together, where they are not known one by one")] = None
    largest_rss_bytes: Annotated[Amount | None, about("peak RSS of the largest process, files included")] = (
        None
    )
    minor_faults: Annotated[Amount | None, about("page faults without I/O")] = None
    major_faults: Annotated[Amount | None, about("page faults with I/O")] = None
    voluntary_switches: Annotated[Amount | None, about("context switches of processes that waited")] = None
    involuntary_switches: Annotated[Amount | None, about("context switches by the scheduler")] = None
    reaped: Annotated[Amount | None, about("processes that the supervisor waited for")] = None
    io: Annotated[IoTotals | None, about("I/O, where the kernel counts it")] = None

    @property
    def is_known(self) -> bool:
        """Whether there are any."""
        return any(getattr(self, name) is not None for name in self.__struct_fields__)


class JobFacts(Part, kw_only=True):
    """Facts at the start of a job, by any source: `joblens run`, a batch system, an importer."""

    id: Annotated[str, about("id under which its processes run")]
    cluster: Annotated[str, about("cluster, or the node where there is none")]
    user: Annotated[str, about("user name")]
    name: Annotated[str, about("name of the job")]
    start: Annotated[Moment, about("start time")]
    node: Annotated[str, about("its first node")]
    interval: Annotated[Amount, about("seconds between two samples")]
    source: Annotated[
        str | None, about("who reports it: `run`, `slurm`, `flux`, `pbs`, `usermode`, `inferred`, `epmt`")
    ] = None
    command: Annotated[str | None, about("command line")] = None
    folder: Annotated[str | None, about("working directory")] = None
    uid: Annotated[Whole | None, about("numeric user id")] = None
    tags: Annotated[dict[str, str] | None, about("tags that its user gave it")] = None
    annotations: Annotated[dict[str, str] | None, about("notes about it, by name")] = None
    environment: Annotated[dict[str, str] | None, about("environment variables that describe its layout")] = (
        None
    )
    state: Annotated[str | None, about("state in Slurm's terms")] = None
    cores: Annotated[Amount | None, about("cores that it may use")] = None
    memory: Annotated[Amount | None, about("bytes of memory that it may use")] = None
    gpus: Annotated[list[str] | None, about("GPUs that it may use, by index or UUID")] = None
    node_cores: Annotated[Amount | None, about("cores of the node")] = None
    carbon_grams_per_kwh: Annotated[Amount | None, about("CO₂ that a kWh causes (JOBLENS_CARBON)")] = None
    known_until: Annotated[Moment | None, about("of a running job: samples until then should be there")] = (
        None
    )
    # of a batch job
    nodes: Annotated[list[str] | None, about("all of its nodes; none of a job without a scheduler")] = None
    account: Annotated[str | None, about("account")] = None
    partition: Annotated[str | None, about("partition or queue")] = None
    qos: Annotated[str | None, about("quality of service")] = None
    reason: Annotated[str | None, about("why it waits, or why it ended")] = None
    submit: Annotated[Moment | None, about("submit time")] = None
    eligible: Annotated[Moment | None, about("time at which it became eligible to start")] = None
    time_limit_seconds: Annotated[Amount | None, about("time limit")] = None
    array_job: Annotated[str | None, about("array: 4200 of 4200_7")] = None
    array_task: Annotated[str | None, about("array task: 7 of 4200_7")] = None
    het_job: Annotated[str | None, about("heterogeneous job: 4300 of 4300+1")] = None
    het_offset: Annotated[str | None, about("component: 1 of 4300+1")] = None
    restarts: Annotated[Amount | None, about("number of times that it was requeued")] = None
    gpus_asked: Annotated[Amount | None, about("number of GPUs allocated or asked for")] = None
    asked_nodes: Annotated[Amount | None, about("number of nodes asked for")] = None
    tres_asked: Annotated[str | None, about("what was asked for, as the scheduler writes it")] = None
    tres_allocated: Annotated[str | None, about("what was allocated, as the scheduler writes it")] = None
    # of `joblens run`
    boot: Annotated[str | None, about("boot id of the node")] = None
    supervisor: Annotated[list[int] | None, about("pid and start of the process that supervises it")] = None
    pid_namespace: Annotated[str | None, about("namespace of that pid")] = None
    joblens: Annotated[str | None, about("version of joblens")] = None


class JobEnd(Part, kw_only=True):
    """How a job ended, and what the kernel or accounting has added up."""

    start: Annotated[Moment, about("start time, as exactly as it is known at the end")]
    end: Annotated[Moment, about("end time")]
    exit_code: Annotated[Whole | None, about("exit code; 128 and more for a signal")] = None
    signal: Annotated[Whole | None, about("signal that ended it")] = None
    state: Annotated[str | None, about("state in Slurm's terms")] = None
    problems: Annotated[list[str] | None, about("what is missing or went wrong, a sentence each")] = None
    totals: Annotated[Totals | None, about("totals of the kernel or of accounting")] = field(
        default_factory=Totals
    )
    steps: Annotated[list[Step], about("its steps, by accounting")] = []
