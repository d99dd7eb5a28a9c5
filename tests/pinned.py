"""A reader in another process, which keeps the WAL from being emptied."""

from __future__ import annotations

from typing import Final

READER: Final = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM events").fetchone()
print("reads", flush=True)
sys.stdin.read()
"""
"""Reads the database of its argument until its standard input ends, and says when it begins."""
