"""Why nobody answers: which roles have no process, asked of the broker when a request was waited for in vain."""

from typing import Any

from aiokafka.errors import GroupCoordinatorNotAvailableError

from headrace.groups import role_groups
from runtime.broker import broker_errors
from runtime.kafka import make_admin, running
from schemas.names import Names
from schemas.settings import KafkaSettings

# Place of `members` in one group of a DescribeGroups response, all versions.
_MEMBERS = 5


async def missing_roles(kafka: KafkaSettings, names: Names, model: str) -> list[str]:
    """The roles of a request's way whose group has no member, as `serve` names them.

    Raises:
        BrokerUnavailable: it is the broker that does not answer.
    """
    with broker_errors(kafka):
        async with running(make_admin(kafka)) as admin:
            groups = role_groups(names, [model])
            missing = [group.role for group in groups if not await _has_members(admin, group.name)]
            return list(dict.fromkeys(missing))


async def _has_members(admin: Any, group: str) -> bool:
    try:
        responses = await admin.describe_consumer_groups([group])
    except GroupCoordinatorNotAvailableError:
        return False  # no group was ever formed on this broker
    return any(described[_MEMBERS] for response in responses for described in response.groups)


def explain(missing: list[str]) -> str:
    """The sentence for people."""
    if not missing:
        return "gate, pipeline and worker are running, so it may still wait in a queue"
    commands = ", ".join(f"`headrace serve {role}`" for role in missing)
    return f"no {' and no '.join(missing)} is running: start {commands}, or all with `headrace up`"
