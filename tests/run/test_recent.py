"""A process's cache of files stays within a size, however many rows it reads."""

from energon_pack.run.recent import Recent


def test_what_was_not_used_for_the_longest_time_goes() -> None:
    closed: list[str] = []
    recent: Recent[int, str] = Recent(4, len, closed.append)
    recent.put(1, "aa")
    recent.put(2, "bb")
    assert recent.get(1) == "aa"
    assert recent.put(3, "c") == "c"  # 1 was used since
    assert (recent.get(2), closed) == (None, ["bb"])
    recent.put(1, "new")  # in place of another
    assert (closed, len(recent)) == (["bb", "aa"], 2)
    recent.put(4, "larger than all")
    assert (recent.get(4), len(recent)) == ("larger than all", 1)
    recent.clear()
    assert (len(recent), closed) == (0, ["bb", "aa", "c", "new", "larger than all"])
    assert recent.put(5, "d") == "d"


def test_without_sizes_each_counts_one() -> None:
    recent: Recent[int, list[int]] = Recent(2)
    for number in range(5):
        recent.put(number, [number])
    assert [recent.get(number) for number in range(5)] == [None, None, None, [3], [4]]
