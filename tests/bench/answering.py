"""A server that answers every request with the same bytes, in the pieces it is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from paged_jax.bench.client import Endpoint


@asynccontextmanager
async def answering(
    *chunks: bytes, status: str = "200 OK", is_chunked: bool = True
) -> AsyncIterator[Endpoint]:
    """Yield where it listens."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        coding = "Transfer-Encoding: chunked\r\n" if is_chunked else ""
        writer.write(f"HTTP/1.1 {status}\r\n{coding}\r\n".encode())
        for chunk in chunks:
            writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk) if is_chunked else chunk)
            await writer.drain()
        writer.write(b"0\r\n\r\n" if is_chunked else b"")
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        yield Endpoint(host, port)
