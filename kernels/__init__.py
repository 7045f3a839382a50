"""What runs on the device: kernels, their launchers, and `ops`, the one door to them. Imports nothing of ours.

Importing this package sets how torch's OpenMP threads wait, so it must come before the first import of torch.
"""

import os

# OpenMP's threads spin while they wait for each other, by default for milliseconds. If anything else wants the cores,
# the one that spins burns the time that the other needs: with busy processes beside it on two cores, decoding fell from
# 50 tokens a second to 1. Asleep at once (OMP_WAIT_POLICY=PASSIVE) they wake late, and two threads do the work of one.
# Some 50 microseconds outlast the gap between two operations: 1.5 times the speed of PASSIVE on free cores, two thirds
# of it on busy ones.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
