"""One run on many machines that see the same folders. Files are all they share: no server, no port, no lock.

The same command is started on every machine, by Slurm or by anything else. In each, `together` decides:

    the first to come ──claims a term──► drives: it runs the stages, and its executor deals jobs to nodes
    all others ────────follow──────────► wait for the end; where the driver is lost, the next one claims the next term
    each of them, the driver too ──────► has a `node` beside it, which does jobs with processes of its own

    driver ──► inbox/<node>/<job> ──► a process of that node ──► results/<job> ──► driver

A job may be done twice: by a node that was taken for lost, or by two where only a few jobs are left. It writes the same
bytes. So nothing that is lost has to be noticed at once, and nobody who is slow has to be stopped.
"""
