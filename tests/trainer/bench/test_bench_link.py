"""The emulated link: it limits, it goes away, and where it cannot be made it says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gnnpipe_api.load import load_job
from gnnpipe_trainer.bench import link
from gnnpipe_trainer.bench.link import NoLink, bits_per_second, emulated_link, why_no_link
from gnnpipe_trainer.bench.measure import measure
from gnnpipe_trainer.bench.modes import Mode

needs_link = pytest.mark.skipif(why_no_link() is not None, reason=str(why_no_link()))

RECEIVER = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 7000))
sys.stdout.write("ready\\n"); sys.stdout.flush()
connection, _ = server.accept()
count, start = 0, time.perf_counter()
while part := connection.recv(1 << 16):
    count += len(part)
sys.stdout.write(f"{count} {time.perf_counter() - start}\\n")
"""
SENDER = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000)) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
"""


@pytest.mark.parametrize(
    ("rate", "bits"), [("1gbit", 1e9), ("200mbit", 2e8), ("1.5Gbit", 1.5e9), ("64kbit", 64e3)]
)
def test_a_rate_is_read_as_tc_reads_it(rate: str, bits: float) -> None:
    assert bits_per_second(rate) == bits


@pytest.mark.parametrize("rate", ["1", "fast", "0mbit", "1gbyte", "-1gbit", "1gbit; reboot"])
def test_what_is_no_rate_is_refused_with_an_example(rate: str) -> None:
    with pytest.raises(ValueError, match="200mbit or 1gbit"):
        bits_per_second(rate)


@needs_link
@pytest.mark.parametrize("backwards", [False, True])
def test_no_more_bits_pass_than_the_rate_allows_in_either_direction(backwards: bool) -> None:
    rate, sent = "40mbit", 4_000_000
    with emulated_link(rate) as machines:
        here, there = reversed(machines) if backwards else machines
        listen = there.command([sys.executable, "-c", RECEIVER, there.address])
        with subprocess.Popen(listen, stdout=subprocess.PIPE, text=True) as receiver:
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == "ready\n"
            subprocess.run(here.command([sys.executable, "-c", SENDER, there.address, str(sent)]), check=True)
            received, seconds = receiver.stdout.readline().split()
    assert int(received) == sent
    assert 0.8 * sent * 8 / 40e6 < float(seconds)


@needs_link
def test_nothing_is_left_of_a_link() -> None:
    names: list[str] = []

    def break_off() -> None:
        with emulated_link("1gbit") as machines:
            names.extend(machine.namespace for machine in machines)
            assert all(Path("/run/netns", name).exists() for name in names)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        break_off()
    assert len(names) == 2
    assert not any(Path("/run/netns", name).exists() for name in names)


@needs_link
def test_what_a_killed_benchmark_left_is_removed_by_the_next_one() -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    left = f"{link.PREFIX}{gone.pid}-0"
    subprocess.run(["ip", "netns", "add", left], check=True)
    with emulated_link("1gbit"):
        assert not Path("/run/netns", left).exists()


@needs_link
def test_over_a_slow_link_a_job_leaves_out_its_zeros_by_itself(manifest: Path, tmp_path: Path) -> None:
    """`wireZeros: auto`: two machines, real messages; 0.8 MB per epoch would travel for a third of a second."""
    wide = load_job(manifest, ["spec.model.hidden=256"])
    pipeline = Mode("pipeline", parallelism={"stages": 2, "ways": 1, "chunks": 4}, rate="20mbit")
    figures = measure(pipeline, wide, 5, tmp_path, tmp_path / "out")
    assert figures.sent_bytes["pipeline"] < 0.8 * 2 * 4 * 400 * 256


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NoLink, match="by root only"), emulated_link("1gbit"):
        pass


def test_where_the_tools_lack_their_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "")
    assert "iproute2" in str(why_no_link())
