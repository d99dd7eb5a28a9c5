"""The plugin: parts in a fixed order, reached by a real Runner, and a Runner that is refused."""

from __future__ import annotations

import inspect
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.tools.agent_tool import AgentTool
from google.genai import types

from adk_memory_ext.errors import ConfigurationError
from adk_memory_ext.plugin import PARTS, MemoryPlugin
from adk_memory_ext.service import DurableSessionService
from conversation import texts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from google.adk.events.event import Event
    from google.adk.models.llm_request import LlmRequest
    from google.adk.sessions.base_session_service import BaseSessionService

# ADK warns of it once a process.
pytestmark = pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\] ResumabilityConfig")

KEY: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user", "session_id": "session"}
CALLBACKS: Final = {
    name
    for name, value in vars(BasePlugin).items()
    if inspect.iscoroutinefunction(value) and not name.startswith("_")
}


# --- An agent that needs no network


class Caller(BaseLlm):
    """Calls the one tool that it is offered and then says what the tool said; or fails."""

    model: str = "caller"
    fails: bool = False

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answers from the request alone."""
        del stream
        if self.fails:
            raise ConnectionError("the model is away")
        last = (llm_request.contents[-1].parts or [types.Part()])[0]
        if last.function_response:
            answer = types.Part(text=f"The tool says {last.function_response.response}.")
        elif llm_request.tools_dict:
            (name,) = llm_request.tools_dict
            arguments = {"request": "look"} if name == "expert" else {}
            answer = types.Part.from_function_call(name=name, args=arguments)
        else:
            answer = types.Part(text=f"I have read {last.text!r}.")
        yield LlmResponse(content=types.Content(role="model", parts=[answer]))


def look_up() -> dict[str, str]:
    """Looks something up."""
    return {"found": "a book"}


def fail() -> None:
    """Fails."""
    raise ConnectionError("the library is closed")


class Part(BasePlugin):
    """A part that notes each callback that reaches it, and answers or fails where it is told."""

    def __init__(
        self,
        name: str,
        log: list[tuple[str, str]],
        answers: dict[str, Any] | None = None,
        failures: dict[str, Exception] | None = None,
    ) -> None:
        super().__init__(name=name)
        self.log = log
        self.answers = answers or {}
        self.failures = failures or {}
        self.arguments: dict[str, dict[str, Any]] = {}


def _noting(callback: str) -> Callable[..., Any]:
    async def note(self: Part, **arguments: Any) -> Any:
        self.log.append((self.name, callback))
        self.arguments[callback] = arguments
        if callback in self.failures:
            raise self.failures[callback]
        return self.answers.get(callback)

    return note


for _callback in CALLBACKS:
    setattr(Part, _callback, _noting(_callback))


@asynccontextmanager
async def running(
    agent: LlmAgent, plugin: BasePlugin, sessions: BaseSessionService | None = None
) -> AsyncIterator[Runner]:
    """Yields a Runner over a session that exists; by default on a service of ours in memory."""
    app = App(
        name="app",
        root_agent=agent,
        plugins=[plugin],
        resumability_config=ResumabilityConfig(is_resumable=True),
    )
    async with DurableSessionService.from_url("") as ours:
        service = sessions or ours
        if await service.get_session(**KEY) is None:
            await service.create_session(**KEY)
        async with Runner(app=app, session_service=service) as runner:
            yield runner


async def say(runner: Runner, text: str = "hello", **options: Any) -> list[Event]:
    """Returns the events of one turn."""
    message = types.Content(role="user", parts=[types.Part(text=text)])
    options = {"new_message": message} | options
    return [
        event async for event in runner.run_async(user_id="user", session_id="session", **options)
    ]


# --- The parts


def test_every_callback_of_adk_is_handed_on() -> None:
    """A callback that a new ADK adds turns this red until the plugin hands it to its parts."""
    own = {name for name in vars(MemoryPlugin) if not name.startswith("_")}
    assert CALLBACKS - own == set()
    assert {name for name in own if name.endswith("_callback")} - CALLBACKS == set()


@pytest.mark.parametrize("name", sorted(CALLBACKS))
def test_each_callback_takes_what_adks_takes(name: str) -> None:
    """The parameters are those of ADK's plugin, so that ADK can pass what it passes there."""
    ours = inspect.signature(getattr(MemoryPlugin, name)).parameters
    adks = inspect.signature(getattr(BasePlugin, name)).parameters
    assert [(item.name, item.kind, item.default) for item in ours.values()] == [
        (item.name, item.kind, item.default) for item in adks.values()
    ]


