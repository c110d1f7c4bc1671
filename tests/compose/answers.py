"""Requests to meshes of containers, and the expected answers."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from stagemesh import Chat, ChatMessage, Client, GenerationRequest, StagemeshRpcError, Update

REQUEST = GenerationRequest(
    prompts=(Chat((ChatMessage("user", "Give me three tips for staying healthy."),)),),
    max_tokens=100,
)
# Transformers' answer in float32.
ANSWER = (
    "1. Stay hydrated: Drink plenty of water, especially during the heat. 2. Eat a balanced diet: "
    "A balanced diet can help your body stay healthy. 3. Get enough sleep: Make sure you're "
    "getting enough sleep each night."
)
ANSWER_SECONDS = 240.0


def streaming(
    client: Client, request: GenerationRequest = REQUEST
) -> Generator[Update, None, None]:
    """The request's updates."""
    return client.infer(request, timeout_seconds=ANSWER_SECONDS)


def ask(api: str, request: GenerationRequest = REQUEST) -> str:
    """The whole answer."""
    with Client(api) as client:
        return rest_of(streaming(client, request))


def some_of(updates: Generator[Update, None, None]) -> str:
    """Reads the text of the first updates; the answer goes on."""
    return "".join(next(updates).text for _ in range(5))


def rest_of(updates: Generator[Update, None, None]) -> str:
    """Reads the rest of the answer."""
    return "".join(update.text for update in updates)


@contextmanager
def asking(api: str, request: GenerationRequest) -> Iterator[list[str]]:
    """Sends requests in a loop; yields the answers so far. Fails at the end if a request did."""
    answers: list[str] = []
    errors: list[StagemeshRpcError] = []
    is_over = Event()

    def ask_on() -> None:
        try:
            while not is_over.is_set():
                answers.append(ask(api, request))
        except StagemeshRpcError as error:
            errors.append(error)

    clients = [Thread(target=ask_on) for _ in range(2)]
    for client in clients:
        client.start()
    try:
        yield answers
    finally:
        is_over.set()
        for client in clients:
            client.join(ANSWER_SECONDS)
    assert errors == []
