"""Tests how keys and values are decoded for display: schemas from files and a registry, errors, and limits."""

from __future__ import annotations

import base64
import itertools
import json
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from penstock.formats import registry as registry_module
from penstock.formats.limits import DATA_MAX_BYTES, FormatError
from penstock.formats.registry import FAILED_S, PAUSE_S, REFERENCES_MAX, Registry
from penstock.formats.schemas import LookUp, Schemas
from penstock.formats.views import ANSWER_LIMITS, NO_LIMITS, VIEWS, AnswerLimits, Viewing
from penstock.metadata.configs.settings import Settings
from penstock.node.record_schemas import plan_schemas
from tools.certificates import Authority

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
}
#: An order with id 5 and name "a".
AVRO = b"\x0a\x02a"
SHOWN = {"id": 5, "name": "a"}


def prefix(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


def view(schemas: Schemas, data: bytes | None, wanted: str = "auto", topic: str = "orders") -> dict[str, Any] | None:
    return Viewing(schemas, topic, {"value": wanted}).show("value", data)


def descriptors(*types: str, package: str = "shop", imports: tuple[str, ...] = ()) -> Any:
    """Returns a Protobuf file descriptor with these message types. Each type has one field, `id`."""
    messages = pytest.importorskip("google.protobuf.descriptor_pb2")
    file = messages.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    file.dependency.extend(imports)
    for each in types:
        file.message_type.add(name=each).field.add(name="id", number=1, type=3, label=1)
    return file


def descriptor_set(*files: Any) -> bytes:
    messages = pytest.importorskip("google.protobuf.descriptor_pb2")
    encoded: bytes = messages.FileDescriptorSet(file=files).SerializeToString()
    return encoded


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "orders-value.avsc").write_text(json.dumps(ORDER))
    return tmp_path


# --- views without schemas


def test_data_without_a_schema_is_shown_as_text_if_it_is_utf8_and_as_base64_otherwise() -> None:
    assert view(Schemas(), b"plain") == {"text": "plain"}
    assert view(Schemas(), b"\xff") == {"base64": "/w=="}
    assert view(Schemas(), prefix(7) + AVRO) == {"text": "\x00\x00\x00\x00\x07\n\x02a"}
    for wanted in VIEWS:
        assert view(Schemas(), None, wanted) is None


def test_data_requested_as_bytes_is_shown_as_base64_even_if_it_is_valid_text() -> None:
    assert view(Schemas(), b"plain", "bytes") == {"base64": base64.b64encode(b"plain").decode()}


def test_data_requested_as_text_is_shown_as_base64_with_an_error_if_it_is_not_utf8() -> None:
    assert view(Schemas(), b"a", "text") == {"text": "a"}
    assert view(Schemas(), b"\xff", "text") == {"base64": "/w==", "view": "text", "problem": "The data is not UTF-8."}


def test_json_numbers_that_a_double_cannot_hold_are_shown_as_text() -> None:
    found = view(Schemas(), b'{"a": [1, 9007199254740993, 1e999, null, true]}', "json")
    assert found is not None
    assert found["decoded"] == {"a": [1, "9007199254740993", "Infinity", None, True]}
    assert view(Schemas(), prefix(3) + b'{"a": 1}', "json")["decoded"] == {"a": 1}  # type: ignore[index]
    for wrong in (b"{", b"[" * 5000, b'"\xff"', b"1" * 5000):
        found = view(Schemas(), wrong, "json")
        assert found is not None
        assert found["problem"].startswith("The value can't be shown as JSON: the data is ")


def test_protobuf_data_can_be_decoded_without_a_schema_but_avro_data_cannot() -> None:
    assert view(Schemas(), b"\x08\x05", "protobuf") == {
        "text": "\x08\x05",
        "view": "protobuf",
        "decoded": {"1": 5},
        "schema": None,
    }
    assert view(Schemas(), prefix(9) + b"\x00\x08\x05", "protobuf")["decoded"] == {"1": 5}  # type: ignore[index]
    found = view(Schemas(), AVRO, "avro")
    assert found is not None
    assert "add orders-value.avsc in penstock.schemas.dir" in found["problem"]
    assert found["text"] == AVRO.decode()


# --- files


def test_schema_file_of_a_topic_decodes_values_with_and_without_a_registry_prefix(directory: Path) -> None:
    schemas = Schemas(str(directory))
    for data in (AVRO, prefix(1) + AVRO):
        for wanted in ("auto", "avro"):
            found = view(schemas, data, wanted)
            assert found is not None
            assert (found["view"], found["decoded"], found["schema"]) == ("avro", SHOWN, "orders-value.avsc")
    assert view(schemas, b"plain", topic="other") == {"text": "plain"}
    assert Viewing(schemas, "orders", {}).show("key", b"plain") == {"text": "plain"}


