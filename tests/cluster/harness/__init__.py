"""A real Kubernetes for tests and for a person to play with: found, or built from Debian's packages.

Read `cluster.py` first: network, control plane and nodes, from top to bottom.
"""
