"""One worker's brain: weights, scheduler, paged KV, sampling, the step loop. Knows nothing of Kafka."""

import kernels as _kernels  # noqa: F401 - before torch: it sets how torch's threads wait
