import pytest

from penstock.groups.partitioner import coordinator_partition, java_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("a", 97), ("test-group", 627841412), ("polygenelubricants", -(1 << 31)), ("ü€😀", 17318035)],
)
def test_java_hash_of_a_group_id_equals_javas_string_hash_code(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_group_id_with_the_smallest_int32_hash_is_mapped_to_partition_0() -> None:
    assert coordinator_partition("polygenelubricants", 50) == 0
    assert 0 <= coordinator_partition("Zyx-group", 50) < 50
