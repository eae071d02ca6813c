"""``Service``: generation for many requests that come and go, their tokens as asynchronous streams.

    async with deepwell.serve.Service(engine, rows=32) as service:
        async for event in service.submit(ids, 64, temperature=0.7):
            print(event.id)

Ids go in and out; words are the caller's. The runs are in a thread of the library's own. Python is woken once for each run that made something, and takes all its events in one call.
"""
from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, AsyncIterator

from . import _core


@dataclass(frozen=True)
class Event:
    """A token, the end of a text, or both. end: None while more will come; LENGTH, STOP, CANCELLED, DEADLINE, MASK, FAULT (then message says why) or STOPPED."""
    request: int
    id: int | None
    index: int
    end: str | None
    logprob: float | None
    top: list[tuple[int, float]]
    cached: int
    message: str | None


class Stream:
    """The events of one request, in order; ends after the one that ends the text."""

    def __init__(self, service: Service, request: int) -> None:
        self.request, self._service = request, service
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._ended = False

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._ended:
            raise StopAsyncIteration
        event = await self._events.get()
        self._ended = event.end is not None
        return event

    def cancel(self) -> None:
        """The text ends; its pages are free before the next run. Does nothing when it has ended."""
        self._service.cancel(self)


class Service:
    """Requests for one engine. rows: texts at work at a time; run_tokens: the most new tokens of a run; context: tokens that a text may have; cache_bytes and page_tokens: of the cache;
    queue: requests that are known at most; share=False: no text reads what another one brought into the cache; lookahead=False: on a GPU no run is
    started before the ids of the one in front of it are here; times_device=True: the facts say how long a GPU works (`device_s`); dims: the largest sizes of an encoder's inputs, "enc=512". 0 stands for the usual
    (include/deepwell/serve.h). Weights are updated while it is closed. Used from one event loop.

    Of an engine that is cut over ranks (``compile(.., mesh=)``) every rank makes one. The rank that leads uses it; the others call ``follow``."""

    def __init__(self, engine: Any, *, rows: int = 0, run_tokens: int = 0, context: int = 0, page_tokens: int = 0, cache_bytes: int = 0, queue: int = 0, share: bool = True,
                 lookahead: bool = True, times_device: bool = False, dims: str | None = None) -> None:
        self._core = _core.Service(engine._generation_model(), rows=rows, run_tokens=run_tokens, context=context, page_tokens=page_tokens, cache_bytes=cache_bytes, queue=queue,
                                   share=share, lookahead=lookahead, times_device=times_device, dims=dims)
        self._streams: dict[int, Stream] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def leads(self) -> bool:
        """Does this rank take requests? The others follow it. Alone it does."""
        return self._core.leads

    def follow(self) -> None:
        """On a rank that does not lead: takes part in the runs of the one that does, and returns when that one closes its service. Raises Lost when a rank is gone."""
        self._core.follow()

    async def __aenter__(self) -> Service:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._core.fileno(), self._take)
        self._core.start()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self.close()

    async def close(self, drain_s: float = 0) -> None:
        """No more requests; those that are there get so many seconds, the rest ends with STOPPED."""
        if self._loop is None:
            return
        loop, self._loop = self._loop, None
        await loop.run_in_executor(None, self._core.stop, drain_s)
        loop.remove_reader(self._core.fileno())
        self._take()

    def submit(self, ids: Any, tokens: int, **how: Any) -> Stream:
        """A stream of what continues ids, at most so many tokens. how: temperature, top_k, top_p, min_p, repetition, presence, frequency, seed, stop_ids, bias ({id: number}), logprobs,
        top_logprobs, priority, deadline_s, salt, inputs (by name, an encoder's), and mask.

        mask(last_id, bits) says which ids may be next: id i is bit i % 32 of bits[i // 32], words of 32 bits that are all set when it is called, numpy.asarray(bits) for many. last_id is the token
        before, None in front of the first. A true answer, an exception or no bit left ends the text with MASK. It is called once for each token, in the service's thread, and calls nothing of the service.

        Raises Invalid or Limit with the reason; nobody else notices."""
        stream = Stream(self, self._core.submit(ids, tokens, **how))
        self._streams[stream.request] = stream
        return stream

    def cancel(self, stream: Stream) -> None:
        if stream.request in self._streams:
            self._core.cancel(stream.request)

    def facts(self) -> dict[str, Any]:
        """Texts that wait and run, pages, prefix hits, preemptions, tokens, times of runs."""
        return json.loads(self._core.facts())

    def _take(self) -> None:
        for fields in self._core.poll():
            event = Event(*fields)
            stream = self._streams.get(event.request) if event.end is None else self._streams.pop(event.request, None)
            if stream is not None:
                stream._events.put_nowait(event)
