import pytest

from penstock.metadata.configs.settings import Settings
from penstock.node.listeners import ListenerError, plan_listeners, protected_listeners


def test_listener_without_an_advertised_address_advertises_its_own_address() -> None:
    settings = Settings({"listeners": "PLAINTEXT://127.0.0.1:9092"})
    (plan,) = plan_listeners(settings)
    assert (plan.name, plan.host, plan.port) == ("PLAINTEXT", "127.0.0.1", 9092)
    assert (plan.advertised_host, plan.advertised_port) == ("127.0.0.1", 9092)


@pytest.mark.parametrize(
    ("listeners", "protected"),
    [
        ("PLAINTEXT://:1", set()),
        ("PLAINTEXT://:1,CONTROLLER://:2", {"CONTROLLER"}),
        ("PLAINTEXT://:1,CLIENTS://:2,CONTROLLER://:3", {"PLAINTEXT", "CONTROLLER"}),
    ],
)
def test_listeners_for_other_nodes_are_exempt_from_max_connections(listeners: str, protected: set[str]) -> None:
    names = "CLIENTS:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
    settings = Settings(
        {"listeners": listeners, "listener.security.protocol.map": names, "controller.listener.names": "CONTROLLER"}
    )
    assert protected_listeners(settings, plan_listeners(settings)) == protected


def test_listener_uses_the_address_from_advertised_listeners() -> None:
    settings = Settings(
        {
            "listeners": "INSIDE://:9092,CONTROLLER://:9093",
            "advertised.listeners": "INSIDE://broker.example:19092",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
        }
    )
    inside, controller = plan_listeners(settings)
    assert (inside.advertised_host, inside.advertised_port, inside.controller) == ("broker.example", 19092, False)
    assert controller.controller


def test_controller_listener_without_a_protocol_mapping_is_plaintext_in_a_plaintext_cluster() -> None:
    settings = Settings({"listeners": "PLAINTEXT://:1,CONTROLLER://:2", "controller.listener.names": "CONTROLLER"})
    assert [plan.security_protocol for plan in plan_listeners(settings)] == ["PLAINTEXT", "PLAINTEXT"]


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        ({"listeners": "nonsense"}, "is not NAME://host:port"),
        ({"listeners": "A://:1,A://:2"}, "used twice"),
        ({"listeners": "INSIDE://:9092"}, "listener INSIDE: protocol INSIDE is unknown; map it"),
        ({"listeners": "PLAINTEXT://:9092", "advertised.listeners": "OTHER://x:1"}, "is not in listeners"),
        (
            {"listeners": "PLAINTEXT://:9092", "advertised.listeners": "PLAINTEXT://0.0.0.0:1"},
            "can't connect to 0.0.0.0",
        ),
        ({"listeners": "CONTROLLER://:9092", "controller.listener.names": "CONTROLLER"}, "for clients"),
        (
            {
                "process.roles": "broker",
                "listeners": "PLAINTEXT://:9092",
                "controller.listener.names": "CONTROLLER",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:TLS",
            },
            "listener CONTROLLER: protocol TLS is unknown",
        ),
        (
            {"listeners": "SASL_SSL://:9092,CONTROLLER://:9093", "controller.listener.names": "CONTROLLER"},
            "listener CONTROLLER: protocol CONTROLLER is unknown; map it",
        ),
        (
            {
                "process.roles": "broker",
                "listeners": "CLIENTS://:9092",
                "controller.listener.names": "CONTROLLER",
                "listener.security.protocol.map": "CLIENTS:SASL_SSL",
            },
            "listener CONTROLLER: protocol CONTROLLER is unknown; map it",
        ),
    ],
)
def test_error_about_an_invalid_listener_contains_the_cause_and_a_remedy(
    properties: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ListenerError, match=sentence):
        plan_listeners(Settings(properties))
