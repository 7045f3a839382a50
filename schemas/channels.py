"""What each topic means beside what the registry says of it: which records, who writes them, who reads them."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from schemas.json_schema import CONTROL, DEAD_LETTERS, MODELS, REQUESTS, RESULTS, SESSIONS, TOKENS, PublishedRecords
from schemas.names import LANES, Lane, Names

Role = Literal["gate", "pipeline", "worker"]

# A served model's name where any may stand.
ANY_MODEL = "MODEL"


class Channel(msgspec.Struct, kw_only=True, frozen=True):
    """One topic's part in the whole.

    `records` is None between our own stages, which is no interface. `members` read as the consumer group `group` (of
    their own name where none is given), `followers` read everything without one. What clients read is not said: they
    may read all that is not internal.
    """

    name: str
    topic: str
    records: PublishedRecords | None = None
    writers: Sequence[Role] = ()
    members: Sequence[Role] = ()
    group: str | None = None
    followers: Sequence[Role] = ()
    written_by_clients: bool = False


def channels(names: Names) -> list[Channel]:
    """All topics of the registry, in its order, with `ANY_MODEL` for the one served model."""
    return [
        *(channel for lane in LANES for channel in _lane(names, lane)),
        Channel(name="tokens", topic=names.tokens, records=TOKENS, writers=["worker"], followers=["worker"]),
        Channel(name="results", topic=names.results, records=RESULTS, writers=["gate", "worker"], members=["gate"]),
        Channel(name="sessions", topic=names.sessions, records=SESSIONS, writers=["gate"], followers=["gate"]),
        Channel(
            name="control",
            topic=names.control,
            records=CONTROL,
            followers=["gate", "worker"],
            written_by_clients=True,
        ),
        Channel(name="models", topic=names.models, records=MODELS, writers=["worker"]),
        Channel(name="dead-letters", topic=names.dead_letters, records=DEAD_LETTERS, writers=["gate", "worker"]),
    ]


def _lane(names: Names, lane: Lane) -> list[Channel]:
    suffix = "" if lane == "interactive" else f".{lane}"
    return [
        Channel(
            name=f"requests{suffix}",
            topic=names.requests(lane),
            records=REQUESTS,
            # The gate writes again what came to a wrong partition.
            writers=["gate"],
            members=["gate"],
            written_by_clients=True,
        ),
        Channel(name=f"turns{suffix}", topic=names.turns(lane), writers=["gate"], members=["pipeline"]),
        Channel(
            name=f"refusals{suffix}",
            topic=names.refusals(lane),
            writers=["pipeline"],
            members=["worker"],
            group="refusals",
        ),
        Channel(
            name=f"batches{suffix}",
            topic=names.batches(ANY_MODEL, lane),
            writers=["pipeline"],
            members=["worker"],
            group=f"worker.{ANY_MODEL}",
        ),
    ]
