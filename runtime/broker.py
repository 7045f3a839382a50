"""Kafka's many faults as the few errors of ours that tell a user what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

from aiokafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
)

from schemas.errors import BrokerUnavailable, InvalidValue, SettingsError
from schemas.settings import KafkaSettings


@contextmanager
def broker_errors(kafka: KafkaSettings) -> Iterator[None]:
    """Turn what aiokafka raises inside the block into our errors.

    Raises:
        BrokerUnavailable: the broker is away, or refuses what only its operator can change.
        SettingsError: it refuses who we are.
        InvalidValue: a record is larger than the broker allows.
    """
    try:
        yield
    except MessageSizeTooLargeError as error:
        raise InvalidValue(f"the request is too large for one record ({error}): shorten the messages") from error
    except (SaslAuthenticationFailed, TopicAuthorizationFailedError) as error:
        raise SettingsError(
            f"Kafka at {kafka.bootstrap_servers} refuses access ({error}): check kafka.sasl_username, "
            "kafka.sasl_password and the user's rights"
        ) from error
    except (KafkaError, OSError) as error:
        raise BrokerUnavailable(
            f"Kafka at {kafka.bootstrap_servers} does not answer ({type(error).__name__}); start a local one with "
            "`headrace up`, or set kafka.bootstrap_servers"
        ) from error
