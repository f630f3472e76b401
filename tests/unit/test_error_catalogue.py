"""The error page is the catalogue, and codes are unique."""

from __future__ import annotations

from tessera.tools.error_catalogue import catalogue


def test_codes_are_unique():
    codes = [kind.code for kind in catalogue()]
    assert len(set(codes)) == len(codes)
