"""The whole interface as one AsyncAPI 3.0 document with Kafka bindings: topics, keys, how long they keep, who writes.

Made from the topic registry, so that it cannot tell of a topic that does not exist or be silent about one that does.
Spec: https://www.asyncapi.com/docs/reference/specification/v3.0.0, bindings 0.5.0.
"""

from collections.abc import Iterator
from typing import Any

from schemas.channels import ANY_MODEL, Channel, Role, channels
from schemas.examples import examples_of
from schemas.json_schema import RESULTS, TOKENS, JsonSchema, Kind, definitions, to_json
from schemas.names import Names
from schemas.sessions import ParkedTurn
from schemas.settings import TopicsSettings
from schemas.tokens import Takeover
from schemas.topics import TopicSpec, registry

# Of the interface, not of the package: grows in the middle for new fields, at the front for what breaks readers.
VERSION = "1.0.0"
BINDING_VERSION = "0.5.0"
CONTENT_TYPES = {"json": "application/json", "msgpack": "application/vnd.msgpack"}

_DESCRIPTION = """\
LLM inference that runs on a log. Write a request to `requests`, read its stream from `tokens` and its one terminal \
record from `results`, all three in the partition that the record key decides by Kafka's default partitioner \
(murmur2). docs/clients.md says how, with programs. Topics of MessagePack are between headrace's own stages and no \
interface. Names, counts and times are those of a default installation."""

# Records about no request, or about a part of one, have keys of their own.
_OWN_KEYS: dict[Kind, str] = {Takeover: "the source that was taken over", ParkedTurn: "tenant/session#position"}

_RECORD_HEADERS = {
    "ce_specversion": "CloudEvents: 1.0",
    "ce_type": "CloudEvents: `headrace.` and the kind of record",
    "ce_source": "CloudEvents: the role that wrote it",
    "ce_id": "CloudEvents: the request id",
    "tenant": "The request's tenant",
    "traceparent": "W3C Trace Context of the request",
}
_REQUEST_HEADERS = {
    "traceparent": "W3C Trace Context: carried on to every record of the request",
    "headrace_rerouted_from": "Set by the gate on what came to a wrong partition: topic-partition-offset of the input",
}


def document() -> dict[str, Any]:
    """The AsyncAPI document of a default installation. Raises ValueError if registry and channels differ."""
    names = Names()
    specs = {spec.name: spec for spec in registry(names, TopicsSettings(), [ANY_MODEL])}
    known = channels(names)
    if specs.keys() != {channel.topic for channel in known}:
        differing = specs.keys() ^ {channel.topic for channel in known}
        raise ValueError(f"these are in only one of registry and channels: {', '.join(sorted(differing))}")
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "headrace",
            "version": VERSION,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": CONTENT_TYPES["json"],
        "servers": {
            "compose": {
                "host": "localhost:9092",
                "protocol": "kafka",
                "description": "The broker of docker-compose.yml, as programs on the same machine reach it.",
            }
        },
        "channels": {channel.name: _channel(channel, specs[channel.topic]) for channel in known},
        "operations": {name: made for channel in known for name, made in _operations(channel, names)},
        "components": {"schemas": _schemas(known), "messages": _messages(known, specs)},
    }


def _channel(channel: Channel, spec: TopicSpec) -> dict[str, Any]:
    described = {
        "address": spec.name.replace(ANY_MODEL, "{model}"),
        "title": channel.name,
        "description": f"{spec.holds.replace(ANY_MODEL, 'the model').capitalize()}. Key: {spec.key}.",
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in _message_names(channel)},
        "bindings": {"kafka": _topic_binding(spec)},
    }
    if ANY_MODEL in spec.name:
        described["parameters"] = {"model": {"description": "A served model, as the settings name it."}}
    return described


def _topic_binding(spec: TopicSpec) -> dict[str, Any]:
    # Kafka gives every config as text; the binding wants numbers, and the policy as a list.
    configs = {name: int(text) if text.isdigit() else text for name, text in spec.configs.items()}
    return {
        "partitions": spec.partitions,
        "replicas": spec.replication_factor,
        "topicConfiguration": {**configs, "cleanup.policy": spec.configs["cleanup.policy"].split(",")},
        "bindingVersion": BINDING_VERSION,
    }


