"""Pages of other origins call the server only where its options name them."""

from pathlib import Path

import pytest

from draftwood import ConfigError
from draftwood.serve.http.settings import ServeOptions
from tests.serve.client import CHAT, chat
from tests.serve.conftest import make_service, serving

OWN, OTHER, ALLOWED = "http://localhost:3000", "http://localhost:3001", "access-control-allow-origin"
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}
PRIVATE = "Access-Control-Request-Private-Network"


def asked(client, origin, *, key="right", **fields):
    response = client.post(CHAT, json=chat(**fields), headers={"Origin": origin, "Authorization": f"Bearer {key}"})
    return response.status_code, response.headers.get(ALLOWED)


def test_pages_of_named_origins_reach_the_server_and_no_others(served):
    service = make_service(served, cors_origin=(OWN, "app://obsidian.md"))
    with serving(service, keys=("right",)) as client:
        for origin, allowed in ((OWN, OWN), ("app://obsidian.md", "app://obsidian.md"), (OTHER, None)):
            preflight = client.options(CHAT, headers={"Origin": origin, **PREFLIGHT})
            assert (preflight.status_code, preflight.headers.get(ALLOWED)) == (200 if allowed else 400, allowed)
            assert "access-control-allow-private-network" not in preflight.headers
            assert [asked(client, origin), asked(client, origin, stream=True)] == [(200, allowed)] * 2
            refusals = [
                asked(client, origin, temperature=-1),
                asked(client, origin, key="wrong"),
                asked(client, origin, seed="a"),
            ]
            assert refusals == [(400, allowed), (401, allowed), (400, allowed)]
        headers = client.options(CHAT, headers={"Origin": OWN, **PREFLIGHT, PRIVATE: "true"}).headers
        assert headers["access-control-allow-private-network"] == "true"
        assert {"authorization", "content-type"} <= set(headers["access-control-allow-headers"].split(", "))

        async def broken(*_):
            raise RuntimeError("of the test")

        service.score = broken
        assert asked(client, OWN) == (500, OWN)


def test_without_the_option_no_page_reaches_the_server(client):
    assert client.options(CHAT, headers={"Origin": OWN, **PREFLIGHT, PRIVATE: "true"}).status_code == 405
    assert asked(client, OWN) == (200, None)


@pytest.mark.parametrize(("origins", "keys"), [
    (("*",), True), (("http://*.a",), False), (("http://a/",), False), (("localhost",), False), (("null",), False),
    (("http://a b",), False),
])  # fmt: skip
def test_origins_are_whole_ones_and_not_all_where_there_are_keys(origins, keys):
    with pytest.raises(ConfigError, match="cors_origin is "):
        ServeOptions(cors_origin=origins, api_key_file=Path("keys") if keys else None)
    assert ServeOptions(cors_origin=("*", OWN))
