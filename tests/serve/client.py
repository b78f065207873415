"""What a client sends to the server, and what it reads."""

import json

from tests.serve.shapes import check_error

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "the fox ran"}]


def chat(**fields):
    """The body of a chat."""
    return {"model": "tiny", "messages": MESSAGES, "max_tokens": 16, "seed": 1, **fields}


def completion(**fields):
    """The body of a completion."""
    return {"model": "tiny", "prompt": "the fox ran", "max_tokens": 16, "seed": 1, **fields}


def chunks(body):
    """The chunks of a stream, which ends with the mark of its end; comments are left out."""
    parts = [part for part in body.split("\n\n") if part and not part.startswith(":")]
    assert all(part.startswith("data: ") and "\n" not in part for part in parts)
    assert parts[-1] == "data: [DONE]"
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-1]]


def route(body):
    return CHAT if "messages" in body else COMPLETIONS


def answer(client, body, *, path=None):
    """The whole answer to a chat or a completion."""
    response = client.post(path or route(body), json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def choice(client, body):
    """The first choice of the answer."""
    return dict(answer(client, body)["choices"][0])


def written(client, **fields):
    """The text of a completion."""
    return text_of(choice(client, completion(**fields)))


def streamed(client, body):
    """The chunks of the answer as a stream."""
    response = client.post(route(body), json={**body, "stream": True})
    assert response.status_code == 200, response.text
    return chunks(response.text)


def parts_of(client, body, *, stream):
    """The chunks of a stream, or the whole answer."""
    return streamed(client, body) if stream else [answer(client, body)]


def raw(body, *headers):
    """A request for a completion, for a socket."""
    data = json.dumps(body).encode()
    lines = [f"POST {COMPLETIONS} HTTP/1.1", "Host: a", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data


def text_of(*choices):
    """The text of a choice, or of the choices of a stream."""
    texts = (one.get("text", one.get("delta", one.get("message", {})).get("content")) for one in choices)
    return "".join(text or "" for text in texts)


def refused(client, body, status=400, *, path=None):
    """The error of a body: an object, or bytes as they are."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    where = path or (route(body) if isinstance(body, dict) else COMPLETIONS)
    response = client.post(where, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == status, response.text[:500]
    check_error(response.json())
    return dict(response.json()["error"])


def metric(client, name):
    """The value of a metric, labels included in its name."""
    return value_of(client.get("/metrics").text, name)


def value_of(metrics, name):
    found = (float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(f"draftwood:{name} "))
    return next(found, 0.0)
