import pytest

from penstock.groups.partitioner import coordinator_partition, java_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("a", 97), ("test-group", 627841412), ("polygenelubricants", -(1 << 31)), ("ü€😀", 17318035)],
)
def test_the_hash_equals_javas_string_hash(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_group_id_with_the_smallest_possible_hash_belongs_to_the_first_partition() -> None:
    assert coordinator_partition("polygenelubricants", 50) == 0
    assert 0 <= coordinator_partition("Zyx-group", 50) < 50
