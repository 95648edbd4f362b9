"""Epochs: every episode once among all readers, another order each time, and going on where a stopped run was."""

from __future__ import annotations

from itertools import chain, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parlai.agents.ranker.dialogue.history import EARLIER
from parlai.tasks.selection.epochs import Epochs

from polyencoder.data.epochs import Counts, InMemory, Reader, Streamed

READERS = [1, 2, 3]
ALONE = Reader()
KINDS = st.sampled_from(["memory", "streamed"])
MIXED = range(1, 9)  # sizes of the buffer


def episodes_of(lengths):
    """Episodes with so many messages each, `episode.message` as their texts."""
    return [[{"text": f"{e}.{m}"} for m in range(length)] for e, length in enumerate(lengths)]


def make_source(kind: str, episodes, *, buffer: int = 4):
    if kind == "memory":
        return InMemory(iter(episodes))
    third = len(episodes) // 3
    files = {"a": episodes[:third], "b": episodes[third : 2 * third], "c": episodes[2 * third :]}
    return Streamed(lambda name: iter(files[name]), list(files), buffer=buffer, estimate=lambda: Counts(0, 0))


def as_it_is(episode, rng):
    return episode


def make_epochs(source, *, reader=ALONE, seed=7, endless=False, seen=0, slots=1, draw=as_it_is, mix=None):
    return Epochs(source, reader=reader, seed=seed, endless=endless, seen=seen, slots=slots, draw=draw, mix=mix)


def with_dice(episode, rng):
    """An episode as of a task that chooses something anew each time."""
    return [{"text": f"{message['text']} drawn {rng.draw_below(1000)}"} for message in episode]


def flattened(episode, rng):
    """ParlAI's mutator `flatten` does the same: each message becomes a conversation."""
    return [message | {"episode_done": True} for message in episode]


