"""The health check of a container: exit code 0 if the role on this port is ready, else why it is not."""

import sys
import urllib.error
import urllib.request

_TIMEOUT_S = 3.0


def main(port: str) -> int:
    """Ask /readyz once."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=_TIMEOUT_S) as answer:
            sys.stdout.write(answer.read().decode())
            return 0
    except urllib.error.HTTPError as refusal:
        sys.stdout.write(refusal.read().decode())
    except OSError as error:
        sys.stdout.write(f"nothing answers on port {port}: {error}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
