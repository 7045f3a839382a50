"""Real Kafka and real S3 on a laptop and in tests, and a supervisor for our own processes. Linux only."""