def test_the_order_of_the_parts_is_fixed() -> None:
    """Parts stand in the documented order, whatever the order of the arguments."""
    parts: dict[str, Any] = {name: Part(name, []) for name in PARTS}
    given = dict(reversed(parts.items()))
    assert [part.name for part in MemoryPlugin(**given).parts] == list(PARTS)
    given["recovery"] = None
    assert [part.name for part in MemoryPlugin(**given).parts] == [
        name for name in PARTS if name != "recovery"
    ]


def test_nothing_is_required_but_a_name_is_taken() -> None:
    """`adk web --extra_plugins` passes a name and nothing else; an application may pass none."""
    names = [part.name for part in MemoryPlugin().parts]
    assert names == ["turns", "memory_policy", "recovery", "profile", "memory_media"]
    on_unless_none: dict[str, Any] = dict.fromkeys(
        ("turns", "policy", "recovery", "profile", "media")
    )
    assert MemoryPlugin(**on_unless_none).parts == ()
    assert MemoryPlugin().name == "memory"
    assert MemoryPlugin(name="adk_memory_ext.MemoryPlugin").name == "adk_memory_ext.MemoryPlugin"


A_TURN: Final = [
    "on_user_message_callback",
    "before_run_callback",
    "before_agent_callback",
    *("before_model_callback", "after_model_callback", "on_event_callback"),  # the call
    *("before_tool_callback", "after_tool_callback", "on_event_callback"),  # its answer
    *("before_model_callback", "after_model_callback", "on_event_callback"),  # the text
    "after_agent_callback",
    "on_event_callback",  # a resumable agent says that it has ended
    "after_run_callback",
]
MODEL_FAILS: Final = {"on_model_error_callback", "on_agent_error_callback", "on_run_error_callback"}
TOOL_FAILS: Final = {"on_tool_error_callback", "on_agent_error_callback", "on_run_error_callback"}


def batched(log: list[tuple[str, str]], size: int) -> list[list[tuple[str, str]]]:
    """Returns the log cut into pieces of one size."""
    return [log[start : start + size] for start in range(0, len(log), size)]


def all_parts(log: list[tuple[str, str]]) -> MemoryPlugin:
    """Returns a plugin in which each part notes what reaches it."""
    parts: dict[str, Any] = {name: Part(name, log) for name in PARTS}
    return MemoryPlugin(**parts)


async def test_a_turn_reaches_each_part_once_a_callback() -> None:
    """In a turn with a tool call every callback comes to every part, in order and once a time."""
    log: list[tuple[str, str]] = []
    agent = LlmAgent(name="agent", model=Caller(), tools=[look_up])
    async with running(agent, all_parts(log)) as runner:
        events = await say(runner)
    assert [text for text in texts(events) if text] == ["The tool says {'found': 'a book'}."]
    *called, closed = batched(log, len(PARTS))
    assert [part for part, _ in closed] == list(reversed(PARTS))
    assert [[part for part, _ in batch] for batch in called] == [list(PARTS)] * len(A_TURN)
    assert [len({name for _, name in batch}) for batch in called] == [1] * len(A_TURN)
    # ADK runs the agent in a task of its own, beside the one that handles its events.
    assert sorted(batch[0][1] for batch in called) == sorted(A_TURN)
    assert called[0][0][1] == "on_user_message_callback"
    assert called[-1][0][1] == "after_run_callback"


@pytest.mark.parametrize(
    ("agent", "callbacks"),
    [
        (LlmAgent(name="agent", model=Caller(fails=True)), MODEL_FAILS),
        (LlmAgent(name="agent", model=Caller(), tools=[fail]), TOOL_FAILS),
    ],
    ids=["model", "tool"],
)
async def test_an_error_reaches_each_part_once(agent: LlmAgent, callbacks: set[str]) -> None:
    """What a model or a tool raises comes to every part, in order and once a callback."""
    log: list[tuple[str, str]] = []
    async with running(agent.model_copy(), all_parts(log)) as runner:
        with pytest.raises(ConnectionError):
            await say(runner)
    for callback in callbacks:
        assert [part for part, name in log if name == callback] == list(PARTS)


