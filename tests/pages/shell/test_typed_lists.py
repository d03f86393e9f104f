"""Lists as people type them."""

from service.pages.shell.typed_lists import names_of, words_of


def test_marks_separate_names_and_words_alike() -> None:
    assert names_of("north; south east,\r\n west,,") == ["north", "south east", "west"]
    assert words_of("north; south east,\r\n west,,") == ["north", "south", "east", "west"]
    assert names_of(" ; ") == words_of(" ; ") == []


def test_a_list_of_words_has_at_most_one_more_than_v1_takes() -> None:
    assert words_of("") == []
    assert len(words_of("a " * 60_000)) == 1001
