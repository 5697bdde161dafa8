"""The table of the attack, and its place in a page."""

import pytest

from tests.attack.tally import BEGIN, END, Tally, table, together, write_page


def test_parts_are_added_and_the_last_row_is_their_sum():
    found = together([Tally("a", "x", 3, ["wrong"]), Tally("a", "y", 4), Tally("a", "x", 5, counts={"read": 2})])
    rows = table(found).splitlines()
    assert rows[2:] == ["| a | x | 8 | 1 | 2 read |", "| a | y | 4 | 0 |  |", "| **all** | | **12** | **1** | |"]


def test_the_table_of_a_page_is_replaced(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for text in ("one", "two"):
        write_page(page, text)
    assert page.read_text() == f"before\n{BEGIN}\n\ntwo\n\n{END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="no place for the table"):
        write_page(page, "three")
