from __future__ import annotations

from cachewise_engine_hook.block_groups import Group, Groups
from cachewise_engine_hook.room import Room
from hypothesis import given
from hypothesis import strategies as st


def room_of(free_blocks: int, held: list[tuple[frozenset[str], int]]) -> Room:
    """held: for each set of owners how many of the free blocks are theirs."""
    groups = Groups()
    for owners, blocks in held:
        groups.add(group := Group(owners))
        group.blocks = dict.fromkeys(range(blocks))
    return Room(free_blocks, groups)


sessions = st.sampled_from("abcd")
holdings = st.lists(
    st.tuples(st.frozensets(sessions, min_size=1), st.integers(1, 9)),
    max_size=8,
    unique_by=lambda held: held[0],
)


@given(holdings, st.sets(sessions), st.lists(st.tuples(sessions, st.booleans()), max_size=12))
def test_room_is_what_no_active_session_owns(
    held: list[tuple[frozenset[str], int]], active: set[str], moves: list[tuple[str, bool]]
) -> None:
    room = room_of(100, held)
    room.begin(active)
    assert room.blocks == 100 - sum(n for owners, n in held if owners & active)
    for session, enters in moves:
        if enters and session not in active:
            active.add(session)
            room.enters(session)
        elif not enters and session in active:
            active.remove(session)
            room.leaves(session)
        assert room.blocks == 100 - sum(n for owners, n in held if owners & active)
    assert room.owners_among(set("abcd")) == set().union(*(owners for owners, _ in held))


def test_claimed_blocks_are_room_until_their_session_is_active() -> None:
    room = room_of(10, [(frozenset("a"), 4)])
    room.add("a", 5)
    assert room.blocks == 15
    room.begin(set())
    room.enters("a")
    assert room.blocks == 6
    room = room_of(10, [(frozenset("a"), 4)])
    room.add("b", 5)
    assert room.owners_among(set("bc")) == {"b"}
    room.begin(set("b"))
    assert room.blocks == 10
