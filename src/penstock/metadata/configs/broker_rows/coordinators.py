"""Contains the broker properties of groups, offsets, transactions and share groups. `broker.py` defines the format."""

ROWS = """
group.consumer.assignment.interval.ms INT =1000 [0..] cluster-wide
    Shortest time between two assignments of one consumer group.
group.consumer.assignors LIST =uniform,range
    Assignors of consumer groups on the broker, the first being the default.
group.consumer.heartbeat.interval.ms INT =5000 [1..]
    Interval at which members of consumer groups send heartbeats.
group.consumer.max.assignment.interval.ms INT =15000 [0..]
    Upper limit of consumer.assignment.interval.ms of a group.
group.consumer.max.heartbeat.interval.ms INT =15000 [1..]
    Upper limit of consumer.heartbeat.interval.ms of a group.
group.consumer.max.session.timeout.ms INT =60000 [1..]
    Upper limit of consumer.session.timeout.ms of a group.
group.consumer.max.size INT =2147483647 [1..]
    Members that one consumer group may have.
group.consumer.migration.policy STRING =bidirectional {DISABLED|DOWNGRADE|UPGRADE|BIDIRECTIONAL}~
    Whether classic and consumer groups can be converted into each other: disabled, upgrade, downgrade or bidirectional.
group.consumer.min.assignment.interval.ms INT =0 [0..]
    Lower limit of consumer.assignment.interval.ms of a group.
group.consumer.min.heartbeat.interval.ms INT =5000 [1..]
    Lower limit of consumer.heartbeat.interval.ms of a group.
group.consumer.min.session.timeout.ms INT =45000 [1..]
    Lower limit of consumer.session.timeout.ms of a group.
group.consumer.regex.refresh.interval.ms INT =600000 [10000..] internal
    How often a subscribed pattern is matched against topics again.
group.consumer.session.timeout.ms INT =45000 [1..]
    Time without a heartbeat after which a member is removed from a consumer group.
group.coordinator.append.linger.ms INT =-1 [-1..] unsupported
    How long the group coordinator gathers records before it writes them; -1 is an adaptive wait.
group.coordinator.background.threads INT =2 [1..] high unsupported
    Threads for the group coordinator's background work.
group.coordinator.cached.buffer.max.bytes INT =1048588 [524288..] cluster-wide unsupported
    Largest write buffer that the group coordinator keeps for reuse.
group.coordinator.rebalance.protocols LIST =classic,consumer,streams {consumer|classic|share|streams} unsupported
    Group protocols that are served.
group.coordinator.threads INT =4 [1..] high unsupported
    Threads of the group coordinator.
group.initial.rebalance.delay.ms INT =3000
    How long the first rebalance of an empty classic group waits for more members.
group.max.session.timeout.ms INT =1800000
    Longest session timeout that a member of a classic group may request.
group.max.size INT =2147483647 [1..]
    Members that one classic group may have.
group.min.session.timeout.ms INT =6000
    Shortest session timeout that a member of a classic group may request.
group.share.assignment.interval.ms INT =1000 [0..] cluster-wide
    Shortest time between two assignments of one share group.
group.share.assignors LIST =simple unsupported
    Assignors of share groups, the first being the default.
group.share.delivery.count.limit INT =5 [2..10]
    Deliveries of one record in a share group before it is archived.
group.share.heartbeat.interval.ms INT =5000 [1..]
    Interval at which members of share groups send heartbeats.
group.share.initialize.retry.interval.ms INT =30000 [1..] low internal
    Pause before the state of a share partition is initialised again.
group.share.max.assignment.interval.ms INT =15000 [0..]
    Upper limit of share.assignment.interval.ms of a group.
group.share.max.delivery.count.limit INT =10 [5..25]
    Upper limit of share.delivery.count.limit of a group.
group.share.max.heartbeat.interval.ms INT =15000 [1..]
    Upper limit of share.heartbeat.interval.ms of a group.
group.share.max.partition.max.record.locks INT =4000 [2000..10000]
    Upper limit of share.partition.max.record.locks of a group.
group.share.max.record.lock.duration.ms INT =60000 [30000..3600000]
    Upper limit of share.record.lock.duration.ms of a group.
group.share.max.session.timeout.ms INT =60000 [1..]
    Upper limit of share.session.timeout.ms of a group.
group.share.max.share.sessions INT =2000 [1..]
    Share sessions kept at once.
group.share.max.size INT =200 [1..1000]
    Members that one share group may have.
group.share.min.assignment.interval.ms INT =0 [0..]
    Lower limit of share.assignment.interval.ms of a group.
group.share.min.delivery.count.limit INT =2 [2..5]
    Lower limit of share.delivery.count.limit of a group.
group.share.min.heartbeat.interval.ms INT =5000 [1..]
    Lower limit of share.heartbeat.interval.ms of a group.
group.share.min.partition.max.record.locks INT =100 [100..2000]
    Lower limit of share.partition.max.record.locks of a group.
group.share.min.record.lock.duration.ms INT =15000 [1000..30000]
    Lower limit of share.record.lock.duration.ms of a group.
group.share.min.session.timeout.ms INT =45000 [1..]
    Lower limit of share.session.timeout.ms of a group.
group.share.partition.max.record.locks INT =2000 [100..10000]
    Records of one share partition that may be acquired at once.
group.share.persister.class.name STRING \
=org.apache.kafka.server.share.persister.DefaultStatePersister internal unsupported
    Class that keeps the state of share partitions.
group.share.record.lock.duration.ms INT =30000 [1000..3600000]
    How long a record stays locked for the member of a share group that fetched it.
group.share.session.timeout.ms INT =45000 [1..]
    Time without a heartbeat after which a member is removed from a share group.
group.streams.assignment.interval.ms INT =1000 [0..] cluster-wide
    Shortest time between two assignments of one streams group.
group.streams.heartbeat.interval.ms INT =5000 [1..]
    Interval at which members of streams groups send heartbeats.
group.streams.initial.rebalance.delay.ms INT =3000 [0..]
    How long the first assignment of a streams group waits for more members.
group.streams.max.assignment.interval.ms INT =15000 [0..]
    Upper limit of streams.assignment.interval.ms of a group.
group.streams.max.heartbeat.interval.ms INT =15000 [1..]
    Upper limit of streams.heartbeat.interval.ms of a group.
group.streams.max.session.timeout.ms INT =60000 [1..]
    Upper limit of streams.session.timeout.ms of a group.
group.streams.max.size INT =2147483647 [1..]
    Members that one streams group may have.
group.streams.max.standby.replicas INT =2 [0..]
    Upper limit of streams.num.standby.replicas of a group.
group.streams.min.assignment.interval.ms INT =0 [0..]
    Lower limit of streams.assignment.interval.ms of a group.
group.streams.min.heartbeat.interval.ms INT =5000 [1..]
    Lower limit of streams.heartbeat.interval.ms of a group.
group.streams.min.session.timeout.ms INT =45000 [1..]
    Lower limit of streams.session.timeout.ms of a group.
group.streams.num.standby.replicas INT =0 [0..]
    Standby copies of each task of a streams group.
group.streams.session.timeout.ms INT =45000 [1..]
    Time without a heartbeat after which a member is removed from a streams group.
offset.metadata.max.bytes INT =4096 high
    Bytes of metadata that a consumer may commit with an offset.
offsets.commit.timeout.ms INT =5000 [1..] high
    How long a commit of offsets may take to be replicated.
offsets.load.buffer.size INT =5242880 [1..] high unsupported
    Bytes read at once when a coordinator loads offsets.
offsets.retention.check.interval.ms LONG =600000 [1..] high
    How often expired offsets are checked for.
offsets.retention.minutes INT =10080 [1..] high
    How long offsets are kept after the last member has left the group.
offsets.topic.compression.codec INT =0 high
    Codec of the offsets topic, by number.
offsets.topic.num.partitions INT =50 [1..] high
    Partitions of the offsets topic; do not change it once the topic exists.
offsets.topic.replication.factor SHORT =3 [1..] high
    Replicas of the offsets topic.
offsets.topic.segment.bytes INT =104857600 [1..] high
    Segment size of the offsets topic.
producer.id.expiration.check.interval.ms INT =600000 [1..] low internal
    How often idle producer ids are checked for.
producer.id.expiration.ms INT =86400000 [1..] low cluster-wide
    How long a partition keeps the state of an idle idempotent producer.
share.coordinator.append.linger.ms INT =-1 [-1..] unsupported
    How long the share coordinator gathers records before it writes them; -1 is an adaptive wait.
share.coordinator.cached.buffer.max.bytes INT =1048588 [524288..] cluster-wide unsupported
    Largest write buffer that the share coordinator keeps for reuse.
share.coordinator.cold.partition.snapshot.interval.ms INT =300000 [1..] low internal unsupported
    How often idle share partitions get a snapshot.
share.coordinator.load.buffer.size INT =5242880 [1..] high unsupported
    Bytes read at once when share state is loaded.
share.coordinator.snapshot.update.records.per.snapshot INT =500 [0..500]
    Updates between two snapshots of a share partition.
share.coordinator.state.topic.compression.codec INT =0 high
    Codec of the share state topic, by number.
share.coordinator.state.topic.min.isr SHORT =2 [1..] high
    Replicas of the share state topic that must be in sync.
share.coordinator.state.topic.num.partitions INT =50 [1..] high
    Partitions of the share state topic.
share.coordinator.state.topic.prune.interval.ms INT =300000 [1..] low internal
    How often old records of the share state topic are deleted.
share.coordinator.state.topic.replication.factor SHORT =3 [1..] high
    Replicas of the share state topic.
share.coordinator.state.topic.segment.bytes INT =104857600 [1..] high
    Segment size of the share state topic.
share.coordinator.threads INT =1 [1..] unsupported
    Threads of the share coordinator.
share.coordinator.write.timeout.ms INT =5000 [1..] high
    How long a write of share state may take to be replicated.
transaction.abort.timed.out.transaction.cleanup.interval.ms INT =10000 [1..] low
    Pause before the abort of a timed-out transaction is retried.
transaction.max.timeout.ms INT =900000 [1..] high
    Longest transaction timeout that a producer may request.
transaction.partition.verification.enable BOOLEAN =true low cluster-wide
    Check with the coordinator that a partition belongs to the transaction before it is written to.
transaction.remove.expired.transaction.cleanup.interval.ms INT =3600000 [1..] low
    How often expired transactional ids are checked for.
transaction.state.log.load.buffer.size INT =5242880 [1..] high unsupported
    Bytes read at once when transaction state is loaded.
transaction.state.log.min.isr INT =2 [1..] high
    Replicas of the transaction topic that must be in sync.
transaction.state.log.num.partitions INT =50 [1..] high
    Partitions of the transaction topic; do not change it once the topic exists.
transaction.state.log.replication.factor SHORT =3 [1..] high
    Replicas of the transaction topic.
transaction.state.log.segment.bytes INT =104857600 [1..] high
    Segment size of the transaction topic.
transaction.two.phase.commit.enable BOOLEAN =false low
    Allow transactions that an external coordinator ends (KIP-939).
transactional.id.expiration.ms INT =604800000 [1..] high
    How long an unused transactional id is kept.
"""