def _message_names(channel: Channel) -> list[str]:
    """Messages are named by their kind. Both lanes of a topic carry the same ones."""
    if channel.records is None:
        return [channel.name.split(".")[0]]
    return [kind.__name__ for kind in channel.records.kinds]


def _messages(known: list[Channel], specs: dict[str, TopicSpec]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for channel in known:
        spec = specs[channel.topic]
        if channel.records is None:
            [name] = _message_names(channel)
            internal = {"name": name, "summary": "Between our own stages: no interface."}
            found[name] = internal | _message_base(spec, spec.key, "RecordHeaders")
        else:
            found |= {kind.__name__: _message(kind, channel, spec) for kind in channel.records.kinds}
    return found


def _message(kind: Kind, channel: Channel, spec: TopicSpec) -> dict[str, Any]:
    described = {
        "name": str(kind.__struct_config__.tag),
        "title": kind.__name__,
        "payload": {"$ref": f"#/components/schemas/{kind.__name__}"},
        "examples": [{"payload": to_json(example)} for example in examples_of(kind)],
    }
    return described | _message_base(spec, _OWN_KEYS.get(kind, spec.key), _headers_of(kind, channel))


def _headers_of(kind: Kind, channel: Channel) -> str | None:
    if channel.written_by_clients:
        return "RequestHeaders"
    return "RecordHeaders" if channel.records in (TOKENS, RESULTS) and kind not in _OWN_KEYS else None


def _message_base(spec: TopicSpec, key: str, headers: str | None) -> dict[str, Any]:
    return {
        "contentType": CONTENT_TYPES[spec.format],
        "bindings": {"kafka": {"key": {"type": "string", "description": key}, "bindingVersion": BINDING_VERSION}},
        **({"headers": {"$ref": f"#/components/schemas/{headers}"}} if headers else {}),
    }


def _operations(channel: Channel, names: Names) -> Iterator[tuple[str, dict[str, Any]]]:
    """What each of our roles does with a topic, as AsyncAPI sees it: from the inside."""
    for role in channel.writers:
        yield f"{role}.send.{channel.name}", _operation("send", channel, role)
    for role in channel.followers:
        yield f"{role}.receive.{channel.name}", _operation("receive", channel, role)
    for role in channel.members:
        group = _group(channel, role, names).replace(ANY_MODEL, "{model}")
        binding = {"groupId": {"type": "string", "const": group}, "bindingVersion": BINDING_VERSION}
        yield f"{role}.receive.{channel.name}", _operation("receive", channel, role) | {"bindings": {"kafka": binding}}


def _group(channel: Channel, role: Role, names: Names) -> str:
    """The consumer group in which a role reads a channel."""
    groups = {"gate": names.gate_group, "pipeline": names.pipeline_group, "refusals": names.refusals_group}
    return groups.get(channel.group or role) or names.worker_group(ANY_MODEL)


def _operation(action: str, channel: Channel, role: Role) -> dict[str, Any]:
    return {"action": action, "channel": {"$ref": f"#/channels/{channel.name}"}, "tags": [{"name": role}]}


def _schemas(known: list[Channel]) -> dict[str, JsonSchema]:
    places = list(dict.fromkeys(channel.records for channel in known if channel.records))
    found = {}
    for name, schema in definitions(places, "#/components/schemas/{name}").items():
        # Messages have the examples.
        found[name] = _as_draft_7({keyword: value for keyword, value in schema.items() if keyword != "examples"})
    return {
        **found,
        "RecordHeaders": _headers(_RECORD_HEADERS, required=True),
        "RequestHeaders": _headers(_REQUEST_HEADERS, required=False),
    }


def _headers(described: dict[str, str], *, required: bool) -> JsonSchema:
    properties = {name: {"type": "string", "description": text} for name, text in described.items()}
    return {"type": "object", "properties": properties, **({"required": list(described)} if required else {})}


def _as_draft_7(schema: Any) -> Any:
    """AsyncAPI's own schemas go by draft 7, which says `prefixItems` and `items` as `items` and `additionalItems`."""
    if isinstance(schema, list):
        return [_as_draft_7(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _as_draft_7(item) for name, item in schema.items() if name != "prefixItems"}
    if "prefixItems" in schema:
        found |= {"items": _as_draft_7(schema["prefixItems"]), "additionalItems": schema.get("items", True)}
    return found
