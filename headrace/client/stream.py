"""A token stream as a caller holds it: an async iterator of deltas that knows its result in the end."""

from collections.abc import AsyncGenerator
from types import TracebackType

from headrace.client.delta import Delta
from schemas.errors import RequestFailed
from schemas.results import Result


class Outcome:
    """Where the generator behind a stream leaves the result. Apart from both, so that neither holds the other."""

    def __init__(self) -> None:
        self.result: Result | None = None


class TokenStream:
    """Deltas of one request, each as soon as it is in the log. Nothing is sent before the first one is asked for.

    Iterating ends behind the last delta, also where the request was cancelled: `result.status` tells. If it failed or
    expired, iterating ends in RequestFailed, also after the deltas that there were. `result` is known in all cases. A
    stream that is left early is closed by `aclose`, by leaving an `async with` block, or when nothing refers to it any
    more; the request itself runs on until it ends or is cancelled (`Client.cancel`).

    Iterating raises:
        RequestFailed: it ended failed or expired.
        NoAnswer: nothing was heard for too long.
        BrokerUnavailable: the broker is away.
    """

    def __init__(self, request_id: str, deltas: AsyncGenerator[Delta, None], outcome: Outcome) -> None:
        self.request_id = request_id
        self._deltas = deltas
        self._outcome = outcome

    @property
    def result(self) -> Result | None:
        """The terminal record; None until the stream has ended."""
        return self._outcome.result

    def __aiter__(self) -> "TokenStream":
        return self

    async def __anext__(self) -> Delta:
        return await anext(self._deltas)

    async def read(self) -> Result:
        """Read what is left of the stream and give its result. Raises what iterating raises.

        RequestFailed also where it was cancelled: there is no whole answer then.
        """
        async for _ in self:
            pass
        if self.result is None:
            raise RuntimeError(f"the stream of {self.request_id} was closed before it ended")
        if self.result.status != "completed":
            raise RequestFailed(self.result)
        return self.result

    async def aclose(self) -> None:
        """Stop reading; safe to call twice."""
        await self._deltas.aclose()

    async def __aenter__(self) -> "TokenStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
