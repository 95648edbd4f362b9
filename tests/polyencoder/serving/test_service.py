"""A call that concurrent requests share, and that may hang."""

from __future__ import annotations

import asyncio
import threading

import pytest

from polyencoder.errors import PolyencoderError
from polyencoder.serving.service import SharedCall

LONG = 60.0


class Call:
    """A call that lasts until it is let go, then says how often it was made."""

    def __init__(self) -> None:
        self.made, self.go = 0, threading.Event()

    def __call__(self) -> int:
        self.made += 1
        assert self.go.wait(LONG)
        return self.made


def test_requests_that_come_together_share_one_call():
    call = Call()

    async def ask() -> list[int]:
        shared = SharedCall(call, seconds=LONG)
        waiting = [asyncio.ensure_future(shared()) for _ in range(5)]
        await asyncio.sleep(0)  # all have begun to wait
        call.go.set()
        return [*await asyncio.gather(*waiting), await shared()]

    assert asyncio.run(ask()) == [1, 1, 1, 1, 1, 2]


def test_whoever_stops_waiting_takes_the_result_from_no_other():
    call = Call()

    async def ask() -> int:
        shared = SharedCall(call, seconds=LONG)
        first, second = (asyncio.ensure_future(shared()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        call.go.set()
        return await second

    assert asyncio.run(ask()) == call.made == 1


def test_a_call_that_hangs_is_an_error_and_made_once():
    call = Call()

    async def ask() -> int:
        shared = SharedCall(call, seconds=0.05)
        for _ in range(3):
            with pytest.raises(PolyencoderError, match=r"has not answered within 0.05 seconds"):
                await shared()
        assert call.made == 1
        call.go.set()
        while not shared._result.done():
            await asyncio.sleep(0.001)
        return await SharedCall(call, seconds=LONG)()

    assert asyncio.run(ask()) == 2


def test_an_error_of_the_call_is_that_of_each_request():
    def broken() -> None:
        raise KeyError("gone")

    async def ask() -> list[BaseException]:
        shared = SharedCall(broken, seconds=LONG)
        return await asyncio.gather(shared(), shared(), return_exceptions=True)

    assert [repr(error) for error in asyncio.run(ask())] == ["KeyError('gone')"] * 2
