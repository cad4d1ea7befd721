"""Tests of `mpload.client`."""
