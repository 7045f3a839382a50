"""What runs on the device: kernels, their launchers, and `ops`, the one door to them. Imports nothing of ours.

Importing this package sets how torch's OpenMP threads wait, so it must come before the first import of torch.
"""

import os

# OpenMP's threads spin while they wait for each other. If anything else wants the cores, the one that spins burns the
# time that the other needs: with a broker beside it on two cores, decoding fell from 53 to 1 token a second. Sleeping
# costs a few microseconds an operation.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
