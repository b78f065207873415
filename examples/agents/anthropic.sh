# anthropic==2.14.0
# call: <tool_call>{"name": "read", "arguments": {"path": "note.txt"}}</tool_call>
python - <<END | grep "The note says so."
from anthropic import Anthropic, beta_tool

@beta_tool
def read(path: str) -> str:
    """Read a file."""
    return open(path).read()

client = Anthropic(base_url="http://127.0.0.1:8000", api_key="none")
for message in client.beta.messages.tool_runner(
    model="smollm2", max_tokens=4000, thinking={"type": "enabled", "budget_tokens": 2000}, tools=[read], stream=True,
    messages=[{"role": "user", "content": "What does note.txt say?"}],
):
    thought, *_, said = message.get_final_message().content
    print(thought.thinking, said)
END
