"""A reference model: what jobs of one kind usually use. It has all figures, so that these jobs can go."""

# Without postponed annotations: msgspec would compile each of them once more.

from joblens.record.fields import Annotated, Moment, Part, Real, Value, Whole, about

VERSION = 1


class Usual(Value, frozen=True):
    """A figure of the reference jobs."""

    centre: Annotated[Real, about("median")]
    spread: Annotated[Real, about("median absolute deviation, as that of a standard deviation")]
    low: Annotated[Real, about("lowest value")]
    high: Annotated[Real, about("highest value")]


Figures = dict[str, Usual]  # by name of the metric


class ReferenceJob(Value, frozen=True):
    """A job that the model was made from."""

    cluster: Annotated[str, about("cluster")]
    id: Annotated[str, about("id, as people write it")]
    start: Annotated[Moment, about("start time")]
    user: Annotated[str, about("user name")] = ""
    account: Annotated[str | None, about("account")] = None


class ReferenceModel(Part, kw_only=True):
    """What jobs of one kind usually use."""

    version: Annotated[Whole, about("version of the format")] = VERSION
    name: Annotated[str, about("name of the model")]
    owner: Annotated[str, about("user who has created it")]
    created: Annotated[Moment, about("when that was")]
    enabled: Annotated[bool, about("whether new jobs are judged by it")] = True
    everyone: Annotated[bool, about("whether it judges jobs of all users, and not only its owner's")] = False
    job_name: Annotated[str | None, about("jobs of such a name are judged by it: with *, ? and [*]")] = None
    tags: Annotated[dict[str, str], about("jobs with all of these tags are judged by it")] = {}
    jobs: Annotated[list[ReferenceJob], about("reference jobs")]
    totals: Annotated[Figures, about("figures of whole jobs")] = {}
    operations: Annotated[dict[str, Figures], about("figures of operations, by their tags")] = {}
    programs: Annotated[dict[str, Figures], about("figures of programs, by their name")] = {}
