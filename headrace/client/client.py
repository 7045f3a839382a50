"""The client: requests in, token streams out, over one producer and one shared reader."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import datetime
from types import TracebackType
from typing import Unpack

import msgspec

from headrace.client.absence import why_absent
from headrace.client.assembly import Assembly
from headrace.client.cancel import encode_cancel
from headrace.client.delta import Delta
from headrace.client.inbox import Inbox
from headrace.client.link import Link, connected
from headrace.client.messages import Messages, OutgoingRequest, RequestOptions, encode_chat, new_request_id
from headrace.client.origins import find_origin
from headrace.client.reader import Origin
from headrace.client.stream import Outcome, TokenStream
from headrace.settings import resolve_settings
from runtime.kafka import partition_for
from schemas.envelope import DEFAULT_TENANT
from schemas.errors import HeadraceError, NoAnswer
from schemas.results import Result
from schemas.settings import Settings

DEFAULT_TIMEOUT_S = 120.0


class Client:
    """Talks to headrace over Kafka. Used as `async with Client() as client`; one serves any number of streams.

    Without `settings` they are loaded as the commands load them: file, environment, the running local stack.
    `timeout_s` is the longest silence of a stream that is waited for, before its first delta and between two.

    Entering raises:
        SettingsError: there is no broker to ask, its topics are missing, or it refuses us.
        BrokerUnavailable: the broker does not answer.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        bootstrap_servers: str | None = None,
        namespace: str | None = None,
        tenant: str = DEFAULT_TENANT,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._settings = _settings(settings, bootstrap_servers, namespace)
        self._tenant = tenant
        self._timeout_s = timeout_s
        self._resources = AsyncExitStack()
        self._link: Link | None = None

    async def __aenter__(self) -> "Client":
        async with AsyncExitStack() as resources:
            self._link = await resources.enter_async_context(connected(self._settings))
            self._resources = resources.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link = None
        await self._resources.aclose()

    def stream(
        self,
        messages: Messages,
        *,
        session: str | None = None,
        model: str | None = None,
        request_id: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[RequestOptions],
    ) -> TokenStream:
        """Ask, and read the answer as it is made. A text is one message of the user.

        In a session, `messages` are those of this turn only: the session remembers the rest. `model` defaults to the
        one that the settings serve.

        Raises:
            InvalidValue: a message or an option has a wrong type or value.
        """
        request = encode_chat(
            messages,
            model=model or self._settings.worker.model,
            tenant=self._tenant,
            session=session,
            request_id=request_id or new_request_id(),
            options=options,
        )
        outcome = Outcome()
        deltas = _ask(self._connected, request, outcome, timeout_s or self._timeout_s)
        return TokenStream(request.request_id, deltas, outcome)

    async def complete(
        self,
        messages: Messages,
        *,
        session: str | None = None,
        model: str | None = None,
        request_id: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[RequestOptions],
    ) -> Result:
        """Ask, and wait for the whole answer. Arguments and errors are those of `stream` and of iterating it."""
        stream = self.stream(
            messages, session=session, model=model, request_id=request_id, timeout_s=timeout_s, **options
        )
        async with stream:
            return await stream.read()

    async def cancel(self, request_id: str, *, session: str | None = None, reason: str | None = None) -> None:
        """Ask that a request stop. The asking is durable when this returns, and holds for a request still to come.

        The request ends as cancelled and keeps what it has said; one that has ended by itself stays as it is. Which of
        both its result tells (`stream`, `tail`). A request of a session is meant with `session` only.

        Raises:
            InvalidValue: these can be no request's.
            BrokerUnavailable: the broker is away.
        """
        await self._connected.send_cancel(
            encode_cancel(request_id, tenant=self._tenant, session=session, reason=reason)
        )

    def tail(
        self,
        request_id: str,
        *,
        from_index: int = 0,
        session: str | None = None,
        since: datetime | None = None,
        timeout_s: float | None = None,
    ) -> TokenStream:
        """Read the stream of a request again, or from the middle, also of one that finished long ago.

        A request of a session is found with `session` only. `since` says where to begin to look for an id that tells
        no time (ours do: they are UUIDv7); without it all that is kept is read. The first delta may begin before
        `from_index`, since its text cannot be cut.
        """
        outcome = Outcome()
        inbox = Inbox(
            Assembly(request_id, from_index=from_index), key=(session or request_id).encode(), tenant=self._tenant
        )
        search = _Search(request_id=request_id, session=session, since=since)
        return TokenStream(
            request_id, _read_again(self._connected, inbox, search, outcome, timeout_s or self._timeout_s), outcome
        )

    @property
    def _connected(self) -> Link:
        if self._link is None:
            raise HeadraceError("the client is not connected: use it as `async with Client() as client:`")
        return self._link


class _Search(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    session: str | None
    since: datetime | None


def _settings(settings: Settings | None, bootstrap_servers: str | None, namespace: str | None) -> Settings:
    if settings is None:
        overrides = [f"kafka.bootstrap_servers={bootstrap_servers}"] if bootstrap_servers else []
        settings = resolve_settings(overrides=overrides).settings
    if bootstrap_servers is not None:
        kafka = msgspec.structs.replace(settings.kafka, bootstrap_servers=bootstrap_servers)
        settings = msgspec.structs.replace(settings, kafka=kafka)
    if namespace is not None:
        settings = msgspec.structs.replace(
            settings, topics=msgspec.structs.replace(settings.topics, namespace=namespace)
        )
    return settings


# The generators below are functions and no methods: they hold neither client nor stream, so that a stream which is
# left in the middle is closed as soon as nothing refers to it.


async def _ask(link: Link, request: OutgoingRequest, outcome: Outcome, timeout_s: float) -> AsyncGenerator[Delta, None]:
    partition = partition_for(request.key, link.scout.num_partitions)
    inbox = Inbox(Assembly(request.request_id), key=request.key, tenant=request.tenant)
    async with link.reader.follow(inbox, Origin(partition)):
        await link.send(request, partition)
        while (delta := await link.next_delta(inbox, outcome, timeout_s)) is not None:
            yield delta


async def _read_again(
    link: Link, inbox: Inbox, search: _Search, outcome: Outcome, timeout_s: float
) -> AsyncGenerator[Delta, None]:
    origin = await find_origin(link.scout, link.names, search.request_id, session=search.session, since=search.since)
    # A reader of its own: the shared one stands at the end of the log.
    async with link.open_reader() as reader, reader.follow(inbox, origin):
        try:
            while (delta := await link.next_delta(inbox, outcome, timeout_s)) is not None:
                yield delta
        except NoAnswer:
            absent = await why_absent(
                link.scout, origin.partition, search.request_id, session=search.session, since=search.since
            )
            if absent is None:
                raise
            heard = f"nothing was heard of request {search.request_id} for {timeout_s:g} s"
            raise NoAnswer(f"{heard}; {absent}") from None
