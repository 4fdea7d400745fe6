"""Contains the broker properties of logs, topic defaults, replicas and tiered storage. `broker.py` has the format."""

ROWS = """
compression.gzip.level INT =-1 [1..9|-1] cluster-wide
    Compression level of gzip for topics without their own setting.
compression.lz4.level INT =9 [1..17] cluster-wide
    Compression level of lz4 for topics without their own setting.
compression.type STRING =producer {uncompressed|zstd|lz4|snappy|gzip|producer} high cluster-wide
    Codec on disk of topics without their own setting; 'producer' keeps the codec of the producer.
compression.zstd.level INT =3 [-131072..22] cluster-wide
    Compression level of zstd for topics without their own setting.
cordoned.log.dirs LIST = per-broker
    Log directories that get no new partitions (KIP-1066); * is all of them: the broker gets no new replicas.
default.replication.factor INT =1
    Replicas of a partition if the request for a new topic gives no number.
follower.fetch.last.tiered.offset.enable BOOLEAN =false cluster-wide unsupported
    Let a new follower start where remote storage ends.
log.cleaner.backoff.ms LONG =15000 [0..] cluster-wide
    Pause of compaction when there is nothing to compact.
log.cleaner.dedupe.buffer.size LONG =134217728 cluster-wide
    Memory that the map from key to latest offset may take during a compaction.
log.cleaner.delete.retention.ms LONG =86400000 [0..] cluster-wide
    How long tombstones are kept after compaction in topics without their own setting.
log.cleaner.enable BOOLEAN =true
    Whether logs are compacted at all; without it offsets topics grow for ever.
log.cleaner.io.buffer.load.factor DOUBLE =0.9 cluster-wide unsupported
    How full the map from key to latest offset may get.
log.cleaner.io.buffer.size INT =524288 [0..] cluster-wide unsupported
    Read and write buffers of compaction.
log.cleaner.io.max.bytes.per.second DOUBLE =1.7976931348623157E308 cluster-wide unsupported
    Bytes per second that compaction may read and write.
log.cleaner.max.compaction.lag.ms LONG =9223372036854775807 [1..] cluster-wide
    Longest time that records stay uncompacted in topics without their own setting.
log.cleaner.min.cleanable.ratio DOUBLE =0.5 [0..1] cluster-wide
    Dirty share that starts compaction in topics without their own setting.
log.cleaner.min.compaction.lag.ms LONG =0 [0..] cluster-wide
    Shortest time that records stay uncompacted in topics without their own setting.
log.cleaner.threads INT =1 [0..] cluster-wide unsupported
    Threads that compact.
log.cleanup.policy LIST =delete {compact|delete} cluster-wide
    Cleanup policy of topics without their own setting: delete, compact or both.
log.dir LIST =/tmp/kafka-logs high
    Directory of the logs when log.dirs isn't given.
log.dir.failure.timeout.ms LONG =30000 [1..] low unsupported
    How long a broker with a failed directory waits for the controller before it stops.
log.dirs LIST high
    Directories of the logs; a new partition goes to the directory with the fewest partitions.
log.flush.interval.messages LONG =9223372036854775807 [1..] high cluster-wide
    Records after which fsync is called in topics without their own setting.
log.flush.interval.ms LONG high cluster-wide
    Time after an append at which fsync is called at the latest in topics without their own setting.
log.flush.offset.checkpoint.interval.ms INT =60000 [0..] high unsupported
    How often recovery points are written to disk.
log.flush.scheduler.interval.ms LONG =9223372036854775807 high
    How often logs are checked for a due fsync.
log.flush.start.offset.checkpoint.interval.ms INT =60000 [0..] high unsupported
    How often log start offsets are written to disk.
log.index.interval.bytes INT =4096 [0..] cluster-wide
    Bytes between two index entries in topics without their own setting.
log.index.size.max.bytes INT =10485760 [4..] cluster-wide
    Largest index file of topics without their own setting.
log.initial.task.delay.ms LONG =30000 [0..] low internal
    How long after start the periodic work on logs begins.
log.local.retention.bytes LONG =-2 [-2..] cluster-wide unsupported
    Local size limit of tiered topics without their own setting.
log.local.retention.ms LONG =-2 [-2..] cluster-wide unsupported
    Local age limit of tiered topics without their own setting.
log.message.timestamp.after.max.ms LONG =3600000 [0..] cluster-wide
    How far in the future timestamps may lie in topics without their own setting.
log.message.timestamp.before.max.ms LONG =9223372036854775807 [0..] cluster-wide
    How far in the past timestamps may lie in topics without their own setting.
log.message.timestamp.type STRING =CreateTime {CreateTime|LogAppendTime} cluster-wide
    Clock that stamps records (CreateTime or LogAppendTime) of topics without their own setting.
log.preallocate BOOLEAN =false cluster-wide unsupported
    Reserve whole segments on disk in topics without their own setting.
log.retention.bytes LONG =-1 high cluster-wide
    Size limit of a partition in topics without their own setting; -1 is no limit.
log.retention.check.interval.ms LONG =300000 [1..]
    How often retention is enforced.
log.retention.hours INT =168 high
    Age limit in hours, when neither minutes nor milliseconds are given.
log.retention.minutes INT high
    Age limit in minutes, when milliseconds aren't given.
log.retention.ms LONG high cluster-wide
    Age limit in topics without their own setting; -1 is no limit.
log.roll.hours INT =168 [1..] high
    Age in hours at which segments roll, when milliseconds aren't given.
log.roll.jitter.hours INT =0 [0..] high
    Largest random number of hours subtracted from the rolling age, when milliseconds aren't given.
log.roll.jitter.ms LONG high cluster-wide
    Largest random time subtracted from the rolling age in topics without their own setting.
log.roll.ms LONG high cluster-wide
    Age at which segments roll in topics without their own setting.
log.segment.bytes INT =1073741824 [1048576..] high cluster-wide
    Segment size of topics without their own setting.
log.segment.delete.delay.ms LONG =60000 [0..] high cluster-wide
    How long files of deleted segments stay in topics without their own setting.
message.max.bytes INT =1048588 [0..] high cluster-wide
    Largest batch in topics without their own setting.
min.insync.replicas INT =1 [1..] high cluster-wide
    Replicas that must be in sync for acks=all in topics without their own setting.
num.partitions INT =1 [1..]
    Partitions of a topic if the request for a new topic gives no number.
num.recovery.threads.per.data.dir INT =2 [1..] high cluster-wide unsupported
    Threads for each log directory at start and stop.
num.replica.alter.log.dirs.threads INT [1..] high
    Replicas that are copied between log directories at the same time; by default one for each directory.
num.replica.fetchers INT =1 [1..] high cluster-wide
    Fetchers for each broker that is followed.
remote.fetch.max.wait.ms INT =500 [1..] cluster-wide unsupported
    Longest wait of a fetch from remote storage.
remote.list.offsets.request.timeout.ms LONG =30000 [1..] cluster-wide unsupported
    Longest wait of an offset look-up in remote storage.
remote.log.index.file.cache.total.size.bytes LONG =1073741824 [1..] low cluster-wide unsupported
    Disk for cached indexes of remote segments.
remote.log.index.file.cache.ttl.ms LONG =900000 [-1..] low internal unsupported
    How long a cached index of a remote segment may stay unused.
remote.log.manager.copier.thread.pool.size INT =10 [1..] cluster-wide unsupported
    Threads that copy segments to remote storage.
remote.log.manager.copy.max.bytes.per.second LONG =9223372036854775807 [1..] cluster-wide unsupported
    Bytes per second that may be copied to remote storage.
remote.log.manager.copy.quota.window.num INT =11 [1..] unsupported
    Samples kept for the throttle on copies.
remote.log.manager.copy.quota.window.size.seconds INT =1 [1..] unsupported
    Length of each sample for the throttle on copies.
remote.log.manager.expiration.thread.pool.size INT =10 [1..] cluster-wide unsupported
    Threads that delete expired remote segments.
remote.log.manager.fetch.max.bytes.per.second LONG =9223372036854775807 [1..] cluster-wide unsupported
    Bytes per second that may be read from remote storage.
remote.log.manager.fetch.quota.window.num INT =11 [1..] unsupported
    Samples kept for the throttle on remote reads.
remote.log.manager.fetch.quota.window.size.seconds INT =1 [1..] unsupported
    Length of each sample for the throttle on remote reads.
remote.log.manager.follower.thread.pool.size INT =2 [1..] cluster-wide unsupported
    Threads that do the remote work of followers.
remote.log.manager.task.interval.ms LONG =30000 [1..] low unsupported
    How often remote work is checked for.
remote.log.manager.task.retry.backoff.max.ms LONG =30000 [1..] low internal unsupported
    Longest pause before remote work is tried again.
remote.log.manager.task.retry.backoff.ms LONG =500 [1..] low internal unsupported
    First pause before remote work is tried again.
remote.log.manager.task.retry.jitter DOUBLE =0.2 [0..0.5] low internal unsupported
    Random share added to the pauses before remote work is tried again.
remote.log.manager.thread.pool.size INT =2 [1..] unsupported
    Threads for remote work as a whole.
remote.log.metadata.custom.metadata.max.bytes INT =128 [0..] low unsupported
    Largest piece of metadata that a remote storage plug-in may keep with a segment.
remote.log.metadata.manager.class.name STRING \
=org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager nonempty unsupported
    Class that keeps the metadata of remote segments.
remote.log.metadata.manager.class.path STRING unsupported
    Where the class that keeps the metadata of remote segments is loaded from.
remote.log.metadata.manager.impl.prefix STRING =rlmm.config. nonempty unsupported
    Prefix of the properties for the class that keeps the metadata of remote segments.
remote.log.metadata.manager.listener.name STRING nonempty unsupported
    Listener to which the class that keeps the metadata of remote segments connects.
remote.log.reader.max.pending.tasks INT =100 [1..] unsupported
    Remote reads that may wait at once.
remote.log.reader.threads INT =10 [1..] cluster-wide unsupported
    Threads that read from remote storage.
remote.log.storage.manager.class.name STRING nonempty unsupported
    Class that keeps segments in remote storage.
remote.log.storage.manager.class.path STRING unsupported
    Where the class that keeps segments in remote storage is loaded from.
remote.log.storage.manager.impl.prefix STRING =rsm.config. nonempty unsupported
    Prefix of the properties for the class that keeps segments in remote storage.
remote.log.storage.system.enable BOOLEAN =false unsupported
    Whether topics may use remote storage.
replica.fetch.backoff.ms INT =1000 [0..]
    Pause of a fetcher after an error.
replica.fetch.max.bytes INT =1048576 [0..]
    Bytes of one partition that a follower asks for at once.
replica.fetch.min.bytes INT =1 high
    Bytes that a follower waits for.
replica.fetch.response.max.bytes INT =10485760 [0..]
    Bytes that a follower asks for in one answer.
replica.fetch.wait.max.ms INT =500 high
    How long a follower's fetch waits for new records.
replica.high.watermark.checkpoint.interval.ms LONG =5000 high
    How often high watermarks are written to disk.
replica.lag.time.max.ms LONG =30000 high
    How long a follower may lag before it leaves the in-sync set.
replica.selector.class STRING
    Class that selects the replica for a consumer: a name that ends in RackAwareReplicaSelector, or none for the leader.
replica.socket.receive.buffer.bytes INT =65536 high unsupported
    Receive buffer of a follower's socket.
replica.socket.timeout.ms INT =30000 high
    How long a follower's request may take.
unclean.leader.election.enable BOOLEAN =false high cluster-wide
    Elect an out-of-sync replica if no in-sync replica is left, in topics without their own setting.
"""
