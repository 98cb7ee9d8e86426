"""The program that starts the agent on a host of the job. It receives the agent and its settings through its
input, so that nothing of joblens has to be installed there and nothing is left behind.

`PYTHON_FINDER` is for sh, `BOOTSTRAP` for the Python that it finds, from 3.9 on. The input is one line of
JSON followed by the agent as one file (joblens.usermode.pack). Then it stays open: when it ends the agent
ends, so that none outlives its parent. That end may never come, though: a srun that is killed, or
gives up because of another node, leaves its tasks with an input that stays open, and while the prolog of one
node runs slurmctld signals no step. So the bootstrap also checks that the hub is there, at all times.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from joblens.usermode.state import JobFile

NO_FILE = 66  # an exit code: the file with the address to connect to is not visible there, or nothing answers
# For sh: where memory runs out, the kernel kills this and what it starts, and not the job. From the start on:
# while Python starts, it would rather kill another process of ours, which is in the step of the job's script.
FIRST_TO_BE_KILLED = "{ echo 1000 >/proc/self/oom_score_adj; } 2>/dev/null; "
# $1 is the Python that runs here, $2 the bootstrap, $3 the address of the hub, and for
# joblens.usermode.pbs_tasks, which has no input, $4 the host and $5 a file.
PYTHON_FINDER = f"""\
{FIRST_TO_BE_KILLED}
for p in "$1" python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.10 python3.9; do
  command -v "$p" >/dev/null 2>&1 || continue
  "$p" -I -c 'import sys; sys.exit(sys.version_info < (3, 9))' </dev/null >/dev/null 2>&1 || continue
  exec "$p" -I -c "$2" "$3" ${{4:+"$4" "$5"}}
done
echo "joblens: no Python 3.9 or newer on this host" >&2
exit 127
"""

BOOTSTRAP = """\
import json, os, select, signal, socket, sys, threading, time
try:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory runs out the kernel kills this, and not the job
except OSError:
    pass
parent = os.getppid()
where, _, port = sys.argv[1].rpartition(":")
def connect():
    try:
        socket.create_connection((where.strip("[]"), int(port)), 5).close()
    except OSError as error:
        return error
def wait_readable(fd, seconds):
    refused, reached = 0, time.monotonic()  # connections that the hub's host has refused in a row
    while refused < 3 and time.monotonic() - reached < seconds:
        if select.select([fd], [], [], 10)[0]:
            return True
        if where:
            error = connect()
            refused = refused + 1 if isinstance(error, ConnectionRefusedError) else 0
            reached = reached if error or fd == 0 else time.monotonic()
    return False
def read():
    if not wait_readable(0, 300):
        sys.exit("joblens: the agent was not received in time")
    more = os.read(0, 1 << 16)
    if not more:
        sys.exit("joblens: the agent was not received completely")
    return more
line = b""
while b"\\n" not in line:
    line += read()
line, _, pack = line.partition(b"\\n")
given = json.loads(line)
while len(pack) < given["size"]:
    pack += read()
host = socket.gethostname()
names = [given["node"], *sys.argv[2:3], os.environ.get("SLURMD_NODENAME", "")]
names += [host, host.partition(".")[0], "localhost"]
node = next((name for name in names if name in given["tokens"]), "")
if not node:
    sys.exit("joblens: this host, " + host + ", is not one of the requested hosts")
error = where and connect()
if error:
    why = error.strerror or error
    print("joblens: the hub at %s cannot be reached: %s" % (sys.argv[1], why), file=sys.stderr)
step = os.environ.get("SLURM_STEP_ID", "")
print("joblens: starting on " + node + (step and ", step " + step), file=sys.stderr, flush=True)
def keep(name, data):
    fd = os.memfd_create(name, 0)
    os.fchmod(fd, 0o600)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    return "/proc/self/fd/%d" % fd
os.umask(0o077)
shared = os.path.isfile(os.path.join(given["folder"], given["nonce"]))
if shared:
    base = os.path.join(given["folder"], "hosts", node)
else:
    base = os.path.join(os.environ.get("TMPDIR") or "/tmp", "joblens-%s-%s" % (given["name"], node))
try:
    os.makedirs(base, 0o700, exist_ok=shared)
except OSError as error:
    sys.exit("joblens: %s cannot be made: %s" % (base, error.strerror))
child = 0 if shared else os.fork()
if child:
    # However the agent ends, its folder is removed, and this process ends in the same way.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: os.kill(child, number))
    status = os.waitpid(child, 0)[1]
    import shutil
    shutil.rmtree(base, ignore_errors=True)
    if os.WIFSIGNALED(status):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))
if given["job"]:
    os.makedirs(os.path.join(base, "jobs"), 0o700, exist_ok=True)
    job = dict(given["job"], uid=os.getuid())
    if job.pop("parent", False):
        job["pid"] = parent
    with open(os.path.join(base, "jobs", "job.json"), "w") as file:
        json.dump(job, file)
    os.environ["JOBLENS_JOB"] = given["job"]["id"]
quoted = lambda text: json.dumps(text, ensure_ascii=False)
settings = given["settings"]
for mark, text in (
    ("NODE", node),
    ("SLURM_NODE", os.environ.get("SLURMD_NODENAME", "")),
    ("SPOOL", os.path.join(base, "spool")),
    ("JOBS", os.path.join(base, "jobs")),
    ("TOKEN", keep("token", given["tokens"][node].encode())),
    ("PAGE_TOKEN", keep("page-token", given["page_tokens"][node].encode())),
):
    settings = settings.replace('"@%s@"' % mark, quoted(text))
sys.path.insert(0, keep("agent", pack))
words = ["agent", "--ready-fd", "1", "--config", keep("settings", settings.encode())]
del line, pack, settings
input_ = os.dup(0)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
def wait():
    # Behind ssh nothing else would end the agent if the hub's host has died.
    seconds = 3600 if "SSH_CONNECTION" in os.environ else float("inf")
    while wait_readable(input_, seconds) and os.read(input_, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)  # longer than an agent takes to send the rest
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=wait, daemon=True).start()
from joblens.cli import main
sys.exit(main(words))
"""


class Payload(NamedTuple):
    name: str  # of the session: letters, digits, - and _
    folder: str  # of the session; where a host sees it, the agent's state is in it
    nonce: str  # the name of a file in it
    tokens: Mapping[str, str]  # by host: what batches are signed with
    page_tokens: Mapping[str, str]  # by host: what readers of the agent's pages send
    settings: str  # TOML, in which "@NODE@", "@SPOOL@" and the like stand for values that only the host knows
    job: JobFile | None  # None: processes are attributed by the batch system
    node: str = ""  # the host's name here; "": as it calls itself


def make_input(payload: Payload, pack: bytes) -> bytes:
    given = {
        **payload._asdict(),
        "tokens": dict(payload.tokens),
        "page_tokens": dict(payload.page_tokens),
        "job": payload.job.plain() if payload.job else {},
        "size": len(pack),
    }
    return json.dumps(given).encode() + b"\n" + pack
