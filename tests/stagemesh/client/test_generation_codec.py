"""Requests and updates against their protobuf messages."""

from protos import inference_pb2
from stagemesh.client.generation_codec import request_to_proto, update_from_proto
from stagemesh.client.types import (
    Chat,
    ChatMessage,
    FinishReason,
    GenerationRequest,
    Sampling,
    Timings,
    Token,
    TokenIds,
    Update,
    Usage,
)


def test_request_to_proto_with_defaults_leaves_optional_fields_unset() -> None:
    message = request_to_proto(GenerationRequest(prompts=("hi",)))
    assert message.prompts[0].text == "hi"
    assert not message.HasField("max_tokens")
    assert not message.sampling.HasField("seed")


def test_request_to_proto_keeps_zero_where_it_means_something() -> None:
    request = GenerationRequest(prompts=("hi",), max_tokens=0, sampling=Sampling(seed=0))
    message = request_to_proto(request)
    assert message.HasField("max_tokens")
    assert message.max_tokens == 0
    assert message.sampling.HasField("seed")


def test_request_to_proto_carries_every_kind_of_prompt() -> None:
    chat = Chat((ChatMessage("system", "be brief"), ChatMessage("user", "hi")))
    message = request_to_proto(GenerationRequest(prompts=("a", chat, TokenIds((1, 2)))))
    kinds = [prompt.WhichOneof("input") for prompt in message.prompts]
    assert kinds == ["text", "chat", "token_ids"]
    assert [turn.role for turn in message.prompts[1].chat.messages] == ["system", "user"]
    assert list(message.prompts[2].token_ids.ids) == [1, 2]


def test_update_from_proto_in_the_middle_has_no_end() -> None:
    token = inference_pb2.Token(
        id=5, logprob=-0.5, top_logprobs=[inference_pb2.TokenLogprob(id=5, logprob=-0.5)]
    )
    message = inference_pb2.InferResponse(request_id="r", index=1, text="a", tokens=[token])
    assert update_from_proto(message) == Update(
        "r", 1, "a", (Token(5, -0.5, ((5, -0.5),)),), None, None, None, None
    )


def test_update_from_proto_at_the_end_has_reason_usage_and_timings() -> None:
    message = inference_pb2.InferResponse(
        finish_reason=inference_pb2.FINISH_REASON_LENGTH,
        usage=inference_pb2.Usage(prompt_tokens=3, completion_tokens=4),
        timings=inference_pb2.Timings(
            queue_seconds=0.5, first_token_seconds=1.0, total_seconds=2.0
        ),
        seed=0,
    )
    assert update_from_proto(message) == Update(
        "", 0, "", (), FinishReason.LENGTH, Usage(3, 4), Timings(0.5, 1.0, 2.0), 0
    )
