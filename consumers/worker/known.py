"""The ids that the owner of one partition runs or has ended: a repeat of one of them is a duplicate."""

from collections import OrderedDict

from consumers.journal import RequestIdentity
from consumers.worker.request import RunningRequest
from consumers.worker.takeover import DEDUP_WINDOW_MS, Gone, Running


class KnownRequests:
    """What became of the ids of this tenure. Ended ones are remembered for as long as a repeat is a duplicate."""

    def __init__(self) -> None:
        self._running: dict[RequestIdentity, RunningRequest] = {}
        self._gone: OrderedDict[RequestIdentity, Gone] = OrderedDict()

    @property
    def running(self) -> list[RunningRequest]:
        """The requests that run."""
        return list(self._running.values())

    def find(self, identity: RequestIdentity) -> Running | Gone | None:
        """What this owner knows of an id."""
        running = self._running.get(identity)
        return Running(running.input_offset) if running is not None else self._gone.get(identity)

    def running_one(self, identity: RequestIdentity) -> RunningRequest | None:
        """The request, if it runs."""
        return self._running.get(identity)

    def begin(self, request: RunningRequest) -> None:
        """It runs from now on."""
        self._running[request.identity] = request

    def end(self, request: RunningRequest, *, result_offset: int, now_ms: int) -> None:
        """It runs no more; its result stands at an offset of `results`. `now_ms` is broker time."""
        del self._running[request.identity]
        self._gone[request.identity] = Gone(request.input_offset, result_offset, now_ms)
        while next(iter(self._gone.values())).ended_at_ms < now_ms - DEDUP_WINDOW_MS:
            self._gone.popitem(last=False)