def halved(episode, rng):
    """A mutator that ends a conversation in the middle and begins another one there."""
    ends = {len(episode) // 2 - 1, len(episode) - 1}
    return [message | {"episode_done": number in ends} for number, message in enumerate(episode)]


DRAWS = st.sampled_from([as_it_is, flattened, halved])


def texts(epochs: Epochs, count: int | None = None) -> list[str]:
    """The first messages of the next episodes: `count` of them, or those until the end."""
    episodes = iter(epochs.take, None)
    return [episode[0]["text"] for episode in islice(episodes, count)]


@given(KINDS, st.integers(0, 40), st.sampled_from(READERS), st.integers(1, 50), st.sampled_from([None, 3]))
def test_readers_see_each_episode_once(kind, number, readers, buffer, seed):
    source = make_source(kind, episodes_of([1] * number), buffer=buffer)
    shares = [texts(make_epochs(source, reader=Reader(n, readers), seed=seed)) for n in range(readers)]
    assert sorted(chain(*shares)) == sorted(f"{e}.0" for e in range(number))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


@given(KINDS, st.integers(3, 20), st.sampled_from(READERS))
def test_endless_readers_see_each_episode_once_in_every_epoch(kind, number, readers):
    source = make_source(kind, episodes_of([1] * number))
    shares = [make_epochs(source, reader=Reader(n, readers), endless=True) for n in range(readers)]
    sizes = [len(range(n, number, readers)) for n in range(readers)]
    for _ in range(3):
        seen = [texts(share, size) for share, size in zip(shares, sizes, strict=True)]
        assert sorted(chain(*seen)) == sorted(f"{e}.0" for e in range(number))


@pytest.mark.parametrize("kind", ["memory", "streamed"])
def test_order_is_of_the_seed_and_the_epoch(kind):
    source = make_source(kind, episodes_of([1] * 30))

    def two_epochs(seed):
        epochs = make_epochs(source, seed=seed, endless=True)
        return texts(epochs, 30), texts(epochs, 30)

    first, second = two_epochs(7)
    assert first != second
    assert two_epochs(7) == (first, second)
    assert two_epochs(8)[0] != first
    in_order = texts(make_epochs(source, seed=None))
    assert in_order == [f"{e}.0" for e in range(30)]
    assert in_order not in (first, second)


@pytest.mark.parametrize("kind", ["memory", "streamed"])
def test_end_of_an_epoch(kind):
    epochs = make_epochs(make_source(kind, episodes_of([1] * 5)))
    assert not epochs.over
    first = texts(epochs)
    assert len(first) == 5
    assert epochs.over
    assert epochs.take() is None
    epochs.restart()
    assert not epochs.over
    assert texts(epochs) == first  # evaluation: the same again


def test_over_is_known_with_the_last_episode():
    epochs = make_epochs(make_source("memory", episodes_of([2, 1])), seed=None)
    assert (epochs.take()[0]["text"], epochs.over) == ("0.0", False)
    assert (epochs.take()[0]["text"], epochs.over) == ("1.0", True)


def test_restart_in_the_middle():
    epochs = make_epochs(make_source("memory", episodes_of([1] * 5)), seed=None)
    assert texts(epochs, 2) == ["0.0", "1.0"]
    assert not epochs.over  # has looked at the next one
    epochs.restart()
    assert texts(epochs) == ["0.0", "1.0", "2.0", "3.0", "4.0"]


def test_endless_goes_on_through_a_restart():
    source = make_source("memory", episodes_of([1] * 5))
    undisturbed = texts(make_epochs(source, endless=True), 13)
    epochs = make_epochs(source, endless=True)
    seen = texts(epochs, 4)
    epochs.restart()
    seen += texts(epochs, 9)
    assert seen == undisturbed
    assert not epochs.over
    assert epochs.epoch == 2


@pytest.mark.parametrize("endless", [False, True])
def test_nothing_to_read(endless):
    assert make_epochs(make_source("memory", []), endless=endless).take() is None
    alone = make_epochs(make_source("memory", episodes_of([1])), reader=Reader(1, 2), endless=endless)
    assert alone.take() is None  # the other reader has the only one


@pytest.mark.parametrize("kind", ["memory", "streamed"])
def test_a_resumed_run_draws_what_an_undisturbed_one_does(kind):
    source = make_source(kind, episodes_of([1] * 5))
    undisturbed, resumed = (make_epochs(source, endless=True, draw=with_dice, seen=seen) for seen in (0, 12))
    assert texts(resumed, 8) == texts(undisturbed, 20)[12:]


def side_by_side(epochs: Epochs, slots: int, rounds: int) -> list[list[tuple[str, list[str]]]]:
    """The batches of so many slots: in each round each slot's message, with the earlier texts of its conversation."""
    queues: list[list[tuple[str, list[str]]]] = [[] for _ in range(slots)]
    batches = []
    for _ in range(rounds):
        for queue in queues:
            if not queue:
                earlier_texts: list[str] = []
                for message in epochs.take():
                    earlier_texts += [earlier["text"] for earlier in message.get(EARLIER, ())]
                    queue.append((message["text"], earlier_texts.copy()))
                    earlier_texts.append(message["text"])
        batches.append([queue.pop(0) for queue in queues])
    return batches


@pytest.mark.slow
@given(
    KINDS,
    st.lists(st.integers(1, 4), min_size=1, max_size=8),
    st.sampled_from(READERS),
    st.integers(1, 5),
    st.lists(st.integers(0, 12), min_size=1, max_size=3),
    DRAWS,
    st.sampled_from([None, *MIXED]),
)
def test_conversations_go_on_where_each_of_a_batch_was(kind, lengths, readers, slots, stops, draw, mix):
    """In the middle of them, each slot at another place of its own; also when it is stopped again."""
    source = make_source(kind, episodes_of(lengths))
    for number in range(min(readers, len(lengths))):
        options = {"reader": Reader(number, readers), "endless": True, "draw": draw, "mix": mix}
        undisturbed = side_by_side(make_epochs(source, **options), slots, sum(stops) + 10)
        seen = 0
        for stop in stops:
            seen += stop
            resumed = make_epochs(source, seen=seen * slots, slots=slots, **options)
            assert side_by_side(resumed, slots, 10) == undisturbed[seen : seen + 10]


# ---- what mutators have made of conversations


@given(KINDS, st.lists(st.integers(1, 5), max_size=12), st.sampled_from(READERS), DRAWS, st.sampled_from(MIXED))
def test_mixing_gives_each_example_once_in_every_epoch(kind, lengths, readers, draw, mix):
    source = make_source(kind, episodes_of(lengths))
    seen: list[list[str]] = [[], [], []]
    for number in range(min(readers, len(lengths))):
        epochs = make_epochs(source, reader=Reader(number, readers), endless=True, draw=draw, mix=mix)
        while (episode := epochs.take()) and epochs.epoch < len(seen):
            seen[epochs.epoch] += [message["text"] for message in episode]
    expected = sorted(message["text"] for episode in episodes_of(lengths) for message in episode)
    assert [sorted(epoch) for epoch in seen] == [expected] * 3


@pytest.mark.parametrize("kind", ["memory", "streamed"])
def test_turns_are_mixed_from_the_first_batch_on(kind):
    """And to the last batch; without mixing a slot takes one conversation after another."""
    source = make_source(kind, episodes_of([8] * 200), buffer=50)

    def first_batches(mix):
        epochs = make_epochs(source, draw=flattened, mix=mix, endless=True)
        batches = [[text for text, _ in batch] for batch in side_by_side(epochs, 40, 40)]
        return [[text.split(".") for text in batch] for batch in batches]

    for batch in first_batches(400):
        assert len({turn for _, turn in batch}) >= 6
        assert len({dialogue for dialogue, _ in batch}) >= 8  # of the 10 that the first batch is drawn from
    assert all(len({turn for _, turn in batch}) == 1 for batch in first_batches(None))


def test_mixing_keeps_a_conversation_together():
    epochs = make_epochs(make_source("memory", episodes_of([4] * 30)), draw=halved, mix=20)
    episodes = [[message["text"] for message in episode] for episode in iter(epochs.take, None)]
    halves = [[f"{e}.{m}" for m in half] for e in range(30) for half in [(0, 1), (2, 3)]]
    assert episodes != halves
    assert sorted(episodes) == sorted(halves)


def test_mixed_order_is_of_the_seed_and_the_epoch():
    source = make_source("memory", episodes_of([30]))  # alone: all of the order is that of mixing

    def two_epochs(seed):
        epochs = make_epochs(source, seed=seed, endless=True, draw=flattened, mix=12)
        return texts(epochs, 30), texts(epochs, 30)

    first, second = two_epochs(7)
    assert first != second
    assert two_epochs(7) == (first, second)
    assert two_epochs(8)[0] != first


@given(KINDS, st.lists(st.integers(1, 4), min_size=1, max_size=8), DRAWS)
def test_without_a_seed_nothing_is_mixed(kind, lengths, draw):
    source = make_source(kind, episodes_of(lengths))
    in_order = [[message["text"] for message in episode] for episode in episodes_of(lengths)]
    epochs = make_epochs(source, seed=None, draw=draw, mix=5)
    assert [[message["text"] for message in epochs.take()] for _ in lengths] == in_order
    assert epochs.over


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        ("memory", [3, 0, 1, 7, 8, 5, 6, 4, 2, 1, 2, 5, 4, 7, 6, 3, 8, 0]),
        ("streamed", [4, 0, 3, 2, 1, 6, 8, 7, 5, 0, 2, 3, 4, 7, 1, 5, 6, 8]),
    ],
)
def test_order_without_mutators_stays(kind, order):
    """Fixed values: a run that another version has begun goes on in its order."""
    epochs = make_epochs(make_source(kind, episodes_of([2] * 9)), endless=True)
    assert texts(epochs, 18) == [f"{e}.0" for e in order]


# ---- what is drawn


@pytest.mark.parametrize("readers", READERS)
def test_what_is_drawn_does_not_depend_on_the_number_of_readers(readers):
    """Evaluation gives the same numbers in however many processes it runs."""
    source = make_source("memory", episodes_of([1] * 10))
    alone = texts(make_epochs(source, seed=None, draw=with_dice))
    assert len({text.split()[-1] for text in alone}) > 5
    shares = [texts(make_epochs(source, seed=None, reader=Reader(n, readers), draw=with_dice)) for n in range(readers)]
    assert sorted(chain(*shares)) == sorted(alone)


def test_another_draw_each_epoch():
    epochs = make_epochs(make_source("memory", episodes_of([1] * 8)), endless=True, draw=with_dice)
    assert len(set(texts(epochs, 24))) > 20  # of 8 texts, with 1,000 draws each
