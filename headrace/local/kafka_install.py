"""What Kafka is run with: a Java, the jars, the class archive, and the command line that puts them together."""

from dataclasses import dataclass

from headrace.local.class_archive import ClassArchive
from headrace.local.java import Java, find_java
from headrace.local.kafka_jars import KafkaJars, find_jars
from headrace.local.settings import LocalKafkaSettings, Report

# Most records die young: a nursery this large keeps young collections rare. With a start heap of 64 MB each paused
# 50-100 ms; with these flags p50 is 2.7 ms and p99 13 ms at 100 messages/s.
NURSERY_SHARE = 0.6

FLAGS = (
    "-XX:MetaspaceSize=128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # the optimising compiler takes more CPU on a laptop than it gives back
    "-XX:+ExitOnOutOfMemoryError",  # a supervisor can restart what is dead, not what limps
    "-XX:+PerfDisableSharedMem",  # no file in /tmp/hsperfdata_USER that a kill would leave behind
    "-Djava.awt.headless=true",
    "-Dlog4j2.shutdownHookEnabled=false",  # else logging ends before the shutdown that it should tell of
)


@dataclass(frozen=True)
class KafkaInstallation:
    """Everything that is needed to run Kafka's programs."""

    java: Java
    jars: KafkaJars
    archive: ClassArchive

    @classmethod
    async def find(cls, settings: LocalKafkaSettings, report: Report) -> "KafkaInstallation":
        """Find it, or download it once. Raises LocalStackError that says what to install."""
        java = await find_java()
        jars = await find_jars(settings, report)
        return cls(java, jars, ClassArchive(settings.cache_dir, java, jars))

    def server(self, heap_mb: int, *arguments: str) -> tuple[str, ...]:
        """Command line of the broker; it may write the class archive when it ends."""
        return self._command(heap_mb, self.archive.using_or_writing_flags, "kafka.Kafka", arguments)

    def storage_tool(self, heap_mb: int, *arguments: str) -> tuple[str, ...]:
        """Command line of the tool that formats a log folder."""
        return self._command(heap_mb, self.archive.using_flags, "kafka.tools.StorageTool", arguments)

    def _command(
        self, heap_mb: int, extra: tuple[str, ...], program: str, arguments: tuple[str, ...]
    ) -> tuple[str, ...]:
        heap = (f"-Xms{heap_mb}m", f"-Xmx{heap_mb}m", f"-Xmn{int(heap_mb * NURSERY_SHARE)}m")
        # Relative to the data folder, which is the working directory.
        paths = ("-Djava.io.tmpdir=tmp", "-Dkafka.logs.dir=logs", "-Dlog4j2.configurationFile=log4j2.properties")
        java = str(self.java.executable)
        return (java, *heap, *FLAGS, *paths, *extra, "-cp", self.jars.class_path, program, *arguments)
