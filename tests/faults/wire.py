"""A wire to a database server that a test can cut: a relay on loopback."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, Self

from sqlalchemy import make_url

from servers import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_CHUNK: Final = 1 << 20


class Wire:
    """Passes on what a client says to a server and what that answers, until it is cut."""

    def __init__(self, host: str, port: int) -> None:
        self._server = host, port
        self.left: int | None = None
        """How many messages of clients still go through; None for all."""
        self.arrives = False
        """Whether the message at which the wire is cut reaches the server, unanswered."""
        self.for_good = False
        """Whether the wire stays cut: later connections end at once."""
        self.was_cut = False
        """Whether it has been cut since it was set."""
        self._tasks: set[asyncio.Task[None]] = set()

    def set(self, left: int) -> None:
        """Lets so many messages through and is cut at the next one."""
        self.left = left
        self.was_cut = False

    def mend(self) -> None:
        """Lets everything through again."""
        self.left = None

    @classmethod
    @asynccontextmanager
    async def to(cls, url: str) -> AsyncIterator[tuple[Self, str]]:
        """Opens a wire to the server of a URL and gives it with the URL of its near end."""
        parsed = make_url(url)
        ports = {"postgresql": 5432, "mysql": 3306}
        wire = cls(parsed.host or "127.0.0.1", parsed.port or ports[parsed.get_backend_name()])
        relay = await asyncio.start_server(wire._relay, "127.0.0.1", 0)
        near = parsed.set(host="127.0.0.1", port=relay.sockets[0].getsockname()[1])
        if parsed.get_backend_name() == "postgresql":  # or the relay could not tell messages
            near = near.update_query_dict({"ssl": "disable"})
        try:
            yield wire, near.render_as_string(hide_password=False)
        finally:
            relay.close()
            for task in wire._tasks:
                task.cancel()
            if wire._tasks:
                await asyncio.wait(wire._tasks)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            if self.left == 0 and self.for_good:
                self.was_cut = True
                return
            far_reader, far_writer = await asyncio.open_connection(*self._server)
            try:
                await self._pass_on(reader, writer, far_reader, far_writer)
            finally:
                far_writer.transport.abort()
        except (ConnectionError, asyncio.CancelledError):
            return
        finally:
            writer.transport.abort()

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        answers = asyncio.ensure_future(_copy(far_reader, writer))
        try:
            while message := await reader.read(_CHUNK):
                is_cut = self.left == 0
                if self.left:
                    self.left -= 1
                if is_cut:
                    answers.cancel()
                    await asyncio.wait([answers])
                    await self._cut(message, far_reader, far_writer)
                    return
                far_writer.write(message)
                await far_writer.drain()
        finally:
            answers.cancel()
            await asyncio.wait([answers])

    async def _cut(
        self,
        message: bytes,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        self.was_cut = True
        if not self.for_good:
            self.mend()
        if self.arrives:
            far_writer.write(message)
            await far_writer.drain()
            async with asyncio.timeout(HANG_SECONDS):
                await far_reader.read(_CHUNK)  # the server has done it


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while answer := await reader.read(_CHUNK):
            writer.write(answer)
            await writer.drain()
    writer.transport.abort()
