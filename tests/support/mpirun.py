"""mpirun as tests need it: more ranks than cores, no binding, nothing spins, in a container or as root."""
import os
import subprocess


def command(mpiexec, ranks, program):
    return [mpiexec, "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "-n", str(ranks)] + program


def environment():
    return dict(os.environ,
                OMPI_MCA_mpi_yield_when_idle="1",
                OMPI_MCA_btl="self,vader,tcp",
                OMPI_MCA_btl_vader_single_copy_mechanism="none",  # containers forbid process_vm_readv
                OMPI_MCA_btl_tcp_if_include="lo",
                OMPI_MCA_oob_tcp_if_include="lo",
                OMPI_MCA_plm_rsh_agent="/bin/false",
                OMPI_MCA_rmaps_base_oversubscribe="1")


def mpirun(mpiexec, ranks, program, timeout=240):
    return subprocess.run(command(mpiexec, ranks, program), env=environment(), capture_output=True, text=True,
                          timeout=timeout, check=False)