def test_no_callback_of_adk_is_left_untried() -> None:
    """The tests of a turn and of its errors reach every callback; a new one needs a case there."""
    assert set(A_TURN) | MODEL_FAILS | TOOL_FAILS | {"close"} == CALLBACKS


def content(text: str) -> types.Content:
    """Returns something said by the model."""
    return types.Content(role="model", parts=[types.Part(text=text)])


@pytest.mark.parametrize(
    ("callback", "answer", "last_text"),
    [
        ("before_run_callback", content("no"), "no"),
        ("before_agent_callback", content("no"), "no"),
        ("after_agent_callback", content("also"), "also"),
        ("before_model_callback", LlmResponse(content=content("cached")), "cached"),
        ("after_model_callback", LlmResponse(content=content("better")), "better"),
        ("before_tool_callback", {"found": "x"}, "The tool says {'found': 'x'}."),
        ("after_tool_callback", {"found": "y"}, "The tool says {'found': 'y'}."),
    ],
)
async def test_the_first_answer_wins(callback: str, answer: Any, last_text: str) -> None:
    """What a part returns is what ADK gets, and the parts after it are not asked."""
    log: list[tuple[str, str]] = []
    plugin = MemoryPlugin(
        turns=Part("turns", log),
        profile=Part("profile", log, {callback: answer}),
        history=Part("history", log, {callback: answer}),
    )
    agent = LlmAgent(name="agent", model=Caller(), tools=[look_up])
    async with running(agent, plugin) as runner:
        events = await say(runner)
    assert [text for text in texts(events) if text][-1] == last_text
    asked = [part for part, name in log if name == callback]
    assert asked
    assert set(asked) == {"turns", "profile"}


async def test_a_replaced_message_is_what_is_stored() -> None:
    """The answer to `on_user_message_callback` takes the place of what the person said."""
    message = types.Content(role="user", parts=[types.Part(text="replaced")])
    plugin = MemoryPlugin(turns=Part("turns", [], {"on_user_message_callback": message}))
    async with running(LlmAgent(name="agent", model=Caller()), plugin) as runner:
        events = await say(runner, "original")
        stored = await runner.session_service.get_session(**KEY)
    assert texts(events)[0] == "I have read 'replaced'."
    assert stored is not None
    assert texts(stored.events)[0] == "replaced"


async def test_a_replaced_event_is_what_is_stored() -> None:
    """The answer to `on_event_callback` takes the place of the event."""

    class Editor(Part):
        async def on_event_callback(self, *, invocation_context: Any, event: Event) -> Event:
            del invocation_context
            return event.model_copy(update={"content": content("edited")})

    async with running(
        LlmAgent(name="agent", model=Caller()), MemoryPlugin(checkpoints=Editor("editor", []))
    ) as runner:
        await say(runner)
        stored = await runner.session_service.get_session(**KEY)
    assert stored is not None
    assert texts(stored.events)[1] == "edited"


async def test_an_answered_error_is_none() -> None:
    """A part that answers a model's error saves the turn."""
    answer = LlmResponse(content=content("a guess"))
    plugin = MemoryPlugin(recovery=Part("recovery", [], {"on_model_error_callback": answer}))
    async with running(LlmAgent(name="agent", model=Caller(fails=True)), plugin) as runner:
        events = await say(runner)
    assert texts(events)[0] == "a guess"


async def test_every_part_is_closed_whatever_fails() -> None:
    """Parts are closed last to first; what fails there is raised together at the end."""
    log: list[tuple[str, str]] = []
    plugin = MemoryPlugin(
        turns=Part("turns", log, failures={"close": OSError("one")}),
        profile=Part("profile", log),
        history=Part("history", log, failures={"close": ValueError("two")}),
    )
    with pytest.raises(ExceptionGroup, match=r"close failed in 2 part\(s\)") as caught:
        await plugin.close()
    assert [str(error) for error in caught.value.exceptions] == ["two", "one"]
    assert log == [("history", "close"), ("profile", "close"), ("turns", "close")]