def test_value_without_a_registry_prefix_is_decoded_completely_even_if_it_begins_with_a_zero_byte(
    directory: Path,
) -> None:
    found = view(Schemas(str(directory)), b"\x00\x08wxyz")
    assert found is not None
    assert found["decoded"] == {"id": 0, "name": "wxyz"}


def test_value_that_does_not_fit_its_schema_is_shown_undecoded_with_the_reason(directory: Path) -> None:
    found = view(Schemas(str(directory)), b"{}")
    assert found is not None
    assert found["text"] == "{}"
    assert (
        found["problem"]
        == "The value can't be shown by its schema: the -63 bytes at byte 2 reach past the end of the data."
    )


def test_schema_file_is_read_again_only_after_it_has_changed(directory: Path) -> None:
    schemas = Schemas(str(directory))
    first = LookUp(schemas, 1).by_subject("orders-value")
    assert LookUp(schemas, 1).by_subject("orders-value") is first
    path = directory / "orders-value.avsc"
    path.write_text('"long"')
    os.utime(path, ns=(1, 1))
    assert view(schemas, b"\x0a")["decoded"] == 5  # type: ignore[index]


def test_name_of_a_protobuf_schema_file_can_select_the_message_type_to_decode(
    tmp_path: Path,
) -> None:
    data = descriptor_set(descriptors("Order", "Item"))
    (tmp_path / "orders-value.desc").write_bytes(data)
    (tmp_path / "items.eu-value@shop.Item.desc").write_bytes(data)
    (tmp_path / "wrong-value@shop.Nobody.desc").write_bytes(data)
    schemas = Schemas(str(tmp_path))
    assert view(schemas, b"\x08\x05")["decoded"] == {"id": 5}  # type: ignore[index]
    found = view(schemas, b"\x08\x05", "protobuf", "items.eu")
    assert found is not None
    assert (found["decoded"], found["schema"]) == ({"id": 5}, "items.eu-value@shop.Item.desc")
    assert "no message type 'shop.Nobody'" in view(schemas, b"", topic="wrong")["problem"]  # type: ignore[index]


