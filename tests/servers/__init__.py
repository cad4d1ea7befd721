"""Tests of `mpload.servers`."""
