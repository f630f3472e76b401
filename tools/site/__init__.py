"""The documentation site: what runs the code of pages, draws their pictures and makes notebooks of them."""
