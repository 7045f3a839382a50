"""What every process shares: settings, logging, tracing, metrics, Kafka clients, object storage, start and stop."""
