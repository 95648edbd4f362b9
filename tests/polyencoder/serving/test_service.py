"""A call that concurrent requests share, and that may hang."""

from __future__ import annotations

import asyncio

import pytest

from polyencoder.errors import PolyencoderError
from polyencoder.serving.service import SharedCall
from tests.polyencoder.serving.conftest import SECONDS, HeldCall


def test_requests_that_come_together_share_one_call():
    call = HeldCall()

    async def ask() -> list[int]:
        shared = SharedCall(call, seconds=SECONDS)
        waiting = [asyncio.ensure_future(shared()) for _ in range(5)]
        await asyncio.sleep(0)  # all have begun to wait
        call.release.set()
        return [*await asyncio.gather(*waiting), await shared()]

    assert asyncio.run(ask()) == [1, 1, 1, 1, 1, 2]


def test_whoever_stops_waiting_takes_the_result_from_no_other():
    call = HeldCall()

    async def ask() -> int:
        shared = SharedCall(call, seconds=SECONDS)
        first, second = (asyncio.ensure_future(shared()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        call.release.set()
        return await second

    assert asyncio.run(ask()) == call.count == 1


def test_a_call_that_hangs_is_an_error_and_made_once():
    call = HeldCall()

    async def ask() -> int:
        shared = SharedCall(call, seconds=0.05)
        for _ in range(3):
            with pytest.raises(PolyencoderError, match=r"has not answered within 0.05 seconds"):
                await shared()
        assert call.count == 1
        call.release.set()
        while not shared._result.done():
            await asyncio.sleep(0.001)
        return await SharedCall(call, seconds=SECONDS)()

    assert asyncio.run(ask()) == 2


def test_an_error_of_the_call_is_that_of_each_request():
    def broken() -> None:
        raise KeyError("gone")

    async def ask() -> list[BaseException]:
        shared = SharedCall(broken, seconds=SECONDS)
        return await asyncio.gather(shared(), shared(), return_exceptions=True)

    assert [repr(error) for error in asyncio.run(ask())] == ["KeyError('gone')"] * 2