async def test_a_failing_notification_keeps_nobody_uninformed() -> None:
    """Where parts are only told, one that fails does not keep the others from being told."""
    log: list[tuple[str, str]] = []
    plugin = MemoryPlugin(
        turns=Part("turns", log, failures={"after_run_callback": OSError("one")}),
        history=Part("history", log),
    )
    async with running(LlmAgent(name="agent", model=Caller()), plugin) as runner:
        with pytest.raises(RuntimeError, match="after_run_callback failed in 1 part") as caught:
            await say(runner)
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert [part for part, name in log if name == "after_run_callback"] == ["turns", "history"]


# --- Whose run it is


def foreign() -> InMemorySessionService:
    """Returns a session service that is not ours."""
    return InMemorySessionService()


def assert_refused(caught: pytest.ExceptionInfo[RuntimeError]) -> None:
    """Checks that the error names what is wrong and what to do."""
    cause = caught.value.__cause__
    assert isinstance(cause, ConfigurationError)
    assert "this Runner has a InMemorySessionService" in str(cause)
    assert "DurableSessionService(InMemorySessionService(…))" in str(cause)
    assert "--session_service_uri memext+sqlite:///" in str(cause)
    assert "\n" not in str(cause)


async def test_a_runner_with_another_service_is_refused() -> None:
    """Without our service a turn ends before anything is stored, and no part hears of it."""
    log: list[tuple[str, str]] = []
    sessions = foreign()
    agent = LlmAgent(name="agent", model=Caller())
    async with running(agent, all_parts(log), sessions) as runner:
        with pytest.raises(RuntimeError) as caught:
            await say(runner, state_delta={"a": 1})
    assert_refused(caught)
    session = await sessions.get_session(**KEY)
    assert session is not None
    assert session.events == []
    assert session.state == {}
    assert {name for _, name in log} == {"close"}


async def test_a_resumed_run_with_another_service_is_refused() -> None:
    """A run that is resumed has no new message, and is refused before its agent runs."""
    sessions = foreign()
    agent = LlmAgent(name="agent", model=Caller())
    async with running(agent, Part("none", []), sessions) as runner:
        invocation = (await say(runner))[0].invocation_id
    before = await sessions.get_session(**KEY)
    async with running(agent.model_copy(), MemoryPlugin(), sessions) as runner:
        with pytest.raises(RuntimeError) as caught:
            await say(runner, new_message=None, invocation_id=invocation)
    assert_refused(caught)
    after = await sessions.get_session(**KEY)
    assert before is not None
    assert after is not None
    assert after.events == before.events


async def test_a_runner_with_a_wrapped_service_is_served() -> None:
    """Any service of ADK's will do once it is wrapped."""
    log: list[tuple[str, str]] = []
    sessions = DurableSessionService(foreign())
    agent = LlmAgent(name="agent", model=Caller())
    async with running(agent, all_parts(log), sessions) as runner:
        assert texts(await say(runner))[0] == "I have read 'hello'."
    assert ("turns", "before_run_callback") in log


@pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated")  # AgentTool passes it
async def test_the_run_inside_an_agent_tool_is_left_alone() -> None:
    """An agent that is called as a tool has a session of its own, of which no part hears."""
    log: list[tuple[str, str]] = []
    expert = LlmAgent(name="expert", model=Caller(), tools=[look_up])
    agent = LlmAgent(name="agent", model=Caller(), tools=[AgentTool(expert)])
    async with running(agent, all_parts(log)) as runner:
        events = await say(runner)
    said = [text for text in texts(events) if text]
    assert said == ["The tool says {'result': \"The tool says {'found': 'a book'}.\"}."]
    calls = [name for part, name in log if part == "turns"]
    assert calls.count("on_user_message_callback") == 1
    assert calls.count("before_run_callback") == 1
    assert calls.count("before_agent_callback") == 1
    assert calls.count("before_model_callback") == 2
    assert calls.count("before_tool_callback") == 1
    assert calls.count("after_tool_callback") == 1
    assert calls.count("on_event_callback") == 4
    assert calls.count("after_run_callback") == 1


async def test_a_turn_with_a_tool_does_not_excuse_a_later_run() -> None:
    """That a tool was called once opens no door for a Runner with another service."""
    agent = LlmAgent(name="agent", model=Caller(), tools=[look_up])
    async with running(agent, MemoryPlugin()) as runner:
        await say(runner)
    async with running(agent.model_copy(), MemoryPlugin(), foreign()) as runner:
        with pytest.raises(RuntimeError) as caught:
            await say(runner)
    assert_refused(caught)
