"""The page on deployment shows the reader and the table as they are in the library."""

from tests.docs.pages import DOCS, ROOT
from torchrank import export_table


def test_the_page_holds_the_reader_and_the_table():
    page = (DOCS / "deployment.md").read_text()
    reader = (ROOT / "torchrank/export/reader.py").read_text().split('"""\n', 1)[1].strip()
    assert f"```python\n{reader}\n```" in page
    assert export_table() in page
