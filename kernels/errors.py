"""Errors of this folder, which imports nothing of ours. The engine turns them into its own.

KernelError
├── KernelUnavailable    there is no kernel for this device yet
└── BadKernelInput       shapes, dtypes or layouts that a kernel was not written for
"""


class KernelError(Exception):
    """Root of what a kernel or its launcher may raise."""


class KernelUnavailable(KernelError):
    """No kernel for this device; the message says where to run instead."""


class BadKernelInput(KernelError):
    """A shape, dtype or layout that the kernel does not compute."""
