"""All that is fuzzed."""

from tests.fuzz import files, objects, roles, topics
from tests.fuzz.target import Target

TARGETS: list[Target] = [*topics.TARGETS, *roles.TARGETS, *files.TARGETS, *objects.TARGETS]
