"""A Slurm of this machine alone: its own controller, and four daemons that are four nodes. Nothing of the system's."""

import os
import pwd
import secrets
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from support.ports import free_ports

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "sinfo", "squeue")
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/spool/%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1
ReturnToService=2
KillWait=2
SlurmdTimeout=10
{nodes}
PartitionName=all Nodes=n[1-4] Default=YES State=UP
"""


class RealSlurm:
    """Four nodes, `n1` to `n4`, of one CPU each."""

    def __init__(self, folder: Path, stack: ExitStack):
        self.folder, self._stack = folder, stack
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.conf = folder / "slurm.conf"
        user, host = pwd.getpwuid(os.geteuid()).pw_name, socket.gethostname().partition(".")[0]
        ports = free_ports(5)
        nodes = (
            f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[number]} CPUs=1 State=UNKNOWN"
            for number in range(1, 5)
        )
        self.conf.write_text(_CONF.format(folder=folder, user=user, host=host, ports=ports, nodes="\n".join(nodes)))
        for name in ("munge", "spool", "state"):
            (folder / name).mkdir()
        (folder / "munge" / "key").write_bytes(secrets.token_bytes(1024))
        (folder / "munge" / "key").chmod(0o400)
        (folder / "munge").chmod(0o700)

    def start(self) -> None:
        of_munge = self.folder / "munge"
        files = [f"--{name}-file={of_munge / name}" for name in ("key", "pid", "log", "seed")]
        self._start("munged", "--foreground", "--force", f"--socket={of_munge / 'socket'}", *files)
        self._until(lambda: (of_munge / "socket").exists(), "munged")
        self._start("slurmctld", "-D", "-c", "-i", "-f", str(self.conf))
        for number in range(1, 5):
            self.start_node(f"n{number}")
        self._until(lambda: self.say("sinfo", "-h", "-o", "%T %D") == "idle 4", "slurmctld")

    def start_node(self, name: str, mounts: str = "") -> None:
        """Start the daemon of a node.

        Args:
            mounts: commands for the shell; what they mount, this node alone sees.
        """
        daemon = [path_of("slurmd"), "-D", "-N", name, "-f", str(self.conf)]
        if mounts:
            daemon = [path_of("unshare"), "--mount", "sh", "-c", f"{mounts} && exec {shlex.join(daemon)}"]
        self._start(*daemon, log=name)

    def restart_node(self, name: str, mounts: str = "") -> None:
        """End the daemon of a node, and start it as `start_node` does."""
        self._daemons[name].kill()
        self._daemons[name].wait()
        self.start_node(name, mounts)
        time.sleep(1.0)  # it registers

    def restart_controller(self) -> None:
        """It ends, is away for a while, and goes on from what it has on disk."""
        self.stop_controller()
        time.sleep(3)
        self.start_controller()

    def stop_controller(self) -> None:
        """It ends, and what it knows is on disk."""
        self._daemons["slurmctld"].terminate()
        self._daemons["slurmctld"].wait()

    def start_controller(self) -> None:
        """Start it again from what it has on disk."""
        self._start("slurmctld", "-D", "-i", "-f", str(self.conf))

    def kill_node(self, name: str) -> None:
        """The daemon of a node and all that runs on it, as when it loses power."""
        self._daemons[name].kill()
        self._daemons[name].wait()
        for process in self.processes(name):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def processes(self, node: str) -> list[psutil.Process]:
        """Return the processes on a node: tasks, and the `slurmstepd` of each."""
        found: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                variables = process.environ()
                if variables.get("SLURMD_NODENAME") == node and variables.get("SLURM_CONF") == str(self.conf):
                    found |= {one.pid: one for one in (process, *process.parents()) if _is_step(one)}
                    found[process.pid] = process
        return list(found.values())

    def say(self, program: str, *arguments: str) -> str:
        """Return the output of a Slurm command."""
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300)
        return (done.stdout + done.stderr).strip()

    def _start(self, program: str, *arguments: str, log: str = "") -> None:
        name = log or program
        program = program if "/" in program else path_of(program)
        with open(self.folder / f"{name}.out", "ab") as out:
            process = subprocess.Popen([program, *arguments], stdout=out, stderr=out, start_new_session=True)
        self._daemons[name] = process
        self._stack.callback(_end, process)

    def _until(self, is_so: Callable[[], bool], program: str) -> None:
        end = time.monotonic() + 30
        while not is_so():
            if time.monotonic() > end or self._daemons[program].poll() is not None:
                said = (self.folder / f"{program}.out").read_text()[-400:]
                pytest.skip(f"{program} does not start here: {' '.join(said.split())}")
            time.sleep(0.2)


@contextmanager
def real_slurm(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[RealSlurm]:
    """Slurm's own programs, where they are installed and start; else the test is skipped, and says why."""
    if missing := [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]:
        pytest.skip(f"there is no {', '.join(missing)} here (Debian: slurm-wlm, munge)")
    with ExitStack() as stack:
        slurm = RealSlurm(folder, stack)
        patch.setenv("SLURM_CONF", str(slurm.conf))
        slurm.start()
        yield slurm


def path_of(program: str) -> str:
    found = shutil.which(program, path=_PATH)
    assert found is not None
    return found


def _is_step(process: psutil.Process) -> bool:
    return "slurmstepd" in process.name()


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
