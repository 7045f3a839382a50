"""The consumer groups of the roles: which topics each works off, for what only looks on from outside."""

from collections.abc import Iterable
from typing import NamedTuple

from schemas.names import LANES, Names


class RoleGroup(NamedTuple):
    """One group, the role whose processes are its members (as `serve` names it), and the topics it works off."""

    role: str
    name: str
    topics: tuple[str, ...]


def role_groups(names: Names, models: Iterable[str]) -> list[RoleGroup]:
    """All groups, in the order of a request's way."""
    return [
        RoleGroup("gate", names.gate_group, (*map(names.requests, LANES), names.results)),
        RoleGroup("pipeline", names.pipeline_group, tuple(map(names.turns, LANES))),
        *worker_groups(names, models),
    ]


def worker_groups(names: Names, models: Iterable[str]) -> list[RoleGroup]:
    """The groups of the workers: one a model, and one for refusals, which workers of all models share."""
    return [
        *(
            RoleGroup("worker", names.worker_group(model), tuple(names.batches(model, lane) for lane in LANES))
            for model in models
        ),
        RoleGroup("worker", names.refusals_group, tuple(map(names.refusals, LANES))),
    ]
