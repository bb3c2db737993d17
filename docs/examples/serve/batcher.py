"""Collect the texts of concurrent requests and embed them together."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Batcher", "BusyError"]


class BusyError(Exception):
    """As many texts wait as may wait, or the server is stopping."""


@dataclass(eq=False)
class _Request:
    texts: list[str]
    arrived: float
    answer: asyncio.Future = field(repr=False)


class Batcher:
    """Embeds the texts of concurrent requests together, in a thread of its own: the event loop stays free.

    Parameters
    ----------
    encode : callable
        Takes a list of texts and returns an array with a row for each.
    batch_size : int
        Texts to embed at once. Only a single request with more makes a larger batch.
    wait : float
        Seconds that a request waits for others to fill its batch, if the thread is idle.
    capacity : int
        The most texts that may wait. A request that finds no room is refused, unless nothing waits.

    Attributes
    ----------
    waiting, texts, batches : int
        Texts that wait; texts and batches embedded so far.
    """

    def __init__(
        self,
        encode: Callable[[list[str]], np.ndarray],
        *,
        batch_size: int = 32,
        wait: float = 0.003,
        capacity: int = 512,
    ) -> None:
        self.batch_size, self.wait, self.capacity = batch_size, wait, capacity
        self.waiting = self.texts = self.batches = 0
        self._encode = encode
        self._requests: deque[_Request] = deque()
        self._changed = asyncio.Event()
        self._closing = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self._task: asyncio.Task | None = None

    @property
    def running(self) -> bool:
        """Whether requests are taken."""
        return self._task is not None and not self._task.done() and not self._closing

    def start(self) -> None:
        """Begin to embed. Call it in the event loop of the requests."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Take no more requests, embed what waits, end the thread."""
        self._closing = True
        self._changed.set()
        if self._task is not None:
            await self._task
        self._thread.shutdown()

    async def __call__(self, texts: list[str]) -> np.ndarray:
        """Return the embeddings of the texts of one request.

        Raises
        ------
        BusyError
            There is no room for the request.
        ValueError
            `encode` does not take one of its texts.
        """
        full = self.waiting > 0 and self.waiting + len(texts) > self.capacity
        if full or not self.running:
            raise BusyError
        loop = asyncio.get_running_loop()
        request = _Request(texts, loop.time(), loop.create_future())
        self._requests.append(request)
        self.waiting += len(texts)
        self._changed.set()
        return await request.answer

    async def _run(self) -> None:
        while True:
            while not self._requests:
                if self._closing:
                    return
                await self._change()
            await self._fill()
            await self._embed(self._next_batch())

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _fill(self) -> None:
        """Wait until a batch is full, or the first request has waited long enough."""
        try:
            async with asyncio.timeout_at(self._requests[0].arrived + self.wait):
                while self.waiting < self.batch_size and not self._closing:
                    await self._change()
        except TimeoutError:
            pass

    def _next_batch(self) -> list[_Request]:
        """Take requests from the queue, the oldest first, as many as fit into a batch, but at least one."""
        batch, size = [], 0
        while self._requests and (not batch or size + len(self._requests[0].texts) <= self.batch_size):
            request = self._requests.popleft()
            self.waiting -= len(request.texts)
            if not request.answer.done():  # nobody waits for an answer that was cancelled
                batch.append(request)
                size += len(request.texts)
        return batch

    async def _embed(self, batch: list[_Request]) -> None:
        texts = [text for request in batch for text in request.texts]
        try:
            rows = await asyncio.get_running_loop().run_in_executor(self._thread, self._encode, texts)
        except Exception as error:
            if isinstance(error, ValueError) and len(batch) > 1:
                for request in batch:  # only the request whose text is wrong may fail
                    await self._embed([request])
                return
            for request in batch:
                if not request.answer.done():
                    request.answer.set_exception(error)
            return
        self.texts += len(texts)
        self.batches += 1
        for request in batch:
            if not request.answer.done():
                request.answer.set_result(rows[: len(request.texts)])
            rows = rows[len(request.texts) :]
