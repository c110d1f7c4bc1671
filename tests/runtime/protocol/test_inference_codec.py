"""Generation requests and updates, converted to their protobuf messages and back."""

import pytest

from protos import inference_pb2
from runtime.protocol.inference_codec import (
    request_from_proto,
    request_to_proto,
    update_from_proto,
    update_to_proto,
)
from runtime.protocol.inference_types import (
    JSON_OBJECT,
    Chat,
    ChatMessage,
    Choice,
    Finish,
    FinishReason,
    GenerationRequest,
    JsonSchema,
    PromptToken,
    Regex,
    Sampling,
    Scheduling,
    StructuredOutput,
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


def test_request_through_the_codec_is_the_same() -> None:
    request = GenerationRequest(
        prompts=("a", Chat((ChatMessage("user", "hi"),), False, True), TokenIds((1, 2))),
        sampling=Sampling(
            temperature=0.5,
            top_k=3,
            top_p=0.25,
            min_p=0.125,
            seed=0,
            num_logprobs=2,
            presence_penalty=1.5,
            frequency_penalty=-1.5,
            repetition_penalty=2.0,
            logit_bias=((7, -1.0),),
            num_prompt_logprobs=0,
        ),
        max_tokens=0,
        ignore_eos=True,
        stop_token_ids=(9,),
        stop=("end",),
        include_stop=True,
        num_choices=2,
        min_tokens=1,
        scheduling=Scheduling(
            priority=-1, ttft_target_seconds=0.5, tpot_target_seconds=0.25, cache_salt="s"
        ),
        model="m",
        request_id="r",
    )
    assert request_from_proto(request_to_proto(request), "r") == request


@pytest.mark.parametrize(
    "output", [None, JSON_OBJECT, JsonSchema("{}"), Regex("a+"), Choice(("a", "b"))]
)
def test_structured_output_through_the_codec_is_the_same(output: StructuredOutput | None) -> None:
    request = GenerationRequest(prompts=("a",), structured_output=output)
    assert request_from_proto(request_to_proto(request), "") == request


def test_request_from_proto_distinguishes_no_input_from_an_empty_text() -> None:
    prompts = [inference_pb2.Prompt(text=""), inference_pb2.Prompt()]
    message = inference_pb2.InferRequest(prompts=prompts)
    assert request_from_proto(message, "id").prompts == ("", TokenIds(()))


def test_request_from_proto_with_nothing_set_has_the_defaults() -> None:
    message = inference_pb2.InferRequest(prompts=[inference_pb2.Prompt(text="")])
    assert request_from_proto(message, "") == GenerationRequest(prompts=("",))


def test_update_through_the_codec_is_the_same() -> None:
    finish = Finish(FinishReason.STOP, Usage(3, 4, 1), Timings(0.5, 1.0, 2.0))
    tokens = (Token(5, -0.5, ((5, -0.5), (6, -1.5))),)
    prompt_tokens = (PromptToken(1, None), PromptToken(2, -0.25, ((2, -0.25),)))
    update = Update("r", 1, "a", tokens, finish, 7, 2, prompt_tokens)
    assert update_from_proto(update_to_proto(update)) == update


def test_update_from_proto_in_the_middle_has_no_end() -> None:
    token = inference_pb2.Token(
        id=5, logprob=-0.5, top_logprobs=[inference_pb2.TokenLogprob(id=5, logprob=-0.5)]
    )
    message = inference_pb2.InferResponse(request_id="r", index=1, text="a", tokens=[token])
    assert update_from_proto(message) == Update(
        "r", 1, "a", (Token(5, -0.5, ((5, -0.5),)),), None, None
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
        "", 0, "", (), Finish(FinishReason.LENGTH, Usage(3, 4), Timings(0.5, 1.0, 2.0)), 0
    )
