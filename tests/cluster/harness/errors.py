"""What stops a cluster from being had here, said so that a person knows what to do."""

from __future__ import annotations


class NoCluster(Exception):
    """No Kubernetes can be had on this machine; the message says what would change that."""


class StartFailed(Exception):
    """A part of the cluster did not come up; the message ends with the tail of its log."""
