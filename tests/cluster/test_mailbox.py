"""Orders to workers of Ray Train: one answer each, and those of workers that were lost are known to be lost."""

import asyncio

import pytest

from plaudit.cluster.actors import Mailbox
from plaudit.errors import PartLost, StoreFull


def test_an_order_is_taken_by_its_number_and_answered_once():
    async def story():
        mailbox = Mailbox()
        asked = asyncio.create_task(mailbox.order("step", 20))
        assert await mailbox.next(0) == ("step", (20,))
        await mailbox.done(0, "shift", None)
        await mailbox.done(0, "again", None)  # said twice
        return await asked

    assert asyncio.run(story()) == "shift"


def test_workers_wait_for_the_next_one():
    async def story():
        mailbox = Mailbox()
        waiting = asyncio.create_task(mailbox.next(0))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        asked = asyncio.create_task(mailbox.order("publish"))
        assert await waiting == ("publish", ())
        await mailbox.done(0, None, StoreFull("the disk is full"))
        with pytest.raises(StoreFull):
            await asked

    asyncio.run(story())


def test_what_lost_workers_were_told_is_lost_and_those_that_come_begin_after_it():
    async def story():
        mailbox = Mailbox()
        asked = asyncio.create_task(mailbox.order("step", 20))
        await asyncio.sleep(0)
        assert await mailbox.begin(0, pid=11) == 1
        assert await mailbox.begin(1, pid=12) == 1
        with pytest.raises(PartLost):
            await asked
        assert await mailbox.pids() == [11, 12]

    asyncio.run(story())


def test_the_first_question_waits_for_workers_however_long_they_take():
    async def story():
        mailbox = Mailbox()
        asked = asyncio.create_task(mailbox.order("count"))
        await asyncio.sleep(0)
        assert await mailbox.begin(0, pid=11) == 0
        await mailbox.done(0, 350, None)
        return await asked

    assert asyncio.run(story()) == 350
