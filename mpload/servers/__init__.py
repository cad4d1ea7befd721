"""Servers: processes that make samples for the loaders of other machines (`mpload serve`).

The other side, which asks them, is `mpload.client`.
"""
