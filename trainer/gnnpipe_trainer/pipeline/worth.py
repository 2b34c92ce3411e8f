"""When it pays to leave zeros off the wire: one rule for training, which measures, and for plans, which forecast."""

WORTH_SKIPPING = 0.5  # a border's share of the time that a stage computes, above which zeros are left out


def worth_skipping(link_seconds: float, busy_seconds: float) -> bool:
    """Both of one epoch: what a border's bytes, there and back, are on their way, and what a stage computes."""
    return link_seconds > WORTH_SKIPPING * busy_seconds
