"""The channels of a rank: one for each direction and neighbour that its schedule names."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from gnnpipe_trainer.models.block import Block
from gnnpipe_trainer.pipeline.schedule import Action, Move, Work
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.pipeline.wire import BACKWARD, FORWARD, Channel, Groups, Traffic
from gnnpipe_trainer.pipeline.zeros import Border, NonZeroActivations, NonZeroGradients

Channels = dict[tuple[Work, Move], Channel]
Borders = dict[int | None, Border]
"""Those that zeros do not cross, by the stage on the other side."""


def borders_without_zeros(topology: Topology, before: Block | None, last: Block) -> Borders:
    """Where zeros need not cross, because the block in front of the border says so."""
    sides = [(topology.stage - 1, before), (topology.stage + 1, None if topology.is_last else last)]
    return {peer: Border() for peer, block in sides if block and block.gradient_stops_at_zeros}


def make_channels(
    schedule: Iterable[Action],
    topology: Topology,
    groups: Groups,
    traffic: Traffic,
    wire: torch.dtype,
    device: torch.device,
    borders: Borders,
) -> Channels:
    channels: Channels = {}
    for action in schedule:
        if action.move is None or (action.work, action.move) in channels:
            continue
        assert action.peer_stage is not None
        peer, border = topology.rank_of(action.peer_stage), borders.get(action.peer_stage)
        forward = action.work is Work.FORWARD
        group, direction = (groups.activations, FORWARD) if forward else (groups.gradients, BACKWARD)
        ends = (peer, group, traffic, wire, device, direction)
        channel = Channel(*ends)
        if border is not None and forward:
            channel = NonZeroActivations(*ends, border=border, control=groups.control)
        elif border is not None:
            channel = NonZeroGradients(*ends, border=border)
        channels[action.work, action.move] = channel
    return channels