def test_schema_id_in_a_registry_prefix_takes_precedence_over_the_schema_of_the_topic(tmp_path: Path) -> None:
    (tmp_path / "orders-value.avsc").write_text('"string"')
    (tmp_path / "id-7.avsc").write_text(json.dumps(ORDER))
    (tmp_path / "id-8.desc").write_bytes(descriptor_set(descriptors("Order", "Item")))
    schemas = Schemas(str(tmp_path))
    assert view(schemas, prefix(7) + AVRO)["schema"] == "id-7.avsc"  # type: ignore[index]
    found = view(schemas, prefix(8) + b"\x02\x02\x08\x05")
    assert found is not None
    assert (found["view"], found["decoded"]) == ("protobuf", {"id": 5})
    for path in (b"\x02\x04", b"\x7f", b"\x04\x02"):
        assert "problem" in (view(schemas, prefix(8) + path) or {})
    # A view that the id's schema is not of falls back to the topic's own schema, and then says what is missing.
    assert "can't be shown as Avro" in view(schemas, prefix(8) + b"\x00\x08\x05", "avro")["problem"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("orders-value.avsc", b"{", "schema orders-value.avsc can't be used: the Avro schema is not JSON"),
        ("orders-value.avsc", b"\xff", "is not UTF-8"),
        ("orders-value.desc", b"\xff", "not a descriptor set"),
        ("orders-value.avsc", b" " * 1_100_000, "has more than"),
    ],
)
def test_value_with_an_invalid_schema_file_is_shown_undecoded_with_the_reason(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    found = view(Schemas(str(tmp_path)), b"x")
    assert found is not None
    assert reason in found["problem"]


def test_value_with_an_unreadable_schema_file_or_directory_is_shown_undecoded_with_the_reason(tmp_path: Path) -> None:
    assert "can't be listed" in view(Schemas(str(tmp_path / "none")), b"x")["problem"]  # type: ignore[index]
    (tmp_path / "orders-value.avsc").symlink_to(tmp_path / "nowhere")
    assert "can't be read" in view(Schemas(str(tmp_path)), b"x")["problem"]  # type: ignore[index]


# --- limits of an answer


def test_decoding_of_values_for_a_response_stops_at_its_count_limit_time_limit_and_byte_limit(directory: Path) -> None:
    schemas, now_s = Schemas(str(directory)), 0.0
    viewing = Viewing(schemas, "orders", {}, AnswerLimits(values=12))
    assert "decoded" in (viewing.show("value", AVRO) or {})
    assert "decoded" in (viewing.show("value", AVRO) or {})
    assert "too many values" in viewing.show("value", AVRO)["problem"]  # type: ignore[index]
    viewing, other = (Viewing(schemas, "orders", {}, each, lambda: now_s) for each in (ANSWER_LIMITS, NO_LIMITS))
    for each in (viewing, other):
        each.show("value", AVRO)
    now_s = ANSWER_LIMITS.seconds + 1
    assert "decoded" in (other.show("value", AVRO) or {})
    assert "took longer" in viewing.show("value", AVRO)["problem"]  # type: ignore[index]
    large = Viewing(schemas, "orders", {}).show("value", b"x" * (DATA_MAX_BYTES + 1))
    assert "views are limited" in large["problem"]  # type: ignore[index]


# --- registry


class FakeRegistry:
    """Replaces a schema registry: `answers` has the response to each path. A response of 0 closes the connection."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.logins: list[str | None] = []
        self.url = ""
        self.now_s = 0.0

    def schemas(self, directory: str = "", user: str = "") -> Schemas:
        return Schemas(directory, Registry(self.url, user, now_s=lambda: self.now_s))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises the timeouts of requests to a registry, because a busy machine may need longer than a node would wait."""
    monkeypatch.setattr(registry_module, "TIMEOUT_S", 120.0)
    monkeypatch.setattr(registry_module, "LOOK_UP_S", 120.0)


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with serving(FakeRegistry()) as found:
        yield found


@contextmanager
def serving(fake: FakeRegistry, key_and_certificate: str | None = None) -> Iterator[FakeRegistry]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fake.asked.append(self.path)
            fake.logins.append(self.headers["Authorization"])
            answer = fake.answers.get(self.path)
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            if answer == 0:
                self.close_connection = True
                return
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        scheme = "http"
        if key_and_certificate is not None:
            context, scheme = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), "https"
            context.load_cert_chain(key_and_certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        fake.url = f"{scheme}://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()


def test_schema_is_requested_from_the_registry_only_once(fake: FakeRegistry) -> None:
    fake.answers["/schemas/ids/7"] = {"schema": json.dumps(ORDER)}
    schemas = fake.schemas(user="ann:secret")
    for _ in range(3):
        found = view(schemas, prefix(7) + AVRO)
        assert found is not None
        assert (found["decoded"], found["schema"]) == (SHOWN, "id 7 of the registry")
    assert fake.asked == ["/schemas/ids/7"]
    assert fake.logins == [f"Basic {base64.b64encode(b'ann:secret').decode()}"]
    assert view(schemas, b"plain") == {"text": "plain"}


def test_unknown_schema_id_is_requested_from_the_registry_again_only_after_a_pause(fake: FakeRegistry) -> None:
    schemas = fake.schemas()
    for _ in range(2):
        found = view(schemas, prefix(8) + AVRO)
        assert found is not None
        assert found["problem"].endswith("/schemas/ids/8 answered with status 404.")
    assert len(fake.asked) == 1
    fake.now_s += FAILED_S + 1
    fake.answers["/schemas/ids/8"] = {"schema": json.dumps(ORDER)}
    assert view(schemas, prefix(8) + AVRO)["decoded"] == SHOWN  # type: ignore[index]


def test_registry_that_does_not_answer_gets_no_requests_during_a_pause(fake: FakeRegistry) -> None:
    fake.answers |= {"/schemas/ids/1": 0, "/schemas/ids/2": {"schema": json.dumps(ORDER)}}
    schemas = fake.schemas()
    for number in (1, 2):
        assert "can't be read" in view(schemas, prefix(number) + AVRO)["problem"]  # type: ignore[index]
    assert fake.asked == ["/schemas/ids/1"]
    fake.now_s += PAUSE_S + 1
    assert view(schemas, prefix(2) + AVRO)["decoded"] == SHOWN  # type: ignore[index]


def test_schema_file_of_the_topic_is_used_if_the_registry_fails(fake: FakeRegistry, directory: Path) -> None:
    found = view(fake.schemas(str(directory)), prefix(9) + AVRO)
    assert found is not None
    assert (found["decoded"], found["schema"]) == (SHOWN, "orders-value.avsc")


def test_nested_references_of_an_avro_schema_in_the_registry_are_resolved(fake: FakeRegistry) -> None:
    link = {"name": "x", "subject": "a/b", "version": 2}
    fake.answers |= {
        "/schemas/ids/1": {
            "schema": json.dumps({"type": "record", "name": "R", "fields": [{"name": "c", "type": "Outer"}]}),
            "references": [link],
        },
        "/subjects/a%2Fb/versions/2": {
            "schema": json.dumps({"type": "record", "name": "Outer", "fields": [{"name": "d", "type": "Inner"}]}),
            "references": [{"name": "y", "subject": "c", "version": 1}, link],
        },
        "/subjects/c/versions/1": {"schema": json.dumps({"type": "enum", "name": "Inner", "symbols": ["A"]})},
    }
    assert view(fake.schemas(), prefix(1) + b"\0")["decoded"] == {"c": {"d": "A"}}  # type: ignore[index]


def test_protobuf_schema_of_the_registry_is_linked_with_its_imports(fake: FakeRegistry) -> None:
    money = descriptors("Money", package="money")
    order = descriptors("Order", imports=("common/money.proto", "google/protobuf/timestamp.proto"))
    order.message_type[0].field.add(name="price", number=2, type=11, label=1, type_name=".money.Money")
    order.message_type[0].field.add(name="at", number=3, type=11, label=1, type_name=".google.protobuf.Timestamp")
    reference = {"name": "common/money.proto", "subject": "money", "version": 1}
    text = {"schemaType": "PROTOBUF", "schema": "syntax = …", "references": [reference]}

    def encoded(file: Any) -> dict[str, str]:
        return {"schema": base64.b64encode(file.SerializeToString()).decode(), "schemaType": "PROTOBUF"}

    fake.answers |= {
        "/schemas/ids/3": text,
        "/schemas/ids/3?format=serialized": encoded(order),
        "/subjects/money/versions/1": {"schemaType": "PROTOBUF", "schema": "syntax = …"},
        "/subjects/money/versions/1?format=serialized": encoded(money),
        "/schemas/ids/4": text,
        "/schemas/ids/4?format=serialized": text,
    }
    schemas = fake.schemas()
    found = view(schemas, prefix(3) + b"\x00\x12\x02\x08\x05\x1a\x02\x08\x01")
    assert found is not None
    assert found["decoded"] == {"price": {"id": 5}, "at": "1970-01-01T00:00:01.000000000Z"}
    assert "as id-NUMBER.desc" in view(schemas, prefix(4) + b"\0")["problem"]  # type: ignore[index]


def test_value_whose_registry_schema_has_type_json_is_decoded_as_json(fake: FakeRegistry) -> None:
    fake.answers["/schemas/ids/5"] = {"schemaType": "JSON", "schema": "{}"}
    found = view(fake.schemas(), prefix(5) + b'{"a": 1}')
    assert found is not None
    assert (found["view"], found["decoded"]) == ("json", {"a": 1})


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"nonsense", "is not JSON"),
        ([], "has no schema"),
        ({"schema": 7}, "has no schema"),
        ({"schemaType": "THRIFT"}, "unknown type 'THRIFT'"),
        ({"schema": "{", "schemaType": "AVRO"}, "not JSON"),
        ({"schema": '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": []}, 7]}'}, ""),
        ({"schema": '{"type": {"type": []}}'}, ""),
        ({"schema": '"int"', "references": [{"name": "a"}]}, "a reference without"),
        (b" " * 600_000, "has more than"),
    ],
)
def test_invalid_registry_response_for_one_schema_id_does_not_affect_other_schema_ids(
    fake: FakeRegistry, answer: Any, reason: str
) -> None:
    fake.answers |= {"/schemas/ids/1": answer, "/schemas/ids/2": {"schema": json.dumps(ORDER)}}
    schemas = fake.schemas()
    assert reason in view(schemas, prefix(1) + AVRO)["problem"]  # type: ignore[index]
    assert view(schemas, prefix(2) + AVRO)["decoded"] == SHOWN  # type: ignore[index]


