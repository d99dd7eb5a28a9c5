"""Erasure: rows and bytes removed and verified, and a receipt that says how we know."""
