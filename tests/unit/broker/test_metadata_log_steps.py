"""Tests each step of the metadata log alone: what it publishes, answers and decides after each call of the quorum."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import pytest
from metadata_stage import FEATURES, MetadataStage, config, names, play, settle

from penstock.metadata.decision import Decision
from penstock.metadata.image import MetadataImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.persisted.metadata.begin_transaction_record import BeginTransactionRecord
from penstock.protocol.persisted.metadata.user_scram_credential_record import UserScramCredentialRecord
from penstock.raft.describe import ReplicaView
from penstock.raft.voters import ReplicaKey, Voter

# --- commits of the leader ---------------------------------------------------------------------------------


def test_replies_and_images_of_every_small_series_of_decisions_follow_the_high_watermark() -> None:
    """Compares each commit with the rule: a decision counts when its last record is below the high watermark."""

    async def script(sizes: tuple[int, ...]) -> None:
        stage = MetadataStage()
        await stage.leading()
        base = stage.log.log_end_offset
        tasks, ends = [], []
        for number, size in enumerate(sizes):
            records = [config(f"t{number}-{index}") for index in range(size)]
            tasks.append(stage.submit(*records, reply=str(number)))
            await asyncio.sleep(0)
            ends.append(stage.log.log_end_offset)
        published = 0
        for high_watermark in range(base, stage.log.log_end_offset + 1):
            stage.shown.clear()
            stage.commit(high_watermark)
            await settle()
            done = [end <= high_watermark for end in ends]
            assert [task.done() for task in tasks] == done, (sizes, high_watermark)
            assert [task.result() for task in tasks if task.done()] == [str(n) for n in range(sum(done))]
            reached = max([end for end in ends if end <= high_watermark], default=base)
            assert stage.image.offset == reached - 1
            topics = {f"t{n}-{i}" for n, size in enumerate(sizes) if done[n] for i in range(size)}
            assert {name for _, name in stage.image.configs if name} == topics
            assert len(stage.shown) == (reached > max(base, published)), (sizes, high_watermark)
            assert stage.log.high_watermark >= reached
            published = reached

    for sizes in [*product((0, 1, 2), repeat=2), *product((1, 2), repeat=3)]:
        play(lambda sizes=sizes: script(sizes))  # type: ignore[misc]


def test_one_commit_of_several_decisions_is_shown_once_with_all_their_changes() -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.leading()
        before = stage.image
        marks: list[int] = []
        stage.metadata.subscribe(lambda old, new: marks.append(stage.log.high_watermark - new.offset))
        tasks = [stage.submit(config(name)) for name in ("a", "b", "c")]
        await settle()
        stage.commit()
        await asyncio.gather(*tasks)
        assert names(stage.shown) == [{"a", "b", "c"}]
        old, new = stage.shown[0]
        assert old is before
        assert new is stage.image
        assert new.changes.base_version == before.version
        assert marks == [1]  # the log's high watermark is raised before listeners are called

    play(script)


def test_replies_without_records_and_errors_wait_for_all_earlier_records() -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.leading()

        def refuse(image: MetadataImage) -> Decision[None]:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "no")

        assert await stage.submit() == "done"  # nothing is open: the reply comes at once
        with pytest.raises(KafkaError):
            await stage.metadata.submit(refuse)
        first = stage.submit(config("a"))
        await asyncio.sleep(0)
        empty, refused = stage.submit(), asyncio.ensure_future(stage.metadata.submit(refuse))
        later = stage.submit(config("b"))
        await settle()
        assert [task.done() for task in (first, empty, refused, later)] == [False] * 4
        stage.commit(stage.log.log_end_offset - 1)
        await settle()
        assert [task.done() for task in (first, empty, refused, later)] == [True, True, True, False]
        with pytest.raises(KafkaError, match="no"):
            await refused
        stage.commit()
        await asyncio.gather(first, empty, later)

    play(script)


def test_listeners_are_called_in_order_with_cached_answers_already_dropped() -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.leading()
        heard: list[tuple[str, bool]] = []

        def broken(old: MetadataImage, new: MetadataImage) -> None:
            heard.append(("broken", bool(stage.metadata.answers)))
            raise ValueError("broken")

        for name in ("first", "second"):
            stage.metadata.subscribe(lambda old, new, name=name: heard.append((name, bool(stage.metadata.answers))))  # type: ignore[misc]
            stage.metadata.subscribe(broken)
        stage.metadata.answers["key"] = "an answer of the old image"
        task = stage.submit(config("a"))
        await settle()
        assert stage.metadata.answers
        stage.commit()
        assert heard == [(name, False) for name in ("first", "broken", "second", "broken")]
        await task

    play(script)


# --- commits of the quorum itself and of a follower ------------------------------------------------------------


def test_control_records_of_the_quorum_count_for_the_leaders_image_and_its_next_decision() -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.leading()
        assert "kraft.version" not in stage.image.features
        stage.write_control()
        stage.commit()
        assert stage.image.offset == stage.log.log_end_offset - 1
        assert stage.image.features["kraft.version"] == 1
        assert len(stage.shown) == 1
        task = stage.submit(config("a"))
        await settle()
        stage.commit()
        assert await task == "done"
        assert stage.image.features["kraft.version"] == 1

    play(script)


def test_leader_shows_control_records_that_are_committed_together_with_a_decision_before_them() -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.leading()
        task = stage.submit(config("a"))
        await settle()
        stage.write_control()
        stage.commit()
        assert await task == "done"
        assert stage.image.offset == stage.log.log_end_offset - 1
        assert stage.image.features["kraft.version"] == 1
        assert {name for _, name in stage.image.configs if name} == {"a"}

    play(script)


def test_follower_shows_committed_records_and_each_record_once() -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.metadata.start()
        stage.role("follower", 1, 2)
        stage.write(FEATURES)
        for name in "abc":
            stage.write(config(name))
        for high_watermark, shown in ((1, [set()]), (1, []), (2, [{"a"}]), (4, [{"b", "c"}]), (4, [])):
            stage.shown.clear()
            stage.commit(high_watermark)
            assert names(stage.shown) == shown
            assert (stage.image.offset, stage.log.high_watermark) == (high_watermark - 1, high_watermark)
        with pytest.raises(KafkaError, match="to node 2") as refused:
            await stage.submit()
        assert refused.value.code is ErrorCode.NOT_CONTROLLER

    play(script)


# --- leadership ------------------------------------------------------------------------------------------------


def test_new_leader_decides_on_uncommitted_records_and_shows_them_when_they_are_committed() -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.metadata.start()
        stage.role("follower", 1, 2)
        stage.write(FEATURES, config("committed"))
        stage.write(config("kept"))
        stage.commit(2)
        stage.shown.clear()
        stage.lead(2)
        seen: list[set[str]] = []

        def look(image: MetadataImage) -> Decision[None]:
            seen.append({name for _, name in image.configs})
            return Decision([], None)

        task = asyncio.ensure_future(stage.metadata.submit(look))
        await settle()
        assert (seen, task.done(), stage.shown) == ([{"committed", "kept"}], False, [])
        stage.commit()
        await task
        assert names(stage.shown) == [{"kept"}]

    play(script)


def test_new_leader_aborts_an_open_metadata_transaction_and_shows_the_records_before_it() -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.metadata.start()
        stage.write(FEATURES, config("committed"))
        stage.commit()
        stage.write(config("kept"))
        stage.write(BeginTransactionRecord(name="x"), config("aborted"))
        stage.shown.clear()
        stage.lead(2)
        assert stage.log.log_end_offset == 6
        task = stage.submit(config("new"))
        await settle()
        stage.commit()
        await task
        assert names(stage.shown) == [{"kept", "new"}]
        assert {name for _, name in stage.image.configs} == {"committed", "kept", "new"}
        assert stage.image.open_transaction is None

    play(script)


def test_waiting_decisions_of_a_deposed_leader_fail_and_its_records_do_not_count() -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.leading()
        end = stage.log.log_end_offset
        tasks = [stage.submit(config(name)) for name in ("a", "b")]
        await settle()
        stage.role("follower", 2, 3)
        for task in tasks:
            with pytest.raises(KafkaError, match="to node 3") as refused:
                await task
            assert refused.value.code is ErrorCode.NOT_CONTROLLER
        stage.log.truncate_to(end)
        stage.write(config("other"), epoch=2)
        stage.commit()
        assert names(stage.shown) == [{"other"}]
        stage.lead(3)
        task = stage.submit(config("later"))
        await settle()
        stage.commit()
        assert await task == "done"
        assert {name for _, name in stage.image.configs if name} == {"other", "later"}
        assert stage.metadata.leader_epoch == 3

    play(script)


def test_cancelled_decision_does_not_disturb_the_decisions_after_it() -> None:
    async def script() -> None:
        for deposed in (False, True):
            stage = MetadataStage()
            await stage.leading()
            cancelled, kept = stage.submit(config("a")), stage.submit(config("b"))
            await settle()
            cancelled.cancel()
            await settle()
            if deposed:
                stage.role("follower", 2, 3)
                with pytest.raises(KafkaError):
                    await kept
            else:
                stage.commit()
                assert await kept == "done"

    play(script)


def test_all_watchers_learn_of_leadership_once_it_begins_and_ends() -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.metadata.start()
        heard: list[tuple[str, bool]] = []

        def watch(name: str) -> None:
            def listener(leads: bool) -> None:
                heard.append((name, leads))
                assert stage.metadata.leading == leads
                raise ValueError("a failing watcher must not affect the next one")

            try:
                stage.metadata.watch_leadership(listener)
            except ValueError:
                assert stage.metadata.leading

        watch("a")
        watch("b")
        assert heard == []
        stage.role("follower", 1, 2)
        assert heard == []
        stage.lead(2)
        assert heard == [("a", True), ("b", True)]
        watch("late")
        assert heard.pop() == ("late", True)
        heard.clear()
        stage.role("unattached", 3, -1)
        assert heard == [(name, False) for name in ("a", "b", "late")]
        heard.clear()
        stage.role("follower", 3, 2)
        assert heard == []

    play(script)


def test_node_that_loses_the_leadership_before_its_first_record_does_not_begin_to_decide() -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.metadata.start()
        heard: list[bool] = []
        stage.metadata.watch_leadership(heard.append)
        stage.quorum.refuses = True
        stage.lead(2)
        assert True not in heard

    play(script)


def test_all_watchers_of_the_controller_learn_each_known_controller_id() -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.metadata.start()
        heard: list[tuple[str, int]] = []
        for name in ("a", "b"):
            stage.metadata.watch_controller(lambda leader_id, name=name: heard.append((name, leader_id)))  # type: ignore[misc]
        assert heard == []
        for role, leader_id in (("follower", 2), ("unattached", -1), ("leader", 1), ("follower", 0)):
            heard.clear()
            stage.role(role, 1, leader_id)
            assert heard == ([] if leader_id < 0 else [("a", leader_id), ("b", leader_id)])
            address = ("h", 2) if leader_id == 2 else None
            assert stage.metadata.active_controller() == (leader_id, address)

    play(script)


def test_only_a_leader_with_other_voters_hands_the_quorum_over() -> None:
    async def script() -> None:
        for leads, count in product((False, True), (1, 2)):
            stage = MetadataStage()
            await stage.metadata.start()
            stage.quorum.voters = tuple(Voter(node_id) for node_id in range(1, count + 1))
            stage.role(*(("leader", 1, 1) if leads else ("follower", 1, 2)))
            await stage.metadata.hand_over()
            assert stage.quorum.calls == ["hand_over"] * (leads and count > 1)
            stage.metadata.step_down()
            assert stage.quorum.calls[-1] == "step_down"

    play(script)


def test_metadata_log_reports_contact_and_other_clusters_as_the_quorum_does() -> None:
    stage = MetadataStage()
    for value in (True, False):
        stage.quorum.in_contact = value
        stage.quorum.other_cluster_peers = {2} if value else set()
        assert (stage.metadata.in_contact, stage.metadata.reaches_other_cluster) == (value, value)


def test_described_replicas_have_wall_clock_times(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        stage = MetadataStage()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 50.0)
        times = (-1, 0, 7, 50_000)
        stage.quorum.progress = tuple(
            ReplicaView(ReplicaKey(number), number, fetch, caught_up)
            for number, (fetch, caught_up) in enumerate(product(times, times))
        )
        stage.quorum.observers = stage.quorum.progress[::-1]
        shift = stage.clock.wall_ms() - 50_000

        def wall(time_ms: int) -> int:
            return -1 if time_ms == -1 else time_ms + shift

        view = stage.metadata.quorum()
        expected = [
            (one.key, one.log_end_offset, wall(one.last_fetch_ms), wall(one.last_caught_up_ms))
            for one in stage.quorum.progress
        ]
        for found in (view.replicas, view.observers[::-1]):
            assert [(r.key, r.log_end_offset, r.last_fetch_ms, r.last_caught_up_ms) for r in found] == expected

    play(script)


# --- failures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError("no space"), KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no space")])
def test_failure_is_reported_once_ends_the_leadership_and_fails_all_decisions(error: Exception) -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.leading()
        heard: list[bool] = []
        stage.metadata.watch_leadership(heard.append)
        waiting = stage.submit(config("a"))
        await settle()
        stage.metadata.failed(error)
        stage.metadata.failed(error)
        assert heard == [True, False]
        assert [str(one).removeprefix("KAFKA_STORAGE_ERROR: ") for one in stage.fatal] == ["no space"]
        with pytest.raises(KafkaError):
            await waiting
        for leads in (False, True):
            if leads:
                stage.lead(2)
                assert not stage.metadata.leading
            with pytest.raises(KafkaError, match=r"failed \(no space\): restart the node") as refused:
                await stage.submit(config("b"))
            assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR

    play(script)


# --- start and stop --------------------------------------------------------------------------------------------


def credential(name: str) -> Any:
    return UserScramCredentialRecord(
        name=name, mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
    )


def test_stored_image_has_all_records_of_the_own_log_or_the_bootstrap_records() -> None:
    async def script() -> None:
        for has_records in (False, True):
            stage = MetadataStage()
            stored: list[MetadataImage] = []
            if has_records:
                stage.write(FEATURES, config("a"))
                stage.write(config("b"))
            await stage.metadata.start(on_stored=stored.append)
            (image,) = stored
            assert "metadata.version" in image.features
            assert {name for _, name in image.configs} == ({"a", "b"} if has_records else set())
            assert stage.image.configs == {}  # nothing is committed yet
            assert stage.quorum.listener is stage.metadata

    play(script)


def test_controllers_log_in_with_stored_credentials_until_all_stored_records_are_committed() -> None:
    async def script(keeps: bool) -> None:
        stage = MetadataStage()
        stage.write(credential("early"))
        stage.write(FEATURES)
        for name in "abc":
            stage.write(credential(name))
        end = stage.log.log_end_offset
        await stage.metadata.start(keep_credentials=keeps)
        stage.write(credential("new"), epoch=2)
        everything = {"early", "a", "b", "c"}
        for high_watermark in range(1, end + 2):
            stage.commit(high_watermark)
            found = {name for name, _ in stage.metadata.credentials_for_controllers()}
            committed = {name for name, _ in stage.image.scram_credentials}
            if keeps:
                assert found == (everything if high_watermark < end else committed), high_watermark
            else:
                assert found == (set() if high_watermark < 2 else committed), high_watermark
        assert found == {*everything, "new"}

    for keeps in (False, True):
        play(lambda keeps=keeps: script(keeps))  # type: ignore[misc]


def test_first_leader_of_an_empty_log_writes_the_first_records_and_the_next_leader_does_not() -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.metadata.start(min_insync_replicas=2)
        stage.lead()
        end = stage.log.log_end_offset
        assert end > 0
        stage.lead(2)  # elected again before anything is committed
        assert stage.log.log_end_offset == end
        stage.commit()
        assert stage.image.config(4, "") == {"min.insync.replicas": "2"}

    play(script)


def test_metadata_log_is_flushed_and_closed_after_the_quorum_has_stopped() -> None:
    async def script() -> None:
        for fails in (False, True):
            stage = MetadataStage()
            await stage.leading()
            end = stage.log.log_end_offset
            if fails:
                stage.metadata.failed(OSError("no space"))
            await stage.metadata.close()
            assert stage.quorum.calls == ["close"]
            assert stage.log.flushed_offset == (0 if fails else end)
            assert stage.log.health.closed

    play(script)