def test_avro_logical_type_that_is_not_a_string_is_ignored(fake: FakeRegistry) -> None:
    fake.answers["/schemas/ids/1"] = {"schema": '{"type": "int", "logicalType": []}'}
    assert view(fake.schemas(), prefix(1) + b"\x0a")["decoded"] == 5  # type: ignore[index]


@pytest.mark.parametrize("error", [TypeError, KeyError, AttributeError, RecursionError])
def test_schema_that_fails_to_compile_is_not_requested_from_the_registry_again(
    fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise error("internal")

    fake.answers["/schemas/ids/1"] = {"schema": json.dumps(ORDER)}
    monkeypatch.setattr("penstock.formats.schema.AvroSchema.compile", fail)
    schemas = fake.schemas()
    for _ in range(2):
        assert "the schema can't be used" in view(schemas, prefix(1) + AVRO)["problem"]  # type: ignore[index]
    assert fake.asked == ["/schemas/ids/1"]


def test_decoding_for_a_response_requests_a_limited_number_of_schemas_from_the_registry(fake: FakeRegistry) -> None:
    viewing = Viewing(fake.schemas(), "orders", {}, now_s=lambda: 0.0)
    found = [viewing.show("value", prefix(number) + AVRO) for number in range(ANSWER_LIMITS.ids + 1)]
    assert len(fake.asked) == ANSWER_LIMITS.ids
    assert "already uses 20 schema ids" in found[-1]["problem"]  # type: ignore[index]
    many = [{"name": str(each), "subject": str(each), "version": 1} for each in range(REFERENCES_MAX + 1)]
    fake.answers |= {f"/subjects/{each}/versions/1": {"schema": '"int"'} for each in range(REFERENCES_MAX + 1)}
    fake.answers["/schemas/ids/99"] = {"schema": '"int"', "references": many}
    assert "refers to more than" in view(fake.schemas(), prefix(99) + b"\0")["problem"]  # type: ignore[index]


def test_schema_lookup_fails_without_a_further_request_once_its_time_limit_has_passed(fake: FakeRegistry) -> None:
    reference = {"name": "x", "subject": "x", "version": 1}
    fake.answers["/schemas/ids/1"] = {"schema": '"int"', "references": [reference]}
    times = itertools.count(step=100)
    registry = Registry(fake.url, now_s=lambda: float(next(times)))
    with pytest.raises(FormatError, match="took longer than 120 s"):
        registry.schema(1)
    assert fake.asked == ["/schemas/ids/1"]


def test_registry_client_caches_a_limited_number_of_schemas(
    fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "CACHED_MAX", 2)
    fake.answers |= {f"/schemas/ids/{each}": {"schema": '"int"'} for each in range(3)}
    registry = Registry(fake.url)
    for number in (0, 1, 2, 0):
        registry.schema(number)
    assert len(fake.asked) == 4


@pytest.mark.parametrize(
    ("url", "user", "reason"),
    [
        ("file:///etc/passwd", "", "must begin with http"),
        ("registry:8081", "", "must begin with http"),
        ("http://registry:8081?x=1", "", "must not have a query"),
        ("http://ann:secret@registry:8081", "", "has a user name"),
        ("http://registry:8081", "ann:secret", "is not protected"),
    ],
)
def test_registry_setting_with_an_invalid_url_or_a_password_without_https_is_refused(
    url: str, user: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Registry(url, user)
    Registry("http://registry:8081")
    Registry("https://registry", "ann:secret")


def test_node_sends_requests_and_passwords_only_to_a_registry_whose_certificate_it_trusts(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    with serving(FakeRegistry(), authority.store("registry.pem", "registry")) as fake:
        fake.answers["/schemas/ids/7"] = {"schema": json.dumps(ORDER)}
        url = {"penstock.schema.registry.url": fake.url}
        trusted = {"penstock.schema.registry.ssl.truststore.location": str(authority.file)}
        user = {"penstock.schema.registry.basic.auth.user.info": "ann:secret"}
        found = view(plan_schemas(Settings({**url, **trusted, **user})), prefix(7) + AVRO)
        assert found is not None
        assert found["decoded"] == SHOWN
        assert fake.logins == [f"Basic {base64.b64encode(b'ann:secret').decode()}"]
        found = view(plan_schemas(Settings({**url, **user})), prefix(7) + AVRO)
        assert found is not None
        assert "can't be trusted" in found["problem"]
        assert len(fake.asked) == 1, "the password goes to no server that is not trusted"


def test_value_is_shown_with_the_install_command_if_the_package_for_its_format_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("penstock.formats.descriptors.import_module", missing)
    (tmp_path / "orders-value.desc").write_bytes(b"x")
    found = view(Schemas(str(tmp_path)), b"x")
    assert found is not None
    assert "pip install 'penstock[formats]'" in found["problem"]
    with pytest.raises(FormatError):
        Schemas(str(tmp_path)).read("orders-value.desc")
