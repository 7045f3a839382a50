"""Every name on the broker and in the bucket, from one function of namespace and generation.

Partition counts never change: growth means a new generation, which is a new prefix, and a drain of the old one.
"""

import re
from typing import Literal

import msgspec

from schemas.errors import SettingsError

Lane = Literal["interactive", "bulk"]
LANES: tuple[Lane, ...] = ("interactive", "bulk")

# Kafka allows these characters in a topic's name; a model's name becomes part of one.
_TOPIC_PART = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$(?!\n)")

# The topic for refusals of requests whose model nobody knows. No model may have this name.
NO_MODEL = "none"


class Names(msgspec.Struct, frozen=True):
    """Names of topics, groups, transactional ids and bucket prefixes of one namespace and generation."""

    namespace: str = "headrace"
    generation: int = 1

    def __post_init__(self) -> None:
        if not _TOPIC_PART.match(self.namespace):
            raise SettingsError(f"namespace {self.namespace!r}: use letters, digits and . _ - (at most 100)")

    @property
    def prefix(self) -> str:
        """What every name starts with."""
        return self.namespace if self.generation == 1 else f"{self.namespace}.g{self.generation}"

    def requests(self, lane: Lane = "interactive") -> str:
        """Topic of what clients ask."""
        return self._lane("requests", lane)

    def turns(self, lane: Lane = "interactive") -> str:
        """Topic of admitted requests, from gate to pipeline."""
        return self._lane("turns", lane)

    def batches(self, model: str, lane: Lane = "interactive") -> str:
        """Topic of token ids for the workers of one model."""
        check_model_name(model)
        return self._lane(f"batches.{model}", lane)

    def refusals(self, lane: Lane = "interactive") -> str:
        """Topic of refusals for which no model is known; a worker of any model ends them."""
        return self._lane(f"batches.{NO_MODEL}", lane)

    @property
    def tokens(self) -> str:
        """Topic of deltas and marks: the journal."""
        return f"{self.prefix}.tokens"

    @property
    def results(self) -> str:
        """Topic of terminal records."""
        return f"{self.prefix}.results"

    @property
    def sessions(self) -> str:
        """Compacted topic of session states."""
        return f"{self.prefix}.sessions"

    @property
    def control(self) -> str:
        """Topic of cancellations."""
        return f"{self.prefix}.control"

    @property
    def models(self) -> str:
        """Compacted topic of the models that are served."""
        return f"{self.prefix}.models"

    @property
    def dead_letters(self) -> str:
        """Topic of records that could not be processed, whole."""
        return f"{self.prefix}.dead-letters"

    @property
    def gate_group(self) -> str:
        """Consumer group of the gates."""
        return f"{self.prefix}.gate"

    @property
    def pipeline_group(self) -> str:
        """Consumer group of the pipelines."""
        return f"{self.prefix}.pipeline"

    def worker_group(self, model: str) -> str:
        """Consumer group of the workers of one model."""
        return f"{self.prefix}.worker.{model}"

    @property
    def refusals_group(self) -> str:
        """Consumer group that ends refusals for which no model is known: the workers of all models share it."""
        return f"{self.prefix}.refusals"

    def transactional_id(self, group: str, topic: str, partition: int) -> str:
        """Id that fences all earlier owners of one input partition. It holds group, topic and partition.

        Two that shared an id would fence each other for ever.
        """
        return f"{group}.{topic}.{partition}"

    def object_key(self, key: str) -> str:
        """Full key of an object in the bucket."""
        return f"{self.prefix}/{key}"

    def _lane(self, topic: str, lane: Lane) -> str:
        return f"{self.prefix}.{topic}" if lane == "interactive" else f"{self.prefix}.{topic}.bulk"


def lane_of(topic: str) -> Lane:
    """The lane that a topic of the request's way belongs to."""
    return "bulk" if topic.endswith(".bulk") else "interactive"


def check_model_name(model: str) -> None:
    """Refuse a model name that cannot be part of a topic name.

    Raises:
        SettingsError: it has other characters, is reserved, or would look like a lane.
    """
    if not _TOPIC_PART.match(model) or model == NO_MODEL or model.endswith(".bulk"):
        raise SettingsError(
            f"model name {model!r} cannot be used: letters, digits and . _ - only (at most 100), "
            f"not {NO_MODEL!r}, not ending in '.bulk'"
        )
