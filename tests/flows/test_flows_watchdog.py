import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from families import lives

OWNER = """
import subprocess, sys, time
from flows.watchdog import guard
guard()
server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "uvicorn"])
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "trainer"])
print(server.pid, other.pid, flush=True)
time.sleep(600)
"""


def test_the_server_of_a_killed_process_is_ended_and_nothing_else() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env=environment) as owner:
        assert owner.stdout is not None
        server, other = map(int, owner.stdout.readline().split())
        time.sleep(0.5)
        assert lives(server)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    try:
        until = time.monotonic() + 60
        while lives(server) and time.monotonic() < until:
            time.sleep(0.1)
        assert not lives(server)
        assert lives(other)
    finally:
        os.kill(other, signal.SIGKILL)
