"""Configs as the broker has them, of topics and of brokers."""

from collections.abc import Sequence
from typing import Any

from aiokafka.admin.config_resource import ConfigResource
from aiokafka.errors import for_code

from schemas.errors import BrokerUnavailable

_OK = 0


async def read_configs(admin: Any, resources: Sequence[ConfigResource]) -> dict[str, dict[str, str]]:
    """By resource the configs that were asked for and have a value.

    Raises:
        BrokerUnavailable: the broker refuses to tell them.
    """
    found: dict[str, dict[str, str]] = {}
    for response in await admin.describe_configs(list(resources)) if resources else []:
        for code, _, _, name, entries in response.resources:
            if code != _OK:
                raise BrokerUnavailable(f"the configs of {name} cannot be read: {for_code(code).__name__}")
            found[name] = {entry[0]: entry[1] for entry in entries if entry[1] is not None}
    return found
